//! What stands between a test and its server behaves as the real thing would.

use sqlx::{ConnectOptions as _, Connection as _, Executor as _, PgConnection, postgres::PgConnectOptions};
use throwaway_postgres::{Options, Server};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{Database, Silence, all, pooler, settle, silent_proxy};

async fn answers(connection: &mut PgConnection) -> bool {
    connection.execute("select 1").await.is_ok()
}

async fn two_connections(database: &Database) -> (PgConnection, PgConnection, PgConnectOptions, Silence) {
    let (options, silence) = silent_proxy(database.options()).await;
    (options.connect().await.unwrap(), options.connect().await.unwrap(), options, silence)
}

#[tokio::test]
async fn a_silent_connection_stays_open_and_is_silent_whatever_was_passed_on() {
    for pass_on in [true, false] {
        let database = Database::fresh().await;
        let (mut one, mut other, _, silence) = two_connections(&database).await;
        silence.after(b"COMMIT\0", pass_on);
        one.execute("BEGIN; insert into effect (note) values ('silent')").await.unwrap();
        let committing = tokio::spawn(async move { one.execute("COMMIT").await.map(drop) });
        silence.until(1).await;
        // The arming is used up.
        other.execute("BEGIN").await.unwrap();
        other.execute("COMMIT").await.unwrap();
        assert_eq!((silence.count(), silence.connections()), (1, 2));
        assert!(!committing.is_finished());
        if pass_on {
            // The server has heard of it, and its answer gets nowhere.
            while database.effects().await == 0 {}
        }
        // The client gives up: the server hears of that.
        committing.abort();
        other.close().await.unwrap();
        database.until_alone().await;
        assert_eq!(database.effects().await, i64::from(pass_on));
    }
}

#[tokio::test]
async fn severed_connections_are_closed_at_both_ends_and_new_ones_are_not() {
    let database = Database::fresh().await;
    let (mut one, mut other, options, silence) = two_connections(&database).await;
    silence.after(b"BEGIN", true);
    let beginning = tokio::spawn(async move { one.execute("BEGIN").await.is_ok() });
    silence.until(1).await;
    silence.sever_all();
    assert!(!beginning.await.unwrap());
    assert!(!answers(&mut other).await);
    database.until_alone().await;
    assert!(answers(&mut options.connect().await.unwrap()).await);
}

#[tokio::test]
async fn behind_a_pooler_a_parameter_of_the_session_is_refused() {
    let database = Database::fresh().await;
    let options = pooler(database.options(), 1).await;
    let refused = options.options([("search_path", "public")]).connect().await.unwrap_err();
    let refused = refused.as_database_error().unwrap();
    assert_eq!(
        (refused.code().unwrap(), refused.message()),
        ("08P01".into(), "unsupported startup parameter: options")
    );
}

#[tokio::test]
async fn behind_a_pooler_named_statements_of_two_clients_collide_and_unnamed_ones_do_not() {
    let database = Database::fresh().await;
    let options = pooler(database.options(), 1).await;
    let (mut one, mut other) = (options.connect().await.unwrap(), options.connect().await.unwrap());
    let named = || sqlx::query_scalar::<_, i32>("select $1::int + 1").bind(1);
    assert_eq!(named().fetch_one(&mut one).await.unwrap(), 2);
    let refused = named().fetch_one(&mut other).await.unwrap_err();
    // duplicate_prepared_statement
    assert_eq!(refused.as_database_error().unwrap().code().unwrap(), "42P05");
    for _ in 0..2 {
        assert_eq!(named().persistent(false).fetch_one(&mut one).await.unwrap(), 2);
        assert_eq!(named().persistent(false).fetch_one(&mut other).await.unwrap(), 2);
    }
}

/// sqlx prepares an unnamed statement and executes it in two steps: outside a transaction another client's may come
/// between them, and is executed in its place.
#[tokio::test]
async fn behind_a_pooler_an_unnamed_statement_is_only_safe_within_a_transaction() {
    async fn asked(connection: &mut PgConnection, question: &'static str) -> i32 {
        sqlx::query_scalar(question).persistent(false).fetch_one(connection).await.unwrap()
    }
    let database = Database::fresh().await;
    let options = pooler(database.options(), 1).await;
    let (mut one, mut other) = (options.connect().await.unwrap(), options.connect().await.unwrap());
    let mut confused = false;
    for _ in 0..1_000 {
        confused |= tokio::join!(asked(&mut one, "select 1"), asked(&mut other, "select 2")) != (1, 2);
        if confused {
            break;
        }
    }
    assert!(confused);
    for _ in 0..20 {
        let within = async |connection: &mut PgConnection, question| {
            let mut transaction = connection.begin().await.unwrap();
            let answer = asked(&mut transaction, question).await;
            transaction.commit().await.unwrap();
            answer
        };
        assert_eq!(tokio::join!(within(&mut one, "select 1"), within(&mut other, "select 2")), (1, 2));
    }
}

#[tokio::test]
async fn behind_a_pooler_clients_outlast_a_restart_of_the_server() {
    let mut server = Server::start(&Options::default()).unwrap();
    let options = pooler(server.url("postgres").parse().unwrap(), 1).await;
    let mut connection = options.connect().await.unwrap();
    let before = backend(&mut connection).await;
    server.restart().unwrap();
    assert_ne!(backend(&mut connection).await, before);
}

#[tokio::test]
async fn behind_a_pooler_a_transaction_keeps_others_waiting_and_is_rolled_back_with_its_client() {
    let database = Database::fresh().await;
    let options = pooler(database.options(), 1).await;
    let (mut one, mut other) = (options.connect().await.unwrap(), options.connect().await.unwrap());
    let before = backend(&mut one).await;
    assert_eq!(backend(&mut other).await, before);
    one.execute("BEGIN").await.unwrap();
    one.execute("insert into effect (note) values ('lost')").await.unwrap();
    let waiting = tokio::spawn(async move { backend(&mut other).await });
    assert_eq!(backend(&mut one).await, before);
    settle().await;
    assert!(!waiting.is_finished());
    drop(one);
    assert_ne!(waiting.await.unwrap(), before);
    assert_eq!(database.effects().await, 0);
}

#[tokio::test]
async fn behind_a_pooler_many_clients_share_few_connections() {
    let database = Database::fresh().await;
    let options = pooler(database.options(), 2).await;
    let clients = (0..20).map(|_| {
        let options = options.clone();
        async move {
            let mut connection = options.connect().await.unwrap();
            let mut transaction = connection.begin().await.unwrap();
            let insert = sqlx::query("insert into effect (note) values ($1)").bind("x".repeat(100_000));
            insert.persistent(false).execute(&mut *transaction).await.unwrap();
            let backend = backend(&mut transaction).await;
            transaction.commit().await.unwrap();
            backend
        }
    });
    let backends: std::collections::HashSet<i32> = all(clients).await.into_iter().collect();
    assert!(backends.len() <= 2, "{backends:?}");
    assert_eq!(database.effects().await, 20);
}

async fn backend(connection: &mut PgConnection) -> i32 {
    let backend = sqlx::query_scalar("select pg_backend_pid()").persistent(false);
    backend.fetch_one(connection).await.unwrap()
}

#[tokio::test]
async fn a_standby_reads_and_refuses_to_write() {
    let server = Server::start(&Options { standby: true, ..Options::default() }).unwrap();
    let mut connection = connected(&server).await;
    let recovering: bool = sqlx::query_scalar("select pg_is_in_recovery()").fetch_one(&mut connection).await.unwrap();
    assert!(recovering);
    let refused = connection.execute("BEGIN READ WRITE").await.unwrap_err();
    // feature_not_supported: "cannot set transaction read-write mode during recovery"
    assert_eq!(refused.as_database_error().unwrap().code().unwrap(), "0A000");
    let refused = connection.execute("create table written ()").await.unwrap_err();
    assert_eq!(refused.as_database_error().unwrap().code().unwrap(), "25006");
}

#[tokio::test]
async fn a_server_takes_no_more_connections_than_it_is_told() {
    let server = Server::start(&Options { max_connections: Some(2), ..Options::default() }).unwrap();
    let _two = (connected(&server).await, connected(&server).await);
    let options: PgConnectOptions = server.url("postgres").parse().unwrap();
    let refused = options.connect().await.unwrap_err();
    assert_eq!(refused.as_database_error().unwrap().code().unwrap(), "53300");
}

#[tokio::test]
async fn a_restarted_server_has_lost_its_clients_and_kept_its_data_its_address_and_its_log() {
    let mut server = Server::start(&Options::default()).unwrap();
    let mut before = connected(&server).await;
    before.execute("create table kept ()").await.unwrap();
    for _ in 0..2 {
        server.restart().unwrap();
        assert!(!answers(&mut before).await);
        before = connected(&server).await;
        before.execute("select from kept").await.unwrap();
    }
    assert_eq!(server.log().matches("database system is ready to accept connections").count(), 3);
}

#[tokio::test]
async fn a_server_with_tls_says_so_by_tcp_before_and_after_a_restart() {
    let mut server = Server::start(&Options { tls: true, ..Options::default() }).unwrap();
    for _ in 0..2 {
        connected(&server).await;
        let options: PgConnectOptions = server.tcp_url("postgres").parse().unwrap();
        let mut stream = tokio::net::TcpStream::connect((options.get_host(), options.get_port())).await.unwrap();
        // SSLRequest
        stream.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'S');
        server.restart().unwrap();
    }
}

async fn connected(server: &Server) -> PgConnection {
    server.url("postgres").parse::<PgConnectOptions>().unwrap().connect().await.unwrap()
}

//! The engine's own pool: how it comes from the application's, and what becomes of it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::http::StatusCode;
use axum_idempotency::{
    Concurrency, ErrorKind, Idempotency, IdempotencyKey, LocalSettings, Operation, RejectionKind, Retention, Scope,
    TimestampedKeys, Tx,
};
use sqlx::{
    ConnectOptions as _, Executor as _, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions, PgSslMode},
};
use throwaway_postgres::{Options, Server};
use tokio::time::timeout;

use crate::support::{Database, Gate, Reply, all, app_with, create, effect, layer, log, pooler, post, reply};

const PATIENCE: Duration = Duration::from_secs(30);

/// A server of the test's own, with the tables.
async fn server(options: &Options) -> (Server, PgConnectOptions) {
    let server = Server::start(options).unwrap();
    let connect: PgConnectOptions = server.url("postgres").parse().unwrap();
    let connect = connect.disable_statement_logging();
    let pool = PgPoolOptions::new().max_connections(1).connect_with(connect.clone()).await.unwrap();
    axum_idempotency::migrate(&pool).await.unwrap();
    pool.execute("create table effect (id bigint generated always as identity primary key, note text not null)")
        .await
        .unwrap();
    pool.close().await;
    (server, connect)
}

/// What the session of a request's transaction says of itself.
async fn session(idempotency: &Idempotency, key: &str, setting: &'static str) -> String {
    let app = app_with(layer(idempotency.clone()), move |mut tx: Tx| async move {
        let asked = sqlx::query_scalar::<_, String>("select current_setting($1)").bind(setting);
        asked.fetch_one(&mut *tx).await.unwrap()
    });
    let replied = reply(&app, post("/things").key(key)).await;
    assert_eq!(replied.status, StatusCode::OK, "{replied:?}");
    replied.text().to_owned()
}

#[tokio::test]
async fn sessions_of_the_own_pool_say_whose_they_are_and_refuse_to_write_by_themselves() {
    let database = Database::fresh().await;
    let pool = Database::pool_with(database.options().application_name("shop"), 2).await;
    let idempotency = Idempotency::new(&pool);
    assert_eq!(database.sessions().await, 0, "none is opened before one is needed");
    for (key, setting, value) in [
        ("a", "application_name", "shop axum-idempotency"),
        ("b", "default_transaction_read_only", "on"),
        ("c", "transaction_read_only", "off"),
        ("d", "client_connection_check_interval", "1s"),
    ] {
        assert_eq!(session(&idempotency, key, setting).await, value);
    }
    // One that is just being given back is not waited for.
    assert!(database.sessions().await <= 2);
    let slower = Idempotency::new(&pool).client_check(Duration::from_millis(2_500));
    assert_eq!(session(&slower, "e", "client_connection_check_interval").await, "2500ms");
    let none = Idempotency::new(&pool).client_check(None);
    assert_eq!(session(&none, "f", "client_connection_check_interval").await, "0");
    let shared = Idempotency::sharing(&pool);
    assert_eq!(session(&shared, "g", "application_name").await, "shop");
    assert_eq!(session(&shared, "h", "default_transaction_read_only").await, "off");
}

#[tokio::test]
async fn the_applications_callbacks_and_options_count_for_the_own_pool() {
    let database = Database::fresh().await;
    let called = Arc::new(AtomicUsize::new(0));
    let (connected, acquired, released) = (called.clone(), called.clone(), called.clone());
    let pool = PgPoolOptions::new()
        .max_connections(3)
        .after_connect(move |connection, _| {
            connected.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move { connection.execute("set app.connected = 'yes'").await.map(drop) })
        })
        .before_acquire(move |_, _| {
            acquired.fetch_add(100, Ordering::SeqCst);
            Box::pin(async { Ok(true) })
        })
        .after_release(move |_, _| {
            released.fetch_add(10_000, Ordering::SeqCst);
            Box::pin(async { Ok(true) })
        })
        .connect_lazy_with(database.options().options([("work_mem", "5MB")]));
    let idempotency = Idempotency::new(&pool);
    assert_eq!(session(&idempotency, "a", "app.connected").await, "yes");
    assert_eq!(session(&idempotency, "b", "work_mem").await, "5MB");
    assert_eq!(session(&idempotency, "c", "app.connected").await, "yes");
    // The last one is given back beside the test.
    let given_back = async {
        while called.load(Ordering::SeqCst) < 20_000 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), given_back).await.expect("after_release");
    let called = called.load(Ordering::SeqCst);
    assert!(called % 100 >= 1 && called / 100 % 100 >= 1 && called >= 20_000, "{called}");
}

#[tokio::test]
async fn the_own_pool_connects_as_the_applications_is_told_to_later() {
    let database = Database::fresh().await;
    let pool = Database::pool_with(database.options().application_name("shop"), 2).await;
    let idempotency = Idempotency::new(&pool);
    assert_eq!(session(&idempotency, "a", "application_name").await, "shop axum-idempotency");
    pool.set_connect_options(database.options().application_name("store"));
    // What is open stays open.
    let killed = "select pg_terminate_backend(pid, 5000) from pg_stat_activity
                   where datname = current_database() and pid <> pg_backend_pid()";
    database.connection().await.execute(killed).await.unwrap();
    assert_eq!(session(&idempotency, "b", "application_name").await, "store axum-idempotency");
}

/// Sessions of the engine's only read outside a transaction, so a callback that writes fails on them.
#[tokio::test]
async fn a_callback_that_fails_on_the_own_pool_is_named_in_the_log() {
    let database = Database::fresh().await;
    let pool = PgPoolOptions::new()
        .max_connections(2)
        .acquire_timeout(Duration::from_millis(300))
        .after_connect(|connection, _| {
            Box::pin(
                async move { connection.execute("create temporary table of_the_session (id int)").await.map(drop) },
            )
        })
        .connect_lazy_with(database.options());
    let (log, _listening) = log();
    let app = app_with(layer(Idempotency::new(&pool)), create);
    let refused = timeout(PATIENCE, reply(&app, post("/things").key("k"))).await.unwrap();
    refused.assert_refused(RejectionKind::StoreUnavailable);
    assert!(log.text().contains("after_connect") && log.text().contains("BEGIN READ WRITE"), "{}", log.text());
}

#[tokio::test]
async fn as_many_requests_run_at_a_time_as_the_pool_has_connections_or_as_it_is_told() {
    let database = Database::fresh().await;
    let pool = database.pool_of(3).await;
    for (idempotency, at_a_time) in [
        (Idempotency::new(&pool), 3),
        (Idempotency::new(&pool).max_connections(2), 2),
        (Idempotency::new(&pool).max_connections(5), 5),
        (Idempotency::new(&pool).max_connections(0), 1),
        (Idempotency::sharing(&pool), 1),
        (Idempotency::sharing(&pool).max_connections(2), 2),
        (Idempotency::sharing(&pool).max_connections(9), 3),
    ] {
        let gate = Gate::closed();
        let inside = gate.clone();
        let app = app_with(layer(idempotency), move |mut tx: Tx| async move {
            inside.pass().await;
            effect(&mut tx).await;
        });
        let asked = tokio::spawn(all((0..7)
            .map(|n| {
                let app = app.clone();
                async move { reply(&app, post("/things").key(&n.to_string())).await.status }
            })
            .collect::<Vec<_>>()));
        for _ in 0..at_a_time {
            gate.entered().await;
        }
        let running = "select count(*) from pg_stat_activity
                        where datname = current_database() and state = 'idle in transaction'";
        let mut connection = database.connection().await;
        for _ in 0..20 {
            let running: i64 = sqlx::query_scalar(running).fetch_one(&mut connection).await.unwrap();
            assert_eq!(running, at_a_time);
        }
        for _ in 0..7 {
            gate.open();
        }
        assert!(timeout(PATIENCE, asked).await.unwrap().unwrap().iter().all(|status| *status == StatusCode::OK));
        connection.execute("truncate idempotency.keys").await.unwrap();
    }
}

#[tokio::test]
async fn a_restart_of_the_server_costs_no_request_an_error() {
    let (mut running, connect) = server(&Options::default()).await;
    let pool = PgPoolOptions::new().max_connections(4).connect_with(connect.clone()).await.unwrap();
    let begun = crate::support::Runs::default();
    let counted = begun.clone();
    let app = app_with(layer(Idempotency::new(&pool)), move |mut tx: Tx| {
        counted.one();
        async move {
            match sqlx::query("insert into effect (note) values ('done')").execute(&mut *tx).await {
                Ok(_) => StatusCode::CREATED,
                Err(_) => StatusCode::SERVICE_UNAVAILABLE,
            }
        }
    });
    let ask = |key: String| {
        let app = app.clone();
        async move { reply(&app, post("/things").key(&key)).await }
    };
    all((0..4).map(|n| ask(format!("before-{n}"))).collect::<Vec<_>>()).await;
    // While it is down, and until it is there again, they wait.
    let restarted = tokio::task::spawn_blocking(move || {
        running.restart().unwrap();
        running
    });
    let replays = tokio::spawn(all((0..8).map(|n| ask(format!("before-{}", n % 4))).collect::<Vec<_>>()));
    let during = all((0..8).map(|n| ask(format!("during-{n}"))).collect::<Vec<_>>()).await;
    // Nothing of a replay can be lost.
    assert!(replays.await.unwrap().iter().all(Reply::replayed));
    let running = restarted.await.unwrap();
    let after = all((0..8).map(|n| ask(format!("after-{n}"))).collect::<Vec<_>>()).await;
    // One whose transaction was open when the server went down has lost it. All others were begun.
    let lost = during.iter().filter(|reply| reply.status != StatusCode::CREATED).count();
    assert!(lost <= 4, "no more than there were connections");
    assert_eq!(begun.count(), 4 + 8 + 8, "{during:?}");
    assert!(after.iter().all(|reply| reply.status == StatusCode::CREATED), "{after:?}");
    drop(running);
}

#[tokio::test]
async fn r37_a_standby_that_only_reads_is_answered_503_and_told_apart() {
    let server = Server::start(&Options { standby: true, ..Options::default() }).unwrap();
    let connect: PgConnectOptions = server.url("postgres").parse().unwrap();
    let pool = PgPoolOptions::new().max_connections(2).connect_with(connect).await.unwrap();
    let app = app_with(layer(Idempotency::new(&pool)), create);
    for key in ["a", "b"] {
        let refused = timeout(PATIENCE, reply(&app, post("/things").key(key))).await.unwrap();
        refused.assert_refused(RejectionKind::StoreUnavailable);
        assert!(refused.text().contains("is read-only at the moment"), "{}", refused.text());
    }
}

#[tokio::test]
async fn a_server_that_is_full_is_answered_503_and_the_log_names_both_pools() {
    let (_server, connect) = server(&Options { max_connections: Some(6), ..Options::default() }).await;
    let pool = PgPoolOptions::new()
        .max_connections(6)
        .acquire_timeout(Duration::from_millis(500))
        .connect_with(connect)
        .await
        .unwrap();
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(pool.acquire().await.unwrap());
    }
    let (log, _listening) = log();
    let app = app_with(layer(Idempotency::new(&pool).max_connections(4)), create);
    let refused = timeout(PATIENCE, reply(&app, post("/things").key("k"))).await.unwrap();
    refused.assert_refused(RejectionKind::StoreUnavailable);
    assert!(refused.text().contains("accepts no more connections"), "{}", refused.text());
    let told = "the application's pool of 6 and the engine's own pool of 4";
    assert!(log.text().contains(told), "{}", log.text());
    drop(held);
    let served =
        timeout(PATIENCE, async { while reply(&app, post("/things").key("k")).await.status != StatusCode::CREATED {} });
    // Idle connections of the application's are still there: it has to give them up.
    pool.set_connect_options(pool.connect_options().as_ref().clone());
    let mut one = pool.acquire().await.unwrap();
    one.close_on_drop();
    drop(one);
    served.await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_down_and_one_that_refuses_the_sessions_are_told_apart() {
    let down = PgPoolOptions::new()
        .acquire_timeout(Duration::from_millis(200))
        .connect_lazy_with(PgConnectOptions::new_without_pgpass().socket("/nonexistent").username("nobody"));
    let app = app_with(layer(Idempotency::new(&down)), create);
    let refused = timeout(PATIENCE, reply(&app, post("/things").key("k"))).await.unwrap();
    refused.assert_refused(RejectionKind::StoreUnavailable);
    assert!(refused.text().contains("down or starting up"), "{}", refused.text());

    let database = Database::fresh().await;
    let through = pooler(database.options(), 1).await;
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(through);
    let (log, _listening) = log();
    let app = app_with(layer(Idempotency::new(&pool)), create);
    let refused = timeout(PATIENCE, reply(&app, post("/things").key("k"))).await.unwrap();
    refused.assert_refused(RejectionKind::StoreUnavailable);
    assert!(refused.text().contains("refuses the service's connections"), "{}", refused.text());
    assert!(log.text().contains("Idempotency::transaction_pooler"), "{}", log.text());
}

#[tokio::test]
async fn closing_the_applications_pool_closes_the_own_one_once_what_runs_has_ended() {
    let database = Database::fresh().await;
    let pool = database.pool_of(2).await;
    let gate = Gate::closed();
    let inside = gate.clone();
    let app = app_with(layer(Idempotency::new(&pool)), move |mut tx: Tx| async move {
        inside.pass().await;
        effect(&mut tx).await;
        StatusCode::CREATED
    });
    let running = app.clone();
    let running = tokio::spawn(async move { reply(&running, post("/things").key("k")).await });
    gate.entered().await;
    pool.close().await;
    let refused = timeout(PATIENCE, reply(&app, post("/things").key("l"))).await.unwrap();
    refused.assert_refused(RejectionKind::StoreUnavailable);
    assert!(refused.text().contains("shutting down"), "{}", refused.text());
    gate.open();
    assert_eq!(running.await.unwrap().status, StatusCode::CREATED);
    timeout(PATIENCE, database.until_alone()).await.unwrap();
    assert_eq!(database.effects().await, 1);
}

/// The application has dropped its handle, and did not close anything.
#[tokio::test]
async fn the_own_pool_goes_with_the_last_of_its_engines() {
    let database = Database::fresh().await;
    let idempotency = Idempotency::new(&database.pool_of(2).await);
    assert_eq!(session(&idempotency, "a", "transaction_read_only").await, "off");
    assert_eq!(database.sessions().await, 1);
    drop(idempotency);
    timeout(PATIENCE, database.until_alone()).await.unwrap();
}

#[test]
fn a_runtime_that_ends_takes_its_connections_along_and_the_next_one_goes_on() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let (database, idempotency) = first.block_on(async {
        let database = Database::fresh().await;
        let idempotency = Idempotency::new(&database.pool_of(2).await);
        assert_eq!(session(&idempotency, "a", "transaction_read_only").await, "off");
        (database, idempotency)
    });
    // Without a runtime it can be made, and cloned.
    let other = Idempotency::new(idempotency.pool()).max_connections(1);
    drop(first);
    second.block_on(async {
        for (n, idempotency) in [&idempotency, &other, &idempotency].into_iter().enumerate() {
            let read_only = timeout(PATIENCE, session(idempotency, &format!("b{n}"), "transaction_read_only")).await;
            assert_eq!(read_only.unwrap(), "off");
        }
    });
    drop((idempotency, other));
    drop(second);
    drop(database);
}

#[test]
fn without_a_runtime_a_claim_is_an_error_and_no_panic() {
    use std::{
        future::Future as _,
        pin::pin,
        task::{Context, Poll, Waker},
    };

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let pool = runtime.block_on(async {
        PgPoolOptions::new().connect_lazy_with(PgConnectOptions::new_without_pgpass().socket("/nonexistent"))
    });
    let idempotency = Idempotency::new(&pool);
    let mut pruning = pin!(idempotency.prune(1));
    let polled = pruning.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Ready(Err(error)) if error.kind() == ErrorKind::StoreUnavailable));
    let _inside = runtime.enter();
    drop(pool);
}

#[tokio::test]
async fn with_tls_the_own_pool_speaks_tls() {
    let (server, _) = server(&Options { tls: true, ..Options::default() }).await;
    let connect: PgConnectOptions = server.tcp_url("postgres").parse().unwrap();
    let connect = connect
        .ssl_mode(PgSslMode::VerifyFull)
        .ssl_root_cert_from_pem(Server::CERTIFICATE.as_bytes().to_vec())
        .disable_statement_logging();
    let pool = PgPoolOptions::new().max_connections(2).connect_with(connect).await.unwrap();
    let app = app_with(layer(Idempotency::new(&pool)), |mut tx: Tx| async move {
        let encrypted = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
        let encrypted: bool = sqlx::query_scalar(encrypted).fetch_one(&mut *tx).await.unwrap();
        encrypted.to_string()
    });
    let replied = reply(&app, post("/things").key("k")).await;
    assert_eq!((replied.status, replied.text()), (StatusCode::OK, "true"));
}

/// Many clients on two sessions of the server's, which belong to nobody.
#[tokio::test]
async fn f8_behind_a_pooler_that_works_by_transactions_every_response_is_right() {
    let database = Database::fresh().await;
    let through = pooler(database.options(), 2).await;
    let mut apps = Vec::new();
    for make in [Idempotency::new, Idempotency::sharing, Idempotency::new] {
        let pool = PgPoolOptions::new().max_connections(4).connect_lazy_with(through.clone());
        let layer = layer(make(&pool).transaction_pooler(true)).optional();
        apps.push(app_with(layer, |mut tx: Tx, body: String| async move {
            let inserted = sqlx::query_scalar::<_, i64>("insert into effect (note) values ($1) returning id");
            let id = inserted.bind(&body).persistent(false).fetch_one(&mut *tx).await.unwrap();
            let status = if body.ends_with('7') { StatusCode::PAYMENT_REQUIRED } else { StatusCode::CREATED };
            (status, format!("{body} {id}"))
        }));
    }
    let ask = |app: usize, n: usize| {
        let app = apps[app].clone();
        async move { reply(&app, post("/things").key(&format!("key-{n}")).body(format!("body-{n}"))).await }
    };
    let asked: Vec<_> = (0..300).map(|n| ask(n % 3, n / 6)).collect();
    let replies = timeout(PATIENCE, all(asked)).await.unwrap();
    let mut responses = std::collections::HashMap::new();
    for (n, replied) in replies.iter().enumerate() {
        assert!([StatusCode::CREATED, StatusCode::PAYMENT_REQUIRED].contains(&replied.status), "{replied:?}");
        assert!(replied.text().starts_with(&format!("body-{} ", n / 6)), "{replied:?}");
        let first = responses.entry(n / 6).or_insert_with(|| replied.body.clone());
        assert_eq!(*first, replied.body, "one response for each key");
    }
    let keyless = (0..30).map(|n| {
        let app = apps[n % 3].clone();
        async move { reply(&app, post("/things").body(format!("keyless-{n}"))).await.status }
    });
    assert!(all(keyless.collect::<Vec<_>>()).await.iter().all(|status| status.is_success() || *status == 402));
    let executed: i64 = sqlx::query_scalar("select count(*) from effect where note like 'body-%'")
        .fetch_one(&mut database.connection().await)
        .await
        .unwrap();
    assert_eq!(executed, 45, "five of the fifty were declined");
}

fn now_and_once() -> (u64, u128) {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();
    (now.try_into().unwrap(), COUNT.fetch_add(1, Ordering::SeqCst) as u128)
}

fn ulid() -> String {
    let (now, once) = now_and_once();
    ulid::Ulid::from_parts(now, once).to_string()
}

fn uuid_v7() -> String {
    let (now, once) = now_and_once();
    uuid::Uuid::from_u128(u128::from(now) << 80 | 0x7000_8000_0000_0000_0000 | once).to_string()
}

/// The whole of the view, after a claim of every kind and all that operators call, in the one session that there is.
#[tokio::test]
async fn f72_behind_a_pooler_nothing_stays_prepared() {
    for is_told in [false, true] {
        let database = Database::fresh().await;
        let pool = database.pool_of(1).await;
        axum_idempotency::migrate_partitioned(&pool).await.unwrap();
        let idempotency = Idempotency::new(&pool).concurrency(Concurrency::Wait { timeout: Duration::from_secs(5) });
        let idempotency = if is_told { idempotency.transaction_pooler(true) } else { idempotency };
        let hour = Duration::from_secs(3_600);
        let plain = layer(idempotency.clone()).optional();
        let timed = plain.clone().timestamped_keys(TimestampedKeys::uuid_v7(hour).unwrap()).operation("timed");
        let partitioned = TimestampedKeys::ulid(hour).unwrap().partitioned().unwrap();
        let partitioned = plain.clone().timestamped_keys(partitioned).operation("partitioned");
        let forever = plain.clone().retention(Retention::forever()).operation("forever");
        let own = plain.clone().with_local_settings(|_| LocalSettings::new().set("app.tenant", "a")).operation("own");
        for (layer, key) in [
            (&plain, "plain".to_owned()),
            (&timed, uuid_v7()),
            (&partitioned, ulid()),
            (&forever, "forever".to_owned()),
            (&own, "own".to_owned()),
        ] {
            let declined = ulid();
            let (created, declines) = (app_with(layer.clone(), create), crate::support::answering(402));
            for asked in [&key, &key] {
                assert_eq!(reply(&created, post("/things").key(asked)).await.status, StatusCode::CREATED, "{asked}");
            }
            reply(&created, post("/things")).await;
            let declined = if std::ptr::eq(layer, &timed) { uuid_v7() } else { declined };
            reply(&app_with(layer.clone(), declines), post("/things").key(&declined)).await;
        }
        database.expire().await;
        reply(&app_with(plain.clone(), create), post("/things").key("plain")).await;
        idempotency.prune(10).await.unwrap();
        idempotency.stats().await.unwrap();
        let (scope, operation) = (Scope::new("alice"), Operation::new("own"));
        idempotency.lookup(&scope, &operation, &IdempotencyKey::new("own").unwrap()).await.unwrap();
        idempotency.erase_scope(&scope).await.unwrap();
        let looking = app_with(plain, |mut tx: Tx| async move {
            let kept = "select coalesce(string_agg(statement, '; '), '') from pg_prepared_statements";
            // What the handlers of this test have prepared themselves.
            let kept = format!("{kept} where statement not like 'insert into effect %'");
            let kept = sqlx::query_scalar::<_, String>(sqlx::AssertSqlSafe(kept)).persistent(false);
            kept.fetch_one(&mut *tx).await.unwrap()
        });
        let kept = reply(&looking, post("/things").key("look")).await;
        assert_eq!(kept.status, StatusCode::OK);
        assert_eq!(kept.text().is_empty(), is_told, "{}", kept.text());
    }
}

/// The test's own pool and the engine's are open when it returns; its database is dropped all the same. Run in a process
/// of its own, since `#[sqlx::test]` finds its server by the environment alone; and by more tests at once than sqlx gives
/// connections to, which would wait for each other if the second pool took them from the same twenty.
#[test]
fn it_works_with_sqlx_test_and_leaves_no_database_behind() {
    const INSIDE: &str = "IDEMPOTENCY_INSIDE_SQLX_TEST";

    if std::env::var_os(INSIDE).is_some() {
        return inside_sqlx_test();
    }
    let url = throwaway_postgres::database_url().unwrap();
    let inside = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "pool::it_works_with_sqlx_test_and_leaves_no_database_behind", "--nocapture"])
        .env("DATABASE_URL", url)
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&inside.stdout).into_owned() + &String::from_utf8_lossy(&inside.stderr);
    assert!(inside.status.success(), "{said}");
    assert!(said.contains("all are done"), "{said}");
    assert!(!said.contains("held onto Pool") && !said.contains("failed to delete database"), "{said}");
}

/// As `#[sqlx::test]` expands, with a name for each.
fn inside_sqlx_test() {
    use sqlx::testing::{TestArgs, TestFn};

    /// All that sqlx gives connections to at a time.
    const TESTS: usize = 20;
    static TOGETHER: std::sync::Barrier = std::sync::Barrier::new(TESTS);
    static OUTLIVES: AtomicBool = AtomicBool::new(false);

    async fn a_test(pool: PgPool) {
        axum_idempotency::migrate(&pool).await.unwrap();
        let schema = "create table effect (id bigint generated always as identity primary key, note text not null)";
        pool.execute(schema).await.unwrap();
        let app = app_with(layer(Idempotency::new(&pool)), create);
        // Each has a connection of its test's pool by now, and keeps it.
        TOGETHER.wait();
        for replayed in [false, true] {
            let replied = timeout(PATIENCE, reply(&app, post("/things").key("k"))).await.unwrap();
            assert_eq!((replied.status, replied.replayed()), (StatusCode::CREATED, replayed));
        }
        // As by a server that a test has spawned: an engine may outlive its test. One does, since sqlx wants its
        // connection to each database back before it lends another.
        if !OUTLIVES.swap(true, Ordering::SeqCst) {
            std::mem::forget(app);
        }
    }

    let began = std::time::Instant::now();
    std::thread::scope(|scope| {
        for n in 0..TESTS {
            let name: &'static str = format!("pool::inside_sqlx_test::{n}").leak();
            scope.spawn(move || TestFn::run_test(a_test as fn(PgPool) -> _, TestArgs::new(name)));
        }
    });
    assert!(began.elapsed() < PATIENCE, "nobody has waited for a connection in vain: {:?}", began.elapsed());
    println!("all are done");
}

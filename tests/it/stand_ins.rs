//! What stands between a test and its server behaves as the real thing would.

use sqlx::{ConnectOptions as _, Connection as _, Executor as _, PgConnection, postgres::PgConnectOptions};

use crate::support::{Database, Silence, silent_proxy};

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

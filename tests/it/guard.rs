//! F67: whatever work does with its connection, nothing that it writes is durable without a stored response.

use axum::{Router, http::StatusCode};
use axum_idempotency::{
    Claim, Error, ErrorKind, Fingerprint, Idempotency, IdempotencyKey, IdempotentRequest, Operation, RejectionKind,
    Scope, StoredResponse, Tx,
};
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::support::{Database, app_with, layer, post, reply};

/// Ways to lose a transaction, each tried with all errors swallowed and an effect after every step.
const LOSSES: [&str; 14] = [
    "nested begin after a failure",
    "nested begin after a failure, twice",
    "a failure three levels deep",
    "begin cut off",
    "begin cut off two levels deep",
    "rollback",
    "commit",
    "rollback; begin",
    "commit; begin",
    "rollback and chain",
    "end",
    "abort",
    "rollback to nowhere",
    "prepare transaction",
];

async fn effect(connection: &mut PgConnection) {
    drop(sqlx::query("insert into effect (note) values ('done')").execute(connection).await);
}

async fn fail(connection: &mut PgConnection) {
    connection.execute("select 1 / 0").await.unwrap_err();
}

/// What a helper deep inside a handler may do, which takes a connection and knows nothing of the layer.
async fn nested(connection: &mut PgConnection) {
    if let Ok(mut inner) = connection.begin().await {
        effect(&mut inner).await;
        drop(inner.commit().await);
    }
}

async fn lose(connection: &mut PgConnection, how: &str) {
    effect(connection).await;
    match how {
        "nested begin after a failure" => {
            fail(connection).await;
            nested(connection).await;
        }
        "nested begin after a failure, twice" => {
            fail(connection).await;
            nested(connection).await;
            effect(connection).await;
            nested(connection).await;
        }
        "a failure three levels deep" => {
            let mut one = connection.begin().await.unwrap();
            let mut two = one.begin().await.unwrap();
            fail(&mut two).await;
            nested(&mut two).await;
            effect(&mut two).await;
            nested(&mut two).await;
            effect(&mut two).await;
            drop(two.commit().await);
            effect(&mut one).await;
            drop(one.commit().await);
        }
        "begin cut off" => cut_off(connection).await,
        "begin cut off two levels deep" => {
            let mut one = connection.begin().await.unwrap();
            cut_off(&mut one).await;
            effect(&mut one).await;
            cut_off(&mut one).await;
            effect(&mut one).await;
            drop(one.commit().await);
        }
        "rollback to nowhere" => drop(connection.execute("rollback to nowhere").await),
        "prepare transaction" => drop(connection.execute("prepare transaction 'mine'").await),
        statement => drop(connection.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned()))).await),
    }
    effect(connection).await;
    nested(connection).await;
    effect(connection).await;
}

/// As by a timeout around it: polled once, so that its SAVEPOINT is sent.
async fn cut_off(connection: &mut PgConnection) {
    let mut begin = std::pin::pin!(connection.begin());
    std::future::poll_fn(|cx| {
        drop(begin.as_mut().poll(cx));
        std::task::Poll::Ready(())
    })
    .await;
}

fn keyed(idempotency: &Idempotency, how: &'static str) -> Router {
    app_with(layer(idempotency.clone()).optional(), move |mut tx: Tx| async move {
        lose(&mut tx, how).await;
        StatusCode::CREATED
    })
}

#[tokio::test]
async fn g2_f67_whatever_a_handler_does_with_its_connection_nothing_is_durable_without_a_stored_response() {
    for how in LOSSES {
        let database = Database::fresh().await;
        let app = keyed(&Idempotency::new(&database.pool_of(1).await), how);
        let mut executed = 0;
        for _ in 0..3 {
            let replied = reply(&app, post("/things").key("k")).await;
            if replied.status == StatusCode::CREATED {
                executed += i64::from(!replied.replayed());
            } else {
                assert!(
                    matches!(replied.kind(), Some(RejectionKind::TransactionEnded | RejectionKind::TransactionAborted)),
                    "{how}: {replied:?}"
                );
            }
        }
        let stored = database.rows().await.iter().filter(|row| row.status.is_some()).count();
        assert_eq!(stored == 0, executed == 0, "{how}");
        if stored == 0 {
            assert_eq!((database.effects().await, database.rows().await.len()), (0, 0), "{how}");
        }
    }
}

/// What such a handler is told, and that its key is free.
#[tokio::test]
async fn f67_a_transaction_that_the_handler_has_ended_is_answered_500_that_says_what_holds() {
    for (how, status) in
        [("rollback", 201), ("commit", 201), ("rollback", 402), ("commit", 500), ("rollback; begin", 400)]
    {
        let database = Database::fresh().await;
        let idempotency = Idempotency::new(&database.pool_of(1).await);
        let app = app_with(layer(idempotency), move |mut tx: Tx| async move {
            effect(&mut tx).await;
            drop(tx.execute(sqlx::raw_sql(how)).await);
            StatusCode::from_u16(status).unwrap()
        });
        let refused = reply(&app, post("/things").key("k")).await;
        refused.assert_refused(RejectionKind::TransactionEnded);
        assert!(refused.text().contains("nothing was kept, and the key is free"), "{}", refused.text());
        assert_eq!(refused.json()["key_reusable"], true);
        assert_eq!((database.effects().await, database.rows().await.len()), (0, 0), "{how} {status}");
    }
}

#[tokio::test]
async fn f67_the_same_holds_for_run_and_for_attempts() {
    for how in LOSSES {
        let database = Database::fresh().await;
        let idempotency = Idempotency::new(&database.pool_of(1).await);
        for key in ["a", "b", "a"] {
            let ran = idempotency
                .run(request(key), async |connection: &mut PgConnection| {
                    lose(connection, how).await;
                    Ok::<_, Error>(())
                })
                .await;
            if let Err(error) = ran {
                let kind = error.kind();
                assert!(
                    matches!(kind, ErrorKind::TransactionEnded | ErrorKind::TransactionAborted),
                    "{how}: {error:?}"
                );
            }
        }
        let Claim::Fresh(mut attempt) = idempotency.claim(request("c")).await.unwrap() else { panic!("a free key") };
        lose(attempt.connection(), how).await;
        drop(attempt.complete(&StoredResponse::new(StatusCode::CREATED, "")).await);
        if database.rows().await.iter().all(|row| row.status.is_none()) {
            assert_eq!(database.effects().await, 0, "{how}");
        }
    }
}

/// Without a key nothing is stored; what the client is told has failed is not durable all the same.
#[tokio::test]
async fn f67_without_a_key_nothing_is_durable_unless_the_response_says_so() {
    for how in LOSSES {
        let database = Database::fresh().await;
        let app = keyed(&Idempotency::new(&database.pool_of(1).await), how);
        let replied = reply(&app, post("/things")).await;
        if replied.status == StatusCode::CREATED {
            continue;
        }
        assert_eq!(database.effects().await, 0, "{how}: {replied:?}");
    }
}

/// A transaction of the caller's own, on a pool of the caller's: it cannot be committed without the response either.
#[tokio::test]
async fn f67_a_claim_in_the_callers_transaction_cannot_be_committed_without_its_response() {
    let database = Database::fresh().await;
    let pool = database.pool_of(1).await;
    let idempotency = Idempotency::new(&pool);
    let mut transaction = pool.begin().await.unwrap();
    drop(idempotency.claim_using(&mut transaction, &request("k")).await.unwrap());
    effect(&mut transaction).await;
    let refused = transaction.commit().await.unwrap_err();
    let constraint = refused.as_database_error().and_then(|error| error.constraint().map(str::to_owned));
    assert_eq!(constraint.as_deref(), Some("a_claim_is_committed_with_its_response"));
    assert_eq!((database.effects().await, database.rows().await.len()), (0, 0));
}

/// F99: the handler's own doing is not called the database's.
#[tokio::test]
async fn f99_a_handler_that_makes_its_transaction_read_only_is_answered_500_that_says_so() {
    let database = Database::fresh().await;
    for idempotency in [Idempotency::new(&database.pool_of(1).await), Idempotency::sharing(&database.pool_of(1).await)]
    {
        let app = app_with(layer(idempotency), |mut tx: Tx| async move {
            tx.execute("set transaction read only").await.unwrap();
            StatusCode::CREATED
        });
        let refused = reply(&app, post("/things").key("k")).await;
        refused.assert_refused(RejectionKind::TransactionEnded);
        assert!(refused.text().contains("made its transaction read-only"), "{}", refused.text());
    }
}

fn request(key: &str) -> IdempotentRequest {
    let key = IdempotencyKey::new(key).unwrap();
    IdempotentRequest::new(Scope::global(), Operation::new("o"), key, Fingerprint::of(["f"]))
}

//! The engine without HTTP: consumers of an at-least-once broker, and transactions of the caller's.

use std::time::Duration;

use axum::http::StatusCode;
use axum_idempotency::{
    Claim, ClaimUsing, Concurrency, Duplicate, Error, ErrorKind, Fingerprint, IdempotencyKey, IdempotentRequest,
    Operation, Ran, Rejected, Scope, StoredResponse,
};
use serde::{Deserialize, Serialize};
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::support::{Database, Gate, Runs, all, effect, engine};

fn message(id: &str, payload: &str) -> IdempotentRequest {
    let key = IdempotencyKey::new(id).unwrap();
    IdempotentRequest::new(Scope::new("orders"), Operation::new("order.import"), key, Fingerprint::of([payload]))
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Imported {
    id: i64,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Idempotency(#[from] Error),
    #[error("the work failed")]
    Work,
}

impl Failure {
    fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Idempotency(error) => Some(error.kind()),
            Self::Work => None,
        }
    }
}

async fn import(connection: &mut PgConnection) -> Result<Imported, Failure> {
    Ok(Imported { id: effect(connection).await })
}

#[tokio::test]
async fn f60_a_message_that_is_delivered_many_times_is_worked_on_once() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    let first = idempotency.run(message("m", "p"), import).await.unwrap();
    let Ran::Executed(value) = first else { panic!("{first:?}") };
    for _ in 0..3 {
        assert_eq!(idempotency.run(message("m", "p"), import).await.unwrap(), Ran::Replayed(Imported { id: value.id }));
    }
    assert_eq!(database.effects().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn f60_a_storm_of_deliveries_is_worked_on_once() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    let ran = all((0..50).map(|_| {
        let idempotency = idempotency.clone();
        // Spawned: the future of `run` is `Send`.
        async move { idempotency.run(message("m", "p"), import).await.unwrap() }
    }))
    .await;
    assert_eq!(ran.iter().filter(|ran| matches!(ran, Ran::Executed(_))).count(), 1);
    assert_eq!(database.effects().await, 1);
}

#[tokio::test]
async fn f59_work_that_fails_is_rolled_back_and_its_key_is_free() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    let failed: Result<Ran<Imported>, Failure> = idempotency
        .run(message("m", "p"), async |connection: &mut PgConnection| {
            effect(connection).await;
            Err(Failure::Work)
        })
        .await;
    assert!(matches!(failed, Err(Failure::Work)));
    assert_eq!(database.effects().await, 0);
    assert!(matches!(idempotency.run(message("m", "p"), import).await, Ok(Ran::Executed(_))));
}

#[tokio::test]
async fn f4_work_that_swallows_an_sql_error_fails_and_is_rolled_back() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    let failed: Result<Ran<()>, Failure> = idempotency
        .run(message("m", "p"), async |connection: &mut PgConnection| {
            effect(connection).await;
            connection.execute("select 1 / 0").await.unwrap_err();
            Ok(())
        })
        .await;
    assert_eq!(failed.unwrap_err().kind(), Some(ErrorKind::TransactionAborted));
    assert_eq!(database.effects().await, 0);
    assert_eq!(database.rows().await, []);
}

#[tokio::test]
async fn work_is_not_run_for_another_payload_or_while_it_runs_elsewhere() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await).concurrency(Concurrency::NoWait);
    let (gate, runs) = (Gate::closed(), Runs::default());
    let work = async |connection: &mut PgConnection| {
        runs.one();
        gate.pass().await;
        import(connection).await
    };
    let meanwhile = async {
        gate.entered().await;
        let elsewhere = engine(&database.pool().await).concurrency(Concurrency::NoWait);
        let busy = elsewhere.run(message("m", "p"), import).await.unwrap_err();
        assert_eq!(busy.kind(), Some(ErrorKind::InProgress));
        gate.open();
    };
    let (ran, ()) = tokio::join!(idempotency.run(message("m", "p"), work), meanwhile);
    assert!(matches!(ran, Ok(Ran::Executed(_))));
    let reused = idempotency.run(message("m", "other"), import).await.unwrap_err();
    assert_eq!(reused.kind(), Some(ErrorKind::KeyReused));
    assert_eq!((runs.count(), database.effects().await), (1, 1));
}

#[tokio::test]
async fn a_value_of_another_shape_is_an_error_and_the_work_is_not_run_again() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    assert!(matches!(idempotency.run(message("m", "p"), import).await, Ok(Ran::Executed(_))));
    let other: Result<Ran<String>, Failure> =
        idempotency.run(message("m", "p"), async |_: &mut PgConnection| panic!("not again")).await;
    assert_eq!(other.unwrap_err().kind(), Some(ErrorKind::Json));
}

#[tokio::test]
async fn a_blank_owner_is_refused() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    let key = IdempotencyKey::new("k").unwrap();
    let blank = IdempotentRequest::new(Scope::new(""), Operation::new("o"), key, Fingerprint::of(["f"]));
    assert_eq!(idempotency.claim(blank).await.unwrap_err().kind(), ErrorKind::BlankScope);
}

#[tokio::test]
async fn an_attempt_ends_in_one_of_three_ways_or_is_dropped() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    let answer = StoredResponse::new(StatusCode::CREATED, "answer");
    let fresh = async |id: &str| match idempotency.claim(message(id, "p")).await.unwrap() {
        Claim::Fresh(mut attempt) => {
            effect(attempt.connection()).await;
            attempt
        }
        other => panic!("{id}: {other:?}"),
    };

    fresh("completed").await.complete(&answer).await.unwrap();
    assert!(matches!(fresh("rejected").await.reject(&answer).await.unwrap(), Rejected::Stored(_)));
    fresh("released").await.release().await.unwrap();
    drop(fresh("dropped").await);

    for id in ["completed", "rejected"] {
        let claim = idempotency.claim(message(id, "p")).await.unwrap();
        assert!(matches!(claim, Claim::Duplicate(Duplicate::Replay(stored)) if stored == answer), "{id}");
        assert!(
            matches!(idempotency.claim(message(id, "q")).await.unwrap(), Claim::Duplicate(Duplicate::KeyReused)),
            "{id}"
        );
    }
    assert_eq!(database.effects().await, 1);
    for id in ["released", "dropped"] {
        fresh(id).await.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_claim_in_the_callers_transaction_is_committed_with_it() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    let answer = StoredResponse::new(StatusCode::OK, "done");

    let mut transaction = idempotency.pool().begin().await.unwrap();
    let claimed = idempotency.claim_using(&mut transaction, &message("m", "p")).await.unwrap();
    assert!(matches!(claimed, ClaimUsing::Fresh));
    effect(&mut transaction).await;
    idempotency.complete_using(&mut transaction, &message("m", "p"), &answer).await.unwrap();
    transaction.commit().await.unwrap();

    let mut transaction = idempotency.pool().begin().await.unwrap();
    let replayed = idempotency.claim_using(&mut transaction, &message("m", "p")).await.unwrap();
    assert!(matches!(replayed, ClaimUsing::Duplicate(Duplicate::Replay(stored)) if stored == answer));
    let reused = idempotency.claim_using(&mut transaction, &message("m", "q")).await.unwrap();
    assert!(matches!(reused, ClaimUsing::Duplicate(Duplicate::KeyReused)));
    transaction.commit().await.unwrap();

    let mut transaction = idempotency.pool().begin().await.unwrap();
    let claimed = idempotency.claim_using(&mut transaction, &message("n", "p")).await.unwrap();
    assert!(matches!(claimed, ClaimUsing::Fresh));
    transaction.rollback().await.unwrap();
    assert_eq!(database.rows().await.len(), 1);
    assert_eq!(database.effects().await, 1);
}

#[tokio::test]
async fn a_claim_that_is_held_elsewhere_leaves_the_callers_transaction_usable() {
    let database = Database::fresh().await;
    for concurrency in [Concurrency::NoWait, Concurrency::Wait { timeout: Duration::from_millis(20) }] {
        let idempotency = engine(&database.pool().await).concurrency(concurrency);
        let Claim::Fresh(held) = idempotency.claim(message("m", "p")).await.unwrap() else { panic!("it is free") };
        let mut transaction = idempotency.pool().begin().await.unwrap();
        let id = effect(&mut transaction).await;
        let claimed = idempotency.claim_using(&mut transaction, &message("m", "p")).await.unwrap();
        assert!(matches!(claimed, ClaimUsing::Duplicate(Duplicate::InProgress)));
        assert!(effect(&mut transaction).await > id);
        transaction.commit().await.unwrap();
        held.release().await.unwrap();
    }
    assert_eq!(database.effects().await, 4);
}

#[tokio::test]
async fn claiming_on_a_connection_outside_a_transaction_is_an_error_and_leaves_nothing() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    let mut connection = database.connection().await;
    let error = idempotency.claim_using(&mut connection, &message("m", "p")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoTransaction);
    assert_eq!(database.rows().await, []);
    connection.close().await.unwrap();
}

#[tokio::test]
async fn completing_in_another_transaction_than_the_claims_is_an_error() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    let mut transaction = idempotency.pool().begin().await.unwrap();
    let claimed = idempotency.claim_using(&mut transaction, &message("m", "p")).await.unwrap();
    assert!(matches!(claimed, ClaimUsing::Fresh));
    transaction.rollback().await.unwrap();
    let mut transaction = idempotency.pool().begin().await.unwrap();
    let answer = StoredResponse::new(StatusCode::OK, "done");
    let error = idempotency.complete_using(&mut transaction, &message("m", "p"), &answer).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TransactionEnded);
}

/// R39: what overtook a rejection is told apart, each case by its own outcome.
#[tokio::test]
async fn r39_a_rejection_that_meets_another_payload_or_a_running_one_says_so() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    let declined = StoredResponse::new(StatusCode::PAYMENT_REQUIRED, "declined");
    for (id, ends) in [("committed", true), ("running", false)] {
        let wait = if ends { Duration::from_secs(30) } else { Duration::from_millis(50) };
        let impatient = idempotency.clone().concurrency(Concurrency::Wait { timeout: wait });
        let Claim::Fresh(attempt) = impatient.claim(message(id, "p")).await.unwrap() else { panic!("it is free") };
        let (rejection, (go, going)) = (declined.clone(), tokio::sync::oneshot::channel::<()>());
        let rejecting = tokio::spawn(async move {
            going.await.unwrap();
            attempt.reject(&rejection).await
        });
        let mut elsewhere = database.overtake(|| go.send(()).unwrap()).await;
        let claimed = idempotency.claim_using(&mut elsewhere, &message(id, "q")).await.unwrap();
        assert!(matches!(claimed, ClaimUsing::Fresh));
        let rejected = if ends {
            let answer = StoredResponse::new(StatusCode::OK, "");
            idempotency.complete_using(&mut elsewhere, &message(id, "q"), &answer).await.unwrap();
            elsewhere.commit().await.unwrap();
            rejecting.await
        } else {
            let rejected = rejecting.await;
            elsewhere.rollback().await.unwrap();
            rejected
        };
        match rejected.unwrap().unwrap() {
            Rejected::Overtaken(Duplicate::KeyReused) => assert!(ends),
            Rejected::Overtaken(Duplicate::InProgress) => assert!(!ends),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn r60_an_answers_own_retention_outlasts_the_wait_of_a_duplicate() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    let Claim::Fresh(attempt) = idempotency.claim(message("k", "")).await.unwrap() else { panic!("not fresh") };
    let brief = axum_idempotency::Retention::new(Duration::from_millis(1)).unwrap();
    let window = attempt.complete(&StoredResponse::new(StatusCode::OK, "").with_retention(brief)).await.unwrap();
    let kept = window.expires.unwrap().duration_since(window.first_used).unwrap();
    assert_eq!(kept, Duration::from_millis(5_001), "the default wait is five seconds");
}

/// F78: each claim takes a place in a table that all sessions of the server share.
#[tokio::test]
async fn f78_a_transaction_claims_a_thousand_keys_and_is_told_before_it_fills_the_servers_table_of_locks() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool_of(2).await).concurrency(Concurrency::NoWait);
    let claim = async |connection: &mut PgConnection, n: u32| {
        idempotency.claim_using(connection, &message(&n.to_string(), "p")).await
    };
    let done = message("done", "p");
    let Claim::Fresh(attempt) = idempotency.claim(done.clone()).await.unwrap() else { panic!("it is free") };
    attempt.complete(&StoredResponse::new(StatusCode::OK, "")).await.unwrap();
    let mut connection = database.connection().await;
    let mut transaction = connection.begin().await.unwrap();
    // What was there, or is undone, does not count.
    for n in 0..20 {
        let replayed = idempotency.claim_using(&mut transaction, &done).await.unwrap();
        assert!(matches!(replayed, ClaimUsing::Duplicate(Duplicate::Replay(_))));
        let mut savepoint = transaction.begin().await.unwrap();
        assert!(matches!(claim(&mut savepoint, n).await.unwrap(), ClaimUsing::Fresh));
        savepoint.rollback().await.unwrap();
    }
    for n in 0..1_000 {
        assert!(matches!(claim(&mut transaction, n).await.unwrap(), ClaimUsing::Fresh), "{n}");
    }
    let error = claim(&mut transaction, 1_000).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooManyClaims);
    assert!(!error.is_transient());
    let locks: i64 =
        sqlx::query_scalar("select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()")
            .fetch_one(&mut *transaction)
            .await
            .unwrap();
    assert_eq!(locks, 1_000);
    // The transaction goes on; and the next one on the same connection begins anew.
    for n in 0..1_000 {
        let request = message(&n.to_string(), "p");
        idempotency.complete_using(&mut transaction, &request, &StoredResponse::new(StatusCode::OK, "")).await.unwrap();
    }
    transaction.commit().await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    assert!(matches!(claim(&mut transaction, 1_000).await.unwrap(), ClaimUsing::Fresh));
    transaction.rollback().await.unwrap();
    assert_eq!(database.rows().await.len(), 1_001);
}

/// A key is held by a live transaction, however short its retention is, also against that transaction itself.
#[tokio::test]
async fn a_transaction_does_not_take_over_what_it_holds_itself() {
    let database = Database::fresh().await;
    let brief = axum_idempotency::Retention::new(Duration::from_millis(1)).unwrap();
    let idempotency = engine(&database.pool_of(2).await).concurrency(Concurrency::NoWait).retention(brief);
    let mut connection = database.connection().await;
    let mut transaction = connection.begin().await.unwrap();
    assert!(matches!(idempotency.claim_using(&mut transaction, &message("m", "p")).await.unwrap(), ClaimUsing::Fresh));
    transaction.execute("select pg_sleep(0.05)").await.unwrap();
    for _ in 0..2 {
        let again = idempotency.claim_using(&mut transaction, &message("m", "p")).await.unwrap();
        assert!(matches!(again, ClaimUsing::Duplicate(Duplicate::InProgress)), "{again:?}");
    }
    idempotency
        .complete_using(&mut transaction, &message("m", "p"), &StoredResponse::new(StatusCode::OK, ""))
        .await
        .unwrap();
    transaction.commit().await.unwrap();
}

/// sqlx (0.9) does not count what a COPY that was dropped has still to say. Whoever gets the connection next would take each
/// result for that of the statement before.
#[tokio::test]
async fn a_connection_that_is_out_of_step_serves_nobody_however_its_attempt_ends() {
    use futures_util::TryStreamExt as _;

    let database = Database::fresh().await;
    let pool = database.pool_of(2).await;
    let idempotency = engine(&pool).max_connections(1);
    for (n, failing) in [false, true].into_iter().enumerate() {
        for (m, release) in [false, true].into_iter().enumerate() {
            let key = |name: &str| message(&format!("{name} {n} {m}"), "p");
            let Claim::Fresh(mut attempt) = idempotency.claim(key("copy")).await.unwrap() else { panic!("it is free") };
            {
                let mut rows = attempt.connection().copy_out_raw("copy (select 1) to stdout").await.unwrap();
                rows.try_next().await.unwrap().unwrap();
            }
            for _ in 0..3 {
                let statement = if failing { "select 1 / $1::int" } else { "select 1 + $1::int" };
                drop(sqlx::query(statement).bind(0).fetch_optional(attempt.connection()).await);
            }
            if release {
                drop(attempt.release().await)
            } else {
                drop(attempt)
            }
            // On the only connection, or on another one.
            for name in ["next", "and its next"] {
                let Claim::Fresh(attempt) = idempotency.claim(key(name)).await.unwrap() else { panic!("it is free") };
                attempt.complete(&StoredResponse::new(StatusCode::CREATED, "done")).await.unwrap();
            }
        }
    }
}

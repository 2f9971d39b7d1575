//! G7: a future that is dropped leaves neither half a transaction nor a poisoned connection.

use std::{future::poll_fn, task::Poll};

use axum::http::StatusCode;
use axum_idempotency::{
    Claim, Fingerprint, Idempotency, IdempotencyKey, IdempotentRequest, Operation, Scope, StoredResponse, Tx,
};
use tower::ServiceExt as _;

use crate::support::{Database, Gate, app, create, effect, post, reply, settle};

/// Polls so often, and drops.
async fn polled(times: usize, future: impl Future) {
    let mut future = Box::pin(future);
    for _ in 0..times {
        let done = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await;
        if done {
            return;
        }
        tokio::task::yield_now().await;
    }
}

fn request(key: &str) -> IdempotentRequest {
    let key = IdempotencyKey::new(key).unwrap();
    IdempotentRequest::new(Scope::global(), Operation::new("o"), key, Fingerprint::of(["f"]))
}

#[tokio::test]
async fn f1_f5_a_request_dropped_after_any_number_of_polls_leaves_a_sound_connection() {
    let database = Database::logged().await;
    let pool = database.pool_of(1).await;
    let app = app(&pool, create);
    for polls in 1..=20 {
        for round in 0..5 {
            let ask = post("/things").key(&format!("{polls}-{round}"));
            polled(polls, app.clone().oneshot(ask.into_request())).await;
            // Autocommit: visible from outside at once, unless the connection is inside somebody's transaction.
            sqlx::query("insert into effect (note) values ($1)")
                .bind(format!("{polls}-{round}"))
                .execute(&pool)
                .await
                .unwrap();
            let visible: i64 = sqlx::query_scalar("select count(*) from effect where note = $1")
                .bind(format!("{polls}-{round}"))
                .fetch_one(&mut database.connection().await)
                .await
                .unwrap();
            assert_eq!(visible, 1, "after {polls} polls");
        }
    }
    assert_eq!(database.complaints(), Vec::<String>::new());
    // Whatever was begun was carried to its end: an effect for each answer.
    let (effects, rows) = (database.effects().await - 100, database.rows().await.len());
    assert_eq!(effects, i64::try_from(rows).unwrap());
}

#[tokio::test]
async fn f5_a_claim_dropped_after_any_number_of_polls_is_rolled_back_and_the_pool_recovers() {
    let database = Database::fresh().await;
    let pool = database.pool_of(2).await;
    let idempotency = Idempotency::new(pool.clone());
    for polls in 1..=20 {
        polled(polls, idempotency.claim(request("k"))).await;
    }
    // Free again, however far each had come; and both connections are there.
    let Claim::Fresh(attempt) = idempotency.claim(request("k")).await.unwrap() else { panic!("the key is free") };
    let mut other = pool.acquire().await.unwrap();
    effect(&mut other).await;
    assert_eq!(database.effects().await, 1);
    attempt.release().await.unwrap();
    assert_eq!(database.rows().await, []);
}

#[tokio::test]
async fn f16_a_completion_dropped_after_any_number_of_polls_ends_with_both_or_neither() {
    let database = Database::fresh().await;
    let idempotency = Idempotency::new(database.pool_of(2).await);
    let answer = StoredResponse::new(StatusCode::OK, "done");
    for polls in 0..=12 {
        let id = polls.to_string();
        let Claim::Fresh(mut attempt) = idempotency.claim(request(&id)).await.unwrap() else { panic!("it is free") };
        let before = database.effects().await;
        effect(attempt.connection()).await;
        polled(polls, attempt.complete(&answer)).await;
        // A second claim waits for whatever goes on in the background.
        match idempotency.claim(request(&id)).await.unwrap() {
            Claim::Replay(stored) => {
                assert_eq!(stored, answer);
                assert_eq!(database.effects().await, before + 1, "after {polls} polls");
            }
            Claim::Fresh(attempt) => {
                assert_eq!(polls, 0, "a completion that has begun goes on");
                assert_eq!(database.effects().await, before);
                attempt.release().await.unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn r35_f17_a_request_whose_client_has_gone_is_finished_and_its_retry_gets_the_answer() {
    let database = Database::fresh().await;
    let gate = Gate::closed();
    let inside = gate.clone();
    let app = app(&database.pool().await, move |mut tx: Tx| async move {
        effect(&mut tx).await;
        inside.pass().await;
        (StatusCode::CREATED, "finished")
    });
    let gone = app.clone().oneshot(post("/things").key("k").into_request());
    tokio::select! {
        _ = gone => panic!("it is held at the gate"),
        () = gate.entered() => {}
    }
    let retry = tokio::spawn(async move { reply(&app, post("/things").key("k")).await });
    settle().await;
    assert!(!retry.is_finished());
    gate.open();
    let retry = retry.await.unwrap();
    assert!(retry.replayed());
    assert_eq!(retry.text(), "finished");
    assert_eq!(database.effects().await, 1);
}

#[tokio::test]
async fn an_attempt_dropped_in_the_middle_of_a_statement_frees_its_key() {
    let database = Database::fresh().await;
    let idempotency = Idempotency::new(database.pool_of(2).await);
    let Claim::Fresh(mut attempt) = idempotency.claim(request("k")).await.unwrap() else { panic!("it is free") };
    polled(2, sqlx::query("select pg_sleep(0.05)").execute(attempt.connection())).await;
    drop(attempt);
    assert!(matches!(idempotency.claim(request("k")).await.unwrap(), Claim::Fresh(_)));
}

/// sqlx spawns when a pooled connection is dropped, and panics if it cannot: the runtime has to be at hand.
#[tokio::test]
async fn an_attempt_may_be_dropped_outside_the_runtime() {
    let database = Database::fresh().await;
    let idempotency = Idempotency::new(database.pool_of(1).await);
    let Claim::Fresh(attempt) = idempotency.claim(request("k")).await.unwrap() else { panic!("it is free") };
    std::thread::spawn(move || drop(attempt)).join().expect("no panic");
    assert!(matches!(idempotency.claim(request("k")).await.unwrap(), Claim::Fresh(_)));
}

//! G7: a future that is dropped leaves neither half a transaction nor a poisoned connection.

use std::{future::poll_fn, task::Poll};

use axum::http::StatusCode;
use axum_idempotency::{
    Claim, Duplicate, Fingerprint, IdempotencyKey, IdempotentRequest, Operation, Scope, StoredResponse, Tx,
};
use tower::ServiceExt as _;

use crate::support::{Database, Gate, Runs, app, app_with, create, effect, engine, layer, post, reply, settle};

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
    let idempotency = engine(&pool);
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
    let idempotency = engine(&database.pool_of(2).await);
    let answer = StoredResponse::new(StatusCode::OK, "done");
    for polls in 0..=12 {
        let id = polls.to_string();
        let Claim::Fresh(mut attempt) = idempotency.claim(request(&id)).await.unwrap() else { panic!("it is free") };
        let before = database.effects().await;
        effect(attempt.connection()).await;
        polled(polls, attempt.complete(&answer)).await;
        // A second claim waits for whatever goes on in the background.
        match idempotency.claim(request(&id)).await.unwrap() {
            Claim::Duplicate(Duplicate::Replay(stored)) => {
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
    let idempotency = engine(&database.pool_of(2).await);
    let Claim::Fresh(mut attempt) = idempotency.claim(request("k")).await.unwrap() else { panic!("it is free") };
    polled(2, sqlx::query("select pg_sleep(0.05)").execute(attempt.connection())).await;
    drop(attempt);
    assert!(matches!(idempotency.claim(request("k")).await.unwrap(), Claim::Fresh(_)));
}

/// sqlx spawns when a pooled connection is dropped, and panics if it cannot: the runtime has to be at hand.
#[tokio::test]
async fn an_attempt_may_be_dropped_outside_the_runtime() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool_of(1).await);
    let Claim::Fresh(attempt) = idempotency.claim(request("k")).await.unwrap() else { panic!("it is free") };
    std::thread::spawn(move || drop(attempt)).join().expect("no panic");
    assert!(matches!(idempotency.claim(request("k")).await.unwrap(), Claim::Fresh(_)));
}

/// How the hazard looks that the engine closes: when this fails, sqlx has mended it, and `Transaction::sound` can go.
#[tokio::test]
async fn f1_plain_sqlx_still_lends_a_connection_that_is_inside_somebodys_transaction() {
    let database = Database::fresh().await;
    let pool = database.pool_of(1).await;
    let mut outside = database.connection().await;
    // Where exactly it has to be dropped depends on how fast the server answers, so it is tried until it happens.
    for attempt in 0..5_000 {
        polled(attempt % 12 + 1, pool.begin()).await;
        sqlx::query("insert into effect (note) values ('autocommit?')").execute(&pool).await.unwrap();
        let visible: bool =
            sqlx::query_scalar("select exists (select from effect)").fetch_one(&mut outside).await.unwrap();
        if !visible {
            return;
        }
        sqlx::raw_sql("truncate effect").execute(&pool).await.unwrap();
    }
    panic!("a dropped begin() never left its transaction to the next borrower");
}

/// A thousand requests, each dropped after 1 to 30 polls, on the only connection of the pool.
#[tokio::test]
async fn f1_f2_f3_f6_a_thousand_dropped_requests_leave_the_pool_whole_and_the_server_without_a_complaint() {
    for cancel in [false, true] {
        let database = Database::logged().await;
        let pool = database.pool_of(1).await;
        let idempotent = layer(engine(&pool));
        let idempotent = if cancel { idempotent.cancel_on_disconnect(true) } else { idempotent };
        let app = app_with(idempotent, create);
        let mut outside = database.connection().await;
        // A fixed sequence of numbers without a pattern (xorshift): a failure can be repeated.
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        for round in 0..1_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let polls = usize::try_from(random % 30).unwrap() + 1;
            let ask = post("/things").key(&round.to_string());
            polled(polls, app.clone().oneshot(ask.into_request())).await;
            sqlx::query("insert into effect (note) values ($1)").bind(round.to_string()).execute(&pool).await.unwrap();
            let visible: bool = sqlx::query_scalar("select exists (select from effect where note = $1)")
                .bind(round.to_string())
                .fetch_one(&mut outside)
                .await
                .unwrap();
            assert!(visible, "round {round}, after {polls} polls: the next borrower is inside a transaction");
        }
        assert_eq!(database.complaints(), Vec::<String>::new());
        assert_eq!(pool.size(), 1);
        drop(pool.acquire().await.unwrap());
        // Effects of requests and answers go together.
        let created: i64 = sqlx::query_scalar("select count(*) from effect where note = 'done'")
            .fetch_one(&mut outside)
            .await
            .unwrap();
        assert_eq!(created, i64::try_from(database.rows().await.len()).unwrap(), "cancel: {cancel}");
    }
}

#[tokio::test]
async fn r35_with_cancel_on_disconnect_a_request_whose_client_has_gone_is_rolled_back() {
    let database = Database::fresh().await;
    let (gate, runs) = (Gate::closed(), Runs::default());
    let (inside, counted) = (gate.clone(), runs.clone());
    let idempotent = layer(engine(&database.pool().await)).cancel_on_disconnect(true);
    let app = app_with(idempotent, move |mut tx: Tx| async move {
        effect(&mut tx).await;
        if counted.one() == 1 {
            inside.pass().await;
        }
        StatusCode::CREATED
    });
    let gone = app.clone().oneshot(post("/things").key("k").into_request());
    tokio::select! {
        _ = gone => panic!("it is held at the gate"),
        () = gate.entered() => {}
    }
    // Nobody opens the gate: the retry executes all the same.
    let retry = reply(&app, post("/things").key("k")).await;
    assert_eq!((retry.status, retry.replayed()), (StatusCode::CREATED, false));
    assert_eq!((runs.count(), database.effects().await), (2, 1));
}

#[tokio::test]
async fn r35_an_outer_timeout_answers_and_the_request_is_finished_all_the_same() {
    use tower_http::timeout::TimeoutLayer;

    let database = Database::fresh().await;
    let gate = Gate::closed();
    let inside = gate.clone();
    let app = app(&database.pool().await, move |mut tx: Tx| async move {
        effect(&mut tx).await;
        inside.pass().await;
        (StatusCode::CREATED, "finished")
    });
    let impatient = app
        .clone()
        .layer(TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, std::time::Duration::from_millis(30)));
    assert_eq!(reply(&impatient, post("/things").key("k")).await.status, StatusCode::REQUEST_TIMEOUT);
    gate.open();
    let retry = reply(&app, post("/things").key("k")).await;
    assert_eq!((retry.text(), retry.replayed()), ("finished", true));
    assert_eq!(database.effects().await, 1);
}

/// Over real connections: HTTP/1.1 closes, HTTP/2 resets the stream.
#[tokio::test]
async fn g7_r35_f17_a_client_that_disconnects_finds_its_request_finished_over_http_1_and_2() {
    let database = Database::fresh().await;
    let gate = Gate::closed();
    let inside = gate.clone();
    let app = app(&database.pool().await, move |mut tx: Tx| async move {
        effect(&mut tx).await;
        inside.pass().await;
        (StatusCode::CREATED, "finished")
    });
    let address = crate::support::serve(app).await;
    for (client, version) in [
        (reqwest::Client::builder().http1_only(), axum::http::Version::HTTP_11),
        (reqwest::Client::builder().http2_prior_knowledge(), axum::http::Version::HTTP_2),
    ] {
        let client = client.build().unwrap();
        let ask = || {
            let key = format!("{version:?}");
            client.post(format!("http://{address}/things")).header("x-owner", "alice").header("idempotency-key", key)
        };
        tokio::select! {
            _ = ask().send() => panic!("it is held at the gate"),
            () = gate.entered() => {}
        }
        let retry = tokio::spawn(ask().send());
        settle().await;
        gate.open();
        let retry = retry.await.unwrap().unwrap();
        assert_eq!(retry.version(), version);
        assert_eq!(retry.headers()["idempotent-replayed"], "true");
        assert_eq!(retry.text().await.unwrap(), "finished");
    }
    assert_eq!(database.effects().await, 2);
}

#[tokio::test]
async fn draining_waits_for_the_attempts_that_go_on_and_for_no_longer_than_it_may() {
    use std::time::Duration;

    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    assert_eq!(idempotency.drain(Duration::ZERO).await, 0);
    let gate = Gate::closed();
    let inside = gate.clone();
    let app = app_with(layer(idempotency.clone()), move |mut tx: Tx| async move {
        effect(&mut tx).await;
        inside.pass().await;
        StatusCode::CREATED
    });
    for key in ["a", "b"] {
        let gone = app.clone().oneshot(post("/things").key(key).into_request());
        tokio::select! {
            _ = gone => panic!("it is held at the gate"),
            () = gate.entered() => {}
        }
    }
    assert_eq!(idempotency.drain(Duration::from_millis(10)).await, 2);
    let draining = tokio::spawn({
        let idempotency = idempotency.clone();
        async move { idempotency.drain(Duration::from_secs(30)).await }
    });
    settle().await;
    gate.open();
    settle().await;
    assert!(!draining.is_finished());
    gate.open();
    assert_eq!(draining.await.unwrap(), 0);
    assert_eq!(database.effects().await, 2);
    assert_eq!(database.rows().await.len(), 2);
}

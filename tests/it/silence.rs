//! F68: a database that falls silent, closing nothing. Each statement of the engine's has an end.

use std::time::Duration;

use axum::http::StatusCode;
use axum_idempotency::{ErrorKind, Idempotency, IdempotencyKey, Operation, RejectionKind, Scope};
use tokio::time::timeout;

use crate::support::{Database, Silence, answering, app_with, create, engine, layer, post, reply, silent_proxy};

/// Far below the 10 seconds of the default, far above what a statement takes.
const LIMIT: Duration = Duration::from_millis(400);

/// Longer than any of these tests may take: without limits they would hang.
const PATIENCE: Duration = Duration::from_secs(20);

async fn silent() -> (Database, Idempotency, Silence) {
    let database = Database::fresh().await;
    let (options, silence) = silent_proxy(database.options()).await;
    let pool = Database::pool_with(options, 3).await;
    let idempotency = engine(&pool).statement_limit(LIMIT);
    (database, idempotency, silence)
}

#[tokio::test]
async fn f68_before_the_commit_silence_is_answered_503_and_a_retry_executes() {
    for pattern in ["with claim", "insert into idempotency", "update idempotency.keys"] {
        for pass_on in [true, false] {
            let (database, idempotency, silence) = silent().await;
            let app = app_with(layer(idempotency), create);
            silence.after(pattern.as_bytes(), pass_on);
            let refused = timeout(PATIENCE, reply(&app, post("/things").key("k"))).await.expect("an end");
            refused.assert_refused(RejectionKind::StoreUnavailable);
            assert!(refused.text().contains("did not respond in time"), "{pattern}: {}", refused.text());
            assert_eq!((silence.count(), database.effects().await), (1, 0), "{pattern}");
            let retry = timeout(PATIENCE, reply(&app, post("/things").key("k"))).await.expect("an end");
            assert_eq!((retry.status, retry.replayed()), (StatusCode::CREATED, false), "{pattern}");
        }
    }
}

/// A connection that was idle may be dead, so the next one is taken; on one that is new it is the server that is silent.
#[tokio::test]
async fn f68_a_begin_without_an_answer_takes_another_connection_or_is_answered_503() {
    let database = Database::fresh().await;
    let (options, silence) = silent_proxy(database.options()).await;
    let idempotency = Idempotency::new(&Database::pool_with(options, 3).await).statement_limit(LIMIT);
    let app = app_with(layer(idempotency.clone()), create);
    silence.after(b"begin read write", true);
    let refused = timeout(PATIENCE, reply(&app, post("/things").key("a"))).await.expect("an end");
    refused.assert_refused(RejectionKind::StoreUnavailable);
    assert_eq!(reply(&app, post("/things").key("b")).await.status, StatusCode::CREATED);
    // Until its connection is back.
    while idempotency.stats().await.is_err() {}
    silence.after(b"begin read write", true);
    let served = timeout(PATIENCE, reply(&app, post("/things").key("c"))).await.expect("an end");
    assert_eq!(silence.count(), 2);
    if served.status != StatusCode::CREATED {
        // It was still on its way back, so this one was new.
        served.assert_refused(RejectionKind::StoreUnavailable);
    }
}

#[tokio::test]
async fn f68_r34_silence_at_the_commit_is_outcome_unknown_and_a_retry_finds_out() {
    for committed in [true, false] {
        let (database, idempotency, silence) = silent().await;
        let app = app_with(layer(idempotency.clone()), create);
        silence.after(b"COMMIT\0", committed);
        let refused = timeout(PATIENCE, reply(&app, post("/things").key("k"))).await.expect("an end");
        refused.assert_refused(RejectionKind::OutcomeUnknown);
        // The entry in memory is gone: the retry asks the table, here and elsewhere.
        let elsewhere = app_with(layer(engine(&database.pool().await)), create);
        for app in [&app, &elsewhere] {
            let retry = timeout(PATIENCE, reply(app, post("/things").key("k"))).await.expect("an end");
            assert_eq!(retry.status, StatusCode::CREATED, "{retry:?}");
            assert!(retry.replayed() || !committed);
        }
        assert_eq!(database.effects().await, 1);
        assert_eq!(idempotency.drain(PATIENCE).await, 0);
    }
}

#[tokio::test]
async fn f68_r34_silence_while_a_rejection_is_stored_is_outcome_unknown() {
    let (database, idempotency, silence) = silent().await;
    let app = app_with(layer(idempotency), answering(402));
    silence.after(b"COMMIT\0", true);
    let refused = timeout(PATIENCE, reply(&app, post("/things").key("k"))).await.expect("an end");
    refused.assert_refused(RejectionKind::OutcomeUnknown);
    let retry = timeout(PATIENCE, reply(&app, post("/things").key("k"))).await.expect("an end");
    assert_eq!((retry.status.as_u16(), retry.replayed(), database.effects().await), (402, true, 0));
}

#[tokio::test]
async fn f68_a_replay_is_not_held_up_by_a_connection_that_is_silent() {
    let (_database, idempotency, silence) = silent().await;
    let app = app_with(layer(idempotency), create);
    reply(&app, post("/things").key("k")).await;
    // The look before the claim is the first of its kind on this connection.
    silence.after(b"select fingerprint", true);
    let replay = timeout(PATIENCE, reply(&app, post("/things").key("k"))).await.expect("an end");
    assert_eq!((replay.status, replay.replayed(), silence.count()), (StatusCode::CREATED, true, 1));
}

#[tokio::test]
async fn f68_a_failure_that_is_undone_does_not_wait_for_a_silent_rollback() {
    let (_database, idempotency, silence) = silent().await;
    let app = app_with(layer(idempotency), answering(500));
    silence.after(b"ROLLBACK\0", false);
    let failed = timeout(PATIENCE, reply(&app, post("/things").key("k"))).await.expect("an end");
    assert_eq!((failed.status.as_u16(), silence.count()), (500, 1));
}

#[tokio::test]
async fn f68_drain_ends_although_a_commit_gets_no_answer() {
    let (_database, idempotency, silence) = silent().await;
    let app = app_with(layer(idempotency.clone()), create);
    silence.after(b"COMMIT\0", true);
    let gone = tokio::spawn(async move { reply(&app, post("/things").key("k")).await });
    silence.until(1).await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    let left = timeout(PATIENCE, idempotency.drain(2 * PATIENCE)).await.expect("not by its own limit");
    assert_eq!(left, 0);
}

#[tokio::test]
async fn f68_what_operators_call_has_an_end_as_well() {
    let key = IdempotencyKey::new("k").unwrap();
    let (scope, operation) = (Scope::new("alice"), Operation::new("o"));
    for (pattern, what) in [
        ("delete from idempotency.keys", "prune"),
        ("delete from idempotency.keys", "forget"),
        ("octet_length", "lookup"),
        ("pg_relation_size", "stats"),
        ("COMMIT\0", "prune"),
    ] {
        let (_database, idempotency, silence) = silent().await;
        let run = async || match what {
            "prune" => idempotency.prune(10).await.map(drop),
            "forget" => idempotency.erase_scope(&scope).await.map(drop),
            "lookup" => idempotency.lookup(&scope, &operation, &key).await.map(drop),
            _ => idempotency.stats().await.map(drop),
        };
        silence.after(pattern.as_bytes(), true);
        let error = timeout(PATIENCE, run()).await.expect("an end").expect_err("silence");
        let expected = if pattern == "COMMIT\0" { ErrorKind::OutcomeUnknown } else { ErrorKind::StoreUnavailable };
        assert_eq!(error.kind(), expected, "{what}: {error:?}");
        let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        assert!(source.contains("did not respond to a statement within 400ms"), "{what}: {source}");
        timeout(PATIENCE, run()).await.expect("an end").expect("another connection");
    }
}

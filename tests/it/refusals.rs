//! What a refusal says of the request, and how an application may put it.

use std::time::Duration;

use axum::{
    http::{HeaderValue, Method, StatusCode, header},
    response::{IntoResponse as _, Redirect},
};
use axum_idempotency::{
    Concurrency, IdempotencyLayer, Occurrence, Rejection, RejectionKind, Retention, TimestampedKeys, Tx,
};
use sqlx::Executor as _;

use crate::support::{Ask, Cut, Database, Gate, Reply, app_with, create, effect, engine, layer, post, proxy, reply};

/// Asserts what the refusal says, and that it is true: that so many effects are there of this key's requests.
async fn says(database: &Database, refused: Reply, kind: RejectionKind, occurrence: Occurrence, effects: i64) {
    refused.assert_refused(kind);
    assert_eq!(refused.rejection.as_ref().unwrap().occurrence(), occurrence, "{}", refused.text());
    assert_eq!(database.effects().await, effects, "{kind:?}");
    match occurrence {
        Occurrence::Executed => assert_eq!(effects, 1),
        Occurrence::NotExecuted => assert_eq!(effects, 0),
        _ => {}
    }
}

async fn plain(database: &Database) -> IdempotencyLayer {
    layer(engine(&database.pool_of(4).await))
}

#[tokio::test]
async fn before_the_key_is_looked_up_only_what_can_have_no_history_is_said_not_to_be_executed() {
    let database = Database::fresh().await;
    let app = app_with(plain(&database).await.max_request_bytes(10).refuse_unhandled_keys(true), create);
    let (not, unknown) = (Occurrence::NotExecuted, Occurrence::Unknown);
    says(&database, reply(&app, post("/things")).await, RejectionKind::MissingKey, not, 0).await;
    says(&database, reply(&app, post("/things").key("\"")).await, RejectionKind::InvalidKey, unknown, 0).await;
    let put = Ask::new(Method::PUT, "/things").owner("alice").key("k");
    let any = axum::Router::new()
        .route("/things", axum::routing::any(create).layer(plain(&database).await.refuse_unhandled_keys(true)));
    says(&database, reply(&any, put).await, RejectionKind::KeyNotHandled, unknown, 0).await;
    // A request that was executed comes again, by a caller who is not let in any more, or with more in it.
    assert_eq!(reply(&app, post("/things").key("k")).await.status, StatusCode::CREATED);
    says(&database, reply(&app, post("/things").key("k").nobody()).await, RejectionKind::Unscoped, unknown, 1).await;
    let large = post("/things").key("k").body("x".repeat(11));
    says(&database, reply(&app, large).await, RejectionKind::RequestTooLarge, unknown, 1).await;
    // A client that writes its request anew may have been executed under the first one.
    let other = post("/things").key("k").body("other");
    says(&database, reply(&app, other).await, RejectionKind::KeyReused, unknown, 1).await;
    let guarded = plain(&database).await.with_replay_guard(|_, _| false);
    let guarded = reply(&app_with(guarded, create), post("/things").key("k")).await;
    says(&database, guarded, RejectionKind::ReplayRefused, Occurrence::Executed, 1).await;
}

#[tokio::test]
async fn whether_work_that_began_was_executed_is_known_but_for_a_commit_that_is_not_acknowledged() {
    let not = Occurrence::NotExecuted;
    let database = Database::fresh().await;
    let deferred = "create table late (id int unique deferrable initially deferred); insert into late values (1)";
    database.connection().await.execute(deferred).await.unwrap();
    let refused = async |layer: IdempotencyLayer, how: &'static str| {
        let app = app_with(layer, move |mut tx: Tx| async move {
            effect(&mut tx).await;
            match how {
                "aborted" => drop(tx.execute("select 1 / 0").await),
                "refused" => drop(tx.execute("insert into late values (1)").await),
                "ended" => drop(tx.execute("rollback").await),
                "hangs" => std::future::pending().await,
                "held" => std::mem::forget(tx),
                "killed" => drop(tx.execute("select pg_terminate_backend(pg_backend_pid())").await),
                "large" => return "x".repeat(100).into_response(),
                _ => {}
            }
            StatusCode::CREATED.into_response()
        });
        reply(&app, post("/things").key(how)).await
    };
    let own = || async { layer(axum_idempotency::Idempotency::new(&database.pool_of(4).await)) };
    let plain = plain(&database).await;
    // On a shared pool a handler may have ended its transaction, and have gone on, where nobody can be asked any more.
    let certain = if crate::support::shares_pool() { Occurrence::Unknown } else { not };
    for (layer, how, kind) in [
        (plain.clone(), "aborted", RejectionKind::TransactionAborted),
        (plain.clone(), "refused", RejectionKind::CommitRefused),
        (own().await, "ended", RejectionKind::TransactionEnded),
        (plain.clone().handler_timeout(Duration::from_millis(100)), "hangs", RejectionKind::HandlerTimeout),
        (plain.clone(), "held", RejectionKind::ConnectionHeld),
        (plain.clone(), "killed", RejectionKind::StoreUnavailable),
        (plain.clone().max_response_bytes(10), "large", RejectionKind::ResponseTooLarge),
    ] {
        let asked = matches!(how, "ended" | "hangs" | "large");
        says(&database, refused(layer, how).await, kind, if asked { not } else { certain }, 0).await;
    }
    // One that takes no Tx, and is refused for it.
    let without = app_with(plain.clone().require_tx(), async || StatusCode::CREATED);
    let refused = reply(&without, post("/things").key("no")).await;
    says(&database, refused, RejectionKind::Misconfigured, Occurrence::Unknown, 0).await;

    // The COMMIT arrived, or did not: nobody knows.
    for (cut, effects) in [(Cut::BeforeCommit, 0), (Cut::AfterCommit, 1)] {
        let (options, armed) = proxy(database.options(), cut).await;
        let app = app_with(layer(engine(&Database::pool_with(options, 2).await)), create);
        armed.store(true, std::sync::atomic::Ordering::SeqCst);
        let lost = reply(&app, post("/things").key("lost")).await;
        says(&database, lost, RejectionKind::OutcomeUnknown, Occurrence::Unknown, effects).await;
    }
}

#[tokio::test]
async fn what_is_known_of_a_key_is_said_and_where_the_database_is_away_nothing_is() {
    let database = Database::fresh().await;
    let fading = Retention::new(Duration::from_secs(60)).unwrap().refuse_forever();
    let tombstones =
        app_with(layer(engine(&database.pool_of(4).await).retention(fading)).discard_responses(true), create);
    assert_eq!(reply(&tombstones, post("/things").key("k")).await.status, StatusCode::CREATED);
    let again = reply(&tombstones, post("/things").key("k")).await;
    says(&database, again, RejectionKind::ResponseNotRetained, Occurrence::Executed, 1).await;

    // The same request again, when the database is away: it may have been executed, and was.
    let pool = database.pool_of(4).await;
    let away = app_with(layer(engine(&pool)), create);
    pool.close().await;
    let again = reply(&away, post("/things").key("k")).await;
    says(&database, again, RejectionKind::StoreUnavailable, Occurrence::Unknown, 1).await;
    // Without a key there is nothing that may have been before.
    let optional = app_with(layer(engine(&pool)).optional(), create);
    let keyless = reply(&optional, post("/things")).await;
    keyless.assert_refused(RejectionKind::StoreUnavailable);
    assert_eq!(keyless.json()["occurrence"], "not-executed");

    let gate = Gate::closed();
    let waiting = gate.clone();
    let idempotent = layer(engine(&database.pool_of(4).await).concurrency(Concurrency::NoWait));
    let slow = app_with(idempotent, move |mut tx: Tx| {
        let waiting = waiting.clone();
        async move {
            waiting.pass().await;
            effect(&mut tx).await.to_string()
        }
    });
    let first = tokio::spawn({
        let slow = slow.clone();
        async move { reply(&slow, post("/things").key("slow")).await }
    });
    gate.entered().await;
    let duplicate = reply(&slow, post("/things").key("slow")).await;
    says(&database, duplicate, RejectionKind::InFlight, Occurrence::Unknown, 1).await;
    gate.open();
    assert_eq!(first.await.unwrap().status, StatusCode::OK);

    // Keys that bear a time: an old one may have been executed; so may any, before they bore times.
    let keys = TimestampedKeys::uuid_v7(Duration::from_secs(60)).unwrap();
    let timed = app_with(layer(engine(&database.pool_of(4).await).timestamped_keys(keys)), create);
    for (key, kind, occurrence) in [
        ("01890000-0000-7000-8000-000000000000", RejectionKind::KeyExpired, "unknown"),
        ("f0000000-0000-7000-8000-000000000000", RejectionKind::KeyFromFuture, "unknown"),
    ] {
        let refused = reply(&timed, post("/things").key(key)).await;
        refused.assert_refused(kind);
        assert_eq!(refused.json()["occurrence"], occurrence);
    }
}

/// A row whose claim was committed without its response, on an engine without the guard: done, and said so.
#[tokio::test]
async fn work_that_committed_by_itself_is_said_to_be_executed() {
    let database = Database::fresh().await;
    database.without_guard().await;
    let shared = layer(axum_idempotency::Idempotency::sharing(&database.pool_of(4).await));
    let app = app_with(shared, async |mut tx: Tx| {
        effect(&mut tx).await;
        tx.execute("commit").await.unwrap();
        StatusCode::CREATED
    });
    for _ in 0..2 {
        let refused = reply(&app, post("/things").key("k")).await;
        says(&database, refused, RejectionKind::TransactionEnded, Occurrence::Executed, 1).await;
    }
}

#[tokio::test]
async fn f94_a_refusal_of_a_browsers_form_may_be_a_redirect_and_sees_the_request() {
    let database = Database::fresh().await;
    let idempotent = plain(&database).await.with_rejection_response(|rejection, head| {
        let accept = head.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
        match (accept, rejection.kind()) {
            ("text/html", kind) => {
                Redirect::to(&format!("{}?problem={}", head.uri.path(), kind.name())).into_response()
            }
            // Without a Location, or a success: not a refusal.
            ("text/plain", _) => StatusCode::SEE_OTHER.into_response(),
            ("text/none", _) => StatusCode::OK.into_response(),
            _ => Rejection::clone(rejection).into_response(),
        }
    });
    let optional = app_with(idempotent.clone(), create);
    assert_eq!(reply(&optional, post("/things").key("k")).await.status, StatusCode::CREATED);
    let asking = |accept: &'static str| {
        let mut ask = post("/things").key("k").body("other").into_request();
        ask.headers_mut().insert(header::ACCEPT, HeaderValue::from_static(accept));
        Ask::from(ask)
    };
    let sent = reply(&optional, asking("text/html")).await;
    assert_eq!(
        (sent.status, &sent.headers[header::LOCATION]),
        (StatusCode::SEE_OTHER, &"/things?problem=key-reused".parse().unwrap())
    );
    assert_eq!(sent.headers[header::CACHE_CONTROL], "no-store");
    assert_eq!(sent.rejection.as_ref().unwrap().status(), StatusCode::SEE_OTHER);
    for accept in ["text/plain", "text/none"] {
        assert_eq!(reply(&optional, asking(accept)).await.status, StatusCode::UNPROCESSABLE_ENTITY);
    }
    reply(&optional, asking("application/json")).await.assert_refused(RejectionKind::KeyReused);
    // A method that is not handled is refused by the same renderer.
    let any =
        axum::Router::new().route("/things", axum::routing::any(create).layer(idempotent.refuse_unhandled_keys(true)));
    let mut put = Ask::new(Method::PUT, "/things").owner("alice").key("k").into_request();
    put.headers_mut().insert(header::ACCEPT, HeaderValue::from_static("text/html"));
    let sent = reply(&any, Ask::from(put)).await;
    assert_eq!(sent.headers[header::LOCATION], "/things?problem=key-not-handled");
}

#[tokio::test]
async fn a_statement_that_failed_may_be_passed_on_and_what_may_succeed_again_is_retryable() {
    let database = Database::fresh().await;
    database
        .connection()
        .await
        .execute("create table one (id int primary key); insert into one values (1)")
        .await
        .unwrap();
    for (statement, kind) in [
        ("insert into one values (1)", RejectionKind::Internal),
        ("select * from no_such_table", RejectionKind::Internal),
        ("do $$ begin raise exception 'x' using errcode = '40001'; end $$", RejectionKind::StoreUnavailable),
        ("do $$ begin raise exception 'x' using errcode = '40P01'; end $$", RejectionKind::StoreUnavailable),
        ("select pg_terminate_backend(pg_backend_pid())", RejectionKind::StoreUnavailable),
    ] {
        for keyed in [true, false] {
            let app = app_with(plain(&database).await.optional(), move |mut tx: Tx| async move {
                effect(&mut tx).await;
                sqlx::query(statement).execute(&mut tx).await?;
                Ok::<_, Rejection>(StatusCode::CREATED)
            });
            let ask = if keyed { post("/things").key("k") } else { post("/things") };
            let refused = reply(&app, ask).await;
            assert!(!refused.text().contains("no_such_table"), "{}", refused.text());
            let unsure = statement.contains("terminate") && crate::support::shares_pool();
            let occurrence = if unsure { Occurrence::Unknown } else { Occurrence::NotExecuted };
            says(&database, refused, kind, occurrence, 0).await;
        }
    }
    // A row that is not there, and the engine's own errors.
    let app = app_with(plain(&database).await, async |mut tx: Tx| {
        sqlx::query("select 1 where false").fetch_one(&mut tx).await?;
        Ok::<_, Rejection>(StatusCode::CREATED)
    });
    says(&database, reply(&app, post("/things").key("k")).await, RejectionKind::Internal, Occurrence::NotExecuted, 0)
        .await;
    let blank = axum_idempotency::IdempotentRequest::new(
        axum_idempotency::Scope::new(""),
        axum_idempotency::Operation::new("o"),
        axum_idempotency::IdempotencyKey::new("k").unwrap(),
        axum_idempotency::Fingerprint::of(["f"]),
    );
    let error = engine(&database.pool_of(1).await).claim(blank).await.unwrap_err();
    assert_eq!(error.into_response().status(), StatusCode::UNAUTHORIZED);
}

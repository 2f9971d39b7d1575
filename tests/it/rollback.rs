//! G2, G4: effects and answer together or neither, and no 2xx without a commit.

use std::panic::AssertUnwindSafe;

use axum::{
    Router,
    body::Body,
    http::{Response, StatusCode},
    routing::post as route,
};
use axum_idempotency::{Idempotency, RejectionKind, Tx};
use futures_util::stream;
use http_body_util::BodyExt as _;
use sqlx::Executor as _;
use tower::ServiceExt as _;
use tower_http::catch_panic::CatchPanicLayer;

use crate::support::{Database, Gate, Runs, app_with, effect, engine, layer, post, reply, settle};

/// `POST /things` where nobody waits: a key that is not free at once is a 409.
fn app<H, T>(pool: &sqlx::PgPool, handler: H) -> Router
where
    H: axum::handler::Handler<T, ()>,
    T: 'static,
{
    app_with(layer(engine(pool).concurrency(axum_idempotency::Concurrency::NoWait)), handler)
}

/// Likewise where nothing keeps the handler from committing by itself: on a shared pool, and on an engine that does not know
/// deferrable constraints. It is noticed afterwards.
async fn unguarded<H, T>(database: &Database, handler: H) -> Router
where
    H: axum::handler::Handler<T, ()>,
    T: 'static,
{
    database.without_guard().await;
    let idempotency = Idempotency::sharing(&database.pool_of(1).await);
    app_with(layer(idempotency.concurrency(axum_idempotency::Concurrency::NoWait)), handler)
}

/// The first call goes wrong, the second does not: what must be left of the first is nothing.
async fn assert_leaves_nothing(database: &Database, app: &Router, expected: RejectionKind) {
    reply(app, post("/things").key("k")).await.assert_refused(expected);
    assert_eq!(database.effects().await, 0, "effects");
    assert_eq!(database.rows().await, [], "keys");
    let retry = reply(app, post("/things").key("k")).await;
    assert_eq!((retry.status, retry.replayed()), (StatusCode::CREATED, false));
    assert_eq!(database.effects().await, 1);
}

#[tokio::test]
async fn f4_a_swallowed_sql_error_is_answered_500_and_leaves_nothing() {
    let database = Database::fresh().await;
    let runs = Runs::default();
    let app = app(&database.pool().await, move |mut tx: Tx| async move {
        effect(&mut tx).await;
        if runs.one() == 1 {
            sqlx::query("select 1 / 0").execute(&mut *tx).await.unwrap_err();
        }
        StatusCode::CREATED
    });
    assert_leaves_nothing(&database, &app, RejectionKind::TransactionAborted).await;
}

#[tokio::test]
async fn g4_r33_f24_a_commit_that_a_deferred_constraint_refuses_is_answered_500_and_leaves_nothing() {
    let database = Database::fresh().await;
    let deferred = "alter table effect add constraint late unique (note) deferrable initially deferred";
    database.connection().await.execute(deferred).await.unwrap();
    let runs = Runs::default();
    let app = app(&database.pool().await, move |mut tx: Tx| async move {
        effect(&mut tx).await;
        if runs.one() == 1 {
            effect(&mut tx).await;
        }
        StatusCode::CREATED
    });
    assert_leaves_nothing(&database, &app, RejectionKind::CommitRefused).await;
}

#[tokio::test]
async fn f25_a_handler_that_keeps_its_connection_in_a_task_is_answered_500_and_rolled_back() {
    let database = Database::fresh().await;
    let (runs, gate) = (Runs::default(), Gate::closed());
    let inside = gate.clone();
    let app = crate::support::app(&database.pool().await, move |mut tx: Tx| async move {
        effect(&mut tx).await;
        if runs.one() == 1 {
            tokio::spawn(async move {
                inside.pass().await;
                drop(tx);
            });
        }
        StatusCode::CREATED
    });
    reply(&app, post("/things").key("k")).await.assert_refused(RejectionKind::ConnectionHeld);
    // The key stays taken as long as that task holds it: a retry waits.
    let retry = tokio::spawn(async move { reply(&app, post("/things").key("k")).await });
    settle().await;
    assert!(!retry.is_finished());
    gate.entered().await;
    gate.open();
    let retry = retry.await.unwrap();
    assert_eq!((retry.status, retry.replayed()), (StatusCode::CREATED, false));
    assert_eq!(database.effects().await, 1);
}

#[tokio::test]
async fn f25_a_response_body_that_uses_the_connection_is_read_before_the_commit() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, |tx: Tx| async move {
        let written = stream::once(async move {
            let mut tx = tx;
            Ok::<_, std::io::Error>(effect(&mut tx).await.to_string())
        });
        (StatusCode::CREATED, Body::from_stream(written))
    });
    let first = reply(&app, post("/things").key("k")).await;
    assert_eq!((first.status, first.text()), (StatusCode::CREATED, "1"));
    assert_eq!(database.effects().await, 1);
    assert_eq!(reply(&app, post("/things").key("k")).await.text(), "1");
}

#[tokio::test]
async fn on_a_shared_pool_a_handler_that_ends_the_transaction_itself_is_answered_500_that_says_so() {
    for (statement, durable, said) in [
        ("rollback", 1, "ran ROLLBACK"),
        ("commit", 2, "ran COMMIT"),
        ("commit; begin", 1, "ran COMMIT"),
        ("rollback; begin", 0, "ran ROLLBACK"),
    ] {
        let database = Database::fresh().await;
        let app = unguarded(&database, move |mut tx: Tx| async move {
            effect(&mut tx).await;
            tx.execute(sqlx::raw_sql(statement)).await.unwrap();
            effect(&mut tx).await;
            StatusCode::CREATED
        })
        .await;
        let refused = reply(&app, post("/things").key("k")).await;
        refused.assert_refused(RejectionKind::TransactionEnded);
        assert!(refused.text().contains(said), "{}", refused.text());
        assert!(database.rows().await.iter().all(|row| row.status.is_none()), "{statement}: no answer is stored");
        // What it made durable itself cannot be undone; the connection, though, is not given to anybody else.
        assert_eq!(database.effects().await, durable, "{statement}");
        assert_eq!(reply(&app, post("/things").key("l")).await.kind(), Some(RejectionKind::TransactionEnded));
        assert_eq!(database.effects().await, 2 * durable, "{statement}");
    }
}

/// Whatever it answers: what it has made durable itself is not undone by a 4xx or 5xx either.
#[tokio::test]
async fn f83_on_a_shared_pool_a_handler_that_ends_the_transaction_and_then_fails_is_found_out_as_well() {
    for (statement, said) in [("commit", "ran COMMIT"), ("rollback", "ran ROLLBACK")] {
        for status in [400, 402, 500] {
            let database = Database::fresh().await;
            let app = unguarded(&database, move |mut tx: Tx| async move {
                effect(&mut tx).await;
                tx.execute(statement).await.unwrap();
                StatusCode::from_u16(status).unwrap()
            })
            .await;
            let refused = reply(&app, post("/things").key("k")).await;
            refused.assert_refused(RejectionKind::TransactionEnded);
            assert!(refused.text().contains(said), "{statement} {status}: {}", refused.text());
        }
    }
}

/// sqlx rolls everything back when a SAVEPOINT fails, and would run the rest statement by statement.
#[tokio::test]
async fn a_savepoint_after_a_swallowed_error_does_not_make_the_rest_durable() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, |mut tx: Tx| async move {
        effect(&mut tx).await;
        sqlx::query("select 1 / 0").execute(&mut *tx).await.unwrap_err();
        assert!(tx.begin().await.is_err());
        let late = sqlx::query("insert into effect (note) values ('late')").execute(&mut *tx).await;
        assert!(late.is_err(), "the transaction is still the same, and given up");
        StatusCode::CREATED
    });
    reply(&app, post("/things").key("k")).await.assert_refused(RejectionKind::TransactionAborted);
    assert_eq!(database.effects().await, 0);
}

/// Executing again would do twice what the COMMIT has made durable.
#[tokio::test]
async fn on_a_shared_pool_a_key_whose_handler_committed_by_itself_is_not_executed_again() {
    let database = Database::fresh().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let app = unguarded(&database, move |mut tx: Tx| async move {
        counted.one();
        effect(&mut tx).await;
        tx.execute("commit").await.unwrap();
        StatusCode::CREATED
    })
    .await;
    for _ in 0..3 {
        reply(&app, post("/things").key("k")).await.assert_refused(RejectionKind::TransactionEnded);
    }
    assert_eq!((runs.count(), database.effects().await), (1, 1));
}

/// PostgreSQL takes a BEGIN inside a transaction for nothing, so nothing is lost by it.
#[tokio::test]
async fn a_begin_of_the_handlers_changes_nothing() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, |mut tx: Tx| async move {
        effect(&mut tx).await;
        tx.execute("begin").await.unwrap();
        effect(&mut tx).await;
        StatusCode::CREATED
    });
    assert_eq!(reply(&app, post("/things").key("k")).await.status, StatusCode::CREATED);
    assert!(reply(&app, post("/things").key("k")).await.replayed());
    assert_eq!(database.effects().await, 2);
}

#[tokio::test]
async fn f22_f41_a_panic_in_the_handler_rolls_back_frees_the_key_and_propagates() {
    let database = Database::fresh().await;
    let pool = database.pool_of(1).await;
    let runs = Runs::default();
    let app = app(&pool, move |mut tx: Tx| async move {
        effect(&mut tx).await;
        assert_ne!(runs.one(), 1, "the handler's own panic");
        StatusCode::CREATED
    });
    let asked = app.clone().oneshot(post("/things").key("k").into_request());
    let panicked = futures_util::FutureExt::catch_unwind(AssertUnwindSafe(asked)).await;
    assert!(panicked.is_err(), "it reaches whoever catches panics outside");
    assert_eq!(database.effects().await, 0);
    let retry = reply(&app, post("/things").key("k")).await;
    assert_eq!((retry.status, retry.replayed()), (StatusCode::CREATED, false));
}

#[tokio::test]
async fn f22_catch_panic_works_outside_and_inside_the_layer() {
    for outside in [true, false] {
        let database = Database::fresh().await;
        let runs = Runs::default();
        let handler = move |mut tx: Tx| async move {
            effect(&mut tx).await;
            assert_ne!(runs.one(), 1, "the handler's own panic");
            StatusCode::CREATED
        };
        let idempotent = layer(engine(&database.pool().await));
        let app = Router::new();
        let app = if outside {
            app.route("/things", route(handler).layer(idempotent)).layer(CatchPanicLayer::new())
        } else {
            let inside = tower::ServiceBuilder::new().layer(idempotent).layer(CatchPanicLayer::new());
            app.route("/things", route(handler).layer(inside))
        };
        assert_eq!(reply(&app, post("/things").key("k")).await.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(database.effects().await, 0);
        assert_eq!(reply(&app, post("/things").key("k")).await.status, StatusCode::CREATED);
        assert_eq!(database.effects().await, 1);
    }
}

#[tokio::test]
async fn f22_a_response_body_that_panics_or_breaks_off_leaves_nothing() {
    let database = Database::fresh().await;
    let runs = Runs::default();
    let app = app(&database.pool().await, move |mut tx: Tx| async move {
        effect(&mut tx).await;
        let broken = runs.one() == 1;
        let parts = [Ok("half"), if broken { Err(std::io::Error::other("broken")) } else { Ok("whole") }];
        (StatusCode::CREATED, Body::from_stream(stream::iter(parts)))
    });
    assert_leaves_nothing(&database, &app, RejectionKind::ResponseUnsupported).await;

    let panicking = crate::support::app(&database.pool().await, |mut tx: Tx| async move {
        effect(&mut tx).await;
        Body::from_stream(stream::once(async { panic!("the body's own panic") as Result<&str, std::io::Error> }))
    });
    let asked = panicking.oneshot(post("/things").key("other").into_request());
    assert!(futures_util::FutureExt::catch_unwind(AssertUnwindSafe(asked)).await.is_err());
    assert_eq!(reply(&app, post("/things").key("other")).await.status, StatusCode::CREATED);
}

#[tokio::test]
async fn an_inner_service_that_fails_is_rolled_back_and_its_error_passed_on() {
    let database = Database::fresh().await;
    let service = tower::ServiceBuilder::new().layer(layer(engine(&database.pool().await))).service_fn(
        |request: axum::extract::Request| async move {
            use axum::extract::FromRequestParts as _;
            let mut tx = Tx::from_request_parts(&mut request.into_parts().0, &()).await.unwrap();
            effect(&mut tx).await;
            Err::<Response<Body>, _>("the service's own error")
        },
    );
    let error = service.clone().oneshot(post("/things").key("k").into_request()).await.unwrap_err();
    assert_eq!(error, "the service's own error");
    assert_eq!(database.effects().await, 0);
    assert_eq!(database.rows().await, []);
}

#[tokio::test]
async fn r42_an_answer_over_the_limit_is_rolled_back() {
    let database = Database::fresh().await;
    let runs = Runs::default();
    let impatient = engine(&database.pool().await).concurrency(axum_idempotency::Concurrency::NoWait);
    let small = layer(impatient).max_response_bytes(1_000);
    let app = app_with(small, move |mut tx: Tx| async move {
        effect(&mut tx).await;
        (StatusCode::CREATED, "x".repeat(if runs.one() == 1 { 1_001 } else { 1_000 }))
    });
    assert_leaves_nothing(&database, &app, RejectionKind::ResponseTooLarge).await;
}

#[tokio::test]
async fn r6_r49_f21_a_protocol_switch_and_trailers_are_refused_loudly() {
    let database = Database::fresh().await;
    let switching = app(&database.pool().await, async |_tx: Tx| StatusCode::SWITCHING_PROTOCOLS);
    reply(&switching, post("/things").key("k")).await.assert_refused(RejectionKind::ResponseUnsupported);

    let trailing = app(&database.pool().await, |mut tx: Tx| async move {
        effect(&mut tx).await;
        let mut trailers = axum::http::HeaderMap::new();
        trailers.insert("grpc-status", 0.into());
        Body::new(Body::from("x").with_trailers(async move { Some(Ok(trailers)) }))
    });
    reply(&trailing, post("/things").key("k")).await.assert_refused(RejectionKind::ResponseUnsupported);
    assert_eq!(database.effects().await, 0);
    assert_eq!(database.rows().await, []);
}

/// Whoever does not wait would get 409 if the rollback were still under way.
#[tokio::test]
async fn the_key_is_free_by_the_time_that_a_failure_is_answered_or_a_panic_passed_on() {
    let database = Database::fresh().await;
    for kind in ["broken", "panic", "500"] {
        let runs = Runs::default();
        let app = app(&database.pool_of(2).await, move |mut tx: Tx| async move {
            effect(&mut tx).await;
            if runs.one() % 2 == 0 {
                return (StatusCode::CREATED, Body::empty());
            }
            match kind {
                "broken" => {
                    let broken = stream::iter([Err::<String, _>(std::io::Error::other("broken"))]);
                    (StatusCode::CREATED, Body::from_stream(broken))
                }
                "panic" => panic!("the handler's own panic"),
                _ => (StatusCode::INTERNAL_SERVER_ERROR, Body::empty()),
            }
        })
        .layer(CatchPanicLayer::new());
        for n in 0..40 {
            let key = format!("{kind}-{n}");
            let failed = reply(&app, post("/things").key(&key)).await;
            assert_eq!(failed.status, StatusCode::INTERNAL_SERVER_ERROR, "{key}");
            assert_eq!(reply(&app, post("/things").key(&key)).await.status, StatusCode::CREATED, "{key}");
        }
    }
}

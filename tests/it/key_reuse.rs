//! G6: a key with another payload is refused, and nothing of the first one is revealed.

use axum::{Router, http::StatusCode, routing::post as route};
use axum_idempotency::{Fingerprint, RejectionKind};
use serde_json::json;

use crate::support::{Database, app, app_with, create, engine, layer, post, reply};

#[tokio::test]
async fn r29_another_payload_is_refused_and_the_stored_answer_stays() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, create);
    let first = reply(&app, post("/things").key("k").json(json!({ "amount": 1 }))).await;
    let before = database.rows().await;

    let other = reply(&app, post("/things").key("k").json(json!({ "amount": 2 }))).await;
    other.assert_refused(RejectionKind::KeyReused);
    assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(database.effects().await, 1);
    assert_eq!(database.rows().await, before);

    let retry = reply(&app, post("/things").key("k").json(json!({ "amount": 1 }))).await;
    assert!(retry.replayed());
    assert_eq!(retry.body, first.body);
}

#[tokio::test]
async fn f57_the_refusal_holds_nothing_that_is_stored() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, async || "first-secret");
    reply(&app, post("/things").key("some-key").body("request-secret")).await;
    let other = reply(&app, post("/things").key("some-key").body("other")).await;
    other.assert_refused(RejectionKind::KeyReused);
    for secret in ["first-secret", "request-secret", "some-key", "alice"] {
        assert!(!other.text().contains(secret), "{secret}");
    }
}

#[tokio::test]
async fn r23_r24_f47_path_query_method_and_content_type_belong_to_the_fingerprint() {
    let database = Database::fresh().await;
    let idempotent = layer(engine(&database.pool().await));
    let app = Router::new()
        .route("/things/{id}", route(create).layer(idempotent.clone()))
        .route("/named", route(create).patch(create).layer(idempotent.operation("thing.change")));
    let refused = |ask| async { reply(&app, ask).await.assert_refused(RejectionKind::KeyReused) };

    reply(&app, post("/things/1?a=1").key("k").header("content-type", "text/plain").body("x")).await;
    refused(post("/things/2?a=1").key("k").header("content-type", "text/plain").body("x")).await;
    refused(post("/things/1?a=2").key("k").header("content-type", "text/plain").body("x")).await;
    refused(post("/things/1").key("k").header("content-type", "text/plain").body("x")).await;
    refused(post("/things/1?a=1").key("k").header("content-type", "text/html").body("x")).await;
    refused(post("/things/1?a=1").key("k").body("x")).await;
    refused(
        post("/things/1?a=1")
            .key("k")
            .header("content-type", "text/plain")
            .header("content-encoding", "gzip")
            .body("x"),
    )
    .await;

    reply(&app, post("/named").key("k")).await;
    let patch = crate::support::Ask::new(axum::http::Method::PATCH, "/named").owner("alice").key("k");
    refused(patch).await;
    assert_eq!(database.effects().await, 2);
}

#[tokio::test]
async fn r22_f62_the_same_key_on_another_operation_is_another_intent() {
    let database = Database::fresh().await;
    let idempotent = layer(engine(&database.pool().await));
    let app = Router::new()
        .route("/a", route(create).layer(idempotent.clone()))
        .route("/b", route(create).layer(idempotent.clone()))
        .nest("/api", Router::new().route("/a", route(create).layer(idempotent)));
    for path in ["/a", "/b", "/api/a"] {
        assert!(!reply(&app, post(path).key("k")).await.replayed(), "{path}");
        assert!(reply(&app, post(path).key("k")).await.replayed(), "{path}");
    }
    let operations: Vec<_> = database.rows().await.into_iter().map(|row| row.operation).collect();
    assert_eq!(operations, ["POST /a", "POST /api/a", "POST /b"]);
}

#[tokio::test]
async fn a_fingerprint_function_of_the_applications_decides() {
    let database = Database::fresh().await;
    let by_version = layer(engine(&database.pool().await)).with_fingerprint(|parts, body| {
        let version = parts.headers.get("x-version").map(|value| value.as_bytes()).unwrap_or_default();
        Fingerprint::of([version, &body[..1]])
    });
    let app = app_with(by_version, create);
    reply(&app, post("/things").key("k").header("x-version", "1").body("ab")).await;
    assert!(reply(&app, post("/things?x").key("k").header("x-version", "1").body("ac")).await.replayed());
    let other = reply(&app, post("/things").key("k").header("x-version", "2").body("ab")).await;
    other.assert_refused(RejectionKind::KeyReused);
}

#[tokio::test]
async fn r28_a_row_of_an_unknown_fingerprint_scheme_matches() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, create);
    reply(&app, post("/things").key("k").body("a")).await;
    let mut connection = database.connection().await;
    sqlx::query("update idempotency.keys set fingerprint = set_byte(fingerprint, 0, 99)")
        .execute(&mut connection)
        .await
        .unwrap();
    assert!(reply(&app, post("/things").key("k").body("b")).await.replayed());
}

#[tokio::test]
async fn r28_a_deployment_that_changes_what_is_compared_refuses_no_honest_retry() {
    let database = Database::fresh().await;
    let base = || layer(engine(&database.pool_lazily()));
    let name = axum::http::HeaderName::from_static;
    let settings = [
        base(),
        base().canonical_json(true),
        base().json_rpc(true),
        base().form_in_any_order(true),
        base().query_in_any_order(true),
        base().canonical_json(true).json_rpc(true).form_in_any_order(true).query_in_any_order(true),
        base().fingerprint_headers([name("x-a")]),
        base().fingerprint_headers([name("x-b")]),
        base().fingerprint_secret("one"),
        base().fingerprint_secret("two"),
        base().with_fingerprint(|_, body| Fingerprint::of([body])),
        base().with_fingerprint(|_, body| Fingerprint::of([body]).with_scheme(7)),
    ];
    let ask = |key: &str, body: &'static str| post("/things").key(key).header("x-a", "1").body(body);
    for (n, before) in settings.iter().enumerate() {
        let key = n.to_string();
        let before = app_with(before.clone(), create);
        reply(&before, ask(&key, "first")).await;
        reply(&before, ask(&key, "other")).await.assert_refused(RejectionKind::KeyReused);
        for after in &settings {
            assert!(reply(&app_with(after.clone(), create), ask(&key, "first")).await.replayed());
        }
    }
}

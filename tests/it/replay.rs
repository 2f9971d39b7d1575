//! G3: every later request with the same fingerprint gets the first answer, byte for byte.

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use axum_idempotency::{RejectionKind, Tx};
use futures_util::stream;
use serde_json::json;

use crate::support::{Database, Runs, app, create, effect, engine, get, post, reply};

#[tokio::test]
async fn g3_r44_f31_f44_a_retry_gets_the_stored_answer_byte_for_byte_and_the_handler_runs_once() {
    let database = Database::fresh().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let app = app(&database.pool().await, move |mut tx: Tx| async move {
        counted.one();
        effect(&mut tx).await;
        let mut response: Response = (StatusCode::CREATED, [0, 159, 146, 150, 255].to_vec()).into_response();
        let headers = response.headers_mut();
        headers.append(header::LOCATION, HeaderValue::from_static("/things/1"));
        headers.append(header::LINK, HeaderValue::from_static("</a>; rel=\"next\""));
        headers.append(header::LINK, HeaderValue::from_static("</b>, </c>"));
        headers.append("x-obs", HeaderValue::from_bytes(b"caf\xe9").unwrap());
        response
    });

    let ask = || post("/things").key("k").json(json!({ "a": 1 }));
    let first = reply(&app, ask()).await;
    assert_eq!(first.status, StatusCode::CREATED);
    assert!(!first.replayed());

    for _ in 0..3 {
        let retry = reply(&app, ask()).await;
        assert!(retry.replayed());
        assert_eq!(retry.status, first.status);
        assert_eq!(retry.body, first.body);
        let fields = |reply: &crate::support::Reply| -> Vec<(String, Vec<u8>)> {
            reply
                .headers
                .iter()
                .filter(|(name, _)| !["idempotent-replayed", "cache-control"].contains(&name.as_str()))
                .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
                .collect()
        };
        assert_eq!(fields(&retry), fields(&first));
        assert_eq!(retry.headers[header::CACHE_CONTROL], "no-store");
    }
    assert_eq!(runs.count(), 1);
    assert_eq!(database.effects().await, 1);
}

#[tokio::test]
async fn a_replay_writes_nothing_not_even_a_lock_and_does_not_extend_the_window() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, create);
    reply(&app, post("/things").key("k")).await;
    let before = database.rows().await;
    assert_eq!(before.len(), 1);
    for _ in 0..3 {
        assert!(reply(&app, post("/things").key("k")).await.replayed());
    }
    assert_eq!(database.rows().await, before);
}

#[tokio::test]
async fn r9_quoted_and_bare_are_one_key() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, create);
    assert!(!reply(&app, post("/things").key("8e03978e")).await.replayed());
    assert!(reply(&app, post("/things").key("\"8e03978e\"")).await.replayed());
    assert!(reply(&app, post("/things").key("  \"8e03978e\"; v=1")).await.replayed());
    assert_eq!(database.effects().await, 1);
}

#[tokio::test]
async fn r25_r53_what_may_differ_between_a_request_and_its_retry_does_not_matter() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, create);
    let ask = || post("/things?a=1").key("k").header("content-type", "application/json").body("{}");
    let first = reply(&app, ask().header("accept", "application/json").header("traceparent", "00-1")).await;
    let retry = reply(&app, ask().header("accept", "text/html").header("if-match", "\"v1\"")).await;
    assert!(retry.replayed());
    assert_eq!(retry.body, first.body);
    // The same bytes in other frames.
    let frames = Body::from_stream(stream::iter(["{", "}"].map(Ok::<_, std::io::Error>)));
    let ask = post("/things?a=1").key("k").header("content-type", "application/json; charset=utf-8").body(frames);
    assert!(reply(&app, ask).await.replayed());
}

#[tokio::test]
async fn r1_other_methods_pass_through_without_the_database() {
    let database = Database::fresh().await;
    let pool = database.pool().await;
    let app = axum::Router::new().route(
        "/things",
        axum::routing::get(async || "read").put(async || "replaced").layer(crate::support::layer(engine(&pool))),
    );
    pool.close().await;
    for ask in [get("/things").key("k"), get("/things").key("not, valid"), get("/things")] {
        let read = reply(&app, ask).await;
        assert_eq!((read.status, read.text()), (StatusCode::OK, "read"));
    }
    let put = crate::support::Ask::new(axum::http::Method::PUT, "/things");
    assert_eq!(reply(&app, put).await.text(), "replaced");
}

#[tokio::test]
async fn f36_the_body_reaches_the_handler_unchanged_and_is_compared() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, |_tx: Tx, body: axum::body::Bytes| async move { body });
    let sent: Vec<u8> = (0..200_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let echoed = reply(&app, post("/things").key("k").body(sent.clone())).await;
    assert_eq!(echoed.body, sent);
    assert_eq!(reply(&app, post("/things").key("k").body(sent.clone())).await.body, sent);
    reply(&app, post("/things").key("k").body(sent[1..].to_vec())).await.assert_refused(RejectionKind::KeyReused);
}

/// A middleware inside has changed the body, and left its length as it was. On the wire, over one connection.
#[tokio::test]
async fn f87_a_length_that_is_wrong_is_made_right_on_the_first_response_as_on_its_replay() {
    use axum::{body::Body, http::header, response::Response};

    let database = Database::fresh().await;
    let handler: axum::routing::MethodRouter =
        axum::routing::post(async || "short").layer(axum::middleware::map_response(async |response: Response| {
            let (mut parts, _) = response.into_parts();
            parts.headers.insert(header::CONTENT_LENGTH, 5.into());
            parts.headers.insert("x-own", "1".parse().unwrap());
            Response::from_parts(parts, Body::from("fourteen bytes"))
        }));
    let layer = crate::support::layer(crate::support::engine(&database.pool().await)).without_tx();
    let app = axum::Router::new().route("/things", handler.layer(layer));
    let address = crate::support::serve(app).await;
    let client = reqwest::Client::builder().pool_max_idle_per_host(1).build().unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        let request =
            client.post(format!("http://{address}/things")).header("x-owner", "a").header("idempotency-key", "k");
        let response = request.send().await.unwrap();
        let length = response.headers()["content-length"].to_str().unwrap().to_owned();
        let own = response.headers()["x-own"].to_str().unwrap().to_owned();
        seen.push((response.status(), length, own, response.text().await.unwrap()));
    }
    assert_eq!(seen[0], (reqwest::StatusCode::OK, "14".to_owned(), "1".to_owned(), "fourteen bytes".to_owned()));
    assert!(seen.iter().all(|response| *response == seen[0]), "{seen:?}");
}

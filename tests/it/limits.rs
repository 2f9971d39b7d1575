//! G8: everything that is read has a limit, a setting and a named refusal; what is refused leaves nothing behind.

use axum::{body::Body, http::StatusCode};
use axum_idempotency::RejectionKind;
use futures_util::stream;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{Database, Runs, app, app_with, create, engine, layer, post, reply, serve};

#[tokio::test]
async fn f19_a_body_over_the_limit_is_refused_before_anything_is_claimed() {
    let database = Database::fresh().await;
    let small = layer(engine(&database.pool().await)).max_request_bytes(1_000);
    let app = app_with(small, create);
    let refused = reply(&app, post("/things").key("k").body("x".repeat(1_001))).await;
    refused.assert_refused(RejectionKind::RequestTooLarge);
    assert!(refused.text().contains("1000 bytes"));

    // Without an announced length, and without end.
    let endless = Body::from_stream(stream::repeat_with(|| Ok::<_, std::io::Error>("x".repeat(100))));
    reply(&app, post("/things").key("k").body(endless)).await.assert_refused(RejectionKind::RequestTooLarge);
    assert_eq!(database.rows().await, []);

    let fits = reply(&app, post("/things").key("k").body("x".repeat(1_000))).await;
    assert_eq!(fits.status, StatusCode::CREATED);
}

#[tokio::test]
async fn an_announced_length_over_the_limit_is_refused_unread() {
    let database = Database::fresh().await;
    let address = serve(app(&database.pool().await, create)).await;
    let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = "POST /things HTTP/1.1\r\nhost: x\r\nx-owner: alice\r\nidempotency-key: k\r\ncontent-length: 9000000000\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    assert!(first_line(&mut client).await.starts_with("HTTP/1.1 413"));
}

#[tokio::test]
async fn f20_a_body_that_breaks_off_is_no_claim_and_no_panic() {
    let database = Database::fresh().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let app = app(&database.pool().await, move || async move {
        counted.one();
    });
    let broken = Body::from_stream(stream::iter([Ok("half"), Err(std::io::Error::other("gone"))]));
    reply(&app, post("/things").key("k").body(broken)).await.assert_refused(RejectionKind::RequestUnreadable);

    let address = serve(app).await;
    let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
    let head =
        "POST /things HTTP/1.1\r\nhost: x\r\nx-owner: alice\r\nidempotency-key: k\r\ncontent-length: 100\r\n\r\nhalf";
    client.write_all(head.as_bytes()).await.unwrap();
    client.shutdown().await.unwrap();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    assert_eq!(runs.count(), 0);
    assert_eq!(database.rows().await, []);
}

#[tokio::test]
async fn r3_what_the_head_decides_is_answered_without_the_body_or_a_100_continue() {
    let database = Database::fresh().await;
    let address = serve(app(&database.pool().await, create)).await;
    for (field, status) in
        [("x-owner: alice", "400"), ("x-owner: alice\r\nidempotency-key: a b", "400"), ("idempotency-key: k", "401")]
    {
        let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
        let head = format!(
            "POST /things HTTP/1.1\r\nhost: x\r\n{field}\r\nexpect: 100-continue\r\ncontent-length: 10\r\n\r\n"
        );
        client.write_all(head.as_bytes()).await.unwrap();
        let line = first_line(&mut client).await;
        assert!(line.starts_with(&format!("HTTP/1.1 {status}")), "{field}: {line}");
    }
}

#[tokio::test]
async fn r7_to_r18_every_invalid_key_is_refused_without_the_database() {
    let database = Database::fresh().await;
    let pool = database.pool().await;
    let app = app(&pool, create);
    pool.close().await;
    let too_long = format!("\"{}\"", "x".repeat(256));
    for key in ["", " ", "\"\"", "\"a", "a\"", "'a'", "a b", "a,b", "a;v=1", "\"a\";", "a\\b", "?1", &too_long] {
        reply(&app, post("/things").key(key)).await.assert_refused(RejectionKind::InvalidKey);
    }
    let twice = reply(&app, post("/things").key("k").key("k")).await;
    twice.assert_refused(RejectionKind::InvalidKey);
    let long = reply(&app, post("/things").key(&too_long)).await;
    assert!(long.text().contains("256 characters. At most 255 are allowed"), "{}", long.text());
    assert!(!long.text().contains("xxx"), "the key is not repeated");
}

#[tokio::test]
async fn a_key_header_of_another_name_and_strict_keys_are_settings() {
    let database = Database::fresh().await;
    let named = layer(engine(&database.pool().await))
        .key_header(axum::http::HeaderName::from_static("x-request-key"))
        .quoted_keys_only(true);
    let app = app_with(named, create);
    reply(&app, post("/things").key("\"k\"")).await.assert_refused(RejectionKind::MissingKey);
    reply(&app, post("/things").header("x-request-key", "k")).await.assert_refused(RejectionKind::InvalidKey);
    assert_eq!(reply(&app, post("/things").header("x-request-key", "\"k\"")).await.status, StatusCode::CREATED);
}

async fn first_line(client: &mut tokio::net::TcpStream) -> String {
    let mut read = Vec::new();
    while !read.contains(&b'\n') {
        let mut part = [0; 256];
        let length = client.read(&mut part).await.unwrap();
        assert_ne!(length, 0, "the connection was closed without an answer");
        read.extend_from_slice(&part[..length]);
    }
    String::from_utf8_lossy(&read).lines().next().unwrap().to_owned()
}

#[tokio::test]
async fn r20_the_trailers_of_a_request_reach_the_handler_with_its_body() {
    use http_body_util::BodyExt as _;

    let database = Database::fresh().await;
    let app = app(&database.pool().await, async |request: axum::extract::Request| {
        let collected = request.into_body().collect().await.unwrap();
        let checksum = collected.trailers().map(|trailers| trailers["x-checksum"].to_str().unwrap().to_owned());
        format!("{checksum:?} {:?}", collected.to_bytes())
    });
    let mut trailers = axum::http::HeaderMap::new();
    trailers.insert("x-checksum", "1".parse().unwrap());
    let body = Body::new(Body::from("whole").with_trailers(async move { Some(Ok(trailers)) }));
    assert_eq!(reply(&app, post("/things").key("k").body(body)).await.text(), "Some(\"1\") b\"whole\"");
}

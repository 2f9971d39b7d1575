//! R7 to R19 over HTTP: which field values are keys, and which two are one.

use axum::http::HeaderValue;
use axum_idempotency::RejectionKind;

use crate::support::{Ask, Database, app_with, engine, layer, post, reply};

/// Field lines, the key in strict mode, the key otherwise.
type Vector = (&'static [&'static [u8]], Option<&'static str>, Option<&'static str>);

const UUID: &str = "8e03978e-40d5-43e8-bc93-6894a57f9324";

const VECTORS: &[Vector] = &[
    (&[b"\"8e03978e-40d5-43e8-bc93-6894a57f9324\""], Some(UUID), Some(UUID)),
    (&[b"8e03978e-40d5-43e8-bc93-6894a57f9324"], None, Some(UUID)),
    (&[b"KG5LxwFBepaKHyUD"], None, Some("KG5LxwFBepaKHyUD")),
    (&[b"123"], None, Some("123")),
    (&[b"-1"], None, Some("-1")),
    (&[b"_x"], None, Some("_x")),
    (&[b"-V1StGXR8_Z5jdHi6B-myT"], None, Some("-V1StGXR8_Z5jdHi6B-myT")),
    (&[b"order:42/line=7"], None, Some("order:42/line=7")),
    (&[b"sha256=abc+/=="], None, Some("sha256=abc+/==")),
    (&[b""], None, None),
    (&[b"   "], None, None),
    (&[b"\"\""], None, None),
    (&[b"  \"abc\"  "], Some("abc"), Some("abc")),
    (&[br#""a\"b""#], Some("a\"b"), Some("a\"b")),
    (&[br#""a\\b""#], Some("a\\b"), Some("a\\b")),
    (&[br#""a\nb""#], None, None),
    (&[b"\"abc"], None, None),
    (&[b"\"abc\\"], None, None),
    (&[b"abc\""], None, None),
    (&[b"'abc'"], None, None),
    (&[b"\"abc\";v=1"], Some("abc"), Some("abc")),
    (&[b"\"abc\"; v=1;w"], Some("abc"), Some("abc")),
    (&[b"\"abc\";a=1;a=2"], Some("abc"), Some("abc")),
    (&[b"\"abc\";V=1"], None, None),
    (&[b"\"abc\";"], None, None),
    (&[b"\"abc\";v="], None, None),
    (&[b"\"abc\" ;v=1"], None, None),
    (&[b"\"abc\" x"], None, None),
    (&[b"\"abc\", \"abc\""], None, None),
    (&[b"abc,def"], None, None),
    (&[b"\"a,b\""], Some("a,b"), Some("a,b")),
    (&[b"\"abc\"", b"\"abc\""], None, None),
    (&[b"\"foo", b"bar\""], None, None),
    (&[b"abc;v=1"], None, None),
    (&[b"a\\b"], None, None),
    (&[b"a b"], None, None),
    (&[b"\"a b\""], None, None),
    (&[b"?1"], None, None),
    (&[b":YWJj:"], None, None),
    (&[b"@1659578233"], None, None),
    (&[b"%\"f%c3%bc\""], None, None),
    (&[b"(a b)"], None, None),
    (&[b"*abc"], None, None),
    (&[b"\"caf\xc3\xa9\""], None, None),
    (&[b"caf\xe9"], None, None),
    (&[b"\"a\tb\""], None, None),
];

fn ask(lines: &[&[u8]]) -> Ask {
    let mut request = post("/things").into_request();
    for line in lines {
        request.headers_mut().append("idempotency-key", HeaderValue::from_bytes(line).unwrap());
    }
    Ask::from(request)
}

/// The length vectors, which are too long to write down.
fn long_vectors() -> Vec<(String, Option<usize>, Option<usize>)> {
    vec![
        (format!("\"{}\"", "x".repeat(255)), Some(255), Some(255)),
        (format!("\"{}\"", "x".repeat(256)), None, None),
        ("x".repeat(255), None, Some(255)),
        ("x".repeat(256), None, None),
        (format!("\"{}\"", r#"\""#.repeat(255)), Some(255), Some(255)),
    ]
}

#[tokio::test]
async fn r8_to_r18_every_vector_in_both_modes() {
    for strict in [false, true] {
        let database = Database::fresh().await;
        let idempotent = layer(engine(&database.pool().await));
        let idempotent = if strict { idempotent.quoted_keys_only(true) } else { idempotent };
        let app = app_with(idempotent, async |key: axum_idempotency::IdempotencyKey| key.as_str().to_owned());
        for (lines, in_strict, otherwise) in VECTORS {
            let expected = if strict { in_strict } else { otherwise };
            let reply = reply(&app, ask(lines)).await;
            match expected {
                Some(key) => assert_eq!((reply.status.as_u16(), reply.text()), (200, *key), "{lines:?}"),
                None => reply.assert_refused(RejectionKind::InvalidKey),
            }
        }
        for (line, in_strict, otherwise) in long_vectors() {
            let reply = reply(&app, ask(&[line.as_bytes()])).await;
            match if strict { in_strict } else { otherwise } {
                Some(length) => assert_eq!((reply.status.as_u16(), reply.body.len()), (200, length), "{line}"),
                None => reply.assert_refused(RejectionKind::InvalidKey),
            }
        }
    }
}

#[test]
fn r17_a_delete_character_never_comes_so_far() {
    assert!(HeaderValue::from_bytes(b"\"a\x7fb\"").is_err());
}

#[tokio::test]
async fn r13_r18_r19_the_settings_for_keys_apply_over_http() {
    let database = Database::fresh().await;
    let idempotent = || layer(engine(&database.pool_lazily()));
    let key = async |key: axum_idempotency::IdempotencyKey| key.as_str().to_owned();
    let short = app_with(idempotent().operation("short").key_length(4..=8), key);
    reply(&short, post("/things").key("abc")).await.assert_refused(RejectionKind::InvalidKey);
    reply(&short, post("/things").key("abcdefghi")).await.assert_refused(RejectionKind::InvalidKey);
    assert_eq!(reply(&short, post("/things").key("abcd")).await.text(), "abcd");

    let long = app_with(idempotent().operation("long").key_length(0..=100_000), key);
    reply(&long, post("/things").key("\"\"")).await.assert_refused(RejectionKind::InvalidKey);
    assert_eq!(reply(&long, post("/things").key(&"k".repeat(1024))).await.status, 200);
    reply(&long, post("/things").key(&"k".repeat(1025))).await.assert_refused(RejectionKind::InvalidKey);

    let uuids = app_with(idempotent().operation("uuid").uuid_keys(true), key);
    reply(&uuids, post("/things").key("abc")).await.assert_refused(RejectionKind::InvalidKey);
    assert_eq!(reply(&uuids, post("/things").key(&UUID.to_uppercase())).await.text(), UUID);
    assert!(reply(&uuids, post("/things").key(UUID)).await.replayed());

    let spaced = app_with(idempotent().operation("spaced").allow_spaces_in_keys(true), key);
    assert_eq!(reply(&spaced, post("/things").key("\"a b\"")).await.text(), "a b");

    let checked = app_with(idempotent().operation("checked").with_key_check(|key| key.starts_with("req_")), key);
    reply(&checked, post("/things").key("abc")).await.assert_refused(RejectionKind::InvalidKey);
    assert_eq!(reply(&checked, post("/things").key("req_1")).await.text(), "req_1");
}

#[tokio::test]
async fn r20_a_key_in_the_trailers_is_ignored() {
    use axum::body::Body;
    use http_body_util::BodyExt as _;

    let database = Database::fresh().await;
    let app = app_with(layer(engine(&database.pool().await)), async || ());
    let mut trailers = axum::http::HeaderMap::new();
    trailers.insert("idempotency-key", "k".parse().unwrap());
    let body = Body::new(Body::from("x").with_trailers(async move { Some(Ok(trailers)) }));
    reply(&app, post("/things").body(body)).await.assert_refused(RejectionKind::MissingKey);
}

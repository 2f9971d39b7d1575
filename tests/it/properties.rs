//! What holds for any input: no panic, nothing lost between what is answered first and replayed, no two requests with
//! one fingerprint.

use std::collections::HashSet;

use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri},
    response::Response,
};
use axum_idempotency::{Disposition, Fingerprint, Scope};
use proptest::prelude::*;
use tower::ServiceExt as _;

use crate::support::{Ask, Database, Reply, app_with, engine, layer, reply};

/// Runs a property on one runtime and one database: making those for each case would be most of the work.
fn check<S: Strategy>(cases: u32, strategy: S, property: impl AsyncFn(&Database, S::Value)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let database = runtime.block_on(Database::fresh());
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    runner
        .run(&strategy, |value| {
            runtime.block_on(property(&database, value));
            Ok(())
        })
        .unwrap();
    let _entered = runtime.enter();
    drop(database);
}

fn field_value() -> impl Strategy<Value = HeaderValue> {
    let octet = prop_oneof![Just(b'\t'), 0x20..=0x7e_u8, 0x80..=0xff_u8];
    prop::collection::vec(octet, 0..40).prop_filter_map("a field value", |bytes| HeaderValue::from_bytes(&bytes).ok())
}

fn key_like() -> impl Strategy<Value = HeaderValue> {
    let text = prop::string::string_regex(r#"[ \t]*"?[ -~]{0,12}\\?"?;?[a-z=1" ]{0,4}"#).unwrap();
    prop_oneof![
        field_value(),
        text.prop_filter_map("a field value", |text| HeaderValue::from_bytes(text.as_bytes()).ok()),
    ]
}

#[test]
fn any_field_value_is_a_key_or_a_400_and_never_a_panic() {
    check(300, prop::collection::vec(key_like(), 1..3), async |_, values| {
        let idempotent = layer(engine(&lazy_pool()));
        // Nobody owns the request: a valid key gets 401, an invalid one 400, both without a database.
        let app = app_with(idempotent, async || ());
        let mut request = Ask::new(Method::POST, "/things").into_request();
        for value in &values {
            request.headers_mut().append("idempotency-key", value.clone());
        }
        let status = reply(&app, Ask::from(request)).await.status;
        assert!(matches!(status.as_u16(), 400 | 401), "{values:?}: {status}");
        assert!(values.len() == 1 || status == 400, "two lines are never a key: {values:?}");
    });
}

fn lazy_pool() -> sqlx::PgPool {
    sqlx::postgres::PgPoolOptions::new().connect_lazy("postgres://nobody@127.0.0.1:1/none").unwrap()
}

type Answer = (StatusCode, Vec<(HeaderName, HeaderValue)>, Vec<u8>);

fn answer() -> impl Strategy<Value = Answer> {
    let status = (200..600_u16).prop_map(|code| StatusCode::from_u16(code).unwrap());
    let name = prop_oneof![
        prop::sample::select(vec!["x-a", "x-b", "link", "location", "vary", "etag", "content-language"]),
        prop::sample::select(vec!["set-cookie", "date", "connection", "te", "x-ratelimit-limit", "cache-control"]),
    ];
    let field = (name.prop_map(HeaderName::from_static), field_value());
    (status, prop::collection::vec(field, 0..8), prop::collection::vec(any::<u8>(), 0..300))
}

/// Fields of the message and of the layer, which a replay makes anew.
const OWN: [&str; 3] = ["content-length", "cache-control", "idempotent-replayed"];

fn kept(reply: &Reply) -> Vec<(String, Vec<u8>)> {
    let connection: Vec<String> = reply
        .headers
        .get_all("connection")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    let dropped = ["set-cookie", "date", "connection", "te", "x-ratelimit-limit"];
    reply
        .headers
        .iter()
        .filter(|(name, _)| !OWN.contains(&name.as_str()) && !dropped.contains(&name.as_str()))
        .filter(|(name, _)| !connection.contains(&name.as_str().to_owned()))
        .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
        .collect()
}

#[test]
fn capture_and_replay_are_the_identity_on_what_is_kept() {
    check(120, answer(), async |database, (status, fields, body)| {
        let pool = database.pool_lazily();
        let idempotent = layer(engine(&pool)).with_disposition(|_| Disposition::Commit);
        let app = app_with(idempotent, move || async move {
            let mut response = Response::new(Body::from(body));
            *response.status_mut() = status;
            for (name, value) in fields {
                response.headers_mut().append(name, value);
            }
            response
        });
        let ask = || Ask::new(Method::POST, "/things").owner("alice").key("k");
        let first = reply(&app, ask()).await;
        let replay = reply(&app, ask()).await;
        assert!(!first.replayed() && replay.replayed());
        assert_eq!((first.status, &first.body), (replay.status, &replay.body));
        assert_eq!(kept(&first), kept(&replay));
        sqlx::query("delete from idempotency.keys").execute(&pool).await.unwrap();
        pool.close().await;
    });
}

#[test]
fn a_request_body_in_any_frames_reaches_the_handler_unchanged() {
    let frames = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..8);
    check(60, frames, async |database, frames| {
        let pool = database.pool_lazily();
        let app = app_with(layer(engine(&pool)), async |body: axum::body::Bytes| body);
        let whole = frames.concat();
        let framed = frames.into_iter().map(Ok::<_, std::io::Error>);
        let ask = Ask::new(Method::POST, "/things").owner("alice").key("k");
        let echoed = reply(&app, ask.body(Body::from_stream(futures_util::stream::iter(framed)))).await;
        assert_eq!(echoed.body, whole);
        let ask = Ask::new(Method::POST, "/things").owner("alice").key("k").body(whole.clone());
        assert!(reply(&app, ask).await.replayed(), "the same bytes in one frame");
        sqlx::query("delete from idempotency.keys").execute(&pool).await.unwrap();
        pool.close().await;
    });
}

proptest! {
    #[test]
    fn distinct_parts_never_share_a_fingerprint(parts in prop::collection::hash_set(
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..4), 0..4), 2..20,
    )) {
        let fingerprints: HashSet<Fingerprint> = parts.iter().map(Fingerprint::of).collect();
        prop_assert_eq!(fingerprints.len(), parts.len());
    }

    #[test]
    fn distinct_owners_never_share_a_scope(owners in prop::collection::hash_set("\\PC{0,300}", 2..10)) {
        let stored: HashSet<String> =
            owners.iter().map(|owner| Scope::new(owner).as_stored().to_owned()).collect();
        prop_assert_eq!(stored.len(), owners.len());
        prop_assert!(stored.iter().all(|scope| scope.len() <= 200 && !scope.contains('\0')));
    }
}

/// What the layer compares, by what it does: the second of two different requests is refused.
#[test]
fn distinct_requests_under_one_key_are_never_taken_for_one() {
    let part = || prop::string::string_regex("[a-c/=]{0,3}").unwrap();
    let request = || (part(), prop::option::of(part()), part(), prop::collection::vec(any::<u8>(), 0..3));
    check(80, (request(), request()), async |database, (one, other)| {
        let pool = database.pool_lazily();
        let service = tower::ServiceBuilder::new()
            .layer(layer(engine(&pool)).operation("same"))
            .service_fn(async |_: Request<Body>| Ok::<_, std::convert::Infallible>(Response::new(Body::from("x"))));
        let ask = |(path, query, kind, body): &(String, Option<String>, String, Vec<u8>)| {
            let query = query.as_ref().map(|query| format!("?{query}")).unwrap_or_default();
            let uri: Uri = format!("/{path}{query}").parse().unwrap();
            let mut headers = HeaderMap::new();
            headers.insert("content-type", HeaderValue::from_str(&format!("a/{kind}")).unwrap());
            let mut request = Request::post(uri).body(Body::from(body.clone())).unwrap();
            *request.headers_mut() = headers;
            request.headers_mut().insert("x-owner", "alice".parse().unwrap());
            request.headers_mut().insert("idempotency-key", "k".parse().unwrap());
            request
        };
        let empty_query = |request: &(String, Option<String>, String, Vec<u8>)| {
            let (path, query, kind, body) = request.clone();
            (path, query.unwrap_or_default(), kind, body)
        };
        service.clone().oneshot(ask(&one)).await.unwrap();
        let second = service.clone().oneshot(ask(&other)).await.unwrap().status();
        let same = empty_query(&one) == empty_query(&other);
        assert_eq!(second, if same { 200 } else { 422 }, "{one:?} {other:?}");
        sqlx::query("delete from idempotency.keys").execute(&pool).await.unwrap();
        pool.close().await;
    });
}

//! What a client reads from the first response and from its replay, byte by byte, whatever the handler has made of its
//! response: over HTTP/1.1 and HTTP/2, on one connection, which goes on to serve others.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Body,
    http::{HeaderName, HeaderValue, Method, StatusCode},
    response::Response,
    routing,
};
use axum_idempotency::Disposition;
use futures_util::stream;
use proptest::{prelude::*, sample::select, test_runner::TestRunner};

use crate::support::{Client, Database, Seen, engine, layer, serve};

/// What a handler responds with.
#[derive(Clone, Debug)]
struct Made {
    status: u16,
    fields: Vec<(HeaderName, HeaderValue)>,
    frames: Vec<Vec<u8>>,
    /// Or the frames as they are, and nobody knows how many come.
    as_one: bool,
}

impl Made {
    fn response(self) -> Response {
        let body = match self.as_one {
            true => Body::from(self.frames.concat()),
            false => Body::from_stream(stream::iter(self.frames.into_iter().map(Ok::<_, std::io::Error>))),
        };
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap();
        for (name, value) in self.fields {
            response.headers_mut().append(name, value);
        }
        response
    }

    /// What the client gets of the body.
    fn content(&self) -> Vec<u8> {
        if matches!(self.status, 204 | 205 | 304) { Vec::new() } else { self.frames.concat() }
    }
}

/// Fields that come again.
const KEPT: [&str; 12] = [
    "x-a",
    "x-b",
    "content-type",
    "content-encoding",
    "content-language",
    "content-security-policy",
    "etag",
    "last-modified",
    "link",
    "location",
    "retry-after",
    "vary",
];

/// Fields that are said not to: of credentials, of the exchange, of caches, and of the message.
const LEFT_OUT: [&str; 30] = [
    "set-cookie",
    "set-cookie2",
    "authorization",
    "proxy-authorization",
    "www-authenticate",
    "authentication-info",
    "dpop-nonce",
    "x-auth-token",
    "x-csrf-token",
    "x-amz-security-token",
    "via",
    "server",
    "server-timing",
    "traceparent",
    "x-request-id",
    "request-id",
    "x-correlation-id",
    "b3",
    "ratelimit",
    "x-ratelimit-limit",
    "signature",
    "alt-svc",
    "cache-control",
    "expires",
    "pragma",
    "cdn-cache-control",
    "surrogate-control",
    "age",
    "date",
    "trailer",
];

/// Those of them that belong to a connection of HTTP/1.1.
const OF_HTTP1: [&str; 6] = ["connection", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade"];

/// What the server makes of a response before it sends it. Of these a replay has a date and a length.
const OF_SERVER: [&str; 5] = ["connection", "content-length", "date", "trailer", "transfer-encoding"];

fn made() -> impl Strategy<Value = Made> {
    let octet = prop_oneof![Just(b'\t'), 0x20..=0x7e_u8, 0x80..=0xff_u8];
    let value = prop::collection::vec(octet, 0..20).prop_map(|bytes| HeaderValue::from_bytes(&bytes).unwrap());
    let named = |names: &'static [&'static str]| select(names).prop_map(HeaderName::from_static);
    let fixed = |name: &'static str, values: &'static [&'static str]| {
        select(values).prop_map(move |value| (HeaderName::from_static(name), HeaderValue::from_static(value)))
    };
    let field = prop_oneof![
        4 => (named(&KEPT), value.clone()),
        3 => (named(&LEFT_OUT), value),
        2 => fixed("content-length", &["0", "1", "5", "14", "1000", "-1", "x", "5, 5", "18446744073709551616", ""]),
        1 => fixed("transfer-encoding", &["chunked", "gzip, chunked", "identity", "x", ""]),
        1 => fixed("connection", &["close", "keep-alive", "x-a", "X-B, close", "Upgrade", "content-type, x-hop", "x-hop"]),
        1 => fixed("upgrade", &["websocket", "h2c"]),
        1 => fixed("te", &["trailers", "gzip"]),
        1 => fixed("keep-alive", &["timeout=5"]),
        1 => fixed("proxy-connection", &["keep-alive", "close"]),
        1 => fixed("idempotent-replayed", &["true", "x"]),
        1 => fixed("x-hop", &["1", "2"]),
    ];
    let status = prop_oneof![select(vec![200_u16, 201, 204, 205, 304]), 200..600_u16];
    let frames = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..5);
    (status, prop::collection::vec(field, 0..10), frames, any::<bool>())
        .prop_map(|(status, fields, frames, as_one)| Made { status, fields, frames, as_one })
}

/// Bodies with more than this are not kept by [`served`].
const LIMIT: usize = 40;

/// A server that responds to each new key with what was put there last.
async fn served(database: &Database, next: Arc<Mutex<Option<Made>>>) -> SocketAddr {
    let idempotent = layer(engine(&database.pool_lazily()))
        .with_disposition(|_| Disposition::Commit)
        .without_tx()
        .max_response_bytes(LIMIT)
        .discard_oversized_responses(true);
    let handler = async move || next.lock().unwrap().take().expect("a handler runs once").response();
    let app = Router::new()
        .route("/things", routing::post(handler).layer(idempotent))
        .route("/other", routing::get(async || "of another request"));
    serve(app).await
}

fn by_name(fields: impl IntoIterator<Item = (String, Vec<u8>)>) -> BTreeMap<String, Vec<Vec<u8>>> {
    let mut all = BTreeMap::<_, Vec<_>>::new();
    for (name, value) in fields {
        all.entry(name).or_default().push(value);
    }
    all
}

/// The names that `Connection` lists.
fn named(made: &Made) -> BTreeSet<String> {
    let lines = made.fields.iter().filter(|(name, _)| name == "connection").map(|(_, value)| value.to_str().unwrap());
    lines.flat_map(|line| line.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect()
}

/// What a handler's fields look like to the client of the first response, and in the replay.
fn expected(made: &Made, over_http2: bool, is_replay: bool) -> BTreeMap<String, Vec<Vec<u8>>> {
    let named = named(made);
    let fields = made.fields.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()));
    by_name(fields.filter(|(name, _)| {
        let name = name.as_str();
        let is_of_hop = OF_HTTP1.contains(&name) || named.contains(name);
        !OF_SERVER.contains(&name)
            && name != "idempotent-replayed"
            && !(is_of_hop && (over_http2 || is_replay))
            && !(is_replay && LEFT_OUT.contains(&name))
    }))
}

/// All that was seen but what each response has of its own.
fn compared(seen: &Seen, own: &[&str]) -> BTreeMap<String, Vec<Vec<u8>>> {
    by_name(seen.fields.iter().filter(|field| !own.contains(&&*field.0)).cloned())
}

async fn check(address: SocketAddr, made: &Made, over_http2: bool, key: &str) {
    let mut client = if over_http2 { Client::http2(address).await } else { Client::http1(address).await };
    let with_key = [("x-owner", "alice"), ("idempotency-key", key)];
    let first = client.ask(Method::POST, "/things", &with_key).await;
    let again = client.ask(Method::POST, "/things", &with_key).await;
    let other = client.ask(Method::GET, "/other", &[]).await;
    assert_eq!((other.status, &*other.body), (200, &b"of another request"[..]), "after {first:?} and {again:?}");

    assert_eq!((first.status, &first.body), (made.status, &made.content()));
    // Hyper keeps to the first of two lines.
    let several = made.fields.iter().filter(|(name, _)| name == "connection").count() > 1;
    let hop = named(made);
    let but_hop = |mut fields: BTreeMap<_, _>| {
        fields.retain(|name, _| !(over_http2 && several && hop.contains(name)));
        fields
    };
    assert_eq!(but_hop(compared(&first, &OF_SERVER)), expected(made, over_http2, false), "{first:?}");

    if made.frames.concat().len() > LIMIT {
        assert_eq!((again.status, again.values("content-type")), (409, vec![&b"application/problem+json"[..]]));
        return;
    }
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    assert_eq!(again.values("idempotent-replayed"), [b"true"]);
    assert_eq!(again.values("cache-control"), [b"no-store"]);
    assert_eq!(again.values("date").len(), 1);
    for framing in ["content-length", "transfer-encoding"] {
        assert_eq!(again.values(framing), first.values(framing), "{first:?} {again:?}");
    }
    let own = ["date", "content-length", "transfer-encoding", "idempotent-replayed", "cache-control"];
    assert_eq!(compared(&again, &own), expected(made, over_http2, true), "{again:?}");

    // The same over the other protocol.
    let mut client = if over_http2 { Client::http1(address).await } else { Client::http2(address).await };
    let elsewhere = client.ask(Method::POST, "/things", &with_key).await;
    assert_eq!((elsewhere.status, &elsewhere.body), (again.status, &again.body));
    assert_eq!(compared(&elsewhere, &["date"]), compared(&again, &["date"]));
}

#[test]
fn f87_the_first_response_and_its_replay_are_the_same_on_the_wire_and_leave_the_connection_in_step() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let database = runtime.block_on(Database::fresh());
    let next = Arc::new(Mutex::new(None));
    let address = runtime.block_on(served(&database, next.clone()));
    let keys = std::cell::Cell::new(0);
    let config = ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() };
    let outcome = TestRunner::new(config).run(&(made(), any::<bool>()), |(made, over_http2)| {
        keys.set(keys.get() + 1);
        *next.lock().unwrap() = Some(made.clone());
        runtime.block_on(check(address, &made, over_http2, &keys.get().to_string()));
        Ok(())
    });
    let _entered = runtime.enter();
    drop(database);
    outcome.unwrap();
}

/// There is no second chance for such a response: its effects are committed, and its key is refused from then on.
#[tokio::test]
async fn f87_a_response_that_is_too_large_to_be_kept_reaches_its_client_whole_whatever_its_fields_say() {
    let database = Database::fresh().await;
    let next = Arc::new(Mutex::new(None));
    let address = served(&database, next.clone()).await;
    let field = |name, value| (HeaderName::from_static(name), HeaderValue::from_static(value));
    let mut key = 0;
    for fields in [vec![], vec![field("content-length", "5")], vec![field("transfer-encoding", "gzip, chunked")]] {
        for (status, as_one, over_http2) in [
            (200, true, false),
            (200, false, false),
            (200, true, true),
            (200, false, true),
            (204, true, false),
            (205, false, true),
        ] {
            let frames = vec![vec![b'x'; LIMIT], vec![b'y'; LIMIT]];
            let made = Made { status, fields: fields.clone(), frames, as_one };
            *next.lock().unwrap() = Some(made.clone());
            key += 1;
            check(address, &made, over_http2, &key.to_string()).await;
        }
    }
    // What is known of its length is told.
    *next.lock().unwrap() =
        Some(Made { status: 200, fields: Vec::new(), frames: vec![vec![0; 2 * LIMIT]], as_one: true });
    let with_key = [("x-owner", "alice"), ("idempotency-key", "length")];
    let seen = Client::http1(address).await.ask(Method::POST, "/things", &with_key).await;
    assert_eq!(seen.values("content-length"), [b"80"]);
}

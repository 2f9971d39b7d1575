//! R42 to R58: what is kept of an answer, what a replay looks like, and what refusals say.

use axum::{
    Router,
    body::Body,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::post as route,
};
use axum_idempotency::{BodyCodec, Disposition, IdempotencyLayer, IdempotentRequest, RejectionKind, Retention, Tx};
use futures_util::stream;
use serde_json::json;

use crate::support::{
    Database, Gate, Reply, Runs, answering, app, app_with, create, effect, engine, layer, post, reply, serve,
};

fn name(name: &'static str) -> HeaderName {
    HeaderName::from_static(name)
}

async fn plain(database: &Database) -> IdempotencyLayer {
    layer(engine(&database.pool().await))
}

#[tokio::test]
async fn r42_f30_an_oversized_answer_may_be_given_whole_and_not_retained() {
    let database = Database::fresh().await;
    let idempotent = plain(&database).await.max_response_bytes(1_000).discard_oversized_responses(true);
    let app = app_with(idempotent.not_retained_header(name("x-not-retained")), |mut tx: Tx| async move {
        effect(&mut tx).await;
        let frames = (0..30).map(|n| Ok::<_, std::io::Error>(format!("{n:0100}")));
        drop(tx);
        (StatusCode::CREATED, Body::from_stream(stream::iter(frames)))
    });
    let first = reply(&app, post("/things").key("k")).await;
    assert_eq!((first.status, first.body.len()), (StatusCode::CREATED, 3_000));
    assert!(first.text().ends_with("29"));
    assert_eq!(first.headers["x-not-retained"], "true");
    assert_eq!(database.effects().await, 1);

    for _ in 0..2 {
        let retry = reply(&app, post("/things").key("k")).await;
        retry.assert_refused(RejectionKind::ResponseNotRetained);
        assert_eq!(retry.status, StatusCode::CONFLICT);
        assert!(retry.text().contains("GMT"), "it names the time of the first: {}", retry.text());
    }
    reply(&app, post("/things").key("k").body("other")).await.assert_refused(RejectionKind::KeyReused);
    assert_eq!(database.effects().await, 1);
}

#[tokio::test]
async fn r42_an_oversized_answer_that_uses_the_connection_to_its_end_is_refused() {
    let database = Database::fresh().await;
    let idempotent = plain(&database).await.max_response_bytes(10).discard_oversized_responses(true);
    let app = app_with(idempotent, |mut tx: Tx| async move {
        effect(&mut tx).await;
        let frames = stream::iter(0..5).map_with(tx);
        Body::from_stream(frames)
    });
    reply(&app, post("/things").key("k")).await.assert_refused(RejectionKind::ConnectionHeld);
    assert_eq!(database.effects().await, 0);
}

/// A stream that holds on to something until it ends.
trait MapWith: Sized + futures_util::Stream<Item = i32> {
    fn map_with<T>(self, held: T) -> impl futures_util::Stream<Item = Result<String, std::io::Error>> {
        use futures_util::StreamExt as _;
        self.map(move |_| {
            let _held = &held;
            Ok("x".repeat(10))
        })
    }
}

impl<S: futures_util::Stream<Item = i32>> MapWith for S {}

#[tokio::test]
async fn r43_a_sensitive_route_keeps_no_answer() {
    let database = Database::fresh().await;
    let app = app_with(plain(&database).await.discard_responses(true), |mut tx: Tx| async move {
        effect(&mut tx).await;
        (StatusCode::CREATED, [("x-secret", "token-1")], "token-1")
    });
    assert_eq!(reply(&app, post("/things").key("k")).await.text(), "token-1");
    let stored: String = sqlx::query_scalar("select keys::text from idempotency.keys")
        .fetch_one(&mut database.connection().await)
        .await
        .unwrap();
    assert!(!stored.contains("token-1"), "{stored}");
    reply(&app, post("/things").key("k")).await.assert_refused(RejectionKind::ResponseNotRetained);
    assert_eq!(database.effects().await, 1);

    let declining = app_with(plain(&database).await.discard_responses(true).operation("declining"), answering(402));
    assert_eq!(reply(&declining, post("/things").key("k")).await.status, StatusCode::PAYMENT_REQUIRED);
    reply(&declining, post("/things").key("k")).await.assert_refused(RejectionKind::ResponseNotRetained);
}

#[tokio::test]
async fn a_waiting_duplicate_of_an_answer_that_is_not_retained_is_told_so() {
    let database = Database::fresh().await;
    let gate = Gate::closed();
    let inside = gate.clone();
    let app = app_with(plain(&database).await.discard_responses(true), move |_tx: Tx| async move {
        inside.pass().await;
        "secret"
    });
    let ask = || {
        let app = app.clone();
        tokio::spawn(async move { reply(&app, post("/things").key("k")).await })
    };
    let first = ask();
    gate.entered().await;
    let duplicate = ask();
    crate::support::settle().await;
    gate.open();
    assert_eq!(first.await.unwrap().text(), "secret");
    duplicate.await.unwrap().assert_refused(RejectionKind::ResponseNotRetained);
}

#[tokio::test]
async fn r44_r45_r46_r47_r50_r51_r52_r53_r54_fields_are_kept_dropped_and_made_anew_over_http_1_and_2() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, || async {
        let mut response: Response = (StatusCode::CREATED, vec![0, 255, 1]).into_response();
        for (name, value) in [
            ("etag", "\"v1\""),
            ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT"),
            ("location", "/things/1"),
            ("content-language", "de"),
            ("vary", "accept"),
            ("repr-digest", "sha-256=:x:"),
            ("retry-after", "7"),
            ("x-own", "1"),
            ("x-own", "2"),
            ("cache-control", "max-age=60"),
            ("expires", "Sun, 06 Nov 1994 08:49:37 GMT"),
            ("pragma", "no-cache"),
            ("set-cookie", "a=1"),
            ("age", "5"),
            ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
            ("server", "own"),
            ("via", "1.1 x"),
            ("x-request-id", "1"),
            ("traceparent", "00"),
            ("ratelimit-remaining", "3"),
            ("x-ratelimit-limit", "3"),
            ("strict-transport-security", "max-age=1"),
            ("signature", "x"),
            ("www-authenticate", "Basic"),
        ] {
            response.headers_mut().append(name, HeaderValue::from_static(value));
        }
        response
    });
    let address = serve(app).await;
    let clients = [
        reqwest::Client::builder().http1_only().build().unwrap(),
        reqwest::Client::builder().http2_prior_knowledge().build().unwrap(),
    ];
    let ask = |client: &reqwest::Client| {
        client
            .post(format!("http://{address}/things"))
            .header("x-owner", "alice")
            .header("idempotency-key", "k")
            .header("if-match", "\"v0\"")
            .send()
    };
    let first = ask(&clients[0]).await.unwrap();
    assert_eq!(first.headers()["set-cookie"], "a=1", "the first answer is the handler's own");
    for client in clients {
        let replay = ask(&client).await.unwrap();
        assert_eq!(replay.status(), StatusCode::CREATED);
        let headers = replay.headers();
        for kept in ["etag", "last-modified", "location", "content-language", "vary", "repr-digest", "retry-after"] {
            assert!(headers.contains_key(kept), "{kept}");
        }
        assert_eq!(headers.get_all("x-own").iter().collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(headers["cache-control"], "no-store");
        assert_eq!(headers["content-length"], "3");
        assert_ne!(headers["date"], "Sun, 06 Nov 1994 08:49:37 GMT", "a replay has its own date");
        for dropped in [
            "expires",
            "pragma",
            "set-cookie",
            "age",
            "server",
            "via",
            "x-request-id",
            "traceparent",
            "ratelimit-remaining",
            "x-ratelimit-limit",
            "strict-transport-security",
            "signature",
            "www-authenticate",
            "transfer-encoding",
            "connection",
        ] {
            assert!(!headers.contains_key(dropped), "{dropped}");
        }
        assert_eq!(replay.bytes().await.unwrap(), &[0, 255, 1][..]);
    }
}

#[tokio::test]
async fn r48_204_205_and_304_are_the_same_first_and_replayed_over_http_1_and_2() {
    for status in [204, 205, 304] {
        let database = Database::fresh().await;
        let app = app_with(plain(&database).await.with_disposition(|_| Disposition::Commit), move || async move {
            (StatusCode::from_u16(status).unwrap(), [("x-own", "1")], "no content belongs here")
        });
        let address = serve(app).await;
        for client in [
            reqwest::Client::builder().http1_only().build().unwrap(),
            reqwest::Client::builder().http2_prior_knowledge().build().unwrap(),
        ] {
            for _ in 0..2 {
                let ask = client.post(format!("http://{address}/things"));
                let answer = ask.header("x-owner", "alice").header("idempotency-key", "k").send().await.unwrap();
                assert_eq!(answer.status(), status);
                assert_eq!(answer.headers()["x-own"], "1");
                assert!(!answer.headers().contains_key("transfer-encoding"));
                let length = answer.headers().get("content-length").cloned();
                if status == 205 {
                    assert!(length.is_none_or(|length| length == "0"));
                } else {
                    assert_eq!(length, None, "{status}");
                }
                assert_eq!(answer.text().await.unwrap(), "");
            }
        }
    }
}

#[tokio::test]
async fn r46_r50_fields_that_are_left_out_as_a_rule_can_be_kept_and_lines_stay_apart() {
    let database = Database::fresh().await;
    let idempotent = plain(&database)
        .await
        .always_store_headers([header::SET_COOKIE, header::CACHE_CONTROL])
        .never_store_headers([header::ETAG]);
    let app = app_with(idempotent, || async {
        let mut response = Response::new(Body::from("x"));
        for (name, value) in
            [("set-cookie", "a=1; Path=/, x"), ("set-cookie", "b=2"), ("cache-control", "private"), ("etag", "\"v\"")]
        {
            response.headers_mut().append(name, HeaderValue::from_static(value));
        }
        response
    });
    reply(&app, post("/things").key("k")).await;
    let replay = reply(&app, post("/things").key("k")).await;
    assert_eq!(replay.headers.get_all("set-cookie").iter().collect::<Vec<_>>(), ["a=1; Path=/, x", "b=2"]);
    assert_eq!(replay.headers.get_all("cache-control").iter().collect::<Vec<_>>(), ["private"]);
    assert!(!replay.headers.contains_key("etag"));
}

#[tokio::test]
async fn r26_r25_r28_the_settings_for_fingerprints_apply_over_http() {
    let database = Database::fresh().await;
    let ask = |body: &'static str| post("/things").key("k").header("content-type", "application/json").body(body);
    let json = app_with(plain(&database).await.operation("json").canonical_json(true), create);
    reply(&json, ask(r#"{"a":1,"b":2}"#)).await;
    assert!(reply(&json, ask(r#"{ "b": 2.0, "a": 1 }"#)).await.replayed());
    reply(&json, ask(r#"{"a":1,"b":3}"#)).await.assert_refused(RejectionKind::KeyReused);

    let versioned =
        app_with(plain(&database).await.operation("versioned").fingerprint_headers([name("x-version")]), create);
    reply(&versioned, ask("{}").header("x-version", "1")).await;
    assert!(reply(&versioned, ask("{}").header("x-version", "1")).await.replayed());
    reply(&versioned, ask("{}").header("x-version", "2")).await.assert_refused(RejectionKind::KeyReused);

    let secret = app_with(plain(&database).await.operation("secret").fingerprint_secret("pepper"), create);
    reply(&secret, ask("{}")).await;
    assert!(reply(&secret, ask("{}")).await.replayed());
    reply(&secret, ask("[]")).await.assert_refused(RejectionKind::KeyReused);
}

#[tokio::test]
async fn f66_the_expiry_header_says_the_same_on_first_and_replayed_answers_and_what_the_row_says() {
    let database = Database::fresh().await;
    let expires = name("idempotency-expires");
    let idempotent =
        |retention| layer(engine(&database.pool_lazily()).retention(retention)).expiry_header(expires.clone());
    for status in [201, 402] {
        let day = app_with(idempotent(Retention::DAY).operation(format!("day-{status}")), answering(status));
        let first = reply(&day, post("/things").key("k")).await;
        let replay = reply(&day, post("/things").key("k")).await;
        assert!(replay.replayed());
        assert_eq!(first.headers[&expires], replay.headers[&expires]);
        let stored: String = sqlx::query_scalar(
            "select to_char(date_trunc('second', expires_at at time zone 'UTC'), 'Dy, DD Mon YYYY HH24:MI:SS \"GMT\"')
               from idempotency.keys where operation = $1",
        )
        .bind(format!("day-{status}"))
        .fetch_one(&mut database.connection().await)
        .await
        .unwrap();
        assert_eq!(first.headers[&expires], stored);
    }
    let forever = app_with(idempotent(Retention::forever()).operation("forever"), create);
    assert!(!reply(&forever, post("/things").key("k")).await.headers.contains_key(&expires));
    let released = app_with(idempotent(Retention::DAY).operation("released"), answering(404));
    assert!(!reply(&released, post("/things").key("k")).await.headers.contains_key(&expires));
}

#[tokio::test]
async fn f56_a_reference_links_a_replay_and_refusals_to_the_first_request() {
    let database = Database::fresh().await;
    let reference = name("idempotency-reference");
    let idempotency = engine(&database.pool().await).concurrency(axum_idempotency::Concurrency::NoWait);
    let gate = Gate::closed();
    let inside = gate.clone();
    let app = app_with(layer(idempotency).reference_header(reference.clone()), move |_tx: Tx| async move {
        inside.pass().await;
        "done"
    });
    let first = tokio::spawn({
        let app = app.clone();
        async move { reply(&app, post("/things").key("some-key")).await }
    });
    gate.entered().await;
    let in_flight = reply(&app, post("/things").key("some-key")).await;
    in_flight.assert_refused(RejectionKind::InFlight);
    gate.open();
    let first = first.await.unwrap();
    let replay = reply(&app, post("/things").key("some-key")).await;
    let reused = reply(&app, post("/things").key("some-key").body("other")).await;
    let given = first.headers[&reference].to_str().unwrap().to_owned();
    assert_eq!(given.len(), 24);
    assert!(!given.contains("some-key"));
    for (reply, in_document) in [(&replay, false), (&in_flight, true), (&reused, true)] {
        assert_eq!(reply.headers[&reference], given);
        if in_document {
            assert_eq!(reply.json()["reference"], given);
        }
    }
    gate.open();
    let other = reply(&app, post("/things").key("some-key").owner("bob")).await;
    assert_ne!(other.headers[&reference], given, "another owner's is another");
    let missing = reply(&app, post("/things")).await;
    assert!(!missing.headers.contains_key(&reference));
}

#[tokio::test]
async fn a_header_says_when_an_answer_will_not_be_replayed() {
    let database = Database::fresh().await;
    for (status, kept) in [(201, true), (402, true), (404, false), (500, false)] {
        let idempotent = plain(&database).await.operation(status.to_string()).not_retained_header(name("x-gone"));
        let app = app_with(idempotent, answering(status));
        let first = reply(&app, post("/things").key("k")).await;
        assert_eq!(first.headers.contains_key("x-gone"), !kept, "{status}");
    }
}

#[tokio::test]
async fn r21_the_key_is_repeated_only_if_asked_for_and_never_in_a_refusal() {
    let database = Database::fresh().await;
    let silent = app_with(plain(&database).await, create);
    assert!(!reply(&silent, post("/things").key("k1")).await.headers.contains_key("idempotency-key"));
    let echoing = app_with(plain(&database).await.echo_key(true), create);
    assert_eq!(reply(&echoing, post("/things").key("\"k2\"")).await.headers["idempotency-key"], "k2");
    assert_eq!(reply(&echoing, post("/things").key("k2")).await.headers["idempotency-key"], "k2");
    let refused = reply(&echoing, post("/things").key("k2").body("other")).await;
    assert!(!refused.headers.contains_key("idempotency-key") && !refused.text().contains("k2"));
}

#[tokio::test]
async fn r44_the_marker_can_have_another_name() {
    let database = Database::fresh().await;
    let app = app_with(plain(&database).await.replay_marker(name("x-replay")), create);
    assert!(!reply(&app, post("/things").key("k")).await.headers.contains_key("x-replay"));
    let replay = reply(&app, post("/things").key("k")).await;
    assert_eq!(replay.headers["x-replay"], "true");
    assert!(!replay.headers.contains_key("idempotent-replayed"));
}

#[tokio::test]
async fn f63_a_guard_refuses_a_replay_to_whom_the_rights_were_taken_away() {
    let database = Database::fresh().await;
    let idempotent = plain(&database).await.with_replay_guard(|parts, stored| {
        assert_eq!(stored.status(), StatusCode::CREATED);
        parts.headers.get("x-role").is_some_and(|role| role == "admin")
    });
    let app = app_with(idempotent, create);
    assert_eq!(reply(&app, post("/things").key("k").header("x-role", "none")).await.status, 201, "no replay yet");
    assert!(reply(&app, post("/things").key("k").header("x-role", "admin")).await.replayed());
    let refused = reply(&app, post("/things").key("k").header("x-role", "none")).await;
    refused.assert_refused(RejectionKind::ReplayRefused);
    assert_eq!(database.effects().await, 1);
}

/// Turns bodies round, and says whose they are.
struct Backwards;

impl BodyCodec for Backwards {
    fn encode(&self, request: &IdempotentRequest, body: &[u8]) -> Result<Vec<u8>, axum::BoxError> {
        if body == b"cannot be encoded" {
            return Err("no".into());
        }
        let mut stored = request.key().as_str().as_bytes().to_vec();
        stored.push(b':');
        stored.extend(body.iter().rev());
        Ok(stored)
    }

    fn decode(&self, request: &IdempotentRequest, stored: &[u8]) -> Result<Vec<u8>, axum::BoxError> {
        let prefix = format!("{}:", request.key().as_str());
        let body = stored.strip_prefix(prefix.as_bytes()).ok_or("another row's body")?;
        Ok(body.iter().rev().copied().collect())
    }
}

#[tokio::test]
async fn a_body_codec_decides_how_bodies_lie_in_the_database() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    let gate = Gate::closed();
    let inside = gate.clone();
    let app = app_with(layer(idempotency).with_body_codec(Backwards), move |_tx: Tx, body: String| async move {
        inside.pass().await;
        body
    });
    let ask = |key: &'static str, body: &'static str| {
        let app = app.clone();
        tokio::spawn(async move { reply(&app, post("/things").key(key).body(body)).await })
    };
    let first = ask("k", "hello");
    gate.entered().await;
    let duplicate = ask("k", "hello");
    crate::support::settle().await;
    gate.open();
    assert_eq!(first.await.unwrap().text(), "hello");
    assert_eq!(duplicate.await.unwrap().text(), "hello", "out of memory");
    assert_eq!(ask("k", "hello").await.unwrap().text(), "hello", "out of the database");
    let mut connection = database.connection().await;
    let stored: Vec<u8> =
        sqlx::query_scalar("select body from idempotency.keys").fetch_one(&mut connection).await.unwrap();
    assert_eq!(stored, b"k:olleh");

    sqlx::query("update idempotency.keys set body = 'other:x'").execute(&mut connection).await.unwrap();
    ask("k", "hello").await.unwrap().assert_refused(RejectionKind::ResponseUnreadable);

    gate.open();
    ask("l", "cannot be encoded").await.unwrap().assert_refused(RejectionKind::Internal);
    assert_eq!(database.rows().await.len(), 1, "what cannot be stored is rolled back");
}

#[tokio::test]
async fn r56_r57_refusals_are_valid_problem_documents_whatever_the_client_accepts() {
    let database = Database::fresh().await;
    let idempotent = plain(&database)
        .await
        .problem_type_base("https://api.example/problems/")
        .documentation_url(axum::http::Uri::from_static("https://api.example/idempotency"));
    let app = app_with(idempotent, create);
    for accept in ["text/html", "application/json", "image/png"] {
        let refused: Reply = reply(&app, post("/things").header("accept", accept)).await;
        refused.assert_refused(RejectionKind::MissingKey);
        let problem = refused.json();
        assert_eq!(problem["type"], "https://api.example/problems/missing-key");
        assert_eq!(problem["key_reusable"], true);
        assert!(problem["title"].is_string() && problem["detail"].is_string());
        assert_eq!(
            refused.headers["link"],
            "<https://api.example/idempotency>; rel=\"describedby\"; type=\"text/html\""
        );
        assert_eq!(refused.headers["content-language"], "en");
    }
    let reused = reply(&app, post("/things").key("k")).await;
    assert_eq!(reused.status, StatusCode::CREATED);
    let reused = reply(&app, post("/things").key("k").body("other")).await;
    assert_eq!((&reused.json()["retryable"], &reused.json()["key_reusable"]), (&json!(false), &json!(false)));
}

#[tokio::test]
async fn r29_a_renderer_may_choose_another_status_but_never_a_success_and_loses_no_field() {
    let database = Database::fresh().await;
    for (chosen, given) in [(409, 409), (400, 400), (200, 422), (302, 422)] {
        let idempotent = plain(&database).await.with_rejection_response(move |rejection, _| {
            (StatusCode::from_u16(chosen).unwrap(), rejection.detail().to_owned()).into_response()
        });
        let app = app_with(idempotent, create);
        reply(&app, post("/things").key("k")).await;
        let reused = reply(&app, post("/things").key("k").body("other")).await;
        assert_eq!(reused.status, given);
        assert_eq!(reused.kind(), Some(RejectionKind::KeyReused));
        assert_eq!(reused.headers["cache-control"], "no-store");
    }
    let pool = database.pool().await;
    pool.close().await;
    let own = layer(engine(&pool)).with_rejection_response(|_, _| StatusCode::SERVICE_UNAVAILABLE.into_response());
    let away = reply(&app_with(own, create), post("/things").key("k")).await;
    assert_eq!((away.status.as_u16(), &away.headers["retry-after"]), (503, &HeaderValue::from_static("1")));
}

/// The setting counts for a renderer that asks the refusal, and what was sent counts for whoever logs it outside.
#[tokio::test]
async fn f94_the_status_of_a_refusal_is_the_same_everywhere() {
    let database = Database::fresh().await;
    let idempotent = plain(&database).await.rejection_status(RejectionKind::KeyReused, StatusCode::BAD_REQUEST);
    let asking = idempotent.clone().with_rejection_response(|rejection, _| rejection.status().into_response());
    let choosing = idempotent.clone().with_rejection_response(|_, _| StatusCode::CONFLICT.into_response());
    for (layer, status) in [(idempotent, 400), (asking, 400), (choosing, 409)] {
        let app = app_with(layer, create);
        reply(&app, post("/things").key("k")).await;
        let reused = reply(&app, post("/things").key("k").body("other")).await;
        let told = reused.rejection.as_ref().unwrap().status();
        assert_eq!((reused.status.as_u16(), told.as_u16()), (status, status));
    }
}

#[tokio::test]
async fn r29_the_status_of_a_refusal_is_a_setting_and_stands_in_the_document() {
    let database = Database::fresh().await;
    let idempotent = plain(&database)
        .await
        .rejection_status(RejectionKind::KeyReused, StatusCode::CONFLICT)
        .rejection_status(RejectionKind::MissingKey, StatusCode::OK);
    let app = app_with(idempotent, create);
    reply(&app, post("/things").key("k")).await;
    let reused = reply(&app, post("/things").key("k").body("other")).await;
    assert_eq!((reused.status.as_u16(), &reused.json()["status"]), (409, &json!(409)));
    assert_eq!(reply(&app, post("/things")).await.status, 400, "no refusal is a success");
}

#[tokio::test]
async fn r5_a_401_carries_a_challenge() {
    let database = Database::fresh().await;
    let plainly = app_with(plain(&database).await, create);
    let refused = reply(&plainly, post("/things").key("k").nobody()).await;
    assert_eq!(refused.headers["www-authenticate"], "Bearer");
    let own = plain(&database).await.www_authenticate(HeaderValue::from_static("Basic realm=\"x\""));
    let refused = reply(&app_with(own, create), post("/things").key("k").nobody()).await;
    assert_eq!(refused.headers["www-authenticate"], "Basic realm=\"x\"");
}

#[tokio::test]
async fn r44_a_handler_cannot_bring_the_marker_or_the_layers_other_fields() {
    let database = Database::fresh().await;
    let idempotent = plain(&database).await.expiry_header(name("x-expires")).not_retained_header(name("x-gone"));
    // As if it passed on what another service has answered.
    let app = app_with(idempotent, async || {
        ([("idempotent-replayed", "true"), ("x-expires", "never"), ("x-gone", "true")], "x")
    });
    let first = reply(&app, post("/things").key("k")).await;
    assert!(!first.replayed());
    assert!(first.headers["x-expires"] != "never" && !first.headers.contains_key("x-gone"));
    assert!(reply(&app, post("/things").key("k")).await.replayed());
}

#[tokio::test]
async fn r41_an_extractors_refusal_is_answered_like_the_layers_own_and_never_stored() {
    let database = Database::fresh().await;
    let idempotent =
        plain(&database).await.with_disposition(|_| Disposition::Commit).problem_type_base("https://api.example/");
    for idempotent in [idempotent.clone(), idempotent.optional()] {
        let app = app_with(idempotent, async |_one: Tx, _two: Tx| StatusCode::CREATED);
        for ask in [post("/things").key("k"), post("/things")] {
            let refused = reply(&app, ask).await;
            if refused.kind() != Some(RejectionKind::MissingKey) {
                refused.assert_refused(RejectionKind::Misconfigured);
            }
            assert!(refused.json()["type"].as_str().unwrap().starts_with("https://api.example/"));
        }
    }
    assert_eq!(database.rows().await, []);
}

#[tokio::test]
async fn the_outcome_is_in_the_extensions_for_metrics_outside() {
    use axum_idempotency::{Outcome, Rejection};
    use tower::ServiceExt as _;

    let database = Database::fresh().await;
    let app = app_with(plain(&database).await, answering(402));
    let ask = async |body: &'static str| {
        let request = post("/things").key("k").body(body).into_request();
        let response = app.clone().oneshot(request).await.unwrap();
        (response.extensions().get::<Outcome>().copied(), response.extensions().get::<Rejection>().is_some())
    };
    assert_eq!(ask("a").await, (Some(Outcome::Executed(Disposition::Reject)), false));
    assert_eq!(ask("a").await, (Some(Outcome::Replayed), false));
    assert_eq!(ask("b").await, (None, true));
}

#[tokio::test]
async fn f39_retention_and_concurrency_can_be_a_routes_own() {
    let database = Database::fresh().await;
    let idempotent = plain(&database).await;
    let forever = app_with(idempotent.clone().operation("kept").retention(Retention::forever()), create);
    reply(&forever, post("/things").key("k")).await;
    reply(&app_with(idempotent.clone().operation("usual"), create), post("/things").key("k")).await;
    let rows = database.rows().await;
    assert_eq!(rows.iter().map(|row| row.expires_at.is_some()).collect::<Vec<_>>(), [false, true]);

    let gate = Gate::closed();
    let inside = gate.clone();
    let rejecting = idempotent.operation("slow").concurrency(axum_idempotency::Concurrency::NoWait);
    let app = app_with(rejecting, move |_tx: Tx| async move { inside.pass().await });
    let first = tokio::spawn({
        let app = app.clone();
        async move { reply(&app, post("/things").key("k")).await }
    });
    gate.entered().await;
    reply(&app, post("/things").key("k")).await.assert_refused(RejectionKind::InFlight);
    gate.open();
    assert_eq!(first.await.unwrap().status, StatusCode::OK);
}

/// Wherever the handler hangs: in itself, in its answer's body, or in a statement that the database goes on with.
#[tokio::test]
async fn g8_a_time_limit_ends_what_hangs_and_rolls_it_back() {
    let database = Database::fresh().await;
    let limited = |operation: &str| {
        let limit = std::time::Duration::from_millis(50);
        layer(engine(&database.pool_lazily())).operation(operation).handler_timeout(limit)
    };
    let handler = app_with(limited("handler"), |mut tx: Tx| async move {
        effect(&mut tx).await;
        std::future::pending::<()>().await;
    });
    let body = app_with(limited("body"), |mut tx: Tx| async move {
        effect(&mut tx).await;
        Body::from_stream(stream::pending::<Result<String, std::io::Error>>())
    });
    let statement = app_with(limited("statement"), |mut tx: Tx| async move {
        effect(&mut tx).await;
        sqlx::query("select pg_sleep(60)").execute(&mut *tx).await.unwrap();
    });
    for app in [handler, body, statement] {
        let began = std::time::Instant::now();
        let refused = reply(&app, post("/things").key("k")).await;
        refused.assert_refused(RejectionKind::HandlerTimeout);
        // Not the sixty seconds that the statement takes.
        assert!(began.elapsed() < std::time::Duration::from_secs(20));
    }
    assert_eq!((database.effects().await, database.rows().await.len()), (0, 0));
}

#[tokio::test]
async fn r21_neither_keys_nor_bodies_are_logged_whatever_happens() {
    let (log, _listening) = crate::support::log();
    let database = Database::fresh().await;
    let idempotent = plain(&database).await.max_response_bytes(50);
    let app = app_with(idempotent, |mut tx: Tx, body: String| async move {
        match body.as_str() {
            "aborted-secret" => drop(sqlx::query("select 1 / 0").execute(&mut *tx).await),
            "ended-secret" => drop(sqlx::query("commit").execute(&mut *tx).await),
            "large-secret" => return "answer-secret ".repeat(100),
            _ => {}
        }
        "answer-secret".to_owned()
    });
    for (key, body) in [
        ("key-secret-1", "first-secret"),
        ("key-secret-1", "first-secret"),
        ("key-secret-1", "other-secret"),
        ("key-secret-2", "aborted-secret"),
        ("key-secret-3", "ended-secret"),
        ("key-secret-4", "large-secret"),
        ("key secret", "invalid-secret"),
    ] {
        reply(&app, post("/things").key(key).body(body)).await;
    }
    let logged = log.text();
    for expected in
        ["replayed", "key-reused", "transaction-aborted", "transaction-ended", "response-too-large", "POST /things"]
    {
        assert!(logged.contains(expected), "{expected} is logged: {logged}");
    }
    assert!(!logged.contains("secret"), "{logged}");
}

#[tokio::test]
async fn r6_r49_grpc_and_interim_answers_are_refused_loudly() {
    let database = Database::fresh().await;
    let grpc = app(&database.pool().await, |mut tx: Tx| async move {
        effect(&mut tx).await;
        ([("content-type", "application/grpc+proto")], "x")
    });
    reply(&grpc, post("/things").key("k")).await.assert_refused(RejectionKind::ResponseUnsupported);
    let interim = app(&database.pool().await, async |_tx: Tx| StatusCode::PROCESSING);
    reply(&interim, post("/things").key("k")).await.assert_refused(RejectionKind::ResponseUnsupported);
    assert_eq!((database.effects().await, database.rows().await.len()), (0, 0));
}

#[tokio::test]
async fn r36_a_derived_key_is_the_same_on_every_retry_and_another_for_another_owner() {
    let database = Database::fresh().await;
    let runs = Runs::default();
    let app = Router::new().route(
        "/things",
        route(move |request: IdempotentRequest| async move {
            // The first try fails after it has called another service.
            let status = if runs.one() == 1 { StatusCode::BAD_GATEWAY } else { StatusCode::CREATED };
            (status, request.derive_key("payment"))
        })
        .layer(plain(&database).await),
    );
    let first = reply(&app, post("/things").key("k")).await;
    let retry = reply(&app, post("/things").key("k")).await;
    assert_eq!((first.status, retry.status), (StatusCode::BAD_GATEWAY, StatusCode::CREATED));
    assert_eq!(first.body, retry.body);
    assert_ne!(reply(&app, post("/things").key("k").owner("bob")).await.body, first.body);
}

#[tokio::test]
async fn f86_f88_credentials_and_what_is_of_the_first_exchange_are_neither_stored_nor_replayed() {
    const GONE: [&str; 10] = [
        "authorization",
        "proxy-authorization",
        "set-cookie2",
        "x-auth-token",
        "x-csrf-token",
        "dpop-nonce",
        "x-correlation-id",
        "b3",
        "x-ms-request-id",
        "surrogate-control",
    ];
    let database = Database::fresh().await;
    let app = app_with(plain(&database).await, async |mut tx: Tx| {
        effect(&mut tx).await;
        let mut response = "done".into_response();
        for name in GONE.into_iter().chain(["x-order-id", "location"]) {
            response.headers_mut().insert(name, HeaderValue::from_static("value"));
        }
        response
    });
    let first = reply(&app, post("/things").key("k")).await;
    let replay = reply(&app, post("/things").key("k")).await;
    assert!(replay.replayed());
    for name in GONE {
        assert!(first.headers.contains_key(name) && !replay.headers.contains_key(name), "{name}");
    }
    let stored: Vec<String> = sqlx::query_scalar("select unnest(header_names) from idempotency.keys order by 1")
        .fetch_all(&mut database.connection().await)
        .await
        .unwrap();
    assert_eq!(stored, ["content-type", "location", "x-order-id"]);
}

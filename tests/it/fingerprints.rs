//! What tells a retry from another request, over HTTP: each setting, and the bodies that clients write anew for each try.

use axum::{extract::Multipart, http::StatusCode, routing::post as route};
use axum_idempotency::{Fingerprint, IdempotencyLayer, RejectionKind, Tx};
use reqwest::multipart::{Form, Part};

use crate::support::{Ask, Database, app_with, create, effect, engine, layer, post, reply, serve};

async fn plain(database: &Database) -> IdempotencyLayer {
    layer(engine(&database.pool().await))
}

/// Leaves an effect, and responds with what it has read of the form.
async fn upload(mut tx: Tx, mut form: Multipart) -> Result<(StatusCode, String), StatusCode> {
    effect(&mut tx).await;
    let mut read = Vec::new();
    while let Some(field) = form.next_field().await.map_err(|_| StatusCode::BAD_REQUEST)? {
        let name = field.name().unwrap_or_default().to_owned();
        let file = field.file_name().unwrap_or_default().to_owned();
        let text = field.text().await.map_err(|_| StatusCode::BAD_REQUEST)?;
        read.push(format!("{name} {file} {text}"));
    }
    Ok((StatusCode::CREATED, read.join(", ")))
}

#[tokio::test]
async fn r27_a_multipart_form_that_a_client_writes_anew_is_a_retry_and_any_other_is_not() {
    let database = Database::fresh().await;
    let app = axum::Router::new().route("/things", route(upload).layer(plain(&database).await));
    let address = serve(app).await;
    let client = reqwest::Client::new();
    let send = async |form: Form| {
        let boundary = form.boundary().to_owned();
        let request =
            client.post(format!("http://{address}/things")).header("x-owner", "a").header("idempotency-key", "k");
        let response = request.multipart(form).send().await.unwrap();
        let replayed = response.headers().contains_key("idempotent-replayed");
        (response.status().as_u16(), replayed, response.text().await.unwrap(), boundary)
    };
    let file = |text: &'static str, name: &'static str| Part::text(text).file_name(name).mime_str("text/csv").unwrap();
    let form = || Form::new().text("title", "March").part("file", file("1;2\r\n", "a.csv"));

    let (status, replayed, read, first) = send(form()).await;
    assert_eq!((status, replayed, &*read), (201, false, "title  March, file a.csv 1;2\r\n"));
    let (status, replayed, again, second) = send(form()).await;
    assert_eq!((status, replayed, again), (201, true, read));
    assert_ne!(first, second, "the client has made a new boundary");

    let others = [
        Form::new().text("title", "March").part("file", file("1;3\r\n", "a.csv")),
        Form::new().text("title", "March").part("file", file("1;2\r\n", "b.csv")),
        Form::new().text("title", "April").part("file", file("1;2\r\n", "a.csv")),
        Form::new().text("name", "March").part("file", file("1;2\r\n", "a.csv")),
        Form::new().part("file", file("1;2\r\n", "a.csv")).text("title", "March"),
        Form::new().text("title", "March").part("file", file("1;2\r\n", "a.csv").mime_str("text/plain").unwrap()),
        form().text("more", ""),
        Form::new().text("title", "March"),
    ];
    for other in others {
        let (status, _, text, _) = send(other).await;
        assert_eq!(status, 422, "{text}");
    }
    assert_eq!(database.effects().await, 1);
}

/// The boundary is a text of the client's, and so are the files: a file may hold a line that another try has for a boundary.
#[tokio::test]
async fn r27_a_file_that_looks_like_a_delimiter_is_not_taken_for_one() {
    let database = Database::fresh().await;
    let app = app_with(plain(&database).await, create);
    let ask = |key: &str, boundary: &str, body: &str| {
        let media_type = format!("multipart/form-data; boundary={boundary}");
        post("/things").key(key).header("content-type", &media_type).body(body.to_owned())
    };
    let one = "--a\r\n\r\n1\r\n--b\r\n\r\n2\r\n--a--";
    for (n, (boundary, body, status)) in [
        // The inner line is a part's text under one boundary, and a delimiter under the other.
        ("b", "--b\r\n\r\n1\r\n--b\r\n\r\n2\r\n--b--", 422),
        ("b", one, 422),
        ("c", "--c\r\n\r\n1\r\n--c\r\n\r\n2\r\n--c--", 422),
        ("c", "--c\r\n\r\n1\r\n--b\r\n\r\n2\r\n--c--", 201),
        // A prefix, and a bare LF.
        ("c", "--c\r\n\r\n1\r\n--cb\r\n\r\n2\r\n--c--", 422),
        ("c", "--c\r\n\r\n1\n--c\r\n\r\n2\r\n--c--", 422),
    ]
    .into_iter()
    .enumerate()
    {
        let key = n.to_string();
        reply(&app, ask(&key, "a", one)).await;
        assert_eq!(reply(&app, ask(&key, boundary, body)).await.status, status, "{body:?}");
    }
}

#[tokio::test]
async fn r27_a_function_of_the_applications_still_decides_over_multipart_bodies() {
    let database = Database::fresh().await;
    let by_path = plain(&database).await.with_fingerprint(|parts, _| Fingerprint::of([parts.uri.path()]));
    let app = app_with(by_path.json_rpc(true).form_in_any_order(true), create);
    let ask = |body: &'static str| {
        post("/things").key("k").header("content-type", "multipart/form-data; boundary=x").body(body)
    };
    reply(&app, ask("one")).await;
    assert!(reply(&app, ask("other")).await.replayed());
}

fn form(body: &'static str) -> Ask {
    post("/things").header("content-type", "application/x-www-form-urlencoded").body(body)
}

#[tokio::test]
async fn forms_and_queries_in_another_order_are_one_request_where_the_route_says_so() {
    let database = Database::fresh().await;
    let plain = plain(&database).await;
    let any = plain.clone().operation("any").form_in_any_order(true).query_in_any_order(true);
    let off = any.clone().operation("off").form_in_any_order(false).query_in_any_order(false);
    let (any, off) = (app_with(any, create), app_with(off, create));
    let query = |query: &str| post(&format!("/things?{query}"));
    for (n, (first, retry, other)) in [
        (form("a=1&b=2&a=3"), form("b=2&a=1&a=3"), form("a=3&b=2&a=1")),
        (query("a=1&b=2&a=3"), query("b=2&a=1&a=3"), query("a=3&b=2&a=1")),
    ]
    .into_iter()
    .enumerate()
    {
        let key = n.to_string();
        reply(&any, first.key(&key)).await;
        assert!(reply(&any, retry.key(&key)).await.replayed());
        reply(&any, other.key(&key)).await.assert_refused(RejectionKind::KeyReused);
    }
    reply(&off, form("a=1&b=2").key("form")).await;
    reply(&off, form("b=2&a=1").key("form")).await.assert_refused(RejectionKind::KeyReused);
    reply(&off, query("a=1&b=2").key("query")).await;
    reply(&off, query("b=2&a=1").key("query")).await.assert_refused(RejectionKind::KeyReused);
}

#[tokio::test]
async fn a_json_rpc_request_with_another_id_is_a_retry_where_the_route_says_so_and_gets_the_first_response() {
    let database = Database::fresh().await;
    let echo = async |mut tx: Tx, body: String| {
        effect(&mut tx).await;
        body
    };
    let plain = plain(&database).await;
    let on = app_with(plain.clone().operation("on").json_rpc(true), echo);
    let both = app_with(plain.clone().operation("both").json_rpc(true).canonical_json(true), echo);
    let off = app_with(plain.operation("off").json_rpc(true).json_rpc(false), echo);
    let ask = |body: &'static str| post("/things").key("k").header("content-type", "application/json").body(body);
    let one = r#"{"jsonrpc":"2.0","id":12345678901234567891,"method":"m","params":{"id":1}}"#;
    let other_id = r#"{"jsonrpc":"2.0","id":"x","method":"m","params":{"id":1}}"#;
    let spaced = r#"{ "method": "m", "params": {"id": 1.0}, "jsonrpc": "2.0", "id": 12345678901234567892 }"#;
    for app in [&on, &both, &off] {
        assert_eq!(reply(app, ask(one)).await.text(), one);
    }
    for app in [&on, &both] {
        let replay = reply(app, ask(other_id)).await;
        assert!(replay.replayed());
        assert_eq!(replay.text(), one, "with the id of the first request");
        for other in [
            r#"{"jsonrpc":"2.0","id":"x","method":"m","params":{"id":2}}"#,
            r#"{"jsonrpc":"2.0","method":"m","params":{"id":1}}"#,
            r#"{"jsonrpc":"2.0","id":null,"method":"m","params":{"id":1}}"#,
            r#"[{"jsonrpc":"2.0","id":1,"method":"m","params":{"id":1}}]"#,
        ] {
            reply(app, ask(other)).await.assert_refused(RejectionKind::KeyReused);
        }
    }
    reply(&on, ask(spaced)).await.assert_refused(RejectionKind::KeyReused);
    assert!(reply(&both, ask(spaced)).await.replayed());
    reply(&off, ask(other_id)).await.assert_refused(RejectionKind::KeyReused);
    assert_eq!(database.effects().await, 3);
}

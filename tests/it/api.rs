//! What has to compile, and how the layer sits among others.

use axum::{
    Router,
    body::Body,
    http::{Method, StatusCode},
    routing::post as route,
};
use axum_idempotency::{
    Attempt, Claim, Error, Idempotency, IdempotencyKey, IdempotencyLayer, IdempotencyService, IdempotentRequest,
    Pruner, Rejection, RejectionKind, ResponseFuture, StoredResponse, Tx,
};
use tower::{ServiceBuilder, ServiceExt as _};

use crate::support::{Ask, Database, app, create, engine, get, layer, post, reply};

#[test]
fn the_types_are_as_free_as_they_can_be() {
    fn shared<T: Send + Sync + 'static>() {}
    fn cloned<T: Clone + std::fmt::Debug>() {}
    fn unpinned<T: Unpin>() {}

    shared::<Idempotency>();
    shared::<IdempotencyLayer>();
    shared::<IdempotencyService<Router>>();
    shared::<IdempotencyKey>();
    shared::<IdempotentRequest>();
    shared::<StoredResponse>();
    shared::<Pruner>();
    shared::<Attempt>();
    shared::<Claim>();
    shared::<Error>();
    shared::<Rejection>();
    shared::<Tx>();
    cloned::<Idempotency>();
    cloned::<IdempotencyLayer>();
    cloned::<IdempotencyService<Router>>();
    unpinned::<ResponseFuture<std::future::Ready<()>, Error>>();
}

#[test]
fn errors_are_values_of_their_own_size() {
    // A rejection is moved about in results all the time.
    assert!(size_of::<Rejection>() <= 48);
    assert!(size_of::<Error>() <= 24);
}

#[tokio::test]
async fn it_goes_on_a_router_a_route_layer_a_method_router_and_a_plain_service() {
    let database = Database::fresh().await;
    let idempotent = layer(engine(&database.pool().await));
    let routers = [
        Router::new().route("/things", route(create)).layer(idempotent.clone().operation("a")),
        Router::new().route("/things", route(create)).route_layer(idempotent.clone().operation("b")),
        Router::new().route("/things", route(create).layer(idempotent.clone().operation("c"))),
    ];
    for app in routers {
        assert!(!reply(&app, post("/things").key("k")).await.replayed());
        assert!(reply(&app, post("/things").key("k")).await.replayed());
    }

    let service = ServiceBuilder::new().layer(idempotent).service_fn(async |_request: axum::extract::Request| {
        Ok::<_, String>(axum::http::Response::new(Body::from("plain")))
    });
    for replayed in [false, true] {
        let response = service.clone().oneshot(post("/plain").key("k").into_request()).await.unwrap();
        assert_eq!(response.headers().contains_key("idempotent-replayed"), replayed);
    }
    assert_eq!(database.rows().await.last().unwrap().operation, "c");
    assert!(database.rows().await.iter().any(|row| row.operation == "POST /plain"));
}

#[tokio::test]
async fn f18_404_and_405_leave_no_key_even_under_router_layer() {
    let database = Database::fresh().await;
    let app = Router::new()
        .route("/things", axum::routing::get(async || "read"))
        .layer(layer(engine(&database.pool().await)));
    assert_eq!(reply(&app, post("/nowhere").key("k")).await.status, StatusCode::NOT_FOUND);
    assert_eq!(reply(&app, post("/things").key("k")).await.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(reply(&app, get("/things").key("k")).await.status, StatusCode::OK);
    assert_eq!(database.rows().await, []);
}

#[tokio::test]
async fn a_second_layer_under_the_first_is_answered_500_that_names_both_operations() {
    let database = Database::fresh().await;
    let idempotent = layer(engine(&database.pool().await));
    let app = Router::new()
        .route("/things", route(create).layer(idempotent.clone().operation("inner")))
        .layer(idempotent.operation("outer"));
    let refused = reply(&app, post("/things").key("k")).await;
    assert_eq!(refused.kind(), Some(RejectionKind::Misconfigured));
    assert!(refused.text().contains("`outer` and `inner`"), "{}", refused.text());
    assert_eq!(database.rows().await, []);
    assert_eq!(database.effects().await, 0);
}

#[tokio::test]
async fn listed_methods_are_handled_and_safe_ones_never() {
    use axum::http::Method;

    let database = Database::fresh().await;
    let idempotent = layer(engine(&database.pool().await)).methods([Method::PUT, Method::DELETE, Method::GET]);
    let app = Router::new().route(
        "/things",
        axum::routing::put(create).delete(create).get(async || "read").post(async || "post").layer(idempotent),
    );
    let ask = |method| crate::support::Ask::new(method, "/things").owner("alice").key("k");
    for method in [Method::PUT, Method::DELETE] {
        assert!(!reply(&app, ask(method.clone())).await.replayed());
        assert!(reply(&app, ask(method)).await.replayed());
    }
    let query = Method::from_bytes(b"QUERY").unwrap();
    let listed = layer(engine(&database.pool().await)).methods([query.clone()]);
    let service = ServiceBuilder::new().layer(listed).service_fn(async |_request: axum::extract::Request| {
        Ok::<_, String>(axum::http::Response::new(Body::from("found")))
    });
    for replayed in [false, true] {
        let response = service.clone().oneshot(ask(query.clone()).into_request()).await.unwrap();
        assert_eq!(response.headers().contains_key("idempotent-replayed"), replayed, "R1: unless it is listed");
    }
    for method in [Method::GET, Method::POST] {
        assert!(!reply(&app, ask(method.clone())).await.replayed());
        assert!(!reply(&app, ask(method)).await.replayed());
    }
}

/// F35, F63: authentication outside runs for every request, and what it knows reaches the scope function.
#[tokio::test]
async fn r4_f35_the_scope_sees_what_the_authentication_outside_put_into_the_extensions() {
    use axum::{extract::Request, middleware::Next};
    use axum_idempotency::Scope;

    #[derive(Clone)]
    struct User(String);

    let database = Database::fresh().await;
    let idempotent = IdempotencyLayer::new(engine(&database.pool().await), |parts| {
        parts.extensions.get::<User>().map(|user| Scope::new(&user.0))
    });
    let authenticate = async |mut request: Request, next: Next| {
        let Some(token) = request.headers().get("authorization").cloned() else {
            return Err(StatusCode::UNAUTHORIZED);
        };
        request.extensions_mut().insert(User(token.to_str().unwrap().to_owned()));
        Ok(next.run(request).await)
    };
    let app =
        Router::new().route("/things", route(create).layer(idempotent)).layer(axum::middleware::from_fn(authenticate));
    assert_eq!(reply(&app, post("/things").key("k").header("authorization", "u1")).await.text(), "1");
    assert_eq!(reply(&app, post("/things").key("k").header("authorization", "u2")).await.text(), "2");
    assert!(reply(&app, post("/things").key("k").header("authorization", "u1")).await.replayed());
    assert_eq!(reply(&app, post("/things").key("k")).await.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn f42_over_a_real_server_a_replay_equals_the_first_answer() {
    let database = Database::fresh().await;
    let address = crate::support::serve(app(&database.pool().await, |mut tx: Tx| async move {
        let id = crate::support::effect(&mut tx).await;
        (StatusCode::CREATED, [("location", format!("/things/{id}"))], axum::Json(serde_json::json!({ "id": id })))
    }))
    .await;
    let client = reqwest::Client::new();
    let ask = || {
        client
            .post(format!("http://{address}/things"))
            .header("x-owner", "alice")
            .header("idempotency-key", "k")
            .json(&serde_json::json!({ "a": 1 }))
            .send()
    };
    let (first, second) = (ask().await.unwrap(), ask().await.unwrap());
    assert_eq!((first.status(), second.status()), (StatusCode::CREATED, StatusCode::CREATED));
    for name in ["location", "content-type", "content-length"] {
        assert_eq!(first.headers()[name], second.headers()[name]);
    }
    assert_eq!(second.headers()["idempotent-replayed"], "true");
    assert!(second.headers().contains_key("date"));
    assert_eq!(first.bytes().await.unwrap(), second.bytes().await.unwrap());
}

/// F100: otherwise a client believes that it is protected.
#[tokio::test]
async fn f100_a_key_on_a_method_that_is_not_handled_is_ignored_or_refused() {
    let database = Database::fresh().await;
    let ignoring = layer(engine(&database.pool().await));
    for (layer, refuses) in [(ignoring.clone(), false), (ignoring.refuse_unhandled_keys(true), true)] {
        let runs = crate::support::Runs::default();
        let counted = runs.clone();
        let handler = axum::routing::any(async move || {
            counted.one();
        });
        let app = Router::new().route("/things", handler.layer(layer));
        for method in [Method::PUT, Method::DELETE] {
            let replied = reply(&app, Ask::new(method, "/things").key("k")).await;
            assert_eq!(replied.kind(), refuses.then_some(RejectionKind::KeyNotHandled));
        }
        assert_eq!(runs.count(), if refuses { 0 } else { 2 });
        // Without a key, and where a key can mean nothing, all goes on.
        for ask in [Ask::new(Method::PUT, "/things"), Ask::new(Method::GET, "/things").key("k")] {
            assert_eq!(reply(&app, ask).await.status, 200);
        }
    }
}

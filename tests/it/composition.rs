//! The layers that people really use, outside and inside, over real connections. The table in the documentation of
//! `middleware` says the same.

use std::time::Duration;

use axum::{
    BoxError, Router,
    body::Body,
    error_handling::HandleErrorLayer,
    http::{HeaderName, Method, StatusCode, header},
    response::IntoResponse,
    routing::post as route,
};
use axum_idempotency::{IdempotencyLayer, RejectionKind, Tx};
use tower::{ServiceBuilder, ServiceExt as _};
use tower_http::{
    compression::CompressionLayer,
    cors::CorsLayer,
    decompression::RequestDecompressionLayer,
    limit::RequestBodyLimitLayer,
    request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer},
    timeout::TimeoutLayer,
    trace::TraceLayer,
};

use crate::support::{Ask, Database, Gate, Runs, create, effect, engine, layer, post, reply, serve};

async fn plain(database: &Database) -> IdempotencyLayer {
    layer(engine(&database.pool().await))
}

/// A handler that leaves an effect and answers with a body that is worth compressing.
async fn wordy(mut tx: Tx) -> impl IntoResponse {
    effect(&mut tx).await;
    (StatusCode::CREATED, [("content-type", "text/plain")], "word ".repeat(1_000))
}

/// Asks over a real connection.
async fn ask(address: std::net::SocketAddr, key: &str, headers: &[(&str, &str)]) -> reqwest::Response {
    let request = reqwest::Client::new()
        .post(format!("http://{address}/things"))
        .header("x-owner", "alice")
        .header("idempotency-key", key);
    headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).send().await.unwrap()
}

#[tokio::test]
async fn r55_f65_cors_outside_gives_replays_their_own_fields_and_exposes_the_marker() {
    let database = Database::fresh().await;
    let cors = CorsLayer::new()
        .allow_origin(["https://a.example".parse().unwrap(), "https://b.example".parse().unwrap()])
        .allow_methods([Method::POST])
        .allow_headers([HeaderName::from_static("idempotency-key")])
        .expose_headers([HeaderName::from_static("idempotent-replayed")]);
    let app = Router::new().route("/things", route(create).layer(plain(&database).await)).layer(cors);
    let address = serve(app).await;
    let first = ask(address, "k", &[("origin", "https://a.example")]).await;
    let replay = ask(address, "k", &[("origin", "https://b.example")]).await;
    assert_eq!(first.headers()["access-control-allow-origin"], "https://a.example");
    assert_eq!(replay.headers()["access-control-allow-origin"], "https://b.example");
    assert_eq!(replay.headers()["access-control-expose-headers"], "idempotent-replayed");
    assert_eq!(replay.headers()["idempotent-replayed"], "true");

    let preflight = Ask::new(Method::OPTIONS, "/things")
        .header("origin", "https://a.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "idempotency-key");
    let client = reqwest::Client::new().request(Method::OPTIONS, format!("http://{address}/things"));
    let answered = client.headers(preflight.into_request().headers().clone()).send().await.unwrap();
    assert_eq!(answered.headers()["access-control-allow-headers"], "idempotency-key");
}

#[tokio::test]
async fn r55_compression_outside_is_negotiated_by_each_replay_and_inside_is_replayed_as_it_was() {
    for outside in [true, false] {
        let database = Database::fresh().await;
        let idempotent = plain(&database).await;
        let app = if outside {
            Router::new().route("/things", route(wordy).layer(idempotent)).layer(CompressionLayer::new())
        } else {
            let inside = ServiceBuilder::new().layer(idempotent).layer(CompressionLayer::new());
            Router::new().route("/things", route(wordy).layer(inside))
        };
        let address = serve(app).await;
        let first = ask(address, "k", &[("accept-encoding", "gzip")]).await;
        let replay = ask(address, "k", &[("accept-encoding", "identity")]).await;
        assert_eq!(first.headers()["content-encoding"], "gzip");
        assert_eq!(replay.headers()["idempotent-replayed"], "true");
        let compressed = first.bytes().await.unwrap();
        assert!(compressed.len() < 1_000);
        if outside {
            assert!(!replay.headers().contains_key("content-encoding"));
            assert_eq!(replay.text().await.unwrap(), "word ".repeat(1_000));
        } else {
            assert_eq!(replay.headers()["content-encoding"], "gzip");
            assert_eq!(replay.bytes().await.unwrap(), compressed);
        }
        assert_eq!(database.effects().await, 1);
    }
}

#[tokio::test]
async fn request_decompression_outside_compares_what_was_meant_and_inside_what_was_sent() {
    // "hello", compressed twice with different settings.
    let gzip = |name: u8| -> Vec<u8> {
        let mut bytes = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, name];
        bytes.extend([1, 5, 0, 0xfa, 0xff]);
        bytes.extend(b"hello");
        bytes.extend([0x86, 0xa6, 0x10, 0x36, 5, 0, 0, 0]);
        bytes
    };
    for outside in [true, false] {
        let database = Database::fresh().await;
        let idempotent = plain(&database).await;
        let echo = async |_tx: Tx, body: String| body;
        let app = if outside {
            let layers = ServiceBuilder::new().layer(RequestDecompressionLayer::new()).layer(idempotent);
            Router::new().route("/things", route(echo).layer(layers))
        } else {
            let layers = ServiceBuilder::new().layer(idempotent).layer(RequestDecompressionLayer::new());
            Router::new().route("/things", route(echo).layer(layers))
        };
        let ask = |body: Vec<u8>| post("/things").key("k").header("content-encoding", "gzip").body(body);
        assert_eq!(reply(&app, ask(gzip(3))).await.text(), "hello");
        let retry = reply(&app, ask(gzip(255))).await;
        if outside {
            assert!(retry.replayed());
        } else {
            retry.assert_refused(RejectionKind::KeyReused);
        }
    }
}

#[tokio::test]
async fn trace_and_request_ids_outside_are_each_attempts_own() {
    let database = Database::fresh().await;
    let app = Router::new().route("/things", route(create).layer(plain(&database).await)).layer(
        ServiceBuilder::new()
            .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
            .layer(TraceLayer::new_for_http())
            .layer(PropagateRequestIdLayer::x_request_id()),
    );
    let address = serve(app).await;
    let (first, replay) = (ask(address, "k", &[]).await, ask(address, "k", &[]).await);
    assert_eq!(replay.headers()["idempotent-replayed"], "true");
    assert_ne!(first.headers()["x-request-id"], replay.headers()["x-request-id"]);
}

#[tokio::test]
async fn a_timeout_inside_bounds_the_handler_and_frees_the_key() {
    let database = Database::fresh().await;
    let (runs, gate) = (Runs::default(), Gate::closed());
    let (counted, inside) = (runs.clone(), gate.clone());
    let handler = move |mut tx: Tx| async move {
        effect(&mut tx).await;
        if counted.one() == 1 {
            inside.pass().await;
        }
        StatusCode::CREATED
    };
    let layers = ServiceBuilder::new()
        .layer(plain(&database).await)
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_millis(100)));
    let app = Router::new().route("/things", route(handler).layer(layers));
    assert_eq!(reply(&app, post("/things").key("k")).await.status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(database.effects().await, 0);
    let retry = reply(&app, post("/things").key("k")).await;
    assert_eq!((retry.status, retry.replayed()), (StatusCode::CREATED, false));
}

#[tokio::test]
async fn body_limits_outside_and_inside_refuse_before_or_release() {
    let database = Database::fresh().await;
    let limit = || RequestBodyLimitLayer::new(10);
    let read = async |_tx: Tx, body: axum::body::Bytes| body;
    let outside =
        Router::new().route("/things", route(read).layer(plain(&database).await.operation("outside"))).layer(limit());
    let inside = Router::new().route(
        "/things",
        route(read).layer(ServiceBuilder::new().layer(plain(&database).await.operation("inside")).layer(limit())),
    );
    let extractor = Router::new()
        .route("/things", route(read).layer(plain(&database).await.operation("extractor")))
        .layer(axum::extract::DefaultBodyLimit::max(10));
    for app in [outside, inside, extractor] {
        let refused = reply(&app, post("/things").key("k").body("x".repeat(11))).await;
        assert_eq!(refused.status, StatusCode::PAYLOAD_TOO_LARGE);
        // Without an announced length, it is found out while it is read.
        let parts = futures_util::stream::iter(["x".repeat(6), "x".repeat(6)].map(Ok::<_, std::io::Error>));
        let refused = reply(&app, post("/things").key("k").body(Body::from_stream(parts))).await;
        assert_eq!(refused.status, StatusCode::PAYLOAD_TOO_LARGE, "{refused:?}");
        assert_eq!(reply(&app, post("/things").key("k").body("x".repeat(10))).await.body.len(), 10);
    }
    assert_eq!(database.rows().await.len(), 3);
}

/// F23: an inner layer that turns errors into answers decides what is kept; an outer one cannot any more.
#[tokio::test]
async fn f23_an_error_that_an_inner_layer_makes_a_2xx_of_is_kept_and_by_an_outer_one_it_is_not() {
    let failing = async |mut tx: Tx| {
        effect(&mut tx).await;
        StatusCode::INTERNAL_SERVER_ERROR
    };
    let smile = || {
        tower::util::MapResponseLayer::new(|mut response: axum::response::Response| {
            *response.status_mut() = StatusCode::OK;
            response
        })
    };
    for inside in [true, false] {
        let database = Database::fresh().await;
        let idempotent = plain(&database).await;
        let app = if inside {
            Router::new().route("/things", route(failing).layer(ServiceBuilder::new().layer(idempotent).layer(smile())))
        } else {
            Router::new().route("/things", route(failing).layer(idempotent)).layer(smile())
        };
        assert_eq!(reply(&app, post("/things").key("k")).await.status, StatusCode::OK);
        assert_eq!(database.effects().await, i64::from(inside));
    }
}

#[tokio::test]
async fn buffers_limits_and_load_shedding_sit_outside_and_inside() {
    async fn shed(_: BoxError) -> StatusCode {
        StatusCode::SERVICE_UNAVAILABLE
    }

    let database = Database::fresh().await;
    for inside in [false, true] {
        let idempotent = plain(&database).await.operation(format!("inside: {inside}"));
        let busy = ServiceBuilder::new()
            .layer(HandleErrorLayer::new(shed))
            .buffer(16)
            .load_shed()
            .concurrency_limit(8)
            .rate_limit(1_000, Duration::from_secs(1))
            .timeout(Duration::from_secs(20));
        let app = Router::new();
        let app = if inside {
            app.route("/things", route(create).layer(ServiceBuilder::new().layer(idempotent).layer(busy)))
        } else {
            app.route("/things", route(create).layer(ServiceBuilder::new().layer(busy).layer(idempotent)))
        };
        let address = serve(app).await;
        let mut bodies = Vec::new();
        for _ in 0..3 {
            let answer = ask(address, "k", &[]).await;
            assert_eq!(answer.status(), StatusCode::CREATED);
            bodies.push(answer.text().await.unwrap());
        }
        assert!(bodies.iter().all(|body| *body == bodies[0]));
    }
    assert_eq!(database.effects().await, 2);
}

#[tokio::test]
async fn it_works_under_merge_nest_fallback_and_route_layer() {
    let database = Database::fresh().await;
    let idempotent = plain(&database).await;
    let inner = Router::new().route("/things/{id}", route(create)).route_layer(idempotent.clone());
    let app = Router::new()
        .nest("/api", inner)
        .merge(Router::new().route("/merged", route(create).layer(idempotent.clone())))
        .fallback_service(
            ServiceBuilder::new()
                .layer(idempotent)
                .service(axum::handler::HandlerWithoutStateExt::into_service(create)),
        );
    for path in ["/api/things/1", "/merged", "/nowhere/else"] {
        assert!(!reply(&app, post(path).key("k")).await.replayed(), "{path}");
        assert!(reply(&app, post(path).key("k")).await.replayed(), "{path}");
    }
    reply(&app, post("/api/things/2").key("k")).await.assert_refused(RejectionKind::KeyReused);
    // Under route_layer, what no route matches is not looked at.
    assert_eq!(reply(&app, post("/api/other")).await.status, StatusCode::BAD_REQUEST, "the fallback asks for a key");
    let operations: Vec<_> = database.rows().await.into_iter().map(|row| row.operation).collect();
    assert_eq!(operations, ["POST /api/things/{id}", "POST /merged", "POST /nowhere/else"]);
}

#[tokio::test]
async fn f18_route_layer_leaves_404_and_405_alone_where_router_layer_asks_for_a_key() {
    let database = Database::fresh().await;
    let routes = || Router::new().route("/things", axum::routing::get(async || "read").post(create));
    let route_layer = routes().route_layer(plain(&database).await);
    assert_eq!(reply(&route_layer, post("/nowhere")).await.status, StatusCode::NOT_FOUND);
    let router_layer = routes().layer(plain(&database).await);
    reply(&router_layer, post("/nowhere")).await.assert_refused(RejectionKind::MissingKey);
    assert_eq!(reply(&router_layer, post("/nowhere").key("k")).await.status, StatusCode::NOT_FOUND);
    assert_eq!(database.rows().await, []);
}

#[tokio::test]
async fn it_goes_on_a_tower_service_under_hyper_without_axums_router() {
    use hyper_util::{rt::TokioIo, service::TowerToHyperService};

    let database = Database::fresh().await;
    let service = ServiceBuilder::new().layer(plain(&database).await).service_fn(
        |request: axum::http::Request<Body>| async move {
            use axum::extract::FromRequestParts as _;
            let mut tx = Tx::from_request_parts(&mut request.into_parts().0, &()).await.unwrap();
            let id = effect(&mut tx).await;
            Ok::<_, std::convert::Infallible>(axum::http::Response::new(Body::from(id.to_string())))
        },
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // hyper's own body goes in, as it is.
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    let (first, replay) = (ask(address, "k", &[]).await, ask(address, "k", &[]).await);
    assert_eq!(replay.headers()["idempotent-replayed"], "true");
    assert_eq!(first.text().await.unwrap(), replay.text().await.unwrap());
    assert_eq!(database.effects().await, 1);
}

/// The request's body may be of any type.
#[tokio::test]
async fn it_takes_requests_with_any_body() {
    let database = Database::fresh().await;
    let service =
        ServiceBuilder::new().layer(plain(&database).await).service_fn(async |request: axum::http::Request<Body>| {
            Ok::<_, BoxError>(axum::http::Response::new(request.into_body()))
        });
    let request = axum::http::Request::post("/x")
        .header("x-owner", "alice")
        .header("idempotency-key", "k")
        .body(http_body_util::Full::new(axum::body::Bytes::from("full")))
        .unwrap();
    let response = service.oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert!(!response.headers().contains_key(header::CACHE_CONTROL));
}

//! How much a first call holds at most, in copies of its bodies. This one needs a database, if a fast one.

use std::error::Error;

use allocation_counter::AllocationInfo;
use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode},
    routing::post,
};
use axum_idempotency::{Idempotency, IdempotencyLayer, Scope, Tx};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use sqlx::{PgPool, postgres::PgPoolOptions};
use tokio::runtime::Runtime;
use tower::ServiceExt as _;

const MIB: usize = 1 << 20;

/// Prints the most bytes that were allocated at a time during a first call and a replay, by this thread; everything runs
/// on it. The request's and the handler's own bytes are among them.
pub(crate) fn first_calls(runtime: &Runtime) -> Result<(), Box<dyn Error>> {
    let server = throwaway_postgres::shared()?;
    println!(
        "\n{:<18} {:>17} {:>17} {:>17} {:>12}",
        "bytes held at most", "first call", "the next one", "its replay", "allocations"
    );
    for (name, request, response) in
        [("empty bodies", 0, 0), ("1 MiB request", MIB, 0), ("1 MiB response", 0, MIB), ("1 MiB each", MIB, MIB)]
    {
        // A connection of its own: its buffers grow with the first call and stay, uncounted, for the next one.
        let url = server.url("postgres");
        let pool = runtime.block_on(PgPoolOptions::new().max_connections(1).connect(&url))?;
        runtime.block_on(axum_idempotency::migrate(&pool))?;
        let key = |part| format!("{request}-{response}-{part}");
        // Its statements are prepared by a call without bodies.
        let empty = app(&pool, 0);
        held(runtime, &empty, &key("prepares"), 0)?;
        held(runtime, &empty, &key("prepares"), 0)?;

        let app = app(&pool, response);
        let first = held(runtime, &app, &key("first"), request)?;
        let next = held(runtime, &app, &key("next"), request)?;
        let replay = held(runtime, &app, &key("next"), request)?;
        println!(
            "{name:<18} {:>17} {:>17} {:>17} {:>12}",
            first.bytes_max, next.bytes_max, replay.bytes_max, next.count_total
        );
        runtime.block_on(pool.close());
    }
    Ok(())
}

fn app(pool: &PgPool, response_bytes: usize) -> Router {
    let layer = IdempotencyLayer::new(Idempotency::new(pool), |_| Some(Scope::global())).operation("held");
    let handler = move |tx: Tx, body: Bytes| async move {
        drop((tx, body));
        (StatusCode::CREATED, Bytes::from(vec![b'x'; response_bytes]))
    };
    Router::new().route("/held", post(handler).layer(layer))
}

fn held(runtime: &Runtime, app: &Router, key: &str, bytes: usize) -> Result<AllocationInfo, Box<dyn Error>> {
    let app = app.clone();
    let mut answered = Err("it did not run".into());
    let held = allocation_counter::measure(|| {
        answered = runtime.block_on(async {
            let request = Request::post("/held").header("idempotency-key", key).body(Body::from(vec![b'r'; bytes]))?;
            let response = app.oneshot(request).await?;
            let status = response.status();
            drop(response.into_body().collect().await?);
            Ok::<_, Box<dyn Error>>(status)
        });
    });
    assert_eq!(answered?, StatusCode::CREATED);
    Ok(held)
}

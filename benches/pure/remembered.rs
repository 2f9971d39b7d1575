//! A replay from memory. It comes after a claim, so its key is answered first, with a database.

use std::{error::Error, hint::black_box, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode},
    routing::post,
};
use axum_idempotency::{Idempotency, IdempotencyLayer, Scope, Tx};
use criterion::{BatchSize, BenchmarkId, Criterion};
use sqlx::postgres::PgPoolOptions;
use tokio::runtime::Runtime;
use tower::ServiceExt as _;

/// A router's answer against the same answer without a layer.
pub(crate) fn replays(runtime: &Runtime, criterion: &mut Criterion) -> Result<(), Box<dyn Error>> {
    let server = throwaway_postgres::shared()?;
    let pool = runtime.block_on(PgPoolOptions::new().max_connections(1).connect(&server.url("postgres")))?;
    runtime.block_on(axum_idempotency::migrate(&pool))?;
    let idempotency = Idempotency::new(&pool).response_cache(64 << 20, Duration::from_secs(3_600));
    let mut group = criterion.benchmark_group("replay from memory");
    for bytes in [100, 100 << 10] {
        let layer = IdempotencyLayer::new(idempotency.clone(), |_| Some(Scope::global())).operation("remembered");
        let body = move || async move { (StatusCode::CREATED, vec![b'x'; bytes]) };
        let constant = Router::new().route("/", post(body));
        let layered = Router::new().route(
            "/",
            post(move |tx: Tx| async move {
                drop(tx);
                body().await
            })
            .layer(layer),
        );
        let request =
            || Request::post("/").header("idempotency-key", bytes.to_string()).body(Body::empty()).expect("a request");
        let first = runtime.block_on(layered.clone().oneshot(request()))?;
        assert_eq!(first.status(), StatusCode::CREATED);
        let replay = runtime.block_on(layered.clone().oneshot(request()))?;
        assert!(replay.headers().contains_key("idempotent-replayed"));
        for (name, app) in [("constant", constant), ("replay", layered)] {
            group.bench_function(BenchmarkId::new(name, bytes), |bencher| {
                bencher.iter_batched(
                    || (app.clone(), request()),
                    |(app, request)| black_box(runtime.block_on(app.oneshot(request))),
                    BatchSize::SmallInput,
                );
            });
        }
    }
    Ok(())
}

//! What a storm of duplicates costs everybody else: the latency of an unrelated route while 200 duplicates of a slow
//! request wait, against the same without them, in one run.
//!
//! ```sh
//! cargo bench --bench storm
//! ```

#![allow(clippy::expect_used)] // A benchmark that fails should stop.

use std::{
    error::Error,
    time::{Duration, Instant},
};

use axum::{
    Extension, Router,
    body::Body,
    http::Request,
    routing::{get, post},
};
use axum_idempotency::{Idempotency, IdempotencyLayer, Scope, Tx};
use http_body_util::BodyExt as _;
use sqlx::{PgPool, postgres::PgPoolOptions};
use tower::ServiceExt as _;

const CONNECTIONS: u32 = 4;
const DUPLICATES: usize = 200;
const WORK: Duration = Duration::from_secs(2);
const PROBES: usize = 1_000;
const ROUNDS: usize = 5;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = throwaway_postgres::database_url()?;
    let pool = PgPoolOptions::new().max_connections(CONNECTIONS).min_connections(CONNECTIONS).connect(&url).await?;
    axum_idempotency::migrate(&pool).await?;
    let idempotency = Idempotency::new(&pool);
    let apps = [app(&pool, &idempotency), app(&pool, &idempotency)];
    let run = std::process::id();

    println!("pool of {CONNECTIONS}, {DUPLICATES} duplicates of a request that takes {WORK:?}, {PROBES} probes");
    println!(
        "{:>5} {:>12} {:>12} {:>6} {:>22} {:>9}",
        "round", "p99 without", "p99 during", "ratio", "connections in storm", "executed"
    );
    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        let (without, _) = probe(&apps[0], &pool).await?;
        let key = format!("{run}-{round}");
        let storm: Vec<_> =
            (0..DUPLICATES).map(|n| tokio::spawn(slow_request(apps[n % 2].clone(), key.clone()))).collect();
        while pool.num_idle() == CONNECTIONS as usize {
            tokio::task::yield_now().await;
        }
        let began = Instant::now();
        let (during, busy) = probe(&apps[0], &pool).await?;
        assert!(began.elapsed() < WORK, "the probes took longer than the storm");
        let mut answers = Vec::new();
        for duplicate in storm {
            answers.push(duplicate.await?);
        }
        assert!(answers.iter().all(|(body, _)| *body == answers[0].0), "all answers are equal");
        let executed = answers.iter().filter(|(_, replayed)| !replayed).count();
        let ratio = during.as_secs_f64() / without.as_secs_f64();
        println!("{round:>5} {without:>12.1?} {during:>12.1?} {ratio:>6.2} {busy:>22} {executed:>9}");
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    println!("ratio: median {:.2}, from {:.2} to {:.2}", ratios[ROUNDS / 2], ratios[0], ratios[ROUNDS - 1]);
    Ok(())
}

fn app(pool: &PgPool, idempotency: &Idempotency) -> Router {
    let layer = IdempotencyLayer::new(idempotency.clone(), |_| Some(Scope::global())).operation("slow");
    Router::new().route("/slow", post(slow).layer(layer)).route("/other", get(other)).layer(Extension(pool.clone()))
}

async fn slow(mut tx: Tx) -> Result<String, String> {
    let id: String = sqlx::query_scalar("select pg_current_xact_id()::text")
        .fetch_one(&mut *tx)
        .await
        .map_err(|error| error.to_string())?;
    tokio::time::sleep(WORK).await;
    Ok(id)
}

async fn other(Extension(pool): Extension<PgPool>) -> Result<String, String> {
    let one: i32 = sqlx::query_scalar("select 1").fetch_one(&pool).await.map_err(|error| error.to_string())?;
    Ok(one.to_string())
}

async fn slow_request(app: Router, key: String) -> (String, bool) {
    let request = Request::post("/slow").header("idempotency-key", key).body(Body::empty()).expect("a request");
    let response = app.oneshot(request).await.expect("a router does not fail");
    let replayed = response.headers().contains_key("idempotent-replayed");
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    (String::from_utf8_lossy(&body).into_owned(), replayed)
}

/// The 99th percentile of the unrelated route's latency, and the most connections that were busy beside it.
async fn probe(app: &Router, pool: &PgPool) -> Result<(Duration, i64), Box<dyn Error>> {
    let mut latencies = Vec::with_capacity(PROBES);
    let mut busy = 0;
    for n in 0..PROBES {
        let request = Request::get("/other").body(Body::empty())?;
        let began = Instant::now();
        let response = app.clone().oneshot(request).await?;
        response.into_body().collect().await?;
        latencies.push(began.elapsed());
        if n % 50 == 0 {
            let others: i64 = sqlx::query_scalar(
                "select count(*) from pg_stat_activity
                  where datname = current_database() and state <> 'idle' and pid <> pg_backend_pid()",
            )
            .fetch_one(pool)
            .await?;
            busy = busy.max(others);
        }
    }
    latencies.sort();
    Ok((latencies[PROBES * 99 / 100], busy))
}

//! This crate.

use std::time::Duration;

use axum::{
    Router,
    extract::State,
    response::{IntoResponse as _, Response},
    routing::post,
};
use axum_idempotency::{Idempotency, IdempotencyLayer, Scope, Tx};
use bytes::Bytes;

use crate::work::{Failure, Stage, charge};

/// As an application would write it, with the defaults.
pub(super) fn router(stage: Stage) -> Router {
    routed(Idempotency::new(&stage.pool), stage)
}

/// Likewise, with 64 MiB of answers in memory.
pub(super) fn remembering(stage: Stage) -> Router {
    routed(Idempotency::new(&stage.pool).response_cache(64 << 20, Duration::from_secs(3_600)), stage)
}

fn routed(idempotency: Idempotency, stage: Stage) -> Router {
    let layer = IdempotencyLayer::new(idempotency, |parts| {
        parts.headers.get("x-owner").and_then(|owner| owner.to_str().ok()).map(Scope::new)
    });
    Router::new().route("/charges", post(handler).layer(layer)).with_state(stage)
}

async fn handler(State(stage): State<Stage>, mut tx: Tx, body: Bytes) -> Result<Response, Failure> {
    Ok(charge(&stage.work, &mut tx, &body).await?.into_response())
}

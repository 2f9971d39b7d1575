//! This crate.

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
    let layer = IdempotencyLayer::new(Idempotency::new(stage.pool.clone()), |parts| {
        parts.headers.get("x-owner").and_then(|owner| owner.to_str().ok()).map(Scope::new)
    });
    Router::new().route("/charges", post(handler).layer(layer)).with_state(stage)
}

async fn handler(State(stage): State<Stage>, mut tx: Tx, body: Bytes) -> Result<Response, Failure> {
    Ok(charge(&stage.work, &mut tx, &body).await?.into_response())
}

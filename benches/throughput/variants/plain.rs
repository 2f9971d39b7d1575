//! Without protection: the handler itself, and what a replay is held against.

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, Uri},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;

use super::kept::{Asked, OPERATION};
use crate::work::{Failure, Reply, Stage, charge, json};

/// The handler with a transaction of its own.
pub(super) async fn bare(State(stage): State<Stage>, body: Bytes) -> Result<Response, Failure> {
    let mut transaction = stage.pool.begin().await?;
    let reply = charge(&stage.work, &mut transaction, &body).await?;
    transaction.commit().await?;
    Ok(reply.into_response())
}

/// One SELECT by primary key.
pub(super) async fn select(
    State(stage): State<Stage>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Failure> {
    let asked = Asked::of(&headers, &uri, &body)?;
    let body: Vec<u8> = sqlx::query_scalar("select body from kept where owner = $1 and operation = $2 and key = $3")
        .bind(&asked.owner)
        .bind(OPERATION)
        .bind(&asked.key)
        .fetch_one(&stage.pool)
        .await?;
    Ok((StatusCode::CREATED, body).into_response())
}

/// What the two above are asked for first, so that there is something to read.
pub(super) async fn fill(
    State(stage): State<Stage>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Failure> {
    let asked = Asked::of(&headers, &uri, &body)?;
    let stored = json(0, stage.work.response_bytes);
    sqlx::query("insert into kept (owner, operation, key, fingerprint, body) values ($1, $2, $3, $4, $5)")
        .bind(&asked.owner)
        .bind(OPERATION)
        .bind(&asked.key)
        .bind(&asked.fingerprint[..])
        .bind(&stored[..])
        .execute(&stage.pool)
        .await?;
    Ok((StatusCode::CREATED, stored).into_response())
}

/// Nothing but an answer, when the time is over that the work would take: in a storm, what so many requests take anyway.
pub(super) async fn constant(State(stage): State<Stage>, body: Bytes) -> Reply {
    drop(body);
    if !stage.work.pause.is_zero() {
        tokio::time::sleep(stage.work.pause).await;
    }
    Reply { status: StatusCode::CREATED, headers: Vec::new(), body: json(0, stage.work.response_bytes) }
}

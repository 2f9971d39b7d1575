//! A committed row says that the key is being worked on; a second transaction works and answers. The pattern that
//! Brandur Leach described for Stripe-like APIs. Its recovery of rows that a crash has left (a lease and a reaper) is
//! left out, since it costs nothing here.

use axum::{
    extract::State,
    http::{HeaderMap, Uri},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;

use super::kept::{Asked, OPERATION, READ, keep, replay};
use crate::work::{Failure, Stage, charge};

/// `created_at` is when it was locked.
const BEGIN: &str = "\
insert into kept (owner, operation, key, fingerprint, expires_at)
values ($1, $2, $3, $4, now() + interval '24 hours')
on conflict do nothing
";

pub(super) async fn handler(
    State(stage): State<Stage>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Failure> {
    let asked = Asked::of(&headers, &uri, &body)?;
    let begun = sqlx::query(BEGIN)
        .bind(&asked.owner)
        .bind(OPERATION)
        .bind(&asked.key)
        .bind(&asked.fingerprint[..])
        .execute(&stage.pool)
        .await?;
    if begun.rows_affected() == 0 {
        let read = sqlx::query(READ).bind(&asked.owner).bind(OPERATION).bind(&asked.key);
        // Without a status it is being worked on: 409.
        return replay(&asked, &read.fetch_one(&stage.pool).await?);
    }
    let mut transaction = stage.pool.begin().await?;
    let reply = charge(&stage.work, &mut transaction, &body).await?;
    keep(&mut transaction, &asked, &reply).await?;
    transaction.commit().await?;
    Ok(reply.into_response())
}

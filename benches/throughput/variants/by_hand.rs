//! The protection of this crate, written into the handler: the same statements, without a layer.

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, Uri},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use sqlx::Row as _;

use super::kept::{Asked, OPERATION, READ, keep, replay};
use crate::work::{Failure, Stage, charge};

/// One statement looks for an answer, bounds the wait and claims, as the crate's does; the crate's also takes an advisory
/// lock, by which processes that do not want to wait learn at once that they would have to.
pub(super) const CLAIM: &str = "\
with live as materialized (
  select fingerprint, status, header_names, header_values, body
    from kept
   where owner = $1 and operation = $2 and key = $3
     and (expires_at is null or expires_at > now())
), setting as materialized (
  select set_config('lock_timeout', '5000ms', true)
   where not exists (select from live)
), claim as (
  insert into kept as present (owner, operation, key, fingerprint, created_at, expires_at)
  select $1, $2, $3, $4, now(), now() + interval '24 hours'
    from setting
  on conflict (owner, operation, key) do update
     set fingerprint = excluded.fingerprint, created_at = excluded.created_at, expires_at = excluded.expires_at,
         status = null, header_names = null, header_values = null, body = null
   where present.expires_at <= excluded.created_at
  returning 1
)
select claims.number = 1 as ours, live.fingerprint, live.status, live.header_names, live.header_values, live.body
  from (select count(*) as number from claim) claims
  left join live on true
";

pub(super) async fn handler(
    State(stage): State<Stage>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Failure> {
    let asked = Asked::of(&headers, &uri, &body)?;
    let mut transaction = stage.pool.begin().await?;
    let claimed = sqlx::query(CLAIM)
        .bind(&asked.owner)
        .bind(OPERATION)
        .bind(&asked.key)
        .bind(&asked.fingerprint[..])
        .fetch_one(&mut *transaction)
        .await?;
    if claimed.try_get("ours")? {
        let reply = charge(&stage.work, &mut transaction, &body).await?;
        keep(&mut transaction, &asked, &reply).await?;
        transaction.commit().await?;
        return Ok(reply.into_response());
    }
    let status: Option<i16> = claimed.try_get("status")?;
    let row = match status {
        Some(_) => claimed,
        // It waited for somebody's commit, which its own snapshot could not show.
        None => sqlx::query(READ)
            .bind(&asked.owner)
            .bind(OPERATION)
            .bind(&asked.key)
            .fetch_optional(&mut *transaction)
            .await?
            .ok_or(Failure::Refused(StatusCode::CONFLICT))?,
    };
    transaction.rollback().await?;
    replay(&asked, &row)
}

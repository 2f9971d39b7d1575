//! The shape that the book "Zero To Production In Rust" teaches: claim, work and answer in one transaction, a statement
//! each. No fingerprint is compared there, no window ends, and no wait is bounded.
//!
//! Kinder than the original in one respect: the stored answer is read on the connection that found the conflict, and
//! not on a second one, which a storm that fills the pool would have to wait for while it holds the first.

use axum::{
    extract::State,
    http::{HeaderMap, Uri},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;

use super::kept::{Asked, OPERATION, READ, keep, replay};
use crate::work::{Failure, Stage, charge};

const CLAIM: &str = "\
insert into kept (owner, operation, key, fingerprint)
values ($1, $2, $3, $4)
on conflict do nothing
";

pub(super) async fn handler(
    State(stage): State<Stage>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Failure> {
    let asked = Asked::of(&headers, &uri, &[])?;
    let mut transaction = stage.pool.begin().await?;
    let claimed = sqlx::query(CLAIM)
        .bind(&asked.owner)
        .bind(OPERATION)
        .bind(&asked.key)
        .bind(&asked.fingerprint[..])
        .execute(&mut *transaction)
        .await?;
    if claimed.rows_affected() == 0 {
        let read = sqlx::query(READ).bind(&asked.owner).bind(OPERATION).bind(&asked.key);
        let row = read.fetch_one(&mut *transaction).await?;
        transaction.rollback().await?;
        return replay(&asked, &row);
    }
    let reply = charge(&stage.work, &mut transaction, &body).await?;
    keep(&mut transaction, &asked, &reply).await?;
    transaction.commit().await?;
    Ok(reply.into_response())
}

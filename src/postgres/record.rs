//! The answer: the last statement before the commit.

use sqlx::PgConnection;

use super::{Prepared, claim::Columns, error::before_commit};
use crate::{Error, ErrorKind, IdempotentRequest, StoredResponse, error::Ended};

/// `created_at` is when the claiming transaction began, and so is `now()` as long as that transaction lasts. A row
/// that this does not find was claimed by another transaction: the work has ended ours.
const RECORD: &str = "\
update idempotency.keys
   set status = $4, header_names = $5, header_values = $6, body = $7
 where scope = $1 and operation = $2 and key = $3
   and status is null and created_at = now()
";

/// Is the claim still this transaction's own, and if it is not there so, can everybody see it?
const CHECK: &str = "\
select status is null and created_at = now() as own, status is null as unanswered
  from idempotency.keys
 where scope = $1 and operation = $2 and key = $3
";

/// Writes the answer into the row that this transaction has claimed.
///
/// # Errors
///
/// [`TransactionAborted`](ErrorKind::TransactionAborted) if a statement had failed before,
/// [`TransactionEnded`](ErrorKind::TransactionEnded) if this is not the transaction that claimed the row.
pub(crate) async fn record(
    connection: &mut PgConnection,
    request: &IdempotentRequest,
    response: &StoredResponse,
    prepared: Prepared,
) -> Result<(), Error> {
    let columns = Columns::of(response);
    let done = sqlx::query(RECORD)
        .bind(request.scope().as_stored())
        .bind(request.operation().as_str())
        .bind(request.key().as_str())
        .bind(columns.status)
        .bind(columns.header_names)
        .bind(columns.header_values)
        .bind(columns.body)
        .persistent(prepared.kept())
        .execute(&mut *connection)
        .await
        .map_err(before_commit)?;
    if done.rows_affected() == 1 {
        return Ok(());
    }
    check(connection, request, prepared).await.and(Err(Error::ended(Ended::RolledBack)))
}

/// Before a rollback: is there still something to roll back? A transaction that PostgreSQL has given up is still ours.
///
/// # Errors
///
/// [`TransactionEnded`](ErrorKind::TransactionEnded), with how.
pub(crate) async fn check(
    connection: &mut PgConnection,
    request: &IdempotentRequest,
    prepared: Prepared,
) -> Result<(), Error> {
    let row = sqlx::query_as(CHECK)
        .bind(request.scope().as_stored())
        .bind(request.operation().as_str())
        .bind(request.key().as_str())
        .persistent(prepared.kept())
        .fetch_optional(connection)
        .await
        .map_err(before_commit);
    match row {
        Ok(Some((true, _))) => Ok(()),
        Ok(Some((false, true))) => Err(Error::ended(Ended::Committed)),
        Ok(Some((false, false)) | None) => Err(Error::ended(Ended::RolledBack)),
        Err(error) if error.kind() == ErrorKind::TransactionAborted => Ok(()),
        Err(error) => Err(error),
    }
}

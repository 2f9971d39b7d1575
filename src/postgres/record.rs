//! The answer: the last statement before the commit.

use sqlx::PgConnection;

use super::{claim::Columns, error::before_commit};
use crate::{Error, IdempotentRequest, StoredResponse, error::Ended};

/// `created_at` is when the claiming transaction began, and so is `now()` as long as that transaction lasts. A row
/// that this does not find was claimed by another transaction: the work has ended ours.
const RECORD: &str = "\
update idempotency.keys
   set status = $4, header_names = $5, header_values = $6, body = $7
 where scope = $1 and operation = $2 and key = $3
   and status is null and created_at = now()
";

/// A claim that anybody can see was committed, and not by us.
const IS_COMMITTED: &str = "\
select exists (
  select from idempotency.keys where scope = $1 and operation = $2 and key = $3 and status is null
)";

/// Writes the answer into the row that this transaction has claimed.
///
/// # Errors
///
/// [`TransactionAborted`](crate::ErrorKind::TransactionAborted) if a statement had failed before,
/// [`TransactionEnded`](crate::ErrorKind::TransactionEnded) if this is not the transaction that claimed the row.
pub(crate) async fn record(
    connection: &mut PgConnection,
    request: &IdempotentRequest,
    response: &StoredResponse,
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
        .execute(&mut *connection)
        .await
        .map_err(before_commit)?;
    if done.rows_affected() == 1 {
        return Ok(());
    }
    let committed = sqlx::query_scalar(IS_COMMITTED)
        .bind(request.scope().as_stored())
        .bind(request.operation().as_str())
        .bind(request.key().as_str())
        .fetch_one(connection)
        .await
        .map_err(before_commit)?;
    Err(Error::ended(if committed { Ended::Committed } else { Ended::RolledBack }))
}

//! Transactions without a claim, which have no row by which to tell that they are still the same.

use sqlx::{PgPool, SqlSafeStr as _};

use super::{Prepared, error::before_commit, transaction::Transaction};
use crate::{Error, error::Ended};

/// One message for both; the mark is gone when the transaction ends, however it ends.
const BEGIN_MARKED: &str = "begin; set local idempotency.transaction = 'open'";
const IS_MARKED: &str = "select coalesce(current_setting('idempotency.transaction', true), '') = 'open'";

/// Begins a transaction that [`check`] will know again.
pub(crate) async fn begin(pool: &PgPool) -> Result<Transaction, Error> {
    let connection = pool.acquire().await.map_err(before_commit)?;
    Transaction::begin_on(connection, Some(BEGIN_MARKED.into_sql_str())).await
}

/// Is the transaction still open and healthy?
///
/// # Errors
///
/// [`TransactionAborted`](crate::ErrorKind::TransactionAborted) or [`TransactionEnded`](crate::ErrorKind::TransactionEnded).
pub(crate) async fn check(transaction: &mut Transaction, prepared: Prepared) -> Result<(), Error> {
    let marked: bool = sqlx::query_scalar(IS_MARKED)
        .persistent(prepared.kept())
        .fetch_one(transaction.connection())
        .await
        .map_err(before_commit)?;
    if marked { Ok(()) } else { Err(Error::ended(Ended::Either)) }
}

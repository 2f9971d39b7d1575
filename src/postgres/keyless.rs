//! Transactions without a claim, which have no row by which to tell that they are still the same.

use sqlx::{AssertSqlSafe, Executor as _};

use super::{
    error::is_no_cursor,
    token::{after_work, is_of, out_of_step, token},
    transaction::Transaction,
};
use crate::{
    Error,
    error::{Connection, Ended},
};

/// The cursor that [`Begin::Keyless`](super::begin::Begin::Keyless) has opened. Without it the transaction can be committed.
const CLOSE: &str = "close idempotency_transaction";

/// Is the transaction still open and healthy? Only after this it can be committed.
///
/// # Errors
///
/// [`TransactionAborted`](crate::ErrorKind::TransactionAborted) or [`TransactionEnded`](crate::ErrorKind::TransactionEnded).
pub(crate) async fn check(transaction: &mut Transaction) -> Result<(), Error> {
    let sending = transaction.sending();
    let taken = sending.take_in(transaction.connection()).await;
    transaction.note(taken)?;
    let token = token();
    let close = AssertSqlSafe(format!("{CLOSE}; select {token}::pg_catalog.int8 as token"));
    let closed = sending.within(transaction.connection().fetch_optional(close)).await;
    let checked = match closed {
        Ok(Some(row)) if is_of(&row, token) => Ok(()),
        Ok(_) => Err(out_of_step()),
        Err(error) if is_no_cursor(&error) => Err(Error::ended(Ended::Either).on(Connection::Unfit)),
        Err(error) => Err(after_work(super::error::before_commit(error))),
    };
    let checked = transaction.note(checked);
    if checked.is_ok() {
        transaction.is_in_step();
    }
    checked
}

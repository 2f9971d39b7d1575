//! Transactions without a claim, which have no row by which to tell that they are still the same.

use sqlx::Executor as _;

use super::{error::is_no_cursor, transaction::Transaction};
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
    let closed = sending.within(transaction.connection().execute(CLOSE)).await;
    let checked = match closed {
        Ok(_) => Ok(()),
        Err(error) if is_no_cursor(&error) => Err(Error::ended(Ended::Either).on(Connection::Unfit)),
        Err(error) => Err(super::error::before_commit(error)),
    };
    transaction.note(checked)
}

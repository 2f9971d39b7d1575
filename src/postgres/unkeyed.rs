//! Transactions without a claim, which have no row by which to tell that they are still the same.

use super::transaction::Transaction;
use crate::{Error, error::Ended};

/// Whether the mark that [`Begin::Keyless`](super::begin::Begin::Keyless) has left is still there.
const IS_MARKED: &str = "select coalesce(current_setting('idempotency.transaction', true), '') = 'open'";

/// Is the transaction still open and healthy?
///
/// # Errors
///
/// [`TransactionAborted`](crate::ErrorKind::TransactionAborted) or [`TransactionEnded`](crate::ErrorKind::TransactionEnded).
pub(crate) async fn check(transaction: &mut Transaction) -> Result<(), Error> {
    let sending = transaction.sending();
    let asked = sqlx::query_scalar(IS_MARKED).persistent(sending.kept).fetch_one(transaction.connection());
    let asked = sending.ask(asked).await;
    let marked: bool = transaction.note(asked)?;
    if marked { Ok(()) } else { Err(Error::ended(Ended::Either)) }
}

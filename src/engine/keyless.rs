use sqlx::PgConnection;

use super::{
    Idempotency, Uninterrupted,
    attempt::{Slow, why_so_slow},
};

use crate::{
    Error, ErrorKind, LocalSettings,
    error::Connection,
    postgres::{begin::Begin, keyless, transaction::Transaction},
};

/// A transaction around work that has no key: nothing is remembered, but all of it is committed or nothing.
#[derive(Debug)]
pub(crate) struct Keyless {
    transaction: Transaction,
    idempotency: Idempotency,
}

impl Keyless {
    /// Goes on by itself if it is dropped, so that the BEGIN is not cut in two. So do the two ends.
    pub(crate) async fn begin(idempotency: &Idempotency, settings: LocalSettings) -> Result<Self, Error> {
        let idempotency = idempotency.clone();
        let backlog = idempotency.0.backlog.clone();
        let begun = async move {
            let transaction = idempotency.0.connections.begin(Begin::Keyless, &settings).await?;
            Ok(Self { transaction, idempotency })
        };
        Uninterrupted::new(&backlog, begun).await
    }

    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        self.transaction.lend()
    }

    pub(crate) fn connection_ref(&self) -> &PgConnection {
        self.transaction.connection_ref()
    }

    /// Asked when the work was cut off: does it wait for itself?
    pub(crate) async fn why_so_slow(&mut self) -> Option<Slow> {
        why_so_slow(&mut self.transaction).await
    }

    pub(crate) async fn commit(self) -> Result<(), Error> {
        let backlog = self.idempotency.0.backlog.clone();
        Uninterrupted::new(&backlog, self.check_and_commit()).await
    }

    async fn check_and_commit(mut self) -> Result<(), Error> {
        match keyless::check(&mut self.transaction).await {
            Ok(()) => self.transaction.commit().await,
            Err(error) if is_beyond_rollback(&error) => {
                self.transaction.close();
                Err(error)
            }
            Err(error) => {
                drop(self.transaction.rollback().await);
                Err(error)
            }
        }
    }

    /// # Errors
    ///
    /// As for [`Attempt::release`](crate::Attempt::release).
    pub(crate) async fn rollback(self) -> Result<(), Error> {
        let backlog = self.idempotency.0.backlog.clone();
        Uninterrupted::new(&backlog, self.check_and_rollback()).await
    }

    async fn check_and_rollback(mut self) -> Result<(), Error> {
        if !self.transaction.is_fit() {
            self.transaction.close();
            return Ok(());
        }
        match keyless::check(&mut self.transaction).await {
            Err(error) if is_beyond_rollback(&error) => {
                self.transaction.close();
                Err(error)
            }
            Ok(()) | Err(_) => self.transaction.rollback().await,
        }
    }
}

/// Is there nothing to roll back, or nobody to be asked for it?
fn is_beyond_rollback(error: &Error) -> bool {
    error.kind() == ErrorKind::TransactionEnded || error.connection() != Connection::Fit
}

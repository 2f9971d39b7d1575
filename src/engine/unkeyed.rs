use sqlx::PgConnection;

use super::{Idempotency, Uninterrupted};

use crate::{
    Error, ErrorKind,
    postgres::{transaction::Transaction, unkeyed},
};

/// A transaction around work that has no key: nothing is remembered, but all of it is committed or nothing.
#[derive(Debug)]
pub(crate) struct Unkeyed {
    transaction: Transaction,
    idempotency: Idempotency,
}

impl Unkeyed {
    /// Goes on by itself if it is dropped, so that the BEGIN is not cut in two. So do the two ends.
    pub(crate) async fn begin(idempotency: &Idempotency) -> Result<Self, Error> {
        let idempotency = idempotency.clone();
        let backlog = idempotency.0.backlog.clone();
        let begun = async move {
            let transaction = unkeyed::begin(&idempotency.0.pool).await?;
            Ok(Self { transaction, idempotency })
        };
        Uninterrupted::new(&backlog, begun).await
    }

    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        self.transaction.connection()
    }

    pub(crate) fn connection_ref(&self) -> &PgConnection {
        self.transaction.connection_ref()
    }

    pub(crate) async fn commit(self) -> Result<(), Error> {
        let backlog = self.idempotency.0.backlog.clone();
        Uninterrupted::new(&backlog, self.check_and_commit()).await
    }

    async fn check_and_commit(mut self) -> Result<(), Error> {
        match unkeyed::check(&mut self.transaction, self.idempotency.0.prepared).await {
            Ok(()) => self.transaction.commit().await,
            Err(error) if error.kind() == ErrorKind::TransactionEnded => {
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
        match unkeyed::check(&mut self.transaction, self.idempotency.0.prepared).await {
            Err(error) if error.kind() == ErrorKind::TransactionEnded => {
                self.transaction.close();
                Err(error)
            }
            Ok(()) | Err(_) => self.transaction.rollback().await,
        }
    }
}

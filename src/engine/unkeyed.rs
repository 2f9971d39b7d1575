use sqlx::{PgConnection, PgPool};

use crate::{
    Error, ErrorKind,
    postgres::{transaction::Transaction, unkeyed},
};

/// A transaction around work that has no key: nothing is remembered, but all of it is committed or nothing.
#[derive(Debug)]
pub(crate) struct Unkeyed(Transaction);

impl Unkeyed {
    pub(crate) async fn begin(pool: &PgPool) -> Result<Self, Error> {
        unkeyed::begin(pool).await.map(Self)
    }

    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        self.0.connection()
    }

    pub(crate) fn connection_ref(&self) -> &PgConnection {
        self.0.connection_ref()
    }

    pub(crate) async fn commit(mut self) -> Result<(), Error> {
        match unkeyed::check(&mut self.0).await {
            Ok(()) => self.0.commit().await,
            Err(error) if error.kind() == ErrorKind::TransactionEnded => {
                self.0.close();
                Err(error)
            }
            Err(error) => {
                drop(self.0.rollback().await);
                Err(error)
            }
        }
    }

    pub(crate) async fn rollback(self) -> Result<(), Error> {
        self.0.rollback().await
    }
}

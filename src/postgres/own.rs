//! What the crate does by itself, besides requests: one statement in a transaction, which also keeps its messages together
//! behind a pooler.

use sqlx::{
    Postgres,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use super::{Connections, begin::Begin, transaction::Transaction};
use crate::{Error, LocalSettings};

type Statement<'q> = Query<'q, Postgres, PgArguments>;

impl Connections {
    pub(super) async fn begin_own(&self) -> Result<Transaction, Error> {
        self.begin(Begin::Own, &LocalSettings::new()).await
    }

    /// Changes something, commits it, and says how many rows it was.
    pub(super) async fn change(&self, statement: Statement<'_>) -> Result<u64, Error> {
        let mut transaction = self.begin_own().await?;
        let done = self.sending().ask(statement.execute(transaction.connection())).await;
        let done = transaction.note(done)?;
        transaction.commit().await?;
        Ok(done.rows_affected())
    }

    /// Likewise, and gives what the statement tells.
    pub(super) async fn change_and_tell(&self, statement: Statement<'_>) -> Result<PgRow, Error> {
        let mut transaction = self.begin_own().await?;
        let done = self.sending().ask(statement.fetch_one(transaction.connection())).await;
        let done = transaction.note(done)?;
        transaction.commit().await?;
        Ok(done)
    }

    /// Looks something up.
    pub(super) async fn look(&self, question: Statement<'_>) -> Result<Option<PgRow>, Error> {
        let mut transaction = self.begin_own().await?;
        let sending = self.sending();
        let found = sending.ask(question.persistent(sending.kept).fetch_optional(transaction.connection())).await;
        let found = transaction.note(found)?;
        transaction.rollback().await?;
        Ok(found)
    }
}

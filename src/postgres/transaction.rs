use std::time::Duration;

use sqlx::{
    Connection as _, Database, Executor as _, PgConnection, PgPool, Postgres, SqlSafeStr as _, SqlStr,
    pool::PoolConnection,
};
use sqlx_core::transaction::TransactionManager as _;
use tokio::{runtime::Handle, time::timeout};

use super::error::{before_commit, during_commit};
use crate::{Error, ErrorKind, error::Ended};

/// How long a rollback may take before the connection is closed instead: a statement that was cut off may still be
/// running, and the connection answers only when it has ended. Closing it leaves that to the server.
pub(crate) const ROLLBACK_LIMIT: Duration = Duration::from_secs(1);

type Manager = <Postgres as Database>::TransactionManager;

/// An open transaction and the pooled connection that it runs on.
///
/// Unlike sqlx's own type it keeps hold of the pooled connection, so that it can close it: a connection goes back
/// to the pool only when it is known to be outside any transaction. Dropping it rolls back in the background.
#[derive(Debug)]
pub(crate) struct Transaction {
    /// `None` only while the methods that take `self` are ending it.
    connection: Option<PoolConnection<Postgres>>,
    /// False from when a BEGIN or COMMIT is sent until its answer is there. sqlx (0.9) loses track of one that is
    /// not awaited to its end, and the next borrower would find himself inside the transaction.
    sound: bool,
    runtime: Handle,
}

impl Transaction {
    /// Takes a connection from the pool and begins.
    pub(crate) async fn begin(pool: &PgPool) -> Result<Self, Error> {
        Self::begin_on(Self::connect(pool).await?, None).await
    }

    /// Begins one for what the crate does by itself, whatever the role's isolation level is: it has to see what was
    /// committed while it waited. It waits for locks no longer than a second.
    pub(crate) async fn own(pool: &PgPool) -> Result<Self, Error> {
        const BEGIN: &str = "begin isolation level read committed; set local lock_timeout = '1s'";

        Self::begin_on(Self::connect(pool).await?, Some(BEGIN.into_sql_str())).await
    }

    /// Takes a connection from the pool, to begin on later.
    pub(crate) async fn connect(pool: &PgPool) -> Result<PoolConnection<Postgres>, Error> {
        pool.acquire().await.map_err(before_commit)
    }

    pub(crate) async fn begin_on(
        connection: PoolConnection<Postgres>,
        statement: Option<SqlStr>,
    ) -> Result<Self, Error> {
        let mut this = Self {
            connection: Some(connection),
            sound: false,
            runtime: Handle::try_current().map_err(|error| Error::with_source(ErrorKind::Database, error))?,
        };
        Manager::begin(this.connection(), statement).await.map_err(before_commit)?;
        this.sound = true;
        Ok(this)
    }

    /// The connection, for statements inside the transaction.
    #[expect(clippy::expect_used, reason = "only methods that take `self` by value empty it")]
    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        self.connection.as_deref_mut().expect("BUG: the transaction has ended")
    }

    #[cfg(feature = "axum")]
    #[expect(clippy::expect_used, reason = "only methods that take `self` by value empty it")]
    pub(crate) fn connection_ref(&self) -> &PgConnection {
        self.connection.as_deref().expect("BUG: the transaction has ended")
    }

    /// Commits. The last statement before must have succeeded inside the transaction: PostgreSQL answers the COMMIT
    /// of an aborted one without an error, and sqlx does not look at what it says.
    pub(crate) async fn commit(mut self) -> Result<(), Error> {
        self.sound = false;
        let connection = self.connection();
        if Manager::get_transaction_depth(connection) != 1 {
            return Err(Error::ended(Ended::Savepoint));
        }
        Manager::commit(connection).await.map_err(during_commit)?;
        drop(self.connection.take());
        Ok(())
    }

    /// Rolls back and gives the connection to the pool.
    pub(crate) async fn rollback(self) -> Result<(), Error> {
        self.end().await.map(drop)
    }

    /// Rolls back and begins anew, on the same connection.
    pub(crate) async fn restart(self) -> Result<Self, Error> {
        Self::begin_on(self.end().await?, None).await
    }

    /// Rolls back and keeps the connection, now outside any transaction.
    #[expect(clippy::expect_used, reason = "only methods that take `self` by value empty it")]
    pub(crate) async fn end(mut self) -> Result<PoolConnection<Postgres>, Error> {
        self.sound = false;
        match timeout(ROLLBACK_LIMIT, roll_back(self.connection())).await {
            Ok(rolled_back) => rolled_back.map_err(before_commit)?,
            Err(elapsed) => return Err(Error::with_source(ErrorKind::StoreUnavailable, elapsed)),
        }
        Ok(self.connection.take().expect("BUG: the transaction has ended"))
    }

    /// Closes the connection, since nobody knows what state it is in; the server rolls back what is open.
    pub(crate) fn close(mut self) {
        self.sound = false;
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        // sqlx spawns when a pooled connection is dropped, and panics outside a runtime.
        let _entered = self.runtime.enter();
        if !self.sound {
            connection.close_on_drop();
            // Before the runtime is left.
            drop(connection);
            return;
        }
        drop(self.runtime.spawn(async move {
            let rolled_back = timeout(ROLLBACK_LIMIT, roll_back(&mut connection)).await;
            if !matches!(rolled_back, Ok(Ok(()))) {
                connection.close_on_drop();
            }
        }));
    }
}

/// Rolls back, savepoints that somebody forgot included.
async fn roll_back(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    while connection.is_in_transaction() {
        Manager::rollback(connection).await?;
    }
    Ok(())
}

/// Fails if PostgreSQL has given the transaction up. To be asked before a savepoint: where SAVEPOINT itself fails, sqlx
/// (0.9) rolls the whole transaction back, and what comes after that would be durable statement by statement.
pub(crate) async fn probe(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    connection.execute("select 1").await.map(drop)
}

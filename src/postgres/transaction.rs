use std::time::Duration;

use sqlx::{Connection as _, Database, Executor as _, PgConnection, Postgres, SqlStr};
use sqlx_core::transaction::TransactionManager as _;
use tokio::time::timeout;

use super::{
    Sending,
    error::{at_begin, before_commit, during_commit, gave_up},
    lent::Lent,
    token,
};
use crate::{
    Error,
    error::{Connection, Ended, Unavailable},
};

/// How long a rollback may take before the connection is closed instead: a statement that was cut off may still be
/// running, and the connection responds only when it has ended. Closing it leaves that to the server.
pub(crate) const ROLLBACK_LIMIT: Duration = Duration::from_secs(1);

type Manager = <Postgres as Database>::TransactionManager;

/// An open transaction and the pooled connection that it runs on.
///
/// Unlike sqlx's own type it keeps hold of the pooled connection, so that it can close it: a connection goes back
/// to the pool only when it is known to be outside any transaction, and fit to serve. Dropping it rolls back in the
/// background.
#[derive(Debug)]
pub(crate) struct Transaction {
    /// `None` only while the methods that take `self` are ending it.
    lent: Option<Lent>,
    /// `Busy` from when a BEGIN or COMMIT is sent until its result is there: sqlx (0.9) loses track of one that is not
    /// awaited to its end, and the next borrower would be inside the transaction.
    state: Connection,
    /// Whether what the connection gives as a statement's result is known to be that one's: the work may have left it otherwise.
    in_step: bool,
    begin: SqlStr,
    sending: Sending,
}

impl Transaction {
    pub(super) async fn begin_on(lent: Lent, begin: SqlStr, sending: Sending) -> Result<Self, Error> {
        let mut this = Self { lent: Some(lent), state: Connection::Busy, in_step: true, begin: begin.clone(), sending };
        let settings = begin.as_str().contains("set_config");
        match sending.within(Manager::begin(this.connection(), Some(begin))).await {
            Ok(()) => {
                this.state = Connection::Fit;
                Ok(this)
            }
            Err(error) => {
                let error = at_begin(error, settings);
                // A BEGIN of several statements may have failed halfway, inside the transaction.
                this.state = error.connection().max(Connection::Unfit);
                Err(error)
            }
        }
    }

    /// The connection, for statements inside the transaction.
    #[expect(clippy::expect_used, reason = "only methods that take `self` by value empty it")]
    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        self.lent.as_deref_mut().expect("BUG: the transaction has ended")
    }

    #[cfg(feature = "axum")]
    #[expect(clippy::expect_used, reason = "only methods that take `self` by value empty it")]
    pub(crate) fn connection_ref(&self) -> &PgConnection {
        self.lent.as_deref().expect("BUG: the transaction has ended")
    }

    /// The connection, for the work.
    pub(crate) fn lend(&mut self) -> &mut PgConnection {
        self.in_step = false;
        self.connection()
    }

    /// The last statement on the connection gave what was its own.
    pub(crate) fn is_in_step(&mut self) {
        self.in_step = true;
    }

    /// Is the connection known to be in order?
    pub(crate) fn is_fit(&self) -> bool {
        self.state == Connection::Fit
    }

    pub(crate) fn sending(&self) -> Sending {
        self.sending
    }

    /// What a statement on the connection gave. After a failure that says that the connection cannot serve on, it will be
    /// closed and not given back.
    pub(crate) fn note<T>(&mut self, given: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &given {
            self.state = self.state.max(error.connection());
        }
        given
    }

    /// Commits. The last statement before must have succeeded inside the transaction: PostgreSQL responds to the COMMIT
    /// of an aborted one without an error, and sqlx does not look at what it says.
    pub(crate) async fn commit(mut self) -> Result<(), Error> {
        let sending = self.sending;
        let connection = self.connection();
        match Manager::get_transaction_depth(connection) {
            1 => {}
            0 => {
                self.close();
                return Err(Error::ended(Ended::RolledBack));
            }
            _ => return Err(Error::ended(Ended::Savepoint)),
        }
        self.state = Connection::Busy;
        match sending.within(Manager::commit(self.connection())).await {
            Ok(()) => {
                drop(self.lent.take());
                Ok(())
            }
            Err(error) => {
                let error = during_commit(error);
                // sqlx still counts the transaction that the server has ended.
                self.state = error.connection().max(Connection::Unfit);
                Err(error)
            }
        }
    }

    /// Rolls back and gives the connection to the pool.
    pub(crate) async fn rollback(self) -> Result<(), Error> {
        self.end().await.map(drop)
    }

    /// Rolls back and begins anew, on the same connection.
    pub(crate) async fn restart(self) -> Result<Self, Error> {
        let (begin, sending) = (self.begin.clone(), self.sending);
        Self::begin_on(self.end().await?, begin, sending).await
    }

    /// Rolls back and keeps the connection, now outside any transaction.
    #[expect(clippy::expect_used, reason = "only methods that take `self` by value empty it")]
    pub(crate) async fn end(mut self) -> Result<Lent, Error> {
        let (state, sending) = (self.state, self.sending);
        self.state = Connection::Busy;
        if let Err(error) = roll_back(self.connection(), sending).await {
            let error = before_commit(error);
            self.state = error.connection().max(Connection::Unfit);
            return Err(error);
        }
        self.state =
            if self.in_step || token::is_in_step(self.connection(), sending).await { state } else { Connection::Busy };
        let state = self.state;
        let lent = self.lent.take().expect("BUG: the transaction has ended");
        if state == Connection::Fit {
            return Ok(lent);
        }
        // What was open is undone, and the connection cannot serve another request.
        lent.discard(state);
        Err(Error::unavailable(Unavailable::Unfit))
    }

    /// Closes the connection, since its state is not known; the server rolls back what is open.
    pub(crate) fn close(mut self) {
        self.state = self.state.max(Connection::Unfit);
    }

    /// Likewise, while a statement may still be running on it.
    pub(crate) fn close_busy(mut self) {
        self.state = Connection::Busy;
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let Some(mut lent) = self.lent.take() else {
            return;
        };
        if self.state != Connection::Fit {
            lent.discard(self.state);
            return;
        }
        let (runtime, sending, in_step) = (lent.runtime().clone(), self.sending, self.in_step);
        drop(runtime.spawn(async move {
            match roll_back(&mut lent, sending).await {
                Err(error) => lent.discard(before_commit(error).connection().max(Connection::Unfit)),
                Ok(()) if in_step || token::is_in_step(&mut lent, sending).await => {}
                Ok(()) => lent.discard(Connection::Busy),
            }
        }));
    }
}

/// Rolls back, including forgotten savepoints.
async fn roll_back(connection: &mut PgConnection, sending: Sending) -> Result<(), sqlx::Error> {
    let limit = ROLLBACK_LIMIT.min(sending.limit);
    let rolling_back = async {
        if !connection.is_in_transaction() {
            // sqlx has lost count, by the work's own doing; the server's state is not known.
            return Err(sqlx::Error::Protocol("the transaction is not the one that was begun".to_owned()));
        }
        while connection.is_in_transaction() {
            Manager::rollback(connection).await?;
        }
        Ok(())
    };
    match timeout(limit, rolling_back).await {
        Ok(rolled_back) => rolled_back,
        Err(_) => Err(gave_up(Unavailable::NoAnswer(limit))),
    }
}

/// Fails if PostgreSQL has given the transaction up. To be asked before a savepoint: where SAVEPOINT itself fails, sqlx
/// (0.9) rolls the whole transaction back, and what comes after that would be durable statement by statement.
pub(crate) async fn probe(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    connection.execute("select 1").await.map(drop)
}

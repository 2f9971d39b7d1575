//! The response: the last statement before the commit.

use sqlx::{
    PgConnection, Postgres, Row as _,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use super::{
    Sending, Table,
    error::before_commit,
    row::{Columns, window},
    sql::{sql, sql_of_both},
    table::Statements,
    time::Moment,
    token::{after_work, is_of, out_of_step, token},
};
use crate::{
    Error, ErrorKind, IdempotentRequest, Retention, StoredResponse, Window,
    error::{Connection, Ended, Unavailable},
};

const RECORD: Statements = sql_of_both!("record");

/// By the row's place.
const RECORD_AT: Statements = sql_of_both!("record_at");

/// With a retention of the response's own.
const RECORD_FOR: Statements = sql_of_both!("record_for");

const RECORD_FOR_AT: Statements = sql_of_both!("record_for_at");

const IS_OWN: &str = sql!("is_own");

const CLAIMED: Statements = sql_of_both!("claimed");

/// A claimed row: where it is, and in what kind of session it was claimed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    pub(crate) request: &'a IdempotentRequest,
    pub(crate) table: Table,
    /// Whether its key carries a timestamp, which says how long it is kept, whatever its response says.
    pub(crate) timed: bool,
    /// What the claim said, unless another call has claimed.
    pub(crate) window: Option<Window>,
    /// Where it lies in its table, if that is to be used.
    pub(crate) tid: Option<&'a str>,
    pub(crate) sending: Sending,
    /// Whether its session refuses what is written outside the transaction.
    pub(crate) guarded: bool,
}

/// Writes the response into the row that this transaction has claimed, and says for how long it is kept, if the response
/// has a retention of its own.
///
/// # Errors
///
/// [`TransactionAborted`](ErrorKind::TransactionAborted) if a statement had failed before,
/// [`TransactionEnded`](ErrorKind::TransactionEnded) if this is not the transaction that claimed the row.
pub(crate) async fn record(
    connection: &mut PgConnection,
    row: Row<'_>,
    response: &StoredResponse,
) -> Result<Option<Window>, Error> {
    row.sending.take_in(connection).await?;
    let own = match response.retention() {
        None => None,
        Some(retention) => match row.claimed(connection).await {
            Ok(Some(claimed)) => Some(row.window_for(retention, claimed)),
            Ok(None) => return Err(row.ended()),
            Err(error) => return Err(error),
        },
    };
    let recorded = match row.write(connection, response, own).await {
        // A trigger of the operator's may have given it another place.
        Ok(false) if row.tid.is_some() => Row { tid: None, ..row }.write(connection, response, own).await,
        recorded => recorded,
    };
    match recorded {
        Ok(true) => Ok(own),
        Ok(false) => Err(row.lost(connection).await),
        Err(error) => Err(row.refused(connection, after_work(error)).await),
    }
}

/// Before a rollback: is there still something to roll back?
///
/// # Errors
///
/// [`TransactionEnded`](ErrorKind::TransactionEnded), with how; [`TransactionAborted`](ErrorKind::TransactionAborted) where
/// PostgreSQL has given the transaction up, which is still ours then.
pub(crate) async fn check(connection: &mut PgConnection, row: Row<'_>) -> Result<(), Error> {
    row.sending.take_in(connection).await?;
    let Some(window) = row.window else { return Err(row.lost(connection).await) };
    let token = token();
    let own = sqlx::query(IS_OWN).bind(Moment::of(window.first_used)).bind(token).persistent(row.sending.kept);
    match row.sending.ask(own.fetch_optional(&mut *connection)).await {
        Ok(Some(given)) if is_of(&given, token) => match given.try_get("own").map_err(before_commit)? {
            true => Ok(()),
            false => Err(row.lost(connection).await),
        },
        Ok(_) => Err(out_of_step()),
        Err(error) => Err(after_work(error)),
    }
}

/// Is there a claim of this very transaction's that waits for its response?
pub(crate) async fn is_held_here(connection: &mut PgConnection, row: Row<'_>) -> Result<bool, Error> {
    let found = row.look(connection).await?;
    let told = |found: PgRow| Ok(found.try_get("own")? && found.try_get("unanswered")?);
    found.map_or(Ok(false), |found| told(found).map_err(before_commit))
}

impl<'a> Row<'a> {
    fn bound(&self, statement: &'static str) -> Query<'a, Postgres, PgArguments> {
        sqlx::query(statement)
            .bind(self.request.scope().as_stored())
            .bind(self.request.operation().as_str())
            .bind(self.request.key().as_str())
    }

    /// What the claim said; `None` if there is no claim of this transaction's.
    async fn claimed(&self, connection: &mut PgConnection) -> Result<Option<Window>, Error> {
        if self.window.is_some() {
            return Ok(self.window);
        }
        let Some(found) = self.look(connection).await? else { return Ok(None) };
        let own: bool = found.try_get("own").map_err(before_commit)?;
        if !own {
            return Ok(None);
        }
        // The caller's transaction may have begun long ago: a retention of the response's own counts from now.
        let first_used = Moment::read(&found, "asked_at")?.map(Moment::to_system_time);
        let claimed = window(&found)?;
        Ok(Some(Window { first_used: first_used.unwrap_or(claimed.first_used), ..claimed }))
    }

    async fn look(&self, connection: &mut PgConnection) -> Result<Option<PgRow>, Error> {
        let query = self.table.bind(self.bound(self.table.of(&CLAIMED))).persistent(self.sending.kept);
        self.sending.ask(query.fetch_optional(connection)).await
    }

    /// For how long a response with a retention of its own is kept, counted from the first use of its key.
    fn window_for(&self, retention: Retention, claimed: Window) -> Window {
        let first_used = Moment::of(claimed.first_used);
        let until = |micros: Option<i64>| micros.map(|micros| first_used.plus(micros).to_system_time());
        let expires = if self.timed { claimed.expires } else { until(retention.keep_micros()) };
        let replay_ends = until(retention.replay_micros()).into_iter().chain(expires).min();
        Window { expires, replay_ends, ..claimed }
    }

    /// Says whether there is such a row.
    async fn write(
        &self,
        connection: &mut PgConnection,
        response: &StoredResponse,
        own: Option<Window>,
    ) -> Result<bool, Error> {
        let statement = match (self.tid, own) {
            (None, None) => self.table.of(&RECORD),
            (None, Some(_)) => self.table.of(&RECORD_FOR),
            (Some(_), None) => self.table.of(&RECORD_AT),
            (Some(_), Some(_)) => self.table.of(&RECORD_FOR_AT),
        };
        let columns = Columns::of(response);
        let mut query = self
            .bound(statement)
            .bind(columns.status)
            .bind(columns.header_names)
            .bind(columns.header_values)
            .bind(columns.body);
        if let Some(Window { expires, replay_ends, first_used: _ }) = own {
            // What ends with the row needs no time of its own.
            let replay_until = replay_ends.filter(|_| replay_ends != expires);
            query = query.bind(expires.map(Moment::of)).bind(replay_until.map(Moment::of));
        }
        query = self.table.bind(query);
        if let Some(tid) = self.tid {
            query = query.bind(tid);
        }
        let token = token();
        let written = query.bind(token).persistent(self.sending.kept).fetch_optional(connection);
        match self.sending.ask(written).await? {
            None => Ok(false),
            Some(row) if is_of(&row, token) => Ok(true),
            Some(_) => Err(out_of_step()),
        }
    }

    /// Why the row could not be written: where nothing may be written, either the work has made its transaction
    /// read-only, or it has ended it, and this is the session outside.
    async fn refused(self, connection: &mut PgConnection, error: Error) -> Error {
        if !matches!(error.why_unavailable(), Some(Unavailable::ReadOnly(_))) {
            return error;
        }
        let error = match check(connection, self).await {
            Ok(()) => Error::ended(Ended::ReadOnly),
            // It was open, and PostgreSQL has given it up for our own statement.
            Err(error) if error.kind() == ErrorKind::TransactionAborted => Error::ended(Ended::ReadOnly),
            Err(error) => error,
        };
        error.on(Connection::Unfit)
    }

    /// The claim is not this transaction's. Can everybody see it?
    async fn lost(self, connection: &mut PgConnection) -> Error {
        let unanswered = match self.look(connection).await {
            Ok(Some(found)) => found.try_get("unanswered").map_err(before_commit),
            Ok(None) => Ok(false),
            Err(error) => Err(error),
        };
        match unanswered {
            Ok(true) => Error::ended(Ended::Committed).on(Connection::Unfit),
            Ok(false) => self.ended(),
            Err(error) => error,
        }
    }

    /// The transaction is not there any more.
    fn ended(self) -> Error {
        let how = if self.guarded { Ended::Refused } else { Ended::RolledBack };
        Error::ended(how).on(Connection::Unfit)
    }
}

//! The response: the last statement before the commit.

use sqlx::{PgConnection, Postgres, Row as _, postgres::PgArguments, query::Query};

use super::{
    Place, Sending,
    place::{Statements, at_key},
    row::{Columns, window},
};
use crate::{
    Error, ErrorKind, IdempotentRequest, StoredResponse, Window,
    error::{Connection, Ended, Unavailable},
};

macro_rules! record {
    ($table:ident $(, $born:literal)?) => {
        concat!(
            "update idempotency.", stringify!($table), "
                set status = $4, header_names = $5, header_values = $6, body = $7",
            at_key!($table $(, $born)?), " and status is null and created_at = now()"
        )
    };
}

/// `created_at` is when the claiming transaction began, and so is `now()` as long as that transaction lasts. A row
/// that this does not find was claimed by another transaction: the work has ended ours.
const RECORD: Statements = [record!(keys), record!(timed_keys, "$8")];

/// Likewise by the row's place, where reading the index would count as a conflict with claims of other keys.
const RECORD_AT: Statements =
    [concat!(record!(keys), " and ctid = $8::tid"), concat!(record!(timed_keys, "$8"), " and ctid = $9::tid")];

macro_rules! record_for {
    ($table:ident, $expires:literal, $and:literal $(, $born:literal)?) => {
        concat!(
            "update idempotency.", stringify!($table), "
                set status = $4, header_names = $5, header_values = $6, body = $7,
                    expires_at = ", $expires, ",
                    replay_until = created_at + $9 * interval '1 microsecond'",
            at_key!($table $(, $born)?), " and status is null and created_at = now()", $and, "
          returning created_at as first_used,
                    expires_at as expires,
                    replay_until"
        )
    };
}

macro_rules! record_for_keys {
    ($and:literal) => {
        record_for!(
            keys,
            "case when born_at is null then created_at + $8 * interval '1 microsecond' else expires_at end",
            $and
        )
    };
}

/// Likewise for a response with a retention of its own, counted from the first use of its key. How long a key that bears a
/// time is kept is not the response's to say.
const RECORD_FOR: Statements = [record_for_keys!(""), record_for!(timed_keys, "expires_at", "", "$10")];

const RECORD_FOR_AT: Statements =
    [record_for_keys!(" and ctid = $10::tid"), record_for!(timed_keys, "expires_at", " and ctid = $11::tid", "$10")];

macro_rules! check {
    ($table:ident $(, $born:literal)?) => {
        concat!(
            "select status is null and created_at = now() as own, status is null as unanswered
               from idempotency.", stringify!($table), at_key!($table $(, $born)?)
        )
    };
}

/// Is the claim still this transaction's own, and if it is not there so, can everybody see it?
const CHECK: Statements = [check!(keys), check!(timed_keys, "$4")];

/// A claimed row: where it is, and in what kind of session it was claimed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    pub(crate) request: &'a IdempotentRequest,
    pub(crate) place: Place,
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
    let recorded = match row.write(connection, response).await {
        Ok(None) if row.tid.is_some() => {
            // A trigger of the operator's may have given it another place.
            Row { tid: None, ..row }.write(connection, response).await
        }
        recorded => recorded,
    };
    match recorded {
        Ok(Some(window)) => Ok(window),
        Ok(None) => match check(connection, row).await {
            Ok(()) => Err(row.ended()),
            Err(error) => Err(error),
        },
        Err(error) => Err(row.refused(connection, error).await),
    }
}

/// Before a rollback: is there still something to roll back? A transaction that PostgreSQL has given up is still ours.
///
/// # Errors
///
/// [`TransactionEnded`](ErrorKind::TransactionEnded), with how.
pub(crate) async fn check(connection: &mut PgConnection, row: Row<'_>) -> Result<(), Error> {
    row.sending.take_in(connection).await?;
    let query = row.place.bind(row.bound(row.place.of(&CHECK)));
    let found = row.sending.ask(async {
        let found = query.persistent(row.sending.kept).fetch_optional(connection).await?;
        found.map(|found| Ok((found.try_get("own")?, found.try_get("unanswered")?))).transpose()
    });
    match found.await {
        Ok(Some((true, _))) => Ok(()),
        Ok(Some((false, true))) => Err(Error::ended(Ended::Committed)),
        Ok(Some((false, false)) | None) => Err(row.ended()),
        Err(error) if error.kind() == ErrorKind::TransactionAborted => Ok(()),
        Err(error) => Err(error),
    }
}

impl<'a> Row<'a> {
    fn bound(&self, statement: &'static str) -> Query<'a, Postgres, PgArguments> {
        sqlx::query(statement)
            .bind(self.request.scope().as_stored())
            .bind(self.request.operation().as_str())
            .bind(self.request.key().as_str())
    }

    /// `None` if there is no such row.
    async fn write(
        &self,
        connection: &mut PgConnection,
        response: &StoredResponse,
    ) -> Result<Option<Option<Window>>, Error> {
        let own = response.retention();
        let statement = match (self.tid, own) {
            (None, None) => self.place.of(&RECORD),
            (None, Some(_)) => self.place.of(&RECORD_FOR),
            (Some(_), None) => self.place.of(&RECORD_AT),
            (Some(_), Some(_)) => self.place.of(&RECORD_FOR_AT),
        };
        let columns = Columns::of(response);
        let mut query = self
            .bound(statement)
            .bind(columns.status)
            .bind(columns.header_names)
            .bind(columns.header_values)
            .bind(columns.body);
        if let Some(retention) = own {
            query = query.bind(retention.keep_micros()).bind(retention.replay_micros());
        }
        query = self.place.bind(query);
        if let Some(tid) = self.tid {
            query = query.bind(tid);
        }
        let query = query.persistent(self.sending.kept);
        if own.is_none() {
            let done = self.sending.ask(query.execute(connection)).await?;
            return Ok((done.rows_affected() == 1).then_some(None));
        }
        let written = self.sending.ask(query.fetch_optional(connection)).await?;
        written.as_ref().map(|row| window(row).map(Some)).transpose()
    }

    /// Why the row could not be written: where nothing may be written, either the work has made its transaction
    /// read-only, or it has ended it, and this is the session outside.
    async fn refused(self, connection: &mut PgConnection, error: Error) -> Error {
        if !matches!(error.why_unavailable(), Some(Unavailable::ReadOnly(_))) {
            return error;
        }
        let error = match check(connection, self).await {
            // It was open, and PostgreSQL has given it up for our own statement.
            Ok(()) => Error::ended(Ended::ReadOnly),
            Err(error) => error,
        };
        error.on(Connection::Unfit)
    }

    /// The transaction is not there any more.
    fn ended(self) -> Error {
        let how = if self.guarded { Ended::Refused } else { Ended::RolledBack };
        Error::ended(how).on(Connection::Unfit)
    }
}

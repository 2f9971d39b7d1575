//! The answer: the last statement before the commit.

use sqlx::{PgConnection, Row as _};

use super::{
    Place, Prepared,
    error::before_commit,
    place::{Statements, at_key},
    row::{Columns, window},
};
use crate::{Error, ErrorKind, IdempotentRequest, StoredResponse, Window, error::Ended};

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

macro_rules! record_for {
    ($table:ident, $expires:literal $(, $born:literal)?) => {
        concat!(
            "update idempotency.", stringify!($table), "
                set status = $4, header_names = $5, header_values = $6, body = $7,
                    expires_at = ", $expires, ",
                    replay_until = created_at + $9 * interval '1 microsecond'",
            at_key!($table $(, $born)?), " and status is null and created_at = now()
          returning created_at as first_used,
                    expires_at as expires,
                    replay_until"
        )
    };
}

/// Likewise for an answer with a window of its own, counted from the first use of its key. How long a key that bears a
/// time is kept is not the answer's to say.
const RECORD_FOR: Statements = [
    record_for!(keys, "case when born_at is null then created_at + $8 * interval '1 microsecond' else expires_at end"),
    record_for!(timed_keys, "expires_at", "$10"),
];

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

/// Writes the answer into the row that this transaction has claimed, and says for how long it is kept, if the answer
/// has a window of its own.
///
/// # Errors
///
/// [`TransactionAborted`](ErrorKind::TransactionAborted) if a statement had failed before,
/// [`TransactionEnded`](ErrorKind::TransactionEnded) if this is not the transaction that claimed the row.
pub(crate) async fn record(
    connection: &mut PgConnection,
    request: &IdempotentRequest,
    place: Place,
    response: &StoredResponse,
    prepared: Prepared,
) -> Result<Option<Window>, Error> {
    let statements = if response.retention().is_some() { &RECORD_FOR } else { &RECORD };
    let columns = Columns::of(response);
    let mut query = sqlx::query(place.of(statements))
        .bind(request.scope().as_stored())
        .bind(request.operation().as_str())
        .bind(request.key().as_str())
        .bind(columns.status)
        .bind(columns.header_names)
        .bind(columns.header_values)
        .bind(columns.body);
    let Some(retention) = response.retention() else {
        let done = place.bind(query).persistent(prepared.kept()).execute(&mut *connection).await;
        if done.map_err(before_commit)?.rows_affected() == 1 {
            return Ok(None);
        }
        return Err(lost(connection, request, place, prepared).await);
    };
    query = query.bind(retention.keep_micros()).bind(retention.replay_micros());
    let row = place.bind(query).persistent(prepared.kept()).fetch_optional(&mut *connection).await;
    match row.map_err(before_commit)? {
        Some(row) => window(&row).map(Some),
        None => Err(lost(connection, request, place, prepared).await),
    }
}

/// Why the row was not there to be answered.
async fn lost(connection: &mut PgConnection, request: &IdempotentRequest, place: Place, prepared: Prepared) -> Error {
    match check(connection, request, place, prepared).await {
        Ok(()) => Error::ended(Ended::RolledBack),
        Err(error) => error,
    }
}

/// Before a rollback: is there still something to roll back? A transaction that PostgreSQL has given up is still ours.
///
/// # Errors
///
/// [`TransactionEnded`](ErrorKind::TransactionEnded), with how.
pub(crate) async fn check(
    connection: &mut PgConnection,
    request: &IdempotentRequest,
    place: Place,
    prepared: Prepared,
) -> Result<(), Error> {
    let query = sqlx::query(place.of(&CHECK))
        .bind(request.scope().as_stored())
        .bind(request.operation().as_str())
        .bind(request.key().as_str());
    let row = place
        .bind(query)
        .persistent(prepared.kept())
        .fetch_optional(connection)
        .await
        .and_then(|row| row.map(|row| Ok((row.try_get("own")?, row.try_get("unanswered")?))).transpose())
        .map_err(before_commit);
    match row {
        Ok(Some((true, _))) => Ok(()),
        Ok(Some((false, true))) => Err(Error::ended(Ended::Committed)),
        Ok(Some((false, false)) | None) => Err(Error::ended(Ended::RolledBack)),
        Err(error) if error.kind() == ErrorKind::TransactionAborted => Ok(()),
        Err(error) => Err(error),
    }
}

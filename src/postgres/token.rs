//! Whether a connection is in step: whether what it gives as the result of a statement is the result of that one.
//!
//! sqlx (0.9) does not count what is still to be said to a COPY that was dropped or cut off, and then takes the result of each
//! statement for that of the next one. So what counts gives a token back that no other statement could know.

use std::hash::{BuildHasher as _, RandomState};

use sqlx::{AssertSqlSafe, Executor as _, PgConnection, Row as _, postgres::PgRow};

use super::{Sending, error::is_of_protocol};
use crate::{
    Error,
    error::{Connection, Ended},
};

/// A number that was not there before.
pub(super) fn token() -> i64 {
    RandomState::new().hash_one(0).cast_signed()
}

/// Is the row that of the statement with this token?
pub(super) fn is_of(row: &PgRow, token: i64) -> bool {
    row.try_get("token").is_ok_and(|given: i64| given == token)
}

pub(super) fn out_of_step() -> Error {
    Error::ended(Ended::OutOfStep).on(Connection::Busy)
}

/// A failure of a statement of ours after the work had the connection: where the protocol was broken, the work has left it so.
pub(super) fn after_work(error: Error) -> Error {
    if is_of_protocol(&error) { out_of_step() } else { error }
}

/// Asks, outside a transaction.
pub(super) async fn is_in_step(connection: &mut PgConnection, sending: Sending) -> bool {
    let token = token();
    let ask = AssertSqlSafe(format!("select {token}::pg_catalog.int8 as token"));
    let asked = sending.within(connection.fetch_optional(ask)).await;
    asked.is_ok_and(|row| row.is_some_and(|row| is_of(&row, token)))
}

//! What became of a key, for an operator.

use http::StatusCode;
use sqlx::{Row as _, postgres::PgRow};

use super::{Connections, Table, error::before_commit, row::window, sql::sql_of_both, table::Statements};
use crate::{Error, ErrorKind, IdempotencyKey, KeyStatus, Operation, Scope};

const LOOKUP: Statements = sql_of_both!("lookup");

pub(crate) async fn lookup(
    connections: &Connections,
    scope: &Scope,
    operation: &Operation,
    key: &IdempotencyKey,
    table: Table,
) -> Result<Option<KeyStatus>, Error> {
    let query = sqlx::query(table.of(&LOOKUP)).bind(scope.as_stored()).bind(operation.as_str()).bind(key.as_str());
    let row = connections.look(table.bind(query)).await?;
    row.as_ref().map(found).transpose()
}

fn found(row: &PgRow) -> Result<KeyStatus, Error> {
    let status: Option<i16> = row.try_get("status").map_err(before_commit)?;
    let status = status.ok_or_else(|| Error::new(ErrorKind::Unanswered))?;
    let status = u16::try_from(status).ok().and_then(|status| StatusCode::from_u16(status).ok());
    let bytes: Option<i64> = row.try_get("bytes").map_err(before_commit)?;
    let replay_ended: bool = row.try_get("replay_ended").map_err(before_commit)?;
    let body_bytes = bytes.filter(|_| !replay_ended).and_then(|bytes| u64::try_from(bytes).ok());
    let window = window(row)?;
    Ok(KeyStatus {
        status: status.ok_or_else(|| Error::new(ErrorKind::CorruptRow))?,
        body_bytes,
        window: if body_bytes.is_some() { window } else { window.without_replay() },
    })
}

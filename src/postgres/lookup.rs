//! What became of a key, for an operator.

use http::StatusCode;
use sqlx::{Row as _, postgres::PgRow};

use super::{
    Connections, Place,
    error::before_commit,
    place::{Statements, at_key},
    row::window,
};
use crate::{Error, ErrorKind, Found, IdempotencyKey, Operation, Scope};

macro_rules! lookup {
    ($table:ident $(, $born:literal)?) => {
        concat!(
            "select status, octet_length(body)::bigint as bytes,
                    created_at as first_used,
                    expires_at as expires,
                    replay_until,
                    coalesce(replay_until <= now(), false) as faded
               from idempotency.", stringify!($table), at_key!($table $(, $born)?), "
                and (expires_at is null or expires_at > now())"
        )
    };
}

const LOOKUP: Statements = [lookup!(keys), lookup!(timed_keys, "$4")];

pub(crate) async fn lookup(
    connections: &Connections,
    scope: &Scope,
    operation: &Operation,
    key: &IdempotencyKey,
    place: Place,
) -> Result<Option<Found>, Error> {
    let query = sqlx::query(place.of(&LOOKUP)).bind(scope.as_stored()).bind(operation.as_str()).bind(key.as_str());
    let row = connections.look(place.bind(query)).await?;
    row.as_ref().map(found).transpose()
}

fn found(row: &PgRow) -> Result<Found, Error> {
    let status: Option<i16> = row.try_get("status").map_err(before_commit)?;
    let status = status.ok_or_else(|| Error::new(ErrorKind::Unanswered))?;
    let status = u16::try_from(status).ok().and_then(|status| StatusCode::from_u16(status).ok());
    let bytes: Option<i64> = row.try_get("bytes").map_err(before_commit)?;
    let faded: bool = row.try_get("faded").map_err(before_commit)?;
    Ok(Found {
        status: status.ok_or_else(|| Error::new(ErrorKind::CorruptRow))?,
        body_bytes: bytes.filter(|_| !faded).and_then(|bytes| u64::try_from(bytes).ok()),
        window: window(row)?,
    })
}

//! The claim: one atomic statement that makes a key ours, or shows whose it is.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use sqlx::{PgConnection, Row as _, postgres::PgRow};

use super::error::{before_commit, is_lock_timeout};
use crate::{Error, ErrorKind, IdempotentRequest, Retention, StoredResponse};

/// What the claim statement found.
#[derive(Debug)]
pub(crate) enum Claimed {
    /// The row is ours. It is visible to others once the transaction commits.
    Ours,
    /// An answered row was there.
    Answered(Stored),
    /// A transaction that is still open holds the row.
    Held,
    /// Likewise, and it did not end in time. PostgreSQL has given up this transaction.
    TimedOut,
    /// Somebody's row was in the way and is gone, or an expired one was replaced: ask again.
    Lost,
}

/// A row, as far as a duplicate needs it.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) fingerprint: Vec<u8>,
    pub(crate) response: StoredResponse,
}

/// How long a claim waits for a transaction that holds the row.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wait {
    /// Not at all where the server knows of the other one beforehand; next to nothing otherwise.
    Never,
    /// At most so long.
    UpTo(Duration),
}

/// Long enough for the pruner to let go of a row, short enough to be called "at once".
const NEXT_TO_NOTHING: Duration = Duration::from_millis(50);

/// Reads top to bottom:
///
/// 1. `live` looks for an answer. If there is one, nothing below writes: a replay costs no transaction id.
/// 2. `setting` remembers `lock_timeout`; `gate` sets ours and tries the row's advisory lock. The lock only spares
///    those who do not want to wait an attempt at the row. Where an engine has none, it is as if it were free.
/// 3. `claim` inserts, or takes over a row that has expired. Whoever comes second waits here, for the row's
///    uncommitted transaction, and PostgreSQL wakes it at once. This step alone decides who executes.
/// 4. The outer query tells what happened, puts `lock_timeout` back, and if the row became ours after a wait, takes
///    the advisory lock that its former owner held.
///
/// Times are compared as values of this statement (`excluded`), never as `now()` inside `do update`, which sharded
/// engines refuse.
const CLAIM: &str = "\
with live as materialized (
  select fingerprint, status, header_names, header_values, body
    from idempotency.keys
   where scope = $1 and operation = $2 and key = $3
     and (expires_at is null or expires_at > now())
), setting as materialized (
  select current_setting('lock_timeout') as lock_timeout
   where not exists (select from live)
), gate as materialized (
  select set_config('lock_timeout', $6, true) as bound, pg_try_advisory_xact_lock($7) as free
    from setting
), claim as (
  insert into idempotency.keys as present
         (scope, operation, key, fingerprint, created_at, expires_at, status, header_names, header_values, body)
  select $1, $2, $3, $4, now(), now() + $5 * interval '1 microsecond', $9, $10, $11, $12
    from gate
   where gate.free or $8
  on conflict (scope, operation, key) do update
     set fingerprint = excluded.fingerprint, created_at = excluded.created_at, expires_at = excluded.expires_at,
         status = excluded.status, header_names = excluded.header_names, header_values = excluded.header_values,
         body = excluded.body
   where present.expires_at <= excluded.created_at
  returning 1
)
select counted.claims = 1 as ours,
       coalesce(gate.free or $8, true) as tried,
       case when setting.lock_timeout is not null then set_config('lock_timeout', setting.lock_timeout, true) end,
       case when counted.claims = 1 and not gate.free then pg_try_advisory_xact_lock($7) end,
       live.fingerprint, live.status, live.header_names, live.header_values, live.body
  from (select count(*) as claims from claim) counted
  left join setting on true
  left join gate on true
  left join live on true
";

/// After the claim found somebody's row that its own snapshot could not show.
const READ: &str = "\
select fingerprint, status, header_names, header_values, body
  from idempotency.keys
 where scope = $1 and operation = $2 and key = $3
   and (expires_at is null or expires_at > now())
";

/// Claims `request`'s row, inside a transaction; with an `answer`, writes it at once, for which no transaction is
/// needed.
///
/// # Errors
///
/// As [`before_commit`] has it. PostgreSQL has then given up the transaction.
pub(crate) async fn claim(
    connection: &mut PgConnection,
    request: &IdempotentRequest,
    retention: Retention,
    wait: Wait,
    answer: Option<&StoredResponse>,
) -> Result<Claimed, Error> {
    let (bound, waits) = match wait {
        Wait::Never => (NEXT_TO_NOTHING, false),
        Wait::UpTo(bound) => (bound, true),
    };
    let answer = answer.map(Columns::of);
    let claimed = sqlx::query(CLAIM)
        .bind(request.scope().as_stored())
        .bind(request.operation().as_str())
        .bind(request.key().as_str())
        .bind(request.fingerprint().to_stored().as_slice())
        .bind(retention.as_micros())
        // Zero would mean "wait for ever".
        .bind(format!("{}ms", bound.as_millis().clamp(1, i32::MAX as u128)))
        .bind(request.lock_number())
        .bind(waits)
        .bind(answer.as_ref().map(|columns| columns.status))
        .bind(answer.as_ref().map(|columns| columns.header_names.as_slice()))
        .bind(answer.as_ref().map(|columns| columns.header_values.as_slice()))
        .bind(answer.as_ref().map(|columns| columns.body))
        .fetch_one(&mut *connection)
        .await;
    let row = match claimed {
        Ok(row) => row,
        Err(error) if is_lock_timeout(&error) => return Ok(Claimed::TimedOut),
        Err(error) => return Err(before_commit(error)),
    };
    if row.try_get("ours").map_err(before_commit)? {
        return Ok(Claimed::Ours);
    }
    if let Some(stored) = stored(&row)? {
        return Ok(Claimed::Answered(stored));
    }
    if !row.try_get("tried").map_err(before_commit)? {
        return Ok(Claimed::Held);
    }
    read(connection, request).await
}

async fn read(connection: &mut PgConnection, request: &IdempotentRequest) -> Result<Claimed, Error> {
    let row = sqlx::query(READ)
        .bind(request.scope().as_stored())
        .bind(request.operation().as_str())
        .bind(request.key().as_str())
        .fetch_optional(connection)
        .await
        .map_err(before_commit)?;
    Ok(match row.as_ref().map(stored).transpose()?.flatten() {
        Some(stored) => Claimed::Answered(stored),
        None => Claimed::Lost,
    })
}

/// An answer as the columns hold it.
#[derive(Debug)]
pub(super) struct Columns<'a> {
    pub(super) status: i16,
    pub(super) header_names: Vec<&'a str>,
    pub(super) header_values: Vec<&'a [u8]>,
    pub(super) body: &'a [u8],
}

impl<'a> Columns<'a> {
    pub(super) fn of(response: &'a StoredResponse) -> Self {
        let (header_names, header_values) =
            response.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes())).unzip();
        Self {
            // A status code has three digits.
            status: response.status().as_u16().cast_signed(),
            header_names,
            header_values,
            body: response.body(),
        }
    }
}

/// The answer in a row; `None` if an outer join found no row.
fn stored(row: &PgRow) -> Result<Option<Stored>, Error> {
    let Some(fingerprint) = row.try_get("fingerprint").map_err(before_commit)? else {
        return Ok(None);
    };
    Ok(Some(Stored { fingerprint, response: response(row)? }))
}

fn response(row: &PgRow) -> Result<StoredResponse, Error> {
    let status: Option<i16> = row.try_get("status").map_err(before_commit)?;
    if status.is_none() {
        return Err(Error::new(ErrorKind::Unanswered));
    }
    let names: Option<Vec<String>> = row.try_get("header_names").map_err(before_commit)?;
    let values: Option<Vec<Vec<u8>>> = row.try_get("header_values").map_err(before_commit)?;
    let body: Option<Vec<u8>> = row.try_get("body").map_err(before_commit)?;
    decode(status, names, values, body).ok_or_else(|| Error::new(ErrorKind::CorruptRow))
}

/// Puts an answer together from columns that anybody may have written.
fn decode(
    status: Option<i16>,
    names: Option<Vec<String>>,
    values: Option<Vec<Vec<u8>>>,
    body: Option<Vec<u8>>,
) -> Option<StoredResponse> {
    let status = StatusCode::from_u16(u16::try_from(status?).ok()?).ok()?;
    let (names, values) = (names?, values?);
    if names.len() != values.len() {
        return None;
    }
    let mut headers = Vec::with_capacity(names.len());
    for (name, value) in names.into_iter().zip(values) {
        headers.push((HeaderName::try_from(name).ok()?, HeaderValue::from_maybe_shared(Bytes::from(value)).ok()?));
    }
    Some(StoredResponse::new(status, body?).with_headers(headers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let response = StoredResponse::new(StatusCode::CREATED, "body").with_headers([
            (http::header::LINK, HeaderValue::from_static("</a>")),
            (http::header::LINK, HeaderValue::from_static("</b>, </c>")),
            (HeaderName::from_static("x-obs"), HeaderValue::from_bytes(b"caf\xe9").expect("obs-text is allowed")),
        ]);
        let columns = Columns::of(&response);
        let read = decode(
            Some(columns.status),
            Some(columns.header_names.iter().map(ToString::to_string).collect()),
            Some(columns.header_values.iter().map(|value| value.to_vec()).collect()),
            Some(columns.body.to_vec()),
        );
        assert_eq!(read, Some(response));
    }

    #[test]
    fn a_row_that_holds_nonsense_is_no_answer() {
        let name = || Some(vec!["x".to_owned()]);
        let value = || Some(vec![b"v".to_vec()]);
        let body = || Some(Vec::new());
        assert!(decode(Some(200), name(), value(), body()).is_some());
        for broken in [
            decode(None, name(), value(), body()),
            decode(Some(-1), name(), value(), body()),
            decode(Some(99), name(), value(), body()),
            decode(Some(200), None, value(), body()),
            decode(Some(200), name(), Some(Vec::new()), body()),
            decode(Some(200), Some(vec!["a b".to_owned()]), value(), body()),
            decode(Some(200), name(), Some(vec![b"a\nb".to_vec()]), body()),
            decode(Some(200), name(), value(), None),
        ] {
            assert!(broken.is_none());
        }
    }
}

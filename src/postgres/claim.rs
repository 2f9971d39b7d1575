//! The claim: one atomic statement that makes a key ours, or shows whose it is.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use sqlx::{PgConnection, Row as _, postgres::PgRow};

use super::{
    Prepared,
    error::{before_commit, is_timeout},
};
use crate::{Error, ErrorKind, IdempotentRequest, Retention, StoredResponse, Window};

/// What the claim statement found.
#[derive(Debug)]
pub(crate) enum Claimed {
    /// The row is ours, for this window. It is visible to others once the transaction commits.
    Ours(Window),
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
/// 2. `setting` remembers `lock_timeout`; `gate` sets ours and takes the row's advisory lock, which its owner holds to
///    the end: those who may wait queue there, and PostgreSQL wakes the next one at once; the others learn that it is
///    taken without an attempt at the row, which would end in an ERROR. Where an engine has no such locks, it is as if it
///    were free.
/// 3. `claim` inserts, or takes over a row that has expired. Whoever comes second waits here for the row's uncommitted
///    transaction. This step alone decides who executes.
/// 4. The outer query tells what happened, and puts `lock_timeout` back.
///
/// Times are compared as values of this statement (`excluded`), never as `now()` inside `do update`, which sharded
/// engines refuse.
const CLAIM: &str = "\
with live as materialized (
  select fingerprint, status, header_names, header_values, body, created_at, expires_at, replay_until
    from idempotency.keys
   where scope = $1 and operation = $2 and key = $3
     and (expires_at is null or expires_at > now())
), setting as materialized (
  select current_setting('lock_timeout') as lock_timeout
   where not exists (select from live)
), gate as materialized (
  select set_config('lock_timeout', $6, true) as bound,
         case when $8 then (select true from pg_advisory_xact_lock($7)) else pg_try_advisory_xact_lock($7) end as free
    from setting
), claim as (
  insert into idempotency.keys as present
         (scope, operation, key, fingerprint, created_at, expires_at, replay_until,
          status, header_names, header_values, body)
  select $1, $2, $3, $4, now(), now() + $5 * interval '1 microsecond', now() + $13 * interval '1 microsecond',
         $9, $10, $11, $12
    from gate
   where gate.free
  on conflict (scope, operation, key) do update
     set fingerprint = excluded.fingerprint, created_at = excluded.created_at, expires_at = excluded.expires_at,
         replay_until = excluded.replay_until,
         status = excluded.status, header_names = excluded.header_names, header_values = excluded.header_values,
         body = excluded.body
   where present.expires_at <= excluded.created_at
  returning created_at, expires_at, replay_until
)
select counted.claims = 1 as ours,
       coalesce(gate.free, true) as tried,
       case when setting.lock_timeout is not null then set_config('lock_timeout', setting.lock_timeout, true) end,
       live.fingerprint, live.status, live.header_names, live.header_values, live.body,
       (extract(epoch from coalesce(live.created_at, counted.created_at)) * 1000000)::bigint as first_used,
       (extract(epoch from coalesce(live.expires_at, counted.expires_at)) * 1000000)::bigint as expires,
       (extract(epoch from coalesce(live.replay_until, counted.replay_until)) * 1000000)::bigint as replay_until,
       coalesce(live.replay_until <= now(), false) as faded
  from (select count(*) as claims, min(created_at) as created_at, min(expires_at) as expires_at,
               min(replay_until) as replay_until
          from claim) counted
  left join setting on true
  left join gate on true
  left join live on true
";

/// After the claim found somebody's row that its own snapshot could not show.
const READ: &str = "\
select fingerprint, status, header_names, header_values, body,
       (extract(epoch from created_at) * 1000000)::bigint as first_used,
       (extract(epoch from expires_at) * 1000000)::bigint as expires,
       (extract(epoch from replay_until) * 1000000)::bigint as replay_until,
       coalesce(replay_until <= now(), false) as faded
  from idempotency.keys
 where scope = $1 and operation = $2 and key = $3
   and (expires_at is null or expires_at > now())
";

/// Claims `request`'s row, inside a transaction; with an `answer`, writes it at once.
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
    prepared: Prepared,
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
        .bind(retention.keep_micros())
        // Zero would mean "wait for ever".
        .bind(format!("{}ms", bound.as_millis().clamp(1, i32::MAX as u128)))
        .bind(request.lock_number())
        .bind(waits)
        .bind(answer.as_ref().map(|columns| columns.status))
        .bind(answer.as_ref().and_then(|columns| columns.header_names.as_deref()))
        .bind(answer.as_ref().and_then(|columns| columns.header_values.as_deref()))
        .bind(answer.as_ref().and_then(|columns| columns.body))
        .bind(retention.replay_micros())
        .persistent(prepared.kept())
        .fetch_one(&mut *connection)
        .await;
    let row = match claimed {
        Ok(row) => row,
        Err(error) if is_timeout(&error) => return Ok(Claimed::TimedOut),
        Err(error) => return Err(before_commit(error)),
    };
    if row.try_get("ours").map_err(before_commit)? {
        return Ok(Claimed::Ours(window(&row)?));
    }
    if let Some(stored) = stored(&row)? {
        return Ok(Claimed::Answered(stored));
    }
    if !row.try_get("tried").map_err(before_commit)? {
        return Ok(Claimed::Held);
    }
    read(connection, request, prepared).await
}

async fn read(
    connection: &mut PgConnection,
    request: &IdempotentRequest,
    prepared: Prepared,
) -> Result<Claimed, Error> {
    let row = sqlx::query(READ)
        .bind(request.scope().as_stored())
        .bind(request.operation().as_str())
        .bind(request.key().as_str())
        .persistent(prepared.kept())
        .fetch_optional(connection)
        .await
        .map_err(before_commit)?;
    Ok(match row.as_ref().map(stored).transpose()?.flatten() {
        Some(stored) => Claimed::Answered(stored),
        None => Claimed::Lost,
    })
}

/// An answer as the columns hold it. A tombstone has its status only.
#[derive(Debug)]
pub(super) struct Columns<'a> {
    pub(super) status: i16,
    pub(super) header_names: Option<Vec<&'a str>>,
    pub(super) header_values: Option<Vec<&'a [u8]>>,
    pub(super) body: Option<&'a [u8]>,
}

impl<'a> Columns<'a> {
    pub(super) fn of(response: &'a StoredResponse) -> Self {
        // A status code has three digits.
        let status = response.status().as_u16().cast_signed();
        let Some(body) = response.bytes() else {
            return Self { status, header_names: None, header_values: None, body: None };
        };
        let (header_names, header_values) =
            response.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes())).unzip();
        Self { status, header_names: Some(header_names), header_values: Some(header_values), body: Some(body) }
    }
}

/// The answer in a row; `None` if an outer join found no row.
fn stored(row: &PgRow) -> Result<Option<Stored>, Error> {
    let Some(fingerprint) = row.try_get("fingerprint").map_err(before_commit)? else {
        return Ok(None);
    };
    let response = response(row)?;
    let faded: bool = row.try_get("faded").map_err(before_commit)?;
    let response = if faded { StoredResponse::not_retained(response.status()) } else { response };
    Ok(Some(Stored { fingerprint, response: response.with_window(window(row)?) }))
}

pub(super) fn window(row: &PgRow) -> Result<Window, Error> {
    let at = |column| -> Result<Option<SystemTime>, Error> {
        let micros: Option<i64> = row.try_get(column).map_err(before_commit)?;
        Ok(micros.map(moment))
    };
    let (expires, replay_until) = (at("expires")?, at("replay_until")?);
    Ok(Window { first_used: at("first_used")?.unwrap_or(UNIX_EPOCH), replay_ends: replay_until.or(expires), expires })
}

/// Microseconds since 1970, which may have been before it.
fn moment(micros: i64) -> SystemTime {
    let distance = Duration::from_micros(micros.unsigned_abs());
    let moment = if micros < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) };
    moment.unwrap_or(UNIX_EPOCH)
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
    let (names, values, body) = match (names, values, body) {
        (None, None, None) => return Some(StoredResponse::not_retained(status)),
        (names, values, body) => (names?, values?, body?),
    };
    if names.len() != values.len() {
        return None;
    }
    let mut headers = Vec::with_capacity(names.len());
    for (name, value) in names.into_iter().zip(values) {
        headers.push((HeaderName::try_from(name).ok()?, HeaderValue::from_maybe_shared(Bytes::from(value)).ok()?));
    }
    Some(StoredResponse::new(status, body).with_headers(headers))
}

/// Takes any columns for a row; what is taken for an answer has to be one.
#[cfg(fuzzing)]
#[doc(hidden)]
pub fn fuzz_row(status: Option<i16>, names: Option<Vec<String>>, values: Option<Vec<Vec<u8>>>, body: Option<Vec<u8>>) {
    if let Some(response) = decode(status, names, values, body) {
        assert_eq!(round_trip(&response), Some(response));
    }
}

/// An answer, written and read.
#[cfg(any(fuzzing, test))]
fn round_trip(response: &StoredResponse) -> Option<StoredResponse> {
    let columns = Columns::of(response);
    decode(
        Some(columns.status),
        columns.header_names.map(|names| names.iter().map(ToString::to_string).collect()),
        columns.header_values.map(|values| values.iter().map(|value| value.to_vec()).collect()),
        columns.body.map(<[u8]>::to_vec),
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_columns_are_an_answer_or_none_and_never_a_panic(
            status in prop::option::of(any::<i16>()),
            names in prop::option::of(prop::collection::vec("[a-zA-Z -]{0,4}|\\PC{0,3}", 0..4)),
            values in prop::option::of(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6), 0..4)),
            body in prop::option::of(prop::collection::vec(any::<u8>(), 0..6)),
        ) {
            if let Some(response) = decode(status, names, values, body) {
                prop_assert_eq!(round_trip(&response), Some(response));
            }
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let response = StoredResponse::new(StatusCode::CREATED, "body").with_headers([
            (http::header::LINK, HeaderValue::from_static("</a>")),
            (http::header::LINK, HeaderValue::from_static("</b>, </c>")),
            (HeaderName::from_static("x-obs"), HeaderValue::from_bytes(b"caf\xe9").expect("obs-text is allowed")),
        ]);
        assert_eq!(round_trip(&response), Some(response));
        let tombstone = StoredResponse::not_retained(StatusCode::CREATED);
        let columns = Columns::of(&tombstone);
        assert!(columns.header_names.is_none() && columns.header_values.is_none() && columns.body.is_none());
        assert_eq!(decode(Some(columns.status), None, None, None), Some(tombstone));
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

//! The claim: one atomic statement that makes a key ours, or shows whose it is.

use std::time::Duration;

use sqlx::{PgConnection, Row as _, postgres::PgRow};

use super::{
    Sending,
    claim_timed::{CLAIM_TIMED, CLAIM_TIMED_SERIALIZABLE, verdict},
    error::{before_commit, has_no_partition, is_timeout, waited_for_a_row},
    place::{Place, Statements, at_key},
    row::{Columns, Stored, stored, window},
};
use crate::{Error, IdempotentRequest, Retention, StoredResponse, Untimely, Window};

/// What the claim statement found.
#[derive(Debug)]
pub(crate) enum Claimed {
    /// The row is ours, for this window. It is visible to others once the transaction commits. Where transactions are
    /// serializable, with its place.
    Ours(Window, Option<Box<str>>),
    /// An answered row was there.
    Answered(Stored),
    /// A transaction that is still open holds the row.
    Held,
    /// Likewise, and it did not end in time. PostgreSQL has given up this transaction.
    TimedOut,
    /// The wait for some lock took too long, and not for a row of ours. PostgreSQL has given up this transaction.
    Blocked,
    /// Somebody's row was in the way and is gone, or an expired one was replaced: ask again.
    Lost,
    /// The key bears a time at which it cannot be executed. It may have been claimed: roll back.
    Untimely(Untimely),
    /// The operation's window is not noted yet, or is shorter than the one asked for.
    Unregistered,
    /// There is no partition for the key's time. PostgreSQL has given up this transaction.
    NoPartition,
}

/// How long a claim waits for a transaction that holds the row.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wait {
    /// Not at all where the server knows of the other one beforehand.
    Never,
    /// Likewise, and next to nothing otherwise.
    NextToNothing,
    /// At most so long.
    UpTo(Duration),
}

/// What a claim is made for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms<'a> {
    pub(crate) retention: Retention,
    /// For a key that bears a time.
    pub(crate) timing: Option<Timing>,
    /// To be written at once.
    pub(crate) answer: Option<&'a StoredResponse>,
    pub(crate) sending: Sending,
    /// Whether transactions are serializable, unless they say otherwise.
    pub(crate) serializable: bool,
}

/// A key's time, and what is accepted; all in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timing {
    /// When the key was born, since 1970.
    pub(crate) born: i64,
    pub(crate) window: i64,
    pub(crate) skew: i64,
    /// How long after its birth a key is kept.
    pub(crate) keep: i64,
    pub(crate) partitioned: bool,
}

impl Terms<'_> {
    pub(crate) fn place(&self) -> Place {
        Timing::place(self.timing)
    }
}

impl Timing {
    pub(crate) fn place(this: Option<Self>) -> Place {
        match this {
            Some(timing) if timing.partitioned => Place::TimedKeys(timing.born),
            _ => Place::Keys,
        }
    }
}

impl Wait {
    fn waits(self) -> bool {
        matches!(self, Self::UpTo(_))
    }

    /// In milliseconds. Zero would mean "for ever".
    fn lock_timeout(self) -> String {
        /// Long enough for the pruner to let go of a row, short enough to be called "at once".
        const NEXT_TO_NOTHING: Duration = Duration::from_millis(50);

        let bound = match self {
            Self::Never | Self::NextToNothing => NEXT_TO_NOTHING,
            Self::UpTo(bound) => bound,
        };
        format!("{}ms", bound.as_millis().clamp(1, i32::MAX as u128))
    }
}

macro_rules! claim_at_once {
    ($before:literal, $gate:literal, $after:literal, $join:literal, $place:literal) => {
        concat!(
            "with ",
            $before,
            "claim as (
  insert into idempotency.keys
         (scope, operation, key, fingerprint, created_at, expires_at, replay_until,
          status, header_names, header_values, body)
  select $1, $2, $3, $4, now(), now() + $5 * interval '1 microsecond', now() + $6 * interval '1 microsecond',
         $7, $8, $9, $10",
            $gate,
            "
  on conflict (scope, operation, key) do nothing
  returning created_at, expires_at, replay_until, ",
            $place,
            " as place
)
select claim.created_at is not null as ours, claim.place, ",
            $after,
            "
       present.fingerprint, present.status, present.header_names, present.header_values, present.body,
       present.born_at as born,
       coalesce(claim.created_at, present.created_at) as first_used,
       case when claim.created_at is null then present.expires_at else claim.expires_at end as expires,
       case when claim.created_at is null then present.replay_until else claim.replay_until end as replay_until,
       coalesce(present.replay_until <= now(), false) as faded,
       case when claim.created_at is null and present.expires_at <= now()
         then pg_try_advisory_xact_lock($11) end as free
  from (select) always",
            $join,
            "
  left join claim on true
  left join (
    select *
      from idempotency.keys
     where scope = $1 and operation = $2 and key = $3 and not exists (select from claim)
    offset 0
  ) present on true"
        )
    };
}

/// The claim of those who do not wait, which is every first one: as little as there can be, since every first call
/// pays for it.
///
/// The insert runs only if the row's advisory lock is free, which its owner holds to the end: so others learn that it is
/// taken without an attempt at the row, which would wait. Where an engine has no such locks, it is as if it were free.
/// The insert alone decides who executes. If there is a row, it does nothing, so a replay costs no transaction id; if the
/// row has expired, it is to be taken over by the next statement, provided that its lock is `free`.
///
/// The row is looked for only if the insert did nothing: `offset 0` keeps PostgreSQL (16 and later) from asking that last.
const CLAIM_AT_ONCE: &str = claim_at_once!("", " where pg_try_advisory_xact_lock($11)", "", "", "null::text");

/// Likewise where transactions are serializable, with the place of the new row. PostgreSQL takes note there of every page
/// of an index that a transaction reads; two that claim unrelated keys on one page, and have read it, count as a conflict
/// with each other, and one of them fails. By its place the row is answered without reading the index.
const CLAIM_AT_ONCE_SERIALIZABLE: &str =
    claim_at_once!("", " where pg_try_advisory_xact_lock($11)", "", "", "ctid::text");

/// Likewise, with a bound for the wait that there may be nevertheless, behind the pruner or an operator: for transactions
/// of the caller's, on which no timer can be set.
const CLAIM_AT_ONCE_BOUNDED: &str = claim_at_once!(
    "setting as materialized (
       select current_setting('lock_timeout') as lock_timeout
     ), gate as materialized (
       select set_config('lock_timeout', $12, true) as bound from setting where pg_try_advisory_xact_lock($11)
     ), ",
    " from gate ",
    " set_config('lock_timeout', setting.lock_timeout, true), ",
    " cross join setting ",
    "null::text"
);

/// The claim of those who wait for whoever holds the row, or take over one that has expired. Top to bottom:
///
/// 1. `live` looks for an answer.
/// 2. `setting` remembers `lock_timeout`; `gate` sets ours and takes the row's advisory lock: here they queue, and
///    PostgreSQL wakes the next one at once.
/// 3. `claim` inserts, or takes over a row that has expired. Where there are no advisory locks, they wait here.
/// 4. The outer query tells what happened, and puts `lock_timeout` back.
///
/// Times are compared as values of this statement (`excluded`), never as `now()` inside `do update`, which sharded
/// engines refuse.
const CLAIM_WAITING: &str = "\
with live as materialized (
  select fingerprint, status, header_names, header_values, body, created_at, expires_at, replay_until, born_at
    from idempotency.keys
   where scope = $1 and operation = $2 and key = $3
     and (expires_at is null or expires_at > now())
), setting as materialized (
  select current_setting('lock_timeout') as lock_timeout
   where not exists (select from live)
), gate as materialized (
  select set_config('lock_timeout', $12, true) as bound, (select true from pg_advisory_xact_lock($11)) as held
    from setting
), claim as (
  insert into idempotency.keys as present
         (scope, operation, key, fingerprint, created_at, expires_at, replay_until,
          status, header_names, header_values, body)
  select $1, $2, $3, $4, now(), now() + $5 * interval '1 microsecond', now() + $6 * interval '1 microsecond',
         $7, $8, $9, $10
    from gate
   where gate.held
  on conflict (scope, operation, key) do update
     set fingerprint = excluded.fingerprint, created_at = excluded.created_at, expires_at = excluded.expires_at,
         replay_until = excluded.replay_until,
         status = excluded.status, header_names = excluded.header_names, header_values = excluded.header_values,
         body = excluded.body, born_at = null
   where present.expires_at <= excluded.created_at
  returning created_at, expires_at, replay_until
)
select claim.created_at is not null as ours,
       case when setting.lock_timeout is not null then set_config('lock_timeout', setting.lock_timeout, true) end,
       live.fingerprint, live.status, live.header_names, live.header_values, live.body, live.born_at as born,
       coalesce(live.created_at, claim.created_at) as first_used,
       coalesce(live.expires_at, claim.expires_at) as expires,
       coalesce(live.replay_until, claim.replay_until) as replay_until,
       coalesce(live.replay_until <= now(), false) as faded
  from (select) always
  left join claim on true
  left join setting on true
  left join live on true
";

macro_rules! read {
    ($table:ident $(, $born:literal)?) => {
        concat!(
            "select fingerprint, status, header_names, header_values, body, born_at as born,
                    created_at as first_used, expires_at as expires, replay_until,
                    coalesce(replay_until <= now(), false) as faded
               from idempotency.", stringify!($table), at_key!($table $(, $born)?), "
                and (expires_at is null or expires_at > now())"
        )
    };
}

/// After the claim found somebody's row that its own snapshot could not show.
const READ: Statements = [read!(keys), read!(timed_keys, "$4")];

/// Claims `request`'s row, inside a transaction; with an answer, writes it at once.
///
/// # Errors
///
/// As [`before_commit`] has it. PostgreSQL has then given up the transaction.
pub(crate) async fn claim(
    connection: &mut PgConnection,
    request: &IdempotentRequest,
    wait: Wait,
    terms: Terms<'_>,
) -> Result<Claimed, Error> {
    let place = terms.place();
    let asked = match (terms.timing, wait) {
        (Some(_), _) => {
            let statements = if terms.serializable { &CLAIM_TIMED_SERIALIZABLE } else { &CLAIM_TIMED };
            ask(connection, request, place.of(statements), Some(wait), terms).await
        }
        (None, Wait::UpTo(_)) => ask(connection, request, CLAIM_WAITING, Some(wait), terms).await,
        (None, Wait::Never) if terms.serializable => {
            ask(connection, request, CLAIM_AT_ONCE_SERIALIZABLE, None, terms).await
        }
        (None, Wait::Never) => ask(connection, request, CLAIM_AT_ONCE, None, terms).await,
        (None, Wait::NextToNothing) => ask(connection, request, CLAIM_AT_ONCE_BOUNDED, Some(wait), terms).await,
    };
    // An expired row is in the way, which only the other statement takes over.
    let asked = match asked {
        Ok(row) if terms.timing.is_none() && !wait.waits() => match row.try_get("free").map_err(before_commit)? {
            None => Ok(row),
            Some(true) => ask(connection, request, CLAIM_WAITING, Some(wait), terms).await,
            Some(false) => return Ok(Claimed::Held),
        },
        asked => asked,
    };
    let row = match asked {
        Ok(row) => row,
        Err(error) if is_timeout(&error) && waited_for_a_row(&error) => return Ok(Claimed::TimedOut),
        Err(error) if is_timeout(&error) => return Ok(Claimed::Blocked),
        Err(error) if has_no_partition(&error) => return Ok(Claimed::NoPartition),
        Err(error) => return Err(before_commit(error)),
    };
    if terms.timing.is_some()
        && let Some(claimed) = verdict(&row)?
    {
        return Ok(claimed);
    }
    if row.try_get("ours").map_err(before_commit)? {
        // Only the statement for serializable transactions tells it.
        let place = row.try_get("place").unwrap_or_default();
        return Ok(Claimed::Ours(window(&row)?, place));
    }
    if let Some(stored) = stored(&row)? {
        return Ok(Claimed::Answered(stored));
    }
    // Somebody's row was in the way, or his lock. If he has committed meanwhile, it can be seen now.
    let found = look(connection, request, place, terms.sending).await?;
    Ok(match (found, wait) {
        (Some(stored), _) => Claimed::Answered(stored),
        (None, Wait::Never | Wait::NextToNothing) => Claimed::Held,
        (None, Wait::UpTo(_)) => Claimed::Lost,
    })
}

/// Asks by one of the statements; all but [`CLAIM_AT_ONCE`] bound their wait themselves.
async fn ask(
    connection: &mut PgConnection,
    request: &IdempotentRequest,
    statement: &'static str,
    wait: Option<Wait>,
    terms: Terms<'_>,
) -> Result<PgRow, sqlx::Error> {
    let answer = terms.answer.map(Columns::of);
    let mut query = sqlx::query(statement)
        .bind(request.scope().as_stored())
        .bind(request.operation().as_str())
        .bind(request.key().as_str())
        .bind(request.fingerprint().to_stored())
        .bind(terms.retention.keep_micros())
        .bind(terms.retention.replay_micros())
        .bind(answer.as_ref().map(|columns| columns.status))
        .bind(answer.as_ref().and_then(|columns| columns.header_names.as_deref()))
        .bind(answer.as_ref().and_then(|columns| columns.header_values.as_deref()))
        .bind(answer.as_ref().and_then(|columns| columns.body))
        .bind(request.lock_number());
    if let Some(wait) = wait {
        query = query.bind(wait.lock_timeout());
    }
    if let Some(Timing { born, window, keep, skew, partitioned }) = terms.timing {
        query =
            query.bind(wait.is_some_and(Wait::waits)).bind(born).bind(window).bind(keep).bind(skew).bind(partitioned);
    }
    query.persistent(terms.sending.kept).fetch_one(connection).await
}

/// The answer, if there is one. Needs no transaction.
pub(crate) async fn look(
    connection: &mut PgConnection,
    request: &IdempotentRequest,
    place: Place,
    sending: Sending,
) -> Result<Option<Stored>, Error> {
    let query = sqlx::query(place.of(&READ))
        .bind(request.scope().as_stored())
        .bind(request.operation().as_str())
        .bind(request.key().as_str());
    let row = sending.ask(place.bind(query).persistent(sending.kept).fetch_optional(connection)).await?;
    Ok(row.as_ref().map(stored).transpose()?.flatten())
}

/// Does somebody execute the request? To be asked in another transaction than the one that waited in vain: the lock, if it is
/// free, is kept until that ends.
pub(crate) async fn is_executed_elsewhere(
    connection: &mut PgConnection,
    request: &IdempotentRequest,
    sending: Sending,
) -> Result<bool, Error> {
    let query = sqlx::query_scalar("select not pg_try_advisory_xact_lock($1)").bind(request.lock_number());
    sending.ask(query.persistent(sending.kept).fetch_one(connection)).await
}

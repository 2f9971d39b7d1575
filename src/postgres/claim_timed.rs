//! The claim of a key that bears a time (T1 to T12).

use sqlx::{Row as _, postgres::PgRow};

use super::{
    claim::Claimed,
    error::before_commit,
    place::{Statements, at_key},
};
use crate::{Error, Untimely};

macro_rules! claim_timed {
    ($table:ident, $conflict:literal, $place:literal $(, $born:literal)?) => {
        concat!("
with judged as materialized (
  select key.born, asked.accepted, noted.keep_us,
         case when (noted.window_us >= $15 and noted.keep_us >= $16 and noted.skew_us >= $17
                    and noted.partitioned = $18
                    and noted.refused_until < 'infinity' and noted.guard_since < 'infinity') is not true
                then 'unregistered'
              when key.born > clock.now + $17 * interval '1 microsecond' then 'from future'
              when key.born < clock.now - asked.accepted or key.born <= noted.refused_until then 'expired'
              when key.born > now() + $17 * interval '1 microsecond'
                   and current_setting('transaction_isolation') <> 'read committed' then 'stale'
              else 'timely'
         end as verdict
    from (select 'epoch'::timestamptz + $14 * interval '1 microsecond' as born) key
   cross join (select clock_timestamp() as now) clock
    left join idempotency.windows noted on noted.operation = $2
   cross join lateral (
     select case when key.born <= noted.guard_since then least($15, noted.guarded_us) else $15 end
            * interval '1 microsecond' as accepted
   ) asked
), setting as materialized (
  select current_setting('lock_timeout') as lock_timeout
    from judged
   where verdict = 'timely'
), gate as materialized (
  select set_config('lock_timeout', $12, true) as bound,
         case when $13 then (select true from pg_advisory_xact_lock($11)) else pg_try_advisory_xact_lock($11) end as free
    from setting
), claim as (
  insert into idempotency.", stringify!($table), "
         (scope, operation, key, fingerprint, born_at, created_at, expires_at, replay_until,
          status, header_names, header_values, body)
  select $1, $2, $3, $4, judged.born, now(), judged.born + judged.keep_us * interval '1 microsecond',
         now() + $6 * interval '1 microsecond', $7, $8, $9, $10
    from gate
   cross join judged
   where gate.free
  on conflict (", $conflict, ") do nothing
  returning created_at, expires_at, replay_until, ", $place, " as place
), live as materialized (
  select fingerprint, status, header_names, header_values, body, created_at, expires_at, replay_until, born_at
    from idempotency.", stringify!($table), at_key!($table $(, $born)?), "
     and (expires_at is null or expires_at > clock_timestamp())
     and not exists (select from claim)
)
select claim.created_at is not null as ours, claim.place,
       case when setting.lock_timeout is not null then set_config('lock_timeout', setting.lock_timeout, true) end,
       case when live.created_at is not null then null
            when claim.created_at is not null and judged.born < clock_timestamp() - judged.accepted then 'expired'
            else judged.verdict
       end as verdict,
       live.fingerprint, live.status, live.header_names, live.header_values, live.body,
       coalesce(live.created_at, claim.created_at) as first_used,
       coalesce(live.expires_at, claim.expires_at) as expires,
       coalesce(live.replay_until, claim.replay_until) as replay_until,
       live.born_at as born,
       coalesce(live.replay_until <= now(), false) as faded
  from (select) always
  left join claim on true
  left join judged on true
  left join setting on true
  left join live on true")
    };
}

/// As the plain claim, with a judgement before it:
///
/// 1. `judged` compares the key's time with the database's clock, once the operation's window is noted; a key from
///    before a longer window came into force is judged by the shorter one (T5). A snapshot that is older than the key
///    may be older than the window that counts for it, so the claim has to be made in a newer one.
/// 2. `claim` inserts what is timely, and never takes over: a row that has expired is of a key that is not accepted any
///    more.
/// 3. `live` looks for a response if nothing was inserted: a key that is remembered is answered, however old it is (T3).
/// 4. The outer query judges again what was claimed, since it may have waited, and the row of an earlier execution may
///    have been pruned meanwhile (T3). The clock runs on within a transaction, unlike `now()`.
///
/// The row is kept as long as the longest window that was ever noted asks for.
pub(super) const CLAIM_TIMED: Statements = [
    claim_timed!(keys, "scope, operation, key", "null::text"),
    claim_timed!(timed_keys, "scope, operation, key, born_at", "null::text", "$14"),
];

/// Likewise where transactions are serializable, with the place of the new row.
pub(super) const CLAIM_TIMED_SERIALIZABLE: Statements = [
    claim_timed!(keys, "scope, operation, key", "ctid::text"),
    claim_timed!(timed_keys, "scope, operation, key, born_at", "ctid::text", "$14"),
];

/// What the times say, unless they are in order.
pub(super) fn verdict(row: &PgRow) -> Result<Option<Claimed>, Error> {
    let verdict: Option<&str> = row.try_get("verdict").map_err(before_commit)?;
    Ok(match verdict {
        Some("expired") => Some(Claimed::Untimely(Untimely::Expired)),
        Some("from future") => Some(Claimed::Untimely(Untimely::FromFuture)),
        Some("unregistered") => Some(Claimed::Unregistered),
        Some("stale") => Some(Claimed::Lost),
        // Without a verdict there is an answer.
        _ => None,
    })
}

//! How far back each operation remembers, for keys that bear a time.

use sqlx::{Executor as _, PgConnection, Row as _};

use super::{
    Connections, Place, Sending,
    claim::Timing,
    error::{before_commit, is_timeout},
};
use crate::{Error, Operation};

/// First of two steps: from when this is committed, keys are kept as the longer window asks for. What a claim that did
/// not see it yet keeps, it keeps for shorter. Until the second step nobody claims.
///
/// The guard that stood before still counts, unless all that it guards is too old for its own window.
const NOTE: &str = "\
insert into idempotency.windows as present
       (operation, window_us, keep_us, skew_us, margin_us, partitioned, refused_until, new, guard_since, guarded_us,
        noted_at)
values ($1, $2, $3, $4, $3 - $2, $5, 'infinity', true, '-infinity', $2, clock_timestamp())
on conflict (operation) do update
   set window_us = greatest(present.window_us, excluded.window_us),
       keep_us = greatest(present.keep_us, excluded.keep_us),
       skew_us = greatest(present.skew_us, excluded.skew_us),
       margin_us = greatest(present.margin_us, excluded.margin_us),
       partitioned = excluded.partitioned,
       refused_until = case
         when present.partitioned <> excluded.partitioned then excluded.refused_until else present.refused_until
       end,
       new = present.new and present.partitioned = excluded.partitioned,
       guarded_us = case
         when present.guard_since + present.keep_us * interval '1 microsecond' < excluded.noted_at
           then present.window_us
         else least(present.guarded_us, present.window_us)
       end,
       guard_since = 'infinity',
       noted_at = excluded.noted_at
 where present.window_us < excluded.window_us or present.keep_us < excluded.keep_us
    or present.skew_us < excluded.skew_us or present.partitioned <> excluded.partitioned
";

/// Is there a second step to be made, and is the operation new here?
const PENDING: &str = "\
select new and refused_until = 'infinity' as new
  from idempotency.windows
 where operation = $1 and (refused_until = 'infinity' or guard_since = 'infinity')
";

/// A table may be large, and has no index that begins with the operation.
const USED_LIMIT: &str = "set local statement_timeout = '2s'";

/// Second step: every claim that did not see the first one began before now, so its key was born before now and the
/// allowed step into the future; and the clock may have been set back since, by the margin. Keys born until then are
/// judged by the shorter window; or refused, if the operation has been used without times, or in the other table.
///
/// For an operation that is new here that would refuse the very first key. If the table has no row of it, nothing was
/// executed during what was its retention until now (`$2`; null is for ever), so what is older than that is refused.
const GUARD: &str = "\
update idempotency.windows
   set refused_until = case
         when refused_until < 'infinity' then refused_until
         when new and not $3 then clock_timestamp() - coalesce($2, 3155760000000000) * interval '1 microsecond'
         else clock_timestamp() + (skew_us + margin_us) * interval '1 microsecond'
       end,
       guard_since = case
         when guard_since < 'infinity' then guard_since
         else clock_timestamp() + (skew_us + margin_us) * interval '1 microsecond'
       end
 where operation = $1
";

/// Notes an operation's window, if it is longer than what is noted, and ends what others have begun.
///
/// # Errors
///
/// As [`before_commit`] has it, or as for a commit. What has been done stays; the next claim does the rest.
pub(crate) async fn register(
    connections: &Connections,
    operation: &Operation,
    timing: Timing,
    before: Option<i64>,
) -> Result<(), Error> {
    let sending = connections.sending();
    let note = sqlx::query(NOTE)
        .bind(operation.as_str())
        .bind(timing.window)
        .bind(timing.keep)
        .bind(timing.skew)
        .bind(timing.partitioned);
    connections.change(note.persistent(sending.kept)).await?;

    let pending = sqlx::query(PENDING).bind(operation.as_str()).persistent(sending.kept);
    let mut transaction = connections.begin_own().await?;
    let looked = sending.ask(pending.fetch_optional(transaction.connection())).await;
    let Some(pending) = transaction.note(looked)? else {
        return transaction.rollback().await;
    };
    let new: bool = pending.try_get("new").map_err(before_commit)?;
    let used = if new {
        let looked = is_used(transaction.connection(), operation, timing, sending).await;
        transaction.note(looked)?
    } else {
        false
    };
    transaction.rollback().await?;

    let guard = sqlx::query(GUARD).bind(operation.as_str()).bind(before).bind(used);
    connections.change(guard.persistent(sending.kept)).await.map(drop)
}

/// Is there a row of the operation? One that is not found in time may be there.
async fn is_used(
    connection: &mut PgConnection,
    operation: &Operation,
    timing: Timing,
    sending: Sending,
) -> Result<bool, Error> {
    let keys = "select exists (select from idempotency.keys where operation = $1)";
    let timed_keys = "select exists (select from idempotency.timed_keys where operation = $1)";
    let looks = match Timing::place(Some(timing)) {
        Place::Keys => &[keys][..],
        Place::TimedKeys(_) => &[keys, timed_keys],
    };
    // As text: prepared, it would stay so behind a pooler.
    sending.ask(connection.execute(USED_LIMIT)).await?;
    for look in looks {
        let found = sqlx::query_scalar(*look).bind(operation.as_str()).persistent(sending.kept);
        match sending.within(found.fetch_one(&mut *connection)).await {
            Ok(false) => {}
            Ok(true) => return Ok(true),
            Err(error) if is_timeout(&error) => return Ok(true),
            Err(error) => return Err(before_commit(error)),
        }
    }
    Ok(false)
}

//! How far back each operation remembers, for keys that bear a time.

use sqlx::PgPool;

use super::{Prepared, claim::Timing, error::before_commit, transaction::Transaction};
use crate::{Error, Operation};

/// First of two steps: from when this is committed, keys are kept as the longer window asks for. What a claim that did
/// not see it yet keeps, it keeps for shorter.
///
/// A `guarded_us` of less than nothing accepts no key, not even one from the future.
///
/// The guard that stood before still counts for keys that its own window would accept.
const NOTE: &str = "\
insert into idempotency.windows as present
       (operation, window_us, keep_us, skew_us, partitioned, guard_since, guarded_us, noted_at)
values ($1, $2, $3, $4, $5, 'infinity', -3155760000000000, clock_timestamp())
on conflict (operation) do update
   set window_us = greatest(present.window_us, excluded.window_us),
       keep_us = greatest(present.keep_us, excluded.keep_us),
       skew_us = greatest(present.skew_us, excluded.skew_us),
       partitioned = excluded.partitioned,
       guarded_us = case
         when present.partitioned <> excluded.partitioned then excluded.guarded_us
         when present.guard_since + present.window_us * interval '1 microsecond' < excluded.noted_at
           then present.window_us
         else least(present.guarded_us, present.window_us)
       end,
       guard_since = 'infinity',
       noted_at = excluded.noted_at
 where present.window_us < excluded.window_us or present.keep_us < excluded.keep_us
    or present.skew_us < excluded.skew_us or present.partitioned <> excluded.partitioned
";

macro_rules! guard {
    ($used:literal) => {
        concat!(
            "update idempotency.windows noted
                set guard_since = clock_timestamp() + skew_us * interval '1 microsecond' - case
                  when guarded_us > 0 or exists (select from idempotency.keys where operation = $1)",
            $used,
            " then interval '0'
                  else coalesce($2, 3155760000000000) * interval '1 microsecond'
                end
              where operation = $1 and guard_since = 'infinity'"
        )
    };
}

/// Second step: every claim that did not see the first one began before now, so its key was born before now and the
/// allowed step into the future. Keys born until then are judged by the shorter window.
///
/// For an operation that is new here (`guarded_us` is less than nothing) that would refuse every key. If the table has no row of it, then
/// nothing was executed during what was its retention until now (`$2`; null is for ever), so only keys that are older
/// than that are refused.
const GUARD: [&str; 2] = [guard!(""), guard!(" or exists (select from idempotency.timed_keys where operation = $1)")];

/// Notes an operation's window, if it is longer than what is noted.
///
/// # Errors
///
/// As [`before_commit`] has it, or as for a commit. What has been done stays; the next claim does the rest.
pub(crate) async fn register(
    pool: &PgPool,
    operation: &Operation,
    timing: Timing,
    before: Option<i64>,
    prepared: Prepared,
) -> Result<(), Error> {
    let [plain, partitioned] = GUARD;
    let note = sqlx::query(NOTE)
        .bind(operation.as_str())
        .bind(timing.window)
        .bind(timing.keep)
        .bind(timing.skew)
        .bind(timing.partitioned);
    let guard = sqlx::query(if timing.partitioned { partitioned } else { plain }).bind(operation.as_str()).bind(before);
    for step in [note, guard] {
        let mut transaction = Transaction::begin(pool).await?;
        step.persistent(prepared.kept()).execute(transaction.connection()).await.map_err(before_commit)?;
        transaction.commit().await?;
    }
    Ok(())
}

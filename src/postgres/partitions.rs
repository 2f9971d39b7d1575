//! The partitions of `idempotency.timed_keys`: made before they are needed, and dropped when all that they may hold has
//! expired.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Executor as _, PgPool, Row as _};
use tokio::time::timeout;

use super::{Prepared, error::before_commit, transaction::Transaction};
use crate::{Error, ErrorKind};

/// Nobody else makes partitions, or chooses one to drop, meanwhile. The number means nothing.
const LOCK: &str = "select pg_advisory_xact_lock(5830176230841920143)";

/// From the oldest key that any operation accepts, to a whole partition ahead of the newest. `null` if no operation
/// keeps its keys so.
const RANGE: &str = "\
select (extract(epoch from clock_timestamp()) * 1000000)::bigint as now,
       max(window_us) as window_us, max(skew_us) as skew_us
  from idempotency.windows
 where partitioned
";

const BOUNDS: &str = "\
select (extract(epoch from lower))::bigint as lower, (extract(epoch from upper))::bigint as upper
  from idempotency.partitions
 order by lower
";

/// What nobody can need any more: no key in it is accepted, nor kept. PostgreSQL detaches one at a time, so nothing is due
/// while somebody is dropping one; what he began a while ago he did not end, and that comes first.
const DUE: &str = "\
update idempotency.partitions
   set dropping_since = clock_timestamp()
 where name = (
   select name
     from idempotency.partitions
    where upper + (select max(keep_us) from idempotency.windows) * interval '1 microsecond' <= clock_timestamp()
      and not exists (
        select from idempotency.partitions where dropping_since > clock_timestamp() - interval '2 minutes'
      )
    order by dropping_since nulls last, upper
    limit 1
 )
returning name
";

const STATE: &str = "\
select inherits.inhdetachpending as half_detached
  from pg_catalog.pg_class class
  left join pg_catalog.pg_inherits inherits on inherits.inhrelid = class.oid
 where class.oid = to_regclass('idempotency.' || $1)
";

/// How long a partition may take to be detached: until the last transaction that uses the table has ended.
const DETACH_LIMIT: Duration = Duration::from_secs(30);

const SECOND: i64 = 1_000_000;

/// Is the partitioned table there, and is it this role's to change? If not, somebody else has to prune it.
pub(crate) async fn are_ours(pool: &PgPool, prepared: Prepared) -> Result<bool, Error> {
    let ours = "select exists (
        select from pg_catalog.pg_class
         where oid = to_regclass('idempotency.timed_keys') and pg_has_role(relowner, 'usage')
    )";
    ask(pool, ours, prepared).await
}

/// Is the partitioned table there?
pub(crate) async fn exist(pool: &PgPool, prepared: Prepared) -> Result<bool, Error> {
    ask(pool, "select to_regclass('idempotency.timed_keys') is not null", prepared).await
}

async fn ask(pool: &PgPool, question: &'static str, prepared: Prepared) -> Result<bool, Error> {
    let mut transaction = Transaction::own(pool).await?;
    let there = sqlx::query_scalar(question)
        .persistent(prepared.kept())
        .fetch_one(transaction.connection())
        .await
        .map_err(before_commit)?;
    transaction.rollback().await?;
    Ok(there)
}

/// Makes the partitions that are missing, and says how many those were. Claims go on meanwhile.
pub(crate) async fn ensure(pool: &PgPool, prepared: Prepared) -> Result<u64, Error> {
    let mut transaction = Transaction::own(pool).await?;
    let connection = transaction.connection();
    connection.execute(LOCK).await.map_err(before_commit)?;
    let range = sqlx::query(RANGE).persistent(prepared.kept()).fetch_one(&mut *connection).await;
    let range = range.map_err(before_commit)?;
    let number = |column| range.try_get::<Option<i64>, _>(column).map_err(before_commit);
    let (Some(now), Some(window), Some(skew)) = (number("now")?, number("window_us")?, number("skew_us")?) else {
        transaction.rollback().await?;
        return Ok(0);
    };
    let rows = sqlx::query(BOUNDS).persistent(prepared.kept()).fetch_all(&mut *connection).await;
    let mut there = Vec::new();
    for row in rows.map_err(before_commit)? {
        let bound = |column| row.try_get::<i64, _>(column).map_err(before_commit);
        there.push((bound("lower")?, bound("upper")?));
    }
    let missing = missing(&there, now, window, skew);
    for (lower, upper) in &missing {
        connection.execute(AssertSqlSafe(create(*lower, *upper))).await.map_err(before_commit)?;
    }
    transaction.commit().await?;
    Ok(missing.len() as u64)
}

/// The ranges to be made, in seconds, given those that there are, in order; now, window and skew in microseconds.
fn missing(there: &[(i64, i64)], now: i64, window: i64, skew: i64) -> Vec<(i64, i64)> {
    let width = (window / 8 / SECOND).max(60);
    let oldest = now.saturating_sub(window).div_euclid(SECOND);
    let ahead = now.saturating_add(skew).div_euclid(SECOND).saturating_add(width);
    // Aligned, so that there are round numbers in the names.
    let mut from = oldest.div_euclid(width).saturating_mul(width);
    let mut missing = Vec::new();
    while from <= ahead {
        if let Some((_, upper)) = there.iter().find(|(lower, upper)| (*lower..*upper).contains(&from)) {
            from = *upper;
            continue;
        }
        let next = there.iter().map(|(lower, _)| *lower).find(|lower| *lower > from).unwrap_or(i64::MAX);
        let upper = (from.div_euclid(width) + 1).saturating_mul(width).min(next);
        // The first one may reach back behind what is accepted; if all of it does, it would be due at once.
        if upper > oldest {
            missing.push((from, upper));
        }
        from = upper;
    }
    missing
}

/// A table of its own, attached: which, unlike making it as a partition, stops no claim.
fn create(lower: i64, upper: i64) -> String {
    let name = format!("timed_keys_{lower}_{upper}").replace('-', "before_");
    format!(
        "create table idempotency.{name} (like idempotency.timed_keys including all);
         alter table idempotency.timed_keys attach partition idempotency.{name}
           for values from (to_timestamp({lower})) to (to_timestamp({upper}));
         insert into idempotency.partitions (name, lower, upper)
         values ('{name}', to_timestamp({lower}), to_timestamp({upper}))"
    )
}

/// Drops a partition of which everything has expired, and says whether there was one. Claims go on meanwhile.
pub(crate) async fn drop_one(pool: &PgPool, prepared: Prepared) -> Result<bool, Error> {
    let mut transaction = Transaction::own(pool).await?;
    transaction.connection().execute(LOCK).await.map_err(before_commit)?;
    let due: Option<String> = sqlx::query_scalar(DUE)
        .persistent(prepared.kept())
        .fetch_optional(transaction.connection())
        .await
        .map_err(before_commit)?;
    transaction.commit().await?;
    let Some(name) = due else {
        return Ok(false);
    };
    detach(pool, &name, prepared).await?;

    let mut transaction = Transaction::own(pool).await?;
    let drop = format!(
        "drop table if exists idempotency.{name};
         delete from idempotency.partitions where name = '{name}'"
    );
    transaction.connection().execute(AssertSqlSafe(drop)).await.map_err(before_commit)?;
    transaction.commit().await?;
    Ok(true)
}

/// Waits for those who use the table, and lets nobody wait: neither fits into a transaction.
async fn detach(pool: &PgPool, name: &str, prepared: Prepared) -> Result<(), Error> {
    let mut transaction = Transaction::own(pool).await?;
    let state = sqlx::query(STATE)
        .bind(name)
        .persistent(prepared.kept())
        .fetch_optional(transaction.connection())
        .await
        .map_err(before_commit)?;
    let half_detached: Option<bool> = match &state {
        Some(row) => row.try_get("half_detached").map_err(before_commit)?,
        None => None,
    };
    let Some(half_detached) = half_detached else {
        return transaction.rollback().await;
    };
    let how = if half_detached { "finalize" } else { "concurrently" };
    let detach = format!("alter table idempotency.timed_keys detach partition idempotency.{name} {how}");
    let mut connection = transaction.end().await?;
    if let Ok(detached) = timeout(DETACH_LIMIT, connection.execute(AssertSqlSafe(detach))).await {
        return detached.map(drop).map_err(before_commit);
    }
    // The statement goes on until the server notices.
    connection.close_on_drop();
    Err(Error::new(ErrorKind::StoreUnavailable))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600;

    #[test]
    fn the_ranges_cover_what_is_accepted_and_do_not_overlap() {
        let now = 1_000_000 * SECOND + 1;
        let made = missing(&[], now, 8 * HOUR * SECOND, 60 * SECOND);
        assert!(made.first().is_some_and(|(lower, _)| *lower <= 1_000_000 - 8 * HOUR));
        assert!(made.last().is_some_and(|(_, upper)| *upper > 1_000_000 + 60 + HOUR));
        assert!(made.windows(2).all(|pair| pair[0].1 == pair[1].0), "{made:?}");
        assert!(made.len() <= 11, "{made:?}");
        assert_eq!(missing(&made, now, 8 * HOUR * SECOND, 60 * SECOND), []);
    }

    #[test]
    fn another_width_fills_the_gaps_only() {
        let now = 1_000_000 * SECOND;
        let mut there = missing(&[], now, 8 * HOUR * SECOND, 0);
        there.remove(2);
        let made = missing(&there, now, 80 * HOUR * SECOND, 0);
        let mut all: Vec<_> = there.iter().chain(&made).copied().collect();
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0].1 == pair[1].0), "{all:?}");
    }

    #[test]
    fn nothing_is_made_that_is_due_at_once() {
        let (narrow, wide) = (480 * SECOND, 8 * HOUR * SECOND);
        for minute in 0..600 {
            let now = 1_000_000 * SECOND + minute * 60 * SECOND;
            // What a narrow window has left, without what is due under a wide one since.
            let mut there = missing(&[], 1_000_000 * SECOND, narrow, 0);
            there.retain(|(_, upper)| upper * SECOND + wide > now);
            let made = missing(&there, now, wide, 0);
            assert!(made.iter().all(|(_, upper)| upper * SECOND + wide > now), "{minute}: {made:?}");
        }
    }

    #[test]
    fn times_before_1970_have_names_too() {
        assert!(create(-60, 0).contains("idempotency.timed_keys_before_60_0 "));
    }
}

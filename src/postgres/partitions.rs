//! The partitions of `idempotency.timed_keys`: made before they are needed, and dropped when all that they may hold has
//! expired.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Executor as _, PgConnection, Postgres, Row as _, postgres::PgArguments, query::Query};
use tokio::time::timeout;

use super::{
    Connections, Sending,
    error::{before_commit, is_timeout},
    sql::sql,
    time::Moment,
};
use crate::{Error, error::Connection};

const LOCK: &str = sql!("partitions/lock");

const RANGE: &str = sql!("partitions/range");

const BOUNDS: &str = sql!("partitions/bounds");

const DUE: &str = sql!("partitions/due");

const STATE: &str = sql!("partitions/state");

const IS_THERE: &str = sql!("is_there");

const ARE_OURS: &str = sql!("partitions/are_ours");

/// How long the server waits, without holding anybody up, for those who use the table when a partition is to be detached.
const DETACH_LIMIT: Duration = Duration::from_secs(30);

/// A session that may change the table outside a transaction, and ends its own wait. It is closed afterwards.
const DETACH_SESSION: &str = "set default_transaction_read_only = off; set statement_timeout = '30s'";

/// Ending what another pruner has begun locks the table against those who make partitions. So it waits for a shorter time
/// than they do, however long a reader stays, and is tried again in the next round.
const FINALIZE_LIMIT: &str = "set local statement_timeout = '500ms'";

const SECOND: i64 = 1_000_000;

/// Is the partitioned table there, and is it this role's to change? If not, another role has to prune it.
pub(crate) async fn are_ours(connections: &Connections) -> Result<bool, Error> {
    ask(connections, sqlx::query(ARE_OURS)).await
}

/// Is the partitioned table there?
pub(crate) async fn exist(connections: &Connections) -> Result<bool, Error> {
    ask(connections, sqlx::query(IS_THERE).bind("idempotency.timed_keys")).await
}

async fn ask(connections: &Connections, question: Query<'_, Postgres, PgArguments>) -> Result<bool, Error> {
    let row = connections.look(question).await?;
    row.map_or(Ok(false), |row| row.try_get("yes").map_err(before_commit))
}

/// Makes the partitions that are missing, and says how many those were. Claims go on meanwhile.
pub(crate) async fn ensure(connections: &Connections) -> Result<u64, Error> {
    let mut transaction = connections.begin_own().await?;
    let made = make_missing(transaction.connection(), connections.sending()).await;
    match transaction.note(made)? {
        0 => transaction.rollback().await.map(|()| 0),
        made => transaction.commit().await.map(|()| made),
    }
}

async fn make_missing(connection: &mut PgConnection, sending: Sending) -> Result<u64, Error> {
    sending.ask(connection.execute(LOCK)).await?;
    let range = sqlx::query(RANGE).persistent(sending.kept).fetch_one(&mut *connection);
    let range = sending.ask(range).await?;
    let number = |column| range.try_get::<Option<i64>, _>(column).map_err(before_commit);
    let now = Moment::read(&range, "now")?;
    let (Some(Moment(now)), Some(window), Some(skew)) = (now, number("window_us")?, number("skew_us")?) else {
        return Ok(0);
    };
    let rows = sqlx::query(BOUNDS).persistent(sending.kept).fetch_all(&mut *connection);
    let mut there = Vec::new();
    for row in sending.ask(rows).await? {
        if let (Some(lower), Some(upper)) = (Moment::read(&row, "lower")?, Moment::read(&row, "upper")?) {
            there.push((lower.0.div_euclid(SECOND), upper.0.div_euclid(SECOND)));
        }
    }
    let missing = missing(&there, now, window, skew);
    for (lower, upper) in &missing {
        // One by one: a sharded PostgreSQL does not take them together.
        for statement in create(*lower, *upper) {
            sending.ask(connection.execute(AssertSqlSafe(statement))).await?;
        }
    }
    Ok(missing.len() as u64)
}

/// The ranges to be made, in seconds, given those that there are, in order; now, window and skew in microseconds.
fn missing(there: &[(i64, i64)], now: i64, window: i64, skew: i64) -> Vec<(i64, i64)> {
    // An eighth of whatever is longer, so that there are never many.
    let width = (window.max(skew) / 8 / SECOND).max(60);
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
        let upper = from.div_euclid(width).saturating_add(1).saturating_mul(width).min(next);
        // The first one may reach back behind what is accepted; if all of it does, it would be due at once.
        if upper > oldest {
            missing.push((from, upper));
        }
        from = upper;
    }
    missing
}

/// A table of its own, attached: which, unlike making it as a partition, stops no claim.
fn create(lower: i64, upper: i64) -> [String; 3] {
    let name = format!("timed_keys_{lower}_{upper}").replace('-', "before_");
    let (from, to) = (format!("pg_catalog.to_timestamp({lower})"), format!("pg_catalog.to_timestamp({upper})"));
    [
        format!("create table idempotency.{name} (like idempotency.timed_keys including all)"),
        format!(
            "alter table idempotency.timed_keys attach partition idempotency.{name} for values from ({from}) to ({to})"
        ),
        format!("insert into idempotency.partitions (name, lower, upper) values ('{name}', {from}, {to})"),
    ]
}

/// Drops a partition of which everything has expired, and says whether there was one. Claims go on meanwhile; where
/// a reader uses the table for long, it is left for a later round.
pub(crate) async fn drop_one(connections: &Connections) -> Result<bool, Error> {
    let sending = connections.sending();
    let mut transaction = connections.begin_own().await?;
    let due = async {
        sending.ask(transaction.connection().execute(LOCK)).await?;
        let due = sqlx::query_scalar(DUE).persistent(sending.kept).fetch_optional(transaction.connection());
        sending.ask(due).await
    };
    let due: Result<Option<String>, Error> = due.await;
    let due = transaction.note(due)?;
    transaction.commit().await?;
    let Some(name) = due else {
        return Ok(false);
    };
    if !detach(connections, &name).await? {
        return Ok(false);
    }
    let drop = format!(
        "drop table if exists idempotency.{name};
         delete from idempotency.partitions where name operator(pg_catalog.=) '{name}'"
    );
    run(connections, drop).await.map(|()| true)
}

/// Waits for those who use the table, and lets no other session wait. Says whether the partition is detached now.
async fn detach(connections: &Connections, name: &str) -> Result<bool, Error> {
    let state = connections.look(sqlx::query(STATE).bind(format!("idempotency.{name}"))).await?;
    let half_detached: Option<bool> = match &state {
        Some(row) => row.try_get("half_detached").map_err(before_commit)?,
        None => None,
    };
    let detach = format!("alter table idempotency.timed_keys detach partition idempotency.{name}");
    match half_detached {
        None => Ok(true),
        Some(true) => match run(connections, format!("{FINALIZE_LIMIT}; {detach} finalize")).await {
            Ok(()) => Ok(true),
            Err(error) if error.is_wait() => Ok(false),
            Err(error) => Err(error),
        },
        Some(false) => detach_concurrently(connections, format!("{detach} concurrently")).await,
    }
}

/// Outside a transaction, as it has to be, and on a session of its own.
async fn detach_concurrently(connections: &Connections, detach: String) -> Result<bool, Error> {
    let mut lent = connections.lend().await?;
    lent.keep_back();
    // Behind a pooler the session is not ours to change. There the wait is the server's until the reader has gone.
    let session = if connections.settings().pooler { "" } else { DETACH_SESSION };
    let detaching = async {
        connections.sending().within(lent.execute(session)).await?;
        lent.execute(AssertSqlSafe(detach)).await
    };
    let detached = timeout(DETACH_LIMIT.saturating_add(connections.sending().limit), detaching).await;
    let state = if detached.is_ok() { Connection::Unfit } else { Connection::Busy };
    lent.discard(state);
    match detached {
        Ok(Ok(_)) => Ok(true),
        Ok(Err(error)) if is_timeout(&error) => Ok(false),
        Ok(Err(error)) => Err(before_commit(error)),
        Err(_) => Ok(false),
    }
}

/// Statements that take no parameters, in a transaction.
async fn run(connections: &Connections, statements: String) -> Result<(), Error> {
    let mut transaction = connections.begin_own().await?;
    let done = connections.sending().ask(transaction.connection().execute(AssertSqlSafe(statements))).await;
    transaction.note(done)?;
    transaction.commit().await
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
    fn f79_however_far_keys_may_lie_in_the_future_there_are_never_many() {
        let (minutes, month) = (300 * SECOND, 30 * 24 * HOUR * SECOND);
        for (window, skew) in [(minutes, month), (month, minutes), (60 * SECOND, 100 * 12 * month), (month, month)] {
            let made = missing(&[], 1_800_000_000 * SECOND, window, skew);
            assert!(made.len() <= 20, "{} for {window} and {skew}", made.len());
            assert!(made.last().is_some_and(|(_, upper)| *upper > 1_800_000_000 + skew / SECOND));
        }
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
        assert!(create(-60, 0)[0].contains("idempotency.timed_keys_before_60_0 "));
    }
}

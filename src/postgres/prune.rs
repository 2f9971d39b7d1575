//! Forgetting what has expired.

use std::sync::atomic::{AtomicI64, Ordering};

use sqlx::{Postgres, Row as _, postgres::PgArguments, query::Query};

use super::{
    Connections,
    error::before_commit,
    partitions,
    sql::{sql, sql_of_both},
    table::Statements,
    time::Moment,
};
use crate::{Error, Pruned, Scope};

const PRUNE: &str = sql!("keys/prune");

const DROP_RESPONSES: Statements = sql_of_both!("drop_responses");

const ERASE: Statements = sql_of_both!("erase");

/// For what was passed over.
const ERASE_WAITING: Statements = sql_of_both!("erase_waiting");

const REMAINING: Statements = sql_of_both!("remaining");

/// Deletes so many expired rows at most, and drops so many responses in each table that there is. `from` is where to begin;
/// afterwards it is where the next batch should.
pub(crate) async fn prune(connections: &Connections, limit: u32, from: &AtomicI64) -> Result<Pruned, Error> {
    let [keys, timed_keys] = DROP_RESPONSES;
    let deleted = delete(connections, limit, from).await?;
    let limit = i64::from(limit);
    let responses_dropped = batch(connections, sqlx::query(keys).bind(limit)).await?;
    let mut pruned = Pruned { deleted, responses_dropped, ..Pruned::default() };
    if partitions::are_ours(connections).await? {
        pruned.partitions_made = partitions::ensure(connections).await?;
        pruned.partitions_dropped = u64::from(partitions::drop_one(connections).await?);
        let responses_dropped = batch(connections, sqlx::query(timed_keys).bind(limit)).await?;
        pruned.responses_dropped = pruned.responses_dropped.saturating_add(responses_dropped);
    }
    Ok(pruned)
}

async fn delete(connections: &Connections, limit: u32, from: &AtomicI64) -> Result<u64, Error> {
    let begin = match from.load(Ordering::Relaxed) {
        0 => Moment::NEVER,
        micros => Moment(micros),
    };
    let statement = sqlx::query(PRUNE).bind(i64::from(limit)).bind(begin);
    let row = connections.change_and_tell(statement.persistent(false)).await?;
    let rows: i64 = row.try_get("rows").map_err(before_commit)?;
    let deleted = u64::try_from(rows).unwrap_or_default();
    // When nothing is left to do, the next round looks from the beginning: rows may have been put there.
    let next = if deleted < u64::from(limit) { None } else { Moment::read(&row, "last")?.map(|last| last.0) };
    // Zero is the beginning: an operator may have let rows expire before 1970, or for ever.
    from.store(next.filter(|micros| *micros > 0).unwrap_or_default(), Ordering::Relaxed);
    Ok(deleted)
}

/// How many of an owner's rows are there, up to a limit for each table?
pub(crate) async fn remaining(connections: &Connections, scope: &Scope, limit: u32) -> Result<u64, Error> {
    let tables = if partitions::exist(connections).await? { &REMAINING[..] } else { &REMAINING[..1] };
    let mut remaining = 0_u64;
    for statement in tables {
        let counted = connections.look(sqlx::query(*statement).bind(i64::from(limit)).bind(scope.as_stored())).await?;
        let rows: i64 = counted.map_or(Ok(0), |row| row.try_get("rows")).map_err(before_commit)?;
        remaining = remaining.saturating_add(u64::try_from(rows).unwrap_or_default());
    }
    Ok(remaining)
}

/// Deletes so many of an owner's rows at most, whether they have expired or not.
pub(crate) async fn erase(connections: &Connections, scope: &Scope, limit: u32) -> Result<u64, Error> {
    erase_by(&ERASE, connections, scope, limit).await
}

/// Likewise, and waits a moment for those who are at a row.
pub(crate) async fn erase_waiting(connections: &Connections, scope: &Scope, limit: u32) -> Result<u64, Error> {
    match erase_by(&ERASE_WAITING, connections, scope, limit).await {
        Err(error) if error.is_wait() => Ok(0),
        forgotten => forgotten,
    }
}

async fn erase_by(statements: &Statements, connections: &Connections, scope: &Scope, limit: u32) -> Result<u64, Error> {
    let [keys, timed_keys] = *statements;
    let statement = |text| sqlx::query(text).bind(i64::from(limit)).bind(scope.as_stored());
    let mut forgotten = batch(connections, statement(keys)).await?;
    if forgotten < u64::from(limit) && partitions::exist(connections).await? {
        forgotten = forgotten.saturating_add(batch(connections, statement(timed_keys)).await?);
    }
    Ok(forgotten)
}

/// Planned anew each time: a plan that has to do for any limit may read the whole table.
async fn batch(connections: &Connections, statement: Query<'_, Postgres, PgArguments>) -> Result<u64, Error> {
    connections.change(statement.persistent(false)).await
}

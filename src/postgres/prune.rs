//! Forgetting what has expired.

use std::sync::atomic::{AtomicI64, Ordering};

use sqlx::{Postgres, Row as _, postgres::PgArguments, query::Query};

use super::{Connections, error::before_commit, partitions, place::Statements, row::micros};
use crate::{Error, Pruned, Scope};

/// Rows that somebody else is pruning, or taking over, are left to him.
///
/// By their place in the table (`ctid`), which the lock keeps them at: to find a batch by its keys leaves PostgreSQL the
/// choice of how to join, and on a table that has just been emptied and filled again it was seen to compare every row with
/// every row of the batch.
///
/// From `$2` on, which is where the last batch ended: what it deleted stays in the index until a vacuum, and would have to
/// be passed over again each time.
const PRUNE: &str = "\
with pruned as (
  delete from idempotency.keys
   where ctid = any (array(
     select ctid
       from idempotency.keys
      where expires_at <= now()
        and expires_at >= case when $2 > 0 then 'epoch'::timestamptz + $2 * interval '1 microsecond' else '-infinity' end
      order by expires_at
      limit $1
        for update skip locked
   ))
  returning expires_at
)
select count(*) as rows, max(expires_at) as last from pruned
";

/// Drops answers that are not replayed any more; what is left is a tombstone. In the partitioned table a place says nothing
/// without its partition, so there it goes by keys, chosen once.
const FADE: Statements = [
    "update idempotency.keys
        set header_names = null, header_values = null, body = null, replay_until = null
      where ctid = any (array(
        select ctid
          from idempotency.keys
         where replay_until <= now()
         order by replay_until
         limit $1
           for update skip locked
      ))",
    "with due as materialized (
       select scope, operation, key, born_at
         from idempotency.timed_keys
        where replay_until <= now()
        order by replay_until
        limit $1
          for update skip locked
     )
     update idempotency.timed_keys present
        set header_names = null, header_values = null, body = null, replay_until = null
       from due
      where present.scope = due.scope and present.operation = due.operation and present.key = due.key
        and present.born_at = due.born_at",
];

macro_rules! forget {
    ($how:literal) => {
        [
            concat!(
                "with due as materialized (
                   select operation, key from idempotency.keys where scope = $2 limit $1 for update",
                $how,
                "
                 )
                 delete from idempotency.keys present
                  using due
                  where present.scope = $2 and present.operation = due.operation and present.key = due.key"
            ),
            concat!(
                "with due as materialized (
                   select operation, key, born_at from idempotency.timed_keys where scope = $2 limit $1 for update",
                $how,
                "
                 )
                 delete from idempotency.timed_keys present
                  using due
                  where present.scope = $2 and present.operation = due.operation and present.key = due.key
                    and present.born_at = due.born_at"
            ),
        ]
    };
}

/// A row that somebody is at is passed over, so that it holds up no other. Whoever it is may give it another place
/// meanwhile: so by keys.
const FORGET: Statements = forget!(" skip locked");

/// Likewise for what was passed over: most of those who are at a row, such as a pruner, are done in a moment.
const FORGET_WAITING: Statements = forget!("");

/// Deletes so many expired rows at most, and drops so many answers in each table that there is. `from` is where to begin;
/// afterwards it is where the next batch should.
pub(crate) async fn prune(connections: &Connections, limit: u32, from: &AtomicI64) -> Result<Pruned, Error> {
    let [keys, timed_keys] = FADE;
    let deleted = delete(connections, limit, from).await?;
    let limit = i64::from(limit);
    let faded = batch(connections, sqlx::query(keys).bind(limit)).await?;
    let mut pruned = Pruned { deleted, faded, ..Pruned::default() };
    if partitions::are_ours(connections).await? {
        pruned.partitions_made = partitions::ensure(connections).await?;
        pruned.partitions_dropped = u64::from(partitions::drop_one(connections).await?);
        pruned.faded += batch(connections, sqlx::query(timed_keys).bind(limit)).await?;
    }
    Ok(pruned)
}

async fn delete(connections: &Connections, limit: u32, from: &AtomicI64) -> Result<u64, Error> {
    let statement = sqlx::query(PRUNE).bind(i64::from(limit)).bind(from.load(Ordering::Relaxed));
    let row = connections.change_and_tell(statement.persistent(false)).await?;
    let rows: i64 = row.try_get("rows").map_err(before_commit)?;
    let deleted = u64::try_from(rows).unwrap_or_default();
    // When nothing is left to do, the next round looks from the beginning: somebody may have put rows there.
    let next = if deleted < u64::from(limit) { None } else { micros(&row, "last")? };
    // Zero is the beginning: an operator may have let rows expire before 1970, or for ever.
    from.store(next.filter(|micros| *micros > 0).unwrap_or_default(), Ordering::Relaxed);
    Ok(deleted)
}

/// What is there of an owner's, counted up to a limit.
const REMAINING: Statements = [
    "select count(*) as rows from (select from idempotency.keys where scope = $2 limit $1) remaining",
    "select count(*) as rows from (select from idempotency.timed_keys where scope = $2 limit $1) remaining",
];

/// How many of an owner's rows are there, up to a limit for each table?
pub(crate) async fn remaining(connections: &Connections, scope: &Scope, limit: u32) -> Result<u64, Error> {
    let tables = if partitions::exist(connections).await? { &REMAINING[..] } else { &REMAINING[..1] };
    let mut remaining = 0;
    for statement in tables {
        let counted = connections.look(sqlx::query(*statement).bind(i64::from(limit)).bind(scope.as_stored())).await?;
        let rows: i64 = counted.map_or(Ok(0), |row| row.try_get("rows")).map_err(before_commit)?;
        remaining += u64::try_from(rows).unwrap_or_default();
    }
    Ok(remaining)
}

/// Deletes so many of an owner's rows at most, whether they have expired or not.
pub(crate) async fn forget(connections: &Connections, scope: &Scope, limit: u32) -> Result<u64, Error> {
    forget_by(&FORGET, connections, scope, limit).await
}

/// Likewise, and waits a moment for those who are at a row.
pub(crate) async fn forget_waiting(connections: &Connections, scope: &Scope, limit: u32) -> Result<u64, Error> {
    match forget_by(&FORGET_WAITING, connections, scope, limit).await {
        Err(error) if error.is_wait() => Ok(0),
        forgotten => forgotten,
    }
}

async fn forget_by(
    statements: &Statements,
    connections: &Connections,
    scope: &Scope,
    limit: u32,
) -> Result<u64, Error> {
    let [keys, timed_keys] = *statements;
    let statement = |text| sqlx::query(text).bind(i64::from(limit)).bind(scope.as_stored());
    let mut forgotten = batch(connections, statement(keys)).await?;
    if forgotten < u64::from(limit) && partitions::exist(connections).await? {
        forgotten += batch(connections, statement(timed_keys)).await?;
    }
    Ok(forgotten)
}

/// Planned anew each time: a plan that has to do for any limit may read the whole table.
async fn batch(connections: &Connections, statement: Query<'_, Postgres, PgArguments>) -> Result<u64, Error> {
    connections.change(statement.persistent(false)).await
}

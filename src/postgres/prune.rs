//! Forgetting what has expired.

use sqlx::{PgPool, Postgres, postgres::PgArguments, query::Query};

use super::{Prepared, error::before_commit, partitions, place::Statements, transaction::Transaction};
use crate::{Error, Pruned, Scope};

/// Rows that somebody else is pruning, or taking over, are left to him.
const PRUNE: &str = "\
delete from idempotency.keys
 where (scope, operation, key) in (
   select scope, operation, key
     from idempotency.keys
    where expires_at <= now()
    order by expires_at
    limit $1
      for update skip locked
 )
";

macro_rules! fade {
    ($table:literal, $key:literal) => {
        concat!(
            "update idempotency.",
            $table,
            "
                set header_names = null, header_values = null, body = null, replay_until = null
              where (",
            $key,
            ") in (
                select ",
            $key,
            " from idempotency.",
            $table,
            "
                 where replay_until <= now()
                 order by replay_until
                 limit $1
                   for update skip locked
              )"
        )
    };
}

/// Drops answers that are not replayed any more; what is left is a tombstone.
const FADE: Statements =
    [fade!("keys", "scope, operation, key"), fade!("timed_keys", "scope, operation, key, born_at")];

macro_rules! forget {
    ($table:literal, $key:literal) => {
        concat!(
            "delete from idempotency.",
            $table,
            "
              where (",
            $key,
            ") in (
                select ",
            $key,
            " from idempotency.",
            $table,
            "
                 where scope = $2
                 limit $1
                   for update skip locked
              )"
        )
    };
}

const FORGET: Statements =
    [forget!("keys", "scope, operation, key"), forget!("timed_keys", "scope, operation, key, born_at")];

/// Deletes so many expired rows at most, and drops so many answers in each table that there is.
pub(crate) async fn prune(pool: &PgPool, limit: u32, prepared: Prepared) -> Result<Pruned, Error> {
    let [keys, timed_keys] = FADE;
    let limit = i64::from(limit);
    let mut pruned = Pruned {
        deleted: batch(pool, sqlx::query(PRUNE).bind(limit), prepared).await?,
        faded: batch(pool, sqlx::query(keys).bind(limit), prepared).await?,
        ..Pruned::default()
    };
    if partitions::are_ours(pool, prepared).await? {
        pruned.partitions_made = partitions::ensure(pool, prepared).await?;
        pruned.partitions_dropped = u64::from(partitions::drop_one(pool, prepared).await?);
        pruned.faded += batch(pool, sqlx::query(timed_keys).bind(limit), prepared).await?;
    }
    Ok(pruned)
}

/// Deletes so many of an owner's rows at most, whether they have expired or not.
pub(crate) async fn forget(pool: &PgPool, scope: &Scope, limit: u32, prepared: Prepared) -> Result<u64, Error> {
    let [keys, timed_keys] = FORGET;
    let statement = |text| sqlx::query(text).bind(i64::from(limit)).bind(scope.as_stored());
    let mut forgotten = batch(pool, statement(keys), prepared).await?;
    if forgotten < u64::from(limit) && partitions::exist(pool, prepared).await? {
        forgotten += batch(pool, statement(timed_keys), prepared).await?;
    }
    Ok(forgotten)
}

/// Inside a transaction, so that a pooler keeps the statement's messages together.
async fn batch(pool: &PgPool, statement: Query<'_, Postgres, PgArguments>, prepared: Prepared) -> Result<u64, Error> {
    let mut transaction = Transaction::own(pool).await?;
    let done = statement.persistent(prepared.kept()).execute(transaction.connection()).await.map_err(before_commit)?;
    transaction.commit().await?;
    Ok(done.rows_affected())
}

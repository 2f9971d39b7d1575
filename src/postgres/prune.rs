//! Forgetting what has expired.

use sqlx::{PgPool, Postgres, postgres::PgArguments, query::Query};

use super::{Prepared, error::before_commit, transaction::Transaction};
use crate::{Error, Scope};

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

/// Drops answers that are not replayed any more; what is left is a tombstone.
const FADE: &str = "\
update idempotency.keys
   set header_names = null, header_values = null, body = null, replay_until = null
 where (scope, operation, key) in (
   select scope, operation, key
     from idempotency.keys
    where replay_until <= now()
    order by replay_until
    limit $1
      for update skip locked
 )
";

const FORGET: &str = "\
delete from idempotency.keys
 where (scope, operation, key) in (
   select scope, operation, key
     from idempotency.keys
    where scope = $2
    limit $1
      for update skip locked
 )
";

/// Deletes so many expired rows at most, and drops so many answers; says how many rows that were.
pub(crate) async fn prune(pool: &PgPool, limit: u32, prepared: Prepared) -> Result<u64, Error> {
    let deleted = batch(pool, sqlx::query(PRUNE).bind(i64::from(limit)), prepared).await?;
    let faded = batch(pool, sqlx::query(FADE).bind(i64::from(limit)), prepared).await?;
    Ok(deleted + faded)
}

/// Deletes so many of an owner's rows at most, whether they have expired or not.
pub(crate) async fn forget(pool: &PgPool, scope: &Scope, limit: u32, prepared: Prepared) -> Result<u64, Error> {
    batch(pool, sqlx::query(FORGET).bind(i64::from(limit)).bind(scope.as_stored()), prepared).await
}

/// Inside a transaction, so that a pooler keeps the statement's messages together.
async fn batch(pool: &PgPool, statement: Query<'_, Postgres, PgArguments>, prepared: Prepared) -> Result<u64, Error> {
    let mut transaction = Transaction::begin(pool).await?;
    let done = statement.persistent(prepared.kept()).execute(transaction.connection()).await.map_err(before_commit)?;
    transaction.commit().await?;
    Ok(done.rows_affected())
}

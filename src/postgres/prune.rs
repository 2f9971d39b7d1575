//! Forgetting what has expired.

use sqlx::PgPool;

use super::{Prepared, error::before_commit, transaction::Transaction};
use crate::Error;

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

/// Inside a transaction, so that a pooler keeps the statement's messages together.
pub(crate) async fn prune(pool: &PgPool, limit: u32, prepared: Prepared) -> Result<u64, Error> {
    let mut transaction = Transaction::begin(pool).await?;
    let done = sqlx::query(PRUNE)
        .bind(i64::from(limit))
        .persistent(prepared.kept())
        .execute(transaction.connection())
        .await
        .map_err(before_commit)?;
    transaction.commit().await?;
    Ok(done.rows_affected())
}

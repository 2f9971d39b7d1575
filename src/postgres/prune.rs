//! Forgetting what has expired.

use sqlx::PgPool;

use super::error::before_commit;
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

pub(crate) async fn prune(pool: &PgPool, limit: u32) -> Result<u64, Error> {
    let done = sqlx::query(PRUNE).bind(i64::from(limit)).execute(pool).await.map_err(before_commit)?;
    Ok(done.rows_affected())
}

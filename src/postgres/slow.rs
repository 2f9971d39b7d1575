//! Work that was cut off since it took too long.

use sqlx::PgConnection;

use super::Sending;
use crate::Error;

/// Those who wait for the same key wait for an advisory lock, and do not count. PostgreSQL shows only to a member of the
/// same role what a session waits for.
const HOLDS_OTHERS_UP: &str = "\
select exists (
  select
    from pg_catalog.pg_stat_activity other
    join pg_catalog.pg_stat_activity own on own.pid = pg_backend_pid()
   where other.wait_event_type = 'Lock' and other.wait_event <> 'advisory'
     and other.usesysid = own.usesysid and other.client_addr is not distinct from own.client_addr
     and own.pid = any (pg_blocking_pids(other.pid))
)
";

/// Does another connection of the same process, as far as the server can tell, wait for a lock of this transaction's?
pub(crate) async fn holds_others_up(connection: &mut PgConnection, sending: Sending) -> Result<bool, Error> {
    sending.ask(sqlx::query_scalar(HOLDS_OTHERS_UP).persistent(sending.kept).fetch_one(connection)).await
}

//! Work that was cut off since it took too long.

use sqlx::PgConnection;

use super::{Sending, sql::sql};
use crate::Error;

const HOLDS_OTHERS_UP: &str = sql!("holds_others_up");

/// Does another connection of the same process, as far as the server can tell, wait for a lock of this transaction's?
pub(crate) async fn holds_others_up(connection: &mut PgConnection, sending: Sending) -> Result<bool, Error> {
    sending.ask(sqlx::query_scalar(HOLDS_OTHERS_UP).persistent(sending.kept).fetch_one(connection)).await
}

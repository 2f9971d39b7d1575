//! The messages that begin a transaction.

use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};

use super::literal;
use crate::{Error, ErrorKind, LocalSettings};

#[cfg(feature = "axum")]
macro_rules! keyless {
    ($begin:literal) => {
        concat!(
            $begin,
            "; set local idempotency.transaction = 'only the layer commits this transaction'
             ; declare idempotency_transaction cursor with hold for
               select pg_catalog.current_setting('idempotency.transaction')::pg_catalog.int4"
        )
    };
}

/// What a transaction is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// A request with a key.
    Keyed,
    /// A request without one. There is no claim that would keep the handler from committing by itself, so a cursor does: at
    /// COMMIT PostgreSQL reads a cursor WITH HOLD to its end, and this one fails. It is gone when the transaction ends,
    /// however it ends, and is closed before the layer's own COMMIT.
    #[cfg(feature = "axum")]
    Keyless,
    /// What the crate does by itself, whatever the role's isolation level is: it has to see what was committed while it
    /// waited. It waits for locks no longer than a second.
    Own,
}

impl Begin {
    /// One message of the simple protocol for all of it. Where sessions are guarded they are read-only, and this is the
    /// way to write.
    pub(super) fn sql(self, guarded: bool, settings: &LocalSettings) -> Result<SqlStr, Error> {
        let begin = match (self, guarded) {
            (Self::Keyed, true) => "begin read write",
            (Self::Keyed, false) => "begin",
            #[cfg(feature = "axum")]
            (Self::Keyless, true) => keyless!("begin read write"),
            #[cfg(feature = "axum")]
            (Self::Keyless, false) => keyless!("begin"),
            (Self::Own, true) => "begin isolation level read committed read write; set local lock_timeout = '1s'",
            (Self::Own, false) => "begin isolation level read committed; set local lock_timeout = '1s'",
        };
        if settings.is_empty() {
            return Ok(begin.into_sql_str());
        }
        let pairs = settings.pairs().ok_or_else(|| Error::new(ErrorKind::InvalidSetting))?;
        let mut sql = begin.to_owned();
        for (name, value) in pairs {
            sql.push_str("; select pg_catalog.set_config(");
            literal::push(&mut sql, name);
            sql.push_str(", ");
            literal::push(&mut sql, value);
            sql.push_str(", true)");
        }
        Ok(AssertSqlSafe(sql).into_sql_str())
    }
}

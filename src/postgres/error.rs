//! Which [`ErrorKind`] an `sqlx::Error` means, by where it happened.

use sqlx::error::DatabaseError;

use crate::{Error, ErrorKind};

/// `lock_not_available`: the bound on a wait has passed.
pub(crate) const LOCK_TIMEOUT: &str = "55P03";

/// A failure before the commit was sent: nothing has become durable.
pub(crate) fn before_commit(error: sqlx::Error) -> Error {
    let kind = match &error {
        sqlx::Error::Database(database) => match code(database.as_ref()).as_str() {
            "40001" | "40P01" => ErrorKind::Conflict,
            "25P02" => ErrorKind::TransactionAborted,
            // No such table, schema or column; or no table's right for that column, which an old grant would give.
            "42P01" | "3F000" | "42703" => ErrorKind::NotMigrated,
            code if is_shutdown(code) => ErrorKind::StoreUnavailable,
            _ => ErrorKind::Database,
        },
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => ErrorKind::CorruptRow,
        sqlx::Error::ColumnNotFound(_) | sqlx::Error::TypeNotFound { .. } => ErrorKind::NotMigrated,
        _ => ErrorKind::StoreUnavailable,
    };
    Error::with_source(kind, error)
}

/// A failure after the commit was sent: only a plain refusal by the server proves that it did not happen.
pub(crate) fn during_commit(error: sqlx::Error) -> Error {
    let kind = match &error {
        sqlx::Error::Database(database) => match code(database.as_ref()).as_str() {
            "40001" | "40P01" => ErrorKind::Conflict,
            // A server that shuts down while it waits for a replica has committed already.
            code if is_shutdown(code) => ErrorKind::OutcomeUnknown,
            _ => ErrorKind::CommitRefused,
        },
        _ => ErrorKind::OutcomeUnknown,
    };
    Error::with_source(kind, error)
}

/// Did a statement give up waiting for a lock?
pub(crate) fn is_lock_timeout(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|database| code(database) == LOCK_TIMEOUT)
}

fn code(error: &dyn DatabaseError) -> String {
    error.code().unwrap_or_default().into_owned()
}

/// Classes 08 (connection), 53 (too many connections, out of memory) and 57P (shutdown): the server, not the statement.
fn is_shutdown(code: &str) -> bool {
    code.starts_with("08") || code.starts_with("53") || code.starts_with("57P")
}

//! Which [`ErrorKind`] an `sqlx::Error` means, by where it happened.

use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::{Error, ErrorKind};

/// A failure before the commit was sent: nothing has become durable.
pub(crate) fn before_commit(error: sqlx::Error) -> Error {
    let kind = match &error {
        sqlx::Error::Database(_) => {
            let (code, fatal) = verdict(&error);
            match code.as_str() {
                "40001" | "40P01" => ErrorKind::Conflict,
                "25P02" => ErrorKind::TransactionAborted,
                // No such table, schema or column.
                "42P01" | "3F000" | "42703" => ErrorKind::NotMigrated,
                // A lock that did not come free, behind an ALTER TABLE by hand, say; and read-only: a standby, after a failover.
                "55P03" | "25006" => ErrorKind::StoreUnavailable,
                code if fatal || is_of_the_server(code) => ErrorKind::StoreUnavailable,
                _ => ErrorKind::Database,
            }
        }
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => ErrorKind::CorruptRow,
        sqlx::Error::ColumnNotFound(_) | sqlx::Error::TypeNotFound { .. } => ErrorKind::NotMigrated,
        _ => ErrorKind::StoreUnavailable,
    };
    Error::with_source(kind, error)
}

/// A failure after the commit was sent: only a plain refusal by the server proves that it did not happen. A server that
/// shuts down while it waits for a replica has committed already; others than PostgreSQL say so by 40003.
pub(crate) fn during_commit(error: sqlx::Error) -> Error {
    let kind = match &error {
        sqlx::Error::Database(_) => {
            let (code, fatal) = verdict(&error);
            match code.as_str() {
                "40001" | "40P01" => ErrorKind::Conflict,
                code if fatal || code == "40003" || is_of_the_server(code) => ErrorKind::OutcomeUnknown,
                _ => ErrorKind::CommitRefused,
            }
        }
        _ => ErrorKind::OutcomeUnknown,
    };
    Error::with_source(kind, error)
}

/// Did a statement give up waiting: for a lock (55P03), or because of the role's own `statement_timeout` (57014)?
pub(crate) fn is_timeout(error: &sqlx::Error) -> bool {
    let (code, fatal) = verdict(error);
    !fatal && matches!(code.as_str(), "55P03" | "57014")
}

/// Did a row find no partition (23514)? The tables have no constraint of the kind that this code is for otherwise.
pub(crate) fn has_no_partition(error: &sqlx::Error) -> bool {
    verdict(error).0 == "23514"
}

/// The code, and whether the server has ended the connection with it.
fn verdict(error: &sqlx::Error) -> (String, bool) {
    let Some(database) = error.as_database_error() else {
        return (String::new(), false);
    };
    let fatal = database
        .try_downcast_ref::<PgDatabaseError>()
        .is_some_and(|error| matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic));
    (database.code().unwrap_or_default().into_owned(), fatal)
}

/// Classes 08 (connection), 53 (resources), 57P (shutdown), 58 (system) and XX (internal): not the statement's fault.
fn is_of_the_server(code: &str) -> bool {
    ["08", "53", "57P", "58", "XX"].iter().any(|class| code.starts_with(class))
}

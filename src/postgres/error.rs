//! Which [`ErrorKind`] an `sqlx::Error` means, by where it happened, and what it says about its connection.

use std::io;

use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::{
    Error, ErrorKind,
    error::{Connection, Unavailable},
};

/// A failure before the commit was sent: nothing has become durable.
pub(crate) fn before_commit(error: sqlx::Error) -> Error {
    let connection = connection(&error);
    let kind = match &error {
        sqlx::Error::Database(_) => {
            let (code, fatal) = verdict(&error);
            match code.as_str() {
                "40001" | "40P01" => ErrorKind::Conflict,
                "25P02" => ErrorKind::TransactionAborted,
                // No such table, schema or column.
                "42P01" | "3F000" | "42703" => ErrorKind::NotMigrated,
                // A character that the database's encoding does not have.
                "22P05" => ErrorKind::Encoding,
                // No right: the role's, or that of one which work has left behind.
                "42501" => ErrorKind::Database,
                "25006" => return Error::unavailable(Unavailable::ReadOnly(error.into())).on(connection),
                "55P03" | "57014" => return Error::unavailable(Unavailable::Locked).on(connection),
                code if fatal || is_of_the_server(code) || connection != Connection::Fit => ErrorKind::StoreUnavailable,
                _ => ErrorKind::Database,
            }
        }
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => ErrorKind::CorruptRow,
        sqlx::Error::ColumnNotFound(_) | sqlx::Error::TypeNotFound { .. } => ErrorKind::NotMigrated,
        sqlx::Error::PoolClosed => return Error::unavailable(Unavailable::Closed),
        _ => ErrorKind::StoreUnavailable,
    };
    Error::with_source(kind, unwrapped(error)).on(connection)
}

/// A failure of the work's own statement.
#[cfg(feature = "axum")]
pub(crate) fn of_work(error: sqlx::Error) -> Error {
    let connection = connection(&error);
    let kind = match &error {
        sqlx::Error::Database(_) => {
            let (code, fatal) = verdict(&error);
            match code.as_str() {
                "40001" | "40P01" => ErrorKind::Conflict,
                "25P02" => ErrorKind::TransactionAborted,
                "55P03" => return Error::unavailable(Unavailable::Locked).on(connection),
                code if fatal || is_of_the_server(code) => ErrorKind::StoreUnavailable,
                _ => ErrorKind::Database,
            }
        }
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => {
            ErrorKind::StoreUnavailable
        }
        _ => ErrorKind::Database,
    };
    Error::with_source(kind, unwrapped(error)).on(connection)
}

/// A failure after the commit was sent: only a plain refusal by the server proves that it did not happen. A server that
/// shuts down while it waits for a replica has committed already; others than PostgreSQL say so by 40003.
pub(crate) fn during_commit(error: sqlx::Error) -> Error {
    let connection = connection(&error);
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
    Error::with_source(kind, unwrapped(error)).on(connection)
}

/// A failure to connect or to begin, where the server says best why it cannot serve. `settings` tells whether the request
/// has settings of its own, which may be what the server did not like.
pub(super) fn at_begin(error: sqlx::Error, settings: bool) -> Error {
    let connection = connection(&error);
    let (code, fatal) = verdict(&error);
    let why = match code.as_str() {
        _ if is_hang_up(&error) => Unavailable::Down(error.into()),
        "57P01" | "57P02" | "57P03" => Unavailable::Down(error.into()),
        // A standby refuses BEGIN READ WRITE with 0A000.
        "25006" | "0A000" if !fatal => Unavailable::ReadOnly(error.into()),
        "08P01" | "22023" | "42704" if fatal => Unavailable::Parameters(error.into()),
        code if settings && !fatal && !code.is_empty() && !is_of_the_server(code) => {
            return Error::with_source(ErrorKind::InvalidSetting, error).on(Connection::Fit);
        }
        _ => return before_commit(error),
    };
    Error::unavailable(why).on(connection)
}

/// A server that restarts takes its socket away, or breaks off while a client connects or begins.
fn is_hang_up(error: &sqlx::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};

    matches!(error, sqlx::Error::Io(error) if matches!(
        error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionRefused | ConnectionReset | NotFound | UnexpectedEof
    ))
}

/// Does the server refuse one more connection?
pub(super) fn is_full(error: &sqlx::Error) -> bool {
    verdict(error).0 == "53300"
}

/// Did a statement give up waiting: for a lock (55P03), or because of the role's own `statement_timeout` (57014)?
pub(crate) fn is_timeout(error: &sqlx::Error) -> bool {
    let (code, fatal) = verdict(error);
    !fatal && matches!(code.as_str(), "55P03" | "57014")
}

/// Was that wait for a row of ours, which another transaction had inserted? PostgreSQL then says at which row.
pub(crate) fn waited_for_a_row(error: &sqlx::Error) -> bool {
    let database = error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
    database.and_then(PgDatabaseError::r#where).is_some()
}

/// Did a row find no partition (23514)? The tables have no constraint of the kind that this code is for otherwise.
pub(crate) fn has_no_partition(error: &sqlx::Error) -> bool {
    verdict(error).0 == "23514"
}

/// What an error says about its connection. It can serve on only after what is known to be the statement's own fault, or the
/// transaction's; that way no state in which it cannot has to be known beforehand: a session that only reads, a prepared
/// statement that is gone or has another result now, a server that shuts down, a protocol that is out of step.
pub(crate) fn connection(error: &sqlx::Error) -> Connection {
    match error {
        sqlx::Error::Database(_) => {
            let (code, fatal) = verdict(error);
            let own_fault = ["22", "23", "40", "42", "P0"].iter().any(|class| code.starts_with(class))
                || matches!(code.as_str(), "25P02" | "55P03" | "57014" | "3F000");
            let of_the_session = matches!(code.as_str(), "40003" | "42501" | "42P05");
            if own_fault && !of_the_session && !fatal { Connection::Fit } else { Connection::Unfit }
        }
        sqlx::Error::Io(error) if error.get_ref().is_some_and(|source| source.is::<Unavailable>()) => Connection::Busy,
        sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::Decode(_)
        | sqlx::Error::Encode(_)
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::TypeNotFound { .. }
        | sqlx::Error::RowNotFound
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed => Connection::Fit,
        _ => Connection::Unfit,
    }
}

/// A statement that was given up, as an error of the driver.
pub(super) fn gave_up(why: Unavailable) -> sqlx::Error {
    sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, why))
}

/// The reason itself, where the driver's error only carries it.
fn unwrapped(error: sqlx::Error) -> Box<dyn std::error::Error + Send + Sync> {
    match error {
        sqlx::Error::Io(io) if io.get_ref().is_some_and(|source| source.is::<Unavailable>()) => match io.into_inner() {
            Some(why) => why,
            None => sqlx::Error::WorkerCrashed.into(),
        },
        error => error.into(),
    }
}

/// Did one side say what the other did not expect at that point of the protocol?
pub(super) fn is_of_protocol(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref());
    source.is_some_and(|error| match error {
        sqlx::Error::Protocol(_) => true,
        error => verdict(error).0 == "08P01",
    })
}

/// Is there no such cursor?
#[cfg(feature = "axum")]
pub(super) fn is_no_cursor(error: &sqlx::Error) -> bool {
    verdict(error).0 == "34000"
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

/// Has the server ended the connection with this?
pub(super) fn is_fatal(error: &sqlx::Error) -> bool {
    verdict(error).1
}

/// Classes 08 (connection), 53 (resources), 57P (shutdown), 58 (system) and XX (internal): not the statement's fault.
fn is_of_the_server(code: &str) -> bool {
    ["08", "53", "57P", "58", "XX"].iter().any(|class| code.starts_with(class))
}

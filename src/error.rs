use std::{error::Error as StdError, fmt, time::Duration};

use crate::KeyTimeError;

/// A failure between a request and its commit.
///
/// Match on [`kind`](Self::kind), or use [`is_transient`](Self::is_transient) to find out whether the same request may
/// simply be made again. The cause, usually an `sqlx::Error`, is the [`source`](StdError::source).
///
/// Unless the kind is [`OutcomeUnknown`](ErrorKind::OutcomeUnknown), nothing that the attempt did in its transaction
/// has become durable.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    source: Option<Cause>,
    connection: Connection,
}

/// The state of a connection after an error on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Connection {
    /// It can serve the next request.
    Fit,
    /// It cannot serve on, or that is unknown: it must be closed. The server has ended its last statement.
    Unfit,
    /// It must be closed, and the server may still be busy with its last statement.
    Busy,
}

/// The kinds of [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The database cannot be reached, does not respond in time or refuses the connection, or all connections of the pool
    /// are in use. Nothing was executed. The [`source`](StdError::source) says which of these happened.
    StoreUnavailable,
    /// The tables are missing or older than this release: run [`migrate`](crate::migrate).
    NotMigrated,
    /// The connection broke, or the database did not respond in time, while the commit was under way, so the transaction
    /// may be committed. Make the same request again: it gets the stored response, or executes.
    OutcomeUnknown,
    /// PostgreSQL gave this transaction up for another one (serialization failure or deadlock).
    Conflict,
    /// A statement of the work failed, and the work ignored the failure, although PostgreSQL had given the transaction up.
    TransactionAborted,
    /// The work ended the transaction itself, for instance with `ROLLBACK` or `COMMIT`, or made it read-only. On the
    /// engine's own pool nothing was kept. On a shared pool, anything that the work wrote after that is durable, although
    /// it has no response. The [`source`](StdError::source) says what happened.
    TransactionEnded,
    /// PostgreSQL refused the commit itself, usually because of a deferred constraint.
    CommitRefused,
    /// The connection given to [`claim_using`](crate::Idempotency::claim_using) is not inside a transaction.
    NoTransaction,
    /// The transaction given to [`claim_using`](crate::Idempotency::claim_using) holds a thousand claims. Each takes an
    /// entry in the server's lock table, which all its sessions share. Nothing was claimed, and the transaction stays
    /// usable: commit it, and claim the rest in another one.
    TooManyClaims,
    /// Another request under this key is running, and did not end in time. Only [`run`](crate::Idempotency::run) and
    /// [`Duplicate::into_response`](crate::Duplicate::into_response) return it.
    InProgress,
    /// The key was used for another request. Returned by the same methods as [`InProgress`](Self::InProgress).
    KeyReused,
    /// The work was done before, and its response was not kept. Returned by the same methods as
    /// [`InProgress`](Self::InProgress).
    NotRetained,
    /// The key carries no timestamp, or is not in its canonical spelling, although
    /// [`TimestampedKeys`](crate::TimestampedKeys) requires both.
    KeyWithoutTime,
    /// The key is older than the window, and is not stored. Returned by the same methods as
    /// [`InProgress`](Self::InProgress).
    KeyExpired,
    /// The key's timestamp is in the future. Returned by the same methods as [`InProgress`](Self::InProgress).
    KeyFromFuture,
    /// The owner's name is blank: `Scope::new("")`.
    BlankScope,
    /// A value cannot be written as JSON, or a stored value cannot be read as the requested type. Only
    /// [`run`](crate::Idempotency::run) returns it.
    Json,
    /// The key was claimed in a transaction that was committed without a response, which only a database without deferrable
    /// constraints allows. Its effects are durable, so it is not executed again; its response is not known.
    Unanswered,
    /// A row of the table does not hold what this crate writes.
    CorruptRow,
    /// The database's encoding cannot hold the scope, operation or key. Use a database in UTF8.
    Encoding,
    /// One of the request's [`LocalSettings`](crate::LocalSettings) has a name or a value that PostgreSQL does not accept.
    InvalidSetting,
    /// PostgreSQL returned an error for a statement of the engine that none of the other kinds covers.
    Database,
}

/// The way in which the work ended its transaction: the source of
/// [`TransactionEnded`](ErrorKind::TransactionEnded).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Ended {
    #[error("the work ran COMMIT: its writes until then are durable, and so is the claim on the key")]
    Committed,
    #[error("the work ran ROLLBACK: its writes after that are durable")]
    RolledBack,
    #[cfg(feature = "axum")]
    #[error("the work ended its transaction, or closed all cursors: its own commits are durable")]
    Either,
    #[error("the work left a savepoint open: everything was rolled back")]
    Savepoint,
    #[error("the work ended its transaction, and the session refused its writes after that: nothing was kept")]
    Refused,
    #[error("the work made its transaction read-only: everything was rolled back")]
    ReadOnly,
    #[error("it left a statement of its own unfinished, such as a COPY: everything was rolled back")]
    OutOfStep,
}

/// The reason why the database could not serve: the source of [`StoreUnavailable`](ErrorKind::StoreUnavailable) and
/// [`OutcomeUnknown`](ErrorKind::OutcomeUnknown), where the error of PostgreSQL or the pool is not clear enough.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unavailable {
    #[error("the database did not respond to a statement within {0:?}")]
    NoAnswer(Duration),
    #[error("all {connections} connections of the engine were in use, and none came free within {within:?}")]
    InUse { connections: u32, within: Duration },
    #[error(
        "the server has no free connection: the application's pool of {application} and the engine's own pool of \
         {own} may together need more than its max_connections allows; make one of them smaller \
         (Idempotency::max_connections), or share one pool (Idempotency::sharing)"
    )]
    Full { application: u32, own: u32, source: Cause },
    #[error("the server accepts no connections: it is down, starting up or shutting down")]
    Down(#[source] Cause),
    #[error("the server is read-only, like a standby")]
    ReadOnly(#[source] Cause),
    #[error(
        "the server, or a pooler before it, refuses the settings with which the engine's own pool connects; behind a \
         pooler in transaction mode call Idempotency::transaction_pooler, and if the server does not know \
         client_connection_check_interval, switch it off with Idempotency::client_check(None)"
    )]
    Parameters(#[source] Cause),
    #[error(
        "a connection can be opened, but the engine's own pool lends none: a callback of the application's pool \
         (after_connect, before_acquire) may fail on it; the sessions are read-only outside transactions, so a \
         callback that writes must begin a transaction with BEGIN READ WRITE"
    )]
    Callback,
    #[error("the application has closed its pool")]
    Closed,
    #[error("a statement waited too long, for a lock that is not another execution of this request")]
    Locked,
    #[error("the connection could not be used any more, and was closed")]
    Unfit,
    #[error("there is no Tokio runtime")]
    NoRuntime,
}

type Cause = Box<dyn StdError + Send + Sync>;

impl Error {
    pub(crate) fn ended(how: Ended) -> Self {
        Self::with_source(ErrorKind::TransactionEnded, how)
    }

    /// Returns how the work ended the transaction, if it did.
    #[cfg(feature = "axum")]
    pub(crate) fn how_ended(&self) -> Option<Ended> {
        self.source.as_ref()?.downcast_ref().copied()
    }

    pub(crate) fn new(kind: ErrorKind) -> Self {
        Self { kind, source: None, connection: Connection::Fit }
    }

    pub(crate) fn with_source(kind: ErrorKind, source: impl Into<Cause>) -> Self {
        Self { kind, source: Some(source.into()), connection: Connection::Fit }
    }

    /// Makes an error of a database that could not serve, for the reason `why`.
    pub(crate) fn unavailable(why: Unavailable) -> Self {
        Self::with_source(ErrorKind::StoreUnavailable, why)
    }

    /// Returns whether a statement gave up waiting for a lock, or ran out of its own time.
    pub(crate) fn is_wait(&self) -> bool {
        matches!(self.why_unavailable(), Some(Unavailable::Locked))
    }

    pub(crate) fn on(self, connection: Connection) -> Self {
        Self { connection, ..self }
    }

    /// Returns the state of its connection.
    pub(crate) fn connection(&self) -> Connection {
        self.connection
    }

    /// Returns whether the same statement could succeed on another connection.
    pub(crate) fn is_of_connection(&self) -> bool {
        self.kind == ErrorKind::StoreUnavailable && self.connection == Connection::Unfit
    }

    /// Returns why the database could not serve, if that is known.
    pub(crate) fn why_unavailable(&self) -> Option<&Unavailable> {
        self.source.as_ref()?.downcast_ref()
    }

    /// Returns the kind of the failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns whether the same request may succeed if it is simply made again, under the same key.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::StoreUnavailable | ErrorKind::OutcomeUnknown | ErrorKind::Conflict | ErrorKind::InProgress
        )
    }
}

impl From<KeyTimeError> for ErrorKind {
    fn from(error: KeyTimeError) -> Self {
        match error {
            KeyTimeError::Expired => Self::KeyExpired,
            KeyTimeError::InFuture => Self::KeyFromFuture,
            KeyTimeError::Mismatch => Self::KeyReused,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            ErrorKind::StoreUnavailable => "the database cannot serve the request; nothing was kept",
            ErrorKind::NotMigrated => {
                "a table of the schema idempotency is missing or outdated; run axum_idempotency::migrate(&pool) (for \
                 partitioned keys migrate_partitioned), or the files in migrations/, before serving requests"
            }
            ErrorKind::OutcomeUnknown => {
                "the commit was not acknowledged; make the same request again to learn its \
                outcome"
            }
            ErrorKind::Conflict => {
                "the transaction conflicted with a concurrent one and was rolled back; make the \
                request again"
            }
            ErrorKind::TransactionAborted => {
                "a statement failed inside the transaction and the work ignored the failure; everything was rolled back"
            }
            ErrorKind::TransactionEnded => {
                "the work ended its transaction itself; its own commits cannot be undone and have no stored response"
            }
            ErrorKind::CommitRefused => "PostgreSQL refused to commit; everything was rolled back",
            ErrorKind::NoTransaction => "the connection is not inside a transaction; begin one with sqlx first",
            ErrorKind::TooManyClaims => {
                "the transaction holds a thousand claims; claim the rest in another \
                transaction"
            }
            ErrorKind::InProgress => "another request under this key is still running; make the request again later",
            ErrorKind::KeyReused => "the key was used before, for another request; use a new key",
            ErrorKind::NotRetained => "the work was done before, and its response was not kept",
            ErrorKind::KeyWithoutTime => "the key carries no timestamp, or is not in its canonical spelling",
            ErrorKind::KeyExpired => "the key is older than the window; it may have been executed and deleted",
            ErrorKind::KeyFromFuture => "the timestamp of the key is in the future; check the client's clock",
            ErrorKind::BlankScope => "the scope's owner is blank; use Scope::global() if there is no owner",
            ErrorKind::Json => "a value could not be converted to or from JSON",
            ErrorKind::Unanswered => {
                "the key was claimed in a transaction that was committed without a response; it will not be executed \
                 again"
            }
            ErrorKind::CorruptRow => "the row of a key does not hold a complete response",
            ErrorKind::Encoding => {
                "the database's encoding cannot hold the scope, operation or key of this request; use a database in \
                 UTF8"
            }
            ErrorKind::InvalidSetting => {
                "a local setting of the request has a name or a value that PostgreSQL does \
                not accept"
            }
            ErrorKind::Database => "PostgreSQL returned an unexpected error",
        })
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

use std::{error::Error as StdError, fmt, time::Duration};

use crate::KeyTimeError;

/// What went wrong between a request and its one commit.
///
/// Match on [`kind`](Self::kind), or ask [`is_transient`](Self::is_transient) whether the same request may simply be
/// made again. The cause, mostly an `sqlx::Error`, is the [`source`](StdError::source).
///
/// Unless the kind is [`OutcomeUnknown`](ErrorKind::OutcomeUnknown), nothing that the attempt did in its transaction
/// has become durable.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    source: Option<Cause>,
    connection: Connection,
}

/// What an error says about the connection on which it happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Connection {
    /// It can serve the next request.
    Fit,
    /// It cannot, or nobody knows: it has to be closed. The server is done with its last statement.
    Unfit,
    /// It has to be closed, and the server may still be busy with its last statement.
    Busy,
}

/// The kinds of [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The database cannot be reached, does not answer in time, refuses the connection, or the pool has none to spare.
    /// Nothing was executed. The [`source`](StdError::source) says which of these it was.
    StoreUnavailable,
    /// The tables are missing or older than this release: run [`migrate`](crate::migrate).
    NotMigrated,
    /// The connection broke, or the database did not answer in time, while the commit was under way, so it may have
    /// happened. The same request again finds out: it gets the stored answer, or executes.
    OutcomeUnknown,
    /// PostgreSQL gave this transaction up for another one (serialization failure or deadlock).
    Conflict,
    /// A statement of the work failed, the failure was swallowed, and PostgreSQL had given the transaction up.
    TransactionAborted,
    /// The work ended the transaction itself, by a `ROLLBACK`, a `COMMIT` or the like, or made it read-only. On the
    /// engine's own pool nothing was kept; on a shared one, what the work wrote after that is durable, although it has no
    /// response. The [`source`](StdError::source) says which.
    TransactionEnded,
    /// PostgreSQL refused the commit itself, mostly because of a deferred constraint.
    CommitRefused,
    /// The connection given to [`claim_using`](crate::Idempotency::claim_using) is not inside a transaction.
    NoTransaction,
    /// The transaction given to [`claim_using`](crate::Idempotency::claim_using) holds a thousand claims. Each takes a
    /// place in the server's table of locks, which all its sessions share. Nothing was claimed, and the transaction goes
    /// on: commit it, and claim the rest in another one.
    TooManyClaims,
    /// Another request under this key is running, and did not end in time. Only from
    /// [`run`](crate::Idempotency::run).
    InProgress,
    /// The key was used for another request. Only from [`run`](crate::Idempotency::run).
    KeyReused,
    /// The work was done before, and its answer was not kept. Only from [`run`](crate::Idempotency::run).
    NotRetained,
    /// The key bears no time, or not in its one spelling, although [`TimestampedKeys`](crate::TimestampedKeys) asks for one.
    KeyWithoutTime,
    /// The key is older than the window, and nothing is known of it. Only from [`run`](crate::Idempotency::run).
    KeyExpired,
    /// The key was born in the future. Only from [`run`](crate::Idempotency::run).
    KeyFromFuture,
    /// The owner's name is blank: `Scope::new("")`.
    BlankScope,
    /// A value cannot be written as JSON, or a stored one cannot be read as what was asked for. Only from
    /// [`run`](crate::Idempotency::run).
    Json,
    /// The key was claimed in a transaction that was committed without a response, which only an engine without deferrable
    /// constraints lets happen. What it did is durable, so it is not done again; what it would have responded is not known.
    Unanswered,
    /// A row of the table does not hold what this crate writes.
    CorruptRow,
    /// The database's encoding has no way to write the scope, operation or key. Use one in UTF8.
    Encoding,
    /// One of the request's [`LocalSettings`](crate::LocalSettings) has a name or a value that PostgreSQL does not take.
    InvalidSetting,
    /// PostgreSQL answered a statement of ours with an error that none of the above covers.
    Database,
}

/// How the work ended the transaction that it was given: the source of
/// [`TransactionEnded`](ErrorKind::TransactionEnded).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Ended {
    #[error("it ran COMMIT: what it wrote until then is durable, and so is the claim on the key")]
    Committed,
    #[error("it ran ROLLBACK: what it wrote after that is durable")]
    RolledBack,
    #[cfg(feature = "axum")]
    #[error("it ended its transaction, or closed all cursors: what it committed itself is durable")]
    Either,
    #[error("it left a savepoint open: everything was rolled back")]
    Savepoint,
    #[error("it ended its transaction, and the session refused what it wrote after that: nothing was kept")]
    Refused,
    #[error("it made its transaction read-only: everything was rolled back")]
    ReadOnly,
}

/// Why the database could not serve: the source of [`StoreUnavailable`](ErrorKind::StoreUnavailable) and
/// [`OutcomeUnknown`](ErrorKind::OutcomeUnknown), where PostgreSQL or the pool does not say it well enough.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unavailable {
    #[error("the database did not answer a statement within {0:?}")]
    NoAnswer(Duration),
    #[error("all {connections} connections of the engine were in use, and none came free within {within:?}")]
    InUse { connections: u32, within: Duration },
    #[error(
        "the server has no connection to spare: the application's pool of {application} and the engine's own pool of \
         {own} may together need more than its max_connections allows; make one of them smaller \
         (Idempotency::max_connections), or share one pool (Idempotency::sharing)"
    )]
    Full { application: u32, own: u32, source: Cause },
    #[error("the server takes no connections: it is down, starting up or shutting down")]
    Down(#[source] Cause),
    #[error("the server only reads, as a standby does")]
    ReadOnly(#[source] Cause),
    #[error(
        "the server, or a pooler before it, refuses the settings with which the engine's own pool connects; behind a \
         pooler that works by transactions call Idempotency::transaction_pooler, and where the server does not know \
         client_connection_check_interval, switch it off"
    )]
    Parameters(#[source] Cause),
    #[error(
        "a connection can be opened, but the engine's own pool lends none: a callback of the application's pool \
         (after_connect, before_acquire) may fail on it; its sessions only read outside transactions, so a callback that \
         writes has to begin one by BEGIN READ WRITE"
    )]
    Callback,
    #[error("the application has closed its pool")]
    Closed,
    #[error("a statement waited too long, for a lock that is not another execution of this request")]
    Locked,
    #[error("the connection could not serve on, and was closed")]
    Unfit,
    #[error("there is no Tokio runtime")]
    NoRuntime,
}

type Cause = Box<dyn StdError + Send + Sync>;

impl Error {
    pub(crate) fn ended(how: Ended) -> Self {
        Self::with_source(ErrorKind::TransactionEnded, how)
    }

    /// How the work ended the transaction, if it did.
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

    /// The database could not serve, for this reason.
    pub(crate) fn unavailable(why: Unavailable) -> Self {
        Self::with_source(ErrorKind::StoreUnavailable, why)
    }

    /// Did a statement give up waiting for a lock, or run out of its own time?
    pub(crate) fn is_wait(&self) -> bool {
        matches!(self.why_unavailable(), Some(Unavailable::Locked))
    }

    pub(crate) fn on(self, connection: Connection) -> Self {
        Self { connection, ..self }
    }

    /// What it says about its connection.
    pub(crate) fn connection(&self) -> Connection {
        self.connection
    }

    /// Could the same statement succeed on another connection?
    pub(crate) fn is_of_connection(&self) -> bool {
        self.kind == ErrorKind::StoreUnavailable && self.connection == Connection::Unfit
    }

    /// Why the database could not serve, if that is known.
    pub(crate) fn why_unavailable(&self) -> Option<&Unavailable> {
        self.source.as_ref()?.downcast_ref()
    }

    /// What kind of failure this is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// May the same request succeed if it is simply made again, under the same key?
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
            ErrorKind::StoreUnavailable => "the database cannot be reached; nothing was executed",
            ErrorKind::NotMigrated => {
                "a table of the schema idempotency is missing or outdated; run axum_idempotency::migrate(&pool) (for \
                 partitioned keys migrate_partitioned), or the files in migrations/, before serving requests"
            }
            ErrorKind::OutcomeUnknown => "the commit was not acknowledged; make the same request again to learn its outcome",
            ErrorKind::Conflict => "the transaction lost against a concurrent one and was rolled back",
            ErrorKind::TransactionAborted => {
                "a statement failed inside the transaction and the failure was not passed on; everything was rolled back"
            }
            ErrorKind::TransactionEnded => {
                "the transaction was ended by the work itself; what it committed on its own cannot be undone and has no stored answer"
            }
            ErrorKind::CommitRefused => "PostgreSQL refused to commit; everything was rolled back",
            ErrorKind::NoTransaction => "the connection is not inside a transaction; begin one with sqlx first",
            ErrorKind::TooManyClaims => "the transaction holds a thousand claims; claim the rest in another transaction",
            ErrorKind::InProgress => "another request under this key is still running",
            ErrorKind::KeyReused => "the key was used before, for another request",
            ErrorKind::NotRetained => "the work was done before, and its answer was not kept",
            ErrorKind::KeyWithoutTime => "the key bears no time, or is not spelled as it should be",
            ErrorKind::KeyExpired => "the key is older than the window; it may have been executed and forgotten",
            ErrorKind::KeyFromFuture => "the key was born in the future",
            ErrorKind::BlankScope => "the scope's owner is blank; use Scope::global() if there really is none",
            ErrorKind::Json => "a value could not be converted to or from JSON",
            ErrorKind::Unanswered => {
                "the key was claimed in a transaction that was committed without an answer; it will not be executed again"
            }
            ErrorKind::CorruptRow => "a key's row does not hold a complete answer",
            ErrorKind::Encoding => {
                "the database's encoding cannot hold the scope, operation or key of this request; use a database in UTF8"
            }
            ErrorKind::InvalidSetting => "a local setting of the request has a name or a value that PostgreSQL does not take",
            ErrorKind::Database => "PostgreSQL answered with an unexpected error",
        })
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

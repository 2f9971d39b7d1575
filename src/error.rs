use std::{error::Error as StdError, fmt};

use crate::Untimely;

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
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kinds of [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The database cannot be reached, or the pool has no connection to spare. Nothing was executed.
    StoreUnavailable,
    /// The tables are missing or older than this release: run [`migrate`](crate::migrate).
    NotMigrated,
    /// The connection broke while the commit was under way, so it may have happened. The same request again finds
    /// out: it gets the stored answer, or executes.
    OutcomeUnknown,
    /// PostgreSQL gave this transaction up for another one (serialization failure or deadlock).
    Conflict,
    /// A statement of the work failed, the failure was swallowed, and PostgreSQL had given the transaction up.
    TransactionAborted,
    /// The work ended the transaction itself, with a `COMMIT`, `ROLLBACK` or the like. What it committed so is
    /// durable, although it has no answer.
    TransactionEnded,
    /// PostgreSQL refused the commit itself, mostly because of a deferred constraint.
    CommitRefused,
    /// The connection given to [`claim_using`](crate::Idempotency::claim_using) is not inside a transaction.
    NoTransaction,
    /// Another request under this key is running, and did not end in time. Only from
    /// [`run`](crate::Idempotency::run).
    InProgress,
    /// The key was used for another request. Only from [`run`](crate::Idempotency::run).
    KeyReused,
    /// The work was done before, and its answer was not kept. Only from [`run`](crate::Idempotency::run).
    NotRetained,
    /// The key bears no time, or not in its one spelling, although [`TimeBearing`](crate::TimeBearing) asks for one.
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
    /// The key was claimed in a transaction that was committed without an answer: the work ended it itself. What it
    /// did is durable, so it is not done again; what it would have answered is not known.
    Unanswered,
    /// A row of the table does not hold what this crate writes.
    CorruptRow,
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
    #[error("it ran COMMIT or ROLLBACK: what it wrote in between is durable")]
    Either,
    #[error("it left a savepoint open: everything was rolled back")]
    Savepoint,
}

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
        Self { kind, source: None }
    }

    pub(crate) fn with_source(kind: ErrorKind, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { kind, source: Some(source.into()) }
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

impl From<Untimely> for ErrorKind {
    fn from(untimely: Untimely) -> Self {
        match untimely {
            Untimely::Expired => Self::KeyExpired,
            Untimely::FromFuture => Self::KeyFromFuture,
            Untimely::OtherTime => Self::KeyReused,
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
            ErrorKind::OutcomeUnknown => "the connection broke during the commit; make the same request again to learn its outcome",
            ErrorKind::Conflict => "the transaction lost against a concurrent one and was rolled back",
            ErrorKind::TransactionAborted => {
                "a statement failed inside the transaction and the failure was not passed on; everything was rolled back"
            }
            ErrorKind::TransactionEnded => {
                "the transaction was ended by the work itself; what it committed on its own cannot be undone and has no stored answer"
            }
            ErrorKind::CommitRefused => "PostgreSQL refused to commit; everything was rolled back",
            ErrorKind::NoTransaction => "the connection is not inside a transaction; begin one with sqlx first",
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
            ErrorKind::Database => "PostgreSQL answered with an unexpected error",
        })
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

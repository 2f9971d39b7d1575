//! What the client is told of an outcome or a failure.

use axum::{
    http::Method,
    response::{IntoResponse, Response},
};
use tracing::error;

use super::{occurrence::Occurrence, rejection::Rejection, rejection_kind::RejectionKind};
use crate::{
    Error, ErrorKind, KeyTimeError, Tombstone,
    engine::of_work,
    error::{Ended, Unavailable},
};

impl From<Error> for Rejection {
    /// What the client may know of `error`; the rest is for the log.
    fn from(error: Error) -> Self {
        let (kind, detail) = match error.kind() {
            ErrorKind::StoreUnavailable => (RejectionKind::StoreUnavailable, unavailable(&error)),
            ErrorKind::Conflict => (
                RejectionKind::StoreUnavailable,
                "the request met a concurrent one and was undone; repeat it with the same key",
            ),
            ErrorKind::OutcomeUnknown => (
                RejectionKind::OutcomeUnknown,
                "repeat the request with the same key: it is executed, or answered if it was executed before",
            ),
            ErrorKind::TransactionAborted => (
                RejectionKind::TransactionAborted,
                "the handler answered although one of its statements had failed; nothing was kept, the key is free",
            ),
            ErrorKind::TransactionEnded => (
                RejectionKind::TransactionEnded,
                match error.how_ended() {
                    Some(Ended::Committed) => {
                        "the handler ran COMMIT on its connection; what it did until then is durable, no answer was \
                         stored, and the key is not executed again"
                    }
                    Some(Ended::Refused) => {
                        "the handler's transaction had ended before it responded: it ran ROLLBACK or COMMIT on its \
                         connection, or did not pass on that a savepoint failed; nothing was kept, the key is free"
                    }
                    Some(Ended::ReadOnly) => {
                        "the handler made its transaction read-only, so that its response could not be stored; nothing \
                         was kept, the key is free"
                    }
                    Some(Ended::RolledBack) => {
                        "the handler ran ROLLBACK on its connection; what it did after that is durable, no answer \
                         was stored, and the key is free"
                    }
                    Some(Ended::OutOfStep) => {
                        "the handler left a statement unfinished on its connection, such as a COPY that it dropped; nothing was \
                         kept, the key is free"
                    }
                    Some(Ended::Savepoint) => {
                        "the handler left a savepoint open on its connection; nothing was kept, the key is free"
                    }
                    Some(Ended::Either) | None => {
                        "the handler ended its transaction itself, or closed all cursors in it; what it committed itself is \
                         durable, and nothing else"
                    }
                },
            ),
            ErrorKind::Unanswered => (
                RejectionKind::TransactionEnded,
                "an earlier request with this key ended its transaction itself; what it did is durable, its answer \
                 is not known, and it is not executed again",
            ),
            ErrorKind::CommitRefused => (
                RejectionKind::CommitRefused,
                "the database refused to commit the handler's work; nothing was kept, the key is free",
            ),
            ErrorKind::NotMigrated => (
                RejectionKind::Misconfigured,
                "the idempotency table is missing or outdated; the application has to run \
                 axum_idempotency::migrate() before it serves requests",
            ),
            ErrorKind::Encoding => (
                RejectionKind::Misconfigured,
                "the database's encoding has no way to write the owner, the operation or the key of this request; nothing was \
                 executed, and its operator has to use a database in UTF8",
            ),
            ErrorKind::InvalidSetting => (
                RejectionKind::Misconfigured,
                "a setting of the request's transaction has a name or a value that the database does not take; nothing \
                 was executed",
            ),
            ErrorKind::KeyWithoutTime => return Self::key_without_time(),
            ErrorKind::KeyExpired => return Self::key_time(KeyTimeError::Expired),
            ErrorKind::KeyFromFuture => return Self::key_time(KeyTimeError::InFuture),
            ErrorKind::BlankScope => return Self::unscoped(),
            ErrorKind::NotRetained => return Self::not_retained(None),
            ErrorKind::InProgress => return Self::in_flight(),
            ErrorKind::KeyReused => return Self::key_reused(),
            ErrorKind::CorruptRow => (
                RejectionKind::ResponseUnreadable,
                "the request was executed before, and its stored answer cannot be read",
            ),
            ErrorKind::NoTransaction | ErrorKind::TooManyClaims | ErrorKind::Json | ErrorKind::Database => {
                (RejectionKind::Internal, "nothing of the request was kept")
            }
        };
        let refused = Self::new(kind, detail);
        let refused = match (error.kind(), error.how_ended()) {
            (ErrorKind::Unanswered, _) => refused.with_occurrence(Occurrence::Executed),
            (_, Some(how)) => refused.with_occurrence(how.into()),
            (_, None) => refused,
        };
        let nothing_was_kept =
            matches!(error.how_ended(), Some(Ended::Refused | Ended::ReadOnly | Ended::Savepoint | Ended::OutOfStep));
        if nothing_was_kept { refused.with_key_reusable(true) } else { refused }
    }
}

/// Why the database could not serve, without what only concerns its operator.
fn unavailable(error: &Error) -> &'static str {
    match error.why_unavailable() {
        Some(Unavailable::NoAnswer(_)) => {
            "the database did not answer in time; nothing of the request was kept; repeat it with the same key"
        }
        Some(Unavailable::InUse { .. }) => {
            "all connections to the database were in use; nothing was executed; repeat the request with the same key"
        }
        Some(Unavailable::Full { .. }) => {
            "the database takes no more connections; nothing was executed; repeat the request with the same key"
        }
        Some(Unavailable::Down(_)) => {
            "the database is down or starting up; nothing was executed; repeat the request with the same key"
        }
        Some(Unavailable::ReadOnly(_)) => {
            "the database takes no writes at the moment; nothing was kept; repeat the request with the same key"
        }
        Some(Unavailable::Parameters(_) | Unavailable::Callback) => {
            "the database refuses the service's connections; nothing was executed; its operator has to change a setting"
        }
        Some(Unavailable::Closed) => {
            "the service is shutting down; nothing was executed; repeat the request with the same key"
        }
        Some(Unavailable::Locked) => {
            "the database was held up by a lock; nothing of the request was kept; repeat it with the same key"
        }
        Some(Unavailable::Unfit | Unavailable::NoRuntime) | None => {
            "nothing of the request was kept; repeat it with the same key"
        }
    }
}

/// For `?` in a handler: a statement of it failed. What may succeed if the request is made again (a serialization failure, a
/// deadlock, a lost connection) is 503 `store-unavailable`; all else is 500 `internal`. The cause stands in the log, and
/// nothing of it in the response. Everything that the handler did is undone.
///
/// Errors that mean something to the client, such as a violated constraint, are the handler's to map before.
impl From<sqlx::Error> for Rejection {
    fn from(error: sqlx::Error) -> Self {
        logged(of_work(error))
    }
}

/// As the [`Rejection`] that it becomes, with the cause in the log.
impl IntoResponse for Error {
    fn into_response(self) -> Response {
        logged(self).into_response()
    }
}

/// What the client may know of an error, with the rest in the log.
pub(super) fn logged(error: Error) -> Rejection {
    let shown = &error as &dyn std::error::Error;
    error!(error = shown, source = shown.source(), "idempotency failed");
    error.into()
}

impl Rejection {
    pub(super) fn unscoped() -> Self {
        Self::new(RejectionKind::Unscoped, "an idempotency key belongs to somebody; authenticate first")
    }

    pub(super) fn key_not_handled(method: &Method) -> Self {
        let detail =
            format!("keys are not remembered for {method} here; send the request without one, if that is meant");
        Self::new(RejectionKind::KeyNotHandled, detail)
    }

    pub(super) fn request_too_large(limit: usize) -> Self {
        Self::new(RejectionKind::RequestTooLarge, format!("the request body must not be larger than {limit} bytes"))
    }

    pub(super) fn request_unreadable() -> Self {
        Self::new(RejectionKind::RequestUnreadable, "the request body broke off")
    }

    pub(super) fn in_flight() -> Self {
        Self::new(
            RejectionKind::InFlight,
            "repeat the request with the same key after a moment to get the first one's answer",
        )
    }

    /// It names the time of the first request, by which its result can be looked for.
    pub(super) fn not_retained(tombstone: Option<Tombstone>) -> Self {
        let when = tombstone
            .and_then(|tombstone| tombstone.window)
            .map(|window| format!(" on {}", httpdate::fmt_http_date(window.first_used)))
            .unwrap_or_default();
        let detail = format!("the request was executed{when}; its answer was not kept, and it is not executed again");
        Self::new(RejectionKind::ResponseNotRetained, detail)
    }

    pub(super) fn key_without_time() -> Self {
        Self::new(RejectionKind::InvalidKey, "the key does not bear the time that this operation asks for")
    }

    pub(super) fn key_time(error: KeyTimeError) -> Self {
        match error {
            KeyTimeError::Expired => Self::new(
                RejectionKind::KeyExpired,
                "the key is too old: the request may have been executed and forgotten, and is not executed now; \
                 find out what became of it before you make it again under a new key",
            ),
            KeyTimeError::InFuture => Self::new(
                RejectionKind::KeyFromFuture,
                "the key was made later than now; set the clock, and make a new key",
            ),
            KeyTimeError::Mismatch => Self::new(
                RejectionKind::InvalidKey,
                "the key was first sent at another time than this request says; repeat a request as it was",
            )
            .with_occurrence(Occurrence::Unknown),
        }
    }

    pub(super) fn key_reused() -> Self {
        Self::new(
            RejectionKind::KeyReused,
            "the method, path, query, content type or body differs from the first request with this key; \
             use a new key for a new request",
        )
    }
}

//! Makes rejections for the client from outcomes and errors.

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
    /// Returns what the client may know of `error`; the rest is for the log.
    fn from(error: Error) -> Self {
        let (kind, detail) = match error.kind() {
            ErrorKind::StoreUnavailable => (RejectionKind::StoreUnavailable, unavailable(&error)),
            ErrorKind::Conflict => (
                RejectionKind::StoreUnavailable,
                "The request conflicted with a concurrent one and was rolled back. Repeat it with the same key.",
            ),
            ErrorKind::OutcomeUnknown => (
                RejectionKind::OutcomeUnknown,
                "The database did not confirm the commit. Repeat the request with the same key: it gets the stored \
                 response, or is executed.",
            ),
            ErrorKind::TransactionAborted => (
                RejectionKind::TransactionAborted,
                "The handler responded although one of its statements had failed; nothing was kept, and the key is \
                 free. The service's developer must pass the error on, or use a savepoint.",
            ),
            ErrorKind::TransactionEnded => (
                RejectionKind::TransactionEnded,
                match error.how_ended() {
                    Some(Ended::Committed) => {
                        "The handler ran COMMIT on its connection: its work until then is durable, and no response was \
                         stored. The key is not executed again; query the result instead."
                    }
                    Some(Ended::Refused) => {
                        "The handler's transaction had ended before the handler responded; nothing was kept, and the \
                         key is free. The handler must not run ROLLBACK or COMMIT, or ignore that a savepoint failed."
                    }
                    Some(Ended::ReadOnly) => {
                        "The handler made its transaction read-only, so its response could not be stored; nothing \
                         was kept, and the key is free. The handler must leave its transaction writable."
                    }
                    Some(Ended::RolledBack) => {
                        "The handler ran ROLLBACK on its connection: its work after that is durable, no response was \
                         stored, and the key is free. Query the result before you repeat the request."
                    }
                    Some(Ended::OutOfStep) => {
                        "the handler left a statement unfinished on its connection, such as a COPY that it dropped; nothing was \
                         kept, the key is free"
                    }
                    Some(Ended::Savepoint) => {
                        "The handler left a savepoint open on its connection; nothing was kept, and the key is free. \
                         The handler must commit or roll back each savepoint."
                    }
                    Some(Ended::Either) | None => {
                        "The handler ended its transaction itself, or closed all cursors in it; only its own commits \
                         are durable. Query the result before you repeat the request."
                    }
                },
            ),
            ErrorKind::Unanswered => (
                RejectionKind::TransactionEnded,
                "An earlier request with this key ended its transaction itself: its work is durable, and its \
                 response is not known. It is not executed again; query the result instead.",
            ),
            ErrorKind::CommitRefused => (
                RejectionKind::CommitRefused,
                "The database refused to commit the handler's work; nothing was kept, and the key is free. The \
                 service's log has the reason.",
            ),
            ErrorKind::NotMigrated => (
                RejectionKind::Misconfigured,
                "The idempotency table is missing or outdated. The application must run axum_idempotency::migrate() \
                 before it serves requests.",
            ),
            ErrorKind::Encoding => (
                RejectionKind::Misconfigured,
                "The database's encoding cannot hold the owner, the operation or the key of this request; nothing \
                 was executed. The service's operator must use a database in UTF8.",
            ),
            ErrorKind::InvalidSetting => (
                RejectionKind::Misconfigured,
                "A setting of the request's transaction has a name or a value that the database does not accept; \
                 nothing was executed. The service's developer must correct the setting.",
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
                "The request was executed before, and its stored response cannot be read. Query the result instead.",
            ),
            ErrorKind::NoTransaction | ErrorKind::TooManyClaims | ErrorKind::Json | ErrorKind::Database => (
                RejectionKind::Internal,
                "An unexpected error happened; nothing of the request was kept. The service's log has the cause.",
            ),
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

/// Returns the detail for a database that could not serve, without facts for the operator only.
fn unavailable(error: &Error) -> &'static str {
    match error.why_unavailable() {
        Some(Unavailable::NoAnswer(_)) => {
            "The database did not respond in time, and nothing of the request was kept. Repeat it with the same key."
        }
        Some(Unavailable::InUse { .. }) => {
            "All connections to the database were in use, and nothing was executed. Repeat the request with the same \
             key."
        }
        Some(Unavailable::Full { .. }) => {
            "The database accepts no more connections, and nothing was executed. Repeat the request with the same key."
        }
        Some(Unavailable::Down(_)) => {
            "The database is down or starting up, and nothing was executed. Repeat the request with the same key."
        }
        Some(Unavailable::ReadOnly(_)) => {
            "The database is read-only at the moment, and nothing was kept. Repeat the request with the same key."
        }
        Some(Unavailable::Parameters(_) | Unavailable::Callback) => {
            "The database refuses the service's connections, and nothing was executed. The service's operator must \
             change a setting."
        }
        Some(Unavailable::Closed) => {
            "The service is shutting down, and nothing was executed. Repeat the request with the same key."
        }
        Some(Unavailable::Locked) => {
            "A lock blocked the database, and nothing of the request was kept. Repeat it with the same key."
        }
        Some(Unavailable::Unfit | Unavailable::NoRuntime) | None => {
            "The database could not serve the request, and nothing of it was kept. Repeat it with the same key."
        }
    }
}

/// Converts a failed statement of a handler, for `?`.
///
/// An error after which the same request may succeed (a serialization failure, a deadlock, a lost connection) becomes 503
/// `store-unavailable`; any other becomes 500 `internal`. The cause is logged, and is not in the response. The handler's
/// work is undone.
///
/// If an error means something to the client, such as a violated constraint, the handler must map it before.
impl From<sqlx::Error> for Rejection {
    fn from(error: sqlx::Error) -> Self {
        logged(of_work(error))
    }
}

/// Responds with the [`Rejection`] for the error, and logs the cause.
impl IntoResponse for Error {
    fn into_response(self) -> Response {
        logged(self).into_response()
    }
}

/// Returns what the client may know of an error, and logs the rest.
pub(super) fn logged(error: Error) -> Rejection {
    let shown = &error as &dyn std::error::Error;
    error!(error = shown, source = shown.source(), "idempotency failed");
    error.into()
}

impl Rejection {
    pub(super) fn unscoped() -> Self {
        Self::new(RejectionKind::Unscoped, "The request has a key and no owner. Authenticate first.")
    }

    pub(super) fn key_not_handled(method: &Method) -> Self {
        let detail =
            format!("Keys are not stored for {method} here, and nothing was executed. Send the request without a key.");
        Self::new(RejectionKind::KeyNotHandled, detail)
    }

    pub(super) fn request_too_large(limit: usize) -> Self {
        Self::new(
            RejectionKind::RequestTooLarge,
            format!("The request body is larger than {limit} bytes. Send a smaller one."),
        )
    }

    pub(super) fn request_unreadable() -> Self {
        Self::new(
            RejectionKind::RequestUnreadable,
            "The request body broke off before its end. Send the whole request.",
        )
    }

    pub(super) fn in_flight() -> Self {
        Self::new(
            RejectionKind::InFlight,
            "Another request with this key is running. Repeat the request with the same key after a moment to get \
             its response.",
        )
    }

    /// Makes a rejection that names the time of the first request, so that the client can look for its result.
    pub(super) fn not_retained(tombstone: Option<Tombstone>) -> Self {
        let when = tombstone
            .and_then(|tombstone| tombstone.window)
            .map(|window| format!(" on {}", httpdate::fmt_http_date(window.first_used)))
            .unwrap_or_default();
        let detail =
            format!("The request was executed{when}, and its response was not kept. Query the result instead.");
        Self::new(RejectionKind::ResponseNotRetained, detail)
    }

    pub(super) fn key_without_time() -> Self {
        Self::new(
            RejectionKind::InvalidKey,
            "The key does not carry the timestamp that this operation asks for. Make a key of the documented kind.",
        )
    }

    pub(super) fn key_time(error: KeyTimeError) -> Self {
        match error {
            KeyTimeError::Expired => Self::new(
                RejectionKind::KeyExpired,
                "The key is too old: the request may have been executed and deleted, so it is not executed now. Find \
                 out whether it was executed before you make it again under a new key.",
            ),
            KeyTimeError::InFuture => Self::new(
                RejectionKind::KeyFromFuture,
                "The timestamp of the key is in the future. Set the clock, and make a new key.",
            ),
            KeyTimeError::Mismatch => Self::new(
                RejectionKind::InvalidKey,
                "The key was used before with another first-sent time. Repeat a request unchanged.",
            )
            .with_occurrence(Occurrence::Unknown),
        }
    }

    pub(super) fn key_reused() -> Self {
        Self::new(
            RejectionKind::KeyReused,
            "The method, path, query, content type or body differs from the first request with this key. Use a new \
             key for a new request.",
        )
    }
}

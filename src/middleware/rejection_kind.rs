use axum::http::StatusCode;

use super::occurrence::Occurrence;

/// The kinds of [`Rejection`](crate::Rejection), each with its status and its problem type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectionKind {
    /// 400 `missing-key`: the route requires a key and there is none.
    MissingKey,
    /// 400 `invalid-key`: the field is there, but is not one valid key.
    InvalidKey,
    /// 400 `key-not-handled`: the method is not one that the layer handles, and
    /// [`refuse_unhandled_keys`](crate::IdempotencyLayer::refuse_unhandled_keys) is set.
    KeyNotHandled,
    /// 412 `key-expired`: the key bears a time before the window, and nothing is known of it. The problem's type tells it
    /// from the 412 of a precondition; [`rejection_status`](crate::IdempotencyLayer::rejection_status) can make it a 410.
    KeyExpired,
    /// 400 `key-from-future`: the key bears a time in the future.
    KeyFromFuture,
    /// 401 `unscoped`: nobody owns the request.
    Unscoped,
    /// 403 `replay-refused`: the layer's guard does not let this caller have the stored answer.
    ReplayRefused,
    /// 400 `request-unreadable`: the request's body broke off.
    RequestUnreadable,
    /// 413 `request-too-large`: the request's body is over the layer's limit.
    RequestTooLarge,
    /// 422 `key-reused`: the key was used for another request.
    KeyReused,
    /// 409 `in-flight`: a request with this key is still running.
    InFlight,
    /// 409 `response-not-retained`: it was done before, and its answer was not kept.
    ResponseNotRetained,
    /// 503 `store-unavailable`: the database cannot be reached, or gave the transaction up for another one.
    StoreUnavailable,
    /// 503 `outcome-unknown`: the connection broke during the commit.
    OutcomeUnknown,
    /// 503 `handler-timeout`: the handler took longer than the layer allows.
    HandlerTimeout,
    /// 500 `response-unreadable`: the stored answer cannot be decoded.
    ResponseUnreadable,
    /// 500 `response-too-large`: the handler's answer is over the layer's limit.
    ResponseTooLarge,
    /// 500 `response-unsupported`: the handler's answer cannot be stored, or broke off.
    ResponseUnsupported,
    /// 500 `connection-held`: the handler has answered and still holds its [`Tx`](crate::Tx).
    ConnectionHeld,
    /// 500 `transaction-aborted`: a statement failed, and the handler answered as if it had not.
    TransactionAborted,
    /// 500 `transaction-ended`: the handler ended the transaction itself.
    TransactionEnded,
    /// 500 `commit-refused`: PostgreSQL refused the commit.
    CommitRefused,
    /// 500 `misconfigured`: the application uses the crate in a way that cannot work.
    Misconfigured,
    /// 500 `internal`: anything else.
    Internal,
}

impl RejectionKind {
    /// The status, the suffix of the problem type, and the title.
    pub(super) const fn table(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::MissingKey => (StatusCode::BAD_REQUEST, "missing-key", "Idempotency-Key is missing"),
            Self::InvalidKey => (StatusCode::BAD_REQUEST, "invalid-key", "Idempotency-Key is not valid"),
            Self::KeyNotHandled => {
                (StatusCode::BAD_REQUEST, "key-not-handled", "Idempotency-Key means nothing to this method")
            }
            Self::KeyExpired => (StatusCode::PRECONDITION_FAILED, "key-expired", "Idempotency-Key is too old"),
            Self::KeyFromFuture => (StatusCode::BAD_REQUEST, "key-from-future", "Idempotency-Key is from the future"),
            Self::Unscoped => (StatusCode::UNAUTHORIZED, "unscoped", "The request has no owner"),
            Self::ReplayRefused => (StatusCode::FORBIDDEN, "replay-refused", "The stored response is not for you"),
            Self::RequestUnreadable => {
                (StatusCode::BAD_REQUEST, "request-unreadable", "The request body could not be read")
            }
            Self::RequestTooLarge => {
                (StatusCode::PAYLOAD_TOO_LARGE, "request-too-large", "The request body is too large")
            }
            Self::KeyReused => {
                (StatusCode::UNPROCESSABLE_ENTITY, "key-reused", "Idempotency-Key was used for another request")
            }
            Self::InFlight => (StatusCode::CONFLICT, "in-flight", "A request with this key is still running"),
            Self::ResponseNotRetained => {
                (StatusCode::CONFLICT, "response-not-retained", "The response was not retained")
            }
            Self::StoreUnavailable => (StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", "Nothing was kept"),
            Self::OutcomeUnknown => {
                (StatusCode::SERVICE_UNAVAILABLE, "outcome-unknown", "The outcome is not known yet")
            }
            Self::HandlerTimeout => (StatusCode::SERVICE_UNAVAILABLE, "handler-timeout", "The operation took too long"),
            Self::ResponseUnreadable => {
                (StatusCode::INTERNAL_SERVER_ERROR, "response-unreadable", "The stored response cannot be read")
            }
            Self::ResponseTooLarge => {
                (StatusCode::INTERNAL_SERVER_ERROR, "response-too-large", "The response is too large")
            }
            Self::ResponseUnsupported => {
                (StatusCode::INTERNAL_SERVER_ERROR, "response-unsupported", "The response cannot be stored")
            }
            Self::ConnectionHeld => {
                (StatusCode::INTERNAL_SERVER_ERROR, "connection-held", "The handler did not give back its connection")
            }
            Self::TransactionAborted => {
                (StatusCode::INTERNAL_SERVER_ERROR, "transaction-aborted", "A statement of the handler failed")
            }
            Self::TransactionEnded => {
                (StatusCode::INTERNAL_SERVER_ERROR, "transaction-ended", "The handler ended its transaction")
            }
            Self::CommitRefused => {
                (StatusCode::INTERNAL_SERVER_ERROR, "commit-refused", "The database refused the commit")
            }
            Self::Misconfigured => (StatusCode::INTERNAL_SERVER_ERROR, "misconfigured", "The server is misconfigured"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal", "Internal server error"),
        }
    }

    /// The status it is answered with.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        self.table().0
    }

    /// The last part of its problem type, such as `key-reused`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.table().1
    }

    /// May the same request, under the same key, succeed if it is simply made again?
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::InFlight | Self::StoreUnavailable | Self::OutcomeUnknown | Self::HandlerTimeout)
    }
}

impl RejectionKind {
    /// May the same key be used for the request that the client should make next, be it repeated or corrected? If not,
    /// the next request needs a new key.
    #[must_use]
    pub const fn is_key_reusable(self) -> bool {
        !matches!(
            self,
            Self::InvalidKey
                | Self::KeyExpired
                | Self::KeyFromFuture
                | Self::KeyReused
                | Self::ResponseNotRetained
                | Self::TransactionEnded
                | Self::ResponseUnreadable
        )
    }
}

impl RejectionKind {
    /// Whether the request was executed, if nothing more is known than the kind: then it is not executed only if it is certain
    /// that no earlier request with its key was.
    #[must_use]
    pub const fn occurrence(self) -> Occurrence {
        match self {
            Self::MissingKey
            | Self::InvalidKey
            | Self::KeyNotHandled
            | Self::KeyFromFuture
            | Self::HandlerTimeout
            | Self::ResponseTooLarge
            | Self::ResponseUnsupported
            | Self::ConnectionHeld
            | Self::TransactionAborted
            | Self::CommitRefused => Occurrence::NotExecuted,
            Self::ReplayRefused | Self::ResponseNotRetained | Self::ResponseUnreadable => Occurrence::Executed,
            Self::KeyExpired
            | Self::KeyReused
            | Self::Unscoped
            | Self::RequestUnreadable
            | Self::RequestTooLarge
            | Self::InFlight
            | Self::StoreUnavailable
            | Self::OutcomeUnknown
            | Self::TransactionEnded
            | Self::Misconfigured
            | Self::Internal => Occurrence::Unknown,
        }
    }
}

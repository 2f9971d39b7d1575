use axum::http::StatusCode;

use super::occurrence::Occurrence;

/// Defines each kind in one place: its status, the last part of its problem type, and its title; whether the same
/// request may succeed if it is made again; whether the next request may carry the same key; and whether the request was
/// executed, if only the kind is known.
macro_rules! rejection_kinds {
    ($(
        $(#[doc = $doc:literal])+
        $kind:ident = $code:literal $status:ident $name:literal $title:literal, $retry:ident, $key:ident, $occurrence:ident;
    )+) => {
        /// The kinds of [`Rejection`](crate::Rejection), each with its status and its problem type.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum RejectionKind {
            $(
                #[doc = concat!(stringify!($code), " `", $name, "`.")]
                $(#[doc = $doc])+
                $kind,
            )+
        }

        impl RejectionKind {
            /// All kinds, in the order of their documentation.
            pub const ALL: &[Self] = &[$(Self::$kind),+];

            /// Returns the status of the response, unless
            /// [`rejection_status`](crate::IdempotencyLayer::rejection_status) sets another one.
            #[must_use]
            pub const fn status(self) -> StatusCode {
                match self {
                    $(Self::$kind => StatusCode::$status,)+
                }
            }

            /// Returns the last part of the problem type, such as `key-reused`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                }
            }

            pub(super) const fn title(self) -> &'static str {
                match self {
                    $(Self::$kind => $title,)+
                }
            }

            /// Returns whether the same request, under the same key, may succeed if it is simply made again.
            #[must_use]
            pub const fn is_retryable(self) -> bool {
                match self {
                    $(Self::$kind => rejection_kinds!(@ $retry),)+
                }
            }

            /// Returns whether the client's next request, repeated or corrected, may use the same key. If not, it needs a
            /// new key.
            #[must_use]
            pub const fn is_key_reusable(self) -> bool {
                match self {
                    $(Self::$kind => rejection_kinds!(@ $key),)+
                }
            }

            /// Returns whether the request was executed, if only the kind is known.
            ///
            /// It is `NotExecuted` only if it is certain that no earlier request with the key was executed.
            #[must_use]
            pub const fn occurrence(self) -> Occurrence {
                match self {
                    $(Self::$kind => Occurrence::$occurrence,)+
                }
            }
        }
    };
    (@ retryable) => { true };
    (@ refused) => { false };
    (@ same_key) => { true };
    (@ new_key) => { false };
}

rejection_kinds! {
    /// The route requires a key, and the request has none.
    MissingKey = 400 BAD_REQUEST "missing-key" "Idempotency-Key is missing", refused, same_key, NotExecuted;
    /// The field is present, but is not one valid key.
    InvalidKey = 400 BAD_REQUEST "invalid-key" "Idempotency-Key is not valid", refused, new_key, Unknown;
    /// The method is not one that the layer handles, and
    /// [`refuse_unhandled_keys`](crate::IdempotencyLayer::refuse_unhandled_keys) is set.
    KeyNotHandled = 400 BAD_REQUEST "key-not-handled" "Idempotency-Key is not used for this method", refused, same_key, Unknown;
    /// The key's timestamp is before the window, and the key is not stored. The problem's type distinguishes it from the 412
    /// of a precondition; [`rejection_status`](crate::IdempotencyLayer::rejection_status) can make it a 410.
    KeyExpired = 412 PRECONDITION_FAILED "key-expired" "Idempotency-Key is too old", refused, new_key, Unknown;
    /// The key's timestamp is in the future.
    KeyFromFuture = 400 BAD_REQUEST "key-from-future" "Idempotency-Key is from the future", refused, new_key, Unknown;
    /// The request has no owner.
    Unscoped = 401 UNAUTHORIZED "unscoped" "The request has no owner", refused, same_key, Unknown;
    /// The layer's guard does not give this caller the stored response.
    ReplayRefused = 403 FORBIDDEN "replay-refused" "The stored response is not for you", refused, same_key, Executed;
    /// The request's body broke off before its end.
    RequestUnreadable = 400 BAD_REQUEST "request-unreadable" "The request body could not be read", refused, same_key, Unknown;
    /// The request's body is larger than the layer's limit.
    RequestTooLarge = 413 PAYLOAD_TOO_LARGE "request-too-large" "The request body is too large", refused, same_key, Unknown;
    /// The key was used for another request.
    KeyReused = 422 UNPROCESSABLE_ENTITY "key-reused" "Idempotency-Key was used for another request", refused, new_key, Unknown;
    /// A request with this key is still running.
    InFlight = 409 CONFLICT "in-flight" "A request with this key is still running", retryable, same_key, Unknown;
    /// The request was executed before, and its response was not kept.
    ResponseNotRetained = 409 CONFLICT "response-not-retained" "The response was not retained", refused, new_key, Executed;
    /// The database cannot be reached, or gave the transaction up for another one.
    StoreUnavailable = 503 SERVICE_UNAVAILABLE "store-unavailable" "Nothing was kept", retryable, same_key, Unknown;
    /// The connection broke during the commit.
    OutcomeUnknown = 503 SERVICE_UNAVAILABLE "outcome-unknown" "The outcome is not known yet", retryable, same_key, Unknown;
    /// The handler took longer than the layer allows.
    HandlerTimeout = 503 SERVICE_UNAVAILABLE "handler-timeout" "The operation took too long", retryable, same_key, NotExecuted;
    /// The stored response cannot be decoded.
    ResponseUnreadable = 500 INTERNAL_SERVER_ERROR "response-unreadable" "The stored response cannot be read", refused, new_key, Executed;
    /// The handler's response is larger than the layer's limit.
    ResponseTooLarge = 500 INTERNAL_SERVER_ERROR "response-too-large" "The response is too large", refused, same_key, NotExecuted;
    /// The handler's response cannot be stored, or broke off.
    ResponseUnsupported = 500 INTERNAL_SERVER_ERROR "response-unsupported" "The response cannot be stored", refused, same_key, NotExecuted;
    /// The handler has responded and still holds its [`Tx`](crate::Tx).
    ConnectionHeld = 500 INTERNAL_SERVER_ERROR "connection-held" "The handler did not give back its connection", refused, same_key, NotExecuted;
    /// A statement failed, and the handler responded as if it had not.
    TransactionAborted = 500 INTERNAL_SERVER_ERROR "transaction-aborted" "A statement of the handler failed", refused, same_key, NotExecuted;
    /// The handler ended the transaction itself.
    TransactionEnded = 500 INTERNAL_SERVER_ERROR "transaction-ended" "The handler ended its transaction", refused, new_key, Unknown;
    /// PostgreSQL refused the commit.
    CommitRefused = 500 INTERNAL_SERVER_ERROR "commit-refused" "The database refused the commit", refused, same_key, NotExecuted;
    /// The application uses the crate in a way that cannot work.
    Misconfigured = 500 INTERNAL_SERVER_ERROR "misconfigured" "The server is misconfigured", refused, same_key, Unknown;
    /// Another failure; the log has its cause.
    Internal = 500 INTERNAL_SERVER_ERROR "internal" "Internal server error", refused, same_key, Unknown;
}

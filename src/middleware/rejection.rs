use std::{borrow::Cow, sync::Arc};

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::occurrence::Occurrence;

/// Why the layer, or one of its extractors, answered instead of the handler.
///
/// It is in the extensions of every such response, whatever a renderer made of it, so that logging and metrics
/// outside can read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    kind: RejectionKind,
    status: StatusCode,
    detail: Cow<'static, str>,
    key_reusable: bool,
    occurrence: Occurrence,
    reference: Option<Arc<str>>,
}

/// The kinds of [`Rejection`], each with its status and its problem type.
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
    /// 503 `time-limit`: the handler took longer than the layer allows.
    TimeLimit,
    /// 500 `answer-unreadable`: the stored answer cannot be decoded.
    AnswerUnreadable,
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
    const fn table(self) -> (StatusCode, &'static str, &'static str) {
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
            Self::TimeLimit => (StatusCode::SERVICE_UNAVAILABLE, "time-limit", "The operation took too long"),
            Self::AnswerUnreadable => {
                (StatusCode::INTERNAL_SERVER_ERROR, "answer-unreadable", "The stored response cannot be read")
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
        matches!(self, Self::InFlight | Self::StoreUnavailable | Self::OutcomeUnknown | Self::TimeLimit)
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
                | Self::AnswerUnreadable
        )
    }
}

impl Rejection {
    /// Where problem types live unless [`problem_base`](crate::IdempotencyLayer::problem_base) says otherwise: the
    /// section of this crate's documentation that explains them.
    pub const PROBLEM_BASE: &'static str =
        "https://docs.rs/axum-idempotency/latest/axum_idempotency/_docs/problems/index.html#";

    /// Seconds in `Retry-After`, where there is one.
    const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

    pub(super) fn new(kind: RejectionKind, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            status: kind.status(),
            detail: detail.into(),
            key_reusable: kind.is_key_reusable(),
            occurrence: kind.occurrence(),
            reference: None,
        }
    }

    pub(super) fn with_reference(self, reference: Option<Arc<str>>) -> Self {
        Self { reference, ..self }
    }

    /// Where the kind alone does not say it.
    pub(super) fn with_key_reusable(self, key_reusable: bool) -> Self {
        Self { key_reusable, ..self }
    }

    /// May the same key be used for the request that the client should make next, be it repeated or corrected? That of its
    /// [kind](RejectionKind::is_key_reusable), unless the refusal knows better.
    #[must_use]
    pub fn is_key_reusable(&self) -> bool {
        self.key_reusable
    }

    pub(super) fn with_occurrence(self, occurrence: Occurrence) -> Self {
        Self { occurrence, ..self }
    }

    /// Whether the request was executed, now or before: that of its [kind](RejectionKind::occurrence), unless the refusal knows
    /// better.
    #[must_use]
    pub fn occurrence(&self) -> Occurrence {
        self.occurrence
    }

    /// With the status that the layer was told to give it.
    pub(super) fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// What links this refusal to the first request with its key, if the layer was told to give references and the
    /// key is known; see [`reference_header`](crate::IdempotencyLayer::reference_header).
    #[must_use]
    pub fn reference(&self) -> Option<&str> {
        self.reference.as_deref()
    }

    /// What kind of refusal this is.
    #[must_use]
    pub fn kind(&self) -> RejectionKind {
        self.kind
    }

    /// The status of the response: that of its [kind](RejectionKind::status), or what
    /// [`rejection_status`](crate::IdempotencyLayer::rejection_status) says instead.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// One sentence for the client's developer: what is wrong and what to do. It holds nothing that is stored, and
    /// neither key nor body.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The problem document (RFC 9457), with types under `base`.
    pub(super) fn to_problem(&self, base: &str) -> Response {
        let status = self.status;
        let (_, name, title) = self.kind.table();
        let mut problem = json!({
            "type": format!("{base}{name}"),
            "title": title,
            "status": status.as_u16(),
            "detail": self.detail,
            "retryable": self.kind.is_retryable(),
            "key_reusable": self.key_reusable,
            "occurrence": self.occurrence.as_str(),
        });
        if let Some(reference) = self.reference() {
            problem["reference"] = reference.into();
        }
        let mut response = Response::new(Body::from(problem.to_string()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CONTENT_LANGUAGE, HeaderValue::from_static("en"));
        response
    }

    /// Adds what no refusal goes without.
    pub(super) fn complete(&self, headers: &mut HeaderMap) {
        if !headers.contains_key(header::CACHE_CONTROL) {
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        }
        if self.kind.is_retryable() && !headers.contains_key(header::RETRY_AFTER) {
            headers.insert(header::RETRY_AFTER, Self::RETRY_AFTER);
        }
    }
}

impl std::fmt::Display for Rejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.detail)
    }
}

impl std::error::Error for Rejection {}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let mut response = self.to_problem(Self::PROBLEM_BASE);
        self.complete(response.headers_mut());
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kind; the match keeps the list complete.
    fn all() -> Vec<RejectionKind> {
        use RejectionKind as Kind;
        let next = |kind| match kind {
            Kind::MissingKey => Some(Kind::InvalidKey),
            Kind::InvalidKey => Some(Kind::KeyNotHandled),
            Kind::KeyNotHandled => Some(Kind::KeyExpired),
            Kind::KeyExpired => Some(Kind::KeyFromFuture),
            Kind::KeyFromFuture => Some(Kind::Unscoped),
            Kind::Unscoped => Some(Kind::ReplayRefused),
            Kind::ReplayRefused => Some(Kind::RequestUnreadable),
            Kind::RequestUnreadable => Some(Kind::RequestTooLarge),
            Kind::RequestTooLarge => Some(Kind::KeyReused),
            Kind::KeyReused => Some(Kind::InFlight),
            Kind::InFlight => Some(Kind::ResponseNotRetained),
            Kind::ResponseNotRetained => Some(Kind::StoreUnavailable),
            Kind::StoreUnavailable => Some(Kind::OutcomeUnknown),
            Kind::OutcomeUnknown => Some(Kind::TimeLimit),
            Kind::TimeLimit => Some(Kind::AnswerUnreadable),
            Kind::AnswerUnreadable => Some(Kind::ResponseTooLarge),
            Kind::ResponseTooLarge => Some(Kind::ResponseUnsupported),
            Kind::ResponseUnsupported => Some(Kind::ConnectionHeld),
            Kind::ConnectionHeld => Some(Kind::TransactionAborted),
            Kind::TransactionAborted => Some(Kind::TransactionEnded),
            Kind::TransactionEnded => Some(Kind::CommitRefused),
            Kind::CommitRefused => Some(Kind::Misconfigured),
            Kind::Misconfigured => Some(Kind::Internal),
            Kind::Internal => None,
        };
        std::iter::successors(Some(Kind::MissingKey), |kind| next(*kind)).collect()
    }

    #[test]
    fn r56_every_kind_has_a_type_of_its_own_that_is_documented() {
        let documented: Vec<_> =
            include_str!("../docs/problems.md").lines().filter_map(|line| line.strip_prefix("# ")).collect();
        let names: Vec<_> = all().into_iter().map(RejectionKind::name).collect();
        assert_eq!(names, documented);
    }

    #[test]
    fn r56_r58_statuses_and_retry_after() {
        for kind in all() {
            let response = Rejection::new(kind, "detail").into_response();
            assert_eq!(response.status(), kind.status());
            assert!(kind.status().is_client_error() || kind.status().is_server_error());
            let retries = matches!(kind, RejectionKind::InFlight) || kind.status() == 503;
            assert_eq!(kind.is_retryable(), retries, "{kind:?}");
            let after = response.headers().get(header::RETRY_AFTER).map(|value| value.to_str().unwrap_or_default());
            assert_eq!(after, retries.then_some("1"), "{kind:?}");
        }
    }
}

use std::{borrow::Cow, sync::Arc};

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::{occurrence::Occurrence, rejection_kind::RejectionKind};

/// A response of the layer, or of one of its extractors, in place of the handler's, and the reason for it.
///
/// It is in the extensions of every such response, also if a renderer made the response, so that logging and metrics in
/// outer layers can read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    kind: RejectionKind,
    status: StatusCode,
    detail: Cow<'static, str>,
    key_reusable: bool,
    occurrence: Occurrence,
    reference: Option<Arc<str>>,
}

impl Rejection {
    /// The beginning of problem types, unless [`problem_type_base`](crate::IdempotencyLayer::problem_type_base) sets another
    /// one: the guide in this crate's documentation that explains them.
    pub const PROBLEM_TYPE_BASE: &'static str =
        "https://docs.rs/axum-idempotency/latest/axum_idempotency/_docs/problems/index.html#";

    /// The seconds in `Retry-After`, if the rejection has one.
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

    /// Sets whether the key is reusable, where the kind alone does not say it.
    pub(super) fn with_key_reusable(self, key_reusable: bool) -> Self {
        Self { key_reusable, ..self }
    }

    /// Returns whether the client's next request, repeated or corrected, may use the same key.
    ///
    /// The value is that of the [kind](RejectionKind::is_key_reusable), unless the layer knows more about this request.
    #[must_use]
    pub fn is_key_reusable(&self) -> bool {
        self.key_reusable
    }

    pub(super) fn with_occurrence(self, occurrence: Occurrence) -> Self {
        Self { occurrence, ..self }
    }

    /// Returns whether the request was executed, now or before.
    ///
    /// The value is that of the [kind](RejectionKind::occurrence), unless the layer knows more about this request.
    #[must_use]
    pub fn occurrence(&self) -> Occurrence {
        self.occurrence
    }

    /// Sets the status that the layer's settings give it.
    pub(super) fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// Returns the reference to the first request with the key, if the layer gives references and the key is known; see
    /// [`reference_header`](crate::IdempotencyLayer::reference_header).
    #[must_use]
    pub fn reference(&self) -> Option<&str> {
        self.reference.as_deref()
    }

    /// Returns the kind of the rejection.
    #[must_use]
    pub fn kind(&self) -> RejectionKind {
        self.kind
    }

    /// Returns the status of the response: that of the [kind](RejectionKind::status), or the one that
    /// [`rejection_status`](crate::IdempotencyLayer::rejection_status) or a renderer has set.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns a text for the client's developer: what happened, and what to do. It contains no stored data, and neither key
    /// nor body.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Makes the problem document (RFC 9457), with types under `base`.
    pub(super) fn to_problem(&self, base: &str) -> Response {
        let status = self.status;
        let mut problem = json!({
            "type": format!("{base}{}", self.kind.name()),
            "title": self.kind.title(),
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

    /// Adds the header fields that every rejection needs.
    pub(super) fn complete(&self, headers: &mut HeaderMap) {
        if !headers.contains_key(header::CACHE_CONTROL) {
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        }
        if self.kind.is_retryable() && !headers.contains_key(header::RETRY_AFTER) {
            headers.insert(header::RETRY_AFTER, Self::RETRY_AFTER);
        }
    }
}

impl Rejection {
    /// Returns the rejection for a request that is known not to be executed: its work began, so no earlier request with
    /// its key was executed, and the work was undone; or it has no key, and its work was undone or did not begin.
    pub(super) fn undone(self) -> Self {
        match self.kind {
            RejectionKind::StoreUnavailable | RejectionKind::Misconfigured | RejectionKind::Internal => {
                self.with_occurrence(Occurrence::NotExecuted)
            }
            _ => self,
        }
    }

    /// For a request whose work may have had effects besides its transaction: where only its kind says that it had none.
    pub(super) fn perhaps_done(self) -> Self {
        let by_kind = self.kind.occurrence() == self.occurrence && self.occurrence == Occurrence::NotExecuted;
        if by_kind { self.with_occurrence(Occurrence::Unknown) } else { self }
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
        let mut response = self.to_problem(Self::PROBLEM_TYPE_BASE);
        self.complete(response.headers_mut());
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each section of the guide begins with the kind's name, followed by its status.
    #[test]
    fn r56_every_kind_has_a_type_of_its_own_that_is_documented() {
        let guide = include_str!("../docs/problems.md");
        let sections = guide.split("\n# ").skip(1).map(|section| section.split_once("\n\n").unwrap_or_default());
        let documented: Vec<_> =
            sections.map(|(name, text)| (name.to_owned(), text.get(..10).unwrap_or_default())).collect();
        let kinds = RejectionKind::ALL.iter().map(|kind| (kind.name(), format!("Status {}", kind.status().as_u16())));
        let kinds: Vec<_> = kinds.collect();
        let documented: Vec<_> = documented.iter().map(|(name, text)| (&**name, (*text).to_owned())).collect();
        assert_eq!(documented, kinds);
    }

    #[test]
    fn r56_r58_statuses_and_retry_after() {
        for kind in RejectionKind::ALL.iter().copied() {
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

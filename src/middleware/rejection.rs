use std::{borrow::Cow, sync::Arc};

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::{occurrence::Occurrence, rejection_kind::RejectionKind};

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

impl Rejection {
    /// Where problem types live unless [`problem_type_base`](crate::IdempotencyLayer::problem_type_base) says otherwise: the
    /// section of this crate's documentation that explains them.
    pub const PROBLEM_TYPE_BASE: &'static str =
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

    /// Whether the request was executed, now or before: that of its [kind](RejectionKind::occurrence), unless the refusal
    /// knows better.
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

impl Rejection {
    /// For a request whose work began, which says that none was done under its key before, and was undone; or for one
    /// without a key, whose work was undone or did not begin.
    pub(super) fn undone(self) -> Self {
        match self.kind() {
            RejectionKind::StoreUnavailable | RejectionKind::Misconfigured | RejectionKind::Internal => {
                self.with_occurrence(Occurrence::NotExecuted)
            }
            _ => self,
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
        let mut response = self.to_problem(Self::PROBLEM_TYPE_BASE);
        self.complete(response.headers_mut());
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each section of the guide begins with the kind's name, and says its status first.
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

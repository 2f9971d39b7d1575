//! The configuration of a layer, and the decisions that follow from it.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header, request::Parts, response},
    response::Response,
};
use tracing::warn;

use super::{
    capture::HeaderRules,
    codec::BodyCodec,
    disposition::Disposition,
    fingerprint::FingerprintRules,
    header::{IDEMPOTENCY_KEY, KeyRules, REPEATABILITY_REQUEST_ID, REPEATABILITY_RESULT, Sent},
    rejection::Rejection,
    rejection_kind::RejectionKind,
    tx_use::{TxUse, Warned},
};
use crate::{Idempotency, LocalSettings, Operation, Scope, StoredResponse};

/// The methods for which a key is never used.
pub(super) const NEVER: [Method; 5] = [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::CONNECT];

/// See [`IdempotencyLayer::handler_timeout`](crate::IdempotencyLayer::handler_timeout).
const HANDLER_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) type ScopeFn = Arc<dyn Fn(&Parts) -> Option<Scope> + Send + Sync>;
type LocalSettingsFn = Arc<dyn Fn(&Parts) -> LocalSettings + Send + Sync>;
type DispositionFn = Arc<dyn Fn(&response::Parts) -> Disposition + Send + Sync>;
type RejectionFn = Arc<dyn Fn(&Rejection, &Parts) -> Response + Send + Sync>;
type GuardFn = Arc<dyn Fn(&Parts, &StoredResponse) -> bool + Send + Sync>;

#[derive(Clone)]
pub(super) struct Config {
    pub(super) idempotency: Idempotency,
    pub(super) scope: ScopeFn,
    pub(super) local_settings: Option<LocalSettingsFn>,
    pub(super) namespace: Option<Arc<str>>,
    pub(super) operation: Option<Operation>,
    pub(super) methods: HashSet<Method>,
    pub(super) required: bool,
    pub(super) refuse_unhandled_keys: bool,
    pub(super) cancel_on_disconnect: bool,
    pub(super) handler_timeout: Option<Duration>,
    pub(super) tx_use: TxUse,
    /// The operations for which it was logged that their handlers do not take `Tx`.
    pub(super) warned: Arc<Warned>,
    /// Whether it was logged that the retention is raised.
    pub(super) raised: Arc<AtomicBool>,
    /// `None` means the name for the kind of keys.
    pub(super) header: Option<HeaderName>,
    pub(super) key: KeyRules,
    pub(super) max_request_bytes: usize,
    pub(super) max_response_bytes: usize,
    pub(super) fingerprint: FingerprintRules,
    pub(super) disposition: Option<DispositionFn>,
    pub(super) stored_headers: HeaderRules,
    pub(super) discard_responses: bool,
    pub(super) discard_oversized_responses: bool,
    pub(super) codec: Option<Arc<dyn BodyCodec>>,
    pub(super) replay_guard: Option<GuardFn>,
    pub(super) marker: HeaderName,
    pub(super) expiry_header: Option<HeaderName>,
    pub(super) reference_header: Option<HeaderName>,
    pub(super) not_retained_header: Option<HeaderName>,
    pub(super) echo_key: bool,
    pub(super) repeatability_result: bool,
    pub(super) problem_type_base: Arc<str>,
    pub(super) documentation_url: Option<Uri>,
    pub(super) www_authenticate: HeaderValue,
    pub(super) statuses: HashMap<RejectionKind, StatusCode>,
    pub(super) rejection: Option<RejectionFn>,
}

impl Config {
    pub(super) fn new(idempotency: Idempotency, scope: ScopeFn) -> Self {
        Self {
            idempotency: idempotency.with_handler_timeout(HANDLER_TIMEOUT),
            scope,
            local_settings: None,
            namespace: None,
            operation: None,
            methods: HashSet::from([Method::POST, Method::PATCH]),
            required: true,
            refuse_unhandled_keys: false,
            cancel_on_disconnect: false,
            handler_timeout: Some(HANDLER_TIMEOUT),
            tx_use: TxUse::Expected,
            warned: Arc::default(),
            raised: Arc::default(),
            header: None,
            key: KeyRules::default(),
            max_request_bytes: 1024 * 1024,
            max_response_bytes: 1024 * 1024,
            fingerprint: FingerprintRules::default(),
            disposition: None,
            stored_headers: HeaderRules::default(),
            discard_responses: false,
            discard_oversized_responses: false,
            codec: None,
            replay_guard: None,
            marker: HeaderName::from_static("idempotent-replayed"),
            expiry_header: None,
            reference_header: None,
            not_retained_header: None,
            echo_key: false,
            repeatability_result: false,
            problem_type_base: Rejection::PROBLEM_TYPE_BASE.into(),
            documentation_url: None,
            www_authenticate: HeaderValue::from_static("Bearer"),
            statuses: HashMap::new(),
            rejection: None,
        }
    }

    /// Returns the name of the key's header field.
    pub(super) fn header(&self) -> &HeaderName {
        match (&self.header, self.idempotency.keys()) {
            (Some(header), _) => header,
            (None, Some(keys)) if keys.is_beside_the_key() => &REPEATABILITY_REQUEST_ID,
            (None, _) => &IDEMPOTENCY_KEY,
        }
    }

    /// Returns the key of a request, and the timestamp beside it, if there is one.
    pub(super) fn find(&self, headers: &HeaderMap) -> Result<Option<Sent>, Rejection> {
        self.key.find(headers, self.header(), self.idempotency.keys())
    }

    /// Returns the owner of the request.
    pub(super) fn scope(&self, parts: &Parts) -> Result<Scope, Rejection> {
        (self.scope)(parts).filter(|scope| !scope.is_blank()).ok_or_else(Rejection::unscoped)
    }

    /// Returns the settings of a request's transaction.
    pub(super) fn local_settings(&self, parts: &Parts) -> LocalSettings {
        self.local_settings.as_ref().map_or_else(LocalSettings::new, |settings| settings(parts))
    }

    pub(super) fn say_what_is_raised(&self) {
        if self.idempotency.is_raised() && !self.raised.swap(true, Ordering::Relaxed) {
            let operation = self.operation.as_ref().map(Operation::as_str);
            warn!(
                operation,
                retention = ?self.idempotency.retention_in_force(),
                "the retention or window is not longer than the wait of a duplicate and the handler timeout \
                 together; it was raised to 1 ms more than their sum"
            );
        }
    }

    pub(super) fn disposition(&self, parts: &response::Parts) -> Disposition {
        match (parts.extensions.get(), &self.disposition) {
            (Some(own), _) => *own,
            (None, Some(table)) => table(parts),
            (None, None) => Disposition::of(parts.status),
        }
    }

    /// Makes the response of a rejection; `head` is the head of the request, if there is a renderer.
    pub(super) fn render(&self, rejection: Rejection, head: Option<&Parts>) -> Response {
        let status = self.statuses.get(&rejection.kind()).copied().unwrap_or_else(|| rejection.status());
        let rejection = rejection.with_status(status);
        let mut response = match (&self.rejection, head) {
            (Some(render), Some(head)) => render(&rejection, head),
            _ => rejection.to_problem(&self.problem_type_base),
        };
        // A renderer that sets no status must not turn a rejection into a success. A redirect is not a success.
        let sent = response.status();
        let redirects = sent.is_redirection() && response.headers().contains_key(header::LOCATION);
        if !redirects && !sent.is_client_error() && !sent.is_server_error() {
            *response.status_mut() = status;
        }
        let headers = response.headers_mut();
        rejection.complete(headers);
        if rejection.kind() == RejectionKind::Unscoped && !headers.contains_key(header::WWW_AUTHENTICATE) {
            headers.insert(header::WWW_AUTHENTICATE, self.www_authenticate.clone());
        }
        if let Some(url) = &self.documentation_url
            && let Ok(link) = HeaderValue::try_from(format!("<{url}>; rel=\"describedby\"; type=\"text/html\""))
        {
            headers.append(header::LINK, link);
        }
        if let (Some(name), Some(reference)) = (&self.reference_header, rejection.reference())
            && let Ok(value) = HeaderValue::try_from(reference)
        {
            headers.insert(name, value);
        }
        if self.repeatability_result {
            headers.insert(REPEATABILITY_RESULT.clone(), HeaderValue::from_static("rejected"));
        }
        // A renderer may have chosen another status.
        let sent = response.status();
        response.extensions_mut().insert(rejection.with_status(sent));
        response
    }

    /// Returns the fields that only the layer may set: a handler that passes on another service's response may contain them.
    pub(super) fn own_fields(&self) -> impl Iterator<Item = &HeaderName> {
        let optional = [&self.expiry_header, &self.reference_header, &self.not_retained_header];
        let result = self.repeatability_result.then_some(&REPEATABILITY_RESULT);
        std::iter::once(&self.marker).chain(optional.into_iter().flatten()).chain(result)
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("idempotency", &self.idempotency)
            .field("operation", &self.operation)
            .field("methods", &self.methods)
            .field("required", &self.required)
            .field("cancel_on_disconnect", &self.cancel_on_disconnect)
            .field("handler_timeout", &self.handler_timeout)
            .field("header", &self.header)
            .field("max_request_bytes", &self.max_request_bytes)
            .field("max_response_bytes", &self.max_response_bytes)
            .field("stored_headers", &self.stored_headers)
            .field("discard_responses", &self.discard_responses)
            .field("discard_oversized_responses", &self.discard_oversized_responses)
            .field("problem_type_base", &self.problem_type_base)
            .finish_non_exhaustive()
    }
}

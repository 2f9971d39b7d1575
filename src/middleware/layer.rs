use std::{collections::HashSet, fmt, sync::Arc};

use axum::{
    http::{HeaderName, Method, request::Parts, response},
    response::Response,
};
use tower_layer::Layer;

use super::{disposition::Disposition, rejection::Rejection, service::IdempotencyService};
use crate::{Fingerprint, Idempotency, Operation, Scope};

/// Makes the routes that it is added to safe to retry. See the [module docs](crate::middleware) for the contract and
/// an example.
///
/// A bare setter sets a value, one that begins with `with_` swaps a function. Cloning is cheap: annotate a route with
/// a clone that differs.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is added to a route"]
pub struct IdempotencyLayer(Arc<Config>);

type ScopeFn = Arc<dyn Fn(&Parts) -> Option<Scope> + Send + Sync>;
type FingerprintFn = Arc<dyn Fn(&Parts, &[u8]) -> Fingerprint + Send + Sync>;
type DispositionFn = Arc<dyn Fn(&response::Parts) -> Disposition + Send + Sync>;
type RejectionFn = Arc<dyn Fn(&Rejection) -> Response + Send + Sync>;

#[derive(Clone)]
pub(super) struct Config {
    pub(super) idempotency: Idempotency,
    pub(super) scope: ScopeFn,
    pub(super) operation: Option<Operation>,
    pub(super) methods: HashSet<Method>,
    pub(super) required: bool,
    pub(super) strict: bool,
    pub(super) cancel_on_disconnect: bool,
    pub(super) header: HeaderName,
    pub(super) max_request_bytes: usize,
    pub(super) max_response_bytes: usize,
    pub(super) problem_base: Arc<str>,
    pub(super) fingerprint: Option<FingerprintFn>,
    pub(super) disposition: Option<DispositionFn>,
    pub(super) rejection: Option<RejectionFn>,
}

impl IdempotencyLayer {
    /// A layer that keeps its keys with `idempotency` and finds a request's owner with `scope`.
    ///
    /// `scope` sees the request's head, extensions included: let the authentication outside put the owner there. If
    /// it gives `None`, or a blank name, a request with a key is refused with 401; there is no bucket for strangers.
    /// An application with one owner writes `|_| Some(Scope::global())`.
    pub fn new(idempotency: Idempotency, scope: impl Fn(&Parts) -> Option<Scope> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Config {
            idempotency,
            scope: Arc::new(scope),
            operation: None,
            methods: HashSet::from([Method::POST, Method::PATCH]),
            required: true,
            strict: false,
            cancel_on_disconnect: false,
            header: HeaderName::from_static("idempotency-key"),
            max_request_bytes: 1024 * 1024,
            max_response_bytes: 1024 * 1024,
            problem_base: Rejection::PROBLEM_BASE.into(),
            fingerprint: None,
            disposition: None,
            rejection: None,
        }))
    }

    fn with(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// The name of what the route does. Default: the method and the route's template, such as
    /// `POST /charges/{id}/refund`, or the path itself outside an axum router.
    ///
    /// The default changes when a route is renamed, and its keys are forgotten with it.
    pub fn operation(self, name: impl Into<Operation>) -> Self {
        self.with(|config| config.operation = Some(name.into()))
    }

    /// A request without a key is refused with 400. This is the default.
    pub fn required(self) -> Self {
        self.with(|config| config.required = true)
    }

    /// A request without a key is executed in a plain transaction, and not remembered. A key that is there but not
    /// valid is refused all the same.
    pub fn optional(self) -> Self {
        self.with(|config| config.required = false)
    }

    /// The methods that the layer handles; requests with others pass through untouched. Default: POST and PATCH.
    ///
    /// GET, HEAD, OPTIONS, TRACE and CONNECT pass through even if they are listed.
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        let listed = methods.into_iter().filter(|method| !method.is_safe() && method != Method::CONNECT);
        self.with(|config| config.methods = listed.collect())
    }

    /// Accepts keys in double quotes only, as the IETF draft has them. Default: bare keys as well, which is what
    /// nearly every client sends; both forms of a value are one key.
    pub fn strict(self) -> Self {
        self.with(|config| config.strict = true)
    }

    /// A request whose client goes away, or that an outer timeout gives up, is rolled back, and its key is free. For
    /// handlers that are not worth finishing for nobody.
    ///
    /// Default: it is finished in the background, so that the client's retry finds it done; otherwise a client whose
    /// patience is shorter than the handler could retry for ever.
    pub fn cancel_on_disconnect(self) -> Self {
        self.with(|config| config.cancel_on_disconnect = true)
    }

    /// The name of the header field. Default: `Idempotency-Key`.
    pub fn header(self, name: HeaderName) -> Self {
        self.with(|config| config.header = name)
    }

    /// The largest request body, in bytes; more is refused with 413 before anything is claimed. Default: 1 MiB.
    ///
    /// axum's `DefaultBodyLimit` applies to the handler's extractors besides: the smaller one counts.
    pub fn max_request_bytes(self, limit: usize) -> Self {
        self.with(|config| config.max_request_bytes = limit)
    }

    /// The largest answer that a handler may give to a request with a key, in bytes of its body. A larger one is
    /// rolled back and answered with 500. Default: 1 MiB.
    pub fn max_response_bytes(self, limit: usize) -> Self {
        self.with(|config| config.max_response_bytes = limit)
    }

    /// What problem types begin with; the name of the condition, such as `key-reused`, is appended. Must be an
    /// absolute URI. Default: [`Rejection::PROBLEM_BASE`].
    pub fn problem_base(self, base: impl Into<Arc<str>>) -> Self {
        self.with(|config| config.problem_base = base.into())
    }

    /// What tells a retry from another request. Default: method, path, query, `Content-Type` without parameters,
    /// `Content-Encoding`, and the bytes of the body.
    pub fn with_fingerprint(self, fingerprint: impl Fn(&Parts, &[u8]) -> Fingerprint + Send + Sync + 'static) -> Self {
        self.with(|config| config.fingerprint = Some(Arc::new(fingerprint)))
    }

    /// What becomes of an answer that does not say so itself. Default: [`Disposition::of`] its status.
    pub fn with_disposition(
        self,
        disposition: impl Fn(&response::Parts) -> Disposition + Send + Sync + 'static,
    ) -> Self {
        self.with(|config| config.disposition = Some(Arc::new(disposition)))
    }

    /// How the layer's own refusals look. Default: problem documents (RFC 9457). The status is set to the refusal's
    /// own, and the [`Rejection`] put into the extensions, afterwards.
    pub fn with_rejection_response(self, render: impl Fn(&Rejection) -> Response + Send + Sync + 'static) -> Self {
        self.with(|config| config.rejection = Some(Arc::new(render)))
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> IdempotencyService<S> {
        IdempotencyService::new(inner, self.0.clone())
    }
}

impl Config {
    pub(super) fn disposition(&self, parts: &response::Parts) -> Disposition {
        match (parts.extensions.get(), &self.disposition) {
            (Some(own), _) => *own,
            (None, Some(table)) => table(parts),
            (None, None) => Disposition::of(parts.status),
        }
    }

    pub(super) fn render(&self, rejection: Rejection) -> Response {
        let mut response = match &self.rejection {
            Some(render) => render(&rejection),
            None => rejection.to_problem(&self.problem_base),
        };
        *response.status_mut() = rejection.status();
        response.extensions_mut().insert(rejection);
        response
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let function = |set: bool| if set { "<fn>" } else { "default" };
        f.debug_struct("Config")
            .field("idempotency", &self.idempotency)
            .field("operation", &self.operation)
            .field("methods", &self.methods)
            .field("required", &self.required)
            .field("strict", &self.strict)
            .field("cancel_on_disconnect", &self.cancel_on_disconnect)
            .field("header", &self.header)
            .field("max_request_bytes", &self.max_request_bytes)
            .field("max_response_bytes", &self.max_response_bytes)
            .field("problem_base", &self.problem_base)
            .field("fingerprint", &function(self.fingerprint.is_some()))
            .field("disposition", &function(self.disposition.is_some()))
            .field("rejection", &function(self.rejection.is_some()))
            .finish_non_exhaustive()
    }
}

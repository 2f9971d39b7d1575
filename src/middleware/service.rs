use std::{
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    BoxError,
    body::{Body, Bytes},
    http::{Request, request::Parts},
    response::Response,
};
use http_body::Body as HttpBody;
use tower_service::Service;
use tracing::{debug, error};

use super::{
    body::{Read, Whole, is_length_limit, read},
    exchange::Exchange,
    execute::execute,
    future::ResponseFuture,
    header::Sent,
    keyless::keyless,
    layer::Config,
    operation,
    rejection::{Rejection, RejectionKind},
    settings::NEVER,
};
use crate::{Claim, Error, IdempotentRequest, Operation, engine::Uninterrupted};

/// What [`IdempotencyLayer`](crate::IdempotencyLayer) makes of a service. See the
/// [module docs](crate::middleware) for the contract and an example.
#[derive(Clone, Debug)]
pub struct IdempotencyService<S> {
    inner: S,
    config: Arc<Config>,
}

impl<S> IdempotencyService<S> {
    pub(super) fn new(inner: S, config: Arc<Config>) -> Self {
        Self { inner, config }
    }
}

impl<S, B, R> Service<Request<B>> for IdempotencyService<S>
where
    S: Service<Request<Body>, Response = http::Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if !self.config.methods.contains(request.method()) {
            if self.config.refuse_unhandled_keys
                && !NEVER.contains(request.method())
                && request.headers().contains_key(self.config.header())
            {
                let rejection = Rejection::key_not_handled(request.method());
                let (head, _) = request.into_parts();
                let refused = self.config.render(rejection, Some(&head));
                return ResponseFuture::guarded(std::future::ready(Ok(refused)));
            }
            return ResponseFuture::through(self.inner.call(request.map(Body::new)));
        }
        // The clone is kept for later; the service that is ready is the one that is called.
        let later = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, later);
        ResponseFuture::guarded(answer(self.config.clone(), inner, request))
    }
}

/// Why the flow ended early.
pub(super) enum Stop<E> {
    /// The layer answers.
    Refused(Rejection),
    /// The inner service failed; its error is not ours to answer.
    Failed(E),
}

impl<E> Stop<E> {
    /// As [`Rejection::undone`].
    pub(super) fn undone(self) -> Self {
        match self {
            Self::Refused(rejection) => Self::Refused(rejection.undone()),
            Self::Failed(error) => Self::Failed(error),
        }
    }
}

impl<E> From<Rejection> for Stop<E> {
    fn from(rejection: Rejection) -> Self {
        Self::Refused(rejection)
    }
}

impl<E> From<Error> for Stop<E> {
    fn from(error: Error) -> Self {
        Self::Refused(logged(error))
    }
}

async fn answer<S, B, R>(config: Arc<Config>, inner: S, request: Request<B>) -> Result<Response, S::Error>
where
    S: Service<Request<Body>, Response = http::Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let (mut parts, body) = request.into_parts();
    let operation = operation::of(&config, &parts);
    let head = config.rejection.is_some().then(|| parts.clone());
    let answered = match enter(&mut parts, &operation) {
        Ok(()) => flow(&config, inner, parts, body, &operation).await,
        Err(rejection) => Err(rejection.into()),
    };
    match answered {
        Ok(response) => Ok(response),
        Err(Stop::Failed(error)) => Err(error),
        Err(Stop::Refused(rejection)) => {
            debug!(%operation, outcome = rejection.kind().name(), "refused");
            Ok(config.render(rejection, head.as_ref()))
        }
    }
}

/// Key → scope → body → fingerprint → claim → handler → answer → disposition → commit.
async fn flow<S, B, R>(
    config: &Arc<Config>,
    inner: S,
    parts: Parts,
    body: B,
    operation: &Operation,
) -> Result<Response, Stop<S::Error>>
where
    S: Service<Request<Body>, Response = http::Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let settings = config.local_settings(&parts);
    let Some(Sent { key, first }) = config.find(&parts.headers)? else {
        return keyless(config, inner, parts, body, operation, settings).await.map_err(Stop::undone);
    };
    let scope = (config.scope)(&parts).filter(|scope| !scope.is_blank()).ok_or_else(Rejection::unscoped)?;
    let body = match read(body, config.max_request_bytes).await {
        Read::Whole(whole) => whole,
        Read::TooLarge(_) => return Err(Rejection::request_too_large(config.max_request_bytes).into()),
        Read::Broken(error) if is_length_limit(&error) => {
            return Err(Rejection::new(RejectionKind::RequestTooLarge, "the request body is over a limit").into());
        }
        Read::Broken(_) => return Err(Rejection::request_unreadable().into()),
    };
    let fingerprint = config.fingerprint.of(&parts, &body.bytes);
    let mut request = IdempotentRequest::new(scope, operation.clone(), key, fingerprint).with_local_settings(settings);
    if let Some(first) = first {
        request = request.with_first_sent(first);
    }
    let head = config.replay_guard.is_some().then(|| parts.clone());
    let exchange = Exchange { config: config.clone(), request, head };

    let reference = exchange.reference();
    let answered = claim_and_execute(exchange, inner, parts, body).await;
    answered.map_err(|stop| match stop {
        Stop::Refused(rejection) => Stop::Refused(rejection.with_reference(reference)),
        Stop::Failed(error) => Stop::Failed(error),
    })
}

async fn claim_and_execute<S, R>(
    exchange: Exchange,
    inner: S,
    mut parts: Parts,
    body: Whole,
) -> Result<Response, Stop<S::Error>>
where
    S: Service<Request<Body>, Response = http::Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    parts.extensions.insert(exchange.request.clone());
    let config = exchange.config.clone();
    match config.idempotency.claim(exchange.request.clone()).await? {
        Claim::Fresh(attempt) => {
            // From here on it goes on if its client goes away.
            let executed = async move { execute(&exchange, inner, parts, body, attempt).await };
            if config.cancel_on_disconnect {
                return executed.await;
            }
            Uninterrupted::new(config.idempotency.backlog(), executed).await
        }
        Claim::Duplicate(duplicate) => Ok(exchange.respond(duplicate)?),
    }
}

/// Marks the request, so that a second layer further in does not claim a key of its own.
fn enter(parts: &mut Parts, operation: &Operation) -> Result<(), Rejection> {
    #[derive(Clone)]
    struct Inside(Operation);

    if let Some(Inside(outer)) = parts.extensions.get() {
        let detail = format!(
            "the request passes two idempotency layers, for the operations `{outer}` and `{operation}`; keep one"
        );
        let rejection = Rejection::new(RejectionKind::Misconfigured, detail);
        error!(%rejection, "two idempotency layers");
        return Err(rejection);
    }
    parts.extensions.insert(Inside(operation.clone()));
    Ok(())
}

/// What the client may know of an error, with the rest in the log.
pub(super) fn logged(error: Error) -> Rejection {
    let shown = &error as &dyn std::error::Error;
    error!(error = shown, source = shown.source(), "idempotency failed");
    error.into()
}

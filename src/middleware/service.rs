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
    body::{self, Unread, Whole},
    capture,
    disposition::Disposition,
    future::ResponseFuture,
    header, identify,
    layer::Config,
    panic,
    rejection::{Rejection, RejectionKind},
    replay,
    tx::{Open, Slot, tolerate},
};
use crate::{Claim, Error, IdempotentRequest, Operation, Rejected, StoredResponse, engine::Uninterrupted};

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
            return ResponseFuture::through(self.inner.call(request.map(Body::new)));
        }
        // The clone is kept for later; the service that is ready is the one that is called.
        let later = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, later);
        let answer = answer(self.config.clone(), inner, request);
        if self.config.cancel_on_disconnect {
            return ResponseFuture::cancellable(answer);
        }
        ResponseFuture::guarded(Uninterrupted::new(self.config.idempotency.backlog(), answer))
    }
}

/// Why the flow ended early.
enum Stop<E> {
    /// The layer answers.
    Refused(Rejection),
    /// The inner service failed; its error is not ours to answer.
    Failed(E),
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
    S: Service<Request<Body>, Response = http::Response<R>>,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let (mut parts, body) = request.into_parts();
    let operation = identify::operation(&config, &parts);
    let answered = match enter(&mut parts, &operation) {
        Ok(()) => flow(&config, inner, parts, body, &operation).await,
        Err(rejection) => Err(rejection.into()),
    };
    match answered {
        Ok(response) => Ok(response),
        Err(Stop::Failed(error)) => Err(error),
        Err(Stop::Refused(rejection)) => {
            debug!(%operation, outcome = rejection.kind().name(), "refused");
            Ok(config.render(rejection))
        }
    }
}

/// Key → scope → body → fingerprint → claim → handler → answer → disposition → commit.
async fn flow<S, B, R>(
    config: &Config,
    inner: S,
    mut parts: Parts,
    body: B,
    operation: &Operation,
) -> Result<Response, Stop<S::Error>>
where
    S: Service<Request<Body>, Response = http::Response<R>>,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let Some(key) = header::key(&parts.headers, &config.header, config.strict)? else {
        return unkeyed(config, inner, parts, body, operation).await;
    };
    let scope = (config.scope)(&parts).filter(|scope| !scope.is_blank()).ok_or_else(Rejection::unscoped)?;
    let body = body::read(body, config.max_request_bytes).await.map_err(|unread| refuse_body(unread, config))?;
    let fingerprint = identify::fingerprint(config, &parts, &body.bytes);
    let request = IdempotentRequest::new(scope, operation.clone(), key, fingerprint);
    parts.extensions.insert(request.clone());

    match config.idempotency.claim(request).await? {
        Claim::Fresh(attempt) => execute(config, inner, parts, body, Slot::of(attempt), operation).await,
        Claim::Replay(stored) => Ok(replayed(&stored, operation)),
        Claim::InProgress => Err(Rejection::in_flight().into()),
        Claim::KeyReused => Err(Rejection::key_reused().into()),
    }
}

/// The handler, and what becomes of its work and its answer.
async fn execute<S, R>(
    config: &Config,
    inner: S,
    parts: Parts,
    body: Whole,
    slot: Slot,
    operation: &Operation,
) -> Result<Response, Stop<S::Error>>
where
    S: Service<Request<Body>, Response = http::Response<R>>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let captured = async {
        match call(inner, parts, Body::from(body), &slot).await {
            Ok(response) => {
                let captured = capture::read(response, config.max_response_bytes).await;
                captured.inspect_err(|rejection| blame(rejection, operation)).map_err(Stop::from)
            }
            Err(error) => Err(Stop::Failed(error)),
        }
    };
    // The key is free by the time that the client, or whoever catches panics outside, learns of the failure.
    let (response, stored) = match panic::caught(captured).await {
        Ok(Ok(captured)) => captured,
        Ok(Err(stop)) => {
            slot.release().await;
            return Err(stop);
        }
        Err(payload) => {
            slot.release().await;
            panic::resume(payload);
        }
    };
    // Only now: the body was read to its end, so nothing of the response can still be using the connection.
    let Some(Open::Attempt(attempt)) = slot.take().inspect_err(|rejection| blame(rejection, operation))? else {
        return Err(Rejection::new(RejectionKind::Internal, "the request's transaction is gone").into());
    };
    let disposition = config.disposition(&response.0);
    debug!(%operation, outcome = ?disposition, status = response.0.status.as_u16(), "executed");
    match disposition {
        Disposition::Commit => attempt.complete(&stored).await?,
        Disposition::Release => attempt.release().await.unwrap_or_else(|error| tolerate(&error)),
        Disposition::Reject => match attempt.reject(&stored).await? {
            Rejected::Stored => {}
            Rejected::Replay(stored) => return Ok(replayed(&stored, operation)),
            Rejected::InProgress => return Err(Rejection::in_flight().into()),
            Rejected::KeyReused => return Err(Rejection::key_reused().into()),
        },
    }
    let (parts, bytes) = response;
    Ok(Response::from_parts(parts, Body::from(bytes)))
}

/// A request without a key: refused, or executed in a transaction that leaves no trace.
async fn unkeyed<S, B, R>(
    config: &Config,
    inner: S,
    parts: Parts,
    body: B,
    operation: &Operation,
) -> Result<Response, Stop<S::Error>>
where
    S: Service<Request<Body>, Response = http::Response<R>>,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    if config.required {
        let detail = format!("this operation needs the header field {}", config.header);
        return Err(Rejection::new(RejectionKind::MissingKey, detail).into());
    }
    let slot = Slot::unbegun(config.idempotency.clone());
    let (parts, body) = match call(inner, parts, Body::new(body), &slot).await {
        Ok(response) => response.into_parts(),
        Err(error) => {
            slot.release().await;
            return Err(Stop::Failed(error));
        }
    };
    let open = slot.take().inspect_err(|rejection| blame(rejection, operation))?;
    if let Some(Open::Unkeyed(unkeyed)) = open {
        match config.disposition(&parts) {
            Disposition::Commit => unkeyed.commit().await?,
            Disposition::Reject | Disposition::Release => {
                unkeyed.rollback().await.unwrap_or_else(|error| tolerate(&error))
            }
        }
    }
    Ok(Response::from_parts(parts, Body::new(body)))
}

/// Calls the handler with the slot in reach, and with nothing of it left behind in what is kept.
async fn call<S, R>(mut inner: S, mut parts: Parts, body: Body, slot: &Slot) -> Result<http::Response<R>, S::Error>
where
    S: Service<Request<Body>, Response = http::Response<R>>,
{
    parts.extensions.insert(slot.clone());
    inner.call(Request::from_parts(parts, body)).await
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

fn refuse_body(unread: Unread, config: &Config) -> Rejection {
    match unread {
        Unread::TooLarge => Rejection::new(
            RejectionKind::RequestTooLarge,
            format!("the request body must not be larger than {} bytes", config.max_request_bytes),
        ),
        Unread::Broken => Rejection::new(RejectionKind::RequestUnreadable, "the request body broke off"),
    }
}

fn replayed(stored: &StoredResponse, operation: &Operation) -> Response {
    debug!(%operation, outcome = "replayed", status = stored.status().as_u16(), "replayed");
    replay::replay(stored)
}

/// The handler is at fault, and its operator should know.
fn blame(rejection: &Rejection, operation: &Operation) {
    error!(%operation, %rejection, "the handler's answer could not be kept");
}

/// What the client may know of an error, with the rest in the log.
pub(super) fn logged(error: Error) -> Rejection {
    error!(error = &error as &dyn std::error::Error, "idempotency failed");
    error.into()
}

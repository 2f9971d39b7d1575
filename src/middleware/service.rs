use std::{
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    BoxError,
    body::{Body, Bytes},
    http::Request,
    response::Response,
};
use http_body::Body as HttpBody;
use tower_service::Service;

use super::{
    config::{Config, NEVER},
    flow::respond,
    future::ResponseFuture,
    handler::Handler,
    rejection::Rejection,
};

/// The service that [`IdempotencyLayer`](crate::IdempotencyLayer) makes. See the [module docs](crate::middleware) for the
/// contract and an example.
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
        // The clone is kept for the next call; the service that is ready is called now.
        let later = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, later);
        ResponseFuture::guarded(respond(self.config.clone(), Handler::of(inner), request.map(Body::new)))
    }
}

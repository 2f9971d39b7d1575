//! A service that answers at once, and the layer around it.

use std::{
    convert::Infallible,
    fmt,
    future::{Future, Ready, ready},
    pin::pin,
    task::{Context, Poll, Waker},
};

use axum::{
    body::Body,
    http::{Request, StatusCode},
    response::Response,
};
use axum_idempotency::{Idempotency, IdempotencyLayer, IdempotencyService};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tower::{Layer as _, Service as _, util::ServiceFn};

/// A way past the layer, or to its refusal, that needs no database.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    /// A method that the layer does not handle.
    Get,
    /// No key, where none is needed.
    Keyless,
    /// A key that is none.
    Malformed,
    /// A key, and nobody who owns it: parsed and not used.
    Nobodys,
}

impl Call {
    pub(crate) const ALL: [Self; 4] = [Self::Get, Self::Keyless, Self::Malformed, Self::Nobodys];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Get => "GET passes through",
            Self::Keyless => "keyless optional POST",
            Self::Malformed => "malformed key refused",
            Self::Nobodys => "nobody's key refused",
        }
    }

    pub(crate) fn request(self, key: &str) -> Request<Body> {
        let request = match self {
            Self::Get => Request::get("/charges"),
            Self::Keyless => Request::post("/charges"),
            Self::Malformed => Request::post("/charges").header("idempotency-key", format!("\"{key}")),
            Self::Nobodys => Request::post("/charges").header("idempotency-key", format!("\"{key}\"")),
        };
        request.body(Body::empty()).expect("a request")
    }

    pub(crate) fn expected(self) -> StatusCode {
        match self {
            Self::Get | Self::Keyless => StatusCode::OK,
            Self::Malformed => StatusCode::BAD_REQUEST,
            Self::Nobodys => StatusCode::UNAUTHORIZED,
        }
    }
}

type Answer = fn(Request<Body>) -> Ready<Result<Response, Infallible>>;

/// One of the two.
pub(crate) enum Service {
    Bare(ServiceFn<Answer>),
    Layered(IdempotencyService<ServiceFn<Answer>>),
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, Self::Bare(_)) { "Bare" } else { "Layered" })
    }
}

pub(crate) fn bare() -> Service {
    Service::Bare(tower::service_fn(answer as Answer))
}

pub(crate) fn layered(call: Call) -> Service {
    let pool = PgPoolOptions::new().connect_lazy_with(PgConnectOptions::new_without_pgpass());
    let layer = IdempotencyLayer::new(Idempotency::new(&pool), |_| None);
    let layer = if matches!(call, Call::Keyless) { layer.optional() } else { layer };
    Service::Layered(layer.layer(tower::service_fn(answer as Answer)))
}

fn answer(_: Request<Body>) -> Ready<Result<Response, Infallible>> {
    ready(Ok(Response::new(Body::empty())))
}

impl Service {
    pub(crate) fn call(&mut self, request: Request<Body>) -> StatusCode {
        match self {
            Self::Bare(service) => at_once(service.call(request)),
            Self::Layered(service) => at_once(service.call(request)),
        }
    }
}

/// Nothing here has anything to wait for.
fn at_once(answering: impl Future<Output = Result<Response, Infallible>>) -> StatusCode {
    match pin!(answering).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(response)) => response.status(),
        Poll::Pending => StatusCode::PROCESSING,
    }
}

//! The inner service, and the reasons that end a request early.

use std::pin::Pin;

use axum::{
    BoxError,
    body::{Body, Bytes},
    extract::Request,
    http::request::Parts,
    response::Response,
};
use http_body::Body as HttpBody;
use tower_service::Service;
use tracing::error;

use super::{refuse::logged, rejection::Rejection, rejection_kind::RejectionKind, tx::Slot};
use crate::{Error, Operation, engine::Slow};

/// The inner service, to be called once, with bodies of one type.
pub(super) struct Handler<E>(Box<dyn FnOnce(Request) -> Responding<E> + Send>);

type Responding<E> = Pin<Box<dyn Future<Output = Result<Response, E>> + Send>>;

impl<E: Send + 'static> Handler<E> {
    /// Makes a handler of `service`, which must be ready.
    pub(super) fn of<S, R>(mut service: S) -> Self
    where
        S: Service<Request, Response = http::Response<R>, Error = E> + Send + 'static,
        S::Future: Send + 'static,
        R: HttpBody<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        Self(Box::new(move |request| {
            let responding = service.call(request);
            Box::pin(async move {
                let response = responding.await?;
                drop(service);
                Ok(response.map(Body::new))
            })
        }))
    }

    /// Calls the service, with the slot in the request's extensions.
    pub(super) async fn call(self, mut parts: Parts, body: Body, slot: &Slot) -> Result<Response, E> {
        parts.extensions.insert(slot.clone());
        let Self(call) = self;
        call(Request::from_parts(parts, body)).await
    }
}

/// The reason why the flow ended early.
pub(super) enum Stop<E> {
    /// The layer responds with a rejection.
    Refused(Rejection),
    /// The inner service failed; its error is passed on.
    Failed(E),
}

impl<E> Stop<E> {
    /// Says whether the work was undone, which is certain or not.
    pub(super) fn undone(self, certain: bool) -> Self {
        self.map(if certain { Rejection::undone } else { Rejection::perhaps_done })
    }

    pub(super) fn map(self, change: impl FnOnce(Rejection) -> Rejection) -> Self {
        match self {
            Self::Refused(rejection) => Self::Refused(change(rejection)),
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

pub(super) fn out_of_time(operation: &Operation, why: Option<Slow>) -> Rejection {
    let detail = match why {
        Some(Slow::HoldsOthersUp) => {
            "The operation took too long and was rolled back: another connection of the service waited for a lock \
             that the request's transaction held. A handler that writes the same row through its Tx and through the \
             pool waits for itself; it must use only the Tx."
        }
        Some(Slow::Busy) => {
            "The operation took too long and was rolled back, with a statement still running in the database, or \
             waiting there for a lock. Repeat the request with the same key."
        }
        Some(Slow::Held) => {
            "The operation took too long; it is rolled back when a task that still holds its connection releases it. \
             Until then its key is taken; repeat the request later, with the same key."
        }
        None => "The operation took too long and was rolled back. Repeat the request with the same key.",
    };
    let rejection = Rejection::new(RejectionKind::HandlerTimeout, detail);
    blame(&rejection, operation);
    rejection
}

/// Logs a fault of the handler for the operator.
pub(super) fn blame(rejection: &Rejection, operation: &Operation) {
    error!(%operation, %rejection, "the handler's response could not be kept");
}

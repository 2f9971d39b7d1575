use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::{
    BoxError,
    body::{Body, Bytes},
    response::Response,
};
use http_body::Body as HttpBody;
use pin_project_lite::pin_project;

pin_project! {
    /// The response future of an [`IdempotencyService`](crate::IdempotencyService).
    ///
    /// If it is dropped after its key was claimed, the request goes on as a task: the work is committed, and the retry of a
    /// client that has gone away gets the response.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F, E>
    where
        E: Send,
        E: 'static,
    {
        #[pin]
        kind: Kind<F, E>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum Kind<F, E>
    where
        E: Send,
        E: 'static,
    {
        /// A method that the layer leaves alone: the inner future, in place.
        Through { #[pin] future: F },
        Guarded { future: Pin<Box<dyn Future<Output = Result<Response, E>> + Send>> },
    }
}

impl<F, E: Send + 'static> ResponseFuture<F, E> {
    pub(super) fn through(future: F) -> Self {
        Self { kind: Kind::Through { future } }
    }

    pub(super) fn guarded(future: impl Future<Output = Result<Response, E>> + Send + 'static) -> Self {
        Self { kind: Kind::Guarded { future: Box::pin(future) } }
    }
}

impl<F, R, E> Future for ResponseFuture<F, E>
where
    F: Future<Output = Result<http::Response<R>, E>>,
    E: Send + 'static,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Output = Result<Response, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            KindProjection::Through { future } => {
                let response = ready!(future.poll(cx));
                Poll::Ready(response.map(|response| response.map(Body::new)))
            }
            KindProjection::Guarded { future } => future.as_mut().poll(cx),
        }
    }
}

impl<F, E: Send + 'static> fmt::Debug for ResponseFuture<F, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

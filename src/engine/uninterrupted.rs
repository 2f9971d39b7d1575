use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::runtime::Handle;
use tracing::{Instrument as _, Span};

use super::backlog::Backlog;

/// A future that ends even if nobody waits for it any more.
///
/// It is polled in place, by its caller, and costs a box. Dropped before its end, it goes on as a task of the
/// runtime that it was made in. What it leaves there when it ends is dropped there. One that was never polled has
/// done nothing yet, and is just dropped, and so is one that panicked.
pub(crate) struct Uninterrupted<T: Send + 'static> {
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    rest: Option<(Handle, Span)>,
    backlog: Backlog,
}

impl<T: Send + 'static> Uninterrupted<T> {
    /// `backlog` counts it while it goes on by itself.
    pub(crate) fn new(backlog: &Backlog, future: impl Future<Output = T> + Send + 'static) -> Self {
        Self { future: Some(Box::pin(future)), rest: None, backlog: backlog.clone() }
    }
}

impl<T: Send + 'static> Future for Uninterrupted<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // Out of `self` while it is polled: if it panics, it is gone.
        let Some(mut future) = self.future.take() else {
            return Poll::Pending;
        };
        if self.rest.is_none() {
            self.rest = Handle::try_current().ok().map(|runtime| (runtime, Span::current()));
        }
        let polled = future.as_mut().poll(cx);
        if polled.is_pending() {
            self.future = Some(future);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Uninterrupted<T> {
    fn drop(&mut self) {
        if let (Some(future), Some((runtime, span))) = (self.future.take(), self.rest.take()) {
            let _entered = runtime.enter();
            let goes_on = self.backlog.enter();
            drop(runtime.spawn(async move {
                drop(future.instrument(span).await);
                drop(goes_on);
            }));
        }
    }
}

impl<T: Send + 'static> fmt::Debug for Uninterrupted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uninterrupted").finish_non_exhaustive()
    }
}

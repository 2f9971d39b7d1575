//! Holds a panic of the handler until its work is rolled back, and then passes it on.

use std::{
    any::Any,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::pin,
    task::Poll,
};

pub(super) type Payload = Box<dyn Any + Send>;

/// Returns the output of `future`, or the payload of its panic. The future is not polled again after that.
pub(super) async fn caught<T>(future: impl Future<Output = T>) -> Result<T, Payload> {
    let mut future = pin!(future);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(polled) => polled.map(Ok),
        Err(payload) => Poll::Ready(Err(payload)),
    })
    .await
}

/// Continues the panic, without calling the panic hook a second time.
pub(super) fn resume(payload: Payload) -> ! {
    resume_unwind(payload)
}

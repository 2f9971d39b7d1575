//! A panic of the handler: held up until its work is rolled back, then passed on.

use std::{
    any::Any,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::pin,
    task::Poll,
};

pub(super) type Payload = Box<dyn Any + Send>;

/// What `future` gives, or what it panicked with. It is not polled again after that.
pub(super) async fn caught<T>(future: impl Future<Output = T>) -> Result<T, Payload> {
    let mut future = pin!(future);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(polled) => polled.map(Ok),
        Err(payload) => Poll::Ready(Err(payload)),
    })
    .await
}

/// Goes on with the panic, without calling the panic hook a second time.
pub(super) fn resume(payload: Payload) -> ! {
    resume_unwind(payload)
}

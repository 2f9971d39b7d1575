use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::Poll,
};

/// Returns the output of `work`; `None` if `stop` ends first.
pub(crate) async fn unless<T>(
    mut stop: Pin<&mut impl Future<Output = ()>>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|cx| {
        if stop.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        work.as_mut().poll(cx).map(Some)
    })
    .await
}

use std::time::Duration;

use tokio::sync::watch;

use super::Idempotency;

/// Counts the tasks that go on after their caller has stopped waiting for them.
#[derive(Clone, Debug)]
pub(crate) struct Backlog(watch::Sender<usize>);

impl Default for Backlog {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

/// One counted task, until this is dropped.
#[derive(Debug)]
pub(super) struct GoesOn(Backlog);

impl Backlog {
    pub(super) fn enter(&self) -> GoesOn {
        self.0.send_modify(|count| *count = count.saturating_add(1));
        GoesOn(self.clone())
    }
}

impl Drop for GoesOn {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

impl Idempotency {
    /// Waits until the attempts whose clients have gone away have ended, at most for `limit`, and returns how many are
    /// left: 0 if all have ended.
    ///
    /// An attempt whose client has gone away goes on as a task of the runtime, and ends with it. So call this
    /// when the server has stopped, before the process ends. PostgreSQL rolls back the attempts that are left then,
    /// and their retries execute.
    ///
    /// ```no_run
    /// # async fn f(listener: tokio::net::TcpListener, app: axum::Router, idempotency: axum_idempotency::Idempotency,
    /// #            stop: impl Future<Output = ()> + Send + 'static) -> std::io::Result<()> {
    /// use std::time::Duration;
    ///
    /// axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    /// let left = idempotency.drain(Duration::from_secs(30)).await;
    /// if left > 0 {
    ///     eprintln!("{left} requests were not finished");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn drain(&self, limit: Duration) -> usize {
        let mut count = self.0.backlog.0.subscribe();
        let drained = tokio::time::timeout(limit, count.wait_for(|count| *count == 0)).await.is_ok();
        if drained { 0 } else { *self.0.backlog.0.borrow() }
    }
}

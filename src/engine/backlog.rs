use std::time::Duration;

use tokio::sync::watch;

use super::Idempotency;

/// Counts what goes on although nobody waits for it any more.
#[derive(Clone, Debug)]
pub(crate) struct Backlog(watch::Sender<usize>);

impl Default for Backlog {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

/// One that goes on, as long as this is kept.
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
    /// Waits until the attempts whose clients have gone away have ended, at most for `limit`, and says how many are
    /// left: 0, if all have ended.
    ///
    /// An attempt that nobody waits for any more goes on as a task of the runtime, and dies with it. So call this
    /// when the server has stopped, before the process ends. What is left over then is rolled back by PostgreSQL,
    /// and a retry executes.
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

//! How long a claim waits, and for whom.

use std::{future::pending, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, oneshot},
    time::{Instant, timeout_at},
};

use super::{Concurrency, Duplicate, Idempotency, in_flight::Follower};
use crate::postgres::{
    claim::{Terms, Wait},
    time::later,
};

/// How long a claim waits for others.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    waits: bool,
    end: Instant,
}

/// How much longer than it may wait a claim may take altogether. The time that the pool took to lend a connection is not
/// held against it.
const GRACE: Duration = Duration::from_secs(2);

/// Under [`Concurrency::NoWait`] a duplicate waits so long at most to learn whether the one before it executes, or
/// only asks the database for its response.
const A_MOMENT: Duration = Duration::from_secs(1);

impl Patience {
    pub(super) fn of(concurrency: Concurrency) -> Self {
        let (waits, time) = match concurrency {
            Concurrency::Wait { timeout } => (true, timeout),
            Concurrency::NoWait => (false, A_MOMENT),
        };
        let now = Instant::now();
        Self { waits, end: later(now, time) }
    }

    /// When a claim is given up that the database does not respond to. `lock_timeout` ends a wait for others sooner, though it
    /// counts for each lock anew, and some engines ignore it.
    pub(super) fn limit(self, wait: Wait, terms: Terms<'_>) -> Instant {
        let now = Instant::now();
        let end = later(self.end.max(now), GRACE);
        match wait {
            Wait::UpTo(_) => end,
            Wait::Never | Wait::NextToNothing => later(now, terms.sending.limit).min(end),
        }
    }

    /// What a claim may do inside PostgreSQL, if it has a place there.
    pub(super) fn wait(self, permit: bool) -> Wait {
        if self.waits && permit { Wait::UpTo(self.end.saturating_duration_since(Instant::now())) } else { Wait::Never }
    }

    /// The right to wait inside PostgreSQL, which takes a connection, so that too many must not do so; `None` if there is
    /// none in time, or it does not wait at all.
    pub(super) async fn permit(self, idempotency: &Idempotency) -> Option<OwnedSemaphorePermit> {
        if !self.waits {
            return None;
        }
        timeout_at(self.end, idempotency.0.waiting.clone().acquire_owned()).await.ok()?.ok()
    }

    /// What comes of being a follower within this process; `None` to enter anew.
    pub(super) async fn learn(self, mut follower: Follower) -> Option<Duplicate> {
        if !self.waits && timeout_at(self.end, follower.is_refused()).await.unwrap_or(true) {
            return Some(Duplicate::InProgress);
        }
        timeout_at(self.end, follower.learn()).await.unwrap_or(Some(Duplicate::InProgress))
    }
}

/// Whoever asked for a claim, for as long as that one waits.
pub(super) struct Caller(Option<oneshot::Receiver<()>>);

impl Caller {
    pub(super) fn new() -> (oneshot::Sender<()>, Self) {
        let (here, gone) = oneshot::channel();
        (here, Self(Some(gone)))
    }

    /// One who does not go away.
    pub(super) fn stays() -> Self {
        Self(None)
    }

    pub(super) async fn gone(&mut self) {
        match &mut self.0 {
            Some(gone) => drop(gone.await),
            None => pending().await,
        }
    }
}

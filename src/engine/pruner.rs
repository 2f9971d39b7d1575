use std::{pin::pin, time::Duration};

use tokio::time::Instant;
use tracing::{debug, warn};

use super::Idempotency;
use crate::{Pruned, unless::unless};

/// A task that regularly deletes expired keys, drops responses whose retention has ended, and makes and drops partitions, in
/// batches.
///
/// After a failure it tries again after a second, then two, four and so on, and never later than a normal round. Any
/// number of processes may run one on the same table: they skip each other's rows. Only disk space depends on it.
///
/// ```no_run
/// # async fn f(idempotency: axum_idempotency::Idempotency) {
/// use axum_idempotency::Pruner;
///
/// let stop = async { tokio::signal::ctrl_c().await.unwrap() };
/// tokio::spawn(Pruner::new(idempotency).run_until(stop));
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a pruner does nothing until it is run"]
pub struct Pruner {
    idempotency: Idempotency,
    interval: Duration,
    batch: u32,
}

/// After a failure the next try comes after a second, then two, four and so on, and never later than a normal round.
const FIRST_BACK_OFF: Duration = Duration::from_secs(1);

/// After a full batch the pruner pauses for this many times as long as the batch took. So it takes at most a fifth of one
/// connection's time, however much there is to do.
const REST: u32 = 4;

/// How long the batch that is under way may take after a stop.
const LAST_BATCH: Duration = Duration::from_secs(5);

impl Pruner {
    /// Makes a pruner that runs every minute and deletes 200 rows at a time.
    pub fn new(idempotency: Idempotency) -> Self {
        Self { idempotency, interval: Duration::from_secs(60), batch: 200 }
    }

    /// Sets the pause after a round that left nothing to do. Default: one minute, so that a table holds hardly more than
    /// its live keys. The minimum is a millisecond.
    pub fn interval(self, interval: Duration) -> Self {
        Self { interval: interval.max(Duration::from_millis(1)), ..self }
    }

    /// Sets how many rows one statement deletes. Default: 200, which take a few milliseconds, during which only requests for
    /// those rows wait. The minimum is one.
    ///
    /// While there is more to do, the pruner pauses for four times as long as each batch takes. So it hardly affects
    /// requests, and still deletes thousands of rows a second.
    pub fn batch(self, rows: u32) -> Self {
        Self { batch: rows.max(1), ..self }
    }

    /// Prunes until `stop` is ready, and returns the numbers. Failures are logged and tried again. The batch
    /// that is under way at the stop is finished, if the database responds within five seconds.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Pruned {
        let mut stop = pin!(stop);
        let mut pruned = Pruned::default();
        let mut back_off = FIRST_BACK_OFF;
        loop {
            let began = Instant::now();
            let mut batch = pin!(self.idempotency.prune(self.batch));
            let Some(round) = unless(stop.as_mut(), batch.as_mut()).await else {
                let last = tokio::time::timeout(LAST_BATCH, batch).await;
                pruned.add(last.map_or_else(|_| Pruned::default(), Result::unwrap_or_default));
                return pruned;
            };
            let pause = match round {
                Ok(round) => {
                    pruned.add(round);
                    back_off = FIRST_BACK_OFF;
                    let Pruned { deleted, responses_dropped, partitions_made, partitions_dropped } = round;
                    if round != Pruned::default() {
                        debug!(
                            deleted,
                            responses_dropped, partitions_made, partitions_dropped, "pruned idempotency keys"
                        );
                    }
                    // After a full batch there is probably more.
                    let full = deleted.max(responses_dropped) >= u64::from(self.batch) || partitions_dropped > 0;
                    if full { began.elapsed().saturating_mul(REST).min(self.interval) } else { self.interval }
                }
                Err(error) => {
                    warn!(error = &error as &dyn std::error::Error, "could not prune idempotency keys");
                    let pause = back_off.min(self.interval);
                    back_off = back_off.saturating_mul(2);
                    pause
                }
            };
            if unless(stop.as_mut(), tokio::time::sleep(pause)).await.is_none() {
                return pruned;
            }
        }
    }
}

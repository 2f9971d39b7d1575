use std::time::Duration;

/// What happens to a request while another request with its key is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concurrency {
    /// It waits for the first request's response, and gets it. If the first request leaves no response, one of the waiting
    /// requests executes.
    Wait {
        /// The longest wait. A shorter time than a millisecond counts as a millisecond.
        timeout: Duration,
    },
    /// It is refused without waiting.
    NoWait,
}

impl Concurrency {
    pub(super) fn longest_wait(self) -> Duration {
        match self {
            Self::Wait { timeout } => timeout,
            Self::NoWait => Duration::ZERO,
        }
    }
}

impl Default for Concurrency {
    /// Returns a wait of up to 5 seconds: longer than most handlers run, and shorter than most clients wait.
    fn default() -> Self {
        Self::Wait { timeout: Duration::from_secs(5) }
    }
}

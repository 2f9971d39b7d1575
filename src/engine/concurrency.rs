use std::time::Duration;

/// What happens to a request whose key another request is executing right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concurrency {
    /// It waits for the first one's answer, at most so long, and is answered with it. If the first one leaves no
    /// answer, one of those that wait executes.
    Wait {
        /// The longest wait. A millisecond at least; what is shorter counts as one.
        timeout: Duration,
    },
    /// It is refused at once.
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
    /// Wait up to 5 seconds: longer than most handlers run, shorter than most clients wait.
    fn default() -> Self {
        Self::Wait { timeout: Duration::from_secs(5) }
    }
}

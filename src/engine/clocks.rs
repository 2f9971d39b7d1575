//! A moment by both clocks of a machine.

use std::time::{Duration, Instant, SystemTime};

/// The monotonic clock is never set, but on some systems stands still while the machine is suspended; the wall clock goes
/// on, but may be set. What has an end has reached it when one of them says so.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) monotonic: Instant,
    pub(super) wall: SystemTime,
}

impl Moment {
    pub(super) fn now() -> Self {
        Self { monotonic: Instant::now(), wall: SystemTime::now() }
    }

    pub(super) fn checked_add(self, duration: Duration) -> Option<Self> {
        let (monotonic, wall) = (self.monotonic.checked_add(duration)?, self.wall.checked_add(duration)?);
        Some(Self { monotonic, wall })
    }

    pub(super) fn has_passed(self) -> bool {
        let now = Self::now();
        self.monotonic <= now.monotonic || self.wall <= now.wall
    }
}

use std::time::Duration;

/// The time for which a key and its response are kept, counted from the key's first use by the database's clock.
///
/// Every finite retention assumes that the last retry arrives before the key expires: after that, a request with the same
/// key executes as a new one. The assumption fails exactly when systems are slow. So choose the retention by the delays that
/// it must cover, or keep the key longer than the response:
///
/// ```
/// use std::time::Duration;
/// use axum_idempotency::Retention;
///
/// const HOUR: Duration = Duration::from_secs(60 * 60);
///
/// // Clients retry for a day, a request may stay in a queue for three more, and half a day is the margin.
/// let covering = Retention::covering([24 * HOUR, 72 * HOUR], 12 * HOUR)?;
/// assert_eq!(covering, Retention::new(108 * HOUR)?);
///
/// // The response is replayed for a day; until the 90th day, a duplicate is then refused and not executed.
/// let refusing = Retention::new(24 * HOUR)?.refuse_for(90 * 24 * HOUR)?;
/// assert_eq!((refusing.replay_window(), refusing.window()), (Some(24 * HOUR), Some(90 * 24 * HOUR)));
///
/// assert_eq!(Retention::default(), Retention::DAY);
/// assert!(Retention::new(Duration::ZERO).is_err());
/// # Ok::<_, axum_idempotency::InvalidRetention>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// `None`: as long as the key.
    replay: Option<Duration>,
    /// `None`: for ever.
    keep: Option<Duration>,
}

impl Retention {
    /// 24 hours, the default: what Stripe and most similar APIs promise.
    pub const DAY: Self = Self { replay: None, keep: Some(Duration::from_secs(24 * 60 * 60)) };

    /// The longest finite retention: 100 years of 365 days.
    pub const MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

    /// Keeps key and response for `window`, in whole microseconds.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidRetention`] if `window` is shorter than a millisecond or longer than [`MAX`](Self::MAX).
    pub fn new(window: Duration) -> Result<Self, InvalidRetention> {
        Ok(Self { replay: None, keep: Some(checked(window)?) })
    }

    /// Keeps key and response for the sum of `horizons` and `margin`.
    ///
    /// Horizons are the delays that can follow one another, for instance how long clients retry, and how long a broker keeps
    /// a message and may deliver it again.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn covering(horizons: impl IntoIterator<Item = Duration>, margin: Duration) -> Result<Self, InvalidRetention> {
        Self::new(horizons.into_iter().fold(margin, Duration::saturating_add))
    }

    /// Keeps keys and responses for ever; the table grows with each of them.
    #[must_use]
    pub const fn forever() -> Self {
        Self { replay: None, keep: None }
    }

    /// Keeps the key for `window`, counted from its first use, and the response only as long as before.
    ///
    /// A duplicate that arrives in between is refused with 409 `response-not-retained`, and not executed. A key without its
    /// response takes less than half of the space.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidRetention`] if `window` is not longer than the response is kept, or longer than [`MAX`](Self::MAX).
    pub fn refuse_for(self, window: Duration) -> Result<Self, InvalidRetention> {
        let keep = checked(window)?;
        match self.replay_window() {
            Some(replay) if replay < keep => Ok(Self { replay: Some(replay), keep: Some(keep) }),
            _ => Err(InvalidRetention::NotLonger),
        }
    }

    /// Keeps the key for ever, and the response only as long as before: no key is ever executed twice.
    #[must_use]
    pub fn refuse_forever(self) -> Self {
        Self { replay: self.replay_window(), keep: None }
    }

    /// Returns how long the key is kept; `None` means for ever.
    #[must_use]
    pub const fn window(self) -> Option<Duration> {
        self.keep
    }

    /// Returns how long the response is kept and replayed; `None` means for ever.
    #[must_use]
    pub const fn replay_window(self) -> Option<Duration> {
        match self.replay {
            Some(replay) => Some(replay),
            None => self.keep,
        }
    }

    /// Returns the same retention, with key and response kept for longer than `least`.
    pub(crate) fn outlasting(self, least: Duration) -> Self {
        match self.keep {
            Some(keep) if keep <= least => Self { replay: None, keep: Some(beyond(least)) },
            keep => match self.replay {
                // The key may be kept longer than the response; duplicates that waited must still find the response.
                Some(replay) if replay <= least => {
                    let replay = beyond(least);
                    Self { replay: keep.is_none_or(|keep| replay < keep).then_some(replay), keep }
                }
                _ => self,
            },
        }
    }

    pub(crate) fn keep_micros(self) -> Option<i64> {
        self.keep.and_then(micros)
    }

    /// Returns how long the response is kept; `None` means as long as the key.
    pub(crate) fn replay_only(self) -> Option<Duration> {
        self.replay
    }

    /// Returns how long the response is kept, in microseconds; `None` means as long as the key.
    pub(crate) fn replay_micros(self) -> Option<i64> {
        self.replay.and_then(micros)
    }
}

pub(crate) fn micros(window: Duration) -> Option<i64> {
    i64::try_from(window.as_micros()).ok()
}

/// Returns `least` and a millisecond, but at most [`Retention::MAX`].
pub(crate) fn beyond(least: Duration) -> Duration {
    least.saturating_add(Duration::from_millis(1)).min(Retention::MAX)
}

pub(crate) fn checked(window: Duration) -> Result<Duration, InvalidRetention> {
    if window < Duration::from_millis(1) {
        return Err(InvalidRetention::TooShort);
    }
    if window > Retention::MAX {
        return Err(InvalidRetention::TooLong);
    }
    Ok(window)
}

impl Default for Retention {
    fn default() -> Self {
        Self::DAY
    }
}

/// The reason why a duration or a setting is not valid for a [`Retention`] or for
/// [`TimestampedKeys`](crate::TimestampedKeys).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRetention {
    /// The duration is less than a millisecond, so every retry would execute again.
    #[error("a retention of less than a millisecond would end before any retry arrives; use a longer one")]
    TooShort,
    /// The duration is longer than [`Retention::MAX`].
    #[error("a retention is at most 100 years; use Retention::forever() for keys that never expire")]
    TooLong,
    /// The key would expire before its response.
    #[error("a key must be kept longer than its response; use a longer duration")]
    NotLonger,
    /// Keys with a timestamp beside them cannot be partitioned by it.
    #[error("only keys that contain their timestamp can be partitioned by it; use UUIDv7 or ULID keys")]
    NotPartitionable,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn f51_windows_that_forget_at_once_or_overflow_are_refused() {
        assert_eq!(Retention::new(Duration::ZERO), Err(InvalidRetention::TooShort));
        assert_eq!(Retention::new(Duration::from_micros(999)), Err(InvalidRetention::TooShort));
        assert_eq!(Retention::new(Retention::MAX + SECOND), Err(InvalidRetention::TooLong));
        assert_eq!(Retention::covering([Duration::MAX, SECOND], SECOND), Err(InvalidRetention::TooLong));
        assert_eq!(Retention::covering([], Duration::ZERO), Err(InvalidRetention::TooShort));
    }

    #[test]
    fn r60_f82_a_window_that_a_waiting_duplicate_would_outlive_is_raised() {
        let least = 15 * SECOND;
        let raised = least + Duration::from_millis(1);
        let of = |seconds: u32| Retention::new(seconds * SECOND).expect("seconds");
        assert_eq!(of(15).outlasting(least).window(), Some(raised));
        assert_eq!(of(16).outlasting(least), of(16));
        assert_eq!(of(1).outlasting(Duration::ZERO), of(1));
        assert_eq!(Retention::forever().outlasting(Duration::MAX), Retention::forever());
        assert_eq!(of(1).outlasting(Duration::MAX).window(), Some(Retention::MAX));
        // The response counts as well, and is never kept longer than its key.
        let refusing = of(1).refuse_for(3_600 * SECOND).expect("longer").outlasting(least);
        assert_eq!((refusing.replay_window(), refusing.window()), (Some(raised), Some(3_600 * SECOND)));
        let refusing = of(1).refuse_for(15 * SECOND + Duration::from_micros(500)).expect("longer").outlasting(least);
        assert_eq!((refusing.replay_only(), refusing.window()), (None, Some(15 * SECOND + Duration::from_micros(500))));
        assert_eq!(of(1).refuse_forever().outlasting(least).replay_window(), Some(raised));
    }

    #[test]
    fn a_key_is_never_kept_shorter_than_its_answer() {
        let minute = Retention::new(60 * SECOND).expect("a minute");
        assert_eq!(minute.refuse_for(60 * SECOND), Err(InvalidRetention::NotLonger));
        assert_eq!(minute.refuse_for(59 * SECOND), Err(InvalidRetention::NotLonger));
        assert_eq!(Retention::forever().refuse_for(Retention::MAX), Err(InvalidRetention::NotLonger));
        let longer = minute.refuse_for(61 * SECOND).expect("longer");
        assert_eq!((longer.replay_micros(), longer.keep_micros()), (Some(60_000_000), Some(61_000_000)));
        let never = minute.refuse_forever();
        assert_eq!((never.replay_micros(), never.keep_micros()), (Some(60_000_000), None));
        assert_eq!(Retention::forever().refuse_forever(), Retention::forever());
    }
}

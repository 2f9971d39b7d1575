use std::time::Duration;

/// How long a key is remembered, counted from its first use by the database's clock.
///
/// Every finite window is a bet that the last retry arrives before it ends: once a key is forgotten, a request that
/// carries it executes as a new one. The bet is lost exactly when systems are slow. So give the window by what it has
/// to cover, keep the key longer than the answer, or decline the bet:
///
/// ```
/// use std::time::Duration;
/// use axum_idempotency::Retention;
///
/// const HOUR: Duration = Duration::from_secs(60 * 60);
///
/// // Clients retry for a day; what they send may lie in a queue for three more; and half a day to be sure.
/// let covering = Retention::covering([24 * HOUR, 72 * HOUR], 12 * HOUR)?;
/// assert_eq!(covering, Retention::new(108 * HOUR)?);
///
/// // The answer for a day; after that, for 90 days, a duplicate is refused and not executed.
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
    /// 24 hours, the default: what Stripe and most of its kind promise.
    pub const DAY: Self = Self { replay: None, keep: Some(Duration::from_secs(24 * 60 * 60)) };

    /// The longest finite window: 100 years of 365 days.
    pub const MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

    /// A window of this length, counted in whole microseconds, for key and answer.
    ///
    /// # Errors
    ///
    /// [`InvalidRetention`] if it is shorter than a millisecond or longer than [`MAX`](Self::MAX).
    pub fn new(window: Duration) -> Result<Self, InvalidRetention> {
        Ok(Self { replay: None, keep: Some(checked(window)?) })
    }

    /// A window that covers all of these, one after the other, and a margin: for instance how long clients retry, and
    /// how long a broker keeps what they have sent and may deliver it again.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn covering(horizons: impl IntoIterator<Item = Duration>, margin: Duration) -> Result<Self, InvalidRetention> {
        Self::new(horizons.into_iter().fold(margin, Duration::saturating_add))
    }

    /// Keys and answers are never forgotten, and the table grows with every one.
    #[must_use]
    pub const fn forever() -> Self {
        Self { replay: None, keep: None }
    }

    /// Keeps the key so long, and the answer only as long as before. A duplicate that comes in between is refused with
    /// 409 `response-not-retained`, and not executed: a key without its answer takes a fraction of the space.
    ///
    /// # Errors
    ///
    /// [`InvalidRetention`] if that is not longer than the answer is kept, or longer than [`MAX`](Self::MAX).
    pub fn refuse_for(self, window: Duration) -> Result<Self, InvalidRetention> {
        let keep = checked(window)?;
        match self.replay_window() {
            Some(replay) if replay < keep => Ok(Self { replay: Some(replay), keep: Some(keep) }),
            _ => Err(InvalidRetention::NotLonger),
        }
    }

    /// As [`refuse_for`](Self::refuse_for), without an end: no key is ever executed twice.
    #[must_use]
    pub fn refuse_forever(self) -> Self {
        Self { replay: self.replay_window(), keep: None }
    }

    /// How long the key is kept; `None` if for ever.
    #[must_use]
    pub const fn window(self) -> Option<Duration> {
        self.keep
    }

    /// How long the answer is kept and replayed; `None` if for ever.
    #[must_use]
    pub const fn replay_window(self) -> Option<Duration> {
        match self.replay {
            Some(replay) => Some(replay),
            None => self.keep,
        }
    }

    /// The same, or the shortest that outlasts `least`, if the key would be forgotten sooner.
    pub(crate) fn outlasting(self, least: Duration) -> Self {
        match self.keep {
            Some(keep) if keep <= least => Self { keep: Some(least + Duration::from_millis(1)), ..self },
            _ => self,
        }
    }

    pub(crate) fn keep_micros(self) -> Option<i64> {
        self.keep.and_then(micros)
    }

    /// How long the answer is kept, if not as long as the key.
    pub(crate) fn replay_only(self) -> Option<Duration> {
        self.replay
    }

    /// `None` if the answer is kept as long as the key.
    pub(crate) fn replay_micros(self) -> Option<i64> {
        self.replay.and_then(micros)
    }
}

pub(crate) fn micros(window: Duration) -> Option<i64> {
    i64::try_from(window.as_micros()).ok()
}

/// R60: a duplicate that has waited for the first request must still find its answer.
pub(crate) fn outlasts(window: Option<Duration>, wait: Duration, limit: Duration) -> Result<(), InvalidRetention> {
    match window {
        Some(window) if window <= wait.saturating_add(limit) => {
            Err(InvalidRetention::WithinWait { window, wait, limit })
        }
        _ => Ok(()),
    }
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

/// Why a duration is no [`Retention`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRetention {
    /// Zero or next to it: every retry would execute again.
    #[error("a retention of less than a millisecond would forget keys before any retry arrives")]
    TooShort,
    /// Beyond what a timestamp should hold.
    #[error("a retention holds at most 100 years; use Retention::forever() for keys that are never forgotten")]
    TooLong,
    /// The key would be forgotten before its answer.
    #[error("a key has to be kept longer than its answer")]
    NotLonger,
    /// Keys whose time stands beside them cannot be partitioned by it.
    #[error("only keys that hold their time themselves can be partitioned by it")]
    NotPartitionable,
    /// A duplicate could wait for a request until its key is forgotten, and would then execute it again.
    #[error(
        "a window of {window:?} does not outlast the {wait:?} that a duplicate may wait and the {} that a handler may take: \
         the duplicate would execute again, or find no answer; choose a longer window, or set a shorter wait or time limit \
         first",
        if limit.is_zero() { "unlimited time".to_owned() } else { format!("{limit:?}") }
    )]
    WithinWait {
        /// How long the key would be remembered.
        window: Duration,
        /// How long a duplicate of a running request may wait.
        wait: Duration,
        /// How long a handler may take; zero if that is not limited, and then it does not count.
        limit: Duration,
    },
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
    fn r60_a_window_outlasts_wait_and_time_limit_together() {
        let (wait, limit) = (5 * SECOND, 10 * SECOND);
        assert_eq!(outlasts(None, Duration::MAX, limit), Ok(()));
        assert_eq!(outlasts(Some(15 * SECOND + Duration::from_millis(1)), wait, limit), Ok(()));
        let refused = outlasts(Some(15 * SECOND), wait, limit).unwrap_err();
        assert_eq!(refused, InvalidRetention::WithinWait { window: 15 * SECOND, wait, limit });
        assert!(refused.to_string().contains("15s does not outlast the 5s") && refused.to_string().contains("10s"));
        let short = Retention::new(SECOND).expect("a second");
        assert_eq!(short.outlasting(wait).window(), Some(Duration::from_millis(5_001)));
        assert_eq!(short.outlasting(Duration::ZERO), short);
        assert_eq!(Retention::forever().outlasting(wait), Retention::forever());
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

use std::time::Duration;

/// How long a key is remembered, counted from its first use by the database's clock.
///
/// Every finite window is a bet that the last retry arrives before it ends: once a key is forgotten, a request that
/// carries it executes as a new one. Choose it longer than the longest time over which anybody retries, queues and
/// brokers included, or decline the bet with [`Retention::forever`].
///
/// ```
/// use std::time::Duration;
/// use axum_idempotency::Retention;
///
/// let three_days = Retention::new(Duration::from_secs(3 * 24 * 60 * 60))?;
/// assert_eq!(Retention::default(), Retention::DAY);
/// assert!(Retention::new(Duration::ZERO).is_err());
/// # Ok::<_, axum_idempotency::InvalidRetention>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention(Option<Duration>);

impl Retention {
    /// 24 hours, the default: what Stripe and most of its kind promise.
    pub const DAY: Self = Self(Some(Duration::from_secs(24 * 60 * 60)));

    /// The longest finite window: 100 years of 365 days.
    pub const MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

    /// A window of this length, counted in whole microseconds.
    ///
    /// # Errors
    ///
    /// [`InvalidRetention`] if it is shorter than a millisecond or longer than [`MAX`](Self::MAX).
    pub fn new(window: Duration) -> Result<Self, InvalidRetention> {
        if window < Duration::from_millis(1) {
            return Err(InvalidRetention::TooShort);
        }
        if window > Self::MAX {
            return Err(InvalidRetention::TooLong);
        }
        Ok(Self(Some(window)))
    }

    /// Keys are never forgotten, and the table grows with every one.
    #[must_use]
    pub const fn forever() -> Self {
        Self(None)
    }

    /// The window's length; `None` if it has no end.
    #[must_use]
    pub const fn window(self) -> Option<Duration> {
        self.0
    }

    pub(crate) fn as_micros(self) -> Option<i64> {
        self.0.and_then(|window| i64::try_from(window.as_micros()).ok())
    }
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
}

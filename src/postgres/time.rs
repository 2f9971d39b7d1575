//! Times, as PostgreSQL has them. sqlx knows them only by the types of a time crate, which is the application's to
//! choose; on the wire they are microseconds since 2000.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sqlx::{
    Encode, Postgres, Row as _, Type, ValueRef as _,
    encode::IsNull,
    error::BoxDynError,
    postgres::{
        PgArgumentBuffer, PgRow, PgTypeInfo,
        types::{Oid, PgInterval},
    },
};

use tokio::time::Instant;

use super::error::before_commit;
use crate::Error;

/// From 1970 to 2000, in microseconds.
const SINCE_1970: i64 = 946_684_800_000_000;

/// A `timestamptz`, in microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(pub(super) i64);

impl Moment {
    /// Before every other.
    pub(super) const NEVER: Self = Self(i64::MIN);

    pub(super) fn of(time: SystemTime) -> Self {
        let micros = |distance: Duration| i64::try_from(distance.as_micros()).unwrap_or(i64::MAX);
        Self(match time.duration_since(UNIX_EPOCH) {
            Ok(since) => micros(since),
            Err(before) => micros(before.duration()).saturating_neg(),
        })
    }

    /// Seconds, microseconds and so on, later.
    pub(super) fn plus(self, micros: i64) -> Self {
        Self(self.0.saturating_add(micros))
    }

    pub(super) fn to_system_time(self) -> SystemTime {
        let distance = Duration::from_micros(self.0.unsigned_abs());
        let time = if self.0 < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) };
        time.unwrap_or(UNIX_EPOCH)
    }

    /// What a column of a row holds.
    pub(super) fn read(row: &PgRow, column: &str) -> Result<Option<Self>, Error> {
        let value = row.try_get_raw(column).map_err(before_commit)?;
        if value.is_null() {
            return Ok(None);
        }
        let bytes = value.as_bytes().map_err(|error| before_commit(sqlx::Error::Decode(error)))?;
        let micros = bytes.try_into().map(i64::from_be_bytes);
        let micros = micros.map_err(|error| before_commit(sqlx::Error::Decode(Box::new(error))))?;
        Ok(Some(Self(micros.saturating_add(SINCE_1970))))
    }
}

impl Type<Postgres> for Moment {
    fn type_info() -> PgTypeInfo {
        const TIMESTAMPTZ: Oid = Oid(1184);

        PgTypeInfo::with_oid(TIMESTAMPTZ)
    }
}

impl Encode<'_, Postgres> for Moment {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        Encode::<Postgres>::encode_by_ref(&self.0.saturating_sub(SINCE_1970), buffer)
    }
}

/// So much later; a time that a clock may not hold is cut to a year.
pub(crate) fn later(now: Instant, by: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

    now.checked_add(by.min(YEAR)).unwrap_or(now)
}

/// An `interval` of so many microseconds.
pub(super) fn interval(microseconds: i64) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(moment: Moment) -> i64 {
        let mut buffer = PgArgumentBuffer::default();
        assert!(matches!(moment.encode_by_ref(&mut buffer), Ok(IsNull::No)));
        i64::from_be_bytes(buffer[..].try_into().expect("eight bytes"))
    }

    #[test]
    fn f82_the_first_and_the_last_times_that_there_are_come_to_no_harm() {
        // PostgreSQL has -infinity where a timestamp is the least number.
        assert_eq!(encoded(Moment::NEVER), i64::MIN);
        assert_eq!(encoded(Moment(0)), -SINCE_1970);
        assert_eq!(encoded(Moment(i64::MAX)), i64::MAX - SINCE_1970);
        let micro = Duration::from_micros(1);
        for time in [UNIX_EPOCH, UNIX_EPOCH + micro, UNIX_EPOCH - micro, UNIX_EPOCH - Duration::from_secs(1 << 40)] {
            assert_eq!(Moment::of(time).to_system_time(), time);
        }
        for moment in [Moment::NEVER, Moment(i64::MAX), Moment(i64::MIN + 1)] {
            // Times that the machine's clock has no word for are taken for 1970.
            assert!([moment, Moment(0), Moment(i64::MIN + 1)].contains(&Moment::of(moment.to_system_time())));
        }
        assert_eq!(Moment(i64::MAX).plus(1), Moment(i64::MAX));
        assert_eq!(Moment::NEVER.plus(-1), Moment::NEVER);
    }

    #[tokio::test]
    async fn f82_no_wait_is_too_long_for_the_clock() {
        let now = Instant::now();
        assert_eq!(later(now, Duration::ZERO), now);
        assert!(later(now, Duration::MAX) > now);
    }
}

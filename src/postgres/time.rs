//! Times, as PostgreSQL has them. sqlx knows them only by the types of a time crate, which is the application's to choose; on
//! the wire they are microseconds since 2000.

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

/// An `interval` of so many microseconds.
pub(super) fn interval(microseconds: i64) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds }
}

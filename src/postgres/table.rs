//! In which table a request's row is.

use sqlx::{Postgres, postgres::PgArguments, query::Query};

use super::time::Moment;

/// Each statement about rows exists once for each table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    /// `idempotency.keys`.
    Keys,
    /// `idempotency.timed_keys`, in the partition of keys that were made then: microseconds since 1970.
    TimedKeys(i64),
}

/// A statement about rows, for `idempotency.keys` and for `idempotency.timed_keys`.
pub(super) type Statements = [&'static str; 2];

impl Table {
    pub(super) fn of(self, statements: &Statements) -> &'static str {
        let [keys, timed_keys] = statements;
        match self {
            Self::Keys => keys,
            Self::TimedKeys(_) => timed_keys,
        }
    }

    /// Binds the time as the next parameter, where the statement has it.
    pub(super) fn bind(self, query: Query<'_, Postgres, PgArguments>) -> Query<'_, Postgres, PgArguments> {
        match self {
            Self::Keys => query,
            Self::TimedKeys(born) => query.bind(Moment(born)),
        }
    }
}

//! In which table a request's row is.

use sqlx::{Postgres, postgres::PgArguments, query::Query};

/// Each statement about rows exists once for each table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// `idempotency.keys`.
    Keys,
    /// `idempotency.timed_keys`, in the partition of keys that were born then: microseconds since 1970.
    TimedKeys(i64),
}

/// A statement about rows, for `idempotency.keys` and for `idempotency.timed_keys`.
pub(super) type Statements = [&'static str; 2];

impl Place {
    pub(super) fn of(self, statements: &Statements) -> &'static str {
        let [keys, timed_keys] = statements;
        match self {
            Self::Keys => keys,
            Self::TimedKeys(_) => timed_keys,
        }
    }

    /// Binds the time as the last parameter, where the statement has it.
    pub(super) fn bind(self, query: Query<'_, Postgres, PgArguments>) -> Query<'_, Postgres, PgArguments> {
        match self {
            Self::Keys => query,
            Self::TimedKeys(born) => query.bind(born),
        }
    }
}

/// Where a row is, as the end of a condition: its key, and in the partitioned table its time as parameter `$born`.
macro_rules! at_key {
    (keys) => {
        " where scope = $1 and operation = $2 and key = $3 "
    };
    (timed_keys, $born:literal) => {
        concat!(
            " where scope = $1 and operation = $2 and key = $3 and born_at = 'epoch'::timestamptz + ",
            $born,
            " * interval '1 microsecond' "
        )
    };
}

pub(super) use at_key;

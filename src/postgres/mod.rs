//! Floor 2, lower half: the only SQL of the crate.

pub(crate) mod claim;
mod claim_timed;
pub(crate) mod error;
pub(crate) mod lookup;
pub(crate) mod partitions;
mod place;
pub(crate) mod prune;
pub(crate) mod record;
pub(crate) mod row;
pub(crate) mod schema;
pub(crate) mod stats;
pub(crate) mod transaction;
#[cfg(feature = "axum")]
pub(crate) mod unkeyed;
pub(crate) mod windows;

pub(crate) use self::place::Place;

/// Whether statements stay prepared on their connection, which a pooler that works by transactions does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prepared {
    Kept,
    Once,
}

impl Prepared {
    fn kept(self) -> bool {
        self == Self::Kept
    }
}

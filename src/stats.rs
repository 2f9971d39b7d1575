use std::time::SystemTime;

/// The result of [`Idempotency::prune`](crate::Idempotency::prune) or of a [`Pruner`](crate::Pruner).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// The number of expired keys that were deleted.
    pub deleted: u64,
    /// The number of responses that were dropped, because they are not replayed any more. Their keys stay.
    pub responses_dropped: u64,
    /// The number of partitions that were made ahead.
    pub partitions_made: u64,
    /// The number of partitions that were dropped, with all keys in them.
    pub partitions_dropped: u64,
}

impl Pruned {
    /// Returns how many rows were deleted or changed, without those in dropped partitions.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.deleted.saturating_add(self.responses_dropped)
    }

    pub(crate) fn add(&mut self, other: Self) {
        for (sum, more) in [
            (&mut self.deleted, other.deleted),
            (&mut self.responses_dropped, other.responses_dropped),
            (&mut self.partitions_made, other.partitions_made),
            (&mut self.partitions_dropped, other.partitions_dropped),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

/// The contents of the tables; see [`Idempotency::stats`](crate::Idempotency::stats).
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// The share of a table's pages that was read, from 0 to 1; with two tables, the smaller share. At 1 all numbers of
    /// rows are exact; otherwise each is the number of rows that were read, divided by the share of their table.
    pub sampled: f64,
    /// The numbers for each operation, the one with the most rows first. An operation with few rows may be missing from a
    /// sample.
    pub operations: Vec<OperationStats>,
    /// The exact number of expired keys that have not been deleted yet, up to 10,000. If it stays high, no pruner is
    /// running, or it does not keep up. Keys in partitions are not counted: they are dropped with their partition.
    pub overdue: u64,
    /// The time of the first use of the oldest key that was read.
    pub oldest: Option<SystemTime>,
    /// The size of the tables on disk without their indexes, in bytes.
    pub table_bytes: u64,
    /// The size of the indexes on disk, in bytes.
    pub index_bytes: u64,
}

/// The result of [`erase_scope`](crate::Idempotency::erase_scope).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Erased {
    /// The number of keys that were deleted.
    pub keys: u64,
    /// The number of keys of the owner that are still there, up to a thousand in each table: they had expired and are
    /// being used again, or were used during the erasure.
    pub remaining: u64,
}

/// The contents of the tables for one operation.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct OperationStats {
    /// The operation's name.
    pub operation: String,
    /// The number of keys whose stored response is replayed.
    pub live: u64,
    /// The number of keys whose response is not kept, and that still refuse duplicates.
    pub tombstones: u64,
    /// The number of keys that have expired and are still in the table.
    pub expired: u64,
    /// The size of the rows, in bytes, without indexes.
    pub bytes: u64,
    /// The time of the first use of the oldest key that was read.
    pub oldest: Option<SystemTime>,
}

impl Stats {
    /// Returns the number of keys of all operations whose stored response is replayed.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.operations.iter().map(|operation| operation.live).sum()
    }

    /// Returns the number of keys of all operations whose response is not kept.
    #[must_use]
    pub fn tombstones(&self) -> u64 {
        self.operations.iter().map(|operation| operation.tombstones).sum()
    }
}

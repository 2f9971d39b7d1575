use std::time::SystemTime;

/// What [`Idempotency::prune`](crate::Idempotency::prune) or a [`Pruner`](crate::Pruner) did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// Expired keys that were deleted.
    pub deleted: u64,
    /// Answers that were dropped, because they are not replayed any more. Their keys stay.
    pub responses_dropped: u64,
    /// Partitions that were made ahead.
    pub partitions_made: u64,
    /// Partitions that were dropped, with all that was in them.
    pub partitions_dropped: u64,
}

impl Pruned {
    /// How many rows were deleted or changed, without those in dropped partitions.
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

/// What lies in the tables; see [`Idempotency::stats`](crate::Idempotency::stats).
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Which share of a table's pages was looked at, from 0 to 1, where that was least. At 1 all numbers of rows are exact;
    /// otherwise they are what was seen, divided by its table's share.
    pub sampled: f64,
    /// By operation, the one with the most rows first. One with few rows may be missing from a sample.
    pub operations: Vec<OperationStats>,
    /// Expired keys that nobody has deleted yet, exactly, up to 10,000: if this stays high, no pruner is running, or it
    /// does not keep up. Those in partitions are not counted: they go with their partition.
    pub overdue: u64,
    /// When the oldest key that was looked at was first used.
    pub oldest: Option<SystemTime>,
    /// What the tables take on disk without their indexes, in bytes.
    pub table_bytes: u64,
    /// What their indexes take, in bytes.
    pub index_bytes: u64,
}

/// What [`erase_scope`](crate::Idempotency::erase_scope) has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Erased {
    /// How many keys were deleted.
    pub keys: u64,
    /// How many keys of the owner are there all the same, up to a thousand in each table: they are being used again after they
    /// had expired, or have been used since.
    pub remaining: u64,
}

/// What lies in the tables of one operation.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct OperationStats {
    /// Its name.
    pub operation: String,
    /// Keys that are answered with what was stored.
    pub live: u64,
    /// Keys whose answer is not kept, and that still refuse duplicates.
    pub tombstones: u64,
    /// Keys that have expired and are still there.
    pub expired: u64,
    /// What their rows take, in bytes, without indexes.
    pub bytes: u64,
    /// When the oldest that was looked at was first used.
    pub oldest: Option<SystemTime>,
}

impl Stats {
    /// Keys that are answered with what was stored, of all operations.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.operations.iter().map(|operation| operation.live).sum()
    }

    /// Keys whose answer is not kept, of all operations.
    #[must_use]
    pub fn tombstones(&self) -> u64 {
        self.operations.iter().map(|operation| operation.tombstones).sum()
    }
}

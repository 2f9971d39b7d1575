use std::{
    sync::{Arc, atomic::AtomicI64},
    time::Duration,
};

use sqlx::PgConnection;
use tokio::sync::{Mutex, Semaphore};

use super::{Backlog, Claim, ClaimUsing, Concurrency, attempt, claim, claim_using, in_flight::InFlight, timing};
use crate::{
    Erased, Error, Fingerprint, IdempotencyKey, IdempotentRequest, KeyStatus, Operation, Pruned, Retention, Scope,
    Stats, StoredResponse, TimestampedKeys,
    postgres::{self, Connections, Table, begin::Begin, claim::Timing, record::Row, transaction::Transaction},
};

/// The entry point: a pool, and the settings for keys. Cloning is cheap and shares the connections.
///
/// Pass it to an `IdempotencyLayer` for HTTP, or use it directly, for instance in a consumer of a message broker
/// that delivers more than once:
///
/// ```no_run
/// use axum_idempotency::{Error, Fingerprint, Idempotency, IdempotencyKey, IdempotentRequest, Operation, Scope};
///
/// # async fn consume(pool: sqlx::PgPool, id: &str, payload: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
/// let idempotency = Idempotency::new(&pool);
/// let message = IdempotentRequest::new(
///     Scope::global(),
///     Operation::new("order.import"),
///     IdempotencyKey::new(id)?,
///     Fingerprint::of([payload]),
/// );
/// let ran = idempotency
///     .run(message, async |connection| {
///         sqlx::query("update stock set count = count - 1 where sku = 'x'").execute(connection).await?;
///         Ok::<_, Box<dyn std::error::Error>>("done".to_owned())
///     })
///     .await?;
/// assert_eq!(ran.value(), "done");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Idempotency(pub(super) Arc<Settings>);

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) connections: Connections,
    pub(super) retention: Retention,
    pub(super) timestamped_keys: Option<TimestampedKeys>,
    pub(super) concurrency: Concurrency,
    /// How long the one who executes a request may take, if that is limited.
    pub(super) handler_timeout: Duration,
    /// What the clones of this one are executing.
    pub(super) in_flight: InFlight,
    /// The right to wait inside PostgreSQL.
    pub(super) waiting: Arc<Semaphore>,
    pub(super) backlog: Backlog,
    /// The turn to note an operation's window, or to make partitions.
    pub(super) preparing: Arc<Mutex<()>>,
    /// Where the last batch that was pruned ended.
    pub(super) pruned_until: Arc<AtomicI64>,
}

impl Idempotency {
    /// What counts the attempts that go on by themselves.
    #[cfg(feature = "axum")]
    pub(crate) fn backlog(&self) -> &Backlog {
        &self.0.backlog
    }

    /// Do sessions refuse what is written outside the engine's transactions?
    #[cfg(feature = "axum")]
    pub(crate) fn has_guarded_sessions(&self) -> bool {
        self.0.connections.are_guarded()
    }

    /// Begins a transaction for a request with a key.
    pub(super) async fn begin(&self, request: &IdempotentRequest) -> Result<Transaction, Error> {
        self.0.connections.begin(Begin::Keyed, request.local_settings()).await
    }

    /// Claims the key for this request, or reports how it is already used.
    ///
    /// Dropping the future, under `select!` or a timeout, is safe: a query that is under way goes on in the background,
    /// and a claim that it makes is rolled back.
    ///
    /// # Errors
    ///
    /// If it returns an [`Error`], nothing has been claimed. The database is unreachable or not migrated; the scope is
    /// blank; the key [carries no timestamp](crate::ErrorKind::KeyWithoutTime) although it must; the row is corrupt, or
    /// was [committed without a response](crate::ErrorKind::Unanswered); or there were repeated conflicts with concurrent
    /// claims ([`Conflict`](crate::ErrorKind::Conflict)).
    pub async fn claim(&self, request: IdempotentRequest) -> Result<Claim, Error> {
        claim::claim(self, &request).await
    }

    /// Claims the key as [`claim`](Self::claim) does, inside a transaction that the caller has begun with sqlx.
    ///
    /// After [`ClaimUsing::Fresh`] the caller does the work, calls [`complete_using`](Self::complete_using) and commits,
    /// or rolls back everything. PostgreSQL refuses to commit a claim without its response (SQLSTATE 23503,
    /// `a_claim_is_committed_with_its_response`). The retention counts from the beginning of the caller's transaction, so
    /// claim early in it. Whether a key has expired is decided at the time of the claim, however long ago the transaction
    /// began.
    ///
    /// A transaction holds at most a thousand claims, since each takes an entry in the server's lock table. The next
    /// claim is refused with [`TooManyClaims`](crate::ErrorKind::TooManyClaims), and the transaction stays usable.
    ///
    /// The first claim of an operation with [timestamped keys](TimestampedKeys), and the first one of a partition, take a
    /// connection from the engine's pool for a moment.
    ///
    /// A savepoint keeps the caller's transaction usable when the wait ends without a claim. It waits inside PostgreSQL
    /// only if one of [`max_waiting_connections`](Self::max_waiting_connections) is free.
    ///
    /// Do not drop the future before its end: sqlx (0.9) rolls the whole transaction back if a savepoint is cut off.
    ///
    /// # Errors
    ///
    /// Returns [`NoTransaction`](crate::ErrorKind::NoTransaction) if there is none, and
    /// [`TooManyClaims`](crate::ErrorKind::TooManyClaims) as described above. Other errors are those of `claim`, and the
    /// transaction is lost.
    pub async fn claim_using(
        &self,
        connection: &mut PgConnection,
        request: &IdempotentRequest,
    ) -> Result<ClaimUsing, Error> {
        claim_using::claim_using(self, connection, request).await
    }

    /// Stores the response for a key that [`claim_using`](Self::claim_using) claimed in the same transaction.
    ///
    /// Make it the last statement before the commit: it fails if any statement before it failed.
    ///
    /// # Errors
    ///
    /// Returns [`TransactionAborted`](crate::ErrorKind::TransactionAborted) if a statement failed before, and
    /// [`TransactionEnded`](crate::ErrorKind::TransactionEnded) if this is not the transaction that claimed. Roll
    /// back after any error.
    pub async fn complete_using(
        &self,
        connection: &mut PgConnection,
        request: &IdempotentRequest,
        response: &StoredResponse,
    ) -> Result<(), Error> {
        let response = self.outlasting(response);
        let row = Row { guarded: false, ..attempt::row(self, request)? };
        postgres::record::record(connection, row, &response).await.map(drop)
    }

    /// Deletes up to `limit` expired rows, drops up to `limit` responses that are not replayed any more, and returns the
    /// numbers.
    ///
    /// This changes no response: an expired key counts as absent, and a response whose retention has ended as not kept,
    /// whether pruned or not. A [`Pruner`](crate::Pruner) calls it regularly.
    ///
    /// If keys are [partitioned](TimestampedKeys::partitioned), it also makes partitions ahead, and drops one in which
    /// all keys have expired, if the role owns that table. If the role does not, another role must prune it.
    ///
    /// # Errors
    ///
    /// Returns [`StoreUnavailable`](crate::ErrorKind::StoreUnavailable), [`NotMigrated`](crate::ErrorKind::NotMigrated)
    /// or another error of the database.
    pub async fn prune(&self, limit: u32) -> Result<Pruned, Error> {
        postgres::prune::prune(&self.0.connections, limit, &self.0.pruned_until).await
    }

    /// Returns the state of a key, for operators and support.
    ///
    /// It is `None` if the key was not used, has expired, or belongs to a request that is running, which is not visible
    /// before the commit. If a layer requires [timestamped keys](Self::timestamped_keys), set the same on this value.
    ///
    /// # Errors
    ///
    /// Returns [`StoreUnavailable`](crate::ErrorKind::StoreUnavailable), [`NotMigrated`](crate::ErrorKind::NotMigrated)
    /// or another error of the database; [`CorruptRow`](crate::ErrorKind::CorruptRow) if the row holds no complete
    /// response; and [`Unanswered`](crate::ErrorKind::Unanswered) if it was committed without one.
    pub async fn lookup(
        &self,
        scope: &Scope,
        operation: &Operation,
        key: &IdempotencyKey,
    ) -> Result<Option<KeyStatus>, Error> {
        // As the layer would have spelled it.
        let spelled = self.0.timestamped_keys.and_then(|keys| IdempotencyKey::new(keys.spell(key.as_str())?.0).ok());
        let key = spelled.as_ref().unwrap_or(key);
        let request = IdempotentRequest::new(scope.clone(), operation.clone(), key.clone(), Fingerprint::of([""]));
        // Where the time stands beside the key, it is not needed to find it.
        let table = timing::timing(self, &request).map_or(Table::Keys, Timing::table);
        postgres::lookup::lookup(&self.0.connections, scope, operation, key, table).await
    }

    /// Returns statistics of the tables, for dashboards and alerts.
    ///
    /// It reads about 8 MiB of each table. On larger tables the numbers of rows are estimates, from a random sample of
    /// pages.
    ///
    /// # Errors
    ///
    /// Returns [`StoreUnavailable`](crate::ErrorKind::StoreUnavailable), [`NotMigrated`](crate::ErrorKind::NotMigrated)
    /// or another error of the database.
    pub async fn stats(&self) -> Result<Stats, Error> {
        postgres::stats::stats(&self.0.connections).await
    }

    /// Deletes all keys of one owner with their responses, in batches of a thousand, and returns how many were deleted.
    ///
    /// Use it when an owner leaves, or asks for the deletion of data. Requests that the owner repeats after that execute
    /// as new, except under [timestamped keys](TimestampedKeys) from before the window.
    ///
    /// * The key of a request that is running during the erasure is stored when the request commits.
    /// * A key that has expired and is being used again at that moment is skipped, and counted in [`Erased::remaining`]:
    ///   call this again.
    /// * [Cached responses](Self::response_cache) of this process are erased too; those of other processes end with their
    ///   age.
    ///
    /// # Errors
    ///
    /// Returns [`StoreUnavailable`](crate::ErrorKind::StoreUnavailable), [`NotMigrated`](crate::ErrorKind::NotMigrated)
    /// or another error of the database; some batches may be deleted by then.
    pub async fn erase_scope(&self, scope: &Scope) -> Result<Erased, Error> {
        const BATCH: u32 = 1_000;

        self.0.in_flight.recent().forget(scope);
        let mut forgotten = 0_u64;
        loop {
            let rows = postgres::prune::erase(&self.0.connections, scope, BATCH).await?;
            forgotten = forgotten.saturating_add(rows);
            if rows < u64::from(BATCH) {
                // What was committed meanwhile may have been remembered.
                self.0.in_flight.recent().forget(scope);
                let connections = &self.0.connections;
                let mut remaining = postgres::prune::remaining(connections, scope, BATCH).await?;
                if remaining > 0 {
                    let more = postgres::prune::erase_waiting(connections, scope, BATCH).await?;
                    forgotten = forgotten.saturating_add(more);
                    remaining = postgres::prune::remaining(connections, scope, BATCH).await?;
                }
                return Ok(Erased { keys: forgotten, remaining });
            }
        }
    }
}

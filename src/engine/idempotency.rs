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

/// The entry point: a pool, and how keys are treated. Cloning is cheap and shares the connections.
///
/// Give it to an `IdempotencyLayer` for HTTP, or use it directly, for instance in a consumer of a message broker
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

    /// Begins a transaction for a request with a key.
    pub(super) async fn begin(&self, request: &IdempotentRequest) -> Result<Transaction, Error> {
        self.0.connections.begin(Begin::Keyed, request.local_settings()).await
    }

    /// Makes the key the caller's to execute under, or says who has it.
    ///
    /// Dropping the future, under `select!` or a timeout, is safe: if it is asking the database, that goes on in the
    /// background, and what it has claimed by then is rolled back.
    ///
    /// # Errors
    ///
    /// Nothing has been claimed: the database is unreachable or not migrated; the scope is blank; the key
    /// [bears no time](crate::ErrorKind::KeyWithoutTime) although it should; the row is corrupt, or was
    /// [committed without an answer](crate::ErrorKind::Unanswered); or others were faster again and again
    /// ([`Conflict`](crate::ErrorKind::Conflict)).
    pub async fn claim(&self, request: IdempotentRequest) -> Result<Claim, Error> {
        claim::claim(self, &request).await
    }

    /// As [`claim`](Self::claim), inside a transaction that the caller has begun with sqlx.
    ///
    /// After [`ClaimUsing::Fresh`] the caller does the work, calls [`complete_using`](Self::complete_using) and
    /// commits, or rolls back everything. PostgreSQL refuses to commit a claim without its response (SQLSTATE 23503,
    /// `a_claim_is_committed_with_its_response`). The window counts from the beginning of the caller's transaction: claim
    /// early in it. Whether a key has expired is a matter of when it is asked, however long ago the transaction began.
    ///
    /// A transaction holds a thousand claims at most, since each takes a place in the server's table of locks; the next
    /// one is refused with [`TooManyClaims`](crate::ErrorKind::TooManyClaims), and the transaction goes on.
    ///
    /// The first claim of an operation whose keys [bear a time](TimestampedKeys), and the first one of a partition, take a
    /// connection from the engine's pool for a moment.
    ///
    /// A savepoint keeps the caller's transaction usable when the wait ends without a claim. It waits inside PostgreSQL
    /// only if one of [`max_waiting_connections`](Self::max_waiting_connections) is free.
    ///
    /// Do not drop the future before its end: sqlx (0.9) rolls the whole transaction back if a savepoint is cut off.
    ///
    /// # Errors
    ///
    /// [`NoTransaction`](crate::ErrorKind::NoTransaction) if there is none; otherwise as for `claim`, and the
    /// transaction is lost.
    pub async fn claim_using(
        &self,
        connection: &mut PgConnection,
        request: &IdempotentRequest,
    ) -> Result<ClaimUsing, Error> {
        claim_using::claim_using(self, connection, request).await
    }

    /// Writes the answer for what [`claim_using`](Self::claim_using) claimed in the same transaction. Make it the
    /// last statement before the commit: it fails if any statement before it failed.
    ///
    /// # Errors
    ///
    /// [`TransactionAborted`](crate::ErrorKind::TransactionAborted), or
    /// [`TransactionEnded`](crate::ErrorKind::TransactionEnded) if this is not the transaction that claimed. Roll
    /// back then.
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

    /// Deletes up to `limit` expired rows, drops up to `limit` answers that are not replayed any more, and says what it
    /// did. Whether and when this happens changes no answer: an expired row counts as absent, and an answer
    /// whose window has ended as not kept. See [`Pruner`](crate::Pruner) for doing it regularly.
    ///
    /// Where keys are [partitioned](TimestampedKeys::partitioned), it also makes partitions ahead, and drops one of which
    /// everything has expired, if the role owns that table; if it does not, another one has to prune it.
    ///
    /// # Errors
    ///
    /// What the database says.
    pub async fn prune(&self, limit: u32) -> Result<Pruned, Error> {
        postgres::prune::prune(&self.0.connections, limit, &self.0.pruned_until).await
    }

    /// What became of a key; `None` if it was not used, has expired, or is being executed right now, which nobody can
    /// see before the commit. For operators and support.
    ///
    /// Where a layer says that keys [bear a time](Self::timestamped_keys), this value has to say the same.
    ///
    /// # Errors
    ///
    /// What the database says, or that the row holds no complete answer, or none at all
    /// ([`Unanswered`](crate::ErrorKind::Unanswered)).
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

    /// What lies in the tables, for an operator's page and for alerts. It reads about 8 MiB of each table: on larger ones
    /// the numbers of rows are estimates, from a random sample of pages.
    ///
    /// # Errors
    ///
    /// What the database says.
    pub async fn stats(&self) -> Result<Stats, Error> {
        postgres::stats::stats(&self.0.connections).await
    }

    /// Deletes all keys of one owner with their responses, in batches of a thousand, and says how many there were: for an
    /// owner who leaves, or asks for the deletion of data. Whatever that owner repeats executes as new, except under keys
    /// that bear a time before the window.
    ///
    /// A request that is being executed meanwhile leaves its key. A key that has expired and is just being used again is
    /// passed over, and counted in [`Erased::remaining`]: ask again. [Responses in memory](Self::response_cache) of other
    /// processes go when their age is over.
    ///
    /// # Errors
    ///
    /// What the database says; some batches may be gone.
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

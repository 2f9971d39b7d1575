//! What an [`Idempotency`] is made from, and its settings.

use std::{sync::Arc, time::Duration};

use sqlx::PgPool;
use tokio::sync::Semaphore;

use super::{Backlog, Concurrency, Idempotency, idempotency::Settings, in_flight::InFlight};
use crate::{
    Retention, StoredResponse, TimestampedKeys,
    postgres::{Connections, PoolSettings, Sending},
};

/// See [`Idempotency::client_check`].
const CLIENT_CHECK: Option<Duration> = Some(Duration::from_secs(1));

/// See [`Idempotency::statement_limit`].
const STATEMENT_LIMIT: Duration = Duration::from_secs(10);

/// More than any server takes.
const MOST_CONNECTIONS: u32 = 100_000;

impl Idempotency {
    /// Keeps keys in `pool`'s database, for 24 hours; duplicates of a running request wait for it, up to 5 seconds. The
    /// tables must be there: see [`migrate`](crate::migrate).
    ///
    /// Make it once, when the application starts, and clone it: clones know of each other's requests, and share connections.
    ///
    /// The engine opens a pool of its own, made from `pool`: the same server, role, TLS, callbacks (`after_connect` and so
    /// on), timeouts, and [as many connections](Self::max_connections), each opened when it is needed. A connection is held
    /// as long as a handler runs, so handlers and other routes that query `pool` meanwhile are never starved by it. Its
    /// sessions differ in this:
    ///
    /// * They are read-only outside the engine's transactions (`default_transaction_read_only = on`). So whatever work does
    ///   with its connection (a raw `ROLLBACK` or `COMMIT`, an error around a nested `begin()` that it swallows), nothing
    ///   that it writes after the end of its transaction is kept; it gets SQLSTATE 25006.
    /// * The server looks [every second](Self::client_check) whether a client is still there while it executes a
    ///   statement (`client_connection_check_interval`). So the key of a process that died is free within two seconds, even
    ///   if its statement would take minutes more.
    /// * Their `application_name` ends with `axum-idempotency`.
    /// * sqlx's ping before lending is left out: a BEGIN that fails closes its connection, and the next one is taken, as
    ///   long as the pool's `acquire_timeout` lets it. So a restart of the server costs no request an error.
    ///
    /// It follows `pool` when that is told to connect otherwise (`Pool::set_connect_options`), with a new password, say. The
    /// server's `max_connections` has to allow for both pools. Closing `pool` closes the engine's own as well, once
    /// what is running has ended.
    #[must_use]
    pub fn new(pool: &PgPool) -> Self {
        let connections = pool.options().get_max_connections();
        Self::of(pool, PoolSettings { shared: false, connections, client_check: CLIENT_CHECK, pooler: false })
    }

    /// As [`new`](Self::new), on `pool` itself: for a tight budget of connections. At most half of them, one at least, are
    /// used for keys at a time ([`max_connections`](Self::max_connections)), so that handlers which query `pool` besides
    /// their `Tx` make progress; with a pool of one they cannot.
    ///
    /// What is given up:
    ///
    /// * What work writes after it has ended its transaction is durable, without a stored response. It is noticed when the
    ///   work ends, and answered with [`TransactionEnded`](crate::ErrorKind::TransactionEnded).
    /// * A statement of a process that died keeps its key until the statement ends, unless the server or the role sets
    ///   `client_connection_check_interval`, and so does the backend of one that was given up.
    /// * Settings of a session that a handler leaves behind reach every user of the pool.
    #[must_use]
    pub fn sharing(pool: &PgPool) -> Self {
        let connections = (pool.options().get_max_connections() / 2).max(1);
        Self::of(pool, PoolSettings { shared: true, connections, client_check: None, pooler: false })
    }

    fn of(pool: &PgPool, settings: PoolSettings) -> Self {
        let sending = Sending { kept: true, limit: STATEMENT_LIMIT };
        Self(Arc::new(Settings {
            connections: Connections::new(pool.clone(), settings, sending),
            retention: Retention::default(),
            timestamped_keys: None,
            concurrency: Concurrency::default(),
            handler_timeout: Duration::ZERO,
            in_flight: InFlight::default(),
            waiting: permits_for(settings.connections / 4),
            backlog: Backlog::default(),
            preparing: Arc::default(),
            pruned_until: Arc::default(),
        }))
    }

    fn with_pool(self, change: impl FnOnce(&mut PoolSettings)) -> Self {
        self.with(|settings| settings.connections = settings.connections.with_settings(change))
    }

    /// How many connections the engine may hold at a time. Default: as many as the application's pool has; where that is
    /// [shared](Self::sharing), half of them. One at least; on a shared pool no more than it has.
    ///
    /// Set it before the value is cloned: it makes another pool. It also sets
    /// [`max_waiting_connections`](Self::max_waiting_connections) to a quarter.
    #[must_use]
    pub fn max_connections(self, connections: u32) -> Self {
        let all = self.pool().options().get_max_connections();
        let shared = self.0.connections.settings().shared;
        let connections = connections.clamp(1, if shared { all } else { u32::MAX }).min(MOST_CONNECTIONS);
        self.with_pool(|pool| pool.connections = connections).max_waiting_connections(connections / 4)
    }

    /// How long a single statement of the engine's may take: BEGIN, look-ups, claims that do not wait, the response's
    /// UPDATE, COMMIT, pruning, statistics. Default: 10 seconds, longer than any of them should take, shorter than most
    /// clients wait. A millisecond at least. A handler's own statements are not among them.
    ///
    /// A statement that is not answered by then is given up, its connection is closed, and the error is
    /// [`StoreUnavailable`](crate::ErrorKind::StoreUnavailable); for a COMMIT, which may have happened, it is
    /// [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown). A claim that waits for another process gets two seconds more
    /// than it may [wait](Self::concurrency), and a rollback one second.
    #[must_use]
    pub fn statement_limit(self, limit: Duration) -> Self {
        let limit = limit.max(Duration::from_millis(1));
        self.with(|settings| settings.connections = settings.connections.with_sending(|sending| sending.limit = limit))
    }

    /// After what time the server looks whether a client is still there while it executes a statement, on sessions of the
    /// engine's own pool (`client_connection_check_interval`, PostgreSQL 14 and later). Default: one second. `None`
    /// leaves it to the server, for platforms that do not have it, such as Windows. A connection that is closed while the
    /// server may be busy on it counts for twice as long.
    #[must_use]
    pub fn client_check(self, interval: impl Into<Option<Duration>>) -> Self {
        let interval = interval.into();
        self.with_pool(|pool| pool.client_check = interval)
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// How long keys are remembered. Default: [`Retention::DAY`]. Rows that exist keep the window they began with. Where
    /// keys [bear a time](Self::timestamped_keys), it says only how long responses are replayed, if that is shorter.
    ///
    /// A duplicate that has [waited](Self::concurrency) must still find the response. So what is not longer than a
    /// duplicate may wait and, behind a layer, a handler [may take](crate::IdempotencyLayer::handler_timeout), counts as a
    /// millisecond more than both together; [`IdempotencyLayer`](crate::IdempotencyLayer) says so once, at `WARN`.
    #[must_use]
    pub fn retention(self, retention: Retention) -> Self {
        self.with(|settings| settings.retention = retention)
    }

    /// Keys bear a time: those that are too old to be remembered are refused, and none is executed twice, without any
    /// limit in time. Default: they do not. A window that is too short counts as longer, as for
    /// [`retention`](Self::retention).
    #[must_use]
    pub fn timestamped_keys(self, keys: impl Into<Option<TimestampedKeys>>) -> Self {
        let keys = keys.into();
        self.with(|settings| settings.timestamped_keys = keys)
    }

    /// What happens to duplicates of a running request. Default: [`Concurrency::Wait`] for 5 seconds.
    #[must_use]
    pub fn concurrency(self, concurrency: Concurrency) -> Self {
        self.with(|settings| settings.concurrency = concurrency)
    }

    /// The one who executes a request takes no longer than this; zero if that is not limited.
    #[cfg(feature = "axum")]
    pub(crate) fn with_handler_timeout(self, limit: Duration) -> Self {
        self.with(|settings| settings.handler_timeout = limit)
    }

    /// The longest that a duplicate may have to wait for a response, if that is limited.
    fn longest_execution(&self) -> Duration {
        self.0.handler_timeout.saturating_add(self.0.concurrency.longest_wait())
    }

    /// The retention that counts (R60).
    pub(crate) fn retention_in_force(&self) -> Retention {
        self.0.retention.outlasting(self.longest_execution())
    }

    /// Likewise for keys that bear a time.
    pub(crate) fn keys_in_force(&self) -> Option<TimestampedKeys> {
        self.0.timestamped_keys.map(|keys| keys.outlasting(self.longest_execution()))
    }

    /// Is more kept than was asked for?
    #[cfg(feature = "axum")]
    pub(crate) fn is_raised(&self) -> bool {
        self.keys_in_force() != self.0.timestamped_keys
            || (self.0.timestamped_keys.is_none() && self.retention_in_force() != self.0.retention)
    }

    /// A response whose own retention outlasts the wait of a duplicate.
    pub(super) fn outlasting(&self, response: &StoredResponse) -> StoredResponse {
        let response = response.clone();
        match response.retention() {
            None => response,
            Some(own) => response.with_retention(own.outlasting(self.longest_execution())),
        }
    }

    #[cfg(feature = "axum")]
    pub(crate) fn keys(&self) -> Option<TimestampedKeys> {
        self.0.timestamped_keys
    }

    /// Answers that this process has committed are kept in its memory as well, up to so many bytes and no longer than
    /// `age`, and are replayed from there without asking the database. Default: none are.
    ///
    /// What is stored never changes, and an answer is not kept beyond its window; so what a client can notice is that an
    /// answer which was erased elsewhere, by [`erase_scope`](Self::erase_scope) in another process or by hand, is
    /// replayed for up to `age` more. A few seconds are enough for most retries. Answers of
    /// [`discard_responses`](crate::IdempotencyLayer::discard_responses) routes are not kept here either.
    ///
    /// It counts for all clones of this value. An answer larger than half of `bytes` is not kept. `bytes` covers what is
    /// kept with it as well; body and fields are copied, so that nothing larger stays in memory for their sake. The age
    /// counts by the wall clock too, so that a machine that was suspended replays nothing that is too old.
    #[must_use]
    pub fn response_cache(self, bytes: usize, age: Duration) -> Self {
        self.0.in_flight.recent().limit(bytes, age);
        self
    }

    /// How many of the pool's connections may wait inside PostgreSQL at a time, each for a request that another process
    /// is executing. Default: a quarter of the pool; one at least.
    ///
    /// Duplicates within a process wait for each other without a connection and are not counted. Those beyond the
    /// limit wait in the process for a place, as long as [`Concurrency`] says.
    #[must_use]
    pub fn max_waiting_connections(self, connections: u32) -> Self {
        self.with(|settings| settings.waiting = permits_for(connections))
    }

    /// For a pool that connects through a pooler which lends its sessions for one transaction at a time, such as PgBouncer
    /// in transaction mode: no statement of this crate stays prepared, and the engine's own pool connects without the
    /// settings that such a pooler refuses. Default: they stay prepared, which is faster.
    ///
    /// Sessions belong to nobody there, so they are not read-only outside the engine's transactions, and what is said at
    /// [`sharing`](Self::sharing) about work that ends its transaction, and about processes that die, holds here too.
    ///
    /// PgBouncer also has to be told `ignore_startup_parameters = extra_float_digits`, which sqlx sends. Run
    /// [`migrate`](crate::migrate) over a direct connection.
    ///
    /// The application's own statements need `persistent(false)` on every query, and to be inside a transaction: sqlx names
    /// its prepared statements, and behind such a pooler one client's name can run another one's statement; without a
    /// transaction even the unnamed one can.
    #[must_use]
    pub fn transaction_pooler(self, pooler: bool) -> Self {
        self.with(|settings| settings.connections = settings.connections.with_sending(|sending| sending.kept = !pooler))
            .with_pool(|pool| pool.pooler = pooler)
    }

    /// The application's pool, which it was made with.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        self.0.connections.application()
    }
}

fn permits_for(connections: u32) -> Arc<Semaphore> {
    let permits = usize::try_from(connections).unwrap_or(usize::MAX);
    Arc::new(Semaphore::new(permits.clamp(1, Semaphore::MAX_PERMITS)))
}

//! The constructors and the settings of [`Idempotency`].

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
    /// Keeps keys in `pool`'s database, for 24 hours; duplicates of a running request wait for it, up to 5 seconds.
    ///
    /// Make the tables first: see [`migrate`](crate::migrate). Make this value once, when the application starts, and
    /// clone it: clones know of each other's requests, and share connections.
    ///
    /// The engine opens a second pool, with the server, role, TLS, callbacks (`after_connect` and so on) and timeouts of
    /// `pool`, and [the same number of connections](Self::max_connections), each opened when it is needed. A connection
    /// is held as long as a handler runs; with a second pool this never starves handlers and other routes that query
    /// `pool`. The sessions of the second pool differ in these points:
    ///
    /// * They are read-only outside the engine's transactions (`default_transaction_read_only = on`). So no write after
    ///   the end of the transaction is kept, whatever the work does with its connection (a raw `ROLLBACK` or `COMMIT`, an
    ///   ignored error of a nested `begin()`); such a write fails with SQLSTATE 25006.
    /// * While the server executes a statement, it checks [every second](Self::client_check) whether the client is still
    ///   connected (`client_connection_check_interval`). So the key of a process that died is free within two seconds, even
    ///   if its statement would take minutes more.
    /// * Their `application_name` ends with `axum-idempotency`.
    /// * sqlx's ping before lending is left out. If BEGIN fails, its connection is closed and the next one is taken,
    ///   within the pool's `acquire_timeout`. So a restart of the server causes no failed requests.
    ///
    /// The second pool follows changes of `pool`'s connect options (`Pool::set_connect_options`), such as a new password.
    /// The server's `max_connections` must allow for both pools. Closing `pool` closes the second pool as well, once
    /// running requests have ended.
    #[must_use]
    pub fn new(pool: &PgPool) -> Self {
        let connections = pool.options().get_max_connections();
        Self::of(pool, PoolSettings { shared: false, connections, client_check: CLIENT_CHECK, pooler: false })
    }

    /// Keeps keys as [`new`](Self::new) does, but uses `pool` itself, for a small budget of connections.
    ///
    /// At most half of the connections, but at least one, are used for keys at a time
    /// ([`max_connections`](Self::max_connections)), so that handlers that query `pool` besides their `Tx` make progress;
    /// with a pool of one they cannot. A shared pool has these disadvantages:
    ///
    /// * Writes of the work after the end of its transaction are durable, without a stored response. The engine detects
    ///   them when the work ends, and returns [`TransactionEnded`](crate::ErrorKind::TransactionEnded).
    /// * The statement of a process that died keeps its key until the statement ends, unless the server or the role sets
    ///   `client_connection_check_interval`. So does the backend of a statement that the engine has given up.
    /// * Session settings that a handler leaves behind reach every user of the pool.
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

    /// Sets how many connections the engine may hold at a time.
    ///
    /// Default: as many as the application's pool has; on a [shared pool](Self::sharing), half of them. The minimum is
    /// one; the maximum on a shared pool is the size of that pool. Set it before the value is cloned, since it makes
    /// another pool. It also sets [`max_waiting_connections`](Self::max_waiting_connections) to a quarter.
    #[must_use]
    pub fn max_connections(self, connections: u32) -> Self {
        let all = self.pool().options().get_max_connections();
        let shared = self.0.connections.settings().shared;
        let connections = connections.clamp(1, if shared { all } else { u32::MAX }).min(MOST_CONNECTIONS);
        self.with_pool(|pool| pool.connections = connections).max_waiting_connections(connections / 4)
    }

    /// Sets how long a single statement of the engine may take: BEGIN, look-ups, claims that do not wait, the response's
    /// UPDATE, COMMIT, pruning, statistics.
    ///
    /// Default: 10 seconds, longer than any of them should take, and shorter than most clients wait. The minimum is a
    /// millisecond. It does not apply to a handler's own statements.
    ///
    /// A statement that takes longer is given up, its connection is closed, and the error is
    /// [`StoreUnavailable`](crate::ErrorKind::StoreUnavailable); for a COMMIT, which may have happened, it is
    /// [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown). A claim that waits for another process may take two seconds
    /// more than its [wait](Self::concurrency), and a rollback one second.
    #[must_use]
    pub fn statement_limit(self, limit: Duration) -> Self {
        let limit = limit.max(Duration::from_millis(1));
        self.with(|settings| settings.connections = settings.connections.with_sending(|sending| sending.limit = limit))
    }

    /// Sets how often the server checks whether the client is still connected while it executes a statement.
    ///
    /// It applies to sessions of the engine's own pool (`client_connection_check_interval`, PostgreSQL 14 and later).
    /// Default: one second. `None` leaves the server's setting, for platforms that do not have it, such as Windows. A
    /// connection that is closed while the server may be busy on it counts against
    /// [`max_connections`](Self::max_connections) for twice this time.
    #[must_use]
    pub fn client_check(self, interval: impl Into<Option<Duration>>) -> Self {
        let interval = interval.into();
        self.with_pool(|pool| pool.client_check = interval)
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Sets how long keys are kept. Default: [`Retention::DAY`].
    ///
    /// Existing rows keep the retention that they were stored with. For [timestamped keys](Self::timestamped_keys) it
    /// sets only how long responses are replayed, if that is shorter.
    ///
    /// A duplicate that has [waited](Self::concurrency) must still find the response. So a retention that is not longer
    /// than the wait of a duplicate and, behind a layer, the
    /// [handler's timeout](crate::IdempotencyLayer::handler_timeout) together is raised to 1 ms more than their sum;
    /// [`IdempotencyLayer`](crate::IdempotencyLayer) says so once, at `WARN`.
    #[must_use]
    pub fn retention(self, retention: Retention) -> Self {
        self.with(|settings| settings.retention = retention)
    }

    /// Requires timestamped keys: a key that is older than the window is refused, and no key is executed twice, without
    /// any limit in time.
    ///
    /// Default: `None`, keys without timestamps. A window that is too short is raised, as for
    /// [`retention`](Self::retention).
    #[must_use]
    pub fn timestamped_keys(self, keys: impl Into<Option<TimestampedKeys>>) -> Self {
        let keys = keys.into();
        self.with(|settings| settings.timestamped_keys = keys)
    }

    /// Sets what happens to duplicates of a running request. Default: [`Concurrency::Wait`] for 5 seconds.
    #[must_use]
    pub fn concurrency(self, concurrency: Concurrency) -> Self {
        self.with(|settings| settings.concurrency = concurrency)
    }

    /// Sets how long the execution of a request may take; zero means no limit.
    #[cfg(feature = "axum")]
    pub(crate) fn with_handler_timeout(self, limit: Duration) -> Self {
        self.with(|settings| settings.handler_timeout = limit)
    }

    /// Returns the sum of the handler's timeout and the wait of a duplicate.
    fn longest_execution(&self) -> Duration {
        self.0.handler_timeout.saturating_add(self.0.concurrency.longest_wait())
    }

    /// Returns the retention, raised if it is too short.
    pub(crate) fn retention_in_force(&self) -> Retention {
        self.0.retention.outlasting(self.longest_execution())
    }

    /// Returns the timestamped keys, with the window raised if it is too short.
    pub(crate) fn keys_in_force(&self) -> Option<TimestampedKeys> {
        self.0.timestamped_keys.map(|keys| keys.outlasting(self.longest_execution()))
    }

    /// Returns whether the retention or the window was raised.
    #[cfg(feature = "axum")]
    pub(crate) fn is_raised(&self) -> bool {
        self.keys_in_force() != self.0.timestamped_keys
            || (self.0.timestamped_keys.is_none() && self.retention_in_force() != self.0.retention)
    }

    /// Returns the response with its own retention raised if it is too short.
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

    /// Also keeps responses that this process has committed in its memory, up to `bytes` and no longer than `age`.
    ///
    /// They are replayed from there without a query. Default: no response is kept in memory.
    ///
    /// A stored response never changes, and is not kept in memory beyond its retention. The only difference for a client
    /// is that a response which was erased elsewhere, by [`erase_scope`](Self::erase_scope) in another process or by
    /// hand, is replayed for up to `age` more. A few seconds are enough for most retries. Responses of
    /// [`discard_responses`](crate::IdempotencyLayer::discard_responses) routes are not kept here either.
    ///
    /// The setting applies to all clones of this value. A response larger than half of `bytes` is not kept. `bytes`
    /// includes the data that is kept with a response; body and fields are copied, so that they do not keep larger
    /// buffers in memory. The age is measured by the wall clock too, so that a machine that was suspended replays no
    /// response that is too old.
    #[must_use]
    pub fn response_cache(self, bytes: usize, age: Duration) -> Self {
        self.0.in_flight.recent().limit(bytes, age);
        self
    }

    /// Sets how many of the pool's connections may wait inside PostgreSQL at a time, each for a request that another process
    /// is executing. Default: a quarter of the pool. The minimum is one.
    ///
    /// Duplicates within a process wait for each other without a connection and are not counted. Requests beyond the
    /// limit wait in the process for a permit, as long as [`Concurrency`] allows.
    #[must_use]
    pub fn max_waiting_connections(self, connections: u32) -> Self {
        self.with(|settings| settings.waiting = permits_for(connections))
    }

    /// Sets whether the pool connects through a pooler that lends its sessions for one transaction at a time, such as
    /// PgBouncer in transaction mode.
    ///
    /// No statement of this crate then stays prepared, and the engine's own pool connects without the settings that such
    /// a pooler refuses. Default: `false`; statements stay prepared, which is faster.
    ///
    /// No client has a session of its own there, so sessions are not read-only outside the engine's transactions. The
    /// disadvantages of [`sharing`](Self::sharing) for work that ends its transaction, and for processes that die, apply
    /// too.
    ///
    /// PgBouncer also needs `ignore_startup_parameters = extra_float_digits`, since sqlx sends that parameter. Run
    /// [`migrate`](crate::migrate) over a direct connection.
    ///
    /// The application's own statements need `persistent(false)` on every query, and must be inside a transaction: sqlx
    /// names its prepared statements, and behind such a pooler the name of one client can run the statement of another;
    /// outside a transaction even the unnamed statement can.
    #[must_use]
    pub fn transaction_pooler(self, pooler: bool) -> Self {
        self.with(|settings| settings.connections = settings.connections.with_sending(|sending| sending.kept = !pooler))
            .with_pool(|pool| pool.pooler = pooler)
    }

    /// Returns the application's pool, from which this value was made.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        self.0.connections.application()
    }
}

fn permits_for(connections: u32) -> Arc<Semaphore> {
    let permits = usize::try_from(connections).unwrap_or(usize::MAX);
    Arc::new(Semaphore::new(permits.clamp(1, Semaphore::MAX_PERMITS)))
}

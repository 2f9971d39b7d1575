//! Where connections come from: a pool of the engine's own, or the application's.

use std::{
    fmt,
    pin::pin,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use sqlx::{
    ConnectOptions as _, Connection as _, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::{
    runtime::Handle,
    sync::{Semaphore, oneshot},
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    Sending,
    begin::Begin,
    error::{at_begin, before_commit, is_full},
    lent::Lent,
    sql::sql,
    time::later,
    transaction::Transaction,
};
use crate::{
    Error, LocalSettings,
    error::{Connection, Unavailable},
    unless::unless,
};

const IS_SERIALIZABLE: &str = sql!("is_serializable");

/// How long it may take to find out why no connection can be opened.
const DIAGNOSIS: Duration = Duration::from_secs(2);

/// However late a request gets the right to a connection, it may try so long to open one.
const LEAST_TRY: Duration = Duration::from_secs(1);

/// The pauses between two tries to reach a server that is not there: first, and longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// What a [`Connections`] is made from. A change makes another pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolSettings {
    /// Whether the application's pool is used.
    pub(crate) shared: bool,
    /// How many connections the engine may hold at a time.
    pub(crate) connections: u32,
    /// After what time the server looks whether a client is still there while it executes a statement.
    pub(crate) client_check: Option<Duration>,
    /// Whether a pooler lends the server's sessions for one transaction at a time, so that no client owns them.
    pub(crate) pooler: bool,
}

impl PoolSettings {
    /// Do sessions refuse what is written outside the engine's transactions?
    fn guarded(self) -> bool {
        !self.shared && !self.pooler
    }
}

/// The engine's connections. Cloning shares them.
#[derive(Clone)]
pub(crate) struct Connections {
    source: Arc<Source>,
    sending: Sending,
}

struct Source {
    application: PgPool,
    settings: PoolSettings,
    /// Opened when a connection is first needed: that is inside a runtime, and opens none before.
    own: OnceLock<Own>,
    /// The right to a connection. One that was closed while the server may still be busy on it keeps its slot until the
    /// server has noticed, so that there are never more backends than slots.
    slots: Arc<Semaphore>,
    /// The right to find out why no connection can be opened.
    diagnosis: Semaphore,
    serializable: OnceLock<bool>,
}

struct Own {
    pool: PgPool,
    /// What the application's pool connected with when this one last looked.
    follows: Mutex<Arc<PgConnectOptions>>,
    /// Gone with the value: then no task has to wait any more for the application to close its pool.
    _alive: oneshot::Sender<()>,
}

impl Connections {
    pub(crate) fn new(application: PgPool, settings: PoolSettings, sending: Sending) -> Self {
        let slots = usize::try_from(settings.connections).unwrap_or(usize::MAX).clamp(1, Semaphore::MAX_PERMITS);
        Self {
            source: Arc::new(Source {
                application,
                settings,
                own: OnceLock::new(),
                slots: Arc::new(Semaphore::new(slots)),
                diagnosis: Semaphore::new(1),
                serializable: OnceLock::new(),
            }),
            sending,
        }
    }

    /// The same with other settings, and a pool of its own.
    pub(crate) fn with_settings(&self, change: impl FnOnce(&mut PoolSettings)) -> Self {
        let mut settings = self.source.settings;
        change(&mut settings);
        Self::new(self.source.application.clone(), settings, self.sending)
    }

    /// The same connections, on which statements are sent otherwise.
    pub(crate) fn with_sending(&self, change: impl FnOnce(&mut Sending)) -> Self {
        let mut this = self.clone();
        change(&mut this.sending);
        this
    }

    pub(crate) fn application(&self) -> &PgPool {
        &self.source.application
    }

    pub(crate) fn settings(&self) -> PoolSettings {
        self.source.settings
    }

    pub(crate) fn sending(&self) -> Sending {
        self.sending
    }

    /// Do sessions refuse what is written outside the engine's transactions?
    pub(crate) fn are_guarded(&self) -> bool {
        self.source.settings.guarded()
    }

    /// Finds out, once, whether transactions of these sessions are serializable unless they say otherwise. Only PostgreSQL
    /// itself has what is done about it.
    pub(crate) async fn get_to_know(&self, transaction: &mut Transaction) -> Result<(), Error> {
        if self.source.serializable.get().is_some() {
            return Ok(());
        }
        let asked = sqlx::query_as(IS_SERIALIZABLE).persistent(false).fetch_one(transaction.connection());
        let asked = self.sending.ask(asked).await;
        let (isolation, version): (String, String) = transaction.note(asked)?;
        let postgresql = version.starts_with("PostgreSQL ") && !version.contains("-YB-");
        let serializable = isolation == "serializable" && postgresql;
        self.source.serializable.get_or_init(|| serializable);
        Ok(())
    }

    /// Are transactions serializable, as far as that is known?
    pub(crate) fn are_serializable(&self) -> bool {
        self.source.serializable.get().copied().unwrap_or_default()
    }

    /// Takes a connection, to do something else with it than to begin.
    pub(crate) async fn lend(&self) -> Result<Lent, Error> {
        self.source.lend(self.source.deadline()).await
    }

    /// Begins a transaction. A connection that fails then is closed and the next one taken, as long as the pool's acquire
    /// timeout lets it: the BEGIN is the sign of life for which sqlx would have sent a ping.
    pub(crate) async fn begin(&self, begin: Begin, settings: &LocalSettings) -> Result<Transaction, Error> {
        let sql = begin.sql(self.are_guarded(), settings)?;
        let deadline = self.source.deadline();
        let (mut pause, longest) = PAUSES;
        loop {
            let fresh = self.source.pool()?.num_idle() == 0;
            let error = match self.source.lend(deadline).await {
                Ok(lent) => match Transaction::begin_on(lent, sql.clone(), self.sending).await {
                    Ok(transaction) => return Ok(transaction),
                    Err(error) if fresh && !is_down(&error) => return Err(error),
                    Err(error) if error.connection() == Connection::Fit => return Err(error),
                    Err(error) => error,
                },
                Err(error) if is_down(&error) => error,
                Err(error) => return Err(error),
            };
            if Instant::now() >= deadline {
                return Err(error);
            }
            if fresh {
                sleep(pause).await;
                pause = pause.saturating_mul(2).min(longest);
            }
        }
    }
}

fn is_down(error: &Error) -> bool {
    matches!(error.why_unavailable(), Some(Unavailable::Down(_)))
}

impl Source {
    fn deadline(&self) -> Instant {
        let patience = self.application.options().get_acquire_timeout();
        later(Instant::now(), patience)
    }

    fn pool(&self) -> Result<&PgPool, Error> {
        if self.settings.shared {
            return Ok(&self.application);
        }
        let runtime = Handle::try_current().map_err(|_| Error::unavailable(Unavailable::NoRuntime))?;
        let own = self.own.get_or_init(|| self.open(&runtime));
        let options = self.application.connect_options();
        let mut follows = own.follows.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&follows, &options) {
            // As an application does whose password is a token that expires.
            own.pool.set_connect_options(self.sessions(&options));
            *follows = options;
        }
        Ok(&own.pool)
    }

    /// The application's pool once more, with other sessions. Its callbacks come along.
    ///
    /// Where that pool is one of `#[sqlx::test]`, it takes its connections out of twenty for all tests of the process, and
    /// keeps each until the test ends. A second pool must not do so too, or twenty tests would wait for each other; so this
    /// one takes them from a pool that is there for nothing else.
    fn open(&self, runtime: &Handle) -> Own {
        let follows = self.application.connect_options();
        let connect = self.sessions(&follows);
        let connections = self.settings.connections;
        let all = PgPoolOptions::new().max_connections(connections).idle_timeout(None).max_lifetime(None);
        let pool = self.application.options().clone().__fair(true).parent(all.connect_lazy_with(connect.clone()));
        let pool = pool.max_connections(connections).min_connections(0).test_before_acquire(false);
        let pool = pool.connect_lazy_with(connect);
        let (alive, gone) = oneshot::channel::<()>();
        let (closed, own) = (self.application.close_event(), pool.clone());
        drop(runtime.spawn(async move {
            let gone = pin!(async move { drop(gone.await) });
            if unless(gone, closed).await.is_some() {
                own.close().await;
            }
        }));
        Own { pool, follows: Mutex::new(follows), _alive: alive }
    }

    /// How its sessions are opened.
    fn sessions(&self, application: &PgConnectOptions) -> PgConnectOptions {
        let mut options = application.clone();
        let name = application_name(options.get_application_name());
        options = options.application_name(&name);
        if self.settings.guarded() {
            options = options.options([("default_transaction_read_only", "on")]);
        }
        if let (Some(interval), false) = (self.settings.client_check, self.settings.pooler) {
            // What an integer of the server's holds, and more than nothing, which would switch it off.
            let millis = interval.as_millis().clamp(1, i32::MAX as u128);
            options = options.options([("client_connection_check_interval", format!("{millis}ms"))]);
        }
        options
    }

    async fn lend(self: &Arc<Self>, deadline: Instant) -> Result<Lent, Error> {
        let runtime = Handle::try_current().map_err(|_| Error::unavailable(Unavailable::NoRuntime))?;
        if self.application.is_closed() {
            return Err(Error::unavailable(Unavailable::Closed));
        }
        let Ok(Ok(slot)) = timeout_at(deadline, self.slots.clone().acquire_owned()).await else {
            let within = self.application.options().get_acquire_timeout();
            return Err(Error::unavailable(Unavailable::InUse { connections: self.settings.connections, within }));
        };
        let pool = self.pool()?;
        let acquired = timeout_at(deadline.max(later(Instant::now(), LEAST_TRY)), pool.acquire()).await;
        let connection = match acquired {
            Ok(Ok(connection)) => connection,
            Ok(Err(sqlx::Error::PoolTimedOut)) | Err(_) => return Err(self.diagnose(pool).await),
            Ok(Err(error)) => return Err(at_begin(error, false)),
        };
        let linger = match self.settings.client_check {
            Some(interval) if !self.settings.shared && !self.settings.pooler => interval.saturating_mul(2).as_millis(),
            _ => 0,
        };
        let linger = u32::try_from(linger).unwrap_or(u32::MAX);
        Ok(Lent::new(connection, slot, runtime, linger))
    }

    /// Why there was no connection to be had, although the engine holds fewer than it may. sqlx tries until its time is
    /// over, and does not say why.
    async fn diagnose(&self, pool: &PgPool) -> Error {
        let Ok(_right) = self.diagnosis.try_acquire() else {
            return before_commit(sqlx::Error::PoolTimedOut);
        };
        let options = pool.connect_options();
        match timeout(DIAGNOSIS, options.connect()).await {
            Ok(Ok(connection)) => {
                drop(timeout(DIAGNOSIS, connection.close()).await);
                let (connections, within) =
                    (pool.options().get_max_connections(), self.application.options().get_acquire_timeout());
                if !self.settings.shared && pool.size() < connections {
                    return Error::unavailable(Unavailable::Callback);
                }
                Error::unavailable(Unavailable::InUse { connections, within })
            }
            Ok(Err(error)) if is_full(&error) => {
                let application = self.application.options().get_max_connections();
                let own = if self.settings.shared { 0 } else { self.settings.connections };
                Error::unavailable(Unavailable::Full { application, own, source: error.into() })
            }
            Ok(Err(error)) => at_begin(error, false),
            Err(_) => Error::unavailable(Unavailable::NoAnswer(DIAGNOSIS)),
        }
    }
}

/// Whose sessions they are, as `pg_stat_activity` shows it. PostgreSQL cuts a name after 63 bytes, at its end.
fn application_name(application: Option<&str>) -> String {
    const OWN: &str = "axum-idempotency";
    const LIMIT: usize = 63 - OWN.len() - 1;

    match application.filter(|name| !name.is_empty()) {
        None => OWN.to_owned(),
        Some(name) => {
            let cut = (0..=name.len().min(LIMIT)).rev().find(|at| name.is_char_boundary(*at)).unwrap_or_default();
            format!("{} {OWN}", &name[..cut])
        }
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("pool", &self.source.settings).field("sending", &self.sending).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_say_whose_they_are_within_what_postgresql_keeps() {
        assert_eq!(application_name(None), "axum-idempotency");
        assert_eq!(application_name(Some("")), "axum-idempotency");
        assert_eq!(application_name(Some("shop")), "shop axum-idempotency");
        for long in ["x".repeat(100), "ä".repeat(100)] {
            let name = application_name(Some(&long));
            assert!(name.len() <= 63 && name.len() >= 61 && name.ends_with(" axum-idempotency"), "{name}");
        }
    }
}

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::Arc,
};

use axum::{extract::FromRequestParts, http::request::Parts};
use sqlx::{Connection as _, PgConnection, Postgres};
use tokio::sync::{Mutex, OwnedMappedMutexGuard, OwnedMutexGuard};

use super::{refuse::logged, rejection::Rejection, rejection_kind::RejectionKind};
use crate::{
    Error, ErrorKind, Idempotency, LocalSettings,
    engine::{Attempt, Keyless, Slow, probe},
    error::Ended,
};

/// The request's connection, as an extractor. A handler's writes through it are committed together with its response, or not
/// at all.
///
/// `&mut tx` is an sqlx executor, and dereferences to [`PgConnection`]; [`_docs::handlers`](crate::_docs::handlers) shows
/// the forms that compile. Use [`begin`](Self::begin) for a part that may fail on its own. Queries of the handler on the
/// application's pool are outside the transaction: they do not see the transaction's writes, and their own writes are not
/// undone.
///
/// ```no_run
/// use axum::{Json, http::StatusCode};
/// use axum_idempotency::{Rejection, Tx};
///
/// async fn create(mut tx: Tx, Json(name): Json<String>) -> Result<StatusCode, Rejection> {
///     sqlx::query("insert into thing (name) values ($1)").bind(name).execute(&mut tx).await?;
///     Ok(StatusCode::CREATED)
/// }
/// ```
///
/// If the key is optional and the request has none, extracting `Tx` begins a plain transaction, which is committed or rolled
/// back by the same [`Disposition`](crate::Disposition)s.
///
/// # What a handler may do with it
///
/// A handler may use the connection in any way without harm to the guarantee: on
/// [the engine's own pool](crate::Idempotency::new), its writes are not durable unless its response is.
///
/// * If the handler runs `COMMIT`, it fails, with SQLSTATE 23503 (22P02 if the request has no key), and undoes
///   everything. `SET CONSTRAINTS ALL IMMEDIATE` fails in the same way: name the constraints instead.
/// * After the handler runs `ROLLBACK`, or sqlx (0.9) sends one because a nested `begin()` fails or is dropped halfway, the
///   session is read-only: a write fails with SQLSTATE 25006.
/// * If the handler then responds as if nothing had happened, the response is a 500 `transaction-ended` or
///   `transaction-aborted`.
///
/// The guarantee does not cover code that circumvents it by name:
///
/// * a transaction that is begun by `BEGIN READ WRITE` after a `ROLLBACK`, or by `ROLLBACK AND CHAIN`, and committed by
///   hand;
/// * `CLOSE ALL` before a `COMMIT`, if the request has no key (such a handler counts as one that has ended its
///   transaction, even if it commits nothing);
/// * a handler that switches off the session's `default_transaction_read_only`: if its response is kept, the later
///   requests on that connection are affected;
/// * operations that PostgreSQL does not count as writes: `NOTIFY`, and before PostgreSQL 16 large objects.
///
/// On a [shared pool](crate::Idempotency::sharing), and behind a [pooler](crate::Idempotency::transaction_pooler), a COMMIT
/// fails all the same, but writes after a ROLLBACK are durable; the response is the same 500.
///
/// # What reaches the next request
///
/// State of the transaction does not: `SET LOCAL`, `set_config(…, true)`, transaction-level locks, temporary tables ON
/// COMMIT DROP. State of the session stays on its connection if the response is kept, and reaches the next request that
/// uses the connection: `SET`, `set_config(…, false)`, session-level advisory locks, temporary tables, LISTEN, prepared
/// statements. If a setting must be right for each request, such as a tenant, use
/// [`with_local_settings`](crate::IdempotencyLayer::with_local_settings), which sets it each time.
///
/// # Errors
///
/// Extracting it fails with a 500 that says what is wrong, if no [`IdempotencyLayer`](crate::IdempotencyLayer) handles
/// the request, or the handler extracts a second `Tx` while it holds the first. It fails with a 503 if a plain
/// transaction cannot be begun.
///
/// If a handler responds while its `Tx` is still held, in a spawned task or in the response's body, the client gets 500,
/// and the work is rolled back. The key stays taken until that `Tx` is dropped.
pub struct Tx(OwnedMappedMutexGuard<State, Open>);

impl Tx {
    /// Sets a savepoint. Writes through it are undone unless it is committed, and the rest of the transaction stays usable.
    ///
    /// Do not drop the future before its end: sqlx (0.9) then rolls back the whole transaction, and the response is 500
    /// `transaction-ended`.
    ///
    /// # Errors
    ///
    /// Returns PostgreSQL's error, for instance if an earlier statement has failed.
    pub async fn begin(&mut self) -> Result<sqlx::Transaction<'_, Postgres>, sqlx::Error> {
        let connection = self.0.connection();
        probe(connection).await?;
        connection.begin().await
    }
}

impl Deref for Tx {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.0.connection_ref()
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.0.connection()
    }
}

impl fmt::Debug for Tx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").finish_non_exhaustive()
    }
}

impl<S: Sync> FromRequestParts<S> for Tx {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Rejection> {
        let Some(slot) = parts.extensions.get::<Slot>().cloned() else {
            return Err(misuse(
                "The handler extracts Tx, but no IdempotencyLayer handles this request. Add the layer to the route, \
                 or list the request's method in IdempotencyLayer::methods.",
            ));
        };
        let Ok(mut state) = slot.0.try_lock_owned() else {
            return Err(misuse("The handler extracts Tx twice. Pass the first one on instead."));
        };
        if let State::NotBegun(not_begun) = &*state {
            let (idempotency, settings) = &**not_begun;
            let keyless = Keyless::begin(idempotency, settings.clone()).await;
            // The handler has not run.
            let open = Open::Keyless(keyless.map_err(|error| logged(error).undone())?);
            *state = State::Open { open: Box::new(open), taken: true };
        }
        OwnedMutexGuard::try_map(state, |state| match state {
            State::Open { open, taken } => {
                *taken = true;
                Some(&mut **open)
            }
            State::NotBegun(_) | State::Ended => None,
        })
        .map(Tx)
        .map_err(|_| misuse("The handler extracts Tx after it has responded. Extract it in the handler's arguments."))
    }
}

fn misuse(detail: &'static str) -> Rejection {
    let rejection = Rejection::new(RejectionKind::Misconfigured, detail);
    tracing::error!(%rejection, "Tx cannot be extracted");
    rejection
}

/// Holds the request's transaction while no [`Tx`] does. A `Tx` *is* the slot's lock, and no code ever waits for that lock.
#[derive(Clone, Debug)]
pub(super) struct Slot(Arc<Mutex<State>>);

#[derive(Debug)]
enum State {
    /// A request without a key: a transaction begins when the handler extracts it.
    NotBegun(Box<(Idempotency, LocalSettings)>),
    /// `taken` says whether the handler has extracted it.
    Open {
        open: Box<Open>,
        taken: bool,
    },
    Ended,
}

/// A transaction that the handler has given back, and whether it ever had it.
#[derive(Debug)]
pub(super) struct Returned {
    pub(super) open: Open,
    pub(super) taken: bool,
}

/// An open transaction, with a key or without.
#[derive(Debug)]
pub(super) enum Open {
    Attempt(Attempt),
    Keyless(Keyless),
}

impl Open {
    fn connection(&mut self) -> &mut PgConnection {
        match self {
            Self::Attempt(attempt) => attempt.connection(),
            Self::Keyless(keyless) => keyless.connection(),
        }
    }

    fn connection_ref(&self) -> &PgConnection {
        match self {
            Self::Attempt(attempt) => attempt.connection_ref(),
            Self::Keyless(keyless) => keyless.connection_ref(),
        }
    }
}

impl Slot {
    pub(super) fn of(attempt: Attempt) -> Self {
        let open = Box::new(Open::Attempt(attempt));
        Self(Arc::new(Mutex::new(State::Open { open, taken: false })))
    }

    pub(super) fn not_begun(idempotency: Idempotency, settings: LocalSettings) -> Self {
        Self(Arc::new(Mutex::new(State::NotBegun(Box::new((idempotency, settings))))))
    }

    /// Returns why a handler that is out of time may have been slow, as far as its connection knows.
    pub(super) async fn why_so_slow(&self) -> Option<Slow> {
        let Ok(mut state) = self.0.try_lock() else {
            return Some(Slow::Held);
        };
        match &mut *state {
            State::Open { open, .. } => match &mut **open {
                Open::Attempt(attempt) => attempt.why_so_slow().await,
                Open::Keyless(keyless) => keyless.why_so_slow().await,
            },
            State::NotBegun(_) | State::Ended => None,
        }
    }

    /// Returns whether a transaction has begun and not ended.
    pub(super) fn is_begun(&self) -> bool {
        self.0.try_lock().map_or(true, |state| matches!(*state, State::Open { .. }))
    }

    /// Takes the transaction back after the handler has responded; `None` if there never was one.
    ///
    /// # Errors
    ///
    /// Returns a rejection if a task or a body still holds the connection. The transaction is rolled back when that is
    /// dropped.
    pub(super) fn take(&self) -> Result<Option<Returned>, Rejection> {
        let Ok(mut state) = self.0.try_lock() else {
            return Err(Rejection::new(
                RejectionKind::ConnectionHeld,
                "The handler responded while its Tx was still held, by a task that it spawned or by the response's \
                 body; nothing is kept. The handler must await the task, or drop its Tx.",
            ));
        };
        match std::mem::replace(&mut *state, State::Ended) {
            State::Open { open, taken } => Ok(Some(Returned { open: *open, taken })),
            State::NotBegun(_) | State::Ended => Ok(None),
        }
    }

    /// Rolls back after a failure, so that the key is free when the client gets its response. Returns whether it is certain
    /// that the handler has done nothing; on sessions that are not `guarded` only the server's reply makes it so.
    ///
    /// # Errors
    ///
    /// Returns an error if the handler has ended the transaction itself. Other failures mean that the connection is gone,
    /// and the server rolls back on its own.
    pub(super) async fn release(&self, guarded: bool) -> Result<bool, Error> {
        let (released, taken) = match self.take() {
            Ok(Some(Returned { open: Open::Attempt(attempt), taken })) => (attempt.release().await, taken),
            Ok(Some(Returned { open: Open::Keyless(keyless), taken })) => (keyless.rollback().await, taken),
            Ok(None) => return Ok(false),
            // It is rolled back when the task that holds it lets go of it.
            Err(_) => return Ok(guarded),
        };
        match released {
            Ok(()) => Ok(taken),
            Err(error) => tolerate(error).map(|()| taken && guarded),
        }
    }
}

/// Logs a failed rollback, and ignores it unless the handler had ended the transaction: the server rolls back on its own.
pub(super) fn tolerate(error: Error) -> Result<(), Error> {
    let shown = &error as &dyn std::error::Error;
    tracing::error!(error = shown, source = shown.source(), "the handler's work could not be rolled back");
    let is_undone = error.how_ended() == Some(Ended::OutOfStep);
    if error.kind() == ErrorKind::TransactionEnded && !is_undone { Err(error) } else { Ok(()) }
}

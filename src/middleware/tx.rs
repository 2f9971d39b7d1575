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
};

/// The request's connection, as an extractor: what a handler writes through it is committed together with its
/// answer, or not at all.
///
/// `&mut tx` is an executor of sqlx's, and dereferences to [`PgConnection`]; [`_docs::handlers`](crate::_docs::handlers)
/// shows the forms that compile. Use [`begin`](Self::begin) for a part that may fail on its own. A handler that also
/// queries the application's pool does so beside the transaction: it does not see what the transaction has written, and
/// what it writes there is not undone.
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
/// On a route with an optional key and a request without one, extracting it begins a plain transaction, which is
/// committed or rolled back by the same [`Disposition`](crate::Disposition)s.
///
/// # What a handler may do with it
///
/// Whatever it likes, without harm to the guarantee: on [the engine's own pool](crate::Idempotency::new), nothing that it
/// writes is durable unless its response is.
///
/// * A `COMMIT` of its own fails, with SQLSTATE 23503 (22P02 where the request has no key), and undoes everything. `SET
///   CONSTRAINTS ALL IMMEDIATE` fails likewise: name the constraints that are meant.
/// * After a `ROLLBACK` of its own, or one that sqlx (0.9) sends when a nested `begin()` fails or is dropped halfway, the
///   session only reads: what it writes gets SQLSTATE 25006.
/// * It is told so by a 500 `transaction-ended` or `transaction-aborted` if it responds as if nothing had happened.
///
/// Excepted is what asks for it by name: a transaction that is begun by `BEGIN READ WRITE` after a `ROLLBACK`, or by
/// `ROLLBACK AND CHAIN`, and committed by hand; `CLOSE ALL` before a `COMMIT`, where the request has no key (such a
/// handler is taken for one that has ended its transaction, even if it commits nothing); and a session whose
/// `default_transaction_read_only` is switched off by a handler whose response is kept, which then holds for the requests
/// after it on that connection. Excepted is also what PostgreSQL does not count as writing: `NOTIFY`, and before
/// PostgreSQL 16 large objects. On a [shared pool](crate::Idempotency::sharing), and behind a
/// [pooler](crate::Idempotency::transaction_pooler), a COMMIT fails all the same, but what is written after a ROLLBACK is
/// durable; the response is the same 500.
///
/// # What reaches the next request
///
/// Nothing that is of the transaction: `SET LOCAL`, `set_config(…, true)`, transaction-level locks, temporary tables ON
/// COMMIT DROP. What is of the session stays on its connection if the response is kept, for whichever request uses it next:
/// `SET`, `set_config(…, false)`, session-level advisory locks, temporary tables, LISTEN, prepared statements. What has to
/// be right for each request, such as a tenant, belongs into
/// [`with_local_settings`](crate::IdempotencyLayer::with_local_settings), which sets it anew each time.
///
/// # Errors
///
/// A 500 that says what is wrong: no [`IdempotencyLayer`](crate::IdempotencyLayer) handles the request, or the
/// handler extracts a second `Tx` while it holds the first. A 503 if a plain transaction cannot be begun.
///
/// A handler that answers and still holds its `Tx`, in a spawned task or in the response's body, gets 500 and is
/// rolled back. The key stays taken until that `Tx` is dropped.
pub struct Tx(OwnedMappedMutexGuard<State, Open>);

impl Tx {
    /// Sets a savepoint: what is written through it is undone unless it is committed, and the rest stays usable.
    ///
    /// Do not drop the future before its end: sqlx (0.9) then rolls back the whole transaction, and the response is 500
    /// `transaction-ended`.
    ///
    /// # Errors
    ///
    /// What PostgreSQL says, for instance that a statement before has failed.
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
                "the handler extracts Tx, but no IdempotencyLayer handles this request: add the layer to the route, \
                 or list the request's method in IdempotencyLayer::methods",
            ));
        };
        let Ok(mut state) = slot.0.try_lock_owned() else {
            return Err(misuse("the handler extracts Tx twice; pass the first one on instead"));
        };
        if let State::NotBegun(not_begun) = &*state {
            let (idempotency, settings) = &**not_begun;
            let keyless = Keyless::begin(idempotency, settings.clone()).await;
            let open = Open::Keyless(keyless.map_err(logged)?);
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
        .map_err(|_| misuse("the handler extracts Tx after it has answered"))
    }
}

fn misuse(detail: &'static str) -> Rejection {
    let rejection = Rejection::new(RejectionKind::Misconfigured, detail);
    tracing::error!(%rejection, "Tx cannot be extracted");
    rejection
}

/// Where the request's transaction lies while no [`Tx`] holds it. A `Tx` *is* the slot's lock, which nobody ever
/// waits for.
#[derive(Clone, Debug)]
pub(super) struct Slot(Arc<Mutex<State>>);

#[derive(Debug)]
enum State {
    /// A request without a key: a transaction begins when it is asked for.
    NotBegun(Box<(Idempotency, LocalSettings)>),
    /// `taken`: whether a handler has asked for it.
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

    /// Why a handler that is out of time may have been so slow, as far as its connection knows.
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

    /// Has a transaction begun that nobody has ended?
    pub(super) fn is_begun(&self) -> bool {
        self.0.try_lock().map_or(true, |state| matches!(*state, State::Open { .. }))
    }

    /// Takes the transaction back after the handler has answered; `None` if there never was one.
    ///
    /// # Errors
    ///
    /// Somebody still holds the connection. It is rolled back when he drops it.
    pub(super) fn take(&self) -> Result<Option<Returned>, Rejection> {
        let Ok(mut state) = self.0.try_lock() else {
            return Err(Rejection::new(
                RejectionKind::ConnectionHeld,
                "the handler answered while its Tx was still held, by a task it spawned or by the response's body; \
                 nothing is kept",
            ));
        };
        match std::mem::replace(&mut *state, State::Ended) {
            State::Open { open, taken } => Ok(Some(Returned { open: *open, taken })),
            State::NotBegun(_) | State::Ended => Ok(None),
        }
    }

    /// After a failure: rolls back what is there, so that the key is free when the client is answered.
    ///
    /// # Errors
    ///
    /// The handler has ended the transaction itself. Other failures mean a connection that is gone, and the server rolls
    /// back on its own.
    pub(super) async fn release(&self) -> Result<(), Error> {
        let released = match self.take().map(|returned| returned.map(|returned| returned.open)) {
            Ok(Some(Open::Attempt(attempt))) => attempt.release().await,
            Ok(Some(Open::Keyless(keyless))) => keyless.rollback().await,
            Ok(None) | Err(_) => Ok(()),
        };
        released.or_else(tolerate)
    }
}

/// A rollback that failed, unless because the handler had ended the transaction: the server rolls back on its own.
pub(super) fn tolerate(error: Error) -> Result<(), Error> {
    let shown = &error as &dyn std::error::Error;
    tracing::error!(error = shown, source = shown.source(), "the handler's work could not be rolled back");
    if error.kind() == ErrorKind::TransactionEnded { Err(error) } else { Ok(()) }
}

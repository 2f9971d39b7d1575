use super::{
    Duplicate, Idempotency, Uninterrupted,
    claim::{Contended, contend, settle},
    in_flight::Leader,
    patience::{Caller, Patience},
    timing::timing,
};
#[cfg(feature = "axum")]
use crate::postgres::slow;
use crate::{
    Error, ErrorKind, IdempotentRequest, StoredResponse, Window,
    error::{Connection, Unavailable},
    postgres::{
        claim::Timing,
        record::{self, Row},
        transaction::{ROLLBACK_LIMIT, Transaction},
    },
};
use sqlx::PgConnection;

/// The execution of a request: an open transaction that holds the key.
///
/// End it with [`complete`](Self::complete), [`reject`](Self::reject) or [`release`](Self::release). Each goes on in
/// the background if its future is dropped, so a COMMIT is never cut in two.
///
/// ```no_run
/// # use axum_idempotency::{Claim, Error, Idempotency, IdempotentRequest, StoredResponse};
/// # async fn f(idempotency: Idempotency, request: IdempotentRequest) -> Result<StoredResponse, Box<dyn std::error::Error>> {
/// match idempotency.claim(request).await? {
///     Claim::Fresh(mut attempt) => {
///         sqlx::query("update account set balance = balance - 1").execute(attempt.connection()).await?;
///         let response = StoredResponse::new(http::StatusCode::CREATED, "done");
///         attempt.complete(&response).await?;
///         Ok(response)
///     }
///     Claim::Duplicate(duplicate) => Ok(duplicate.into_response()?),
/// }
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping an attempt rolls it back and frees the key"]
pub struct Attempt {
    // In this order: the rollback begins before those who wait learn of it.
    transaction: Transaction,
    leader: Leader,
    window: Window,
    /// Where the row lies in its table, if that is to be used.
    tid: Option<Box<str>>,
    idempotency: Idempotency,
}

/// The result of [`Attempt::reject`].
#[derive(Debug)]
#[must_use = "only a stored rejection may be given to the client"]
pub enum Rejected {
    /// The response is stored, for this time, and every retry gets it.
    Stored(Window),
    /// While the work was being undone, the key was used elsewhere, or became too old to be kept. The response was not
    /// stored; respond to the client as this duplicate requires.
    Overtaken(Duplicate),
}

impl Attempt {
    pub(super) fn new(
        transaction: Transaction,
        leader: Leader,
        window: Window,
        tid: Option<Box<str>>,
        idempotency: Idempotency,
    ) -> Self {
        Self { transaction, leader, window, tid, idempotency }
    }

    /// What is being executed.
    #[must_use]
    pub fn request(&self) -> &IdempotentRequest {
        self.leader.request()
    }

    /// Returns when the key was first used, which is now, and until when its response will be kept.
    #[must_use]
    pub fn window(&self) -> Window {
        self.window
    }

    /// Returns the connection for the work: writes on it are committed together with the response, or not at all.
    ///
    /// Savepoints, with `begin()`, are allowed. On [the engine's own pool](Idempotency::new) this holds whatever the work
    /// does with the connection: if the work runs `COMMIT`, it fails, and after a `ROLLBACK`, by the work or by sqlx, the
    /// session refuses writes. The exception is code that circumvents this by name, for instance with `BEGIN READ WRITE`.
    /// On a [shared pool](Idempotency::sharing) writes after a `ROLLBACK` are durable, and the error is
    /// [`TransactionEnded`](ErrorKind::TransactionEnded).
    pub fn connection(&mut self) -> &mut PgConnection {
        self.transaction.lend()
    }

    #[cfg(feature = "axum")]
    pub(crate) fn connection_ref(&self) -> &PgConnection {
        self.transaction.connection_ref()
    }

    /// Commits the work and the response together, and returns for how long the response is kept.
    ///
    /// # Errors
    ///
    /// After an error neither is kept, and the key is free again, with two exceptions. After
    /// [`OutcomeUnknown`](ErrorKind::OutcomeUnknown) both are kept or neither. After
    /// [`TransactionEnded`](ErrorKind::TransactionEnded) the work may have committed something on its own.
    pub async fn complete(self, response: &StoredResponse) -> Result<Window, Error> {
        let (backlog, response) = (self.idempotency.0.backlog.clone(), self.idempotency.outlasting(response));
        Uninterrupted::new(&backlog, self.record_and_commit(response)).await
    }

    async fn record_and_commit(mut self, response: StoredResponse) -> Result<Window, Error> {
        let row = row(&self.idempotency, self.leader.request())?;
        let row = Row { window: Some(self.window), tid: self.tid.as_deref(), ..row };
        let recorded = record::record(self.transaction.connection(), row, &response).await;
        match self.transaction.note(recorded) {
            Ok(window) => {
                let window = window.unwrap_or(self.window);
                self.transaction.is_in_step();
                self.transaction.commit().await?;
                self.leader.committed(response.with_window(window));
                Ok(window)
            }
            Err(error) => {
                self.abandon(&error).await;
                Err(error)
            }
        }
    }

    /// Undoes the work and keeps the response, for a final decision, such as a declined card. It works even if a
    /// statement of the work has failed.
    ///
    /// # Errors
    ///
    /// After an error nothing is kept, unless the kind is [`OutcomeUnknown`](ErrorKind::OutcomeUnknown): then the
    /// response may be kept.
    pub async fn reject(self, response: &StoredResponse) -> Result<Rejected, Error> {
        let (backlog, response) = (self.idempotency.0.backlog.clone(), self.idempotency.outlasting(response));
        Uninterrupted::new(&backlog, self.undo_and_record(response)).await
    }

    async fn undo_and_record(mut self, response: StoredResponse) -> Result<Rejected, Error> {
        if let Err(error) = self.check().await {
            self.transaction.close();
            return Err(error);
        }
        let patience = Patience::of(self.idempotency.0.concurrency);
        let timing = self.timing()?;
        let transaction = self.transaction.restart().await?;
        let request = self.leader.request();
        let caller = Caller::stays();
        match contend(&self.idempotency, transaction, request, patience, timing, caller, Some(&response)).await? {
            Contended::Ours(transaction, window, _) => {
                transaction.commit().await?;
                self.leader.committed(response.with_window(window));
                Ok(Rejected::Stored(window))
            }
            // Another process was faster.
            Contended::Answered(stored) => Ok(Rejected::Overtaken(settle(self.leader, timing, stored))),
            Contended::Lost(duplicate) => Ok(Rejected::Overtaken(duplicate)),
        }
    }

    /// Undoes the work and stores nothing: the key is free, and a retry executes.
    ///
    /// Dropping the attempt does the same, but this waits until the rollback is done.
    ///
    /// # Errors
    ///
    /// Returns an error if the connection is gone, or a statement that was cut off still runs on it: the server then
    /// rolls back on its own. Returns [`TransactionEnded`](ErrorKind::TransactionEnded) if the work has ended the
    /// transaction itself: its own commits are durable.
    pub async fn release(self) -> Result<(), Error> {
        let backlog = self.idempotency.0.backlog.clone();
        Uninterrupted::new(&backlog, self.undo()).await
    }

    async fn undo(mut self) -> Result<(), Error> {
        match self.check().await {
            Ok(()) => self.transaction.rollback().await,
            Err(error) => {
                self.transaction.close();
                Err(error)
            }
        }
    }

    /// Returns why work that was cut off may have taken long, for instance because it waits for itself.
    #[cfg(feature = "axum")]
    pub(crate) async fn why_so_slow(&mut self) -> Option<Slow> {
        why_so_slow(&mut self.transaction).await
    }

    /// As it was for the claim.
    fn timing(&self) -> Result<Option<Timing>, Error> {
        timing(&self.idempotency, self.leader.request())
    }

    /// Checks whether the work has left the transaction as it was. If not, a rollback cannot undo the work.
    async fn check(&mut self) -> Result<(), Error> {
        if !self.transaction.is_fit() {
            return Err(Error::unavailable(Unavailable::Unfit));
        }
        let mut row = row(&self.idempotency, self.leader.request())?;
        row = Row { window: Some(self.window), tid: self.tid.as_deref(), ..row };
        row.sending.limit = row.sending.limit.min(ROLLBACK_LIMIT);
        let checked = record::check(self.transaction.connection(), row).await;
        match self.transaction.note(checked) {
            Ok(()) => {
                self.transaction.is_in_step();
                Ok(())
            }
            // Were the connection out of step, the ROLLBACK would get this same error for its own.
            Err(error) if error.kind() == ErrorKind::TransactionAborted => {
                self.transaction.is_in_step();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Cleans up after a failure of the engine. If the work has changed the transaction, the connection's state is unknown;
    /// otherwise the key should be free before the client gets a response.
    async fn abandon(self, error: &Error) {
        if error.connection() == Connection::Fit && error.kind() != ErrorKind::TransactionEnded {
            // The attempt failed already; a connection that is gone as well makes no difference.
            drop(self.transaction.rollback().await);
        } else {
            self.transaction.close();
        }
    }
}

/// The reason why work that was cut off may have taken long.
#[cfg(feature = "axum")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slow {
    /// Another connection, of the same role and from the same machine, waits for a lock that the work holds.
    HoldsOthersUp,
    /// A statement of the work is still running.
    Busy,
    /// A task of the work still holds the connection.
    Held,
}

#[cfg(feature = "axum")]
pub(super) async fn why_so_slow(transaction: &mut Transaction) -> Option<Slow> {
    let mut sending = transaction.sending();
    sending.limit = sending.limit.min(ROLLBACK_LIMIT);
    let asked = slow::holds_others_up(transaction.connection(), sending).await;
    match transaction.note(asked) {
        Ok(true) => Some(Slow::HoldsOthersUp),
        Ok(false) => None,
        Err(error) => (error.connection() == Connection::Busy).then_some(Slow::Busy),
    }
}

/// The row that a request has claimed.
pub(super) fn row<'a>(idempotency: &Idempotency, request: &'a IdempotentRequest) -> Result<Row<'a>, Error> {
    let connections = &idempotency.0.connections;
    let timing = timing(idempotency, request)?;
    Ok(Row {
        request,
        table: Timing::table(timing),
        timed: timing.is_some(),
        window: None,
        tid: None,
        sending: connections.sending(),
        guarded: connections.are_guarded(),
    })
}

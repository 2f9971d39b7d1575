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

/// The one execution of a request: an open transaction that holds the key.
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

/// What became of a response whose work was undone.
#[derive(Debug)]
#[must_use = "only a stored rejection may be given to the client"]
pub enum Rejected {
    /// It is stored, for this window, and is what every retry will get.
    Stored(Window),
    /// While the work was being undone, the key was used elsewhere, or became too old to be kept: nothing was stored, and
    /// this is what the client is to be told.
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

    /// When the key was first used, which is now, and until when its answer will be kept.
    #[must_use]
    pub fn window(&self) -> Window {
        self.window
    }

    /// The connection that the work has to go through: what is written here is committed together with the response, or
    /// not at all. Savepoints, by `begin()`, are fine.
    ///
    /// On [the engine's own pool](Idempotency::new) that holds whatever the work does with it: a `COMMIT` of its own
    /// fails, and after a `ROLLBACK`, its own or one of sqlx's, the session refuses to write. Excepted is what asks for it
    /// by name, `BEGIN READ WRITE` and the like. On a [shared pool](Idempotency::sharing) what is written after a
    /// `ROLLBACK` is durable, and [`TransactionEnded`](ErrorKind::TransactionEnded) says so.
    pub fn connection(&mut self) -> &mut PgConnection {
        self.transaction.connection()
    }

    #[cfg(feature = "axum")]
    pub(crate) fn connection_ref(&self) -> &PgConnection {
        self.transaction.connection_ref()
    }

    /// Keeps the work and the answer: one commit for both. Says for how long the answer is kept.
    ///
    /// # Errors
    ///
    /// Neither is kept, and the key is free again; unless the kind is
    /// [`OutcomeUnknown`](ErrorKind::OutcomeUnknown), when it is either both or neither, or
    /// [`TransactionEnded`](ErrorKind::TransactionEnded), when the work has committed something on its own.
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

    /// Undoes the work and keeps the answer, for a decision that stands, such as a declined card. Works even if a
    /// statement of the work has failed.
    ///
    /// # Errors
    ///
    /// Nothing is kept, unless the kind is [`OutcomeUnknown`](ErrorKind::OutcomeUnknown): then the answer may be.
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

    /// Undoes the work and stores nothing: the key is free, and a retry executes. The same as dropping the attempt,
    /// but it waits until that is so.
    ///
    /// # Errors
    ///
    /// The connection is gone, or a statement that was cut off still runs on it, and the server rolls back on its own; or
    /// the work has ended the transaction itself
    /// ([`TransactionEnded`](ErrorKind::TransactionEnded)), and what it committed is durable.
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

    /// Asked when the work was cut off: does it wait for itself?
    #[cfg(feature = "axum")]
    pub(crate) async fn why_so_slow(&mut self) -> Option<Slow> {
        why_so_slow(&mut self.transaction).await
    }

    /// As it was for the claim.
    fn timing(&self) -> Result<Option<Timing>, Error> {
        timing(&self.idempotency, self.leader.request())
    }

    /// Has the work left the transaction as it was? If not, a rollback undoes nothing of what it did.
    async fn check(&mut self) -> Result<(), Error> {
        if !self.transaction.is_fit() {
            return Err(Error::unavailable(Unavailable::Unfit));
        }
        let mut row = row(&self.idempotency, self.leader.request())?;
        row = Row { window: Some(self.window), tid: self.tid.as_deref(), ..row };
        row.sending.limit = row.sending.limit.min(ROLLBACK_LIMIT);
        let checked = record::check(self.transaction.connection(), row).await;
        self.transaction.note(checked)
    }

    /// After a failure of ours. If the work has meddled with the transaction, nobody knows what the connection is
    /// in; otherwise the key should be free by the time that the client is answered.
    async fn abandon(self, error: &Error) {
        if error.connection() == Connection::Fit && error.kind() != ErrorKind::TransactionEnded {
            // It failed already; that the connection is gone as well makes no difference.
            drop(self.transaction.rollback().await);
        } else {
            self.transaction.close();
        }
    }
}

/// Why work that was cut off may have taken so long.
#[cfg(feature = "axum")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slow {
    /// Another connection, of the same role and from the same machine, waits for a lock that it holds.
    HoldsOthersUp,
    /// A statement of it is still running.
    Busy,
    /// A task of it still holds the connection.
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

use sqlx::{PgConnection, Postgres, pool::PoolConnection};

use super::{
    Idempotency, Uninterrupted,
    claim::{Patience, answer_for},
    in_flight::Owner,
};
use crate::{
    Error, ErrorKind, IdempotentRequest, StoredResponse,
    postgres::{
        claim::{self, Claimed},
        record,
        transaction::Transaction,
    },
};

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
///         let answer = StoredResponse::new(http::StatusCode::CREATED, "done");
///         attempt.complete(&answer).await?;
///         Ok(answer)
///     }
///     Claim::Replay(answer) => Ok(answer),
///     Claim::InProgress => Err("still running, try again later".into()),
///     Claim::KeyReused => Err("the key belongs to another request".into()),
/// }
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping an attempt rolls it back and frees the key"]
pub struct Attempt {
    // In this order: the rollback begins before those who wait learn of it.
    transaction: Transaction,
    owner: Owner,
    idempotency: Idempotency,
}

/// What became of an answer whose work was undone. Exhaustive: each case is answered differently.
#[derive(Debug)]
#[must_use = "only a stored rejection may be given to the client"]
pub enum Rejected {
    /// It is stored, and is what every retry will get.
    Stored,
    /// While the work was being undone, the same request was executed elsewhere. This is its answer, and the one to
    /// give.
    Replay(StoredResponse),
    /// Likewise, and it is still running.
    InProgress,
    /// Likewise, for a request with another fingerprint.
    KeyReused,
}

impl Attempt {
    pub(super) fn new(transaction: Transaction, owner: Owner, idempotency: Idempotency) -> Self {
        Self { transaction, owner, idempotency }
    }

    /// What is being executed.
    #[must_use]
    pub fn request(&self) -> &IdempotentRequest {
        self.owner.request()
    }

    /// The connection that the work has to go through: what is written here is committed together with the answer,
    /// or not at all. Do not end the transaction on it; savepoints, by `begin()`, are fine.
    pub fn connection(&mut self) -> &mut PgConnection {
        self.transaction.connection()
    }

    #[cfg(feature = "axum")]
    pub(crate) fn connection_ref(&self) -> &PgConnection {
        self.transaction.connection_ref()
    }

    /// Keeps the work and the answer: one commit for both.
    ///
    /// # Errors
    ///
    /// Neither is kept, and the key is free again; unless the kind is
    /// [`OutcomeUnknown`](ErrorKind::OutcomeUnknown), when it is either both or neither, or
    /// [`TransactionEnded`](ErrorKind::TransactionEnded), when the work has committed something on its own.
    pub async fn complete(self, response: &StoredResponse) -> Result<(), Error> {
        let (backlog, response) = (self.idempotency.0.backlog.clone(), response.clone());
        Uninterrupted::new(&backlog, self.record_and_commit(response)).await
    }

    async fn record_and_commit(mut self, response: StoredResponse) -> Result<(), Error> {
        match record::record(self.transaction.connection(), self.owner.request(), &response).await {
            Ok(()) => {
                self.transaction.commit().await?;
                self.owner.answered(response);
                Ok(())
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
        let (backlog, response) = (self.idempotency.0.backlog.clone(), response.clone());
        Uninterrupted::new(&backlog, self.undo_and_record(response)).await
    }

    async fn undo_and_record(self, response: StoredResponse) -> Result<Rejected, Error> {
        let patience = Patience::of(self.idempotency.0.concurrency);
        // It waits for another process at most, and only if that is free of charge for others.
        let place = self.idempotency.0.places.try_acquire();
        let mut connection: PoolConnection<Postgres> = self.transaction.end().await?;
        // One more round settles a row that went away; whoever comes then is served like anybody else.
        for _ in 0..2 {
            let wait = patience.wait(place.is_ok());
            let retention = self.idempotency.0.retention;
            let claimed = claim::claim(&mut connection, self.owner.request(), retention, wait, Some(&response)).await;
            match claimed {
                Ok(Claimed::Ours) => {
                    self.owner.answered(response);
                    return Ok(Rejected::Stored);
                }
                Ok(Claimed::Answered(stored)) => {
                    return Ok(match answer_for(self.owner.request(), stored) {
                        Some(response) => {
                            self.owner.answered(response.clone());
                            Rejected::Replay(response)
                        }
                        None => {
                            self.owner.reused();
                            Rejected::KeyReused
                        }
                    });
                }
                Ok(Claimed::Held | Claimed::TimedOut) => return Ok(Rejected::InProgress),
                Ok(Claimed::Lost) => {}
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) => {
                    connection.close_on_drop();
                    return Err(error);
                }
            }
        }
        Err(Error::new(ErrorKind::Conflict))
    }

    /// Undoes the work and stores nothing: the key is free, and a retry executes. The same as dropping the attempt,
    /// but it waits until that is so.
    ///
    /// # Errors
    ///
    /// The connection is gone, and the server rolls back on its own.
    pub async fn release(self) -> Result<(), Error> {
        let backlog = self.idempotency.0.backlog.clone();
        Uninterrupted::new(&backlog, self.transaction.rollback()).await
    }

    /// After a failure of ours. If the work has meddled with the transaction, nobody knows what the connection is
    /// in; otherwise the key should be free by the time that the client is answered.
    async fn abandon(self, error: &Error) {
        if error.kind() == ErrorKind::TransactionEnded {
            self.transaction.close();
        } else {
            // It failed already; that the connection is gone as well makes no difference.
            drop(self.transaction.rollback().await);
        }
    }
}

use std::time::Duration;

use sqlx::{Connection as _, PgConnection};
use tokio::time::Instant;

use super::{Attempt, Concurrency, Idempotency};
use crate::{
    Error, ErrorKind, IdempotentRequest, StoredResponse,
    postgres::{
        claim::{self, Claimed, Stored, Wait},
        transaction::Transaction,
    },
};

/// How often a claim starts over after it lost its row to somebody who then left none. Each round takes another
/// party to get in between, so this many say that something is wrong.
const ROUNDS: u32 = 16;

/// Whose turn it is. The match on it is the contract, so it is exhaustive on purpose.
#[derive(Debug)]
#[must_use = "dropping a fresh claim rolls it back and frees the key"]
pub enum Claim {
    /// The key is the caller's: do the work through the attempt, and end it.
    Fresh(Attempt),
    /// The work was done before. This is its answer.
    Replay(StoredResponse),
    /// Another request under this key is running and did not end in time.
    InProgress,
    /// The key was used for a request with another fingerprint. Nothing of that one is revealed.
    KeyReused,
}

/// As [`Claim`], for a transaction of the caller's.
#[derive(Debug)]
#[must_use = "a fresh claim has to be completed or rolled back"]
pub enum ClaimUsing {
    /// The key is claimed in the caller's transaction.
    Fresh,
    /// The work was done before. This is its answer.
    Replay(StoredResponse),
    /// Another request under this key is running and did not end in time.
    InProgress,
    /// The key was used for a request with another fingerprint.
    KeyReused,
}

/// The moment until which a claim may wait.
#[derive(Clone, Copy)]
pub(super) enum Patience {
    None,
    Until(Instant),
}

impl Patience {
    pub(super) fn of(concurrency: Concurrency) -> Self {
        match concurrency {
            Concurrency::Wait { timeout } => {
                let now = Instant::now();
                // A wait so long that no clock can hold its end is cut to a year.
                let end = now.checked_add(timeout).unwrap_or(now + Duration::from_secs(365 * 24 * 60 * 60));
                Self::Until(end)
            }
            Concurrency::Reject => Self::None,
        }
    }

    pub(super) fn wait(self) -> Wait {
        match self {
            Self::None => Wait::Never,
            Self::Until(end) => Wait::UpTo(end.saturating_duration_since(Instant::now())),
        }
    }
}

pub(crate) async fn claim(idempotency: &Idempotency, request: IdempotentRequest) -> Result<Claim, Error> {
    refuse_blank(&request)?;
    let patience = Patience::of(idempotency.concurrency);
    let mut transaction = Transaction::begin(&idempotency.pool).await?;
    for _ in 0..ROUNDS {
        let claimed =
            claim::claim(transaction.connection(), &request, idempotency.retention, patience.wait(), None).await;
        match claimed {
            Ok(Claimed::Ours) => {
                return Ok(Claim::Fresh(Attempt::new(transaction, request, idempotency.clone())));
            }
            Ok(Claimed::Answered(stored)) => {
                transaction.rollback().await?;
                return Ok(match answer_for(&request, stored) {
                    Some(response) => Claim::Replay(response),
                    None => Claim::KeyReused,
                });
            }
            Ok(Claimed::Held) => {
                transaction.rollback().await?;
                return Ok(Claim::InProgress);
            }
            // Under REPEATABLE READ and above, whoever waited cannot see what he waited for.
            Ok(Claimed::Lost) => transaction = transaction.restart().await?,
            Err(error) if error.kind() == ErrorKind::Conflict => transaction = transaction.restart().await?,
            Err(error) => return Err(error),
        }
    }
    Err(Error::new(ErrorKind::Conflict))
}

pub(super) async fn claim_using(
    idempotency: &Idempotency,
    connection: &mut PgConnection,
    request: &IdempotentRequest,
) -> Result<ClaimUsing, Error> {
    refuse_blank(request)?;
    if !connection.is_in_transaction() {
        return Err(Error::new(ErrorKind::NoTransaction));
    }
    let patience = Patience::of(idempotency.concurrency);
    for _ in 0..ROUNDS {
        let mut savepoint = connection.begin().await.map_err(crate::postgres::error::before_commit)?;
        let claimed = claim::claim(&mut savepoint, request, idempotency.retention, patience.wait(), None).await?;
        let keep = matches!(claimed, Claimed::Ours);
        let ended = if keep { savepoint.commit().await } else { savepoint.rollback().await };
        ended.map_err(crate::postgres::error::before_commit)?;
        match claimed {
            Claimed::Ours => return Ok(ClaimUsing::Fresh),
            Claimed::Answered(stored) => {
                return Ok(match answer_for(request, stored) {
                    Some(response) => ClaimUsing::Replay(response),
                    None => ClaimUsing::KeyReused,
                });
            }
            Claimed::Held => return Ok(ClaimUsing::InProgress),
            Claimed::Lost => {}
        }
    }
    Err(Error::new(ErrorKind::Conflict))
}

fn refuse_blank(request: &IdempotentRequest) -> Result<(), Error> {
    if request.scope().is_blank() {
        return Err(Error::new(ErrorKind::BlankScope));
    }
    Ok(())
}

/// The stored answer, if it was given to this very request.
pub(super) fn answer_for(request: &IdempotentRequest, stored: Stored) -> Option<StoredResponse> {
    request.fingerprint().matches(&stored.fingerprint).then_some(stored.response)
}

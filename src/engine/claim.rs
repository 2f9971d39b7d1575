use std::time::Duration;

use sqlx::{Connection as _, PgConnection};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, timeout_at},
};

use super::{
    Attempt, Concurrency, Idempotency, Uninterrupted,
    in_flight::{Duplicate, Entered, Learned, Owner, identity},
    recent::Remembered,
    timing::{prepare, timing},
};
use crate::{
    Error, ErrorKind, IdempotentRequest, StoredResponse, Tombstone, Untimely, Window,
    postgres::{
        Prepared,
        claim::{self, Claimed, Terms, Timing, Wait},
        error::before_commit,
        row::Stored,
        transaction::{Transaction, probe},
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
    /// The work was done before, and its answer was not kept.
    NotRetained(Tombstone),
    /// Another request under this key is running and did not end in time.
    InProgress,
    /// The key was used for a request with another fingerprint. Nothing of that one is revealed.
    KeyReused,
    /// The key bears a time at which it is not executed. Only with
    /// [`time_bearing`](crate::Idempotency::time_bearing).
    Untimely(Untimely),
}

/// As [`Claim`], for a transaction of the caller's.
#[derive(Debug)]
#[must_use = "a fresh claim has to be completed or rolled back"]
pub enum ClaimUsing {
    /// The key is claimed in the caller's transaction.
    Fresh,
    /// The work was done before. This is its answer.
    Replay(StoredResponse),
    /// The work was done before, and its answer was not kept.
    NotRetained(Tombstone),
    /// Another request under this key is running and did not end in time.
    InProgress,
    /// The key was used for a request with another fingerprint.
    KeyReused,
    /// The key bears a time at which it is not executed.
    Untimely(Untimely),
}

impl Claim {
    fn of(response: StoredResponse) -> Self {
        match response.tombstone() {
            None => Self::Replay(response),
            Some(tombstone) => Self::NotRetained(tombstone),
        }
    }
}

/// How long a claim waits for others.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    waits: bool,
    end: Instant,
}

/// How much longer than it may wait a claim may take altogether. The time that the pool took to lend a connection is not
/// held against it.
const GRACE: Duration = Duration::from_secs(2);

/// Under [`Concurrency::Reject`] a duplicate waits so long at most to learn whether the one before it executes, or
/// only asks the database for its answer.
const A_MOMENT: Duration = Duration::from_secs(1);

impl Patience {
    pub(super) fn of(concurrency: Concurrency) -> Self {
        let (waits, time) = match concurrency {
            Concurrency::Wait { timeout } => (true, timeout),
            Concurrency::Reject => (false, A_MOMENT),
        };
        let now = Instant::now();
        // A wait so long that no clock can hold its end is cut to a year.
        let end = now.checked_add(time).unwrap_or(now + Duration::from_secs(365 * 24 * 60 * 60));
        Self { waits, end }
    }

    /// What a claim may do inside PostgreSQL, if it has a place there.
    fn wait(self, place: bool) -> Wait {
        if self.waits && place { Wait::UpTo(self.end.saturating_duration_since(Instant::now())) } else { Wait::Never }
    }

    /// The right to wait inside PostgreSQL, which takes a connection, so that too many must not do so; `None` if there is
    /// none in time, or it does not wait at all.
    async fn place(self, idempotency: &Idempotency) -> Option<OwnedSemaphorePermit> {
        if !self.waits {
            return None;
        }
        timeout_at(self.end, idempotency.0.places.clone().acquire_owned()).await.ok()?.ok()
    }

    /// What comes of being a duplicate within this process; `None` to enter anew.
    async fn learn(self, mut duplicate: Duplicate) -> Option<Claim> {
        if !self.waits && timeout_at(self.end, duplicate.is_refused()).await.unwrap_or(true) {
            return Some(Claim::InProgress);
        }
        match timeout_at(self.end, duplicate.learn()).await {
            Ok(Learned::Answer(response)) => Some(Claim::of(response)),
            Ok(Learned::Reused) => Some(Claim::KeyReused),
            Ok(Learned::OtherTime) => Some(Claim::Untimely(Untimely::OtherTime)),
            Ok(Learned::Nothing) => None,
            Err(_elapsed) => Some(Claim::InProgress),
        }
    }
}

/// Waiting for another in this process may be cut off; asking the database may not.
pub(super) async fn claim(idempotency: &Idempotency, request: &IdempotentRequest) -> Result<Claim, Error> {
    refuse_blank(request)?;
    let timing = timing(idempotency, request)?;
    let recent = idempotency.0.in_flight.recent();
    if recent.keeps_answers()
        && let Some(known) = recent.answer(&identity(request))
    {
        return Ok(compare_known(request, known).into());
    }
    let patience = Patience::of(idempotency.0.concurrency);
    loop {
        match idempotency.0.in_flight.enter(request) {
            Entered::Owner(owner) => {
                let asking = claim_for_all(idempotency.clone(), patience, timing, owner);
                return Uninterrupted::new(&idempotency.0.backlog, asking).await;
            }
            Entered::Duplicate(duplicate) => {
                if let Some(claim) = patience.learn(duplicate).await {
                    return Ok(claim);
                }
            }
        }
    }
}

/// Asks the database, for all duplicates in this process.
async fn claim_for_all(
    idempotency: Idempotency,
    patience: Patience,
    timing: Option<Timing>,
    owner: Owner,
) -> Result<Claim, Error> {
    let mut connection = Transaction::connect(&idempotency.0.pool).await?;
    // One round trip instead of three; behind a pooler, which may change the server in between, it is none.
    if idempotency.0.prepared == Prepared::Kept && owner.has_been_seen() {
        let place = Timing::place(timing);
        let looked = claim::look(&mut connection, owner.request(), place, idempotency.0.prepared).await;
        if let Some(stored) = looked? {
            drop(connection);
            return Ok(found(owner, timing, stored));
        }
    }
    let transaction = Transaction::begin_on(connection, None).await?;
    match contend(&idempotency, transaction, owner.request(), patience, timing, None).await? {
        Contended::Ours(transaction, window) => {
            owner.executes();
            Ok(Claim::Fresh(Attempt::new(transaction, owner, window, idempotency)))
        }
        Contended::Answered(stored) => Ok(found(owner, timing, stored)),
        Contended::Held => Ok(Claim::InProgress),
        Contended::Untimely(untimely) => Ok(Claim::Untimely(untimely)),
    }
}

/// An answered row, for the owner and those who wait with it.
fn found(owner: Owner, timing: Option<Timing>, stored: Stored) -> Claim {
    settle(owner, timing, stored).into()
}

/// What came of contending for a row with other processes.
pub(super) enum Contended {
    /// It is ours, in this transaction and for this window.
    Ours(Transaction, Window),
    /// It is answered.
    Answered(Stored),
    /// Somebody holds it, and did so for too long.
    Held,
    /// Its time forbids it.
    Untimely(Untimely),
}

/// Claims the row, with an `answer` or without, once the transaction that holds it has ended.
pub(super) async fn contend(
    idempotency: &Idempotency,
    mut transaction: Transaction,
    request: &IdempotentRequest,
    patience: Patience,
    timing: Option<Timing>,
    answer: Option<&StoredResponse>,
) -> Result<Contended, Error> {
    let pool = &idempotency.0.pool;
    let terms = terms(idempotency, timing, answer);
    let mut place = None;
    for _ in 0..ROUNDS {
        let wait = patience.wait(place.is_some());
        let asked = claim::claim(transaction.connection(), request, wait, terms);
        // `lock_timeout` counts for each lock anew, and some engines ignore it.
        let Ok(claimed) = timeout_at(patience.end.max(Instant::now()) + GRACE, asked).await else {
            transaction.close();
            return Ok(Contended::Held);
        };
        match claimed {
            Ok(Claimed::Ours(window)) => return Ok(Contended::Ours(transaction, window)),
            Ok(Claimed::Answered(stored)) => {
                transaction.rollback().await?;
                return Ok(Contended::Answered(stored));
            }
            Ok(Claimed::Untimely(untimely)) => {
                transaction.rollback().await?;
                return Ok(Contended::Untimely(untimely));
            }
            // Another process executes it.
            Ok(Claimed::Held | Claimed::TimedOut) => {
                transaction.rollback().await?;
                place = match place {
                    None => patience.place(idempotency).await,
                    Some(_) => None,
                };
                if place.is_none() {
                    return Ok(Contended::Held);
                }
                transaction = Transaction::begin(pool).await?;
            }
            Ok(missing @ (Claimed::Unregistered | Claimed::NoPartition)) => {
                // The connection first: the pool may have no other.
                transaction.rollback().await?;
                prepare(idempotency, request, timing, &missing).await?;
                transaction = Transaction::begin(pool).await?;
            }
            // Under REPEATABLE READ and above, whoever waited cannot see what he waited for.
            Ok(Claimed::Lost) => transaction = transaction.restart().await?,
            Err(error) if error.kind() == ErrorKind::Conflict => transaction = transaction.restart().await?,
            Err(error) => return Err(error),
        }
    }
    Err(Error::new(ErrorKind::Conflict))
}

fn terms<'a>(idempotency: &Idempotency, timing: Option<Timing>, answer: Option<&'a StoredResponse>) -> Terms<'a> {
    let own = answer.and_then(StoredResponse::retention);
    Terms { retention: own.unwrap_or(idempotency.0.retention), timing, answer, prepared: idempotency.0.prepared }
}

/// What a stored answer is to a request.
pub(super) enum Settled {
    Answer(StoredResponse),
    Reused,
    OtherTime,
}

impl From<Settled> for Claim {
    fn from(settled: Settled) -> Self {
        match settled {
            Settled::Answer(response) => Self::of(response),
            Settled::Reused => Self::KeyReused,
            Settled::OtherTime => Self::Untimely(Untimely::OtherTime),
        }
    }
}

/// Tells those who wait in this process what was found, and what that is to the owner.
pub(super) fn settle(owner: Owner, timing: Option<Timing>, stored: Stored) -> Settled {
    let settled = compare(owner.request(), timing, stored);
    match &settled {
        Settled::Answer(response) => owner.answered(response.clone()),
        Settled::Reused => owner.reused(),
        // Those who wait may bear the right time.
        Settled::OtherTime => drop(owner),
    }
    settled
}

/// Was the stored answer given to this very request?
fn compare(request: &IdempotentRequest, timing: Option<Timing>, stored: Stored) -> Settled {
    match (timing, stored.born) {
        (Some(timing), Some(born)) if timing.born != born => Settled::OtherTime,
        _ if request.fingerprint().matches(&stored.fingerprint) => Settled::Answer(stored.response),
        _ => Settled::Reused,
    }
}

/// Likewise, for an answer that this process remembers.
fn compare_known(request: &IdempotentRequest, known: Remembered) -> Settled {
    if known.request.first_sent() != request.first_sent() {
        return Settled::OtherTime;
    }
    if known.request.fingerprint() == request.fingerprint() { Settled::Answer(known.response) } else { Settled::Reused }
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
    let timing = timing(idempotency, request)?;
    let patience = Patience::of(idempotency.0.concurrency);
    let place = idempotency.0.places.try_acquire();
    let mut prepared = 0;
    for _ in 0..ROUNDS {
        probe(connection).await.map_err(before_commit)?;
        let mut savepoint = connection.begin().await.map_err(before_commit)?;
        let wait = match patience.wait(place.is_ok()) {
            Wait::Never => Wait::NextToNothing,
            wait => wait,
        };
        let claimed = claim::claim(&mut savepoint, request, wait, terms(idempotency, timing, None)).await?;
        let keep = matches!(claimed, Claimed::Ours(_));
        let ended = if keep { savepoint.commit().await } else { savepoint.rollback().await };
        ended.map_err(before_commit)?;
        match claimed {
            Claimed::Ours(_) => return Ok(ClaimUsing::Fresh),
            Claimed::Answered(stored) => {
                return Ok(match compare(request, timing, stored) {
                    Settled::Answer(response) => match response.tombstone() {
                        None => ClaimUsing::Replay(response),
                        Some(tombstone) => ClaimUsing::NotRetained(tombstone),
                    },
                    Settled::Reused => ClaimUsing::KeyReused,
                    Settled::OtherTime => ClaimUsing::Untimely(Untimely::OtherTime),
                });
            }
            Claimed::Held | Claimed::TimedOut => return Ok(ClaimUsing::InProgress),
            Claimed::Untimely(untimely) => return Ok(ClaimUsing::Untimely(untimely)),
            missing @ (Claimed::Unregistered | Claimed::NoPartition) => {
                // Under REPEATABLE READ and above this transaction does not see what was prepared.
                prepared += 1;
                if prepared > 2 {
                    return Err(Error::new(ErrorKind::Conflict));
                }
                prepare(idempotency, request, timing, &missing).await?;
            }
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

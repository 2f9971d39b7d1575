use std::pin::pin;

use tokio::time::timeout_at;

use super::{
    Attempt, Duplicate, Idempotency, Uninterrupted,
    identity::identity,
    in_flight::{Entered, Leader},
    patience::{Caller, Patience},
    timing::{prepare, timing},
    verdict::{Verdict, verdict, verdict_on_known},
};
use crate::{
    Error, ErrorKind, IdempotentRequest, KeyTimeError, StoredResponse, Window,
    error::{Connection, Unavailable},
    postgres::{
        claim::{self, Claimed, Terms, Timing, Wait},
        row::Stored,
        transaction::Transaction,
    },
    unless::unless,
};

/// The number of unusable connections after which a claim gives up.
const CONNECTIONS_LOST: u32 = 3;

/// How often a claim starts over after it lost its row to another transaction that then left none. Each round needs another
/// conflict, so this many mean that something is wrong.
pub(super) const ROUNDS: u32 = 16;

/// The outcome of [`Idempotency::claim`]. It is deliberately exhaustive: each case needs its own response.
#[derive(Debug)]
#[must_use = "dropping a fresh claim rolls it back and frees the key"]
pub enum Claim {
    /// The key is claimed: do the work through the attempt, and end it.
    Fresh(Attempt),
    /// The key is not free.
    Duplicate(Duplicate),
}

/// The outcome of [`Idempotency::claim_using`], in the caller's own transaction.
#[derive(Debug)]
#[must_use = "a fresh claim has to be completed or rolled back"]
pub enum ClaimUsing {
    /// The key is claimed in the caller's transaction.
    Fresh,
    /// The key is not free.
    Duplicate(Duplicate),
}

/// Waiting for another in this process may be cut off; asking the database may not.
pub(super) async fn claim(idempotency: &Idempotency, request: &IdempotentRequest) -> Result<Claim, Error> {
    refuse_blank(request)?;
    let timing = timing(idempotency, request)?;
    let recent = idempotency.0.in_flight.recent();
    if recent.keeps_answers()
        && let Some(known) = recent.answer(&identity(request))
    {
        let verdict = verdict_on_known(request, &known.request, timing.is_some());
        return Ok(Claim::Duplicate(told(verdict, known.response)));
    }
    let patience = Patience::of(idempotency.0.concurrency);
    // Dropped with this future: what goes on without it learns that nobody waits for it any more.
    let (_here, caller) = Caller::new();
    loop {
        match idempotency.0.in_flight.enter(request, timing.is_some()) {
            Entered::Leader(leader) => {
                let asking = claim_for_all(idempotency.clone(), patience, timing, caller, leader);
                return Uninterrupted::new(&idempotency.0.backlog, asking).await;
            }
            Entered::Follower(follower) => {
                if let Some(duplicate) = patience.learn(follower).await {
                    return Ok(Claim::Duplicate(duplicate));
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
    caller: Caller,
    leader: Leader,
) -> Result<Claim, Error> {
    if let Some(stored) = look_first(&idempotency, timing, &leader).await? {
        return Ok(Claim::Duplicate(settle(leader, timing, stored)));
    }
    let mut transaction = idempotency.begin(leader.request()).await?;
    // If the connection is lost, the claim finds out, and takes another.
    drop(idempotency.0.connections.get_to_know(&mut transaction).await);
    match contend(&idempotency, transaction, leader.request(), patience, timing, caller, None).await? {
        Contended::Ours(transaction, window, tid) => {
            leader.executes();
            Ok(Claim::Fresh(Attempt::new(transaction, leader, window, tid, idempotency)))
        }
        Contended::Answered(stored) => Ok(Claim::Duplicate(settle(leader, timing, stored))),
        Contended::Lost(duplicate) => Ok(Claim::Duplicate(duplicate)),
    }
}

/// One round trip instead of three, where this process has seen the key. Behind a pooler, which may change the server in
/// between, it is none, and a row that only the request's own settings let it see needs a transaction for those.
async fn look_first(
    idempotency: &Idempotency,
    timing: Option<Timing>,
    leader: &Leader,
) -> Result<Option<Stored>, Error> {
    let connections = &idempotency.0.connections;
    let sending = connections.sending();
    if !sending.kept || !leader.has_been_seen() || !leader.request().local_settings().is_empty() {
        return Ok(None);
    }
    let mut lent = match connections.lend().await {
        // The claim tries for longer.
        Err(error) if matches!(error.why_unavailable(), Some(Unavailable::Down(_))) => return Ok(None),
        lent => lent?,
    };
    lent.keep_back();
    match claim::look(&mut lent, leader.request(), Timing::table(timing), sending).await {
        Err(error) if error.connection() != Connection::Fit => {
            // The claim takes another one.
            lent.discard(error.connection());
            Ok(None)
        }
        looked => {
            lent.give_back();
            looked
        }
    }
}

/// What came of contending for a row with other processes.
pub(super) enum Contended {
    /// It is ours, in this transaction and for this window; where it lies, if that is to be used.
    Ours(Transaction, Window, Option<Box<str>>),
    /// Its response is there.
    Answered(Stored),
    /// Another request holds it, and did so for too long; or its time forbids it.
    Lost(Duplicate),
}

/// Claims the row, with an `answer` or without, once the transaction that holds it has ended.
pub(super) async fn contend(
    idempotency: &Idempotency,
    mut transaction: Transaction,
    request: &IdempotentRequest,
    patience: Patience,
    timing: Option<Timing>,
    mut caller: Caller,
    answer: Option<&StoredResponse>,
) -> Result<Contended, Error> {
    let terms = terms(idempotency, timing, answer);
    let (mut permit, mut lost) = (None, 0_u32);
    for _ in 0..ROUNDS {
        let wait = patience.wait(permit.is_some());
        let asked =
            timeout_at(patience.limit(wait, terms), claim::claim(transaction.connection(), request, wait, terms));
        let asked = match wait {
            // A claim that waits for others is given up when its caller has gone.
            Wait::UpTo(_) => unless(pin!(caller.gone()), asked).await,
            Wait::Never | Wait::NextToNothing => Some(asked.await),
        };
        let Some(asked) = asked else {
            transaction.close_busy();
            return Ok(Contended::Lost(Duplicate::InProgress));
        };
        let Ok(claimed) = asked else {
            // `lock_timeout` would have ended a wait for others: the database itself is silent, or held up.
            transaction.close_busy();
            return Err(Error::unavailable(Unavailable::NoAnswer(terms.sending.limit)));
        };
        match transaction.note(claimed) {
            Ok(Claimed::Ours(window, tid)) => return Ok(Contended::Ours(transaction, window, tid)),
            // What was found holds, whatever becomes of the connection.
            Ok(Claimed::Answered(stored)) => {
                drop(transaction.rollback().await);
                return Ok(Contended::Answered(stored));
            }
            Ok(Claimed::KeyTime(error)) => {
                drop(transaction.rollback().await);
                return Ok(Contended::Lost(Duplicate::KeyTime(error)));
            }
            // Another process executes it.
            Ok(Claimed::Held | Claimed::TimedOut) => {
                transaction.rollback().await?;
                permit = match permit {
                    None => unless(pin!(caller.gone()), patience.permit(idempotency)).await.flatten(),
                    Some(_) => None,
                };
                if permit.is_none() {
                    return Ok(Contended::Lost(Duplicate::InProgress));
                }
                transaction = idempotency.begin(request).await?;
            }
            Ok(Claimed::Blocked) => {
                transaction = transaction.restart().await?;
                let asked = claim::is_executed_elsewhere(transaction.connection(), request, terms.sending).await;
                let executed = transaction.note(asked)?;
                transaction.rollback().await?;
                return match executed {
                    true => Ok(Contended::Lost(Duplicate::InProgress)),
                    false => Err(Error::unavailable(Unavailable::Locked)),
                };
            }
            Ok(missing @ (Claimed::Unregistered | Claimed::NoPartition)) => {
                // The connection first: the pool may have no other.
                transaction.rollback().await?;
                prepare(idempotency, request, timing, &missing).await?;
                transaction = idempotency.begin(request).await?;
            }
            // Under REPEATABLE READ and above, a claim that waited cannot see the row that it waited for.
            Ok(Claimed::Lost) => transaction = transaction.restart().await?,
            Err(error) if error.kind() == ErrorKind::Conflict => transaction = transaction.restart().await?,
            // The connection cannot serve, or is gone with a server that restarts. Nothing has been executed yet.
            Err(error) if error.is_of_connection() && lost < CONNECTIONS_LOST => {
                lost = lost.saturating_add(1);
                drop(transaction);
                transaction = idempotency.begin(request).await?;
            }
            Err(error) => return Err(error),
        }
    }
    Err(Error::new(ErrorKind::Conflict))
}

pub(super) fn terms<'a>(
    idempotency: &Idempotency,
    timing: Option<Timing>,
    answer: Option<&'a StoredResponse>,
) -> Terms<'a> {
    let own = answer.and_then(StoredResponse::retention);
    Terms {
        retention: own.unwrap_or_else(|| idempotency.retention_in_force()),
        timing,
        answer,
        sending: idempotency.0.connections.sending(),
        serializable: idempotency.0.connections.are_serializable(),
        held: None,
    }
}

/// Tells those who wait in this process what was found, and what that is to the leader.
pub(super) fn settle(leader: Leader, timing: Option<Timing>, stored: Stored) -> Duplicate {
    let response = stored.response.clone();
    let duplicate = compare(leader.request(), timing, stored);
    match &duplicate {
        Duplicate::KeyReused => leader.reused(),
        // Those who wait may come with the right time.
        Duplicate::KeyTime(_) => drop(leader),
        _ => leader.answered(response),
    }
    duplicate
}

/// What a stored response is to a request.
pub(super) fn compare(request: &IdempotentRequest, timing: Option<Timing>, stored: Stored) -> Duplicate {
    let times = timing.zip(stored.born).map(|(timing, born)| timing.born == born);
    told(verdict(request, &stored.fingerprint, times), stored.response)
}

fn told(verdict: Verdict, response: StoredResponse) -> Duplicate {
    match verdict {
        Verdict::Same => Duplicate::of(response),
        Verdict::OtherTime => Duplicate::KeyTime(KeyTimeError::Mismatch),
        Verdict::Other => Duplicate::KeyReused,
    }
}

pub(super) fn refuse_blank(request: &IdempotentRequest) -> Result<(), Error> {
    if request.scope().is_blank() {
        return Err(Error::new(ErrorKind::BlankScope));
    }
    Ok(())
}

//! A claim in a transaction of the caller's.

use sqlx::{Connection as _, PgConnection};
use tokio::time::timeout_at;

use super::{
    ClaimUsing, Duplicate, Idempotency,
    attempt::row,
    claim::{ROUNDS, compare, refuse_blank, terms},
    patience::Patience,
    timing::{prepare, timing},
};
use crate::{
    Error, ErrorKind, IdempotentRequest,
    error::Unavailable,
    postgres::{
        claim::{self, Claimed, Terms, Wait},
        record,
    },
};

/// How many keys a transaction may claim. Each takes a place in the server's table of locks, which all its sessions
/// share: by default it has some 6,400 places, and a server on which it is full refuses everybody.
const MOST_CLAIMS: u32 = 1_000;

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
    let permit = idempotency.0.waiting.try_acquire();
    let mut prepared = 0_u32;
    for _ in 0..ROUNDS {
        let sending = idempotency.0.connections.sending();
        let held = claim::claims(connection, sending).await?;
        if held.claims >= MOST_CLAIMS {
            return Err(Error::new(ErrorKind::TooManyClaims));
        }
        let mut savepoint = sending.ask(connection.begin()).await?;
        let wait = match patience.wait(permit.is_ok()) {
            Wait::Never => Wait::NextToNothing,
            wait => wait,
        };
        let terms = Terms { held: Some(held), ..terms(idempotency, timing, None) };
        let asked = claim::claim(&mut savepoint, request, wait, terms);
        let claimed = match timeout_at(patience.limit(wait, terms), asked).await {
            Ok(Err(error)) if error.kind() == ErrorKind::Unanswered => {
                // This transaction itself may hold it.
                if !record::is_held_here(&mut savepoint, row(idempotency, request)?).await? {
                    return Err(error);
                }
                Claimed::Held
            }
            Ok(claimed) => claimed?,
            Err(_) => return Err(Error::unavailable(Unavailable::NoAnswer(sending.limit))),
        };
        if matches!(claimed, Claimed::Ours(..)) {
            sending.ask(savepoint.commit()).await?;
        } else {
            sending.ask(savepoint.rollback()).await?;
        }
        match claimed {
            Claimed::Ours(..) => return Ok(ClaimUsing::Fresh),
            Claimed::Answered(stored) => return Ok(ClaimUsing::Duplicate(compare(request, timing, stored))),
            Claimed::Held | Claimed::TimedOut => return Ok(ClaimUsing::Duplicate(Duplicate::InProgress)),
            Claimed::Blocked => {
                // The lock, if it comes free just now, is the caller's until the transaction ends.
                return if claim::is_executed_elsewhere(connection, request, sending).await? {
                    Ok(ClaimUsing::Duplicate(Duplicate::InProgress))
                } else {
                    Err(Error::unavailable(Unavailable::Locked))
                };
            }
            Claimed::KeyTime(error) => {
                return Ok(ClaimUsing::Duplicate(Duplicate::KeyTime(error)));
            }
            missing @ (Claimed::Unregistered | Claimed::NoPartition) => {
                // Under REPEATABLE READ and above this transaction does not see what was prepared.
                prepared = prepared.saturating_add(1);
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

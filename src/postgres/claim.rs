//! The claim: one atomic statement that makes a key ours, or shows whose it is.

use std::time::Duration;

use sqlx::{
    PgConnection, Postgres, Row as _,
    postgres::{PgArguments, PgRow, types::PgInterval},
    query::Query,
};

use super::{
    Sending,
    error::{before_commit, has_no_partition, is_timeout, waited_for_a_row},
    row::{Columns, Stored, stored, window},
    sql::{sql, sql_of_both},
    table::{Statements, Table},
    time::{Moment, interval},
};
use crate::{Error, IdempotentRequest, KeyTimeError, Retention, StoredResponse, Window};

/// What the claim statement found.
#[derive(Debug)]
pub(crate) enum Claimed {
    /// The row is ours, for this window. It is visible to others once the transaction commits. Where transactions are
    /// serializable, with its place.
    Ours(Window, Option<Box<str>>),
    /// A row with a response was there.
    Answered(Stored),
    /// A transaction that is still open holds the row.
    Held,
    /// Likewise, and it did not end in time. PostgreSQL has given up this transaction.
    TimedOut,
    /// The wait for some lock took too long, and not for a row of ours. PostgreSQL has given up this transaction.
    Blocked,
    /// Somebody's row was in the way and is gone: ask again.
    Lost,
    /// The key carries a timestamp at which it cannot be executed. It may have been claimed: roll back.
    KeyTime(KeyTimeError),
    /// The operation's window is not noted yet, or is shorter than the one asked for.
    Unregistered,
    /// There is no partition for the key's time. PostgreSQL has given up this transaction.
    NoPartition,
}

/// How long a claim waits for a transaction that holds the row.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wait {
    /// Not at all where the server knows of the other one beforehand.
    Never,
    /// Likewise, and next to nothing otherwise.
    NextToNothing,
    /// At most so long.
    UpTo(Duration),
}

/// What a claim is made for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms<'a> {
    pub(crate) retention: Retention,
    /// For a key that carries a timestamp.
    pub(crate) timing: Option<Timing>,
    /// To be written at once.
    pub(crate) answer: Option<&'a StoredResponse>,
    pub(crate) sending: Sending,
    /// Whether transactions are serializable, unless they say otherwise.
    pub(crate) serializable: bool,
    /// In a transaction of the caller's: what it is like.
    pub(crate) held: Option<Held>,
}

/// A key's time, and what is accepted; all in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timing {
    /// When the key was made, since 1970.
    pub(crate) born: i64,
    pub(crate) window: i64,
    pub(crate) skew: i64,
    /// How long after it was made a key is kept.
    pub(crate) keep: i64,
    pub(crate) partitioned: bool,
}

impl Terms<'_> {
    /// How many claims the caller's transaction holds with this one.
    fn claims(&self) -> Option<String> {
        self.held.map(|held| held.claims.saturating_add(1).to_string())
    }

    pub(crate) fn table(&self) -> Table {
        Timing::table(self.timing)
    }
}

impl Timing {
    pub(crate) fn table(this: Option<Self>) -> Table {
        match this {
            Some(timing) if timing.partitioned => Table::TimedKeys(timing.born),
            _ => Table::Keys,
        }
    }
}

impl Wait {
    fn waits(self) -> bool {
        matches!(self, Self::UpTo(_))
    }

    /// In milliseconds. Zero would mean "for ever".
    fn lock_timeout(self) -> String {
        /// Long enough for the pruner to let go of a row, short enough to be called "at once".
        const NEXT_TO_NOTHING: Duration = Duration::from_millis(50);

        let bound = match self {
            Self::Never | Self::NextToNothing => NEXT_TO_NOTHING,
            Self::UpTo(bound) => bound,
        };
        format!("{}ms", bound.as_millis().clamp(1, i32::MAX as u128))
    }
}

/// For one that does not wait, which is every first one.
const CLAIM: &str = sql!("keys/claim");

/// Likewise in a transaction of the caller's.
const CLAIM_BOUNDED: &str = sql!("keys/claim_bounded");

/// For one that waits for the transaction that holds the row.
const CLAIM_WAITING: &str = sql!("keys/claim_waiting");

/// For a key that carries a timestamp.
const CLAIM_TIMED: Statements = sql_of_both!("claim_timed");

/// For a row that has expired.
const TAKE_OVER: &str = sql!("keys/take_over");

const TAKE_OVER_TIMED: &str = sql!("keys/take_over_timed");

const READ: Statements = sql_of_both!("read");

const IS_FREE: &str = sql!("is_free");

const CLAIMS: &str = sql!("claims");

/// Claims `request`'s row, inside a transaction; with a response, writes it at once.
///
/// # Errors
///
/// As [`before_commit`] has it. PostgreSQL has then given up the transaction.
pub(crate) async fn claim(
    connection: &mut PgConnection,
    request: &IdempotentRequest,
    wait: Wait,
    terms: Terms<'_>,
) -> Result<Claimed, Error> {
    let table = terms.table();
    let row = match ask(connection, request, wait, terms).await {
        Ok(row) => row,
        Err(error) => return gave_up(error),
    };
    if let Some(claimed) = claimed(&row)? {
        return Ok(claimed);
    }
    // Whether the row's lock is this transaction's now, which says that a row in the way may have expired.
    let free: Option<bool> = row.try_get("free").map_err(before_commit)?;
    // Those that do not wait, and do not judge times, have seen that it has.
    let has_expired = free.is_some() && terms.timing.is_none() && !wait.waits();
    if has_expired && free == Some(false) {
        return Ok(Claimed::Held);
    }
    if !has_expired {
        if let Some(stored) = stored(&row)? {
            return Ok(Claimed::Answered(stored));
        }
        // A row was in the way, or a lock. If its transaction has been committed meanwhile, it can be seen now.
        if let Some(stored) = look(connection, request, table, terms.sending).await? {
            return Ok(Claimed::Answered(stored));
        }
    }
    // In the partitioned table a key has one time: it is too old for it before its row has expired.
    if free == Some(true) && table == Table::Keys {
        let row = match take_over(connection, request, wait, terms, &row).await? {
            Ok(row) => row,
            Err(error) => return gave_up(error),
        };
        if let Some(claimed) = claimed(&row)? {
            return Ok(claimed);
        }
    }
    if has_expired && let Some(stored) = look(connection, request, table, terms.sending).await? {
        return Ok(Claimed::Answered(stored));
    }
    Ok(if wait.waits() { Claimed::Lost } else { Claimed::Held })
}

/// What a statement says that claims: the row is ours, or its time forbids it.
fn claimed(row: &PgRow) -> Result<Option<Claimed>, Error> {
    if let Some(claimed) = judged(row)? {
        return Ok(Some(claimed));
    }
    if row.try_get("ours").map_err(before_commit)? {
        let tid = row.try_get("place").map_err(before_commit)?;
        return Ok(Some(Claimed::Ours(window(row)?, tid)));
    }
    Ok(None)
}

/// What a claim that the server refused has found.
fn gave_up(error: sqlx::Error) -> Result<Claimed, Error> {
    match error {
        error if is_timeout(&error) && waited_for_a_row(&error) => Ok(Claimed::TimedOut),
        error if is_timeout(&error) => Ok(Claimed::Blocked),
        error if has_no_partition(&error) => Ok(Claimed::NoPartition),
        error => Err(before_commit(error)),
    }
}

/// What the times say, unless they are in order. Only the statement for keys that carry a timestamp judges them.
fn judged(row: &PgRow) -> Result<Option<Claimed>, Error> {
    let verdict: Option<&str> = match row.try_get("verdict") {
        Err(sqlx::Error::ColumnNotFound(_)) => None,
        verdict => verdict.map_err(before_commit)?,
    };
    Ok(match verdict {
        Some("expired") => Some(Claimed::KeyTime(KeyTimeError::Expired)),
        Some("from future") => Some(Claimed::KeyTime(KeyTimeError::InFuture)),
        Some("unregistered") => Some(Claimed::Unregistered),
        Some("stale") => Some(Claimed::Lost),
        // Without a verdict there is a response.
        _ => None,
    })
}

async fn ask(
    connection: &mut PgConnection,
    request: &IdempotentRequest,
    wait: Wait,
    terms: Terms<'_>,
) -> Result<PgRow, sqlx::Error> {
    let statement = match (terms.timing, wait) {
        (Some(_), _) => terms.table().of(&CLAIM_TIMED),
        (None, Wait::Never) => CLAIM,
        (None, Wait::NextToNothing) => CLAIM_BOUNDED,
        (None, Wait::UpTo(_)) => CLAIM_WAITING,
    };
    let query = of_claim(statement, request, terms).bind(request.lock_number());
    let claims = terms.claims();
    let query = match (terms.timing, wait) {
        (Some(Timing { born: _, window, keep, skew, partitioned }), wait) => query
            .bind(wait.lock_timeout())
            .bind(wait.waits())
            .bind(window)
            .bind(keep)
            .bind(skew)
            .bind(partitioned)
            .bind(terms.serializable)
            .bind(claims),
        (None, Wait::Never) => query.bind(terms.serializable),
        (None, Wait::NextToNothing | Wait::UpTo(_)) => query.bind(wait.lock_timeout()).bind(claims),
    };
    query.persistent(terms.sending.kept).fetch_one(connection).await
}

/// Claims by taking over a row that has expired, as the pruner and a claim after it would have done. `judged` is what the
/// claim before it said.
async fn take_over(
    connection: &mut PgConnection,
    request: &IdempotentRequest,
    wait: Wait,
    terms: Terms<'_>,
    judged: &PgRow,
) -> Result<Result<PgRow, sqlx::Error>, Error> {
    let bound = |query: Query<'static, Postgres, PgArguments>| query.bind(wait.lock_timeout()).bind(terms.claims());
    let query = match terms.timing {
        None => bound(of_claim(TAKE_OVER, request, terms)),
        Some(Timing { born, .. }) => {
            let keep: i64 = judged.try_get("keep_us").map_err(before_commit)?;
            let accepted: PgInterval = judged.try_get("accepted").map_err(before_commit)?;
            let query = of_claim(TAKE_OVER_TIMED, request, terms).bind(Moment(born).plus(keep));
            bound(query).bind(accepted)
        }
    };
    Ok(query.persistent(terms.sending.kept).fetch_one(connection).await)
}

/// With what every claim has: its row, what was asked, for how long, and a response to be written at once.
fn of_claim(
    statement: &'static str,
    request: &IdempotentRequest,
    terms: Terms<'_>,
) -> Query<'static, Postgres, PgArguments> {
    let answer = terms.answer.map(Columns::of);
    // Counted from when a transaction began, which may be long ago.
    let age = terms.held.map_or(0, |held| held.age);
    let from_now = |micros: i64| interval(micros.saturating_add(age));
    let query = of_request(statement, request).bind(request.fingerprint().to_stored());
    let query = match terms.timing {
        Some(timing) => query.bind(Moment(timing.born)),
        None => query.bind(terms.retention.keep_micros().map(from_now)),
    };
    query
        .bind(terms.retention.replay_micros().map(from_now))
        .bind(answer.as_ref().map(|columns| columns.status))
        .bind(answer.as_ref().and_then(|columns| columns.header_names.as_deref()))
        .bind(answer.as_ref().and_then(|columns| columns.header_values.as_deref()))
        .bind(answer.as_ref().and_then(|columns| columns.body))
}

fn of_request(statement: &'static str, request: &IdempotentRequest) -> Query<'static, Postgres, PgArguments> {
    sqlx::query(statement)
        .bind(request.scope().as_stored())
        .bind(request.operation().as_str())
        .bind(request.key().as_str())
}

/// The response, if there is one. Needs no transaction.
pub(crate) async fn look(
    connection: &mut PgConnection,
    request: &IdempotentRequest,
    table: Table,
    sending: Sending,
) -> Result<Option<Stored>, Error> {
    let query = of_request(table.of(&READ), request);
    let row = sending.ask(table.bind(query).persistent(sending.kept).fetch_optional(connection)).await?;
    Ok(row.as_ref().map(stored).transpose()?.flatten())
}

/// How many claims the transaction of the caller's holds. Fails if PostgreSQL has given it up: where SAVEPOINT itself fails,
/// sqlx (0.9) rolls the whole transaction back, and what comes after that would be durable statement by statement.
pub(crate) async fn claims(connection: &mut PgConnection, sending: Sending) -> Result<Held, Error> {
    let query = sqlx::query_as(CLAIMS).persistent(sending.kept);
    let (claims, age): (Option<String>, PgInterval) = sending.ask(query.fetch_one(connection)).await?;
    let days = i64::from(age.days).saturating_mul(24 * 60 * 60 * 1_000_000);
    Ok(Held {
        claims: claims.and_then(|claims| claims.parse().ok()).unwrap_or_default(),
        age: days.saturating_add(age.microseconds),
    })
}

/// What a transaction of the caller's is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// How many claims it holds.
    pub(crate) claims: u32,
    /// How long ago it began, in microseconds.
    pub(crate) age: i64,
}

/// Does somebody execute the request? To be asked in another transaction than the one that waited in vain: the lock, if
/// it is free, is kept until that ends.
pub(crate) async fn is_executed_elsewhere(
    connection: &mut PgConnection,
    request: &IdempotentRequest,
    sending: Sending,
) -> Result<bool, Error> {
    let query = sqlx::query_scalar(IS_FREE).bind(request.lock_number());
    let free: bool = sending.ask(query.persistent(sending.kept).fetch_one(connection)).await?;
    Ok(!free)
}

//! How far back each operation remembers, for keys that carry a timestamp.

use sqlx::{Executor as _, PgConnection, Row as _};

use super::{
    Connections, Sending, Table,
    claim::Timing,
    error::{before_commit, is_timeout},
    sql::{sql, sql_of_both},
    table::Statements,
    time::Moment,
};
use crate::{Error, Operation};

/// First of two steps: keys are kept as the longer window asks for.
const NOTE: &str = sql!("windows/note");

const PENDING: &str = sql!("windows/pending");

/// A table may be large, and has no index that begins with the operation.
const USED_LIMIT: &str = "set local statement_timeout = '2s'";

const IS_USED: Statements = sql_of_both!("is_used");

/// Second step: what was made until now is judged by the shorter window, or refused.
const LOCK: &str = sql!("windows/lock");

const REFUSE_UNTIL: &str = sql!("windows/refuse_until");

const GUARD_SINCE: &str = sql!("windows/guard_since");

/// What counts as for ever: a hundred years.
const FOR_EVER: i64 = 3_155_760_000_000_000;

/// Notes an operation's window, if it is longer than what is noted, and ends what others have begun.
///
/// # Errors
///
/// As [`before_commit`] has it, or as for a commit. What has been done stays; the next claim does the rest.
pub(crate) async fn register(
    connections: &Connections,
    operation: &Operation,
    timing: Timing,
    before: Option<i64>,
) -> Result<(), Error> {
    let sending = connections.sending();
    let note = sqlx::query(NOTE)
        .bind(operation.as_str())
        .bind(timing.window)
        .bind(timing.keep)
        .bind(timing.skew)
        .bind(timing.partitioned);
    connections.change(note.persistent(sending.kept)).await?;

    let pending = sqlx::query(PENDING).bind(operation.as_str()).persistent(sending.kept);
    let mut transaction = connections.begin_own().await?;
    let looked = sending.ask(pending.fetch_optional(transaction.connection())).await;
    let Some(pending) = transaction.note(looked)? else {
        return transaction.rollback().await;
    };
    let new: bool = pending.try_get("new").map_err(before_commit)?;
    let used = if new {
        let looked = is_used(transaction.connection(), operation, timing, sending).await;
        transaction.note(looked)?
    } else {
        false
    };
    transaction.rollback().await?;

    let mut transaction = connections.begin_own().await?;
    let guarded = guard(transaction.connection(), operation, before, used, sending).await;
    transaction.note(guarded)?;
    transaction.commit().await
}

/// For an operation that is new here, to refuse what was made until now would refuse the very first key. If the table has no
/// row of it, nothing was executed during what was its retention until now (`before`; `None` is for ever), so what is older
/// than that is refused.
async fn guard(
    connection: &mut PgConnection,
    operation: &Operation,
    before: Option<i64>,
    used: bool,
    sending: Sending,
) -> Result<(), Error> {
    let lock = sqlx::query(LOCK).bind(operation.as_str()).persistent(sending.kept);
    let Some(locked) = sending.ask(lock.fetch_optional(&mut *connection)).await? else { return Ok(()) };
    let new: bool = locked.try_get("new").map_err(before_commit)?;
    let lead: i64 = locked.try_get("lead_us").map_err(before_commit)?;
    let now = Moment::read(&locked, "now")?.unwrap_or(Moment::NEVER);
    let until = if new && !used { now.plus(before.unwrap_or(FOR_EVER).saturating_neg()) } else { now.plus(lead) };
    for (statement, moment) in [(REFUSE_UNTIL, until), (GUARD_SINCE, now.plus(lead))] {
        let guard = sqlx::query(statement).bind(operation.as_str()).bind(moment).persistent(sending.kept);
        sending.ask(guard.execute(&mut *connection)).await?;
    }
    Ok(())
}

/// Is there a row of the operation? One that is not found in time may be there.
async fn is_used(
    connection: &mut PgConnection,
    operation: &Operation,
    timing: Timing,
    sending: Sending,
) -> Result<bool, Error> {
    let looks = match Timing::table(Some(timing)) {
        Table::Keys => &IS_USED[..1],
        Table::TimedKeys(_) => &IS_USED[..],
    };
    // As text: prepared, it would stay so behind a pooler.
    sending.ask(connection.execute(USED_LIMIT)).await?;
    for look in looks {
        let found = sqlx::query_scalar(*look).bind(operation.as_str()).persistent(sending.kept);
        match sending.within(found.fetch_one(&mut *connection)).await {
            Ok(false) => {}
            Ok(true) => return Ok(true),
            Err(error) if is_timeout(&error) => return Ok(true),
            Err(error) => return Err(before_commit(error)),
        }
    }
    Ok(false)
}

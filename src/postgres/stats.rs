//! What lies in the tables, from a bounded look.

use sqlx::{PgConnection, Row as _, postgres::PgRow};

use super::{
    Connections, Sending,
    error::before_commit,
    partitions,
    sql::{sql, sql_of_both},
    table::Statements,
    time::Moment,
};
use crate::{Error, OperationStats, Stats};

/// How many pages of a table are read: 8 MiB.
const PAGES: f64 = 1_000.0;

const SIZE: &str = sql!("size");

const SAMPLE: Statements = sql_of_both!("sample");

const OVERDUE: &str = sql!("keys/overdue");

const FIRST: &str = sql!("keys/first");

pub(crate) async fn stats(connections: &Connections) -> Result<Stats, Error> {
    let partitioned = partitions::exist(connections).await?;
    let mut transaction = connections.begin_own().await?;
    let looked = look_at_all(transaction.connection(), partitioned, connections.sending()).await;
    let (mut stats, overdue, first) = transaction.note(looked)?;
    transaction.rollback().await?;
    stats.overdue = unsigned(overdue.try_get("overdue").map_err(before_commit)?);
    let mut oldest: Vec<_> = stats.operations.iter().filter_map(|operation| operation.oldest).collect();
    for row in std::iter::once(&overdue).chain(&first) {
        oldest.extend(Moment::read(row, "oldest")?.map(Moment::to_system_time));
    }
    stats.oldest = oldest.into_iter().min();
    stats.operations.sort_by_key(|operation| {
        let OperationStats { live, tombstones, expired, .. } = operation;
        std::cmp::Reverse(live.saturating_add(*tombstones).saturating_add(*expired))
    });
    Ok(stats)
}

async fn look_at_all(
    connection: &mut PgConnection,
    partitioned: bool,
    sending: Sending,
) -> Result<(Stats, PgRow, Option<PgRow>), Error> {
    let mut stats = Stats { sampled: 1.0, ..Stats::default() };
    let [keys, timed_keys] = SAMPLE;
    look(connection, "idempotency.keys", keys, sending, &mut stats).await?;
    if partitioned {
        look(connection, "idempotency.timed_keys", timed_keys, sending, &mut stats).await?;
    }
    let overdue = sqlx::query(OVERDUE).persistent(sending.kept).fetch_one(&mut *connection);
    let overdue = sending.ask(overdue).await?;
    let first = sqlx::query(FIRST).persistent(sending.kept).fetch_optional(connection);
    Ok((stats, overdue, sending.ask(first).await?))
}

async fn look(
    connection: &mut PgConnection,
    table: &str,
    sample: &'static str,
    sending: Sending,
    stats: &mut Stats,
) -> Result<(), Error> {
    let size = sqlx::query(SIZE).bind(table).persistent(sending.kept).fetch_one(&mut *connection);
    let size = sending.ask(size).await?;
    let bytes = |column| size.try_get(column).map(unsigned).map_err(before_commit);
    stats.table_bytes = stats.table_bytes.saturating_add(bytes("table_bytes")?);
    stats.index_bytes = stats.index_bytes.saturating_add(bytes("index_bytes")?);
    let pages: f64 = size.try_get("pages").map_err(before_commit)?;
    let share = if pages > PAGES { PAGES / pages } else { 1.0 };
    stats.sampled = stats.sampled.min(share);
    let rows = sqlx::query(sample).bind(share * 100.0).persistent(sending.kept).fetch_all(connection);
    for row in &sending.ask(rows).await? {
        add(stats, read(row, share)?);
    }
    Ok(())
}

fn read(row: &PgRow, share: f64) -> Result<OperationStats, Error> {
    let estimate = |column| row.try_get(column).map(|seen: i64| scaled(seen, share)).map_err(before_commit);
    Ok(OperationStats {
        operation: row.try_get("operation").map_err(before_commit)?,
        live: estimate("live")?,
        tombstones: estimate("tombstones")?,
        expired: estimate("expired")?,
        bytes: estimate("bytes")?,
        oldest: Moment::read(row, "oldest")?.map(Moment::to_system_time),
    })
}

/// An operation may have rows in both tables.
fn add(stats: &mut Stats, more: OperationStats) {
    match stats.operations.iter_mut().find(|operation| operation.operation == more.operation) {
        None => stats.operations.push(more),
        Some(operation) => {
            for (sum, more) in [
                (&mut operation.live, more.live),
                (&mut operation.tombstones, more.tombstones),
                (&mut operation.expired, more.expired),
                (&mut operation.bytes, more.bytes),
            ] {
                *sum = sum.saturating_add(more);
            }
            operation.oldest = operation.oldest.into_iter().chain(more.oldest).min();
        }
    }
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "an estimate; the cast saturates"
)]
fn scaled(seen: i64, share: f64) -> u64 {
    (seen as f64 / share).round() as u64
}

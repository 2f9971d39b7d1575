//! What lies in the tables, from a bounded look.

use sqlx::{PgConnection, Row as _, postgres::PgRow};

use super::{
    Connections, Sending,
    error::before_commit,
    partitions,
    place::Statements,
    row::{micros, moment},
};
use crate::{Error, OperationStats, Stats};

/// How many pages of a table are read: 8 MiB.
const PAGES: f64 = 1_000.0;

/// A partitioned table has its pages in its leaves, and a plain one is no tree. `pg_relation_size` asks the file system, so that no ANALYZE need have
/// been there.
const SIZE: &str = "\
select coalesce(sum(pg_relation_size(relid) / current_setting('block_size')::bigint), 0)::float8 as pages,
       coalesce(sum(pg_table_size(relid)), 0)::bigint as table_bytes,
       coalesce(sum(pg_indexes_size(relid)), 0)::bigint as index_bytes
  from (
    select $1::text::regclass as relid
     union
    select relid from pg_catalog.pg_partition_tree($1::text::regclass)
  ) tables
";

macro_rules! sample {
    ($table:literal) => {
        concat!(
            "select operation,
                    count(*) filter (where live and not faded) as live,
                    count(*) filter (where live and faded) as tombstones,
                    count(*) filter (where not live) as expired,
                    coalesce(sum(bytes), 0)::bigint as bytes,
                    min(created_at) as oldest
               from (
                 select operation, created_at,
                        -- Column by column: that reads nothing which lies elsewhere.
                        28 + pg_column_size(scope) + pg_column_size(operation) + pg_column_size(key)
                        + pg_column_size(fingerprint) + coalesce(pg_column_size(header_names), 0)
                        + coalesce(pg_column_size(header_values), 0) + coalesce(pg_column_size(body), 0)
                        + 2 + 4 * 8 as bytes,
                        expires_at is null or expires_at > now() as live,
                        body is null or coalesce(replay_until <= now(), false) as faded
                   from idempotency.",
            $table,
            " row tablesample system ($1::float8::real)
               ) seen
              group by operation"
        )
    };
}

const SAMPLE: Statements = [sample!("keys"), sample!("timed_keys")];

/// By the index.
const OVERDUE: &str = "\
select count(*) as overdue, min(created_at) as oldest
  from (select created_at from idempotency.keys where expires_at <= now() order by expires_at limit 10000) overdue
";

/// By the index as well: the key that goes first is the oldest, unless windows differ.
const FIRST: &str = "\
select created_at as oldest
  from idempotency.keys
 where expires_at is not null
 order by expires_at
 limit 1
";

pub(crate) async fn stats(connections: &Connections) -> Result<Stats, Error> {
    let partitioned = partitions::exist(connections).await?;
    let mut transaction = connections.begin_own().await?;
    let looked = look_at_all(transaction.connection(), partitioned, connections.sending()).await;
    let (mut stats, overdue, first) = transaction.note(looked)?;
    transaction.rollback().await?;
    stats.overdue = unsigned(overdue.try_get("overdue").map_err(before_commit)?);
    let mut oldest: Vec<_> = stats.operations.iter().filter_map(|operation| operation.oldest).collect();
    for row in std::iter::once(&overdue).chain(&first) {
        oldest.extend(micros(row, "oldest")?.map(moment));
    }
    stats.oldest = oldest.into_iter().min();
    stats
        .operations
        .sort_by_key(|operation| std::cmp::Reverse(operation.live + operation.tombstones + operation.expired));
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
    stats.table_bytes += bytes("table_bytes")?;
    stats.index_bytes += bytes("index_bytes")?;
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
        oldest: micros(row, "oldest")?.map(moment),
    })
}

/// An operation may have rows in both tables.
fn add(stats: &mut Stats, more: OperationStats) {
    match stats.operations.iter_mut().find(|operation| operation.operation == more.operation) {
        None => stats.operations.push(more),
        Some(operation) => {
            operation.live += more.live;
            operation.tombstones += more.tombstones;
            operation.expired += more.expired;
            operation.bytes += more.bytes;
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

//! What a large table costs: first calls with millions of live keys against an empty table, pruning while requests run,
//! bytes for each key, growth over many turnovers, and dropping a partition. Against a durable server, in one run.
//!
//! ```sh
//! cargo bench --bench scale              # a million keys, a few minutes
//! cargo bench --bench scale -- --full    # ten million
//! ```

#![allow(clippy::expect_used)] // A benchmark that fails should stop.

use std::{
    error::Error,
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use axum_idempotency::{
    Claim, Fingerprint, Idempotency, IdempotencyKey, IdempotentRequest, Operation, Pruner, Scope, StoredResponse,
    TimestampedKeys, migrate_partitioned,
};
use sqlx::{AssertSqlSafe, Executor as _, PgPool, Row as _, postgres::PgPoolOptions};
use throwaway_postgres::{Options, Server};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const USAGE: &str = "usage: cargo bench --bench scale [-- [--full] [--only sizes|rows|pruning|turnovers|partition]]";
const CLIENTS: u32 = 8;
const ROUNDS: usize = 7;
const SLOT: Duration = Duration::from_secs(3);
const CHUNK: i64 = 250_000;

/// Rows as the layer writes them: 200 bytes of body, two header fields, a UUID for a key.
const FILL: &str = "\
insert into idempotency.keys (scope, operation, key, fingerprint, status, header_names, header_values, body, expires_at)
select 'tenant-' || n % 1000, 'charge.create', gen_random_uuid()::text, sha256(n::text::bytea) || '\\x01', 201,
       '{content-type,location}', array['application/json', '/charges/' || n]::text[]::bytea[],
       convert_to(repeat('0123456789', 20), 'UTF8'), now() + $3 * interval '1 second'
  from generate_series($1, $2) n";

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let (mut full, mut only) = (false, String::new());
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--full" => full = true,
            "--only" => only = arguments.next().ok_or(USAGE)?,
            other => return Err(format!("unknown argument {other}; {USAGE}").into()),
        }
    }
    let (live, expired, turnover) =
        if full { (10_000_000, 1_000_000, 1_000_000) } else { (1_000_000, 200_000, 200_000) };
    let server = Server::start(&Options { durable: true, ..Options::default() })?;

    if "sizes".contains(&only) {
        println!("bytes for each key, of {expired} (200 bytes of body, two header fields, a UUID)");
        sizes(&server, expired).await?;
    }
    if "rows".contains(&only) {
        println!("\nfirst calls of {CLIENTS} clients: {live} live keys against none");
        throughput(&server, live).await?;
    }
    if "pruning".contains(&only) {
        println!("\nlatency of first calls while {expired} expired keys are pruned, against before");
        pruning(&server, expired).await?;
    }
    if "turnovers".contains(&only) {
        println!("\nten turnovers of {turnover} keys, with autovacuum");
        turnovers(&server, turnover).await?;
    }
    if "partition".contains(&only) {
        println!("\ndropping a partition of {expired} keys");
        partition(&server, expired).await?;
    }
    Ok(())
}

async fn database(server: &Server, name: &str) -> Result<PgPool> {
    let admin = PgPool::connect(&server.url("postgres")).await?;
    admin.execute(AssertSqlSafe(format!("create database {name}"))).await?;
    admin.close().await;
    let pool =
        PgPoolOptions::new().max_connections(CLIENTS).min_connections(CLIENTS).connect(&server.url(name)).await?;
    migrate_partitioned(&pool).await?;
    pool.execute("create table effect (id bigint generated always as identity primary key, note text)").await?;
    Ok(pool)
}

async fn fill(pool: &PgPool, from: i64, count: i64, expires_in: i64) -> Result<()> {
    let mut next = from;
    while next < from + count {
        let last = (next + CHUNK).min(from + count) - 1;
        sqlx::query(FILL).bind(next).bind(last).bind(expires_in as f64).execute(pool).await?;
        next = last + 1;
    }
    Ok(())
}

/// Table and indexes, in bytes.
async fn size(pool: &PgPool) -> Result<(i64, i64)> {
    let row = pool.fetch_one("select pg_table_size('idempotency.keys'), pg_indexes_size('idempotency.keys')").await?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}

async fn sizes(server: &Server, count: i64) -> Result<()> {
    let pool = database(server, "sizes").await?;
    println!("{:>22} {:>12} {:>12} {:>12}", "", "table", "indexes", "bytes/key");
    let show = |what: &str, (table, indexes): (i64, i64)| {
        println!("{what:>22} {table:>12} {indexes:>12} {:>12.0}", (table + indexes) as f64 / count as f64);
    };
    fill(&pool, 1, count, 86_400).await?;
    show("live", size(&pool).await?);
    pool.execute("truncate idempotency.keys").await?;
    fill(&pool, 1, count, 86_400).await?;
    pool.execute("update idempotency.keys set header_names = null, header_values = null, body = null").await?;
    pool.execute("vacuum full idempotency.keys").await?;
    show("tombstones", size(&pool).await?);
    pool.close().await;
    Ok(())
}

fn request(number: u64) -> IdempotentRequest {
    // Spread over the index as random keys are.
    let spread = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let key = format!("{spread:016x}-{number:016x}");
    IdempotentRequest::new(
        Scope::new(format!("tenant-{}", spread % 1_000)),
        Operation::new("charge.create"),
        IdempotencyKey::new(key).expect("a key"),
        Fingerprint::of([spread.to_be_bytes()]),
    )
}

/// Closed-loop clients until `stop`, each first call with one INSERT of its own; their latencies.
async fn clients(pool: &PgPool, numbers: &Arc<AtomicU64>, stop: &Arc<AtomicBool>) -> Result<Vec<Duration>> {
    let idempotency = Idempotency::new(pool);
    let mut running = Vec::new();
    for _ in 0..CLIENTS {
        let (idempotency, numbers, stop) = (idempotency.clone(), numbers.clone(), stop.clone());
        running.push(tokio::spawn(async move {
            let answer = StoredResponse::new(http_status(), vec![b'x'; 200]);
            let mut latencies = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let began = Instant::now();
                match idempotency.claim(request(numbers.fetch_add(1, Ordering::Relaxed))).await? {
                    Claim::Fresh(mut attempt) => {
                        sqlx::query("insert into effect (note) values ('x')").execute(attempt.connection()).await?;
                        attempt.complete(&answer).await?;
                    }
                    Claim::Duplicate(duplicate) => return Err(format!("not fresh: {duplicate:?}").into()),
                }
                latencies.push(began.elapsed());
            }
            Ok::<_, Box<dyn Error + Send + Sync>>(latencies)
        }));
    }
    let mut all = Vec::new();
    for client in running {
        all.extend(client.await??);
    }
    all.sort_unstable();
    Ok(all)
}

fn http_status() -> axum::http::StatusCode {
    axum::http::StatusCode::CREATED
}

async fn for_a_while(pool: &PgPool, numbers: &Arc<AtomicU64>) -> Result<Vec<Duration>> {
    let stop = Arc::new(AtomicBool::new(false));
    let timer = stop.clone();
    tokio::spawn(async move {
        tokio::time::sleep(SLOT).await;
        timer.store(true, Ordering::Relaxed);
    });
    clients(pool, numbers, &stop).await
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted.get(sorted.len() * percent / 100).copied().unwrap_or_default()
}

fn summary(what: &str, mut ratios: Vec<f64>) {
    ratios.sort_by(f64::total_cmp);
    let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
    println!("{what}: median {:.2} ({least:.2} to {most:.2})", ratios[ratios.len() / 2]);
}

async fn throughput(server: &Server, live: i64) -> Result<()> {
    let (large, empty) = (database(server, "large").await?, database(server, "empty").await?);
    let began = Instant::now();
    fill(&large, 1, live, 864_000).await?;
    large.execute("vacuum analyze idempotency.keys").await?;
    empty.execute("checkpoint").await?;
    let (table, indexes) = size(&large).await?;
    println!("filled in {:.0?}: table {table} bytes, indexes {indexes} bytes", began.elapsed());
    let numbers = Arc::new(AtomicU64::new(1));
    for_a_while(&empty, &numbers).await?;
    for_a_while(&large, &numbers).await?;
    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        // The order changes, so that neither always comes after the other.
        let pools = if round % 2 == 0 { [&empty, &large] } else { [&large, &empty] };
        let counts = [for_a_while(pools[0], &numbers).await?.len(), for_a_while(pools[1], &numbers).await?.len()];
        let (none, many) = if round % 2 == 0 { (counts[0], counts[1]) } else { (counts[1], counts[0]) };
        println!("  round {round}: {none} against none, {many} with {live}");
        empty.execute("truncate idempotency.keys").await?;
        ratios.push(many as f64 / none as f64);
    }
    summary("first calls with / without live keys", ratios);
    let stats = {
        let began = Instant::now();
        let stats = Idempotency::new(&large).stats().await?;
        println!(
            "stats() in {:.1?}: {} live by a look at {:.4} of the table",
            began.elapsed(),
            stats.live(),
            stats.sampled
        );
        stats
    };
    assert!(stats.live().abs_diff(live.unsigned_abs()) < live.unsigned_abs() / 4, "the estimate is near");
    large.close().await;
    empty.close().await;
    Ok(())
}

async fn pruning(server: &Server, expired: i64) -> Result<()> {
    let pool = database(server, "pruning").await?;
    let numbers = Arc::new(AtomicU64::new(1));
    let idempotency = Idempotency::new(&PgPool::connect(&server.url("pruning")).await?);
    let mut ratios = Vec::new();
    for round in 0..3 {
        fill(&pool, 1, expired / 3, -1).await?;
        pool.execute("vacuum analyze idempotency.keys").await?;
        pool.execute("checkpoint").await?;
        for_a_while(&pool, &numbers).await?;
        let before = percentile(&for_a_while(&pool, &numbers).await?, 99);
        let stop = Arc::new(AtomicBool::new(false));
        let running = tokio::spawn({
            let (pool, numbers, stop) = (pool.clone(), numbers.clone(), stop.clone());
            async move { clients(&pool, &numbers, &stop).await }
        });
        let began = Instant::now();
        let (done, until) = tokio::sync::oneshot::channel::<()>();
        let pruner = Pruner::new(idempotency.clone()).run_until(async { until.await.unwrap_or_default() });
        let pruner = tokio::spawn(pruner);
        while idempotency.stats().await?.overdue > 0 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        drop(done);
        let deleted = pruner.await?.deleted;
        let took = began.elapsed();
        stop.store(true, Ordering::Relaxed);
        let latencies = running.await??;
        let during = percentile(&latencies, 99);
        println!(
            "  round {round}: {deleted} pruned in {took:.1?} beside {} requests; p99 {before:.1?} before, {during:.1?} during",
            latencies.len()
        );
        ratios.push(during.as_secs_f64() / before.as_secs_f64());
    }
    summary("p99 during / before", ratios);
    pool.close().await;
    Ok(())
}

async fn turnovers(server: &Server, count: i64) -> Result<()> {
    let pool = database(server, "turnovers").await?;
    let idempotency = Idempotency::new(&pool);
    let mut first = None;
    for turn in 0..=10 {
        // All come, expire and are pruned.
        fill(&pool, 1, count, 0).await?;
        while idempotency.prune(10_000).await?.deleted > 0 {}
        // Autovacuum is given its turn, as a day would.
        let vacuumed = "select vacuum_count + autovacuum_count from pg_stat_user_tables where relname = 'keys'";
        let began = Instant::now();
        let before: i64 = sqlx::query_scalar(vacuumed).fetch_one(&pool).await?;
        while sqlx::query_scalar::<_, i64>(vacuumed).fetch_one(&pool).await? == before {
            if began.elapsed() > Duration::from_secs(120) {
                return Err("autovacuum did not come in two minutes".into());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let (table, indexes) = size(&pool).await?;
        println!("  after {turn:>2}: table {table:>12}, indexes {indexes:>12}");
        let total = table + indexes;
        let first = *first.get_or_insert(total);
        if turn == 10 {
            println!("size after ten more turnovers / after the first: {:.2}", total as f64 / first as f64);
        }
    }
    pool.close().await;
    Ok(())
}

async fn partition(server: &Server, count: i64) -> Result<()> {
    let pool = database(server, "partitions").await?;
    let hour = Duration::from_secs(3_600);
    let idempotency = Idempotency::new(&pool).timestamped_keys(TimestampedKeys::uuid_v7(hour)?.partitioned()?);
    let millis = std::time::UNIX_EPOCH.elapsed()?.as_millis();
    let key = IdempotencyKey::new(format!("{:08x}-{:04x}-7000-8000-000000000001", millis >> 16, millis & 0xffff))?;
    let request = IdempotentRequest::new(Scope::global(), Operation::new("o"), key, Fingerprint::of([""]));
    let Claim::Fresh(attempt) = idempotency.claim(request).await? else { return Err("not fresh".into()) };
    attempt.complete(&StoredResponse::new(http_status(), "")).await?;
    // Into the oldest, which is then made due.
    pool.execute(AssertSqlSafe(format!(
        "insert into idempotency.timed_keys (scope, operation, key, fingerprint, status, header_names, header_values,
                                             body, expires_at, born_at)
         select 'tenant', 'o', gen_random_uuid()::text, sha256(n::text::bytea), 201, '{{}}', '{{}}',
                convert_to(repeat('0123456789', 20), 'UTF8'), now(), (select min(lower) from idempotency.partitions)
           from generate_series(1, {count}) n"
    )))
    .await?;
    pool.execute("update idempotency.windows set window_us = 0, keep_us = 0").await?;
    let stop = Arc::new(AtomicBool::new(false));
    let running = tokio::spawn({
        let (pool, numbers, stop) = (pool.clone(), Arc::new(AtomicU64::new(1)), stop.clone());
        async move { clients(&pool, &numbers, &stop).await }
    });
    let began = Instant::now();
    let pruned = idempotency.prune(1_000).await?;
    let took = began.elapsed();
    stop.store(true, Ordering::Relaxed);
    running.await??;
    let left: i64 = sqlx::query_scalar("select count(*) from idempotency.timed_keys").fetch_one(&pool).await?;
    assert!(pruned.partitions_dropped == 1 && left == 1, "{pruned:?}, {left} left");
    println!("dropped in {took:.1?}, beside running requests");
    pool.close().await;
    Ok(())
}

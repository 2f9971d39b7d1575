//! What a request costs the server, counted: with one client, so that each count belongs to a request.

use std::{error::Error, sync::Arc, time::Duration};

use bytes::Bytes;
use serde::Serialize;
use sqlx::{ConnectOptions as _, PgConnection, PgPool, postgres::PgPoolOptions};

use crate::{
    client::{Client, Intent},
    database::Databases,
    proxy::Proxy,
    site::{Site, fresh},
    statistics::median,
    variants::Variant,
    work::Work,
};

const REQUESTS: u32 = 100;
const BATCHES: usize = 3;

/// Per request.
#[derive(Debug, Serialize)]
pub(crate) struct Counts {
    pub(crate) variant: &'static str,
    pub(crate) request: &'static str,
    pub(crate) statements: f64,
    pub(crate) round_trips: f64,
    /// The median of three batches.
    pub(crate) wal_bytes: f64,
    pub(crate) inserted: f64,
    pub(crate) updated: f64,
    /// Of the updated: those that touched no index.
    pub(crate) hot: f64,
    pub(crate) dead: f64,
}

pub(crate) async fn count(variants: &[Variant], databases: &Databases) -> Result<Vec<Counts>, Box<dyn Error>> {
    let proxy = Proxy::start(&databases.folder, None).await?;
    databases.autovacuum("off").await?;
    let mut counted = Vec::new();
    for &variant in variants {
        for replays in [false, true] {
            // Without protection, a second request is a first one.
            if !(replays && variant == Variant::Bare) {
                counted.push(count_one(variant, replays, databases, &proxy).await?);
            }
        }
    }
    databases.autovacuum("on").await?;
    Ok(counted)
}

async fn count_one(
    variant: Variant,
    replays: bool,
    databases: &Databases,
    proxy: &Proxy,
) -> Result<Counts, Box<dyn Error>> {
    let mut server = databases.connection(variant).await?;
    let answered = answered(variant, databases, &mut server).await?;
    let rows_before = rows(&mut server).await?;

    let pool = one_connection(variant, proxy).await?;
    let mut site = Site::start(variant, pool.clone(), Work::new(100, Duration::ZERO), 100).await?;
    site.answered = answered;
    let mut client = site.clients(1).await.remove(0);
    // Statements are prepared by then, and pages of the tables have been written once since the last checkpoint.
    ask(&mut client, &site, replays).await;
    let (trips_before, statements_before) = proxy.counts.read();
    let mut wal = Vec::new();
    for _ in 0..BATCHES {
        let before = position(&mut server).await?;
        ask(&mut client, &site, replays).await;
        wal.push((position(&mut server).await? - before) / f64::from(REQUESTS));
    }
    let (trips, statements) = proxy.counts.read();
    pool.close().await;
    until_alone(&mut server).await?;
    let rows = rows(&mut server).await?;

    let batches = f64::from(u32::try_from(BATCHES)?);
    let each = |count: u64| count as f64 / (batches * f64::from(REQUESTS));
    // A session hands in its statistics as a whole, the first batch included.
    let each_row = |count: f64| count / ((batches + 1.0) * f64::from(REQUESTS));
    Ok(Counts {
        variant: variant.name(),
        request: if replays { "replay" } else { "first call" },
        statements: each(statements - statements_before),
        round_trips: each(trips - trips_before),
        wal_bytes: median(&wal),
        inserted: each_row(rows.inserted - rows_before.inserted),
        updated: each_row(rows.updated - rows_before.updated),
        hot: each_row(rows.hot - rows_before.hot),
        dead: each_row((rows.dead - rows_before.dead).max(0.0)),
    })
}

/// Keys to replay, answered by what counts as another process, so that none is in this one's memory.
async fn answered(
    variant: Variant,
    databases: &Databases,
    server: &mut PgConnection,
) -> Result<Arc<Vec<(Intent, Bytes)>>, Box<dyn Error>> {
    let pool = one_connection(variant, &Proxy::start(&databases.folder, None).await?).await?;
    let mut site = Site::start(variant, pool.clone(), Work::new(100, Duration::ZERO), 100).await?;
    site.answer(pool.clone(), 20).await?;
    pool.close().await;
    until_alone(server).await?;
    Ok(site.answered.clone())
}

async fn one_connection(variant: Variant, proxy: &Proxy) -> Result<PgPool, sqlx::Error> {
    let options = proxy.options(&variant.database()).disable_statement_logging();
    PgPoolOptions::new().max_connections(1).connect_with(options).await
}

async fn ask(client: &mut Client, site: &Site, replays: bool) {
    for number in 0..REQUESTS as usize {
        if replays {
            let (intent, body): &(Intent, _) = &site.answered[number % site.answered.len()];
            let answer = client.ask(intent).await;
            site.check_replay(&answer, body);
        } else {
            let answer = client.ask(&fresh("counted".to_owned())).await;
            site.check_first(&answer);
        }
    }
}

async fn position(server: &mut PgConnection) -> Result<f64, sqlx::Error> {
    sqlx::query_scalar("select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8").fetch_one(server).await
}

struct Rows {
    inserted: f64,
    updated: f64,
    hot: f64,
    dead: f64,
}

/// All tables of the database.
async fn rows(server: &mut PgConnection) -> Result<Rows, sqlx::Error> {
    sqlx::query("select pg_stat_clear_snapshot()").execute(&mut *server).await?;
    let (inserted, updated, hot, dead) = sqlx::query_as(
        "select sum(n_tup_ins)::float8, sum(n_tup_upd)::float8, sum(n_tup_hot_upd)::float8, sum(n_dead_tup)::float8
           from pg_stat_user_tables",
    )
    .fetch_one(server)
    .await?;
    Ok(Rows { inserted, updated, hot, dead })
}

/// A session hands in its statistics when it ends: waits for that.
async fn until_alone(server: &mut PgConnection) -> Result<(), Box<dyn Error>> {
    const LOOKS: usize = 500;

    for _ in 0..LOOKS {
        let others: i64 = sqlx::query_scalar(
            "select count(*) from pg_stat_activity
              where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()",
        )
        .fetch_one(&mut *server)
        .await?;
        if others == 0 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err("the pool's connections did not end".into())
}

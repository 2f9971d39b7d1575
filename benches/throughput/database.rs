//! The server under all of it, and the pools into it.

use std::{
    collections::HashMap,
    error::Error,
    path::PathBuf,
    time::{Duration, Instant},
};

use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use throwaway_postgres::{Options, Server};

use crate::{proxy::Proxy, statistics::median, variants::Variant, work::SCHEMA};

/// As many as a service of this size would have. Everything else is sqlx's default.
pub(crate) const CONNECTIONS: u32 = 16;

/// What the delaying proxy is to add to a round trip.
const WANTED: Duration = Duration::from_millis(1);

/// A durable server of this run's own, with a database for each variant.
#[derive(Debug)]
pub(crate) struct Databases {
    server: PgConnectOptions,
    /// Where its socket is.
    pub(crate) folder: PathBuf,
    delayed: Proxy,
    pools: HashMap<(Variant, bool), PgPool>,
    /// What `select 1` takes directly and through the delaying proxy.
    pub(crate) round_trips: (Duration, Duration),
    pub(crate) version: String,
    // Dropped last: it takes the server down.
    _server: Server,
}

impl Databases {
    pub(crate) async fn start() -> Result<Self, Box<dyn Error>> {
        let running = Server::start(&Options { durable: true, ..Options::default() })?;
        let server: PgConnectOptions = running.url("postgres").parse()?;
        let mut connection = server.connect().await?;
        for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
            let value: String =
                sqlx::query_scalar("select current_setting($1)").bind(setting).fetch_one(&mut connection).await?;
            assert_eq!(value, "on", "{setting}");
        }
        let version = sqlx::query_scalar("select current_setting('server_version')").fetch_one(&mut connection).await?;
        for variant in Variant::ALL {
            let name = variant.database();
            connection.execute(AssertSqlSafe(format!("create database {name}"))).await?;
            let pool = PgPoolOptions::new().max_connections(1).connect_with(server.clone().database(&name)).await?;
            pool.execute(SCHEMA).await?;
            axum_idempotency::migrate(&pool).await?;
            pool.close().await;
        }
        let folder = server.get_socket().cloned().ok_or("the throwaway server listens on a socket")?;
        let delayed = Proxy::start(&folder, Some(WANTED / 2)).await?;
        let round_trips = calibrate(&mut connection, &delayed).await?;
        connection.close().await?;
        Ok(Self { server, folder, delayed, pools: HashMap::new(), round_trips, version, _server: running })
    }

    /// A connection past the pools, for what the bench itself wants to know.
    pub(crate) async fn connection(&self, variant: Variant) -> Result<PgConnection, sqlx::Error> {
        self.server.clone().database(&variant.database()).connect().await
    }

    /// Off while dead rows are counted.
    pub(crate) async fn autovacuum(&self, setting: &'static str) -> Result<(), sqlx::Error> {
        let mut connection = self.server.connect().await?;
        connection.execute(AssertSqlSafe(format!("alter system set autovacuum = {setting}"))).await?;
        connection.execute("select pg_reload_conf()").await?;
        connection.close().await
    }

    /// The variant's pool, filled.
    pub(crate) async fn pool(&mut self, variant: Variant, delayed: bool) -> Result<PgPool, sqlx::Error> {
        if let Some(pool) = self.pools.get(&(variant, delayed)) {
            return Ok(pool.clone());
        }
        let name = variant.database();
        let options = if delayed { self.delayed.options(&name) } else { self.server.clone().database(&name) };
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .min_connections(CONNECTIONS)
            .connect_with(options.disable_statement_logging())
            .await?;
        self.pools.insert((variant, delayed), pool.clone());
        Ok(pool)
    }
}

/// Sets the delay so that a round trip takes [`WANTED`] more than a direct one.
async fn calibrate(direct: &mut PgConnection, delayed: &Proxy) -> Result<(Duration, Duration), sqlx::Error> {
    let mut through = delayed.options("postgres").connect().await?;
    let without = round_trip(direct).await?;
    let mut delay = WANTED / 2;
    for _ in 0..3 {
        let added = round_trip(&mut through).await?.saturating_sub(without);
        delay = (delay + WANTED / 2).saturating_sub(added / 2);
        delayed.set_delay(delay);
    }
    let with = round_trip(&mut through).await?;
    through.close().await?;
    Ok((without, with))
}

async fn round_trip(connection: &mut PgConnection) -> Result<Duration, sqlx::Error> {
    let mut times = Vec::new();
    for _ in 0..200 {
        let began = Instant::now();
        sqlx::query("select 1").execute(&mut *connection).await?;
        times.push(began.elapsed().as_secs_f64());
    }
    Ok(Duration::from_secs_f64(median(&times)))
}

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, PgConnection, PgPool, Row as _,
    postgres::{PgConnectOptions, PgPoolOptions, PgRow},
};
use tokio::sync::OnceCell;

/// A database of a test's own, migrated, with a table `effect` for what handlers do. Dropped with the value, and left
/// behind if the test fails on a server that is not thrown away.
pub struct Database {
    pub name: String,
    server: PgConnectOptions,
    options: PgConnectOptions,
}

/// What the table of keys holds about one of them.
#[derive(Debug, PartialEq)]
pub struct Row {
    pub scope: String,
    pub operation: String,
    pub key: String,
    pub status: Option<i16>,
    /// Where the row lies and who touched it: changes with every write or lock.
    pub version: String,
    pub expires_at: Option<String>,
}

const EFFECTS: &str = "create table effect (id bigint generated always as identity primary key, note text not null)";

impl Database {
    pub async fn fresh() -> Self {
        static TEMPLATE: OnceCell<String> = OnceCell::const_new();
        let template = TEMPLATE
            .get_or_init(|| async {
                let template = Self::create("template", admin(), None).await;
                template.fill().await;
                let name = template.name.clone();
                // The server goes with the process; on another one it is dropped by the next run.
                std::mem::forget(template);
                name
            })
            .await;
        Self::create("test", admin(), Some(template)).await
    }

    /// On the throwaway server in any case, whose log can be read.
    pub async fn logged() -> Self {
        let server = throwaway_postgres::shared().unwrap_or_else(|error| panic!("{error}"));
        let database = Self::create("logged", options(&server.url("postgres")), None).await;
        database.fill().await;
        database
    }

    /// Without the crate's tables.
    pub async fn unmigrated() -> Self {
        Self::create("bare", admin(), None).await
    }

    /// Migrated, and in an encoding that does not have every character.
    pub async fn in_latin1() -> Self {
        let settings = "encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0";
        let database = Self::create_with("latin1", admin(), settings).await;
        database.fill().await;
        database
    }

    async fn create(kind: &str, server: PgConnectOptions, template: Option<&str>) -> Self {
        let from = template.map_or(String::new(), |template| format!("template {template}"));
        Self::create_with(kind, server, &from).await
    }

    async fn create_with(kind: &str, server: PgConnectOptions, settings: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("axum_idempotency_{kind}_{}_{count}", std::process::id());
        let mut connection = server.connect().await.expect("the server is there");
        let (drop, create) =
            (format!("drop database if exists {name} with (force)"), format!("create database {name} {settings}"));
        connection.execute(AssertSqlSafe(drop)).await.unwrap();
        connection.execute(AssertSqlSafe(create)).await.unwrap();
        connection.close().await.unwrap();
        let options = server.clone().database(&name);
        Self { name, server, options }
    }

    async fn fill(&self) {
        let pool = self.pool_of(1).await;
        axum_idempotency::migrate(&pool).await.unwrap();
        pool.execute(EFFECTS).await.unwrap();
        pool.close().await;
    }

    pub fn options(&self) -> PgConnectOptions {
        self.options.clone()
    }

    pub fn url(&self) -> String {
        self.options.to_url_lossy().to_string()
    }

    pub async fn pool(&self) -> PgPool {
        self.pool_of(10).await
    }

    pub fn pool_lazily(&self) -> PgPool {
        PgPoolOptions::new().max_connections(4).connect_lazy_with(self.options())
    }

    pub async fn pool_of(&self, connections: u32) -> PgPool {
        Self::pool_with(self.options(), connections).await
    }

    pub async fn pool_with(options: PgConnectOptions, connections: u32) -> PgPool {
        PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(Duration::from_secs(20))
            .connect_with(options)
            .await
            .unwrap()
    }

    pub async fn connection(&self) -> PgConnection {
        self.options.connect().await.unwrap()
    }

    /// How many effects have become durable, seen from outside.
    pub async fn effects(&self) -> i64 {
        let mut connection = self.connection().await;
        sqlx::query_scalar("select count(*) from effect").fetch_one(&mut connection).await.unwrap()
    }

    /// The table of keys, seen from outside.
    pub async fn rows(&self) -> Vec<Row> {
        let mut connection = self.connection().await;
        let rows = sqlx::query(
            "select scope, operation, key, status, ctid::text || '/' || xmin::text || '/' || xmax::text as version,
                    expires_at::text
               from idempotency.keys order by scope, operation, key",
        )
        .fetch_all(&mut connection)
        .await
        .unwrap();
        let row = |row: &PgRow| Row {
            scope: row.get("scope"),
            operation: row.get("operation"),
            key: row.get("key"),
            status: row.get("status"),
            version: row.get("version"),
            expires_at: row.get("expires_at"),
        };
        rows.iter().map(row).collect()
    }

    /// Makes every key expire a second ago.
    pub async fn expire(&self) {
        let mut connection = self.connection().await;
        sqlx::query("update idempotency.keys set expires_at = now() - interval '1 second'")
            .execute(&mut connection)
            .await
            .unwrap();
    }

    /// Takes away what keeps a COMMIT of the work's own from making anything durable, as on an engine that does not know
    /// deferrable constraints.
    pub async fn without_guard(&self) {
        self.connection()
            .await
            .execute("alter table idempotency.keys drop constraint a_claim_is_committed_with_its_response")
            .await
            .unwrap();
    }

    /// How many sessions of the engine's own pools there are.
    pub async fn sessions(&self) -> i64 {
        sqlx::query_scalar(
            "select count(*) from pg_stat_activity
              where datname = current_database() and application_name like '%axum-idempotency'",
        )
        .fetch_one(&mut self.connection().await)
        .await
        .unwrap()
    }

    /// Does somebody wait to detach a partition?
    pub async fn is_detaching(&self) -> bool {
        let waiting = "select exists (select from pg_stat_activity
                         where datname = current_database() and wait_event_type = 'Lock'
                           and query like '%detach partition%')";
        sqlx::query_scalar(waiting).fetch_one(&mut self.connection().await).await.unwrap()
    }

    /// Is somebody executing this statement?
    pub async fn is_running(&self, statement: &str) -> bool {
        let running = "select exists (select from pg_stat_activity
                         where datname = current_database() and state = 'active' and query = $1)";
        sqlx::query_scalar(running).bind(statement).fetch_one(&mut self.connection().await).await.unwrap()
    }

    /// Lets every key expire a millisecond after its claim, as no retention that is accepted would.
    pub async fn expire_at_once(&self) {
        self.connection()
            .await
            .execute(
                "create function at_once() returns trigger language plpgsql as $$
                 begin new.expires_at := new.created_at + interval '1 millisecond'; return new; end $$;
                 create trigger at_once before insert or update on idempotency.keys
                   for each row execute function at_once()",
            )
            .await
            .unwrap();
    }

    /// Waits until so many of this database's connections wait for a lock.
    pub async fn until_waiting(&self, count: i64) {
        self.until(count, "wait_event_type = 'Lock'").await;
    }

    /// Waits until a transaction is open whose last statement began so, and its owner is busy with something else.
    pub async fn until_idle_after(&self, statement: &str) {
        self.until(1, &format!("state = 'idle in transaction' and query like '{statement}%'")).await;
    }

    /// Queues for the advisory lock that the only open attempt holds, and has it when this returns, in a transaction:
    /// before that attempt's own next claim, which comes after a rollback.
    pub async fn overtake(&self, let_it_roll_back: impl FnOnce()) -> sqlx::Transaction<'static, sqlx::Postgres> {
        let number: i64 = sqlx::query_scalar(
            "select (classid::bigint << 32) | objid::bigint from pg_locks
              where locktype = 'advisory' and granted
                and database = (select oid from pg_database where datname = current_database())",
        )
        .fetch_one(&mut self.connection().await)
        .await
        .unwrap();
        let pool = self.pool_of(1).await;
        let overtaking = tokio::spawn(async move {
            let mut transaction = pool.begin().await.unwrap();
            let lock = sqlx::query("select pg_advisory_xact_lock($1)").bind(number);
            lock.execute(&mut *transaction).await.unwrap();
            transaction
        });
        self.until_waiting(1).await;
        let_it_roll_back();
        overtaking.await.unwrap()
    }

    /// Waits until nobody but the one who asks is connected.
    pub async fn until_alone(&self) {
        let others = "select count(*) from pg_stat_activity
                       where datname = current_database() and pid <> pg_backend_pid()";
        for _ in 0..50_000 {
            let mut connection = self.connection().await;
            let found: i64 = sqlx::query_scalar(others).fetch_one(&mut connection).await.unwrap();
            connection.close().await.unwrap();
            if found == 0 {
                return;
            }
        }
        panic!("somebody stays connected");
    }

    async fn until(&self, count: i64, condition: &str) {
        let mut connection = self.connection().await;
        let look = format!("select count(*) from pg_stat_activity where datname = current_database() and {condition}");
        // Each look takes a round trip: a bound in looks is a bound in time.
        for _ in 0..50_000 {
            let found: i64 = sqlx::query_scalar(AssertSqlSafe(look.clone())).fetch_one(&mut connection).await.unwrap();
            if found >= count {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("there were never {count} connections with {condition}");
    }

    /// The lines that the server logged for this database, made by [`logged`](Self::logged).
    pub fn log(&self) -> Vec<String> {
        assert!(self.name.contains("_logged_"), "only the throwaway server's log can be read");
        let own = format!(" {} ", self.name);
        let log = throwaway_postgres::shared().unwrap().log();
        log.lines().filter(|line| line.contains(&own)).map(str::to_owned).collect()
    }

    /// The lines in which the server complained.
    pub fn complaints(&self) -> Vec<String> {
        let complaints = ["WARNING", "ERROR", "FATAL", "PANIC"].map(|level| format!(" {level}:  "));
        self.log().into_iter().filter(|line| complaints.iter().any(|complaint| line.contains(complaint))).collect()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let (server, drop) = (self.server.clone(), format!("drop database if exists {} with (force)", self.name));
        // Not on the test's runtime, which is blocked right now.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut connection = server.connect().await?;
                connection.execute(AssertSqlSafe(drop)).await?;
                connection.close().await
            })
        });
        assert!(dropped.join().is_ok_and(|result| result.is_ok()), "the test's database could not be dropped");
    }
}

fn admin() -> PgConnectOptions {
    options(&throwaway_postgres::database_url().unwrap_or_else(|error| panic!("{error}")))
}

fn options(url: &str) -> PgConnectOptions {
    url.parse::<PgConnectOptions>().expect("a URL for PostgreSQL").disable_statement_logging()
}

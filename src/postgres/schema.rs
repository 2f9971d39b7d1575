//! The table, and how it comes to be.

use std::{
    borrow::Cow,
    sync::LazyLock,
    time::{Duration, Instant},
};

use super::sql::sql;
use sqlx::{
    AssertSqlSafe, PgPool, Row as _, SqlSafeStr as _,
    migrate::{
        MigrateError, Migration,
        MigrationType::{self, ReversibleDown, ReversibleUp},
        Migrator,
    },
    postgres::PgPoolOptions,
};
use tokio::time::sleep;

/// The migrations of this crate, for applications that list, run or undo them through sqlx themselves.
///
/// The table is in its own schema, `idempotency`, and applied migrations are recorded in `idempotency.migrations`, so that
/// neither conflicts with the application's. The same SQL is in `migrations/` for other tools.
pub static MIGRATOR: LazyLock<Migrator> = LazyLock::new(|| {
    migrator(
        vec![
            migration(1, "keys", ReversibleUp, include_str!("../../migrations/0001_keys.up.sql")),
            migration(1, "keys", ReversibleDown, include_str!("../../migrations/0001_keys.down.sql")),
            migration(2, "time_bearing", ReversibleUp, include_str!("../../migrations/0002_time_bearing.up.sql")),
            migration(2, "time_bearing", ReversibleDown, include_str!("../../migrations/0002_time_bearing.down.sql")),
            migration(3, "answered", ReversibleUp, include_str!("../../migrations/0003_answered.up.sql")),
            migration(3, "answered", ReversibleDown, include_str!("../../migrations/0003_answered.down.sql")),
        ],
        "idempotency.migrations",
    )
});

/// Makes the tables or brings them up to date. Call it at start-up, or as a step of the deployment.
///
/// Any number of processes may call it at once; it changes nothing if the tables are up to date.
///
/// The role needs the right to create the schema `idempotency`, unless there is nothing to do and it may read
/// `idempotency.migrations`. Migrations of a newer release are left alone, so that an older release can still start
/// beside it. Behind a pooler in transaction mode, call it over a direct connection: sqlx holds a session lock during the
/// migration.
///
/// Requests are served during the migration. If a migration must wait for a transaction that uses a table, such as that
/// of a slow handler, it gives up after a second, lets the waiting requests go on, and tries again, for at most ten
/// minutes.
///
/// If another tool applies the files in `migrations/` (in their order, each once), you need not call this at all. To
/// change to this function later, record once which migrations have been applied: `MIGRATOR.skip(&pool, None)` for all
/// migrations of this release, `MIGRATOR.skip(&pool, Some(2))` for those up to version 2.
///
/// # Errors
///
/// Returns PostgreSQL's error, or an error if tables exist that are not recorded, or if the database was migrated by a
/// release of this crate with other files.
pub async fn migrate(pool: &PgPool) -> Result<(), MigrateError> {
    run(&MIGRATOR, pool).await
}

/// The migrations that [`TimestampedKeys::partitioned`](crate::TimestampedKeys::partitioned) needs besides [`MIGRATOR`].
///
/// Run [`MIGRATOR`] first. They are recorded in `idempotency.partitioned_migrations`. Undoing them deletes the keys in
/// the table. The same SQL is in `migrations/partitioned/`.
pub static PARTITIONED_MIGRATOR: LazyLock<Migrator> = LazyLock::new(|| {
    migrator(
        vec![
            migration(
                1,
                "timed_keys",
                ReversibleUp,
                include_str!("../../migrations/partitioned/0001_timed_keys.up.sql"),
            ),
            migration(
                1,
                "timed_keys",
                ReversibleDown,
                include_str!("../../migrations/partitioned/0001_timed_keys.down.sql"),
            ),
            migration(2, "answered", ReversibleUp, include_str!("../../migrations/partitioned/0002_answered.up.sql")),
            migration(
                2,
                "answered",
                ReversibleDown,
                include_str!("../../migrations/partitioned/0002_answered.down.sql"),
            ),
        ],
        "idempotency.partitioned_migrations",
    )
});

/// Does the same as [`migrate`], and makes the partitioned table for
/// [`TimestampedKeys::partitioned`](crate::TimestampedKeys::partitioned).
///
/// The roles that prune and claim must own that table, since they make and drop partitions.
///
/// # Errors
///
/// Returns the errors of [`migrate`].
pub async fn migrate_partitioned(pool: &PgPool) -> Result<(), MigrateError> {
    migrate(pool).await?;
    run(&PARTITIONED_MIGRATOR, pool).await
}

const IS_THERE: &str = sql!("is_there");

/// On a connection of its own, closed in any case: a failure, or dropping this future, would leave sqlx's lock with a
/// pooled one. Only PostgreSQL's own functions are found there.
async fn run(migrator: &Migrator, pool: &PgPool) -> Result<(), MigrateError> {
    let options = (*pool.connect_options()).clone();
    let one = |options| PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
    let looking = one(options.clone());
    let is_up_to_date = is_up_to_date(migrator, &looking).await;
    looking.close().await;
    if is_up_to_date {
        return Ok(());
    }
    let options = options.options([
        ("search_path", "pg_catalog"),
        ("lock_timeout", LOCK_LIMIT),
        ("default_transaction_read_only", "off"),
    ]);
    let end = Instant::now().checked_add(PATIENCE);
    loop {
        let own = one(options.clone());
        let migrated = migrator.run(&own).await;
        own.close().await;
        match migrated {
            Err(error) if code(&error) == "55P03" && end.is_some_and(|end| Instant::now() < end) => sleep(PAUSE).await,
            Err(error) if code(&error) == "42P07" => return Err(MigrateError::Source(Box::new(MadeElsewhere(error)))),
            migrated => return migrated,
        }
    }
}

/// How long a migration waits for those who use a table, and how long it then lets them go on: while it waits, everybody who
/// comes waits behind it.
const LOCK_LIMIT: &str = "1s";
const PAUSE: Duration = Duration::from_secs(1);

/// How long it goes on trying, which is also how long it waits for another process that migrates.
const PATIENCE: Duration = Duration::from_secs(600);

/// A table is there already.
#[derive(Debug, thiserror::Error)]
#[error(
    "tables of the schema idempotency are there, but its table of migrations does not say so; if another tool has made them \
     by the files in migrations/, let that be noted once, by MIGRATOR.skip(&pool, None)"
)]
struct MadeElsewhere(#[source] MigrateError);

/// PostgreSQL's code for what went wrong.
fn code(error: &MigrateError) -> String {
    let (MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)) = error else {
        return String::new();
    };
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.map(Cow::into_owned).unwrap_or_default()
}

/// Has all been applied, as far as this role may see? Otherwise sqlx finds out what is missing, or says what it is not
/// let do: it would ask for the right to create a schema that is there.
async fn is_up_to_date(migrator: &Migrator, pool: &PgPool) -> bool {
    // To ask a table that is not there would leave an error in the server's log.
    let there = sqlx::query_scalar(IS_THERE).bind(&*migrator.table_name);
    if !there.persistent(false).fetch_one(pool).await.unwrap_or(false) {
        return false;
    }
    let applied =
        sqlx::query(AssertSqlSafe(format!("select version, checksum from {} where success", migrator.table_name)));
    let Ok(applied) = applied.persistent(false).fetch_all(pool).await else {
        return false;
    };
    let is_applied = |migration: &Migration| {
        applied.iter().any(|row| {
            row.try_get("version").is_ok_and(|version: i64| version == migration.version)
                && row.try_get("checksum").is_ok_and(|checksum: Vec<u8>| checksum == *migration.checksum)
        })
    };
    migrator.iter().filter(|migration| migration.migration_type.is_up_migration()).all(is_applied)
}

fn migration(version: i64, name: &'static str, kind: MigrationType, sql: &'static str) -> Migration {
    Migration::new(version, name.into(), kind, sql.into_sql_str(), false)
}

fn migrator(migrations: Vec<Migration>, table: &'static str) -> Migrator {
    let mut migrator = Migrator::with_migrations(migrations);
    migrator.create_schema("idempotency");
    migrator.dangerous_set_table_name(table);
    // An older release may start when a newer one has been here, as in a rolling deployment.
    migrator.set_ignore_missing(true);
    migrator
}

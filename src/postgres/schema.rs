//! The table, and how it comes to be.

use std::sync::LazyLock;

use sqlx::{
    PgPool, SqlSafeStr as _,
    migrate::{MigrateError, Migration, MigrationType, Migrator},
    postgres::PgPoolOptions,
};

/// The migrations of this crate, for those who list, run or undo them through sqlx themselves.
///
/// The table is in a schema of its own, `idempotency`, and what has been applied is noted in
/// `idempotency.migrations`, so that neither meets the application's. The same SQL is in `migrations/` for other
/// tools.
pub static MIGRATOR: LazyLock<Migrator> = LazyLock::new(|| {
    use MigrationType::{ReversibleDown, ReversibleUp};
    let migration = |version, name: &'static str, kind, sql: &'static str| {
        Migration::new(version, name.into(), kind, sql.into_sql_str(), false)
    };
    let mut migrator = Migrator::with_migrations(vec![
        migration(1, "keys", ReversibleUp, include_str!("../../migrations/0001_keys.up.sql")),
        migration(1, "keys", ReversibleDown, include_str!("../../migrations/0001_keys.down.sql")),
    ]);
    migrator.create_schema("idempotency");
    migrator.dangerous_set_table_name("idempotency.migrations");
    migrator
});

/// Brings the table up to date: call it at start-up, or as a step of the deployment. Any number of processes may do
/// so at once; what is up to date already is left alone.
///
/// The role needs the right to create the schema `idempotency`. Behind a pooler that works by transactions, call it
/// over a direct connection: sqlx holds a lock of the session meanwhile.
///
/// # Errors
///
/// What PostgreSQL says, or that the database was migrated by another release of this crate.
pub async fn migrate(pool: &PgPool) -> Result<(), MigrateError> {
    // On a connection of its own, closed in any case: a failure, or dropping this future, would leave sqlx's lock
    // with a pooled one.
    let own = PgPoolOptions::new().max_connections(1).connect_lazy_with((*pool.connect_options()).clone());
    let migrated = MIGRATOR.run(&own).await;
    own.close().await;
    migrated
}

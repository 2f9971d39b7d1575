//! The table comes and goes by the crate's own migrations, beside those of the application.

use axum_idempotency::{
    Claim, Duplicate, ErrorKind, Fingerprint, IdempotencyKey, IdempotentRequest, MIGRATOR, Operation,
    PARTITIONED_MIGRATOR, Scope, migrate,
};
use sqlx::Executor as _;

use crate::support::{Database, all, engine};

async fn tables(database: &Database) -> Vec<String> {
    let mut connection = database.connection().await;
    sqlx::query_scalar(
        "select table_schema || '.' || table_name from information_schema.tables
          where table_schema in ('public', 'idempotency') order by 1",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap()
}

fn request() -> IdempotentRequest {
    let key = IdempotencyKey::new("k").unwrap();
    IdempotentRequest::new(Scope::global(), Operation::new("o"), key, Fingerprint::of(["f"]))
}

#[tokio::test]
async fn migrating_twice_and_from_many_processes_at_once_is_fine() {
    let database = Database::unmigrated().await;
    let mut pools = Vec::new();
    for _ in 0..8 {
        pools.push(database.pool_of(1).await);
    }
    let results = all(pools.into_iter().map(|pool| async move { migrate(&pool).await })).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    migrate(&database.pool().await).await.unwrap();
    assert_eq!(
        tables(&database).await,
        ["idempotency.keys", "idempotency.migrations", "idempotency.never", "idempotency.windows"]
    );
}

#[tokio::test]
async fn the_applications_own_migrations_table_is_left_alone() {
    let database = Database::unmigrated().await;
    let pool = database.pool().await;
    let own = sqlx::migrate::Migrator::with_migrations(vec![sqlx::migrate::Migration::new(
        1,
        "own".into(),
        sqlx::migrate::MigrationType::Simple,
        sqlx::SqlSafeStr::into_sql_str("create table thing (id int)"),
        false,
    )]);
    own.run(&pool).await.unwrap();
    migrate(&pool).await.unwrap();
    own.run(&pool).await.unwrap();
    assert_eq!(
        tables(&database).await,
        [
            "idempotency.keys",
            "idempotency.migrations",
            "idempotency.never",
            "idempotency.windows",
            "public._sqlx_migrations",
            "public.thing"
        ]
    );
}

#[tokio::test]
async fn migrations_can_be_undone_and_done_again() {
    let database = Database::unmigrated().await;
    let pool = database.pool().await;
    migrate(&pool).await.unwrap();
    MIGRATOR.undo(&pool, 0).await.unwrap();
    assert_eq!(tables(&database).await, ["idempotency.migrations"]);
    migrate(&pool).await.unwrap();
    let claim = engine(&pool).claim(request()).await.unwrap();
    assert!(matches!(claim, Claim::Fresh(_)));
}

#[tokio::test]
async fn the_plain_files_make_the_same_table_for_another_tool() {
    let database = Database::unmigrated().await;
    let mut connection = database.connection().await;
    for (folder, migrator) in [("migrations", &MIGRATOR), ("migrations/partitioned", &PARTITIONED_MIGRATOR)] {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.is_file());
        files.sort();
        let mut run = 0;
        for file in files.iter().filter(|file| file.to_string_lossy().ends_with(".up.sql")) {
            let sql = std::fs::read_to_string(file).unwrap();
            connection.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(sql))).await.unwrap();
            run += 1;
        }
        // The crate brings every file, up and down.
        assert_eq!(migrator.iter().count(), files.len());
        assert_eq!(run * 2, files.len());
    }
    let claim = engine(&database.pool().await).claim(request()).await.unwrap();
    assert!(matches!(claim, Claim::Fresh(_)));
}

#[tokio::test]
async fn without_the_table_every_call_fails_with_an_error_that_names_migrate() {
    let database = Database::unmigrated().await;
    let idempotency = engine(&database.pool().await);
    let claim = idempotency.claim(request()).await.unwrap_err();
    let prune = idempotency.prune(1).await.unwrap_err();
    for error in [claim, prune] {
        assert_eq!(error.kind(), ErrorKind::NotMigrated);
        assert!(error.to_string().contains("axum_idempotency::migrate(&pool)"), "{error}");
    }
}

/// A failed or dropped migration must not leave sqlx's session lock with a pooled connection.
#[tokio::test]
async fn migrating_leaves_no_lock_behind_even_when_it_fails() {
    let database = Database::unmigrated().await;
    let pool = database.pool_of(1).await;
    pool.execute("create schema idempotency; create view idempotency.keys as select 1").await.unwrap();
    migrate(&pool).await.unwrap_err();
    let other = database.pool_of(1).await;
    other.execute("drop view idempotency.keys").await.unwrap();
    tokio::time::timeout(std::time::Duration::from_secs(20), migrate(&other)).await.expect("no lock").unwrap();
}

/// A role of the test's own, with these rights, and a pool as that role.
async fn role(database: &Database, kind: &str, grants: &str) -> sqlx::PgPool {
    let role = format!("{}_{kind}", database.name);
    let setup = format!("create role {role} login; {}", grants.replace(" to app", &format!(" to {role}")));
    database.connection().await.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(setup))).await.unwrap();
    Database::pool_with(database.options().username(&role), 3).await
}

async fn drop_role(database: &Database, kind: &str) {
    let role = format!("{}_{kind}", database.name);
    let drop = format!("drop owned by {role}; drop role {role}");
    database.connection().await.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(drop))).await.unwrap();
}

/// What the guide says to paste, up to the line that begins so.
fn documented_grants(until: &str) -> String {
    documented_block(1).split(until).next().unwrap().to_owned()
}

/// The guide's blocks of SQL about roles.
fn documented_block(number: usize) -> String {
    let guide = include_str!("../../src/docs/connections.md");
    let block = guide.split("# Roles").nth(1).unwrap().split("```sql").nth(number).unwrap();
    block.split("```").next().unwrap().to_owned()
}

/// (b): there is nothing to do, and the role may create nothing.
#[tokio::test]
async fn f77_a_role_with_the_documented_grants_migrates_claims_replays_and_no_more() {
    use axum_idempotency::{Scope, TimestampedKeys};

    let database = Database::fresh().await;
    let pool = role(&database, "app", &documented_grants("-- For pruning")).await;
    migrate(&pool).await.unwrap();
    let idempotency = engine(&pool);
    let app =
        crate::support::app_with(crate::support::layer(idempotency.clone()), async |_tx: axum_idempotency::Tx| "done");
    for replayed in [false, true] {
        let replied = crate::support::reply(&app, crate::support::post("/things").key("k")).await;
        assert_eq!((replied.status.as_u16(), replied.replayed()), (200, replayed), "{replied:?}");
    }
    let declining = crate::support::layer(idempotency.clone()).operation("declined");
    let declining =
        crate::support::app_with(declining, async |_tx: axum_idempotency::Tx| axum::http::StatusCode::CONFLICT);
    assert_eq!(crate::support::reply(&declining, crate::support::post("/things").key("k")).await.status, 409);
    let keys = TimestampedKeys::first_sent(std::time::Duration::from_secs(3_600)).unwrap();
    let timed = request().with_first_sent(std::time::SystemTime::now());
    assert!(matches!(idempotency.clone().timestamped_keys(keys).claim(timed).await, Ok(Claim::Fresh(_))));
    // A key that has expired is used again, which takes no right to delete.
    database.expire().await;
    let again = crate::support::reply(&app, crate::support::post("/things").key("k")).await;
    assert_eq!((again.status.as_u16(), again.replayed()), (200, false));
    idempotency.stats().await.unwrap();
    assert!(idempotency.erase_scope(&Scope::new("alice")).await.is_err(), "it may not delete");
    database
        .connection()
        .await
        .execute(sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
            "grant delete on idempotency.keys to {}_app",
            database.name
        ))))
        .await
        .unwrap();
    assert_eq!(idempotency.erase_scope(&Scope::new("alice")).await.unwrap().keys, 2);
    idempotency.prune(10).await.unwrap();

    // An operator who reads; and one who may do nothing is told so.
    let reader = role(&database, "reader", &documented_block(3).replace(" to operator", " to app")).await;
    engine(&reader).stats().await.unwrap();
    let key = IdempotencyKey::new("k").unwrap();
    let declined = engine(&reader).lookup(&Scope::new("alice"), &Operation::new("declined"), &key).await.unwrap();
    assert_eq!(declined, None, "it has been forgotten");
    assert!(engine(&reader).claim(request()).await.is_err());
    assert!(engine(&reader).erase_scope(&Scope::new("alice")).await.is_err());
    let stranger = role(&database, "stranger", "").await;
    assert!(migrate(&stranger).await.is_err());
    for (pool, kind) in [(pool, "app"), (reader, "reader"), (stranger, "stranger")] {
        pool.close().await;
        drop_role(&database, kind).await;
    }
}

/// (a): an older release starts when a newer one has migrated.
#[tokio::test]
async fn f77_an_older_release_migrates_after_a_newer_one() {
    let database = Database::fresh().await;
    database
        .connection()
        .await
        .execute(
            "insert into idempotency.migrations (version, description, success, checksum, execution_time)
             values (9000, 'of a release to come', true, '\\x00', 1)",
        )
        .await
        .unwrap();
    migrate(&database.pool().await).await.unwrap();
    // What is missing is applied all the same.
    let pool = database.pool().await;
    MIGRATOR.undo(&pool, 2).await.unwrap();
    migrate(&pool).await.unwrap();
    assert!(matches!(engine(&pool).claim(request()).await, Ok(Claim::Fresh(_))));
}

/// (c): another tool applied the files, all of them or some.
#[tokio::test]
async fn f77_what_another_tool_has_applied_is_noted_once_and_from_then_on_migrating_goes_on_from_there() {
    for applied in [1, 2, 3_i64] {
        let database = Database::unmigrated().await;
        let pool = database.pool().await;
        let up = MIGRATOR.iter().filter(|migration| migration.migration_type.is_up_migration());
        for migration in up.filter(|migration| migration.version <= applied) {
            pool.execute(sqlx::raw_sql(migration.sql.clone())).await.unwrap();
        }
        let error = migrate(&pool).await.unwrap_err();
        assert!(error.to_string().contains("MIGRATOR.skip(&pool, None)"), "{error}");
        MIGRATOR.skip(&pool, Some(applied)).await.unwrap();
        migrate(&pool).await.unwrap();
        let noted = "select version from idempotency.migrations where success order by version";
        let noted: Vec<i64> = sqlx::query_scalar(noted).fetch_all(&pool).await.unwrap();
        assert_eq!(noted, [1, 2, 3]);
        assert!(matches!(engine(&pool).claim(request()).await, Ok(Claim::Fresh(_))));
    }
}

async fn complete(engine: &axum_idempotency::Idempotency, key: &str) {
    let key = IdempotencyKey::new(key).unwrap();
    let request = IdempotentRequest::new(Scope::global(), Operation::new("o"), key, Fingerprint::of(["f"]));
    let Ok(Claim::Fresh(attempt)) = engine.claim(request).await else { panic!("it is free") };
    attempt.complete(&axum_idempotency::StoredResponse::new(axum::http::StatusCode::CREATED, "done")).await.unwrap();
}

#[tokio::test]
async fn f77_keys_outlast_each_migration_down_and_up_again() {
    let database = Database::fresh().await;
    let pool = database.pool().await;
    for (down, key) in [(2, "a"), (1, "b")] {
        complete(&engine(&pool), key).await;
        let before = database.rows().await.len();
        MIGRATOR.undo(&pool, down).await.unwrap();
        // Without the guard, or the column for times, what needs neither goes on.
        if down == 2 {
            complete(&engine(&pool), "between").await;
        }
        migrate(&pool).await.unwrap();
        assert_eq!(database.rows().await.len(), before + usize::from(down == 2));
        let key = IdempotencyKey::new(key).unwrap();
        let request = IdempotentRequest::new(Scope::global(), Operation::new("o"), key, Fingerprint::of(["f"]));
        assert!(matches!(engine(&pool).claim(request).await, Ok(Claim::Duplicate(Duplicate::Replay(_)))));
    }
}

/// A process that has its statements prepared, and an attempt open, while another one migrates: neither waits for long, and
/// nothing fails.
#[tokio::test]
async fn f77_processes_of_an_older_release_go_on_while_a_newer_one_migrates_beside_them() {
    let database = Database::fresh().await;
    let pool = database.pool().await;
    MIGRATOR.undo(&pool, 2).await.unwrap();
    let older = engine(&pool);
    for key in ["a", "b", "c"] {
        complete(&older, key).await;
    }
    let Ok(Claim::Fresh(open)) = older.claim(request()).await else { panic!("it is free") };
    let migrating = {
        let database = database.options();
        tokio::spawn(async move { migrate(&sqlx::PgPool::connect_lazy_with(database)).await })
    };
    // It has given up at least once, for the sake of the attempt, and others went on meanwhile.
    database.until_waiting(1).await;
    complete(&older, "d").await;
    open.complete(&axum_idempotency::StoredResponse::new(axum::http::StatusCode::CREATED, "done")).await.unwrap();
    migrating.await.unwrap().unwrap();
    for key in ["e", "f"] {
        complete(&older, key).await;
    }
    assert!(matches!(older.claim(request()).await, Ok(Claim::Duplicate(Duplicate::Replay(_)))));
    assert!(matches!(engine(&pool).claim(request()).await, Ok(Claim::Duplicate(Duplicate::Replay(_)))));
    assert_eq!(database.rows().await.len(), 7);
}

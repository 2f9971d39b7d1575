//! What an operator sees: stats, and the policy that is published.

use std::time::Duration;

use axum_idempotency::{Retention, Scope, TimestampedKeys, migrate_partitioned};
use serde_json::json;
use sqlx::Executor as _;

use crate::support::{Database, create, engine, layer, post, reply};

const FILL: &str = "\
insert into idempotency.keys (scope, operation, key, fingerprint, status, header_names, header_values, body,
                              created_at, expires_at)
select 'many', case when n % 4 = 0 then 'seldom' else 'often' end, n::text, '\\x00', 200, '{}', '{}',
       case when n % 10 = 0 then null else convert_to(repeat('x', 20), 'UTF8') end,
       now() - n * interval '1 second', now() + case when n % 5 = 0 then -1 else 3 end * interval '1 day' - n * interval '1 second'
  from generate_series(1, $1) n";

async fn fill(database: &Database, rows: i32) {
    sqlx::query(FILL).bind(rows).execute(&mut database.connection().await).await.unwrap();
}

#[tokio::test]
async fn stats_of_a_small_table_are_exact() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    let empty = idempotency.stats().await.unwrap();
    assert_eq!((empty.live(), empty.tombstones(), empty.overdue, empty.oldest), (0, 0, 0, None));
    fill(&database, 1_000).await;
    let stats = idempotency.stats().await.unwrap();
    assert!((stats.sampled - 1.0).abs() < f64::EPSILON);
    // Of 1,000 a fifth has expired; of the rest, those that end in 0 have all expired.
    assert_eq!((stats.live(), stats.tombstones(), stats.overdue), (800, 0, 200));
    let names: Vec<_> = stats.operations.iter().map(|operation| operation.operation.as_str()).collect();
    assert_eq!(names, ["often", "seldom"]);
    assert_eq!((stats.operations[0].live, stats.operations[0].expired), (600, 150));
    assert!(stats.operations[0].bytes > 750 * 60 && stats.table_bytes > 80_000 && stats.index_bytes > 30_000);
    let age = stats.oldest.unwrap().elapsed().unwrap();
    assert!(age >= Duration::from_secs(1_000) && age < Duration::from_secs(1_100), "{age:?}");
}

#[tokio::test]
async fn stats_of_a_large_table_come_from_a_bounded_look() {
    let database = Database::fresh().await;
    fill(&database, 150_000).await;
    let stats = engine(&database.pool().await).stats().await.unwrap();
    assert!(stats.sampled < 0.7, "{}", stats.sampled);
    let live = stats.live();
    assert!((100_000..140_000).contains(&live), "{live} of 120,000 by a sample");
    assert_eq!(stats.overdue, 10_000, "counted no further");
    let age = stats.oldest.unwrap().elapsed().unwrap().as_secs();
    assert!((150_000..150_600).contains(&age), "{age}: by the index, the one that went first");
}

#[tokio::test]
async fn stats_count_both_tables_and_tombstones() {
    let database = Database::fresh().await;
    let pool = database.pool().await;
    migrate_partitioned(&pool).await.unwrap();
    let day = Duration::from_secs(86_400);
    let plain = layer(engine(&pool)).operation("o");
    let timed = plain.clone().timestamped_keys(TimestampedKeys::uuid_v7(day).unwrap().partitioned().unwrap());
    let millis = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();
    let uuid = format!("{:08x}-{:04x}-7000-8000-000000000001", millis >> 16, millis & 0xffff);
    reply(&crate::support::app_with(plain.clone(), create), post("/things").key("k")).await;
    reply(&crate::support::app_with(plain.discard_responses(true), create), post("/things").key("l")).await;
    reply(&crate::support::app_with(timed.operation("p"), create), post("/things").key(&uuid)).await;
    let stats = engine(&pool).stats().await.unwrap();
    assert_eq!((stats.live(), stats.tombstones(), stats.operations.len()), (2, 1, 2), "{stats:?}");
}

/// Large bodies lie elsewhere, and are not read.
#[tokio::test]
async fn stats_do_not_read_the_bodies() {
    let database = Database::fresh().await;
    let pool = database.pool_of(1).await;
    sqlx::query(
        "insert into idempotency.keys (scope, operation, key, fingerprint, status, header_names, header_values, body)
         select 's', 'o', n::text, '', 200, '{}', '{}', convert_to(string_agg(md5(random()::text), ''), 'UTF8')
           from generate_series(1, 50) n cross join generate_series(1, 4000) part group by n",
    )
    .execute(&pool)
    .await
    .unwrap();
    let read = "select coalesce(toast_blks_read + toast_blks_hit, 0) from pg_statio_user_tables where relname = 'keys'";
    let toast = async || {
        let mut fresh = database.connection().await;
        sqlx::query_scalar::<_, i64>(read).fetch_one(&mut fresh).await.unwrap()
    };
    pool.execute("select pg_stat_force_next_flush()").await.ok();
    let before = toast().await;
    let stats = engine(&pool).stats().await.unwrap();
    pool.close().await;
    assert!(stats.operations[0].bytes > 50 * 100_000, "{stats:?}");
    assert!(toast().await - before < 100, "read {} blocks of bodies", toast().await - before);
}

/// Whoever reads them needs no more than to read.
#[tokio::test]
async fn stats_leave_nothing_behind() {
    let database = Database::fresh().await;
    let pool = database.pool_of(1).await;
    fill(&database, 10).await;
    let before = database.rows().await;
    engine(&pool).stats().await.unwrap();
    assert_eq!(database.rows().await, before);
    pool.execute("select 1").await.unwrap();
}

#[tokio::test]
async fn t12_r60_the_policy_can_be_published() {
    let database = Database::fresh().await;
    let hour = Duration::from_secs(3_600);
    let plain = layer(engine(&database.pool_lazily())).operation("charge.create");
    assert_eq!(
        serde_json::to_value(plain.policy()).unwrap(),
        json!({
            "operation": "charge.create", "header": "idempotency-key", "required": true, "methods": ["PATCH", "POST"],
            "window": "P1D", "replay": "P1D", "max_request_bytes": 1_048_576,
        })
    );
    let never = plain.clone().optional().retention(Retention::new(hour).unwrap().refuse_forever()).policy();
    assert_eq!((never.window, never.replay.as_deref(), never.required), (None, Some("PT1H"), false));
    let timed = plain.timestamped_keys(TimestampedKeys::first_sent(7 * 24 * hour).unwrap()).policy();
    assert_eq!((timed.window.as_deref(), timed.header.as_str()), (Some("P7D"), "repeatability-request-id"));
    assert_eq!((timed.timestamped_keys, timed.replay.as_deref()), (Some("first-sent"), Some("P7D")));
    let global = axum_idempotency::IdempotencyLayer::new(engine(&database.pool_lazily()), |_| Some(Scope::global()));
    assert!(serde_json::to_value(global.policy()).unwrap().get("operation").is_none());
}

//! F70: whoever reads the partitioned table, for however long, stops no claim.

use std::time::Duration;

use axum_idempotency::{
    Claim, Fingerprint, IdempotencyKey, IdempotentRequest, Operation, Scope, StoredResponse, TimestampedKeys,
    migrate_partitioned,
};
use sqlx::Executor as _;
use tokio::time::timeout;

use crate::support::{Clock, Database, START, engine};

const HOUR: i64 = 3_600_000;

fn request(born: i64, n: u128) -> IdempotentRequest {
    let key = ulid::Ulid::from_parts(born.try_into().unwrap(), n).to_string();
    let key = IdempotencyKey::new(key).unwrap();
    IdempotentRequest::new(Scope::global(), Operation::new("o"), key, Fingerprint::of(["f"]))
}

#[tokio::test]
async fn f70_a_reader_of_any_length_stops_no_claim_and_the_partition_goes_when_the_reader_has_gone() {
    for snapshot in ["begin", "begin isolation level repeatable read"] {
        let database = Database::fresh().await;
        migrate_partitioned(&database.pool().await).await.unwrap();
        let mut clock = Clock::of(&database).await;
        let keys = TimestampedKeys::ulid(Duration::from_secs(3_600)).unwrap().partitioned().unwrap();
        let process = engine(&Database::pool_with(clock.options(), 4).await).timestamped_keys(keys);
        let claim = async |born: i64, n: u128| {
            let claimed = timeout(Duration::from_secs(8), process.claim(request(born, n))).await;
            match claimed.expect("a claim that nobody stops").expect("a claim") {
                Claim::Fresh(attempt) => {
                    attempt.complete(&StoredResponse::new(http::StatusCode::CREATED, "")).await.unwrap();
                }
                other => panic!("{other:?}"),
            }
        };
        claim(START, 1).await;
        // As pg_dump, or a psql that somebody has left open.
        let mut reader = database.connection().await;
        reader.execute(snapshot).await.unwrap();
        reader.execute("select count(*) from idempotency.timed_keys").await.unwrap();

        // Everything of then is due, and every partition of now is to be made.
        let mut now = START + 10 * HOUR;
        clock.set(now).await;
        let pruning = {
            let process = process.clone();
            tokio::spawn(async move { process.prune(10).await })
        };
        // The pruner has told the server to detach one, and waits for the reader.
        while !database.is_detaching().await && !pruning.is_finished() {}
        for n in 0..20 {
            // Each is in a partition that is not there yet.
            now += HOUR / 2;
            clock.set(now).await;
            claim(now, 100 + n).await;
        }
        // A process that dies then leaves a detachment half done, which the next one ends. That it has to wait for the
        // reader as well holds nobody up.
        pruning.abort();
        drop(pruning.await);
        database.connection().await.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where query like '%detach partition%' and pid <> pg_backend_pid()",
        ).await.unwrap();
        sqlx::query("update idempotency.partitions set dropping_since = '-infinity' where dropping_since is not null")
            .execute(&mut database.connection().await)
            .await
            .unwrap();
        for n in 0..5 {
            let pruning = {
                let process = process.clone();
                tokio::spawn(async move { process.prune(10).await })
            };
            now += HOUR / 2;
            clock.set(now).await;
            claim(now, 200 + n).await;
            assert_eq!(
                timeout(Duration::from_secs(20), pruning).await.unwrap().unwrap().unwrap().partitions_dropped,
                0
            );
            sqlx::query(
                "update idempotency.partitions set dropping_since = '-infinity' where dropping_since is not null",
            )
            .execute(&mut database.connection().await)
            .await
            .unwrap();
        }
        reader.execute("rollback").await.unwrap();
        let mut dropped = 0;
        for _ in 0..30 {
            dropped += process.prune(10).await.unwrap().partitions_dropped;
        }
        assert!(dropped > 0, "the reader has gone");
        claim(now, 300).await;
    }
}

/// It asked for 43,200 partitions, which no claim has the time to make.
#[tokio::test]
async fn f79_a_short_window_and_a_long_step_into_the_future_can_be_claimed_under() {
    let database = Database::fresh().await;
    migrate_partitioned(&database.pool().await).await.unwrap();
    let month = Duration::from_secs(30 * 86_400);
    let keys = TimestampedKeys::ulid(Duration::from_secs(300)).unwrap().partitioned().unwrap().future_skew(month);
    let process = engine(&database.pool().await).timestamped_keys(keys);
    let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    for born in [now, now + 29 * 24 * HOUR] {
        let claimed = timeout(Duration::from_secs(8), process.claim(request(born, 1))).await.expect("in time");
        assert!(matches!(claimed, Ok(Claim::Fresh(_))), "{claimed:?}");
    }
}

/// The session of a detachment may write, and ends statements; nobody may get it who does not know.
#[tokio::test]
async fn f67_a_prune_that_is_dropped_in_the_middle_leaves_no_session_behind_that_may_write() {
    let database = Database::fresh().await;
    migrate_partitioned(&database.pool().await).await.unwrap();
    let mut clock = Clock::of(&database).await;
    let keys = TimestampedKeys::ulid(Duration::from_secs(3_600)).unwrap().partitioned().unwrap();
    let pool = Database::pool_with(clock.options(), 1).await;
    let process =
        axum_idempotency::Idempotency::new(&pool).timestamped_keys(keys).client_check(Duration::from_millis(100));
    let claim = async |born: i64, n: u128| match process.claim(request(born, n)).await.unwrap() {
        Claim::Fresh(attempt) => attempt,
        other => panic!("{other:?}"),
    };
    claim(START, 1).await.complete(&StoredResponse::new(http::StatusCode::CREATED, "")).await.unwrap();
    let mut reader = database.connection().await;
    reader.execute("begin; select count(*) from idempotency.timed_keys").await.unwrap();
    let now = START + 10 * HOUR;
    clock.set(now).await;
    let pruning = {
        let process = process.clone();
        tokio::spawn(async move { process.prune(10).await })
    };
    while !database.is_detaching().await {
        assert!(!pruning.is_finished(), "it waits for the reader");
    }
    pruning.abort();
    drop(pruning.await);
    // The only connection: not the one that still waits, and not its session.
    for n in 0..3 {
        let mut attempt = timeout(Duration::from_secs(8), claim(now, 10 + n)).await.expect("another connection");
        let settings =
            "select current_setting('default_transaction_read_only') || current_setting('statement_timeout')";
        let settings: String = sqlx::query_scalar(settings).fetch_one(attempt.connection()).await.unwrap();
        assert_eq!(settings, "on0");
        attempt.connection().execute("rollback").await.unwrap();
        attempt.connection().execute("insert into effect (note) values ('durable')").await.unwrap_err();
        attempt.complete(&StoredResponse::new(http::StatusCode::CREATED, "")).await.unwrap_err();
    }
    assert_eq!(database.effects().await, 0);
    reader.execute("rollback").await.unwrap();
}

#[tokio::test]
async fn f82_the_longest_limit_of_a_statement_does_not_overflow_where_a_partition_is_dropped() {
    let database = Database::fresh().await;
    migrate_partitioned(&database.pool().await).await.unwrap();
    let mut clock = Clock::of(&database).await;
    let keys = TimestampedKeys::ulid(Duration::from_secs(3_600)).unwrap().partitioned().unwrap();
    let process =
        engine(&Database::pool_with(clock.options(), 2).await).timestamped_keys(keys).statement_limit(Duration::MAX);
    drop(process.claim(request(START, 1)).await.unwrap());
    clock.set(START + 10 * HOUR).await;
    assert_eq!(process.prune(10).await.unwrap().partitions_dropped, 1);
}

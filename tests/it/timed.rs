//! T1 to T12: keys that bear a time are executed at most once, without any limit in time; in either table.

use std::{collections::HashMap, time::Duration};

use axum_idempotency::{
    Claim, ClaimUsing, Concurrency, Duplicate, ErrorKind, Fingerprint, Idempotency, IdempotencyKey, IdempotentRequest,
    KeyTimeError, Operation, Pruned, Ran, RejectionKind, Retention, Scope, StoredResponse, TimestampedKeys,
    migrate_partitioned,
};
use sqlx::Connection as _;

use crate::support::{Clock, Database, Gate, START, app_with, create, effect, engine, layer, moment, post, reply};

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;

fn millis(count: i64) -> Duration {
    Duration::from_millis(count.try_into().unwrap())
}

/// A UUID of version 7 that was born then; another for another `n`.
fn uuid(born: i64, n: u32) -> String {
    format!("{:08x}-{:04x}-7000-8000-{n:012x}", born >> 16, born & 0xffff)
}

fn request(key: &str) -> IdempotentRequest {
    let key = IdempotencyKey::new(key).unwrap();
    IdempotentRequest::new(Scope::new("alice"), Operation::new("o"), key, Fingerprint::of(["f"]))
}

/// One way to bear a time, and one place to keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Uuid,
    UuidPartitioned,
    Ulid,
    UlidPartitioned,
    FirstSent,
}

const WAYS: [Way; 5] = [Way::Uuid, Way::UuidPartitioned, Way::Ulid, Way::UlidPartitioned, Way::FirstSent];

impl Way {
    fn keys(self, window: i64) -> TimestampedKeys {
        match self {
            Self::Uuid => TimestampedKeys::uuid_v7(millis(window)).unwrap(),
            Self::UuidPartitioned => TimestampedKeys::uuid_v7(millis(window)).unwrap().partitioned().unwrap(),
            Self::Ulid => TimestampedKeys::ulid(millis(window)).unwrap(),
            Self::UlidPartitioned => TimestampedKeys::ulid(millis(window)).unwrap().partitioned().unwrap(),
            Self::FirstSent => TimestampedKeys::first_sent(millis(window)).unwrap(),
        }
    }

    fn request(self, born: i64, n: u32) -> IdempotentRequest {
        match self {
            Self::Uuid | Self::UuidPartitioned => request(&uuid(born, n)),
            Self::Ulid | Self::UlidPartitioned => {
                request(&ulid::Ulid::from_parts(born.try_into().unwrap(), n.into()).to_string())
            }
            Self::FirstSent => request(&format!("{born}-{n}")).with_first_sent(moment(born)),
        }
    }
}

/// A database by a test's clock, and what claims in it.
struct World {
    database: Database,
    clock: Clock,
    way: Way,
}

/// What a claim came to; a fresh one is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    Executed,
    Replayed,
    NotRetained,
    KeyTime(KeyTimeError),
}

impl World {
    async fn new(way: Way) -> Self {
        let database = Database::fresh().await;
        migrate_partitioned(&database.pool().await).await.unwrap();
        let clock = Clock::of(&database).await;
        Self { database, clock, way }
    }

    /// Another process.
    async fn process(&self, window: i64) -> Idempotency {
        let pool = Database::pool_with(self.clock.options(), 3).await;
        engine(&pool).timestamped_keys(self.way.keys(window))
    }

    async fn ask(&self, process: &Idempotency, born: i64, n: u32) -> Came {
        match process.claim(self.way.request(born, n)).await.unwrap() {
            Claim::Fresh(attempt) => {
                attempt.complete(&StoredResponse::new(http::StatusCode::CREATED, "done")).await.unwrap();
                Came::Executed
            }
            Claim::Duplicate(Duplicate::Replay(_)) => Came::Replayed,
            Claim::Duplicate(Duplicate::NotRetained(_)) => Came::NotRetained,
            Claim::Duplicate(Duplicate::KeyTime(error)) => Came::KeyTime(error),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn t2_t3_t10_the_edges_of_the_window_and_of_the_future() {
    for way in WAYS {
        let mut world = World::new(way).await;
        let process = world.process(HOUR).await;
        // From now on the operation remembers.
        assert_eq!(world.ask(&process, START, 0).await, Came::Executed, "{way:?}");
        let now = START + 10 * HOUR;
        world.clock.set(now).await;
        // What stands beside the key counts in seconds.
        let step = if way == Way::FirstSent { 1_000 } else { 1 };
        assert_eq!(world.ask(&process, now - HOUR, 1).await, Came::Executed, "{way:?}");
        assert_eq!(world.ask(&process, now - HOUR - step, 2).await, Came::KeyTime(KeyTimeError::Expired), "{way:?}");
        assert_eq!(world.ask(&process, now + MINUTE, 3).await, Came::Executed, "{way:?}");
        assert_eq!(world.ask(&process, now + MINUTE + step, 4).await, Came::KeyTime(KeyTimeError::InFuture), "{way:?}");
    }
}

#[tokio::test]
async fn t2_t4_skew_and_margin_are_settings() {
    for (skew, margin) in [(5_000, 0), (0, 10 * MINUTE)] {
        for way in [Way::Uuid, Way::UuidPartitioned] {
            let mut world = World::new(way).await;
            let keys = way.keys(HOUR).future_skew(millis(skew)).margin(millis(margin));
            let pool = Database::pool_with(world.clock.options(), 3).await;
            let process = engine(&pool).timestamped_keys(keys);
            assert_eq!(world.ask(&process, START + skew, 1).await, Came::Executed, "{way:?} {skew}");
            assert_eq!(world.ask(&process, START + skew + 1, 2).await, Came::KeyTime(KeyTimeError::InFuture));
            let end = START + skew + HOUR + margin;
            world.clock.set(end - 1).await;
            process.prune(10).await.unwrap();
            assert_eq!(world.ask(&process, START + skew, 1).await, Came::Replayed, "{way:?} {margin}");
            world.clock.set(end + 1).await;
            process.prune(10).await.unwrap();
            assert_eq!(world.ask(&process, START + skew, 1).await, Came::KeyTime(KeyTimeError::Expired));
        }
    }
}

/// T10: a reaper that races a duplicate never yields a second run. The clock jumps past window and margin while some ask
/// and others prune.
#[tokio::test(flavor = "multi_thread")]
async fn t10_pruning_against_duplicates_never_yields_a_second_execution() {
    for way in WAYS {
        let mut world = World::new(way).await;
        let process = world.process(HOUR).await;
        let executed = std::sync::Arc::new(std::sync::Mutex::new(HashMap::<(i64, u32), u32>::new()));
        for jump in 0..4 {
            let born = START + jump * 2 * HOUR;
            world.clock.set(born).await;
            let mut asking = Vec::new();
            for n in 0..60 {
                // Of now, and of the jumps before.
                let (process, executed) = (process.clone(), executed.clone());
                let key = (born - i64::from(n % 3) * 2 * HOUR, n % 5);
                asking.push(tokio::spawn(async move {
                    if n % 6 == 0 {
                        process.prune(1).await.unwrap();
                    }
                    if let Claim::Fresh(attempt) = process.claim(way.request(key.0, key.1)).await.unwrap() {
                        attempt.complete(&StoredResponse::new(http::StatusCode::OK, "")).await.unwrap();
                        *executed.lock().unwrap().entry(key).or_default() += 1;
                    }
                }));
            }
            world.clock.set(born + HOUR - 1).await;
            for asked in asking {
                asked.await.unwrap();
            }
        }
        let executed = executed.lock().unwrap();
        assert!(executed.len() >= 5 && executed.values().all(|times| *times == 1), "{way:?} {executed:?}");
    }
}

#[tokio::test]
async fn t3_t10_a_key_that_is_remembered_is_replayed_and_one_that_is_not_is_refused() {
    for way in WAYS {
        let mut world = World::new(way).await;
        let process = world.process(HOUR).await;
        assert_eq!(world.ask(&process, START, 1).await, Came::Executed, "{way:?}");
        world.clock.set(START + HOUR - 1).await;
        assert_eq!(world.ask(&process, START, 1).await, Came::Replayed, "{way:?} within the window");
        world.clock.set(START + HOUR + 1).await;
        assert_eq!(world.ask(&process, START, 1).await, Came::Replayed, "{way:?} beyond it, still remembered");
        process.prune(100).await.unwrap();
        assert_eq!(world.ask(&process, START, 1).await, Came::Replayed, "{way:?} pruning spares it for the margin");
        world.clock.set(START + HOUR + MINUTE).await;
        assert_eq!(world.ask(&process, START, 1).await, Came::KeyTime(KeyTimeError::Expired), "{way:?} forgotten");
        process.prune(100).await.unwrap();
        assert_eq!(world.ask(&process, START, 1).await, Came::KeyTime(KeyTimeError::Expired), "{way:?} and pruned");
    }
}

/// T3: judged again after a wait, since what made it wait may have been pruned.
#[tokio::test]
async fn t3_a_claim_that_waited_until_its_key_was_too_old_does_not_execute() {
    for way in WAYS {
        let mut world = World::new(way).await;
        let (here, elsewhere) = (world.process(HOUR).await, world.process(HOUR).await);
        assert_eq!(world.ask(&here, START, 0).await, Came::Executed);
        let Claim::Fresh(held) = here.claim(way.request(START, 1)).await.unwrap() else { panic!("not fresh") };
        let waiting = tokio::spawn(async move { elsewhere.claim(way.request(START, 1)).await });
        world.database.until_waiting(1).await;
        world.clock.set(START + 2 * HOUR).await;
        held.release().await.unwrap();
        let came = waiting.await.unwrap().unwrap();
        assert!(matches!(came, Claim::Duplicate(Duplicate::KeyTime(KeyTimeError::Expired))), "{way:?} {came:?}");
        let left: i64 = sqlx::query_scalar(
            "select (select count(*) from idempotency.keys) + (select count(*) from idempotency.timed_keys)",
        )
        .fetch_one(&mut world.database.connection().await)
        .await
        .unwrap();
        assert_eq!(left, 1, "{way:?} leaves nothing behind");
    }
}

/// What a caller's own transaction sees as `now()` may be long ago.
#[tokio::test]
async fn t3_the_clock_that_counts_runs_on_within_a_transaction() {
    for way in WAYS {
        let mut world = World::new(way).await;
        let process = world.process(HOUR).await;
        assert_eq!(world.ask(&process, START, 0).await, Came::Executed);
        let mut connection = world.clock.options().connect_now().await;
        let mut transaction = connection.begin().await.unwrap();
        sqlx::query("select now()").execute(&mut *transaction).await.unwrap();
        world.clock.set(START + 2 * HOUR).await;
        let old = process.claim_using(&mut transaction, &way.request(START, 1)).await.unwrap();
        assert!(matches!(old, ClaimUsing::Duplicate(Duplicate::KeyTime(KeyTimeError::Expired))), "{way:?} {old:?}");
        let young = way.request(START + 2 * HOUR, 1);
        let fresh = process.claim_using(&mut transaction, &young).await.unwrap();
        assert!(matches!(fresh, ClaimUsing::Fresh), "{way:?} {fresh:?}");
        let answer = StoredResponse::new(http::StatusCode::OK, "");
        process.complete_using(&mut transaction, &young, &answer).await.unwrap();
        transaction.commit().await.unwrap();
        assert_eq!(world.ask(&process, START + 2 * HOUR, 1).await, Came::Replayed, "{way:?}");
    }
}

trait Connect {
    async fn connect_now(&self) -> sqlx::PgConnection;
}

impl Connect for sqlx::postgres::PgConnectOptions {
    async fn connect_now(&self) -> sqlx::PgConnection {
        sqlx::PgConnection::connect_with(self).await.unwrap()
    }
}

/// T4 and T5, the theorem: whatever the clock does (within the margin), whoever prunes, retries and starts anew with
/// another window, no key is executed twice. And what can be known to be new is not refused.
#[tokio::test]
async fn g9_t4_t5_t9_no_key_is_executed_twice_without_any_limit_in_time() {
    for (seed, way) in (1..).zip(WAYS) {
        let mut world = World::new(way).await;
        let mut random = Random(seed * 7_919);
        let mut now = START;
        let mut windows = vec![HOUR];
        // Two at a time, and not always of one mind.
        let mut processes = [world.process(HOUR).await, world.process(HOUR).await];
        assert_eq!(world.ask(&processes[0], START, 0).await, Came::Executed);
        let mut executed: HashMap<(i64, u32), u32> = HashMap::new();
        let mut asked: Vec<(i64, u32)> = Vec::new();
        for n in 1..600 {
            let which = random.below(2) as usize;
            let process = processes[which].clone();
            match random.below(24) {
                // Time passes: mostly a little, sometimes more than any window.
                0..4 => now += i64::from(random.below(20)) * MINUTE,
                4 if random.below(3) == 0 => now += i64::from(random.below(300)) * MINUTE,
                // The clock is set back, by the margin at most.
                5 => now -= i64::from(random.below(60)) * 1_000,
                6 | 7 => {
                    process.prune(1 + random.below(20)).await.unwrap();
                }
                // A restart, with the same window, a shorter or a longer one.
                8 if random.below(2) == 0 => {
                    let window = i64::from(10 + random.below(110)) * MINUTE;
                    windows.push(window);
                    processes[which] = world.process(window).await;
                }
                // An attempt that comes to nothing.
                9 => {
                    let born = now - i64::from(random.below(60)) * MINUTE;
                    if let Claim::Fresh(attempt) = process.claim(way.request(born, n)).await.unwrap() {
                        attempt.release().await.unwrap();
                    }
                    asked.push((born, n));
                }
                _ => {
                    let known = random.below(3) > 0 && !asked.is_empty();
                    let (born, n) = if known {
                        asked[random.below(u32::try_from(asked.len()).unwrap()) as usize]
                    } else {
                        (now + 30_000 - i64::from(random.below(70)) * MINUTE, n)
                    };
                    asked.push((born, n));
                    let came = world.ask(&process, born, n).await;
                    let times = executed.entry((born, n)).or_default();
                    if came == Came::Executed {
                        *times += 1;
                    }
                    assert!(*times <= 1, "{way:?} seed {seed}: executed twice");
                    // Within the shortest window ever it is either remembered or new.
                    let shortest = windows.iter().min().unwrap();
                    if *times == 0 && born <= now && born >= now - shortest + 1_000 && born >= START - HOUR {
                        panic!("{way:?} seed {seed}: {came:?} although it cannot have been forgotten");
                    }
                }
            }
            world.clock.set(now).await;
        }
        assert!(executed.values().sum::<u32>() > 30, "{way:?}: the test has executed something");
    }
}

/// Numbers that look random and are the same in every run (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from(self.0 % u64::from(bound)).unwrap()
    }
}

#[tokio::test]
async fn t5_after_a_window_was_made_longer_what_may_be_forgotten_is_refused_for_good() {
    for way in WAYS {
        let mut world = World::new(way).await;
        let short = world.process(HOUR).await;
        assert_eq!(world.ask(&short, START, 1).await, Came::Executed);
        world.clock.set(START + HOUR + MINUTE).await;
        short.prune(100).await.unwrap();
        let long = world.process(4 * HOUR).await;
        assert_eq!(world.ask(&long, START, 1).await, Came::KeyTime(KeyTimeError::Expired), "{way:?} forgotten before");
        // Within the shorter window, a key of before the change is as good as one of after it.
        assert_eq!(world.ask(&long, START + 30 * MINUTE, 2).await, Came::Executed, "{way:?}");
        let after = START + HOUR + 4 * MINUTE;
        world.clock.set(after).await;
        assert_eq!(world.ask(&long, after, 3).await, Came::Executed, "{way:?}");
        // By now the longer window has filled.
        world.clock.set(after + 4 * HOUR).await;
        long.prune(100).await.unwrap();
        assert_eq!(world.ask(&long, after, 3).await, Came::Replayed, "{way:?}");
        assert_eq!(world.ask(&long, after, 4).await, Came::Executed, "{way:?} a key as old as the longer window");
        assert_eq!(world.ask(&long, START, 1).await, Came::KeyTime(KeyTimeError::Expired), "{way:?}");
        // Those who still have the shorter one go on by it, and keep keys for the longer one.
        assert_eq!(world.ask(&short, after, 5).await, Came::KeyTime(KeyTimeError::Expired), "{way:?}");
        let born = after + 4 * HOUR;
        assert_eq!(world.ask(&short, born, 6).await, Came::Executed, "{way:?}");
        world.clock.set(born + 4 * HOUR).await;
        assert_eq!(world.ask(&long, born, 6).await, Came::Replayed, "{way:?}");
    }
}

/// Clocks may be fast: a key from the future, executed under the shorter window, may have been forgotten under it.
#[tokio::test]
async fn t5_a_key_from_the_future_of_before_the_change_is_judged_by_the_shorter_window() {
    for way in WAYS {
        let mut world = World::new(way).await;
        let short = world.process(HOUR).await;
        let born = START + 50_000;
        assert_eq!(world.ask(&short, born, 1).await, Came::Executed);
        let long = world.process(4 * HOUR).await;
        assert_eq!(world.ask(&long, START, 2).await, Came::Executed);
        // As it was kept for the shorter window, it is forgotten by then.
        world.clock.set(born + HOUR + MINUTE).await;
        sqlx::raw_sql("delete from idempotency.keys; delete from idempotency.timed_keys")
            .execute(&mut world.database.connection().await)
            .await
            .unwrap();
        assert_eq!(world.ask(&long, born, 1).await, Came::KeyTime(KeyTimeError::Expired), "{way:?}");
    }
}

#[tokio::test]
async fn t5_a_second_change_does_not_forget_the_first() {
    for way in WAYS {
        let mut world = World::new(way).await;
        let first = world.process(HOUR).await;
        assert_eq!(world.ask(&first, START, 1).await, Came::Executed);
        let now = START + HOUR + MINUTE;
        world.clock.set(now).await;
        first.prune(10).await.unwrap();
        for (n, window) in [(2, 2 * HOUR), (3, 4 * HOUR)] {
            let process = world.process(window).await;
            assert_eq!(world.ask(&process, now, n).await, Came::Executed);
            assert_eq!(world.ask(&process, START, 1).await, Came::KeyTime(KeyTimeError::Expired), "{way:?} {window}");
        }
    }
}

/// Between its two steps a change refuses nobody and lets nobody in: whoever comes first ends it.
#[tokio::test]
async fn t5_a_change_that_was_cut_off_is_ended_by_the_next_claim() {
    for way in WAYS {
        let world = World::new(way).await;
        let process = world.process(HOUR).await;
        assert_eq!(world.ask(&process, START, 1).await, Came::Executed);
        let mut connection = world.database.connection().await;
        sqlx::query("update idempotency.windows set guard_since = 'infinity', guarded_us = 60000000")
            .execute(&mut connection)
            .await
            .unwrap();
        assert_eq!(world.ask(&process, START - 30_000, 2).await, Came::Executed, "{way:?}");
        assert_eq!(world.ask(&process, START - 120_000, 3).await, Came::KeyTime(KeyTimeError::Expired), "{way:?}");
        let ended: bool = sqlx::query_scalar("select guard_since < 'infinity' from idempotency.windows")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert!(ended, "{way:?}");
    }
}

#[tokio::test]
async fn t5_an_operation_that_was_used_without_times_refuses_the_keys_of_before() {
    for way in [Way::Uuid, Way::UuidPartitioned] {
        let mut world = World::new(way).await;
        let plain = engine(&Database::pool_with(world.clock.options(), 3).await);
        assert_eq!(world.ask(&plain, START, 1).await, Came::Executed);
        let keys = world.process(48 * HOUR).await;
        let remembered = if way == Way::Uuid { Came::Replayed } else { Came::KeyTime(KeyTimeError::Expired) };
        assert_eq!(world.ask(&keys, START, 1).await, remembered, "{way:?}");
        assert_eq!(world.ask(&keys, START - MINUTE, 2).await, Came::KeyTime(KeyTimeError::Expired), "{way:?}");
        world.clock.set(START + 25 * HOUR).await;
        keys.prune(100).await.unwrap();
        assert_eq!(
            world.ask(&keys, START, 1).await,
            Came::KeyTime(KeyTimeError::Expired),
            "{way:?} forgotten, for good"
        );
        assert_eq!(world.ask(&keys, START + HOUR, 3).await, Came::Executed, "{way:?} a key of after the change");
    }
}

#[tokio::test]
async fn t5_an_operation_that_is_new_takes_the_keys_that_are_on_their_way() {
    for way in WAYS {
        let world = World::new(way).await;
        let process = world.process(48 * HOUR).await;
        assert_eq!(world.ask(&process, START - HOUR, 1).await, Came::Executed, "{way:?}");
        // What was executed a day ago would have been forgotten by now.
        assert_eq!(world.ask(&process, START - 25 * HOUR, 2).await, Came::KeyTime(KeyTimeError::Expired), "{way:?}");
    }
}

#[tokio::test]
async fn t5_a_change_of_tables_refuses_the_keys_of_before_in_either_direction() {
    for ways in [[Way::Uuid, Way::UuidPartitioned], [Way::UuidPartitioned, Way::Uuid]] {
        for forgotten in [false, true] {
            let mut world = World::new(ways[0]).await;
            let before = world.process(HOUR).await;
            assert_eq!(world.ask(&before, START, 1).await, Came::Executed);
            let mut now = START;
            if forgotten {
                // Not even a trace is left in the old table.
                now += 2 * HOUR;
                world.clock.set(now).await;
                sqlx::raw_sql("delete from idempotency.keys; delete from idempotency.timed_keys")
                    .execute(&mut world.database.connection().await)
                    .await
                    .unwrap();
            }
            world.way = ways[1];
            let after = world.process(48 * HOUR).await;
            assert_eq!(world.ask(&after, START, 1).await, Came::KeyTime(KeyTimeError::Expired), "{ways:?} {forgotten}");
            now += 2 * MINUTE + 1;
            world.clock.set(now).await;
            assert_eq!(world.ask(&after, now, 2).await, Came::Executed, "{ways:?} {forgotten}");
        }
    }
}

/// A snapshot that is older than the window does not show it, so nothing may be kept by it.
#[tokio::test]
async fn t5_an_old_snapshot_does_not_keep_a_key_for_the_shorter_window() {
    for way in [Way::Uuid, Way::UuidPartitioned] {
        // By the real clock: a snapshot would show an old one in the test's.
        let database = Database::fresh().await;
        let pool = database.pool().await;
        migrate_partitioned(&pool).await.unwrap();
        let process = |window| {
            let keys = way.keys(window).future_skew(Duration::ZERO);
            engine(&pool).timestamped_keys(keys)
        };
        let now = || i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
        let (short, long) = (process(HOUR), process(100 * HOUR));
        assert!(matches!(short.claim(way.request(now(), 1)).await.unwrap(), Claim::Fresh(_)));
        let mut connection = database.connection().await;
        let young = way.request(now(), 2);
        let mut old = connection.begin_with("begin isolation level repeatable read").await.unwrap();
        assert!(matches!(short.claim_using(&mut old, &young).await.unwrap(), ClaimUsing::Fresh), "{way:?}");
        assert!(matches!(long.claim(way.request(now(), 3)).await.unwrap(), Claim::Fresh(_)));
        let began = now();
        while now() <= began + 1 {
            tokio::task::yield_now().await;
        }
        let refused = short.claim_using(&mut old, &way.request(now(), 4)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict, "{way:?}: to be made again, in a new transaction");
    }
}

/// The roles of some applications have it as their default.
#[tokio::test]
async fn t5_everything_is_prepared_under_repeatable_read_too() {
    for way in WAYS {
        let world = World::new(way).await;
        let options = world.clock.options().options([("default_transaction_isolation", "repeatable read")]);
        let mut processes = Vec::new();
        for _ in 0..4 {
            let pool = Database::pool_with(options.clone(), 4).await;
            processes.push(engine(&pool).timestamped_keys(way.keys(HOUR)));
        }
        let claims = crate::support::all((0_u32..).zip(processes).map(|(n, process)| async move {
            process.claim(way.request(START, n)).await.map(|claim| matches!(claim, Claim::Fresh(_)))
        }))
        .await;
        assert!(claims.iter().all(|claim| matches!(claim, Ok(true))), "{way:?} {claims:?}");
    }
}

#[tokio::test]
async fn t5_a_window_made_longer_at_once_refuses_nothing_that_is_new() {
    for way in WAYS {
        let world = World::new(way).await;
        for (n, window) in (1..).zip([HOUR, 2 * HOUR, 4 * HOUR]) {
            let process = world.process(window).await;
            assert_eq!(world.ask(&process, START, n).await, Came::Executed, "{way:?}");
        }
    }
}

/// Many requests may be the first of an operation.
#[tokio::test(flavor = "multi_thread")]
async fn t5_many_first_claims_at_once_are_all_executed() {
    for way in WAYS {
        let world = World::new(way).await;
        let process = world.process(HOUR).await;
        let claims = crate::support::all((0_u32..30).map(|n| {
            let process = process.clone();
            async move {
                match process.claim(way.request(START, n)).await {
                    Ok(Claim::Fresh(attempt)) => attempt.release().await.is_ok(),
                    _ => false,
                }
            }
        }))
        .await;
        assert!(claims.iter().all(|fresh| *fresh), "{way:?} {claims:?}");
    }
}

#[tokio::test]
async fn t6_t7_a_key_with_another_time_is_not_the_same_intent() {
    let world = World::new(Way::FirstSent).await;
    let process = world.process(HOUR).await;
    let at = |born| request("k").with_first_sent(moment(born));
    let Claim::Fresh(attempt) = process.claim(at(START)).await.unwrap() else { panic!("not fresh") };
    let other = process.claim(at(START - 1_000)).await.unwrap();
    assert!(matches!(other, Claim::Duplicate(Duplicate::KeyTime(KeyTimeError::Mismatch))), "while it runs: {other:?}");
    attempt.complete(&StoredResponse::new(http::StatusCode::OK, "")).await.unwrap();
    let other = process.claim(at(START - 1_000)).await.unwrap();
    assert!(matches!(other, Claim::Duplicate(Duplicate::KeyTime(KeyTimeError::Mismatch))), "afterwards: {other:?}");
    assert!(
        matches!(process.claim(at(START + 999)).await.unwrap(), Claim::Duplicate(Duplicate::Replay(_))),
        "by the second"
    );
}

#[tokio::test]
async fn a_consumer_is_told_by_the_kind_of_the_error() {
    let world = World::new(Way::Uuid).await;
    let process = world.process(HOUR).await;
    let run = async |request| process.run(request, async |_| Ok::<_, axum_idempotency::Error>(1)).await;
    assert_eq!(run(request(&uuid(START, 1))).await.unwrap(), Ran::Executed(1));
    assert_eq!(run(request(&uuid(START, 1))).await.unwrap(), Ran::Replayed(1));
    assert_eq!(run(request(&uuid(START - 2 * HOUR, 2))).await.unwrap_err().kind(), ErrorKind::KeyExpired);
    assert_eq!(run(request(&uuid(START + HOUR, 3))).await.unwrap_err().kind(), ErrorKind::KeyFromFuture);
    assert_eq!(run(request("message-1")).await.unwrap_err().kind(), ErrorKind::KeyWithoutTime);
}

/// The same as for plain keys: replay, another payload, undone and kept, undone and freed, waiting elsewhere.
#[tokio::test]
async fn f50_in_either_table_the_layer_keeps_its_contract() {
    for way in [Way::Uuid, Way::UuidPartitioned] {
        let world = World::new(way).await;
        let pool = Database::pool_with(world.clock.options(), 4).await;
        let idempotent = layer(engine(&pool)).timestamped_keys(way.keys(HOUR));
        let ask = |n: u32, body: &'static str| post("/things").key(&uuid(START, n)).body(body);

        let app = app_with(idempotent.clone(), create);
        let first = reply(&app, ask(1, "a")).await;
        let retry = reply(&app, post("/things").key(&uuid(START, 1).to_uppercase()).body("a")).await;
        assert!(first.status == 201 && retry.replayed() && retry.body == first.body, "{way:?} {retry:?}");
        reply(&app, ask(1, "b")).await.assert_refused(RejectionKind::KeyReused);
        assert_eq!(world.database.effects().await, 1);

        let declining = app_with(idempotent.clone(), crate::support::answering(402));
        let declined = reply(&declining, ask(2, "")).await;
        let again = reply(&app, ask(2, "")).await;
        assert!(declined.status == 402 && again.status == 402 && again.replayed(), "{way:?} {again:?}");

        let failing = app_with(idempotent.clone(), crate::support::answering(500));
        assert_eq!(reply(&failing, ask(3, "")).await.status, 500);
        assert!(!reply(&app, ask(3, "")).await.replayed(), "{way:?} the key was free");
        assert_eq!(world.database.effects().await, 2);

        let gate = Gate::closed();
        let inside = gate.clone();
        let slow = app_with(idempotent, move |mut tx: axum_idempotency::Tx| async move {
            inside.pass().await;
            effect(&mut tx).await.to_string()
        });
        let running = tokio::spawn(async move { reply(&slow, ask(4, "")).await });
        gate.entered().await;
        let elsewhere = layer(engine(&Database::pool_with(world.clock.options(), 4).await));
        let elsewhere = app_with(elsewhere.timestamped_keys(way.keys(HOUR)), create);
        let waiting = tokio::spawn(async move { reply(&elsewhere, ask(4, "")).await });
        world.database.until_waiting(1).await;
        gate.open();
        let (ran, waited) = (running.await.unwrap(), waiting.await.unwrap());
        assert!(waited.replayed() && waited.body == ran.body, "{way:?} {waited:?}");
    }
}

#[tokio::test]
async fn t1_t2_t3_t11_what_clients_are_told() {
    let world = World::new(Way::Uuid).await;
    let pool = Database::pool_with(world.clock.options(), 4).await;
    let idempotent = layer(engine(&pool)).timestamped_keys(Way::Uuid.keys(HOUR));
    let app = app_with(idempotent.clone(), create);
    reply(&app, post("/things").key("order-1")).await.assert_refused(RejectionKind::InvalidKey);
    reply(&app, post("/things").key("8e03978e-40d5-43e8-bc93-6894a57f9324"))
        .await
        .assert_refused(RejectionKind::InvalidKey);
    assert_eq!(reply(&app, post("/things").key(&uuid(START, 1))).await.status, 201);
    let future = reply(&app, post("/things").key(&uuid(START + HOUR, 2))).await;
    future.assert_refused(RejectionKind::KeyFromFuture);
    let expired = reply(&app, post("/things").key(&uuid(START - 2 * HOUR, 3))).await;
    expired.assert_refused(RejectionKind::KeyExpired);
    assert_eq!((future.status.as_u16(), expired.status.as_u16()), (400, 412));
    assert_eq!(expired.json()["key_reusable"], false);
    let gone = app_with(idempotent.rejection_status(RejectionKind::KeyExpired, http::StatusCode::GONE), create);
    let expired = reply(&gone, post("/things").key(&uuid(START - 2 * HOUR, 3))).await;
    assert_eq!((expired.status.as_u16(), expired.kind()), (410, Some(RejectionKind::KeyExpired)));
    assert_eq!(world.database.effects().await, 1);
}

#[tokio::test]
async fn t6_repeatable_requests_over_http() {
    let world = World::new(Way::FirstSent).await;
    let pool = Database::pool_with(world.clock.options(), 4).await;
    let idempotent = layer(engine(&pool)).timestamped_keys(Way::FirstSent.keys(HOUR));
    let app = app_with(idempotent.repeatability_result(true), create);
    let sent = httpdate(START);
    let ask = |id: &str, sent: &str| {
        post("/things").header("repeatability-request-id", id).header("repeatability-first-sent", sent)
    };
    let first = reply(&app, ask("a", &sent)).await;
    let retry = reply(&app, ask("a", &sent)).await;
    assert_eq!((first.status.as_u16(), retry.replayed()), (201, true));
    for accepted in [&first, &retry] {
        assert_eq!(accepted.headers["repeatability-result"], "accepted");
    }
    for refused in [
        reply(&app, ask("a", &httpdate(START - 1_000))).await,
        reply(&app, post("/things").header("repeatability-request-id", "b")).await,
        reply(&app, post("/things").header("repeatability-first-sent", &sent)).await,
        reply(&app, ask("b", "Friday, 15-Jan-27 08:00:00 GMT")).await,
    ] {
        refused.assert_refused(RejectionKind::InvalidKey);
        assert_eq!(refused.headers["repeatability-result"], "rejected");
    }
    reply(&app, ask("c", &httpdate(START - 2 * HOUR))).await.assert_refused(RejectionKind::KeyExpired);
    assert_eq!(world.database.effects().await, 1);
}

/// As HTTP writes it.
fn httpdate(at: i64) -> String {
    httpdate::fmt_http_date(moment(at))
}

/// A signature, for one, is made anew for each attempt, and may be valid for minutes only.
#[tokio::test]
async fn t8_the_times_of_an_attempt_are_not_those_of_its_key() {
    let world = World::new(Way::Uuid).await;
    let pool = Database::pool_with(world.clock.options(), 4).await;
    let app = app_with(layer(engine(&pool)).timestamped_keys(Way::Uuid.keys(HOUR)), create);
    let ask = |at: i64| {
        let signed = format!("sig=(\"@method\");created={}", at / 1_000);
        post("/things").key(&uuid(START, 1)).header("date", &httpdate(at)).header("signature-input", &signed)
    };
    // Before the window, and far in the future.
    let first = reply(&app, ask(START - 10 * HOUR)).await;
    assert_eq!((first.status.as_u16(), first.replayed()), (201, false));
    assert!(reply(&app, ask(START + 10 * HOUR)).await.replayed());
}

#[tokio::test]
async fn the_answer_can_be_dropped_before_the_key() {
    for way in [Way::Uuid, Way::UuidPartitioned] {
        let mut world = World::new(way).await;
        let replayed = Retention::new(millis(10 * MINUTE)).unwrap().refuse_forever();
        let process = world.process(HOUR).await.retention(replayed);
        assert_eq!(world.ask(&process, START, 1).await, Came::Executed);
        world.clock.set(START + 10 * MINUTE - 1).await;
        assert_eq!(world.ask(&process, START, 1).await, Came::Replayed, "{way:?}");
        world.clock.set(START + 10 * MINUTE).await;
        assert_eq!(world.ask(&process, START, 1).await, Came::NotRetained, "{way:?}");
        assert_eq!(process.prune(10).await.unwrap().responses_dropped, 1, "{way:?}");
        assert_eq!(world.ask(&process, START, 1).await, Came::NotRetained, "{way:?}");
        assert_eq!(process.erase_scope(&Scope::new("alice")).await.unwrap().keys, 1, "{way:?}");
        assert_eq!(world.ask(&process, START, 1).await, Came::Executed, "{way:?} the owner starts anew");
    }
}

/// How long a key that bears a time is kept is not an answer's to say: forgotten sooner, it would be executed again.
#[tokio::test]
async fn an_answers_own_retention_shortens_its_replays_and_never_its_key() {
    for way in [Way::Uuid, Way::UuidPartitioned] {
        let mut world = World::new(way).await;
        let process = world.process(HOUR).await;
        let Claim::Fresh(attempt) = process.claim(way.request(START, 1)).await.unwrap() else { panic!("not fresh") };
        let brief = Retention::new(millis(10 * MINUTE)).unwrap().refuse_for(millis(20 * MINUTE)).unwrap();
        let answer = StoredResponse::new(http::StatusCode::OK, "").with_retention(brief);
        let window = attempt.complete(&answer).await.unwrap();
        assert_eq!(window.replay_ends, Some(moment(START + 10 * MINUTE)), "{way:?}");
        assert_eq!(window.expires, Some(moment(START + HOUR + MINUTE)), "{way:?}");
        world.clock.set(START + 30 * MINUTE).await;
        assert_eq!(world.ask(&process, START, 1).await, Came::NotRetained, "{way:?}");
    }
}

#[tokio::test]
async fn a_key_is_looked_up_in_the_table_it_is_in() {
    for way in WAYS {
        let world = World::new(way).await;
        let process = world.process(HOUR).await;
        world.ask(&process, START, 1).await;
        let request = way.request(START, 1);
        let found = process.lookup(request.scope(), request.operation(), request.key()).await.unwrap().unwrap();
        assert_eq!(
            (found.status.as_u16(), found.window.expires),
            (201, Some(moment(START + HOUR + MINUTE))),
            "{way:?}"
        );
        if way != Way::FirstSent {
            let other = IdempotencyKey::new(request.key().as_str().to_uppercase()).unwrap();
            let same = process.lookup(request.scope(), request.operation(), &other).await.unwrap();
            assert_eq!(same, Some(found), "{way:?} as the layer would have spelled it");
        }
    }
}

#[tokio::test]
async fn partitions_are_made_ahead_and_dropped_with_all_that_was_in_them() {
    let mut world = World::new(Way::UuidPartitioned).await;
    let process = world.process(HOUR).await;
    assert_eq!(process.prune(10).await.unwrap(), Pruned::default(), "nothing is known to be needed yet");
    // The first claim makes what it needs.
    assert_eq!(world.ask(&process, START, 1).await, Came::Executed);
    let made = partitions(&world).await;
    assert!((9..=12).contains(&made.len()), "{made:?}");
    assert_eq!(process.prune(10).await.unwrap(), Pruned::default());
    // An eighth of the window later there is one more, and nothing is too old.
    world.clock.set(START + HOUR / 8).await;
    assert_eq!(process.prune(10).await.unwrap().partitions_made, 1);
    // What is in the oldest is too old to be accepted, and still kept.
    let oldest: i64 = sqlx::query_scalar("select extract(epoch from min(upper))::bigint from idempotency.partitions")
        .fetch_one(&mut world.database.connection().await)
        .await
        .unwrap();
    world.clock.set(oldest * 1_000 + HOUR + 30_000).await;
    assert_eq!(process.prune(10).await.unwrap().partitions_dropped, 0);
    world.clock.set(START + HOUR + MINUTE + HOUR / 8).await;
    let mut dropped = 0;
    loop {
        let pruned = process.prune(10).await.unwrap();
        assert_eq!(pruned.deleted, 0);
        dropped += pruned.partitions_dropped;
        if pruned.partitions_dropped == 0 {
            break;
        }
    }
    assert!(dropped >= 8, "{dropped}");
    let left: i64 = sqlx::query_scalar("select count(*) from idempotency.timed_keys")
        .fetch_one(&mut world.database.connection().await)
        .await
        .unwrap();
    assert_eq!(left, 0, "the key went with its partition");
    assert!((9..=12).contains(&partitions(&world).await.len()));
    // Long after the last one was made, a claim makes those that it needs.
    world.clock.set(START + 100 * HOUR).await;
    assert_eq!(world.ask(&process, START + 100 * HOUR, 2).await, Came::Executed);
}

async fn partitions(world: &World) -> Vec<String> {
    sqlx::query_scalar(
        "select inhrelid::regclass::text from pg_inherits where inhparent = 'idempotency.timed_keys'::regclass",
    )
    .fetch_all(&mut world.database.connection().await)
    .await
    .unwrap()
}

#[tokio::test]
async fn dropping_a_partition_waits_for_running_attempts_and_stops_no_claim() {
    let mut world = World::new(Way::UuidPartitioned).await;
    let process = world.process(HOUR).await;
    let Claim::Fresh(running) = process.claim(Way::UuidPartitioned.request(START, 1)).await.unwrap() else {
        panic!("not fresh")
    };
    let now = START + 3 * HOUR;
    world.clock.set(now).await;
    let pruner = process.clone();
    let pruning = tokio::spawn(async move { pruner.prune(10).await });
    world.database.until_waiting(1).await;
    // Meanwhile others claim, and are not held up.
    assert_eq!(world.ask(&world.process(HOUR).await, now, 2).await, Came::Executed);
    assert!(!pruning.is_finished());
    running.complete(&StoredResponse::new(http::StatusCode::OK, "late")).await.unwrap();
    assert_eq!(pruning.await.unwrap().unwrap().partitions_dropped, 1);
}

/// PostgreSQL leaves a partition half detached if the detaching is cut off.
#[tokio::test]
async fn a_partition_that_was_left_half_detached_is_dropped_by_the_next_round() {
    let mut world = World::new(Way::UuidPartitioned).await;
    let process = world.process(HOUR).await;
    assert_eq!(world.ask(&process, START, 1).await, Came::Executed);
    let oldest: String = sqlx::query_scalar("select name from idempotency.partitions order by lower limit 1")
        .fetch_one(&mut world.database.connection().await)
        .await
        .unwrap();
    let mut reader = world.database.connection().await;
    let mut reading = reader.begin().await.unwrap();
    sqlx::query("select from idempotency.timed_keys").execute(&mut *reading).await.unwrap();
    let mut detacher = world.database.connection().await;
    let pid: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut detacher).await.unwrap();
    let statement = format!("alter table idempotency.timed_keys detach partition idempotency.{oldest} concurrently");
    let detaching =
        tokio::spawn(async move { sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut detacher).await });
    world.database.until_waiting(1).await;
    sqlx::query("select pg_cancel_backend($1)")
        .bind(pid)
        .execute(&mut world.database.connection().await)
        .await
        .unwrap();
    detaching.await.unwrap().unwrap_err();
    reading.rollback().await.unwrap();
    world.clock.set(START + 3 * HOUR).await;
    assert_eq!(process.prune(10).await.unwrap().partitions_dropped, 1);
    let there: bool = sqlx::query_scalar("select to_regclass('idempotency.' || $1) is not null")
        .bind(&oldest)
        .fetch_one(&mut world.database.connection().await)
        .await
        .unwrap();
    assert!(!there, "{oldest} is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn pruners_of_several_processes_do_not_get_in_each_others_way() {
    let mut world = World::new(Way::UuidPartitioned).await;
    let process = world.process(HOUR).await;
    assert_eq!(world.ask(&process, START, 1).await, Came::Executed);
    world.clock.set(START + 3 * HOUR).await;
    let mut dropped = 0;
    for _ in 0..12 {
        let mut pruners = Vec::new();
        for _ in 0..3 {
            pruners.push(world.process(HOUR).await);
        }
        let rounds = crate::support::all(pruners.into_iter().map(|pruner| async move { pruner.prune(10).await })).await;
        dropped += rounds.into_iter().map(|round| round.unwrap().partitions_dropped).sum::<u64>();
    }
    let due: i64 = sqlx::query_scalar("select count(*) from idempotency.partitions where upper <= to_timestamp($1)")
        .bind((START + 2 * HOUR - MINUTE) as f64 / 1_000.0)
        .fetch_one(&mut world.database.connection().await)
        .await
        .unwrap();
    assert!(due == 0 && dropped >= 9, "{due} left, {dropped} dropped");
}

#[tokio::test]
async fn without_the_partitioned_table_a_claim_fails_with_an_error_that_says_so() {
    let database = Database::fresh().await;
    let keys = Way::UuidPartitioned.keys(HOUR);
    let process = engine(&database.pool().await).timestamped_keys(keys);
    let error = process.claim(request(&uuid(START, 1))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotMigrated);
    assert!(error.to_string().contains("migrate_partitioned"), "{error}");
}

#[tokio::test]
async fn the_partitioned_tables_migration_can_be_undone_and_done_again() {
    let database = Database::unmigrated().await;
    let pool = database.pool().await;
    migrate_partitioned(&pool).await.unwrap();
    migrate_partitioned(&pool).await.unwrap();
    axum_idempotency::PARTITIONED_MIGRATOR.undo(&pool, 0).await.unwrap();
    migrate_partitioned(&pool).await.unwrap();
    let process = engine(&pool).timestamped_keys(Way::UlidPartitioned.keys(HOUR));
    let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    let claim = process.claim(Way::UlidPartitioned.request(now, 1)).await.unwrap();
    assert!(matches!(claim, Claim::Fresh(_)));
}

#[tokio::test]
async fn r60_what_a_waiting_duplicate_would_outlive_is_kept_for_longer_and_said_once() {
    let database = Database::fresh().await;
    let pool = database.pool().await;
    let seconds = Duration::from_secs;
    let short = Retention::new(seconds(5)).unwrap();
    let patient = |timeout| engine(&pool).concurrency(Concurrency::Wait { timeout });
    let kept = async |layer: axum_idempotency::IdempotencyLayer, key: &str| -> i64 {
        let replied = reply(&app_with(layer, create), post("/things").key(key)).await;
        assert_eq!(replied.status, 201, "{replied:?}");
        sqlx::query_scalar(
            "select (1000 * extract(epoch from expires_at - coalesce(born_at, created_at)))::bigint
               from idempotency.keys where key = $1",
        )
        .bind(key)
        .fetch_one(&mut database.connection().await)
        .await
        .unwrap()
    };
    let (log, _logging) = crate::support::log();
    let raised = layer(patient(seconds(5)).retention(short)).handler_timeout(seconds(1));
    assert_eq!(kept(raised.clone(), "a").await, 6_001);
    assert_eq!(kept(raised.clone().handler_timeout(None), "b").await, 5_001);
    assert_eq!(log.matches("it was raised to 1 ms more than their sum"), 2, "once for each of them");
    assert_eq!(kept(raised, "c").await, 6_001);
    assert_eq!(log.matches("it was raised to 1 ms more than their sum"), 2);
    // The order of settings makes no difference.
    let other = layer(engine(&pool).retention(short)).handler_timeout(seconds(1));
    assert_eq!(kept(other.concurrency(Concurrency::Wait { timeout: seconds(5) }), "d").await, 6_001);
    // What is long enough counts as it is, and is said nothing about.
    let said = log.matches("it was raised to 1 ms more than their sum");
    let long = Retention::new(seconds(7)).unwrap();
    assert_eq!(kept(layer(patient(seconds(5))).handler_timeout(seconds(1)).retention(long), "e").await, 7_000);
    assert_eq!(log.matches("it was raised to 1 ms more than their sum"), said);
    // Another operation: one that was used without times refuses keys of before.
    let minute = layer(patient(seconds(5)).timestamped_keys(TimestampedKeys::ulid(seconds(5)).unwrap()))
        .handler_timeout(seconds(1))
        .operation("timed");
    let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    let key = Way::Ulid.request(now, 1).key().as_str().to_owned();
    assert_eq!(kept(minute, &key).await, 6_001 + 60_000, "window and margin");
}

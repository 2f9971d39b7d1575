//! Attacks on what the documents promise, from outside: each says what is promised, and how it was tried to be broken.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use axum::{
    Router,
    http::StatusCode,
    response::{IntoResponse as _, Response},
    routing,
};
use axum_idempotency::{
    Claim, ClaimUsing, Concurrency, Duplicate, Fingerprint, Idempotency, IdempotencyKey, IdempotencyLayer,
    IdempotentRequest, Occurrence, Operation, Rejected, RejectionKind, Retention, Scope, StoredResponse,
    TimestampedKeys, Tx, migrate, migrate_partitioned,
};
use futures_util::StreamExt as _;
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{Database, app_with, create, effect, engine, layer, post, reply, serve};

fn message(id: &str) -> IdempotentRequest {
    let key = IdempotencyKey::new(id).unwrap();
    IdempotentRequest::new(Scope::new("orders"), Operation::new("order.import"), key, Fingerprint::of(["p"]))
}

fn done() -> StoredResponse {
    StoredResponse::new(StatusCode::OK, "done")
}

fn brief(millis: u64) -> Retention {
    Retention::new(Duration::from_millis(millis)).unwrap()
}

async fn plain(database: &Database) -> IdempotencyLayer {
    layer(engine(&database.pool_of(4).await))
}

async fn echo(mut tx: Tx, body: String) -> Response {
    effect(&mut tx).await;
    (StatusCode::CREATED, body).into_response()
}

// ---------------------------------------------------------------------------------------------- claim_using

/// README: a key is free, held by a live transaction, or answered. Nothing says that a transaction which is older than the
/// window gets its own key twice.
#[tokio::test]
async fn a_transaction_that_is_older_than_the_window_does_not_get_the_key_that_it_holds_itself() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool_of(2).await).concurrency(Concurrency::NoWait).retention(brief(100));
    let mut connection = database.connection().await;
    let mut transaction = connection.begin().await.unwrap();
    transaction.execute("select pg_sleep(0.2)").await.unwrap();
    let mut executed = 0;
    for _ in 0..3 {
        // The same message, delivered three times within a batch.
        match idempotency.claim_using(&mut transaction, &message("m")).await.unwrap() {
            ClaimUsing::Fresh => executed += 1,
            ClaimUsing::Duplicate(duplicate) => assert_eq!(duplicate, Duplicate::InProgress),
        }
    }
    assert_eq!(executed, 1, "the key is held by this transaction");
}

/// Likewise once it is answered there.
#[tokio::test]
async fn a_transaction_that_is_older_than_the_window_does_not_execute_twice_what_it_has_answered() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool_of(2).await).concurrency(Concurrency::NoWait).retention(brief(100));
    let mut connection = database.connection().await;
    let mut transaction = connection.begin().await.unwrap();
    transaction.execute("select pg_sleep(0.2)").await.unwrap();
    for _ in 0..3 {
        if matches!(idempotency.claim_using(&mut transaction, &message("m")).await.unwrap(), ClaimUsing::Fresh) {
            effect(&mut transaction).await;
            idempotency.complete_using(&mut transaction, &message("m"), &done()).await.unwrap();
        }
    }
    transaction.commit().await.unwrap();
    assert_eq!(database.effects().await, 1);
}

/// windows.md: "from the first use of the key"; documented otherwise at `claim_using` (from the beginning of the transaction).
#[tokio::test]
async fn what_an_old_transaction_has_just_answered_is_remembered_for_a_moment() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool_of(2).await).concurrency(Concurrency::NoWait).retention(brief(1_000));
    let mut connection = database.connection().await;
    let mut transaction = connection.begin().await.unwrap();
    transaction.execute("select pg_sleep(1.1)").await.unwrap();
    assert!(matches!(idempotency.claim_using(&mut transaction, &message("m")).await.unwrap(), ClaimUsing::Fresh));
    idempotency.complete_using(&mut transaction, &message("m"), &done()).await.unwrap();
    transaction.commit().await.unwrap();
    let again = idempotency.claim(message("m")).await.unwrap();
    assert!(matches!(again, Claim::Duplicate(Duplicate::Replay(_))), "executed again at once: {again:?}");
}

#[tokio::test]
async fn claims_in_nested_savepoints_that_come_and_go_are_counted_as_what_they_are() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool_of(2).await).concurrency(Concurrency::NoWait);
    let mut connection = database.connection().await;
    let mut transaction = connection.begin().await.unwrap();
    for n in 0..600 {
        let mut one = transaction.begin().await.unwrap();
        let mut two = one.begin().await.unwrap();
        assert!(matches!(
            idempotency.claim_using(&mut two, &message(&format!("a{n}"))).await.unwrap(),
            ClaimUsing::Fresh
        ));
        if n % 2 == 0 {
            two.execute("select 1 / 0").await.unwrap_err();
            two.rollback().await.unwrap();
        } else {
            two.commit().await.unwrap();
        }
        one.commit().await.unwrap();
    }
    for n in 0..700 {
        let claimed = idempotency.claim_using(&mut transaction, &message(&format!("b{n}"))).await.unwrap();
        assert!(matches!(claimed, ClaimUsing::Fresh), "{n}");
    }
    assert!(idempotency.claim_using(&mut transaction, &message("c")).await.is_err());
}

#[tokio::test]
async fn what_is_taken_over_counts_as_claimed() {
    let database = Database::fresh().await;
    let fill = "insert into idempotency.keys (scope, operation, key, fingerprint, status, body, expires_at)
                select 'orders', 'order.import', 'k' || n, '\\x01', 200, '', now() - interval '1 hour'
                  from generate_series(1, 1001) n";
    database.connection().await.execute(fill).await.unwrap();
    let idempotency = engine(&database.pool_of(2).await).concurrency(Concurrency::NoWait);
    let mut connection = database.connection().await;
    let mut transaction = connection.begin().await.unwrap();
    for n in 1..=1_000 {
        let claimed = idempotency.claim_using(&mut transaction, &message(&format!("k{n}"))).await.unwrap();
        assert!(matches!(claimed, ClaimUsing::Fresh), "{n}: {claimed:?}");
    }
    assert!(idempotency.claim_using(&mut transaction, &message("k1001")).await.is_err());
}

// ---------------------------------------------------------------------------------------------- expiry

/// windows.md: "Pruning frees space and changes no answer"; ARCHITECTURE: "409 is said only of a wait for an execution".
#[tokio::test]
async fn a_pruner_at_the_row_is_not_taken_for_an_execution() {
    for using in [false, true] {
        let database = Database::fresh().await;
        let idempotency = engine(&database.pool_of(4).await).concurrency(Concurrency::NoWait);
        let Claim::Fresh(attempt) = idempotency.claim(message("m")).await.unwrap() else { panic!() };
        attempt.complete(&done()).await.unwrap();
        database.expire().await;
        let mut connection = database.connection().await;
        let mut pruning = connection.begin().await.unwrap();
        // What the pruner's statement does; its COMMIT comes a moment later.
        sqlx::query("delete from idempotency.keys").execute(&mut *pruning).await.unwrap();
        let elsewhere = engine(&database.pool_of(4).await).concurrency(Concurrency::NoWait);
        let pool = database.pool_of(1).await;
        let claiming = tokio::spawn(async move {
            if using {
                let mut transaction = pool.begin().await.unwrap();
                format!("{:?}", elsewhere.claim_using(&mut transaction, &message("m")).await)
            } else {
                match elsewhere.claim(message("m")).await {
                    Ok(Claim::Fresh(attempt)) => {
                        attempt.release().await.unwrap();
                        "Fresh".to_owned()
                    }
                    other => format!("{other:?}"),
                }
            }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        database.until_waiting(1).await;
        pruning.commit().await.unwrap();
        let claimed = claiming.await.unwrap();
        assert!(claimed.contains("Fresh"), "nobody executes it: {claimed} (claim_using: {using})");
    }
}

struct Execution {
    key: String,
    start: SystemTime,
    expires: SystemTime,
}

/// "never two executions of one key in its window", at each level, by several processes, with pruners, with rejections, own
/// retentions, and `claim_using` in old transactions.
#[tokio::test(flavor = "multi_thread")]
async fn however_keys_expire_none_is_executed_twice_in_its_window() {
    for level in ["read committed", "repeatable read", "serializable"] {
        let database = Database::fresh().await;
        let options = || database.options().options([("default_transaction_isolation", level)]);
        let executions: Arc<Mutex<Vec<Execution>>> = Arc::default();
        let errors: Arc<Mutex<Vec<String>>> = Arc::default();
        let end = std::time::Instant::now() + Duration::from_secs(3);
        let mut tasks = Vec::new();
        for process in 0..4_usize {
            let pool = Database::pool_with(options(), 4).await;
            let idempotency = Idempotency::new(&pool)
                .concurrency(Concurrency::Wait { timeout: Duration::from_millis(30) })
                .retention(brief(100));
            let pruner = idempotency.clone();
            if process < 2 {
                tasks.push(tokio::spawn(async move {
                    while std::time::Instant::now() < end {
                        drop(pruner.prune(1 + u32::try_from(process).unwrap()).await);
                    }
                }));
            }
            for task in 0..3_usize {
                let (idempotency, pool) = (idempotency.clone(), pool.clone());
                let (executions, errors) = (executions.clone(), errors.clone());
                tasks.push(tokio::spawn(async move {
                    let mut n = process * 31 + task * 17;
                    while std::time::Instant::now() < end {
                        n += 1;
                        let key = format!("k{}", n % 3);
                        let own = if n % 5 == 0 { done().with_retention(brief(200)) } else { done() };
                        if task == 2 {
                            // A consumer, in a transaction that began a while ago.
                            let Ok(mut transaction) = pool.begin().await else { continue };
                            transaction.execute("select 1").await.unwrap();
                            tokio::time::sleep(Duration::from_millis((n % 4 * 20) as u64)).await;
                            match idempotency.claim_using(&mut transaction, &message(&key)).await {
                                Ok(ClaimUsing::Fresh) => {}
                                Ok(_) => continue,
                                Err(error) => {
                                    errors.lock().unwrap().push(format!("claim_using {error:?}"));
                                    continue;
                                }
                            }
                            let Some(start) = now(&mut transaction).await else { continue };
                            if idempotency.complete_using(&mut transaction, &message(&key), &own).await.is_err() {
                                continue;
                            }
                            let Some(expires) = expires(&mut transaction, &key).await else { continue };
                            if transaction.commit().await.is_ok() {
                                executions.lock().unwrap().push(Execution { key, start, expires });
                            }
                            continue;
                        }
                        match idempotency.claim(message(&key)).await {
                            Ok(Claim::Fresh(mut attempt)) => {
                                let Some(start) = now(attempt.connection()).await else { continue };
                                let window = if n % 7 == 0 {
                                    match attempt.reject(&own).await {
                                        Ok(Rejected::Stored(window)) => window,
                                        _ => continue,
                                    }
                                } else {
                                    match attempt.complete(&own).await {
                                        Ok(window) => window,
                                        Err(error) => {
                                            errors.lock().unwrap().push(format!("complete {error:?}"));
                                            continue;
                                        }
                                    }
                                };
                                let expires = window.expires.unwrap();
                                executions.lock().unwrap().push(Execution { key, start, expires });
                            }
                            Ok(Claim::Duplicate(_)) => {}
                            Err(error) => errors.lock().unwrap().push(format!("claim {error:?}")),
                        }
                        tokio::task::yield_now().await;
                    }
                }));
            }
        }
        for task in tasks {
            task.await.unwrap();
        }
        let mut executions = std::mem::take(&mut *executions.lock().unwrap());
        executions.sort_by(|one, other| (&one.key, one.start).cmp(&(&other.key, other.start)));
        let errors = errors.lock().unwrap();
        let mut kinds = std::collections::BTreeMap::<String, usize>::new();
        for error in &*errors {
            *kinds.entry(error.chars().take(120).collect()).or_default() += 1;
        }
        eprintln!("{level}: {} executions, errors {kinds:?}", executions.len());
        for pair in executions.windows(2) {
            if pair[0].key == pair[1].key {
                assert!(
                    pair[1].start >= pair[0].expires,
                    "{level}: {} executed at {:?} and {:?}, kept until {:?}",
                    pair[0].key,
                    pair[0].start,
                    pair[1].start,
                    pair[0].expires
                );
            }
        }
    }
}

async fn micros(connection: &mut PgConnection, sql: &'static str, key: Option<&str>) -> Option<SystemTime> {
    let mut query = sqlx::query_scalar::<_, i64>(sql);
    if let Some(key) = key {
        query = query.bind(key.to_owned());
    }
    // A serializable transaction may be given up at any of its statements.
    let micros = query.fetch_one(connection).await.ok()?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_micros(micros.try_into().unwrap()))
}

async fn now(connection: &mut PgConnection) -> Option<SystemTime> {
    micros(connection, "select (extract(epoch from clock_timestamp()) * 1000000)::bigint", None).await
}

async fn expires(connection: &mut PgConnection, key: &str) -> Option<SystemTime> {
    let sql = "select (extract(epoch from expires_at) * 1000000)::bigint from idempotency.keys where key = $1";
    micros(connection, sql, Some(key)).await
}

/// One of two worlds that live through the same: in one, everything is pruned all the time.
struct World {
    database: Database,
    clock: crate::support::Clock,
    pool: sqlx::PgPool,
    old: Option<sqlx::Transaction<'static, sqlx::Postgres>>,
    prunes: bool,
}

impl World {
    async fn new(prunes: bool) -> Self {
        let database = Database::fresh().await;
        let clock = crate::support::Clock::of(&database).await;
        let pool = Database::pool_with(clock.options(), 5).await;
        Self { database, clock, pool, old: None, prunes }
    }

    /// Each from another process, which has seen nothing.
    fn process(&self, keys: Option<TimestampedKeys>, retention: Retention) -> Idempotency {
        let engine = Idempotency::sharing(&self.pool).concurrency(Concurrency::NoWait).retention(retention);
        match keys {
            Some(keys) => engine.timestamped_keys(keys),
            None => engine,
        }
    }

    async fn prune(&self) {
        if self.prunes {
            self.process(None, Retention::forever()).prune(100).await.unwrap();
        }
    }

    async fn step(&mut self, step: &Step, n: usize) -> String {
        self.clock.set(step.at).await;
        self.prune().await;
        let response = StoredResponse::new(StatusCode::OK, format!("of step {n}"));
        let response = match step.own {
            Some(own) => response.with_retention(own),
            None => response,
        };
        let mut request = IdempotentRequest::new(
            Scope::new("a"),
            Operation::new("o"),
            IdempotencyKey::new(format!("k{}", step.key)).unwrap(),
            Fingerprint::of([format!("f{}", step.payload)]),
        );
        if step.keys.is_some() {
            request = request.with_first_sent(crate::support::moment(step.born));
        }
        let engine = self.process(step.keys, step.retention);
        let told = |duplicate: Duplicate| match duplicate {
            Duplicate::Replay(stored) => format!("replay {:?}", String::from_utf8_lossy(stored.body())),
            Duplicate::NotRetained(_) => "not retained".to_owned(),
            other => format!("{other:?}"),
        };
        let came = match step.how {
            0 => {
                // A transaction of the caller's that begins now, and goes on.
                if self.old.is_none() {
                    let mut old = self.pool.begin().await.unwrap();
                    sqlx::query("select pg_catalog.now()").execute(&mut *old).await.unwrap();
                    self.old = Some(old);
                }
                "began".to_owned()
            }
            1 | 2 if self.old.is_some() => {
                let mut old = self.old.take().unwrap();
                match engine.claim_using(&mut old, &request).await {
                    Ok(ClaimUsing::Fresh) => {
                        engine.complete_using(&mut old, &request, &response).await.unwrap();
                        old.commit().await.unwrap();
                        "executed, in an old one".to_owned()
                    }
                    Ok(ClaimUsing::Duplicate(duplicate)) => {
                        old.rollback().await.unwrap();
                        told(duplicate)
                    }
                    Err(error) => format!("{:?}", error.kind()),
                }
            }
            how => match engine.claim(request.clone()).await {
                Ok(Claim::Fresh(attempt)) => match how {
                    3 => {
                        attempt.release().await.unwrap();
                        "released".to_owned()
                    }
                    4 => match attempt.reject(&response).await.unwrap() {
                        Rejected::Stored(window) => format!("rejected {window:?}"),
                        Rejected::Overtaken(duplicate) => format!("overtaken {}", told(duplicate)),
                    },
                    _ => format!("executed {:?}", attempt.complete(&response).await.unwrap()),
                },
                Ok(Claim::Duplicate(duplicate)) => told(duplicate),
                Err(error) => format!("{:?}", error.kind()),
            },
        };
        self.prune().await;
        let found = engine.lookup(request.scope(), request.operation(), request.key()).await;
        let found = found.map(|found| {
            found.map(|found| (found.status, found.body_bytes, found.window.first_used, found.window.expires))
        });
        format!("{came}; {found:?}")
    }
}

#[derive(Debug)]
struct Step {
    at: i64,
    how: u64,
    key: u64,
    payload: u64,
    born: i64,
    own: Option<Retention>,
    retention: Retention,
    keys: Option<TimestampedKeys>,
}

/// windows.md: "whether a Pruner has been there or not. Pruning frees space and changes no answer". For plain keys, and for those with
/// `Repeatability-First-Sent`; and no key with its time is executed twice.
#[tokio::test]
async fn two_worlds_of_which_one_is_pruned_all_the_time_answer_alike() {
    let second = Duration::from_secs(1);
    let mut executed = 0;
    for seed in 1..=14_u64 {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) % below
        };
        let (mut pruned, mut kept) = (World::new(true).await, World::new(false).await);
        let mut at = crate::support::START;
        // What an operation that changes over is told has a test of its own.
        let changes_over = if seed % 2 == 0 { 0 } else { 1_000 };
        let mut steps = Vec::new();
        let mut done = std::collections::HashSet::new();
        for n in 0..60_usize {
            at +=
                [0, 1, 999, 1_000, 5_000, 9_999, 10_000, 10_001, 60_000, 70_000][usize::try_from(random(10)).unwrap()];
            let retention = Retention::new(10 * second).unwrap();
            let retention = if random(2) == 0 { retention.refuse_for(60 * second).unwrap() } else { retention };
            let own = (random(4) == 0).then(|| Retention::new(Duration::from_secs(1 + random(20))).unwrap());
            let keys = (n >= changes_over).then(|| TimestampedKeys::first_sent(10 * second).unwrap());
            let born = at - [0, 0, 1, 5_000, 9_999, 10_000, 10_001, 60_000, -1][usize::try_from(random(9)).unwrap()];
            let step = Step { at, how: random(8), key: random(2), payload: random(6) / 5, born, own, retention, keys };
            let (one, other) = (pruned.step(&step, n).await, kept.step(&step, n).await);
            steps.push(format!("{n}: {step:?} -> {one} | {other}"));
            assert_eq!(one, other, "seed {seed}:\n{}", steps.join("\n"));
            if one.starts_with("executed") {
                executed += 1;
                if keys.is_some() {
                    assert!(done.insert((step.key, born)), "seed {seed}: twice\n{}", steps.join("\n"));
                }
            }
        }
        drop((pruned.old.take(), kept.old.take()));
        drop((pruned.database, kept.database));
    }
    eprintln!("{executed} executed");
}

/// windows.md: "An expired key counts as absent, … whether a Pruner has been there or not. Pruning … changes no answer".
#[tokio::test]
async fn the_first_key_with_a_time_gets_the_same_whether_expired_rows_were_pruned_or_not() {
    let mut came = Vec::new();
    for prunes in [true, false] {
        let mut world = World::new(prunes).await;
        let step =
            |at, keys| Step { at, how: 5, key: 0, payload: 0, born: at, own: None, retention: brief(10_000), keys };
        let keys = TimestampedKeys::first_sent(Duration::from_secs(10)).unwrap();
        let start = crate::support::START;
        world.step(&step(start, None), 0).await;
        // A day after that has expired, the operation goes over to keys with times.
        came.push(world.step(&step(start + 86_400_000, Some(keys)), 1).await);
    }
    assert_eq!(came[0], came[1]);
}

/// `KeyStatus::window`, `Tombstone::window`: the end of the replays is forgotten by the pruner, and then the end of the key is given for it.
#[tokio::test]
async fn what_is_said_of_a_tombstone_is_the_same_whether_it_was_pruned_or_not() {
    let database = Database::fresh().await;
    let retention = brief(50).refuse_forever();
    let idempotency = engine(&database.pool_of(2).await).concurrency(Concurrency::NoWait).retention(retention);
    let Claim::Fresh(attempt) = idempotency.claim(message("m")).await.unwrap() else { panic!() };
    attempt.complete(&done()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let look = async || {
        let key = IdempotencyKey::new("m").unwrap();
        let found = idempotency.lookup(&Scope::new("orders"), &Operation::new("order.import"), &key).await.unwrap();
        let told = format!("{:?}", idempotency.claim(message("m")).await.unwrap());
        (found, told)
    };
    let before = look().await;
    idempotency.prune(10).await.unwrap();
    assert_eq!(before, look().await);
}

// ---------------------------------------------------------------------------------------------- fingerprints

/// `canonical_json`: "A body counts by its bytes where that form would not say all that it says". serde_json takes an object
/// with one magic name for the JSON in its value.
#[tokio::test]
async fn an_object_with_a_name_of_serde_jsons_own_is_not_taken_for_what_it_holds() {
    let database = Database::fresh().await;
    let app = app_with(plain(&database).await.canonical_json(true), echo);
    let ask = |body: &'static str| post("/things").header("content-type", "application/json").key("k").body(body);
    let first = reply(&app, ask(r#"{"$serde_json::private::RawValue":"{\"amount\":1}"}"#)).await;
    assert_eq!(first.status, 201);
    let other = reply(&app, ask(r#"{"amount":1}"#)).await;
    other.assert_refused(RejectionKind::KeyReused);
}

/// Likewise: two numbers, each exactly what its double prints, for which serde_json (without `float_roundtrip`) finds one double.
#[tokio::test]
async fn two_numbers_that_are_doubles_and_differ_are_two_requests() {
    let Some((one, other)) = neighbours() else { return };
    eprintln!("{one} {other}");
    let database = Database::fresh().await;
    let app = app_with(plain(&database).await.canonical_json(true), echo);
    let ask = |number: &str| {
        post("/things").header("content-type", "application/json").key("k").body(format!(r#"{{"amount":{number}}}"#))
    };
    assert_eq!(reply(&app, ask(&one)).await.status, 201);
    assert_ne!(one.parse::<f64>().unwrap().to_bits(), other.parse::<f64>().unwrap().to_bits());
    reply(&app, ask(&other)).await.assert_refused(RejectionKind::KeyReused);
}

fn neighbours() -> Option<(String, String)> {
    let mut state = 88_172_645_463_325_252_u64;
    for _ in 0..2_000_000 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Of everyday size first: 0 to 1,000 with all their digits.
        let double = (state >> 11) as f64 / (1_u64 << 53) as f64 * 1_000.0;
        let text = format!("{double}");
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap().as_f64().unwrap();
        let parsed = read(&text);
        if parsed.to_bits() != double.to_bits() {
            let other = format!("{parsed}");
            if read(&other).to_bits() == parsed.to_bits() {
                return Some((text, other));
            }
        }
    }
    None
}

/// "order of members, white space and `1.0` for `1` make no difference": a server that reads doubles tells -0 from 0.
#[tokio::test]
async fn minus_zero_is_another_number_than_zero() {
    let database = Database::fresh().await;
    let app = app_with(plain(&database).await.canonical_json(true), echo);
    let ask = |body: &'static str| post("/things").header("content-type", "application/json").key("k").body(body);
    assert_eq!(reply(&app, ask("[-0.0]")).await.status, 201);
    reply(&app, ask("[0.0]")).await.assert_refused(RejectionKind::KeyReused);
}

/// README: "of a multipart body all but the text of its boundary"; ARCHITECTURE: "Two requests that a server could tell apart have
/// two fingerprints". RFC 2387: `start` says which part is the root.
#[tokio::test]
async fn another_root_of_a_related_multipart_body_is_another_request() {
    let database = Database::fresh().await;
    let app = app_with(plain(&database).await, echo);
    let body = "--b\r\nContent-ID: <pay>\r\n\r\npay\r\n--b\r\nContent-ID: <refund>\r\n\r\nrefund\r\n--b--\r\n";
    let ask = |start: &str| {
        let line = format!("multipart/related; boundary=b; start=\"<{start}>\"");
        post("/things").header("content-type", &line).key("k").body(body)
    };
    assert_eq!(reply(&app, ask("pay")).await.status, 201);
    reply(&app, ask("refund")).await.assert_refused(RejectionKind::KeyReused);
}

/// ARCHITECTURE: "Where a body might be read in more than one way, its bytes count, so nothing depends on which parser the handler
/// uses". A reader that knows RFC 2231 (Python's email and werkzeug) takes `boundary*`, one that looks for the word takes the first.
#[tokio::test]
async fn where_another_parameter_may_be_the_boundary_the_bytes_count() {
    let database = Database::fresh().await;
    let app = app_with(plain(&database).await, echo);
    let mut wrong = Vec::new();
    for (n, other) in ["boundary*=us-ascii''real", "boundary*0=real", "xboundary=real"].into_iter().enumerate() {
        let ask = |boundary: &str| {
            let line = format!("multipart/form-data; {other}; boundary={boundary}");
            // For such a reader: one part, with three lines of text in it.
            let body = format!("--real\r\n\r\nx\r\n--{boundary}\r\n\r\ny\r\n--{boundary}--\r\n\r\n--real--\r\n");
            post("/things").header("content-type", &line).key(&n.to_string()).body(body)
        };
        assert_eq!(reply(&app, ask("aaa")).await.status, 201);
        let second = reply(&app, ask("bbb")).await;
        if second.kind() != Some(RejectionKind::KeyReused) {
            wrong.push(other);
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// What usual clients send again.
#[tokio::test]
async fn forms_of_usual_clients_with_another_boundary_are_retries() {
    let database = Database::fresh().await;
    let app = app_with(plain(&database).await, echo);
    let tries = |one: &str, other: &str, line: &str| {
        [one, other].map(|boundary| {
            let body = format!(
                "--{boundary}\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--{boundary}\r\nContent-Disposition: \
                 form-data; name=\"f\"; filename=\"--x\"\r\nContent-Type: application/octet-stream\r\n\r\n--\r\n---\r\n\
                 --{boundary}--\r\n"
            );
            (line.replace("BOUNDARY", boundary), body)
        })
    };
    let dashes = "-".repeat(24);
    for (name, tries) in [
        (
            "curl",
            tries(
                &format!("{dashes}d74496d66958873e"),
                &format!("{dashes}VzZ4bq0hVzZ4bq0hVzZ4bq"),
                "multipart/form-data; boundary=BOUNDARY",
            ),
        ),
        (
            "chrome",
            tries(
                "----WebKitFormBoundary7MA4YWxkTrZu0gW",
                "----WebKitFormBoundaryAAAA0000bbbb1111",
                "multipart/form-data; boundary=BOUNDARY",
            ),
        ),
        (
            "firefox",
            tries(
                "---------------------------735323031399963166993862150",
                "----geckoformboundary9f9e1f2a",
                "multipart/form-data; boundary=BOUNDARY",
            ),
        ),
        (
            ".NET",
            tries(
                "0b5cf1d3-21d9-4fd8-a4d0-2ed2ce1b2ff7",
                "1b5cf1d3-21d9-4fd8-a4d0-2ed2ce1b2ff7",
                "multipart/form-data; boundary=\"BOUNDARY\"",
            ),
        ),
        (
            "JavaMail",
            tries(
                "----=_Part_0_1330360.1700000000000",
                "----=_Part_1_1330361.1700000000001",
                "multipart/form-data;charset=UTF-8; boundary=\"BOUNDARY\"",
            ),
        ),
        (
            "undici",
            tries(
                "----formdata-undici-012345678901",
                "----formdata-undici-112345678901",
                "multipart/form-data; boundary=BOUNDARY",
            ),
        ),
        ("Go", tries(&"0a".repeat(30), &"0b".repeat(30), "multipart/form-data; boundary=BOUNDARY")),
        (
            "JavaMail, not quoted",
            tries("----=_Part_0_1330360", "----=_Part_1_1330361", "multipart/form-data; boundary=BOUNDARY"),
        ),
    ] {
        let mut replies = Vec::new();
        for (line, body) in tries {
            replies.push(
                reply(
                    &app,
                    post("/things").header("content-type", &line).key(&name.replace([' ', ','], "")).body(body),
                )
                .await,
            );
        }
        if !replies[1].replayed() {
            eprintln!("{name}: {} {}", replies[1].status, replies[1].text());
        }
        assert!(replies[1].replayed() || name.contains("not quoted"), "{name}");
    }
}

/// A server sees `OriginalUri`, where no query is another thing than an empty one.
#[tokio::test]
async fn no_query_is_another_request_than_an_empty_one() {
    let database = Database::fresh().await;
    let app = app_with(plain(&database).await, create);
    assert_eq!(reply(&app, post("/things").key("k")).await.status, 201);
    reply(&app, post("/things?").key("k")).await.assert_refused(RejectionKind::KeyReused);
}

// ---------------------------------------------------------------------------------------------- occurrence

/// problems.md: `not-executed` (nothing of it has taken effect). connections.md: on a shared pool what is written after a ROLLBACK
/// is durable, and is "found out"; `transaction-ended`.
#[tokio::test]
async fn work_that_is_durable_is_not_said_to_be_undone_on_a_shared_pool() {
    let database = Database::fresh().await;
    for how in ["aborted", "hangs", "held", "large", "killed"] {
        let idempotency = Idempotency::sharing(&database.pool_of(4).await);
        let layer = layer(idempotency).handler_timeout(Duration::from_millis(500)).max_response_bytes(100);
        let before = database.effects().await;
        let app = app_with(layer, move |mut tx: Tx| async move {
            tx.execute("rollback").await.unwrap();
            effect(&mut tx).await;
            match how {
                "aborted" => {
                    tx.execute("begin").await.unwrap();
                    drop(tx.execute("select 1 / 0").await);
                }
                "hangs" => std::future::pending().await,
                "held" => std::mem::forget(tx),
                "large" => return "x".repeat(1_000).into_response(),
                "killed" => drop(tx.execute("select pg_terminate_backend(pg_backend_pid())").await),
                _ => {}
            }
            StatusCode::CREATED.into_response()
        });
        let refused = reply(&app, post("/things").key(how)).await;
        let occurrence = refused.rejection.as_ref().unwrap().occurrence();
        let effects = database.effects().await - before;
        eprintln!("{how}: {effects} effects, {:?} says {occurrence}", refused.kind());
        if effects > 0 && how != "killed" && how != "held" && how != "aborted" {
            assert_ne!(occurrence, Occurrence::NotExecuted, "{how}: {}", refused.text());
        }
    }
}

/// The kinds for which the above says `not-executed` although something is durable.
async fn says_not_executed_of_what_is_durable(how: &'static str) {
    let database = Database::fresh().await;
    let idempotency = Idempotency::sharing(&database.pool_of(4).await);
    let app = app_with(layer(idempotency), move |mut tx: Tx| async move {
        tx.execute("rollback").await.unwrap();
        effect(&mut tx).await;
        match how {
            "aborted" => {
                tx.execute("begin").await.unwrap();
                drop(tx.execute("select 1 / 0").await);
            }
            "held" => std::mem::forget(tx),
            _ => drop(tx.execute("select pg_terminate_backend(pg_backend_pid())").await),
        }
        StatusCode::CREATED
    });
    let refused = reply(&app, post("/things").key("k")).await;
    assert_eq!(database.effects().await, 1);
    assert_ne!(refused.rejection.as_ref().unwrap().occurrence(), Occurrence::NotExecuted, "{}", refused.text());
}

#[tokio::test]
async fn not_executed_is_not_said_of_durable_work_aborted() {
    says_not_executed_of_what_is_durable("aborted").await;
}

#[tokio::test]
async fn not_executed_is_not_said_of_durable_work_held() {
    says_not_executed_of_what_is_durable("held").await;
}

#[tokio::test]
async fn not_executed_is_not_said_of_durable_work_killed() {
    says_not_executed_of_what_is_durable("killed").await;
}

/// clients.md, 5: "make it again under another key only if that is not-executed". A deployment that asks more of keys than the one
/// before gets retries of what that one has executed.
#[tokio::test]
async fn a_key_that_an_earlier_deployment_took_is_not_said_to_be_not_executed() {
    let mut wrong = Vec::new();
    for how in ["uuid_keys", "timestamped_keys", "methods"] {
        let database = Database::fresh().await;
        let before = app_with(plain(&database).await.operation("o"), create);
        assert_eq!(reply(&before, post("/things").key("order-1")).await.status, 201);
        let after = match how {
            "uuid_keys" => plain(&database).await.operation("o").uuid_keys(true),
            "timestamped_keys" => layer(
                engine(&database.pool_of(4).await)
                    .timestamped_keys(TimestampedKeys::uuid_v7(Duration::from_secs(86_400)).unwrap()),
            )
            .operation("o"),
            _ => plain(&database).await.operation("o").methods([axum::http::Method::PUT]).refuse_unhandled_keys(true),
        };
        let refused = reply(&app_with(after, create), post("/things").key("order-1")).await;
        assert_eq!(database.effects().await, 1, "it has been executed");
        let occurrence = refused.rejection.as_ref().unwrap().occurrence();
        if occurrence == Occurrence::NotExecuted {
            wrong.push(how);
        }
    }
    assert!(wrong.is_empty(), "{wrong:?} say not-executed of what was executed");
}

/// problems.md: `not-executed` (nothing of it has taken effect). `require_tx` refuses exactly the handlers whose effects it has not
/// seen.
#[tokio::test]
async fn a_handler_that_is_refused_because_it_wrote_by_the_pool_is_not_said_to_have_done_nothing() {
    let database = Database::fresh().await;
    let pool = database.pool_of(4).await;
    let app = app_with(plain(&database).await.require_tx(), async move || {
        effect(&mut pool.acquire().await.unwrap()).await;
        StatusCode::CREATED
    });
    let refused = reply(&app, post("/things").key("k")).await;
    refused.assert_refused(RejectionKind::Misconfigured);
    assert_eq!(database.effects().await, 1);
    assert_ne!(refused.rejection.as_ref().unwrap().occurrence(), Occurrence::NotExecuted, "{}", refused.text());
}

// ---------------------------------------------------------------------------------------------- the wire

/// "The same answer, byte for byte": what a handler that forwards another server's response may leave in it.
async fn status_lines(made: fn() -> Response) -> Vec<String> {
    let database = Database::fresh().await;
    let idempotent = layer(engine(&database.pool_of(2).await)).without_tx();
    let handler = async move || made();
    let address = serve(Router::new().route("/things", routing::post(handler).layer(idempotent))).await;
    let mut lines = Vec::new();
    for _ in 0..2 {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let head = "POST /things HTTP/1.1\r\nhost: test\r\nx-owner: alice\r\nidempotency-key: k\r\nconnection: \
                    close\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        eprintln!("{text}");
        lines.push(text.lines().next().unwrap_or_default().to_owned());
    }
    lines
}

#[tokio::test]
async fn a_version_that_the_handler_has_left_is_the_same_in_the_replay() {
    let lines = status_lines(|| {
        let mut response = StatusCode::CREATED.into_response();
        *response.version_mut() = axum::http::Version::HTTP_10;
        response
    })
    .await;
    assert_eq!(lines[0], lines[1]);
}

// ---------------------------------------------------------------------------------------------- Tx

#[tokio::test]
async fn streams_that_are_dropped_half_way_neither_hide_a_failure_nor_lose_a_response() {
    let database = Database::fresh().await;
    for (how, status, effects) in
        [("late-failure", 500, 0), ("success", 201, 1), ("cut-off", 201, 1), ("nested-begin", 201, 1), ("many", 201, 1)]
    {
        let before = database.effects().await;
        let app = app_with(plain(&database).await, move |mut tx: Tx| async move {
            match how {
                "late-failure" => {
                    effect(&mut tx).await;
                    let query = sqlx::query("select 1 / (5000 - g) from generate_series(1, 6000) g");
                    let mut rows = query.fetch(&mut tx);
                    rows.next().await.unwrap().unwrap();
                }
                "success" | "nested-begin" => {
                    effect(&mut tx).await;
                    {
                        let mut rows = sqlx::query("select g from generate_series(1, 100000) g").fetch(&mut tx);
                        rows.next().await.unwrap().unwrap();
                    }
                    if how == "nested-begin" {
                        let part = tx.begin().await.unwrap();
                        part.rollback().await.unwrap();
                    }
                }
                "cut-off" => {
                    let query = sqlx::query("insert into effect (note) select 'done' from pg_sleep(0.3)");
                    let cut = tokio::time::timeout(Duration::from_millis(50), query.execute(&mut tx)).await;
                    assert!(cut.is_err());
                }
                _ => {
                    effect(&mut tx).await;
                    let mut both = (&mut tx).fetch_many(sqlx::raw_sql("select 1; select 2; select 3"));
                    both.next().await.unwrap().unwrap();
                }
            }
            StatusCode::CREATED
        });
        let first = reply(&app, post("/things").key(how)).await;
        assert_eq!((first.status.as_u16(), database.effects().await - before), (status, effects), "{how}: {first:?}");
        if status == 201 {
            assert!(reply(&app, post("/things").key(how)).await.replayed(), "{how}");
        }
    }
}

/// COPY by the connection that `&mut tx` derefs to, dropped half-way: what comes after on the same connection is in step.
#[tokio::test]
async fn a_copy_that_is_dropped_half_way_does_not_put_the_connection_out_of_step() {
    for how in ["in", "in-then-statement", "out", "out-then-statement", "out-swallowed", "in-fails"] {
        for status in [201, 402, 500] {
            let database = Database::fresh().await;
            let idempotent = layer(Idempotency::new(&database.pool_of(1).await));
            let copying = app_with(idempotent.clone().operation("copy"), move |mut tx: Tx| async move {
                effect(&mut tx).await;
                match how {
                    "in" | "in-then-statement" | "in-fails" => {
                        let sql =
                            if how == "in-fails" { "copy nowhere from stdin" } else { "copy effect (note) from stdin" };
                        if let Ok(mut copy) = tx.copy_in_raw(sql).await {
                            copy.send("a\nb\n".as_bytes()).await.unwrap();
                        }
                    }
                    _ => {
                        let mut rows =
                            tx.copy_out_raw("copy (select generate_series(1, 200000)) to stdout").await.unwrap();
                        rows.next().await.unwrap().unwrap();
                    }
                }
                if how.ends_with("statement") {
                    for n in 0..3 {
                        let query = sqlx::query_scalar::<_, i32>("select $1::int").bind(n).fetch_one(&mut tx);
                        let found = tokio::time::timeout(Duration::from_secs(5), query).await.expect("no hang");
                        eprintln!("{how} {status}: asked for {n}, got {:?}", found.map_err(|error| error.to_string()));
                    }
                    let query = sqlx::query("insert into effect (note) values ('late')").execute(&mut tx);
                    let done = tokio::time::timeout(Duration::from_secs(5), query).await.expect("no hang");
                    eprintln!("{how} {status}: {done:?}");
                }
                StatusCode::from_u16(status).unwrap()
            });
            let first = tokio::time::timeout(Duration::from_secs(15), reply(&copying, post("/things").key("k"))).await;
            let first = first.unwrap_or_else(|_| panic!("{how} {status}: it hangs"));
            let effects = database.effects().await;
            eprintln!(
                "{how} {status}: {} {:?}, {effects} effects, rows {:?}",
                first.status,
                first.kind(),
                database.rows().await.len()
            );
            match first.status.as_u16() {
                201 => assert_eq!((effects, database.rows().await.len()), (1, 1), "{how} {status}"),
                _ => assert_eq!(effects, 0, "{how} {status}: {first:?}"),
            }
            // Others on that connection.
            let app = app_with(idempotent.operation("create"), async |mut tx: Tx| {
                let id = effect(&mut tx).await;
                let seen: i64 = sqlx::query_scalar("select id from effect where id = $1")
                    .bind(id)
                    .fetch_one(&mut tx)
                    .await
                    .unwrap();
                assert_eq!(id, seen);
                (StatusCode::CREATED, id.to_string())
            });
            for n in 0..4 {
                let key = format!("n{n}");
                let made = reply(&app, post("/things").key(&key)).await;
                assert_eq!(made.status, 201, "{how} {status} {n}: {made:?}");
                let again = reply(&app, post("/things").key(&key)).await;
                assert!(again.replayed() && again.body == made.body, "{how} {status} {n}: {made:?} {again:?}");
            }
            assert_eq!(database.effects().await, effects + 4);
        }
    }
}

/// Likewise on a connection on which everything is prepared, with any number of statements after it whose errors are swallowed: a
/// response is only sent if it, and the work, is durable.
#[tokio::test]
async fn a_connection_that_sqlx_has_put_out_of_step_keeps_no_response_from_being_true() {
    let mut wrong = Vec::new();
    for statements in 0..6_i32 {
        for status in [201_u16, 402, 500] {
            for refused in [false, true] {
                let database = Database::fresh().await;
                let late =
                    "create table late (id int unique deferrable initially deferred); insert into late values (1)";
                database.connection().await.execute(late).await.unwrap();
                let idempotent = layer(Idempotency::new(&database.pool_of(1).await)).operation("o");
                let app = app_with(idempotent.clone(), async move |mut tx: Tx, body: String| {
                    let warm = sqlx::query_scalar::<_, i32>("select $1::int").bind(7).fetch_one(&mut tx).await;
                    assert_eq!(warm.unwrap(), 7, "another statement's row");
                    effect(&mut tx).await;
                    if body != "copy" {
                        return StatusCode::CREATED;
                    }
                    if refused {
                        tx.execute("insert into late values (1)").await.unwrap();
                    }
                    {
                        let mut rows = tx.copy_out_raw("copy (select 1) to stdout").await.unwrap();
                        rows.next().await.unwrap().unwrap();
                    }
                    for n in 0..statements {
                        let query = sqlx::query_scalar::<_, i32>("select $1::int").bind(n).fetch_optional(&mut tx);
                        drop(tokio::time::timeout(Duration::from_secs(5), query).await.expect("no hang"));
                    }
                    StatusCode::from_u16(status).unwrap()
                });
                for n in 0..2 {
                    assert_eq!(reply(&app, post("/things").key(&format!("warm{n}"))).await.status, 201);
                }
                let copied = reply(&app, post("/things").key("copy").body("copy")).await;
                let found = (database.rows().await.len(), database.effects().await);
                let true_ones = match (copied.status.as_u16(), copied.rejection.is_some()) {
                    (201, _) => (3, 3),
                    (402, _) => (3, 2),
                    _ => (2, 2),
                };
                let what = format!(
                    "{statements} statements, handler says {status}, commit refused {refused}: {} {:?}, rows and effects {found:?}",
                    copied.status,
                    copied.kind()
                );
                eprintln!("{what}");
                if found != true_ones {
                    wrong.push(what.clone());
                }
                for n in 0..3 {
                    let key = format!("after{n}");
                    let made = reply(&app, post("/things").key(&key)).await;
                    let again = reply(&app, post("/things").key(&key)).await;
                    if (made.status.as_u16(), made.replayed(), again.replayed()) != (201, false, true) {
                        wrong.push(format!("{what}; after it, {n}: {made:?} {again:?}"));
                    }
                }
                if database.effects().await != found.1 + 3 {
                    wrong.push(format!("{what}; after it, not three effects more"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Serializable transactions that fail at COMMIT do so all the time. The same without a key.
#[tokio::test]
async fn without_a_key_a_connection_that_is_out_of_step_keeps_no_response_from_being_true() {
    let database = Database::fresh().await;
    let late = "create table late (id int unique deferrable initially deferred); insert into late values (1)";
    database.connection().await.execute(late).await.unwrap();
    let mut wrong = Vec::new();
    for statements in 0..5_i32 {
        let before = database.effects().await;
        let app = app_with(
            layer(Idempotency::new(&database.pool_of(1).await)).optional(),
            async move |mut tx: Tx, body: String| {
                effect(&mut tx).await;
                let warm = sqlx::query_scalar::<_, i32>("select $1::int").bind(7).fetch_one(&mut tx).await;
                assert_eq!(warm.unwrap(), 7);
                if body == "copy" {
                    tx.execute("insert into late values (1)").await.unwrap();
                    {
                        let mut rows = tx.copy_out_raw("copy (select 1) to stdout").await.unwrap();
                        rows.next().await.unwrap().unwrap();
                    }
                    for n in 0..statements {
                        let query = sqlx::query_scalar::<_, i32>("select $1::int").bind(n).fetch_optional(&mut tx);
                        drop(tokio::time::timeout(Duration::from_secs(5), query).await.expect("no hang"));
                    }
                }
                StatusCode::CREATED
            },
        );
        assert_eq!(reply(&app, post("/things")).await.status, 201);
        let copied = reply(&app, post("/things").body("copy")).await;
        let effects = database.effects().await - before;
        if copied.status == 201 {
            wrong.push(format!("{statements}: 201, and {effects} effects of 2"));
        }
        assert_eq!(reply(&app, post("/things")).await.status, 201);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A handler that has thrown the session's prepared statements away (`DEALLOCATE ALL`, which also poolers and ORMs send).
#[tokio::test]
async fn a_handler_that_deallocates_does_not_spoil_the_connection_for_others() {
    for status in [201, 402, 500] {
        let database = Database::fresh().await;
        let idempotent = layer(Idempotency::new(&database.pool_of(1).await)).operation("o");
        let app = app_with(idempotent, async move |mut tx: Tx, body: String| {
            effect(&mut tx).await;
            if body == "deallocate" {
                tx.execute(sqlx::raw_sql("deallocate all")).await.unwrap();
                return StatusCode::from_u16(status).unwrap();
            }
            StatusCode::CREATED
        });
        for n in 0..3 {
            assert_eq!(reply(&app, post("/things").key(&format!("warm{n}"))).await.status, 201);
            assert!(reply(&app, post("/things").key(&format!("warm{n}"))).await.replayed());
        }
        let first = reply(&app, post("/things").key("k").body("deallocate")).await;
        eprintln!("{status}: {} {:?}", first.status, first.kind());
        for n in 0..4 {
            let after = reply(&app, post("/things").key(&format!("after{n}"))).await;
            assert_eq!(after.status, 201, "{status} {n}: {}", after.text());
        }
    }
}

/// The same without any failed statement: a COPY of one row whose `finish()` is cut off by a timeout. sqlx (0.9) does not count the
/// response that is to come, so the response of the COPY is taken for that of the engine's UPDATE, and that of the UPDATE for that
/// of the COMMIT. Where the COMMIT fails (a deferred constraint, serializable transactions, a crash) nobody learns it.
#[tokio::test]
async fn a_copy_whose_end_is_cut_off_lets_no_response_out_before_its_commit() {
    let mut wrong = Vec::new();
    for (refused, with_key) in [(false, true), (true, true), (true, false)] {
        let database = Database::fresh().await;
        let setup = "create table late (id int unique deferrable initially deferred); insert into late values (1);
                     create table slow (note text);
                     create function slowly() returns trigger language plpgsql as
                       $$ begin perform pg_sleep(0.3); return new; end $$;
                     create trigger slowly before insert on slow for each row execute function slowly()";
        database.connection().await.execute(sqlx::raw_sql(setup)).await.unwrap();
        let app = app_with(
            layer(Idempotency::new(&database.pool_of(1).await)).optional(),
            async move |mut tx: Tx, body: String| {
                effect(&mut tx).await;
                if body == "copy" {
                    if refused {
                        tx.execute("insert into late values (1)").await.unwrap();
                    }
                    let mut copy = tx.copy_in_raw("copy slow from stdin").await.unwrap();
                    copy.send("a\n".as_bytes()).await.unwrap();
                    let cut = tokio::time::timeout(Duration::from_millis(50), copy.finish()).await;
                    assert!(cut.is_err(), "it is slow");
                }
                StatusCode::CREATED
            },
        );
        let ask = |key: &str| if with_key { post("/things").key(key) } else { post("/things") };
        for n in 0..2 {
            assert_eq!(reply(&app, ask(&format!("warm{n}"))).await.status, 201);
        }
        let copied = reply(&app, ask("copy").body("copy")).await;
        let found = (database.rows().await.len(), database.effects().await);
        let what = format!(
            "commit refused {refused}, key {with_key}: {} {:?}, rows and effects {found:?}",
            copied.status,
            copied.kind()
        );
        eprintln!("{what}");
        if copied.status == 201 && found.1 != 3 {
            wrong.push(what.clone());
        }
        for n in 0..3 {
            let after = reply(&app, ask(&format!("after{n}"))).await;
            if after.status != 201 {
                wrong.push(format!("{what}; after it, {n}: {after:?}"));
            }
        }
        let effects = database.effects().await;
        if effects != found.1 + 3 {
            wrong.push(format!("{what}; after it {effects}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What such a connection does to others, as it goes back to the pool one response behind: the look for a key that this process has
/// seen needs no BEGIN, so it is answered with what was found for the one before.
#[tokio::test]
async fn a_connection_that_is_one_response_behind_does_not_give_one_owners_response_to_another() {
    let database = Database::fresh().await;
    let setup = "create table slow (note text);
                 create function slowly() returns trigger language plpgsql as
                   $$ begin perform pg_sleep(0.3); return new; end $$;
                 create trigger slowly before insert on slow for each row execute function slowly()";
    database.connection().await.execute(sqlx::raw_sql(setup)).await.unwrap();
    let gate = Arc::new(tokio::sync::Barrier::new(3));
    let wait = gate.clone();
    let idempotent = layer(Idempotency::new(&database.pool_of(3).await)).operation("o");
    let app = app_with(idempotent, async move |mut tx: Tx, headers: axum::http::HeaderMap| {
        effect(&mut tx).await;
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
        if text("x-how") == "all" {
            wait.wait().await;
        }
        if text("x-how") == "copy" {
            let mut copy = tx.copy_in_raw("copy slow from stdin").await.unwrap();
            copy.send("a\n".as_bytes()).await.unwrap();
            assert!(tokio::time::timeout(Duration::from_millis(50), copy.finish()).await.is_err(), "it is slow");
        }
        (StatusCode::CREATED, format!("the secret of {}", text("x-owner")))
    });
    let ask = |owner: &str, key: &str, how: &str| {
        let ask = post("/things").owner(owner).key(key);
        if how.is_empty() { ask } else { ask.header("x-how", how) }
    };
    // Everything is prepared on all connections.
    for round in 0..8 {
        let three = ["alice", "bob", "carol"].map(|owner| {
            let app = app.clone();
            let ask = ask(owner, &format!("w{round}"), "all");
            async move { reply(&app, ask).await.status.as_u16() }
        });
        assert_eq!(crate::support::all(three).await, [201; 3]);
        for owner in ["alice", "bob", "carol"] {
            assert!(reply(&app, ask(owner, &format!("w{round}"), "")).await.replayed());
        }
    }
    let mut spoiled = 0;
    for round in 0..6 {
        let copied = reply(&app, ask("alice", &format!("copy{round}"), "copy")).await;
        let mut told = vec![copied.status.as_u16()];
        for n in 0..12 {
            let owner = ["alice", "bob", "carol"][n % 3];
            let again = reply(&app, ask(owner, &format!("w{}", n % 8), "")).await;
            told.push(again.status.as_u16());
            if again.status == 201 {
                assert_eq!(
                    again.text(),
                    format!("the secret of {owner}"),
                    "round {round}, {n}: what {owner} was given; {told:?}"
                );
            }
        }
        eprintln!("{told:?}");
        spoiled += told[1..].iter().filter(|status| **status != 201).count();
    }
    // README: another request is answered 503 only where the database cannot serve.
    assert_eq!(spoiled, 0, "requests of others failed for it");
}

/// With answers in memory, and duplicates in this process, what was not committed is replayed.
#[tokio::test]
async fn a_response_that_was_not_committed_is_not_replayed_from_memory() {
    let database = Database::fresh().await;
    let late = "create table late (id int unique deferrable initially deferred); insert into late values (1)";
    database.connection().await.execute(late).await.unwrap();
    let engine = Idempotency::new(&database.pool_of(1).await).response_cache(1_000_000, Duration::from_secs(60));
    let app = app_with(layer(engine), async move |mut tx: Tx, body: String| {
        if body == "copy" {
            tx.execute("insert into late values (1)").await.unwrap();
            let mut rows = tx.copy_out_raw("copy (select 1) to stdout").await.unwrap();
            rows.next().await.unwrap().unwrap();
            drop(rows);
        }
        effect_if_it_can(&mut tx).await;
        StatusCode::CREATED
    });
    for n in 0..2 {
        assert_eq!(reply(&app, post("/things").key(&format!("warm{n}"))).await.status, 201);
    }
    let first = reply(&app, post("/things").key("k").body("copy")).await;
    let again = reply(&app, post("/things").key("k").body("copy")).await;
    let rows = database.rows().await.len();
    assert!(
        !again.replayed() || rows == 3,
        "{} {} replayed {}: {rows} rows",
        first.status,
        again.status,
        again.replayed()
    );
}

async fn effect_if_it_can(connection: &mut PgConnection) {
    drop(sqlx::query("insert into effect (note) values ('done')").execute(connection).await);
}

/// "Whatever the handler does with its connection": it puts another one in its place.
#[tokio::test]
async fn a_connection_that_was_put_in_the_place_of_the_requests_commits_nothing_and_serves_nobody() {
    for (begins, status) in [(true, 201), (false, 201), (true, 402), (true, 500), (false, 500)] {
        let database = Database::fresh().await;
        let idempotent = layer(Idempotency::new(&database.pool_of(1).await));
        let options = database.options();
        let app = app_with(idempotent.clone().operation("swap"), move |mut tx: Tx| async move {
            effect(&mut tx).await;
            let mut other = PgConnection::connect_with(&options).await.unwrap();
            if begins {
                other.execute("begin").await.unwrap();
                effect(&mut other).await;
            }
            std::mem::swap(&mut *tx, &mut other);
            StatusCode::from_u16(status).unwrap()
        });
        let refused = reply(&app, post("/things").key("k")).await;
        eprintln!("{begins} {status}: {} {:?}", refused.status, refused.kind());
        assert_eq!(database.effects().await, 0);
        let app = app_with(idempotent.operation("who"), async |mut tx: Tx| {
            let name: String = sqlx::query_scalar("show application_name").fetch_one(&mut tx).await.unwrap();
            name
        });
        let who = reply(&app, post("/things").key("k")).await;
        assert!(who.text().ends_with("axum-idempotency"), "{begins} {status}: {who:?}");
    }
}

/// Polls it so often, with a moment in between, and drops it.
async fn cut<T>(polls: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    for n in 0..polls {
        let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx))).await;
        if let std::task::Poll::Ready(value) = polled {
            return Some(value);
        }
        if n % 2 == 0 {
            tokio::time::sleep(Duration::from_micros(300)).await;
        } else {
            tokio::task::yield_now().await;
        }
    }
    None
}

/// Statements of all kinds that are cut off anywhere, on connections that serve many: what is answered is so.
#[tokio::test(flavor = "multi_thread")]
async fn statements_that_are_cut_off_anywhere_leave_no_response_that_is_not_true() {
    let database = Database::fresh().await;
    let setup = "create table late (id int unique deferrable initially deferred); insert into late values (1);
                 create type mood as enum ('good', 'bad'); create table own (key text, note text)";
    database.connection().await.execute(setup).await.unwrap();
    let idempotent = layer(Idempotency::new(&database.pool_of(3).await)).operation("o");
    let app = app_with(idempotent, async |mut tx: Tx, body: String| {
        let mut words = body.split(' ');
        let (key, seed) = (words.next().unwrap().to_owned(), words.next().unwrap().parse::<u64>().unwrap());
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let insert = sqlx::query("insert into own (key, note) values ($1, 'first')").bind(key.clone());
        insert.execute(&mut tx).await.unwrap();
        for n in 0..random(5) {
            let polls = u32::try_from(1 + random(8)).unwrap();
            let fresh = random(1_000_000);
            match random(8) {
                0 => drop(cut(polls, sqlx::query("select $1::int").bind(1).fetch_one(&mut tx)).await),
                1 => {
                    let sql = sqlx::AssertSqlSafe(format!("select 'good'::mood, {fresh} + $1::int"));
                    drop(cut(polls, sqlx::query(sql).bind(1).fetch_one(&mut tx)).await);
                }
                2 => {
                    let sql = sqlx::AssertSqlSafe(format!("select {fresh} + $1::int"));
                    drop(cut(polls, (&mut tx).prepare(sqlx::SqlSafeStr::into_sql_str(sql))).await);
                }
                3 => {
                    let sql = sqlx::AssertSqlSafe(format!("select 'bad'::mood, {fresh}"));
                    drop(cut(polls, (&mut tx).describe(sqlx::SqlSafeStr::into_sql_str(sql))).await);
                }
                4 => {
                    let mut rows = sqlx::query("select g from generate_series(1, 3000) g").fetch(&mut tx);
                    drop(cut(polls, rows.next()).await);
                }
                5 => drop(cut(polls, (&mut tx).execute(sqlx::raw_sql("select 1; select 2; select 3"))).await),
                6 => {
                    let insert = sqlx::query("insert into own (key, note) values ($1, 'more')").bind(key.clone());
                    drop(cut(polls, insert.execute(&mut tx)).await);
                }
                _ => match random(6) {
                    0 => drop(cut(polls, (&mut tx).execute("select 1 / 0")).await),
                    1 => drop(cut(polls, (&mut tx).execute("insert into late values (1)")).await),
                    2 => drop(cut(polls, tx.begin()).await),
                    3 => drop(cut(polls, (&mut tx).execute("rollback")).await),
                    4 => drop(cut(polls, (&mut tx).execute("commit")).await),
                    _ => {}
                },
            }
            if random(3) == 0 {
                let expected = i32::try_from(n).unwrap();
                if let Ok(found) =
                    sqlx::query_scalar::<_, i32>("select $1::int").bind(expected).fetch_one(&mut tx).await
                {
                    assert_eq!(found, expected, "another statement's row");
                }
            }
        }
        let status = [201, 201, 201, 402, 500][usize::try_from(random(5)).unwrap()];
        StatusCode::from_u16(status).unwrap()
    });
    let mut kinds = std::collections::BTreeMap::<String, usize>::new();
    let end = std::time::Instant::now() + Duration::from_secs(20);
    let mut n = 0_u64;
    while std::time::Instant::now() < end {
        let requests = (0..6).map(|_| {
            n += 1;
            let (app, key) = (app.clone(), format!("k{n}"));
            async move {
                let ask = || post("/things").key(&key).body(format!("{key} {}", key[1..].parse::<u64>().unwrap()));
                let first = tokio::time::timeout(Duration::from_secs(20), reply(&app, ask())).await.expect("no hang");
                (key, first)
            }
        });
        let all = crate::support::all(requests.collect::<Vec<_>>()).await;
        let mut connection = database.connection().await;
        for (key, first) in all {
            let count = |sql: &'static str| sqlx::query_scalar::<_, i64>(sql).bind(key.clone());
            let own = count("select count(*) from own where key = $1").fetch_one(&mut connection).await.unwrap();
            let rows =
                count("select count(*) from idempotency.keys where key = $1").fetch_one(&mut connection).await.unwrap();
            *kinds.entry(format!("{} {:?}", first.status.as_u16(), first.kind())).or_default() += 1;
            let is_true = match (first.status.as_u16(), first.rejection.is_some()) {
                (201, false) => own >= 1 && rows == 1,
                (402, false) => own == 0 && rows == 1,
                _ => own == 0 && rows == 0,
            };
            assert!(is_true, "{key}: {} {:?}, but {own} effects and {rows} rows", first.status, first.kind());
        }
    }
    eprintln!("{kinds:?}");
}

// ---------------------------------------------------------------------------------------------- settings of the server

#[tokio::test]
async fn everything_works_under_whatever_settings_a_role_may_have() {
    let all = [
        ("standard_conforming_strings", "off"),
        ("backslash_quote", "off"),
        ("DateStyle", "SQL,DMY"),
        ("IntervalStyle", "sql_standard"),
        ("TimeZone", "America/St_Johns"),
        ("bytea_output", "escape"),
        ("plan_cache_mode", "force_generic_plan"),
        ("enable_indexscan", "off"),
        ("enable_bitmapscan", "off"),
        ("enable_hashjoin", "off"),
        ("enable_tidscan", "off"),
        ("jit", "off"),
        ("row_security", "off"),
        ("array_nulls", "off"),
        ("transform_null_equals", "on"),
        ("force_parallel_mode", "on"),
        ("enable_partition_pruning", "off"),
        ("default_transaction_deferrable", "on"),
        ("quote_all_identifiers", "on"),
        ("search_path", ""),
        ("default_toast_compression", "pglz"),
        ("gin_fuzzy_search_limit", "1"),
        ("enable_seqscan", "off"),
    ];
    for level in ["read committed", "repeatable read", "serializable"] {
        for mode in ["force_generic_plan", "force_custom_plan"] {
            let database = Database::unmigrated().await;
            let options = database
                .options()
                .options(all)
                .options([("default_transaction_isolation", level)])
                .options([("plan_cache_mode", mode)]);
            everything(&database, Database::pool_with(options, 4).await).await;
        }
    }
}

/// `pg_temp` is searched first for tables and types.
#[tokio::test]
async fn everything_works_where_the_session_has_temporary_objects_of_all_names() {
    let database = Database::unmigrated().await;
    let pool = sqlx::postgres::PgPoolOptions::new()
        .max_connections(4)
        .after_connect(|connection, _| {
            Box::pin(async move {
                let sql = "begin read write;
                    create temp table keys (a int); create temp table timed_keys (a int); create temp table windows (a int);
                    create temp table partitions (a int); create temp table never (a int);
                    create temp table pg_class (a int); create temp table pg_inherits (a int);
                    create temp table pg_stat_activity (a int); create temp table _sqlx_migrations (a int);
                    create domain pg_temp.text as int; create domain pg_temp.timestamptz as int;
                    create domain pg_temp.tid as int; create domain pg_temp.regclass as int;
                    create domain pg_temp.bytea as int; create domain pg_temp.int4 as text;
                    create domain pg_temp.int8 as bool; create domain pg_temp.interval as int;
                    create domain pg_temp.record as int;
                    commit; set search_path = public";
                connection.execute(sqlx::raw_sql(sql)).await.map(drop)
            })
        })
        .connect_with(database.options())
        .await
        .unwrap();
    everything(&database, pool).await;
}

async fn everything(database: &Database, pool: sqlx::PgPool) {
    migrate_partitioned(&pool).await.unwrap();
    database
        .connection()
        .await
        .execute("create table public.effect (id bigint generated always as identity primary key, note text not null)")
        .await
        .unwrap();
    let plain = engine(&pool).retention(Retention::new(Duration::from_secs(3_600)).unwrap());
    let elsewhere = engine(&pool);
    for round in 0..12 {
        let key = format!("k{round}");
        let Claim::Fresh(attempt) = plain.claim(message(&key)).await.unwrap() else { panic!("{key}") };
        match round % 4 {
            0 => drop(attempt.complete(&done()).await.unwrap()),
            1 => drop(
                attempt
                    .complete(&done().with_retention(Retention::new(Duration::from_secs(60)).unwrap().refuse_forever()))
                    .await
                    .unwrap(),
            ),
            2 => assert!(matches!(attempt.reject(&done()).await.unwrap(), Rejected::Stored(_))),
            _ => {
                attempt.release().await.unwrap();
                let mut transaction = pool.begin().await.unwrap();
                transaction.execute("select 1").await.unwrap();
                let claimed = plain.claim_using(&mut transaction, &message(&key)).await.unwrap();
                assert!(matches!(claimed, ClaimUsing::Fresh));
                plain.complete_using(&mut transaction, &message(&key), &done()).await.unwrap();
                transaction.commit().await.unwrap();
            }
        }
        for engine in [&plain, &elsewhere] {
            let again = engine.claim(message(&key)).await.unwrap();
            let Claim::Duplicate(Duplicate::Replay(stored)) = again else { panic!("{key}: {again:?}") };
            assert_eq!(stored.body(), b"done");
        }
        // In a transaction that has seen it, and it expires.
        let mut transaction = pool.begin().await.unwrap();
        let seen = plain.claim_using(&mut transaction, &message(&key)).await.unwrap();
        assert!(matches!(seen, ClaimUsing::Duplicate(Duplicate::Replay(_))));
        transaction.rollback().await.unwrap();
        database.expire().await;
        let Claim::Fresh(attempt) = plain.claim(message(&key)).await.unwrap() else { panic!("{key} has expired") };
        attempt.complete(&done()).await.unwrap();
        let mut transaction = pool.begin().await.unwrap();
        let seen = plain.claim_using(&mut transaction, &message(&key)).await.unwrap();
        assert!(matches!(seen, ClaimUsing::Duplicate(Duplicate::Replay(_))));
        transaction.rollback().await.unwrap();
        database.expire().await;
        let mut transaction = pool.begin().await.unwrap();
        let again = plain.claim_using(&mut transaction, &message(&key)).await.unwrap();
        assert!(matches!(again, ClaimUsing::Fresh));
        plain.complete_using(&mut transaction, &message(&key), &done()).await.unwrap();
        transaction.commit().await.unwrap();
    }
    let keys = TimestampedKeys::uuid_v7(Duration::from_secs(3_600)).unwrap();
    for (operation, keys) in [("timed", keys), ("partitioned", keys.partitioned().unwrap())] {
        let timed = engine(&pool).timestamped_keys(keys);
        for round in 0..8 {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
            let key = format!("{:08x}-{:04x}-7000-8000-{round:012}", now >> 16, now & 0xffff);
            let key = IdempotencyKey::new(key).unwrap();
            let request = || {
                IdempotentRequest::new(
                    Scope::new("orders"),
                    Operation::new(operation),
                    key.clone(),
                    Fingerprint::of(["p"]),
                )
            };
            let Claim::Fresh(attempt) = timed.claim(request()).await.unwrap() else { panic!("{operation}") };
            attempt.complete(&done()).await.unwrap();
            assert!(matches!(timed.claim(request()).await.unwrap(), Claim::Duplicate(Duplicate::Replay(_))));
        }
        timed.prune(10).await.unwrap();
    }
    let (scope, operation) = (Scope::new("orders"), Operation::new("order.import"));
    assert!(plain.lookup(&scope, &operation, &IdempotencyKey::new("k11").unwrap()).await.unwrap().is_some());
    assert_eq!(plain.stats().await.unwrap().operations.len(), 3);
    database.expire().await;
    assert_eq!(plain.prune(4).await.unwrap().rows(), 4);
    assert!(plain.erase_scope(&scope).await.unwrap().keys >= 5);
    // Over HTTP: without a key, with one, and a handler that commits by itself.
    let app = app_with(layer(plain.clone()).optional(), async |mut tx: Tx| {
        let id: i64 = sqlx::query_scalar("insert into public.effect (note) values ('done') returning id")
            .fetch_one(&mut tx)
            .await
            .unwrap();
        id.to_string()
    });
    assert_eq!(reply(&app, post("/things")).await.status, 200);
    let first = reply(&app, post("/things").key("k")).await;
    let again = reply(&app, post("/things").key("k")).await;
    assert!(again.replayed() && again.body == first.body, "{first:?} {again:?}");
    let committing = app_with(layer(plain.clone()).optional(), async |mut tx: Tx| {
        drop(tx.execute("insert into public.effect (note) values ('x')").await);
        drop(tx.execute("commit").await);
        "done"
    });
    assert_eq!(reply(&committing, post("/things")).await.status, 500);
    assert_eq!(reply(&committing, post("/things").key("c")).await.status, 500);
    let kept: i64 = sqlx::query_scalar("select count(*) from public.effect where note = 'x'")
        .fetch_one(&mut database.connection().await)
        .await
        .unwrap();
    assert_eq!(kept, 0);
    migrate(&pool).await.unwrap();
}

// ---------------------------------------------------------------------------------------------- migrating

/// The engine works for a role whose sessions are read-only by default; does `migrate`?
#[tokio::test]
async fn a_role_whose_sessions_read_only_by_default_can_migrate() {
    let database = Database::unmigrated().await;
    let options = database.options().options([("default_transaction_read_only", "on")]);
    let pool = Database::pool_with(options, 2).await;
    migrate(&pool).await.unwrap();
}

/// Two processes: one migrates by `migrate_partitioned`, others claim and migrate meanwhile, a reader holds the table for long.
#[tokio::test(flavor = "multi_thread")]
async fn migrating_stops_nobody_while_a_reader_is_there() {
    use axum_idempotency::MIGRATOR;

    let database = Database::fresh().await;
    let pool = database.pool().await;
    // A database of the release before.
    MIGRATOR.undo(&pool, 2).await.unwrap();
    let mut reader = database.connection().await;
    let mut reading = reader.begin().await.unwrap();
    reading.execute("select count(*) from idempotency.keys").await.unwrap();
    let migrating: Vec<_> = (0..3)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move { migrate(&pool).await })
        })
        .collect();
    let mut slowest = Duration::ZERO;
    let begun = std::time::Instant::now();
    let mut n = 0;
    while begun.elapsed() < Duration::from_secs(4) {
        n += 1;
        let asked = std::time::Instant::now();
        // A reader or writer of the table as the older release has it.
        let sql = format!(
            "insert into idempotency.keys (scope, operation, key, fingerprint, status) values ('', '', '{n}', '', 200)"
        );
        (&pool).execute(sqlx::AssertSqlSafe(sql)).await.unwrap();
        slowest = slowest.max(asked.elapsed());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    reading.rollback().await.unwrap();
    for migrated in migrating {
        tokio::time::timeout(Duration::from_secs(20), migrated).await.expect("it ends").unwrap().unwrap();
    }
    eprintln!("{n} writes, the slowest took {slowest:?}");
    assert!(slowest < Duration::from_millis(1_500), "{slowest:?}");
}

// ---------------------------------------------------------------------------------------------- roles

/// connections.md: "Another role may prune and erase instead, and needs".
#[tokio::test]
async fn another_role_with_what_the_guide_says_for_it_prunes_and_forgets() {
    let database = Database::fresh().await;
    let role = format!("{}_pruner", database.name);
    let guide = include_str!("../../src/docs/connections.md");
    let block = guide.split("# Roles").nth(1).unwrap().split("```sql").nth(2).unwrap().split("```").next().unwrap();
    let setup = format!("create role {role} login; {}", block.replace(" to pruner", &format!(" to {role}")));
    database.connection().await.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(setup))).await.unwrap();
    let pool = Database::pool_with(database.options().username(&role), 2).await;
    let idempotency = engine(&pool);
    let (pruned, forgotten) = (idempotency.prune(10).await, idempotency.erase_scope(&Scope::new("alice")).await);
    pool.close().await;
    let drop_it = format!("drop owned by {role}; drop role {role}");
    database.connection().await.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(drop_it))).await.unwrap();
    assert!(pruned.is_ok() && forgotten.is_ok(), "{pruned:?} {forgotten:?}");
}

/// As above, with the engine alone: what is asked for one key is answered with another one's row?
#[tokio::test]
async fn a_connection_that_is_one_response_behind_answers_for_no_other_key() {
    let database = Database::fresh().await;
    let setup = "create table slow (note text);
                 create function slowly() returns trigger language plpgsql as
                   $$ begin perform pg_sleep(0.3); return new; end $$;
                 create trigger slowly before insert on slow for each row execute function slowly()";
    database.connection().await.execute(sqlx::raw_sql(setup)).await.unwrap();
    let idempotency = Idempotency::new(&database.pool_of(2).await);
    let said = |n: usize| StoredResponse::new(StatusCode::OK, format!("of m{n}"));
    for n in (0..16).step_by(2) {
        // Two at a time, so that there are two connections, on which everything is prepared.
        let Claim::Fresh(one) = idempotency.claim(message(&format!("m{n}"))).await.unwrap() else { panic!() };
        let Claim::Fresh(two) = idempotency.claim(message(&format!("m{}", n + 1))).await.unwrap() else { panic!() };
        one.complete(&said(n)).await.unwrap();
        two.complete(&said(n + 1)).await.unwrap();
        for again in [n, n + 1] {
            assert!(matches!(idempotency.claim(message(&format!("m{again}"))).await, Ok(Claim::Duplicate(_))));
        }
    }
    for round in 0..4 {
        let Claim::Fresh(mut attempt) = idempotency.claim(message(&format!("c{round}"))).await.unwrap() else {
            panic!()
        };
        let mut copy = attempt.connection().copy_in_raw("copy slow from stdin").await.unwrap();
        copy.send("a\n".as_bytes()).await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(50), copy.finish()).await.is_err());
        eprintln!("completed: {:?}", attempt.complete(&said(100)).await.map(drop));
        for n in 0..8 {
            // What was given back is there again.
            tokio::time::sleep(Duration::from_millis(20)).await;
            match idempotency.claim(message(&format!("m{n}"))).await {
                Ok(Claim::Duplicate(Duplicate::Replay(stored))) => {
                    assert_eq!(stored.body(), said(n).body(), "round {round}: asked for m{n}");
                }
                Ok(Claim::Fresh(_)) => panic!("round {round}: m{n} is executed again"),
                other => eprintln!("round {round} {n}: {other:?}"),
            }
        }
    }
}

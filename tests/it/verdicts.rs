//! One verdict, wherever a key is known from (F81), and whether or not somebody prunes (F75): histories of requests, told to
//! each of the ways to ask, and to a model.

use std::{collections::HashMap, time::Duration};

use axum::http::StatusCode;
use axum_idempotency::{
    Attempt, Claim, ClaimUsing, Concurrency, Duplicate, Fingerprint, Idempotency, IdempotencyKey, IdempotentRequest,
    KeyTimeError, Operation, Retention, Scope, StoredResponse, TimestampedKeys,
};
use proptest::prelude::*;
use sqlx::{Connection as _, PgConnection};

use crate::support::{Clock, Database, START, engine, moment};

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Executed,
    /// With what was responded in this step of the history.
    Replayed(usize),
    NotRetained,
    KeyReused,
    KeyTime(KeyTimeError),
    InProgress,
}

/// How requests differ, each in few values.
#[derive(Clone, Copy, Debug)]
struct Asked {
    key: u8,
    payload: u8,
    scheme: u8,
    /// When it was first sent, in minutes from now.
    sent: i8,
}

fn asked() -> impl Strategy<Value = Asked> {
    (0..2_u8, 0..2_u8, 1..3_u8, prop_oneof![Just(0_i8), -3..2_i8]).prop_map(|(key, payload, scheme, sent)| Asked {
        key,
        payload,
        scheme,
        sent,
    })
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(Asked),
    /// The clock goes on, in minutes.
    Later(u8),
    Prune,
}

/// What keys are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    Plain,
    /// Responses fade after a minute, keys expire after three.
    Fading,
    FirstSent,
}

const MINUTE: i64 = 60_000;

fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

impl Keys {
    fn set(self, engine: Idempotency) -> Idempotency {
        match self {
            Self::Plain => engine.retention(Retention::new(minutes(3)).unwrap()),
            Self::Fading => engine.retention(Retention::new(minutes(1)).unwrap().refuse_for(minutes(3)).unwrap()),
            Self::FirstSent => {
                let keys = TimestampedKeys::first_sent(minutes(2)).unwrap();
                engine.timestamped_keys(keys.margin(minutes(1)).future_skew(minutes(1)))
            }
        }
    }

    fn request(self, operation: &str, asked: Asked, now: i64) -> IdempotentRequest {
        let Asked { key, payload, scheme, sent } = asked;
        let key = IdempotencyKey::new(format!("key-{key}")).unwrap();
        let fingerprint = Fingerprint::of([[payload]]).with_scheme(scheme);
        let request = IdempotentRequest::new(Scope::new("alice"), Operation::new(operation), key, fingerprint);
        if self == Self::FirstSent { request.with_first_sent(moment(now + i64::from(sent) * MINUTE)) } else { request }
    }
}

/// What the documents say.
#[derive(Clone, Default)]
struct Model(HashMap<u8, Row>);

#[derive(Clone, Copy)]
struct Row {
    step: usize,
    asked: Asked,
    sent: i64,
    fades: i64,
    expires: i64,
}

impl Model {
    fn ask(&mut self, keys: Keys, asked: Asked, now: i64, step: usize) -> Verdict {
        let sent = now + i64::from(asked.sent) * MINUTE;
        if let Some(row) = self.0.get(&asked.key).filter(|row| now < row.expires) {
            return match row {
                row if keys == Keys::FirstSent && row.sent != sent => Verdict::KeyTime(KeyTimeError::Mismatch),
                row if row.asked.scheme == asked.scheme && row.asked.payload != asked.payload => Verdict::KeyReused,
                row if row.fades <= now => Verdict::NotRetained,
                row => Verdict::Replayed(row.step),
            };
        }
        let (fades, expires) = match keys {
            Keys::Plain => (i64::MAX, now + 3 * MINUTE),
            Keys::Fading => (now + MINUTE, now + 3 * MINUTE),
            Keys::FirstSent if sent > now + MINUTE => return Verdict::KeyTime(KeyTimeError::InFuture),
            Keys::FirstSent if sent < now - 2 * MINUTE => return Verdict::KeyTime(KeyTimeError::Expired),
            Keys::FirstSent => (i64::MAX, sent + 3 * MINUTE),
        };
        self.0.insert(asked.key, Row { step, asked, sent, fades, expires });
        Verdict::Executed
    }
}

fn response(step: usize) -> StoredResponse {
    StoredResponse::new(StatusCode::OK, step.to_string())
}

fn step_of(response: &StoredResponse) -> usize {
    std::str::from_utf8(response.body()).unwrap().parse().unwrap()
}

fn verdict_on(duplicate: Duplicate) -> Verdict {
    match duplicate {
        Duplicate::Replay(response) => Verdict::Replayed(step_of(&response)),
        Duplicate::NotRetained(_) => Verdict::NotRetained,
        Duplicate::InProgress => Verdict::InProgress,
        Duplicate::KeyReused => Verdict::KeyReused,
        Duplicate::KeyTime(error) => Verdict::KeyTime(error),
        other => panic!("{other:?}"),
    }
}

async fn claim(engine: &Idempotency, request: IdempotentRequest) -> (Verdict, Option<Attempt>) {
    match engine.claim(request).await.unwrap() {
        Claim::Fresh(attempt) => (Verdict::Executed, Some(attempt)),
        Claim::Duplicate(duplicate) => (verdict_on(duplicate), None),
    }
}

/// Asks, and responds if it is executed.
async fn ask(engine: &Idempotency, request: IdempotentRequest, step: usize) -> Verdict {
    let (verdict, attempt) = claim(engine, request).await;
    if let Some(attempt) = attempt {
        attempt.complete(&response(step)).await.unwrap();
    }
    verdict
}

async fn ask_using(
    engine: &Idempotency,
    connection: &mut PgConnection,
    request: &IdempotentRequest,
    step: usize,
) -> Verdict {
    match engine.claim_using(&mut *connection, request).await.unwrap() {
        ClaimUsing::Fresh => {
            engine.complete_using(connection, request, &response(step)).await.unwrap();
            Verdict::Executed
        }
        ClaimUsing::Duplicate(duplicate) => verdict_on(duplicate),
    }
}

/// A property on one runtime and one database.
fn check<S: Strategy>(cases: u32, strategy: S, property: impl AsyncFn(&mut Clock, S::Value)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (database, mut clock) = runtime.block_on(async {
        let database = Database::fresh().await;
        let clock = Clock::of(&database).await;
        (database, clock)
    });
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let clock = tokio::sync::Mutex::new(&mut clock);
    runner
        .run(&strategy, |value| {
            runtime.block_on(async {
                let empty = "truncate idempotency.keys, idempotency.windows";
                sqlx::query(empty).execute(&mut database.connection().await).await.unwrap();
                property(&mut *clock.lock().await, value).await;
            });
            Ok(())
        })
        .unwrap();
    let _entered = runtime.enter();
    drop(database);
}

fn history() -> impl Strategy<Value = (Keys, Vec<Step>)> {
    let step = prop_oneof![
        4 => asked().prop_map(Step::Ask),
        2 => (1..4_u8).prop_map(Step::Later),
        1 => Just(Step::Prune),
    ];
    (prop::sample::select(vec![Keys::Plain, Keys::Fading, Keys::FirstSent]), prop::collection::vec(step, 1..12))
}

/// Ways that need the table: a process that knows nothing, one that has seen the keys, one that does not wait, a transaction
/// of the caller's, and one that began before the clock went on.
#[test]
fn f75_whether_somebody_prunes_or_not_each_way_to_ask_says_what_the_documents_say() {
    check(48, history(), async |clock, (keys, steps)| {
        let pool = Database::pool_with(clock.options(), 4).await;
        let seen = keys.set(engine(&pool).concurrency(Concurrency::NoWait));
        let waiting = keys.set(engine(&pool));
        let mut now = START;
        clock.set(now).await;
        let mut models: HashMap<&str, Model> = HashMap::new();
        // It began when the history did.
        let mut old = old_transaction(&pool).await;
        for (step, said) in steps.iter().copied().enumerate() {
            let asked = match said {
                Step::Ask(asked) => asked,
                Step::Later(by) => {
                    now += i64::from(by) * MINUTE;
                    clock.set(now).await;
                    continue;
                }
                Step::Prune => {
                    waiting.prune(100).await.unwrap();
                    continue;
                }
            };
            // What an old transaction is told of a key; what it does is undone, since its window began long ago.
            let request = keys.request("using", asked, now);
            let mut savepoint = old.begin().await.unwrap();
            let verdict = ask_using(&waiting, &mut savepoint, &request, step).await;
            savepoint.rollback().await.unwrap();
            let expected = models.entry("using").or_default().clone().ask(keys, asked, now, step);
            assert_eq!(verdict, expected, "an old transaction: {asked:?} at step {step} of {keys:?} {steps:?}");
            for way in ["fresh", "seen", "waiting", "using"] {
                let request = keys.request(way, asked, now);
                let expected = models.entry(way).or_default().ask(keys, asked, now, step);
                let verdict = match way {
                    "fresh" => ask(&keys.set(engine(&pool)), request, step).await,
                    "seen" => ask(&seen, request, step).await,
                    "waiting" => ask(&waiting, request, step).await,
                    _ => {
                        let mut transaction = pool.begin().await.unwrap();
                        let verdict = ask_using(&waiting, &mut transaction, &request, step).await;
                        transaction.commit().await.unwrap();
                        verdict
                    }
                };
                assert_eq!(verdict, expected, "{way}: {asked:?} at step {step} of {keys:?} {steps:?}");
            }
        }
        old.rollback().await.unwrap();
        pool.close().await;
    });
}

async fn old_transaction(pool: &sqlx::PgPool) -> sqlx::Transaction<'static, sqlx::Postgres> {
    let mut transaction = pool.begin().await.unwrap();
    // The test's clock stands still in a transaction from when it is first asked.
    sqlx::query("select pg_catalog.now()").execute(&mut *transaction).await.unwrap();
    transaction
}

/// Where time stands still: the table, the process's memory, a request in flight there, and a transaction of the caller's.
#[test]
fn f81_table_memory_what_is_in_flight_and_the_callers_transaction_say_the_same() {
    let history = prop::collection::vec(asked(), 2..8);
    check(32, (prop::bool::ANY, history), async |clock, (first_sent, history)| {
        let keys = if first_sent { Keys::FirstSent } else { Keys::Plain };
        let pool = Database::pool_with(clock.options(), 4).await;
        clock.set(START).await;
        let remembering = keys.set(engine(&pool).response_cache(1_000_000, minutes(1)));
        let patient = keys.set(engine(&pool));
        let mut model = Model::default();
        for (step, asked) in history.iter().copied().enumerate() {
            let expected = model.ask(keys, asked, START, step);
            let request = |way: &str| keys.request(way, asked, START);
            let table = ask(&keys.set(engine(&pool)), request("table"), step).await;
            let memory = ask(&remembering, request("memory"), step).await;
            let mut transaction = pool.begin().await.unwrap();
            let using = ask_using(&patient, &mut transaction, &request("using"), step).await;
            transaction.commit().await.unwrap();
            assert_eq!([table, memory, using], [expected; 3], "{asked:?} at step {step} of {keys:?} {history:?}");
            // In flight: what is executed first runs while all the others come, each to be told at once, or to wait for it.
        }
        let mut attempts: HashMap<u8, (usize, Attempt)> = HashMap::new();
        let mut model = Model::default();
        for (step, asked) in history.iter().copied().enumerate() {
            let expected = model.ask(keys, asked, START, step);
            let request = keys.request("in flight", asked, START);
            let told = match expected {
                Verdict::Replayed(_) => {
                    // It waits, and gets the response when there is one.
                    let waiting = tokio::spawn({
                        let patient = patient.clone();
                        async move { claim(&patient, request).await.0 }
                    });
                    crate::support::settle().await;
                    if let Some((first, attempt)) = attempts.remove(&asked.key) {
                        assert!(!waiting.is_finished());
                        attempt.complete(&response(first)).await.unwrap();
                    }
                    waiting.await.unwrap()
                }
                _ => {
                    let (told, attempt) = claim(&patient, request).await;
                    attempts.extend(attempt.map(|attempt| (asked.key, (step, attempt))));
                    told
                }
            };
            assert_eq!(told, expected, "in flight: {asked:?} at step {step} of {keys:?} {history:?}");
        }
        for (_, (_, attempt)) in attempts {
            attempt.release().await.unwrap();
        }
        pool.close().await;
    });
}

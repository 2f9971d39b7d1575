//! Duplicates within a process: they wait for each other in memory, and cost neither a connection nor a statement.

use std::{collections::HashSet, time::Duration};

use axum::{Router, http::StatusCode};
use axum_idempotency::{
    Claim, Concurrency, Duplicate, Fingerprint, Idempotency, IdempotencyKey, IdempotentRequest, Operation,
    RejectionKind, Scope, StoredResponse, Tx,
};
use sqlx::Connection as _;
use tokio::task::JoinHandle;

use crate::support::{
    Database, Gate, Reply, Runs, app_with, create, effect, engine, layer, post, reply, settle, shares_pool,
};

fn gated(idempotency: &Idempotency, gate: &Gate) -> Router {
    let inside = gate.clone();
    app_with(layer(idempotency.clone()), move |mut tx: Tx| async move {
        let id = effect(&mut tx).await;
        inside.pass().await;
        (StatusCode::CREATED, id.to_string())
    })
}

fn ask(app: &Router, body: &'static str) -> JoinHandle<Reply> {
    let app = app.clone();
    tokio::spawn(async move { reply(&app, post("/things").key("k").body(body)).await })
}

fn request(key: &str, payload: &str) -> IdempotentRequest {
    let key = IdempotencyKey::new(key).unwrap();
    IdempotentRequest::new(Scope::global(), Operation::new("o"), key, Fingerprint::of([payload]))
}

/// How many keys the process is at, by what `Debug` shows.
fn in_flight(idempotency: &Idempotency) -> String {
    let shown = format!("{idempotency:?}");
    let from = shown.find("InFlight").expect("it shows what is in flight");
    shown[from..].split('}').next().unwrap().to_owned() + "}"
}

const NOTHING: &str = "InFlight { len: 0 }";

#[tokio::test]
async fn f7_two_hundred_duplicates_on_two_layers_take_no_connection_and_send_no_statement() {
    let database = Database::logged().await;
    let pool = Database::pool_with(database.options().options([("log_statement", "all")]), 4).await;
    let idempotency = engine(&pool);
    let gate = Gate::closed();
    // The same operation under both.
    let apps = [gated(&idempotency, &gate), gated(&idempotency, &gate)];
    let first = ask(&apps[0], "a");
    gate.entered().await;
    let before = database.log().len();

    let duplicates: Vec<_> = (0..200).map(|n| ask(&apps[n % 2], "a")).collect();
    settle().await;
    assert!(duplicates.iter().all(|duplicate| !duplicate.is_finished()));
    if !shares_pool() {
        assert_eq!(database.sessions().await, 1, "no duplicate has a connection");
    }
    assert_eq!(database.log().len(), before, "no duplicate sends a statement");

    gate.open();
    let first = first.await.unwrap();
    for duplicate in duplicates {
        let duplicate = duplicate.await.unwrap();
        assert!(duplicate.replayed());
        assert_eq!((duplicate.status, &duplicate.body), (first.status, &first.body));
    }
    let statements: Vec<_> = database.log()[before..].iter().filter(|line| line.contains("LOG:  ")).cloned().collect();
    assert_eq!(statements.len(), 2, "the answer and the commit: {statements:?}");
    assert_eq!(database.effects().await, 1);
}

#[tokio::test]
async fn with_a_pool_of_one_duplicates_wait_while_the_first_has_the_only_connection() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool_of(1).await);
    let gate = Gate::closed();
    let app = gated(&idempotency, &gate);
    let first = ask(&app, "a");
    gate.entered().await;
    let duplicates: Vec<_> = (0..50).map(|_| ask(&app, "a")).collect();
    settle().await;
    gate.open();
    let first = first.await.unwrap();
    for duplicate in duplicates {
        assert_eq!(duplicate.await.unwrap().body, first.body);
    }
    assert_eq!(in_flight(&idempotency), NOTHING);
}

#[tokio::test]
async fn f54_a_duplicate_gets_the_very_answer_that_was_committed_not_a_copy() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    let Claim::Fresh(attempt) = idempotency.claim(request("k", "p")).await.unwrap() else { panic!("it is free") };
    let duplicate = tokio::spawn({
        let idempotency = idempotency.clone();
        async move { idempotency.claim(request("k", "p")).await.unwrap() }
    });
    settle().await;
    let answer = StoredResponse::new(StatusCode::OK, vec![b'x'; 100_000]);
    attempt.complete(&answer).await.unwrap();
    let Claim::Duplicate(Duplicate::Replay(replayed)) = duplicate.await.unwrap() else { panic!("it was answered") };
    assert_eq!(replayed.body().as_ptr(), answer.body().as_ptr());
    assert_eq!(replayed, answer);
}

#[tokio::test]
async fn r31_another_payload_is_refused_at_once_while_the_first_executes() {
    for concurrency in [Concurrency::default(), Concurrency::NoWait] {
        let database = Database::fresh().await;
        let idempotency = engine(&database.pool_of(1).await).concurrency(concurrency);
        let gate = Gate::closed();
        let app = gated(&idempotency, &gate);
        let first = ask(&app, "a");
        gate.entered().await;
        ask(&app, "b").await.unwrap().assert_refused(RejectionKind::KeyReused);
        gate.open();
        assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
    }
}

#[tokio::test]
async fn r31_rejecting_within_a_process_takes_no_connection() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool_of(1).await).concurrency(Concurrency::NoWait);
    let gate = Gate::closed();
    let app = gated(&idempotency, &gate);
    let first = ask(&app, "a");
    gate.entered().await;
    // The only connection is the first one's, so an answer proves that none was needed.
    for _ in 0..20 {
        ask(&app, "a").await.unwrap().assert_refused(RejectionKind::InFlight);
    }
    gate.open();
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
    assert!(ask(&app, "a").await.unwrap().replayed());
}

#[tokio::test]
async fn r32_f52_a_duplicate_within_a_process_waits_no_longer_than_it_may() {
    let database = Database::fresh().await;
    let brief = Concurrency::Wait { timeout: Duration::from_millis(20) };
    let idempotency = engine(&database.pool_of(1).await).concurrency(brief);
    let gate = Gate::closed();
    let app = gated(&idempotency, &gate);
    let first = ask(&app, "a");
    gate.entered().await;
    ask(&app, "a").await.unwrap().assert_refused(RejectionKind::InFlight);
    gate.open();
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
}

#[tokio::test]
async fn r32_when_the_owner_leaves_no_answer_one_waiter_executes_and_the_others_go_on_waiting() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool_of(2).await);
    let (runs, gate) = (Runs::default(), Gate::closed());
    let (counted, inside) = (runs.clone(), gate.clone());
    let app = app_with(layer(idempotency.clone()), move |mut tx: Tx| async move {
        let run = counted.one();
        effect(&mut tx).await;
        inside.pass().await;
        match run {
            1 => StatusCode::INTERNAL_SERVER_ERROR,
            2 => panic!("the second owner vanishes"),
            _ => StatusCode::CREATED,
        }
    });
    let mut tasks: Vec<_> = (0..10).map(|_| ask(&app, "a")).collect();
    for run in 1..=3 {
        gate.entered().await;
        settle().await;
        assert_eq!(runs.count(), run, "one at a time");
        assert_eq!(tasks.iter().filter(|task| task.is_finished()).count(), run - 1, "the others go on waiting");
        gate.open();
    }
    let (mut failed, mut panicked, mut executed, mut replayed) = (0, 0, 0, 0);
    for task in tasks.drain(..) {
        match task.await {
            Err(_) => panicked += 1,
            Ok(reply) if reply.status == 500 => failed += 1,
            Ok(reply) if reply.replayed() => replayed += 1,
            Ok(_) => executed += 1,
        }
    }
    assert_eq!((failed, panicked, executed, replayed), (1, 1, 1, 7));
    assert_eq!(database.effects().await, 1);
    assert_eq!(in_flight(&idempotency), NOTHING);
}

/// While the one before only asks the database, the key may well be the later one's.
#[tokio::test]
async fn a_retry_is_answered_although_a_request_with_another_payload_came_just_before() {
    for concurrency in [Concurrency::default(), Concurrency::NoWait] {
        let database = Database::fresh().await;
        let pool = database.pool_of(1).await;
        let app = app_with(layer(engine(&pool).concurrency(concurrency)), create);
        let first = ask(&app, "a").await.unwrap();
        let only = pool.acquire().await.unwrap();
        let wrong = ask(&app, "b");
        settle().await;
        let retry = ask(&app, "a");
        settle().await;
        drop(only);
        wrong.await.unwrap().assert_refused(RejectionKind::KeyReused);
        let retry = retry.await.unwrap();
        assert!(retry.replayed(), "{retry:?}");
        assert_eq!(retry.body, first.body);
    }
}

#[tokio::test]
async fn f46_retries_that_come_together_are_all_answered_by_one_look_even_when_rejecting() {
    let database = Database::logged().await;
    let pool = Database::pool_with(database.options().options([("log_statement", "all")]), 1).await;
    let app = app_with(layer(engine(&pool).concurrency(Concurrency::NoWait)), create);
    let first = ask(&app, "a").await.unwrap();
    let only = pool.acquire().await.unwrap();
    let retries: Vec<_> = (0..20).map(|_| ask(&app, "a")).collect();
    // Those with another payload come after the one that looks, and must not be given what it finds.
    let reused: Vec<_> = (0..2).map(|_| ask(&app, "b")).collect();
    settle().await;
    let looks = |database: &Database| database.log().iter().filter(|line| line.contains(": with live")).count();
    let before = looks(&database);
    drop(only);
    for retry in retries {
        let retry = retry.await.unwrap();
        assert!(retry.replayed(), "{retry:?}");
        assert_eq!(retry.body, first.body);
    }
    for reused in reused {
        reused.await.unwrap().assert_refused(RejectionKind::KeyReused);
    }
    assert!(looks(&database) - before <= 3, "one for all retries, and one at most for each of the others");
}

#[tokio::test]
async fn f40_nothing_is_left_in_flight_however_an_attempt_ends() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    let answer = StoredResponse::new(StatusCode::OK, "");
    let fresh = async |key: &str| match idempotency.claim(request(key, "p")).await.unwrap() {
        Claim::Fresh(attempt) => attempt,
        other => panic!("{other:?}"),
    };
    fresh("completed").await.complete(&answer).await.unwrap();
    fresh("released").await.release().await.unwrap();
    let rejected = fresh("rejected").await.reject(&answer).await.unwrap();
    drop(fresh("dropped").await);
    let panicking = fresh("panicked").await;
    let panicked = tokio::spawn(async move {
        let _attempt = panicking;
        panic!("in the middle")
    });
    assert!(panicked.await.is_err());
    drop(idempotency.claim(request("completed", "p")).await.unwrap());
    drop(idempotency.claim(request("completed", "q")).await.unwrap());
    let mut attempt = fresh("aborted").await;
    sqlx::query("select 1 / 0").execute(attempt.connection()).await.unwrap_err();
    attempt.complete(&answer).await.unwrap_err();
    assert!(matches!(rejected, axum_idempotency::Rejected::Stored(_)));
    assert_eq!(in_flight(&idempotency), NOTHING);

    let nowhere = engine(&database.pool().await);
    nowhere.pool().close().await;
    nowhere.claim(request("k", "p")).await.unwrap_err();
    assert_eq!(in_flight(&nowhere), NOTHING);
}

#[tokio::test]
async fn f22_panics_in_the_applications_functions_leave_nothing_and_waiters_are_served() {
    use axum_idempotency::{Disposition, IdempotencyLayer};

    let database = Database::fresh().await;
    let idempotency = engine(&database.pool_of(1).await);
    let runs = Runs::default();
    let once = |runs: &Runs| assert_ne!(runs.one(), 1, "the function's own panic");
    let layers: Vec<Box<dyn Fn(Runs) -> IdempotencyLayer>> = vec![
        Box::new(|runs| {
            IdempotencyLayer::new(idempotency.clone(), move |_| {
                once(&runs);
                Some(Scope::global())
            })
        }),
        Box::new(|runs| {
            layer(idempotency.clone()).with_fingerprint(move |_, _| {
                once(&runs);
                Fingerprint::of(["same"])
            })
        }),
        Box::new(|runs| {
            layer(idempotency.clone()).with_disposition(move |_| {
                once(&runs);
                Disposition::Commit
            })
        }),
    ];
    drop(runs);
    for (n, layer) in layers.into_iter().enumerate() {
        let app = app_with(layer(Runs::default()).operation(format!("o{n}")), create);
        let tasks: Vec<_> = (0..3).map(|_| ask(&app, "a")).collect();
        let mut ended = Vec::new();
        for task in tasks {
            ended.push(task.await.map(|reply| reply.status));
        }
        assert_eq!(ended.iter().filter(|end| end.is_err()).count(), 1, "{n}");
        assert!(ended.iter().flatten().all(|status| *status == StatusCode::CREATED), "{n}: {ended:?}");
        assert_eq!(in_flight(&idempotency), NOTHING);
        assert_eq!(database.effects().await, i64::try_from(n).unwrap() + 1);
    }
}

/// Each key is executed elsewhere; of those who wait for them, two may do so with a connection.
#[tokio::test]
async fn f7_no_more_connections_wait_inside_postgresql_than_may() {
    let database = Database::fresh().await;
    let elsewhere = engine(&database.pool_of(6).await);
    let mut held = Vec::new();
    for n in 0..6 {
        match elsewhere.claim(request(&n.to_string(), "p")).await.unwrap() {
            Claim::Fresh(attempt) => held.push(attempt),
            other => panic!("{other:?}"),
        }
    }
    let wait = Concurrency::Wait { timeout: Duration::from_secs(30) };
    let here = engine(&database.pool_of(6).await).concurrency(wait).max_waiting_connections(2);
    let mut waiting = Vec::new();
    for n in 0..6 {
        let here = here.clone();
        waiting.push(tokio::spawn(async move { here.claim(request(&n.to_string(), "p")).await.unwrap() }));
    }
    database.until_waiting(2).await;
    // The other four have asked and given their connections back: the pool can lend them all.
    let mut lent = Vec::new();
    for _ in 0..4 {
        lent.push(here.pool().acquire().await.unwrap());
    }
    let now: i64 = sqlx::query_scalar(
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
    )
    .fetch_one(&mut database.connection().await)
    .await
    .unwrap();
    assert_eq!(now, 2);
    drop(lent);
    let answer = StoredResponse::new(StatusCode::OK, "done");
    for attempt in held {
        attempt.complete(&answer).await.unwrap();
    }
    for waiting in waiting {
        assert!(matches!(waiting.await.unwrap(), Claim::Duplicate(Duplicate::Replay(stored)) if stored == answer));
    }
}

#[tokio::test]
async fn whoever_gets_no_place_to_wait_is_told_to_come_again() {
    let database = Database::fresh().await;
    let elsewhere = engine(&database.pool_of(2).await);
    let first = elsewhere.claim(request("1", "p")).await.unwrap();
    let second = elsewhere.claim(request("2", "p")).await.unwrap();
    let patient = Concurrency::Wait { timeout: Duration::from_secs(30) };
    let here = engine(&database.pool_of(4).await).max_waiting_connections(1);
    let placed = tokio::spawn({
        let here = here.clone().concurrency(patient);
        async move { here.claim(request("1", "p")).await.unwrap() }
    });
    database.until_waiting(1).await;
    let brief = here.concurrency(Concurrency::Wait { timeout: Duration::from_millis(50) });
    assert!(matches!(brief.claim(request("2", "p")).await.unwrap(), Claim::Duplicate(Duplicate::InProgress)));
    drop((first, second));
    assert!(matches!(placed.await.unwrap(), Claim::Fresh(_)));
}

/// The handler runs where the request is polled: nothing is spawned for it.
#[tokio::test]
async fn task_locals_and_spans_of_outer_layers_reach_the_handler() {
    tokio::task_local! { static TENANT: &'static str }

    let database = Database::fresh().await;
    let app = app_with(layer(engine(&database.pool().await)), async |_tx: Tx| TENANT.get().to_owned());
    let reply = TENANT.scope("t7", reply(&app, post("/things").key("k"))).await;
    assert_eq!(reply.text(), "t7");
}

/// Distinct keys do not meet.
#[tokio::test(flavor = "multi_thread")]
async fn requests_under_other_keys_are_not_held_up() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool_of(2).await);
    let gate = Gate::closed();
    let gated = gated(&idempotency, &gate);
    let free = app_with(layer(idempotency.clone()), create);
    let first = ask(&gated, "a");
    gate.entered().await;
    let mut bodies = HashSet::new();
    for n in 0..10 {
        bodies.insert(reply(&free, post("/things").key(&n.to_string())).await.body);
    }
    assert_eq!(bodies.len(), 10);
    gate.open();
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
    database.connection().await.close().await.unwrap();
}

#[tokio::test]
async fn a_request_that_waited_long_for_a_connection_is_executed_and_not_told_of_a_duplicate() {
    let database = Database::fresh().await;
    let pool = database.pool_of(1).await;
    for concurrency in [Concurrency::default(), Concurrency::NoWait] {
        let key = format!("{concurrency:?}");
        let app = app_with(layer(engine(&pool).concurrency(concurrency)), create);
        let only = pool.acquire().await.unwrap();
        let waiting =
            tokio::spawn(async move { reply(&app, post("/things").key(&format!("\"{}\"", key.len()))).await });
        settle().await;
        // Longer than it would have waited for a duplicate.
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(10)).await;
        tokio::time::resume();
        drop(only);
        assert_eq!(waiting.await.unwrap().status, StatusCode::CREATED);
    }
}

/// They were only waiting, so nothing of them goes on.
#[tokio::test]
async fn duplicates_whose_clients_go_away_leave_nothing_behind() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool_of(1).await);
    let gate = Gate::closed();
    let app = gated(&idempotency, &gate);
    let first = ask(&app, "a");
    gate.entered().await;
    let duplicates: Vec<_> = (0..20).map(|_| ask(&app, "a")).collect();
    settle().await;
    for duplicate in &duplicates {
        duplicate.abort();
    }
    settle().await;
    assert!(duplicates.iter().all(JoinHandle::is_finished));
    assert_eq!(idempotency.drain(Duration::ZERO).await, 0, "nothing goes on by itself");
    gate.open();
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
    assert_eq!(in_flight(&idempotency), NOTHING);
}

/// A request is held against one that is known under its key: in the table, in memory, and while that one is executed.
#[tokio::test]
async fn f81_the_table_memory_and_what_is_in_flight_give_the_same_verdict() {
    use axum_idempotency::{
        Claim, Fingerprint, IdempotencyKey, IdempotentRequest, Operation, Scope, StoredResponse, TimestampedKeys,
    };

    fn shown(claim: &Claim) -> &'static str {
        match claim {
            Claim::Fresh(_) => "fresh",
            Claim::Duplicate(Duplicate::Replay(_)) => "replay",
            Claim::Duplicate(Duplicate::NotRetained(_)) => "not retained",
            Claim::Duplicate(Duplicate::InProgress) => "in progress",
            Claim::Duplicate(Duplicate::KeyReused) => "reused",
            Claim::Duplicate(Duplicate::KeyTime(_)) => "untimely",
            Claim::Duplicate(_) => "another",
        }
    }

    let database = Database::fresh().await;
    let pool = database.pool_of(4).await;
    let now = std::time::SystemTime::now();
    let minute = Duration::from_secs(60);
    let mut n = 0;
    for timed in [false, true] {
        let make = |pool: &sqlx::PgPool| {
            let idempotency = engine(pool);
            if timed {
                idempotency.timestamped_keys(TimestampedKeys::first_sent(100 * minute).unwrap())
            } else {
                idempotency
            }
        };
        for (what, scheme, sent, expected) in [
            ("same", None, now, "replay"),
            ("other", None, now, "reused"),
            ("other", Some(7), now, "replay"),
            ("same", None, now - minute, if timed { "untimely" } else { "replay" }),
            ("other", None, now - minute, if timed { "untimely" } else { "reused" }),
        ] {
            n += 1;
            let of = |what: &str, scheme: Option<u8>, sent| {
                let fingerprint = Fingerprint::of([what]);
                let fingerprint = scheme.map_or(fingerprint, |scheme| fingerprint.with_scheme(scheme));
                let key = IdempotencyKey::new(format!("k{n}")).unwrap();
                let operation = Operation::new(if timed { "timed" } else { "plain" });
                IdempotentRequest::new(Scope::global(), operation, key, fingerprint).with_first_sent(sent)
            };
            let here = make(&pool).response_cache(1_000_000, minute);
            let Claim::Fresh(attempt) = here.claim(of("same", None, now)).await.unwrap() else { panic!("a free key") };
            let asked = {
                let (here, request) = (here.clone(), of(what, scheme, sent));
                tokio::spawn(async move { shown(&here.claim(request).await.unwrap()) })
            };
            settle().await;
            attempt.complete(&StoredResponse::new(StatusCode::CREATED, "done")).await.unwrap();
            let in_flight = asked.await.unwrap();
            let memory = shown(&here.claim(of(what, scheme, sent)).await.unwrap());
            let table = shown(&make(&pool).claim(of(what, scheme, sent)).await.unwrap());
            assert_eq!([in_flight, memory, table], [expected; 3], "{what} {scheme:?} timed {timed}");
        }
    }
}

//! What the engine's connections do to the server, and to those who share it.

use std::time::Duration;

use axum::{Router, extract::State, http::StatusCode, routing::post as route};
use axum_idempotency::{Concurrency, Idempotency, RejectionKind, TimestampedKeys, Tx};
use sqlx::{Executor as _, PgPool};
use tokio::time::{Instant, timeout};

use crate::support::{Database, Gate, Runs, all, app_with, create, effect, engine, layer, post, reply, silent_proxy};

const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn f69_claims_that_are_given_up_leave_no_more_backends_than_the_pool_has_connections() {
    let database = Database::fresh().await;
    let check = Duration::from_millis(100);
    let idempotency = Idempotency::new(&database.pool_of(4).await)
        .concurrency(Concurrency::NoWait)
        .client_check(check)
        .statement_limit(Duration::from_millis(200));
    let app = app_with(layer(idempotency), create);
    let mut blocker = database.connection().await;
    blocker.execute("begin; lock table idempotency.keys in access exclusive mode").await.unwrap();
    for round in 0..5 {
        let asked = (0..4).map(|n| {
            let app = app.clone();
            async move { reply(&app, post("/things").key(&format!("{round}-{n}"))).await }
        });
        let replies = tokio::spawn(all(asked.collect::<Vec<_>>()));
        let mut most = 0;
        while !replies.is_finished() {
            most = most.max(database.sessions().await);
        }
        assert!((1..=4).contains(&most), "{most} backends");
        for refused in replies.await.unwrap() {
            // Nobody executes these: it is the table that is locked.
            refused.assert_refused(RejectionKind::StoreUnavailable);
        }
    }
    blocker.execute("rollback").await.unwrap();
    assert_eq!(reply(&app, post("/things").key("0-0")).await.status, StatusCode::CREATED);
}

/// Those who wait inside PostgreSQL learn why as well.
#[tokio::test]
async fn f69_a_wait_for_something_else_than_a_duplicate_is_503_and_for_a_duplicate_409() {
    let database = Database::fresh().await;
    let brief = Concurrency::Wait { timeout: Duration::from_millis(300) };
    let gate = Gate::closed();
    let inside = gate.clone();
    let elsewhere = app_with(layer(engine(&database.pool_of(1).await)), move |mut tx: Tx| async move {
        inside.pass().await;
        effect(&mut tx).await;
        StatusCode::CREATED
    });
    let first = tokio::spawn(async move { reply(&elsewhere, post("/things").key("k")).await });
    gate.entered().await;
    let app = app_with(layer(engine(&database.pool_of(2).await).concurrency(brief)), create);
    reply(&app, post("/things").key("k")).await.assert_refused(RejectionKind::InFlight);
    // The role's own limit for locks ends a wait for the table; nobody executes this one.
    let impatient = database.options().options([("lock_timeout", "100ms")]);
    let impatient = engine(&Database::pool_with(impatient, 2).await).concurrency(brief);
    let mut blocker = database.connection().await;
    gate.open();
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
    blocker.execute("begin; lock table idempotency.keys in access exclusive mode").await.unwrap();
    let refused = reply(&app_with(layer(impatient), create), post("/things").key("l")).await;
    refused.assert_refused(RejectionKind::StoreUnavailable);
    assert!(refused.text().contains("A lock blocked the database"), "{}", refused.text());
}

/// The statement would take a minute.
#[tokio::test]
async fn f73_f37_the_key_of_a_process_that_died_in_a_statement_is_free_within_two_seconds() {
    let database = Database::fresh().await;
    let (options, network) = silent_proxy(database.options()).await;
    let dying = Idempotency::new(&Database::pool_with(options, 2).await);
    let dying = app_with(layer(dying), |mut tx: Tx| async move {
        effect(&mut tx).await;
        drop(tx.execute("select pg_sleep(60)").await);
        StatusCode::CREATED
    });
    let lost = tokio::spawn(async move { reply(&dying, post("/things").key("k")).await });
    while !database.is_running("select pg_sleep(60)").await {}
    let began = Instant::now();
    network.sever_all();
    let other = app_with(layer(engine(&database.pool().await)), create);
    let retry = timeout(PATIENCE, reply(&other, post("/things").key("k"))).await.unwrap();
    assert_eq!((retry.status, retry.replayed()), (StatusCode::CREATED, false));
    let took = began.elapsed();
    println!("the key was free after {took:?}");
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert_eq!(database.effects().await, 1);
    lost.await.unwrap().assert_refused(RejectionKind::StoreUnavailable);
}

/// A handler that reads from the application's pool while it holds its `Tx`, ten at a time on five connections.
#[tokio::test]
async fn f92_handlers_that_query_the_pool_besides_their_tx_are_not_starved() {
    async fn reading(State(pool): State<PgPool>, mut tx: Tx) -> StatusCode {
        effect(&mut tx).await;
        let one: i32 = sqlx::query_scalar("select 1").fetch_one(&pool).await.unwrap();
        StatusCode::from_u16(200 + u16::try_from(one).unwrap()).unwrap()
    }

    for make in [Idempotency::new, Idempotency::sharing] {
        let database = Database::fresh().await;
        let pool = database.pool_of(5).await;
        let app = Router::new()
            .route("/things", route(reading).layer(layer(make(&pool))))
            .route(
                "/others",
                axum::routing::get(async |State(pool): State<PgPool>| {
                    pool.execute("select 1").await.unwrap();
                }),
            )
            .with_state(pool);
        let asked = (0..10).map(|n| {
            let app = app.clone();
            async move { reply(&app, post("/things").key(&n.to_string())).await.status }
        });
        let asked = tokio::spawn(all(asked.collect::<Vec<_>>()));
        let other = timeout(PATIENCE, reply(&app, crate::support::get("/others"))).await.unwrap();
        assert_eq!(other.status, StatusCode::OK);
        let statuses = timeout(PATIENCE, asked).await.unwrap().unwrap();
        assert!(statuses.iter().all(|status| *status == StatusCode::CREATED), "{statuses:?}");
        assert_eq!(database.effects().await, 10);
    }
}

/// PostgreSQL sees no deadlock: the handler's own connection is idle.
#[tokio::test]
async fn f93_a_handler_that_waits_for_itself_is_rolled_back_and_told_so() {
    let database = Database::fresh().await;
    database.connection().await.execute("create unique index once on effect (note)").await.unwrap();
    let pool = database.pool().await;
    let limited = layer(engine(&pool)).handler_timeout(Duration::from_millis(500));
    let runs = Runs::default();
    let app = app_with(limited, move |mut tx: Tx| {
        let (pool, first) = (pool.clone(), runs.one() == 1);
        async move {
            effect(&mut tx).await;
            if first {
                effect(&mut pool.acquire().await.unwrap()).await;
            }
            StatusCode::CREATED
        }
    });
    let refused = timeout(PATIENCE, reply(&app, post("/things").key("k"))).await.unwrap();
    refused.assert_refused(RejectionKind::HandlerTimeout);
    assert!(refused.text().contains("waits for itself"), "{}", refused.text());
    // What the pool's connection wrote is its own business; the request's part is undone, and its key is free.
    assert_eq!(database.rows().await, []);
}

/// Without a key it would hang as well; one that holds no connection may take its time.
#[tokio::test]
async fn f93_without_a_key_a_handler_that_waits_for_itself_is_rolled_back_too() {
    let database = Database::fresh().await;
    database.connection().await.execute("create unique index once on effect (note)").await.unwrap();
    let pool = database.pool().await;
    let limited = layer(engine(&pool)).optional().handler_timeout(Duration::from_millis(300));
    let app = app_with(limited.clone(), move |mut tx: Tx| {
        let pool = pool.clone();
        async move {
            effect(&mut tx).await;
            effect(&mut pool.acquire().await.unwrap()).await;
        }
    });
    let refused = timeout(PATIENCE, reply(&app, post("/things"))).await.unwrap();
    refused.assert_refused(RejectionKind::HandlerTimeout);
    assert!(refused.text().contains("waits for itself"), "{}", refused.text());

    let gate = Gate::closed();
    let inside = gate.clone();
    let slow = app_with(limited, move || async move { inside.pass().await });
    let slow = tokio::spawn(async move { reply(&slow, post("/things")).await.status });
    gate.entered().await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(600) {
        database.effects().await;
    }
    gate.open();
    assert_eq!(slow.await.unwrap(), StatusCode::OK);
}

#[tokio::test]
async fn f93_a_statement_that_is_still_running_is_named_as_well() {
    let database = Database::fresh().await;
    let limited = layer(engine(&database.pool().await)).handler_timeout(Duration::from_millis(300));
    let app = app_with(limited, |mut tx: Tx| async move {
        tx.execute("select pg_sleep(60)").await.unwrap();
    });
    let refused = timeout(PATIENCE, reply(&app, post("/things").key("k"))).await.unwrap();
    refused.assert_refused(RejectionKind::HandlerTimeout);
    assert!(refused.text().contains("with a statement still running"), "{}", refused.text());
}

/// It would keep the only connection for as long as it may wait.
#[tokio::test]
async fn f98_a_duplicate_whose_client_has_left_gives_its_connection_back() {
    let database = Database::fresh().await;
    let gate = Gate::closed();
    let inside = gate.clone();
    let elsewhere = app_with(layer(engine(&database.pool_of(1).await)), move |_tx: Tx| async move {
        inside.pass().await;
    });
    let first = tokio::spawn(async move { reply(&elsewhere, post("/things").key("k")).await });
    gate.entered().await;
    let patient = Concurrency::Wait { timeout: Duration::from_secs(600) };
    let here = Idempotency::new(&database.pool_of(1).await).concurrency(patient);
    let app = app_with(layer(here), create);
    let waiting = app.clone();
    let waiter = tokio::spawn(async move { reply(&waiting, post("/things").key("k")).await });
    database.until_waiting(1).await;
    waiter.abort();
    assert!(waiter.await.unwrap_err().is_cancelled());
    let other = timeout(PATIENCE, reply(&app, post("/things").key("another"))).await.expect("its connection");
    assert_eq!(other.status, StatusCode::CREATED);
    gate.open();
    first.await.unwrap();
}

/// Two duplicates of a request that runs elsewhere: the one that asks the database goes, the other takes over.
#[tokio::test]
async fn f98_the_next_duplicate_waits_on_when_the_one_that_waited_for_it_has_left() {
    let database = Database::fresh().await;
    let gate = Gate::closed();
    let inside = gate.clone();
    let elsewhere = app_with(layer(engine(&database.pool_of(1).await)), move |mut tx: Tx| async move {
        inside.pass().await;
        effect(&mut tx).await.to_string()
    });
    let first = tokio::spawn(async move { reply(&elsewhere, post("/things").key("k")).await });
    gate.entered().await;
    let patient = Concurrency::Wait { timeout: Duration::from_secs(600) };
    let app = app_with(layer(engine(&database.pool_of(2).await).concurrency(patient)), create);
    let ask = || {
        let app = app.clone();
        tokio::spawn(async move { reply(&app, post("/things").key("k")).await })
    };
    let leaving = ask();
    database.until_waiting(1).await;
    let staying = ask();
    crate::support::settle().await;
    leaving.abort();
    drop(leaving.await);
    gate.open();
    let (first, second) = (first.await.unwrap(), timeout(PATIENCE, staying).await.unwrap().unwrap());
    assert!(second.replayed() && second.body == first.body);
    assert_eq!(database.effects().await, 1);
}

/// Each handler writes one row, and reads none. Without the layer none of them fails; with a layer that reads the index
/// of its keys to answer, a few in a thousand do.
#[tokio::test(flavor = "multi_thread")]
async fn f71_unrelated_keys_do_not_fail_each_other_where_transactions_are_serializable() {
    const DAY: Duration = Duration::from_secs(86_400);

    let plain: fn(Idempotency) -> Idempotency = |idempotency| idempotency;
    let timed: fn(Idempotency) -> Idempotency =
        |idempotency| idempotency.timestamped_keys(TimestampedKeys::ulid(DAY).unwrap());
    let partitioned: fn(Idempotency) -> Idempotency =
        |idempotency| idempotency.timestamped_keys(TimestampedKeys::ulid(DAY).unwrap().partitioned().unwrap());
    for (make, kind) in [
        (Idempotency::new as fn(&PgPool) -> Idempotency, plain),
        (Idempotency::sharing, plain),
        (Idempotency::new, timed),
        (Idempotency::new, partitioned),
    ] {
        let database = Database::fresh().await;
        let serializable = database.options().options([("default_transaction_isolation", "serializable")]);
        let pool = Database::pool_with(serializable, 10).await;
        axum_idempotency::migrate_partitioned(&pool).await.unwrap();
        let app = app_with(layer(kind(make(&pool))), create);
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis().try_into().unwrap();
        let key = move |n: u128| ulid::Ulid::from_parts(now, n).to_string();
        let ask = |n: u128| {
            let app = app.clone();
            async move { reply(&app, post("/things").key(&key(n))).await }
        };
        // The first one notes the operation, and makes partitions.
        assert_eq!(ask(1_000).await.status, StatusCode::CREATED);
        let mut failed = 0;
        for round in 0..100 {
            let replies = all((0..20).map(|n| ask(10_000 + 20 * round + n)).collect::<Vec<_>>()).await;
            failed += replies.iter().filter(|reply| reply.status != StatusCode::CREATED).count();
        }
        assert_eq!((failed, database.effects().await), (0, 2_001), "of 2,000");
        assert!(ask(10_077).await.replayed());
    }
}

/// Each leaves the only connection in a state in which it cannot serve. The requests after it are served, on another one:
/// the claim finds out, before anything is executed.
#[tokio::test]
async fn f80_a_connection_that_cannot_serve_is_closed_and_not_lent_again() {
    for (state, leave) in [
        ("a session that only reads", "set session characteristics as transaction read only"),
        ("prepared statements that are gone", "deallocate all"),
        ("no rights", "select set_config('role', 'pg_monitor', false)"),
        ("a protocol out of step", "copy effect (note) from stdin"),
        ("a prepared statement with another result", "alter table idempotency.keys alter column status type integer"),
        ("a server process that is gone", "select pg_terminate_backend(pg_backend_pid())"),
    ] {
        for make in [Idempotency::new, Idempotency::sharing] {
            let database = Database::fresh().await;
            let idempotency = make(&database.pool_of(1).await);
            let app = app_with(layer(idempotency.clone()), create);
            for key in ["y", "z"] {
                assert_eq!(reply(&app, post("/things").key(key)).await.status, StatusCode::CREATED);
            }
            let leaving = app_with(layer(idempotency), move |mut tx: Tx| async move {
                match leave {
                    "copy effect (note) from stdin" => std::mem::forget(tx.copy_in_raw(leave).await.unwrap()),
                    _ => drop(tx.execute(leave).await),
                }
                StatusCode::CREATED
            });
            timeout(PATIENCE, reply(&leaving, post("/things").key("x"))).await.unwrap();
            let mut failed = Vec::new();
            for key in ["a", "b", "c"] {
                let replied = timeout(PATIENCE, reply(&app, post("/things").key(key))).await.unwrap();
                if replied.status != StatusCode::CREATED {
                    assert!(replied.status.is_server_error(), "{replied:?}");
                    failed.push(key);
                }
            }
            assert!(failed.is_empty(), "{state}: {failed:?} failed");
        }
    }
}

/// The sign of life is the BEGIN: a connection that is dead then is replaced, and nobody notices.
#[tokio::test]
async fn f80_connections_that_died_while_they_were_idle_cost_no_request_an_error() {
    for make in [Idempotency::new, Idempotency::sharing] {
        let database = Database::fresh().await;
        let app = app_with(layer(make(&database.pool_of(4).await)), create);
        for round in 0..3 {
            let asked = (0..4).map(|n| {
                let app = app.clone();
                async move { reply(&app, post("/things").key(&format!("{round}-{n}"))).await.status }
            });
            assert!(all(asked.collect::<Vec<_>>()).await.iter().all(|status| *status == StatusCode::CREATED));
            let killed = "select pg_terminate_backend(pid, 5000) from pg_stat_activity
                           where datname = current_database() and pid <> pg_backend_pid()";
            database.connection().await.execute(killed).await.unwrap();
        }
    }
}

/// A handler cuts a statement off, which fails later: sqlx gives its error to the statement after it, which is the engine's.
/// It is the handler's all the same, and a decision is stored although of it.
#[tokio::test]
async fn the_late_error_of_a_statement_that_a_handler_cut_off_is_not_taken_for_the_engines() {
    const LATE: [&str; 6] = [
        "select 1 / (pg_sleep(0.2) is null)::int",
        "do $$ begin perform pg_sleep(0.2); raise exception using errcode = '55P03'; end $$",
        "do $$ begin perform pg_sleep(0.2); raise exception using errcode = '25006'; end $$",
        "do $$ begin perform pg_sleep(0.2); raise exception using errcode = '34000'; end $$",
        "do $$ begin perform pg_sleep(0.2); raise exception using errcode = '42P01'; end $$",
        "do $$ begin perform pg_sleep(0.2); raise exception using errcode = '40001'; end $$",
    ];

    let database = Database::fresh().await;
    let idempotency = engine(&database.pool_of(2).await);
    for (n, late) in LATE.into_iter().enumerate() {
        for status in [201, 402, 500] {
            let app = app_with(layer(idempotency.clone()).optional(), move |mut tx: Tx| async move {
                effect(&mut tx).await;
                drop(timeout(Duration::from_millis(40), tx.execute(late)).await);
                StatusCode::from_u16(status).unwrap()
            });
            for key in [true, false] {
                let ask = if key { post("/things").key(&format!("{n}-{status}")) } else { post("/things") };
                let told = timeout(PATIENCE, reply(&app, ask)).await.unwrap();
                if status == 201 {
                    told.assert_refused(RejectionKind::TransactionAborted);
                } else {
                    assert_eq!(told.status, status, "{late}: {told:?}");
                }
                assert_eq!(database.effects().await, 0, "{late} {status}");
            }
            if status == 402 {
                assert!(reply(&app, post("/things").key(&format!("{n}-{status}"))).await.replayed(), "{late}");
            }
        }
    }
}

/// It asks for its `Tx` when the time limit has passed once.
#[tokio::test]
async fn f93_without_a_key_a_handler_that_takes_its_tx_late_is_limited_as_well() {
    use axum::extract::{FromRequestParts as _, Request};

    let database = Database::fresh().await;
    let limit = Duration::from_millis(200);
    let app = app_with(
        layer(engine(&database.pool().await)).optional().handler_timeout(limit),
        move |request: Request| async move {
            let mut slow = Box::pin(tokio::time::sleep(limit + limit / 2));
            slow.as_mut().await;
            let mut tx = Tx::from_request_parts(&mut request.into_parts().0, &()).await.unwrap();
            drop(tx.execute("select pg_sleep(60)").await);
        },
    );
    timeout(PATIENCE, reply(&app, post("/things")))
        .await
        .expect("an end")
        .assert_refused(RejectionKind::HandlerTimeout);
}

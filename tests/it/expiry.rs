//! R59 to R61: the window is the database's, expired is absent, and pruning changes no answer.

use std::time::Duration;

use axum::response::IntoResponse as _;
use axum_idempotency::{
    Claim, Duplicate, Fingerprint, Idempotency, IdempotencyKey, IdempotentRequest, Operation, Pruned, Pruner,
    Retention, Scope, Tx,
};
use sqlx::Connection as _;

use crate::support::{Database, Gate, Runs, all, app, app_with, create, effect, engine, layer, post, reply};

#[tokio::test]
async fn r61_f14_an_expired_key_executes_as_new_even_with_another_payload() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, create);
    let first = reply(&app, post("/things").key("k").body("a")).await;
    database.expire().await;
    let second = reply(&app, post("/things").key("k").body("b")).await;
    assert!(!second.replayed());
    assert_ne!(first.body, second.body);
    let retry = reply(&app, post("/things").key("k").body("b")).await;
    assert!(retry.replayed());
    assert_eq!(retry.body, second.body);
    assert_eq!(database.rows().await.len(), 1);
}

#[tokio::test]
async fn r59_of_many_late_requests_one_takes_the_expired_row_over() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, create);
    reply(&app, post("/things").key("k")).await;
    database.expire().await;
    let late = all((0..20).map(|_| {
        let app = app.clone();
        async move { reply(&app, post("/things").key("k")).await }
    }))
    .await;
    assert_eq!(late.iter().filter(|reply| !reply.replayed()).count(), 1);
    assert!(late.iter().all(|reply| reply.body == late[0].body));
    assert_eq!(database.effects().await, 2);
}

#[tokio::test]
async fn a_failed_take_over_leaves_the_expired_row_as_it_was() {
    let database = Database::fresh().await;
    let pool = database.pool().await;
    reply(&app(&pool, create), post("/things").key("k")).await;
    database.expire().await;
    let failing = app(&pool, crate::support::answering(500));
    assert_eq!(reply(&failing, post("/things").key("k")).await.status, 500);
    assert_eq!(database.rows().await[0].status, Some(201));
    assert!(!reply(&app(&pool, create), post("/things").key("k")).await.replayed());
}

#[tokio::test]
async fn the_window_begins_with_the_claim_and_ends_as_configured() {
    for (retention, expected) in [
        (Retention::DAY, Some(86_400.0)),
        (Retention::new(Duration::from_secs(90)).unwrap(), Some(90.0)),
        (Retention::new(Duration::from_millis(5_500)).unwrap(), Some(5.5)),
        (Retention::forever(), None),
    ] {
        let database = Database::fresh().await;
        let layer = layer(engine(&database.pool().await).retention(retention)).handler_timeout(None);
        let app = app_with(layer, create);
        reply(&app, post("/things").key("k")).await;
        let window: Option<f64> =
            sqlx::query_scalar("select extract(epoch from expires_at - created_at)::float8 from idempotency.keys")
                .fetch_one(&mut database.connection().await)
                .await
                .unwrap();
        assert_eq!(window, expected);
    }
}

#[tokio::test]
async fn r60_pruning_deletes_expired_rows_only_and_no_more_than_asked_for() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    let app = app_with(layer(idempotency.clone()), create);
    for n in 0..5 {
        reply(&app, post("/things").key(&format!("old-{n}"))).await;
    }
    database.expire().await;
    reply(&app, post("/things").key("live")).await;
    assert_eq!(idempotency.prune(2).await.unwrap().deleted, 2);
    assert_eq!(idempotency.prune(100).await.unwrap().deleted, 3);
    assert_eq!(idempotency.prune(100).await.unwrap(), Pruned::default());
    assert!(reply(&app, post("/things").key("live")).await.replayed());
}

#[tokio::test]
async fn a_pruner_empties_the_table_in_batches_and_stops_when_told() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    let app = app_with(layer(idempotency.clone()), create);
    for n in 0..7 {
        reply(&app, post("/things").key(&format!("{n}"))).await;
    }
    database.expire().await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let pruner = Pruner::new(idempotency).batch(2).interval(Duration::from_millis(1));
    let running = tokio::spawn(pruner.run_until(async { stopped.await.unwrap() }));
    while !database.rows().await.is_empty() {
        tokio::task::yield_now().await;
    }
    stop.send(()).unwrap();
    assert_eq!(running.await.unwrap().deleted, 7);
}

#[tokio::test]
async fn a_pruner_survives_the_databases_errors() {
    let database = Database::unmigrated().await;
    let pool = database.pool().await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let pruner = Pruner::new(engine(&pool)).interval(Duration::from_millis(1));
    let mut running = tokio::spawn(pruner.run_until(async { stopped.await.unwrap() }));
    // It has failed once by the time that the server has logged it.
    let mut connection = database.connection().await;
    let logged = "select xact_rollback > 0 from pg_stat_database where datname = current_database()";
    while !sqlx::query_scalar::<_, bool>(logged).fetch_one(&mut connection).await.unwrap() {
        assert!(!running.is_finished(), "{:?}", (&mut running).await);
    }
    axum_idempotency::migrate(&pool).await.unwrap();
    sqlx::query(
        "insert into idempotency.keys (scope, operation, key, fingerprint, status, expires_at)
         values ('', '', '', '', 200, now())",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    while !database.rows().await.is_empty() {
        tokio::task::yield_now().await;
    }
    stop.send(()).unwrap();
    assert_eq!(running.await.unwrap().deleted, 1);
}

/// Everything expires at once and is pruned in a loop, while requests come: each that executed has a durable row, and
/// each that was told of an answer is told the true one.
#[tokio::test(flavor = "multi_thread")]
async fn f11_f12_pruning_against_claims_never_gives_a_wrong_answer() {
    let database = Database::fresh().await;
    database.expire_at_once().await;
    let idempotency = engine(&database.pool_of(16).await);
    let runs = Runs::default();
    let counted = runs.clone();
    let app = app_with(layer(idempotency.clone()), move |mut tx: Tx| async move {
        counted.one();
        (axum::http::StatusCode::CREATED, effect(&mut tx).await.to_string())
    });
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let pruner = Pruner::new(idempotency).batch(1).interval(Duration::from_millis(1));
    let pruning = tokio::spawn(pruner.run_until(async { stopped.await.unwrap() }));
    let replies = all((0..300).map(|n| {
        let app = app.clone();
        async move { reply(&app, post("/things").key(&format!("{}", n % 3))).await }
    }))
    .await;
    stop.send(()).unwrap();
    pruning.await.unwrap();
    assert!(replies.iter().all(|reply| reply.status == 201), "{replies:?}");
    let executed = replies.iter().filter(|reply| !reply.replayed()).count();
    assert_eq!(executed, runs.count());
    assert_eq!(database.effects().await, i64::try_from(executed).unwrap());
}

/// The pruner has deleted the row and not committed: a claim that still sees it waits for the pruner, and then the key is
/// its own and nothing else.
#[tokio::test]
async fn r59_a_claim_that_waited_for_the_pruner_is_a_first_one() {
    for rejecting in [false, true] {
        let database = Database::fresh().await;
        let pool = database.pool().await;
        let idempotent = layer(engine(&pool)).retention(Retention::forever());
        reply(&app(&pool, create), post("/things").key("k")).await;
        database.expire().await;
        let mut connection = database.connection().await;
        let mut pruning = connection.begin().await.unwrap();
        sqlx::query("delete from idempotency.keys").execute(&mut *pruning).await.unwrap();
        let handler = crate::support::answering(if rejecting { 402 } else { 201 });
        let late = app_with(idempotent.expiry_header(axum::http::HeaderName::from_static("x-expires")), handler);
        let asking = late.clone();
        let waiting = tokio::spawn(async move { reply(&asking, post("/things").key("k")).await });
        database.until_waiting(1).await;
        pruning.commit().await.unwrap();
        let answered = waiting.await.unwrap();
        assert_eq!((answered.status.as_u16(), answered.replayed()), (if rejecting { 402 } else { 201 }, false));
        assert!(!answered.headers.contains_key("x-expires"), "kept for ever, whatever the old row said");
        let retry = reply(&late, post("/things").key("k")).await;
        assert!(retry.replayed() && retry.body == answered.body, "{retry:?}");
    }
}

/// F13: an attempt that outlives its window still owns the row that it has claimed.
#[tokio::test]
async fn f13_f48_a_slow_attempt_is_not_overtaken_when_its_window_ends() {
    let database = Database::fresh().await;
    database.expire_at_once().await;
    let gate = Gate::closed();
    let process = async || {
        let inside = gate.clone();
        let idempotency = engine(&database.pool().await);
        let app = app_with(layer(idempotency.clone()), move |mut tx: Tx| async move {
            inside.pass().await;
            effect(&mut tx).await.to_string()
        });
        (idempotency, app)
    };
    let (idempotency, app) = process().await;
    let slow = tokio::spawn(async move { reply(&app, post("/things").key("k")).await });
    gate.entered().await;
    // Its window has passed; a second request, elsewhere, waits for it nevertheless.
    let (_, elsewhere) = process().await;
    let second = tokio::spawn(async move { reply(&elsewhere, post("/things").key("k")).await });
    database.until_waiting(1).await;
    assert_eq!(idempotency.prune(10).await.unwrap().rows(), 0);
    gate.open();
    let slow = slow.await.unwrap();
    // By now the first answer has expired, so the second executes, after the first.
    gate.entered().await;
    gate.open();
    let second = second.await.unwrap();
    assert_ne!(slow.body, second.body);
    assert_eq!(database.effects().await, 2);
}

/// The answer for a while, the key for longer.
fn refusing(database: &Database) -> Idempotency {
    let hour = Duration::from_secs(3_600);
    let retention = Retention::new(hour).unwrap().refuse_for(2 * hour).unwrap();
    engine(&database.pool_lazily()).retention(retention)
}

/// Lets the answers' window end, an hour and a second ago.
async fn fade(database: &Database) {
    sqlx::query(
        "update idempotency.keys set created_at = created_at - interval '3601 seconds',
                replay_until = replay_until - interval '3601 seconds', expires_at = expires_at - interval '3601 seconds'",
    )
    .execute(&mut database.connection().await)
    .await
    .unwrap();
}

#[tokio::test]
async fn a_duplicate_after_the_replay_window_is_refused_and_not_executed_pruned_or_not() {
    use axum_idempotency::RejectionKind;

    let database = Database::fresh().await;
    let idempotency = refusing(&database);
    let app = app_with(layer(idempotency.clone()), create);
    reply(&app, post("/things").key("k").body("a")).await;
    assert!(reply(&app, post("/things").key("k").body("a")).await.replayed());
    fade(&database).await;
    for dropped in [1, 0] {
        let late = reply(&app, post("/things").key("k").body("a")).await;
        late.assert_refused(RejectionKind::ResponseNotRetained);
        assert!(late.text().contains("GMT"));
        reply(&app, post("/things").key("k").body("b")).await.assert_refused(RejectionKind::KeyReused);
        assert_eq!(idempotency.prune(10).await.unwrap().responses_dropped, dropped);
    }
    let kept: i64 = sqlx::query_scalar("select count(body) + count(header_names) from idempotency.keys")
        .fetch_one(&mut database.connection().await)
        .await
        .unwrap();
    assert_eq!(kept, 0, "the answer is gone, the key is not");
    reply(&app, post("/things").key("k").body("a")).await.assert_refused(RejectionKind::ResponseNotRetained);
    assert_eq!(database.effects().await, 1);
    database.expire().await;
    assert_eq!(reply(&app, post("/things").key("k").body("b")).await.status, 201, "in the end it is forgotten");
    assert!(reply(&app, post("/things").key("k").body("b")).await.replayed(), "and has a window of its own again");
}

#[tokio::test]
async fn the_expiry_header_names_the_end_of_the_replays_and_the_key_lives_on() {
    let database = Database::fresh().await;
    let name = axum::http::HeaderName::from_static("x-expires");
    let app = app_with(layer(refusing(&database)).expiry_header(name.clone()), create);
    let first = reply(&app, post("/things").key("k")).await;
    let (replays, key): (String, f64) = sqlx::query_as(
        "select to_char(date_trunc('second', replay_until at time zone 'UTC'), 'Dy, DD Mon YYYY HH24:MI:SS \"GMT\"'),
                extract(epoch from expires_at - created_at)::float8
           from idempotency.keys",
    )
    .fetch_one(&mut database.connection().await)
    .await
    .unwrap();
    assert_eq!((first.headers[&name].to_str().unwrap(), key), (replays.as_str(), 7_200.0));
}

#[tokio::test]
async fn a_key_can_be_looked_up_by_an_operator() {
    use axum_idempotency::{IdempotencyKey, Operation, Scope};

    let database = Database::fresh().await;
    let idempotency = refusing(&database);
    let gate = Gate::closed();
    let inside = gate.clone();
    let app = app_with(layer(idempotency.clone()), move |_tx: Tx| async move {
        inside.pass().await;
        (axum::http::StatusCode::CREATED, "hello")
    });
    let (operation, key) = (Operation::new("POST /things"), IdempotencyKey::new("k").unwrap());
    let look = async |owner: &str| idempotency.lookup(&Scope::new(owner), &operation, &key).await.unwrap();
    assert_eq!(look("alice").await, None);
    let running = tokio::spawn(async move { reply(&app, post("/things").key("k")).await });
    gate.entered().await;
    assert_eq!(look("alice").await, None, "nobody can see it before the commit");
    gate.open();
    running.await.unwrap();
    let found = look("alice").await.unwrap();
    assert_eq!((found.status.as_u16(), found.body_bytes), (201, Some(5)));
    assert_eq!(look("bob").await, None);
    let (ends, expires) = (found.window.replay_ends.unwrap(), found.window.expires.unwrap());
    assert_eq!(ends.duration_since(found.window.first_used).unwrap(), Duration::from_secs(3_600));
    assert_eq!(expires.duration_since(found.window.first_used).unwrap(), Duration::from_secs(7_200));
    fade(&database).await;
    assert_eq!(look("alice").await.unwrap().body_bytes, None, "a tombstone");
    database.expire().await;
    assert_eq!(look("alice").await, None);
}

#[tokio::test]
async fn an_owners_keys_are_forgotten_in_batches_and_nobody_elses() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    let app = app_with(layer(idempotency.clone()), create);
    for owner in ["alice", "bob"] {
        reply(&app, post("/things").key("k").owner(owner)).await;
    }
    sqlx::query(
        "insert into idempotency.keys (scope, operation, key, fingerprint, status, header_names, header_values, body)
         select 'alice', 'many', n::text, '', 200, '{}', '{}', '' from generate_series(1, 2500) n",
    )
    .execute(&mut database.connection().await)
    .await
    .unwrap();
    assert_eq!(idempotency.erase_scope(&axum_idempotency::Scope::new("alice")).await.unwrap().keys, 2_501);
    assert_eq!(idempotency.erase_scope(&axum_idempotency::Scope::new("alice")).await.unwrap().keys, 0);
    assert!(reply(&app, post("/things").key("k").owner("bob")).await.replayed());
    assert!(!reply(&app, post("/things").key("k").owner("alice")).await.replayed());
}

/// Somebody may be dropping the answer of a row right then.
#[tokio::test]
async fn an_owners_keys_are_forgotten_also_where_others_are_at_work() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    reply(&app_with(layer(idempotency.clone()), create), post("/things").key("k")).await;
    let mut connection = database.connection().await;
    let mut fading = connection.begin().await.unwrap();
    sqlx::query("update idempotency.keys set body = null, header_names = null, header_values = null")
        .execute(&mut *fading)
        .await
        .unwrap();
    let forgetting = tokio::spawn(async move { idempotency.erase_scope(&axum_idempotency::Scope::new("alice")).await });
    database.until_waiting(1).await;
    fading.commit().await.unwrap();
    let forgotten = forgetting.await.unwrap().unwrap();
    assert_eq!((forgotten.keys, forgotten.remaining), (1, 0));
    assert!(database.rows().await.is_empty());
}

/// A running request is taking over a key that has expired: that one stays, and is reported; the others go.
#[tokio::test]
async fn f74_a_key_that_is_being_used_again_holds_up_no_other_and_is_reported() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    let gate = crate::support::Gate::closed();
    let inside = gate.clone();
    let app = app_with(layer(idempotency.clone()), create);
    for key in ["a", "b", "c", "d", "e"] {
        reply(&app, post("/things").key(key)).await;
    }
    database.expire().await;
    let slow = app_with(layer(idempotency.clone()), move |mut tx: Tx| async move {
        effect(&mut tx).await;
        inside.pass().await;
    });
    let again = tokio::spawn(async move { reply(&slow, post("/things").key("c")).await.status });
    gate.entered().await;
    let forgotten = idempotency.erase_scope(&axum_idempotency::Scope::new("alice")).await.unwrap();
    assert_eq!((forgotten.keys, forgotten.remaining), (4, 1));
    gate.open();
    assert_eq!(again.await.unwrap(), 200);
    let forgotten = idempotency.erase_scope(&axum_idempotency::Scope::new("alice")).await.unwrap();
    assert_eq!((forgotten.keys, forgotten.remaining), (1, 0));
}

/// Rows that an operator has written by hand.
#[tokio::test]
async fn f84_rows_that_expired_before_all_time_are_pruned_like_others() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    let app = app_with(layer(idempotency.clone()), create);
    for expired in ["-infinity", "-infinity", "1900-01-01", "4713-01-01 bc", "1970-01-01"] {
        let key = format!("{expired}-{}", database.rows().await.len()).replace(' ', "-");
        reply(&app, post("/things").key(&key)).await;
        sqlx::query("update idempotency.keys set expires_at = $1::text::timestamptz where key = $2")
            .bind(expired)
            .bind(&key)
            .execute(&mut database.connection().await)
            .await
            .unwrap();
    }
    for _ in 0..3 {
        assert_eq!(idempotency.prune(1).await.unwrap().deleted, 1);
    }
    assert_eq!(idempotency.stats().await.unwrap().overdue, 2);
    assert_eq!(idempotency.prune(10).await.unwrap().deleted, 2);
    assert_eq!(database.rows().await, []);
}

/// The handler returns its retention as a part of the response.
fn keeping(retention: Retention) -> impl FnOnce(Tx) -> Keeping + Clone + Send + Sync + 'static {
    move |mut tx: Tx| Box::pin(async move { (retention, effect(&mut tx).await.to_string()).into_response() })
}

type Keeping = std::pin::Pin<Box<dyn Future<Output = axum::response::Response> + Send>>;

#[tokio::test]
async fn a_response_can_lengthen_or_shorten_its_own_window() {
    let seconds = Duration::from_secs;
    let own = |retention| Retention::new(retention).unwrap();
    for (retention, window, replay) in [
        (own(seconds(7_200)), Some(7_200.0), None),
        (own(seconds(60)), Some(60.0), None),
        (Retention::forever(), None, None),
        (own(seconds(60)).refuse_for(seconds(90)).unwrap(), Some(90.0), Some(60.0)),
        (own(seconds(60)).refuse_forever(), None, Some(60.0)),
        // Not shorter than a duplicate may wait, and a handler may take.
        (own(seconds(1)), Some(15.001), None),
    ] {
        let database = Database::fresh().await;
        let name = axum::http::HeaderName::from_static("x-expires");
        let idempotent = layer(engine(&database.pool_lazily())).expiry_header(name.clone());
        let app = app_with(idempotent.handler_timeout(seconds(10)), keeping(retention));
        let first = reply(&app, post("/things").key("k")).await;
        let retry = reply(&app, post("/things").key("k")).await;
        assert!(first.status == 200 && retry.replayed(), "{first:?}");
        assert_eq!(first.headers.get(&name), retry.headers.get(&name));
        let kept: (Option<f64>, Option<f64>) = sqlx::query_as(
            "select extract(epoch from expires_at - created_at)::float8,
                    extract(epoch from replay_until - created_at)::float8
               from idempotency.keys",
        )
        .fetch_one(&mut database.connection().await)
        .await
        .unwrap();
        assert_eq!(kept, (window, replay), "{retention:?}");
        assert_eq!(first.headers.contains_key(&name), window.or(replay).is_some());
    }
}

#[tokio::test]
async fn a_rejection_can_have_its_own_window_too() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, || async {
        (axum::http::StatusCode::PAYMENT_REQUIRED, Retention::new(Duration::from_secs(600)).unwrap(), "declined")
    });
    assert_eq!(reply(&app, post("/things").key("k")).await.status, 402);
    let window: f64 =
        sqlx::query_scalar("select extract(epoch from expires_at - created_at)::float8 from idempotency.keys")
            .fetch_one(&mut database.connection().await)
            .await
            .unwrap();
    assert!((window - 600.0).abs() < 0.001);
}

/// A plan that was made for any limit would read the whole table for each batch.
#[tokio::test]
async fn a_batch_reads_no_more_than_its_rows_however_large_the_table() {
    let database = Database::fresh().await;
    let mut connection = database.connection().await;
    sqlx::query(
        "insert into idempotency.keys (scope, operation, key, fingerprint, status, header_names, header_values, body,
                                       replay_until, expires_at)
         select 's', 'o', n::text, '', 200, '{}', '{}', '', now(), now() + (n % 2 - 0.5) * interval '1 day'
           from generate_series(1, 20000) n",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    sqlx::query("analyze idempotency.keys").execute(&mut connection).await.unwrap();
    let seq_scans = "select seq_scan from pg_stat_user_tables where relname = 'keys'";
    let pool = database.pool_of(1).await;
    let idempotency = engine(&pool);
    let before: i64 = sqlx::query_scalar(seq_scans).fetch_one(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    // More than the five times after which PostgreSQL may settle for one plan.
    for _ in 0..10 {
        let pruned = idempotency.prune(10).await.unwrap();
        assert_eq!((pruned.deleted, pruned.responses_dropped), (10, 10));
    }
    // A connection reports what it did when it ends, at the latest.
    pool.close().await;
    database.until_alone().await;
    let after: i64 = sqlx::query_scalar(seq_scans).fetch_one(&mut database.connection().await).await.unwrap();
    assert_eq!(after, before);
}

/// Every duration that can be set, at its longest and its shortest.
#[tokio::test]
async fn f82_no_duration_is_too_long_or_too_short_for_a_setting() {
    use axum_idempotency::{Concurrency, TimestampedKeys};

    let database = Database::fresh().await;
    for extreme in [Duration::MAX, Duration::from_secs(u64::MAX), Duration::ZERO, Duration::from_nanos(1)] {
        let pool = database.pool_of(2).await;
        let base = engine(&pool)
            .concurrency(Concurrency::Wait { timeout: extreme })
            .retention(Retention::forever())
            .response_cache(1_000_000, extreme)
            .client_check(extreme);
        let base = if extreme > Duration::from_secs(1) { base.statement_limit(extreme) } else { base };
        let (lasting, brief) = (Retention::forever(), Retention::new(Duration::from_millis(1)).unwrap());
        let timed = TimestampedKeys::ulid(Duration::from_secs(60)).unwrap().future_skew(extreme).margin(extreme);
        let limit = if extreme > Duration::from_secs(1) { extreme } else { Duration::from_secs(20) };
        for (n, (idempotency, own)) in [
            (base.clone(), lasting),
            (base.clone(), brief),
            (base.clone().retention(brief), brief),
            (base.clone().timestamped_keys(timed), brief),
        ]
        .into_iter()
        .enumerate()
        {
            let layer = layer(idempotency.clone()).handler_timeout(limit).operation(format!("{extreme:?} {n}"));
            let app = app_with(layer, keeping(own));
            let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis().try_into().unwrap();
            let key = ulid::Ulid::from_parts(now, n as u128).to_string();
            let first = reply(&app, post("/things").key(&key)).await;
            assert_eq!(first.status, 200, "{extreme:?} {n}: {first:?}");
            assert!(reply(&app, post("/things").key(&key)).await.replayed(), "{extreme:?} {n}");
            assert_eq!(idempotency.drain(extreme.min(Duration::from_secs(9))).await, 0);
        }
        let pruner = Pruner::new(base).interval(extreme);
        assert_eq!(pruner.run_until(std::future::ready(())).await, Pruned::default());
    }
}

#[tokio::test]
async fn f82_rows_with_the_first_and_the_last_times_that_there_are_break_nothing() {
    let database = Database::fresh().await;
    let pool = database.pool().await;
    let idempotency = engine(&pool).response_cache(100_000, Duration::MAX);
    let times =
        ["'-infinity'", "'4713-01-01 BC'", "'1969-12-31 23:59:59.999999Z'", "'294276-12-31'", "'infinity'", "null"];
    let mut live = 0;
    for created in &times[..5] {
        for expires in times {
            for replay in times {
                let insert = format!(
                    "insert into idempotency.keys (scope, operation, key, fingerprint, status, header_names, header_values,
                                                   body, created_at, expires_at, replay_until)
                     values ('', 'o', $1, '', 200, '{{}}', '{{}}', 'done', {created}, {expires}, {replay})"
                );
                let key = format!("{created} {expires} {replay}");
                let insert = sqlx::query(sqlx::AssertSqlSafe(insert)).bind(&key);
                insert.execute(&pool).await.unwrap();
                let key = IdempotencyKey::new(key).unwrap();
                let expired = expires.contains("-inf") || expires.contains("BC") || expires.contains("1969");
                let fades = replay.contains("-inf") || replay.contains("BC") || replay.contains("1969");
                let (scope, operation) = (Scope::global(), Operation::new("o"));
                let found = idempotency.lookup(&scope, &operation, &key).await.unwrap();
                assert_eq!(found.is_none(), expired);
                let request = IdempotentRequest::new(scope, operation, key, Fingerprint::of(["f"]).with_scheme(7));
                match idempotency.claim(request).await.unwrap() {
                    Claim::Duplicate(Duplicate::Replay(_)) => assert!(!expired && !fades),
                    Claim::Duplicate(Duplicate::NotRetained(_)) => assert!(!expired && fades),
                    Claim::Fresh(attempt) => {
                        assert!(expired);
                        attempt.release().await.unwrap();
                    }
                    other => panic!("{other:?}"),
                }
                live += i64::from(!expired);
            }
        }
    }
    idempotency.stats().await.unwrap();
    while idempotency.prune(50).await.unwrap().rows() > 0 {}
    assert_eq!(i64::try_from(database.rows().await.len()).unwrap(), live);
}

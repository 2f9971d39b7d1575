//! G1: at most one execution commits, whatever the number of duplicates and processes.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use axum::{Router, http::StatusCode};
use axum_idempotency::{Concurrency, RejectionKind, Tx};
use serde_json::json;
use sqlx::{PgPool, postgres::PgConnectOptions};

use crate::support::{Database, Gate, Reply, Runs, all, app, app_with, create, effect, engine, layer, post, reply};

/// `POST /things` with a handler that stops at the gate.
fn gated(pool: &PgPool, concurrency: Concurrency, gate: &Gate) -> Router {
    let inside = gate.clone();
    app_with(layer(engine(pool).concurrency(concurrency)), move |mut tx: Tx| async move {
        inside.pass().await;
        (StatusCode::CREATED, effect(&mut tx).await.to_string())
    })
}

fn ask(app: &Router, body: &'static str) -> tokio::task::JoinHandle<Reply> {
    let app = app.clone();
    tokio::spawn(async move { reply(&app, post("/things").key("k").body(body)).await })
}

const WAIT: Concurrency = Concurrency::Wait { timeout: Duration::from_secs(30) };

#[tokio::test(flavor = "multi_thread")]
async fn g1_r30_f10_f26_of_a_hundred_duplicates_one_executes_and_all_get_its_answer() {
    let database = Database::fresh().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let app = app(&database.pool().await, move |mut tx: Tx| async move {
        counted.one();
        (StatusCode::CREATED, effect(&mut tx).await.to_string())
    });
    let replies = all((0..100).map(|_| {
        let app = app.clone();
        async move { reply(&app, post("/things").key("k")).await }
    }))
    .await;
    assert_eq!(runs.count(), 1);
    assert_eq!(database.effects().await, 1);
    assert!(replies.iter().all(|reply| reply.status == StatusCode::CREATED && reply.body == replies[0].body));
    assert_eq!(replies.iter().filter(|reply| !reply.replayed()).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn r30_duplicates_split_over_layers_with_pools_of_their_own_execute_once() {
    let database = Database::fresh().await;
    let apps = [app(&database.pool().await, create), app(&database.pool().await, create)];
    let replies = all((0..60).map(|n| {
        let app = apps[n % 2].clone();
        async move { reply(&app, post("/things").key("k")).await }
    }))
    .await;
    assert!(replies.iter().all(|reply| reply.status == StatusCode::CREATED && reply.body == replies[0].body));
    assert_eq!(database.effects().await, 1);
}

#[tokio::test]
async fn r32_f9_a_waiting_duplicate_of_another_process_is_woken_by_the_commit_and_gets_the_answer() {
    let database = Database::fresh().await;
    let gate = Gate::closed();
    let app = gated(&database.pool().await, WAIT, &gate);
    let elsewhere = gated(&database.pool().await, WAIT, &gate);
    let first = ask(&app, "a");
    gate.entered().await;
    let duplicate = ask(&elsewhere, "a");
    database.until_waiting(1).await;
    gate.open();
    let (first, duplicate) = (first.await.unwrap(), duplicate.await.unwrap());
    assert!(!first.replayed() && duplicate.replayed());
    assert_eq!(first.body, duplicate.body);
}

#[tokio::test]
async fn f53_another_payload_of_another_process_is_refused_when_the_first_has_committed() {
    let database = Database::fresh().await;
    let gate = Gate::closed();
    let app = gated(&database.pool().await, WAIT, &gate);
    let elsewhere = gated(&database.pool().await, WAIT, &gate);
    let first = ask(&app, "a");
    gate.entered().await;
    let other = ask(&elsewhere, "b");
    database.until_waiting(1).await;
    gate.open();
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
    other.await.unwrap().assert_refused(RejectionKind::KeyReused);
}

#[tokio::test]
async fn r32_f61_when_the_owner_leaves_no_answer_exactly_one_of_the_other_processes_executes() {
    let database = Database::fresh().await;
    let (runs, gate) = (Runs::default(), Gate::closed());
    let process = async || {
        let (counted, inside) = (runs.clone(), gate.clone());
        let idempotency = engine(&database.pool().await).concurrency(WAIT);
        app_with(layer(idempotency), move |mut tx: Tx| async move {
            effect(&mut tx).await;
            if counted.one() == 1 {
                inside.pass().await;
                return StatusCode::INTERNAL_SERVER_ERROR;
            }
            StatusCode::CREATED
        })
    };
    let first = ask(&process().await, "a");
    gate.entered().await;
    let mut waiters = Vec::new();
    for _ in 0..5 {
        waiters.push(ask(&process().await, "a"));
    }
    database.until_waiting(5).await;
    gate.open();
    assert_eq!(first.await.unwrap().status, StatusCode::INTERNAL_SERVER_ERROR);
    let mut executed = 0;
    for waiter in waiters {
        let reply = waiter.await.unwrap();
        assert_eq!(reply.status, StatusCode::CREATED);
        executed += usize::from(!reply.replayed());
    }
    assert_eq!((executed, runs.count()), (1, 2));
    assert_eq!(database.effects().await, 1);
}

#[tokio::test]
async fn r32_f52_a_duplicate_that_has_waited_long_enough_gets_409_and_may_come_again() {
    let database = Database::fresh().await;
    let gate = Gate::closed();
    let short = Concurrency::Wait { timeout: Duration::from_millis(50) };
    let app = gated(&database.pool().await, short, &gate);
    let elsewhere = gated(&database.pool().await, short, &gate);
    let first = ask(&app, "a");
    gate.entered().await;
    ask(&app, "a").await.unwrap().assert_refused(RejectionKind::InFlight);
    ask(&elsewhere, "a").await.unwrap().assert_refused(RejectionKind::InFlight);
    gate.open();
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
    assert!(ask(&app, "a").await.unwrap().replayed());
}

#[tokio::test]
async fn r31_rejecting_answers_409_at_once_and_writes_no_error_into_the_servers_log() {
    let database = Database::logged().await;
    let gate = Gate::closed();
    let app = gated(&database.pool().await, Concurrency::NoWait, &gate);
    // Another pool: another process, for all that this one knows.
    let elsewhere = gated(&database.pool().await, Concurrency::NoWait, &gate);
    let first = ask(&app, "a");
    gate.entered().await;
    for _ in 0..10 {
        ask(&elsewhere, "a").await.unwrap().assert_refused(RejectionKind::InFlight);
        // The uncommitted row does not show what it was for.
        ask(&elsewhere, "b").await.unwrap().assert_refused(RejectionKind::InFlight);
    }
    gate.open();
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
    assert!(ask(&elsewhere, "a").await.unwrap().replayed());
    ask(&elsewhere, "b").await.unwrap().assert_refused(RejectionKind::KeyReused);
    assert_eq!(database.complaints(), Vec::<String>::new());
}

/// A waiter that took over holds the advisory lock as well, so that the next one is turned away without an ERROR.
#[tokio::test]
async fn r31_rejecting_also_knows_an_owner_that_had_waited() {
    let database = Database::logged().await;
    let (gate, runs) = (Gate::closed(), Runs::default());
    let process = async || {
        let (inside, counted) = (gate.clone(), runs.clone());
        let idempotency = engine(&database.pool().await).concurrency(WAIT);
        app_with(layer(idempotency), move |_tx: Tx| async move {
            inside.pass().await;
            if counted.one() == 1 { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::CREATED }
        })
    };
    let rejecting =
        app_with(layer(engine(&database.pool().await).concurrency(Concurrency::NoWait)), async || StatusCode::CREATED);
    let first = ask(&process().await, "a");
    gate.entered().await;
    let second = ask(&process().await, "a");
    database.until_waiting(1).await;
    gate.open();
    assert_eq!(first.await.unwrap().status, StatusCode::INTERNAL_SERVER_ERROR);
    gate.entered().await;
    ask(&rejecting, "a").await.unwrap().assert_refused(RejectionKind::InFlight);
    gate.open();
    assert_eq!(second.await.unwrap().status, StatusCode::CREATED);
    assert_eq!(database.complaints(), Vec::<String>::new());
}

#[tokio::test]
async fn the_bound_on_the_wait_does_not_leak_into_the_handlers_statements() {
    let database = Database::fresh().await;
    for (options, expected) in [(database.options(), "0"), (database.options().options([("lock_timeout", "7s")]), "7s")]
    {
        let pool = Database::pool_with(options, 2).await;
        let app = app(&pool, |mut tx: Tx| async move {
            sqlx::query_scalar::<_, String>("show lock_timeout").fetch_one(&mut *tx).await.unwrap()
        });
        let reply = reply(&app, post("/things").key(expected)).await;
        assert_eq!(reply.text(), expected);
    }
}

#[tokio::test]
async fn a_statement_timeout_of_the_roles_ends_a_wait_with_409_and_not_with_500() {
    let database = Database::fresh().await;
    let gate = Gate::closed();
    let app = gated(&database.pool().await, WAIT, &gate);
    let hurried = database.options().options([("statement_timeout", "100ms")]);
    let elsewhere = gated(&Database::pool_with(hurried, 2).await, WAIT, &gate);
    let first = ask(&app, "a");
    gate.entered().await;
    ask(&elsewhere, "a").await.unwrap().assert_refused(RejectionKind::InFlight);
    gate.open();
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
    assert!(ask(&elsewhere, "a").await.unwrap().replayed());
}

/// Without a lock, so without `lock_timeout`: the whole of it has an end, and nobody is said to execute the request.
#[tokio::test]
async fn r32_f69_a_claim_that_hangs_in_the_database_is_given_up_and_its_connection_closed() {
    let database = Database::fresh().await;
    let mut connection = database.connection().await;
    // No lock, so no `lock_timeout`.
    sqlx::raw_sql(
        "create function hang() returns trigger language plpgsql as $$ begin perform pg_sleep(60); return new; end $$;
         create trigger hang before insert on idempotency.keys for each row execute function hang()",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    let pool = database.pool_of(1).await;
    let brief = Concurrency::Wait { timeout: Duration::from_millis(20) };
    let app = app_with(layer(engine(&pool).concurrency(brief)), create);
    ask(&app, "a").await.unwrap().assert_refused(RejectionKind::StoreUnavailable);
    sqlx::query("drop trigger hang on idempotency.keys").execute(&mut kill_others(connection).await).await.unwrap();
    assert_eq!(ask(&app, "a").await.unwrap().status, StatusCode::CREATED, "the pool has its connection back");
}

/// Ends the other connections, which a `drop` would wait for.
async fn kill_others(mut connection: sqlx::PgConnection) -> sqlx::PgConnection {
    sqlx::query(
        "select pg_terminate_backend(pid) from pg_stat_activity
          where datname = current_database() and pid <> pg_backend_pid() and state = 'active'",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    connection
}

#[tokio::test]
async fn f15_duplicates_under_a_stricter_default_isolation_get_the_answer() {
    for isolation in ["repeatable read", "serializable"] {
        let database = Database::fresh().await;
        let strict: PgConnectOptions = database.options().options([("default_transaction_isolation", isolation)]);
        let gate = Gate::closed();
        let process = async || gated(&Database::pool_with(strict.clone(), 2).await, WAIT, &gate);
        let first = ask(&process().await, "a");
        gate.entered().await;
        let mut duplicates = Vec::new();
        for _ in 0..4 {
            duplicates.push(ask(&process().await, "a"));
        }
        database.until_waiting(4).await;
        gate.open();
        let first = first.await.unwrap();
        assert_eq!(first.status, StatusCode::CREATED, "{isolation}");
        for duplicate in duplicates {
            let duplicate = duplicate.await.unwrap();
            assert!(duplicate.replayed(), "{isolation}: {duplicate:?}");
            assert_eq!(duplicate.body, first.body);
        }
    }
}

/// Two servers on one database, and alice's account `a` with 1,000 in it.
struct TwoServers {
    database: Database,
    servers: [Ledger; 2],
    client: reqwest::Client,
}

impl TwoServers {
    async fn start() -> Self {
        let database = Database::fresh().await;
        let servers = [Ledger::start(&database.url()), Ledger::start(&database.url())];
        let client = reqwest::Client::new();
        let account = json!({ "id": "a", "balance": 1_000 });
        let open = client.post(format!("{}/accounts", servers[0].url)).bearer_auth("alice").json(&account);
        assert_eq!(open.send().await.unwrap().status(), StatusCode::CREATED);
        Self { database, servers, client }
    }

    /// The same charge of 10 under the same key, whichever server is asked.
    fn charge(&self, server: usize, delay: &str) -> reqwest::RequestBuilder {
        self.client
            .post(format!("{}/charges", self.servers[server].url))
            .bearer_auth("alice")
            .header("idempotency-key", "k")
            .header("x-lab-delay-ms", delay)
            .json(&json!({ "account": "a", "amount": 10 }))
    }

    async fn assert_charged_once(&self) {
        let show = self.client.get(format!("{}/accounts/a", self.servers[1].url)).bearer_auth("alice");
        let account: serde_json::Value = show.send().await.unwrap().json().await.unwrap();
        assert_eq!(account, json!({ "id": "a", "balance": 990, "charges": 1 }));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f26_of_five_hundred_duplicates_split_over_two_processes_one_executes() {
    let two = TwoServers::start().await;
    let answers = all((0..500).map(|n| {
        let charge = two.charge(n % 2, "50");
        async move {
            let response = charge.send().await.unwrap();
            let replayed = response.headers().contains_key("idempotent-replayed");
            (response.status(), replayed, response.text().await.unwrap())
        }
    }))
    .await;
    assert!(answers.iter().all(|(status, _, body)| *status == 201 && *body == answers[0].2), "{answers:?}");
    assert_eq!(answers.iter().filter(|(_, replayed, _)| !replayed).count(), 1);
    two.assert_charged_once().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g5_f37_after_kill_9_in_mid_handler_a_duplicate_elsewhere_executes_at_once() {
    let mut two = TwoServers::start().await;
    // It would sleep for a minute.
    let first = tokio::spawn(two.charge(0, "60000").send());
    two.database.until_idle_after("insert into charge").await;
    let second = tokio::spawn(two.charge(1, "0").send());
    two.database.until_waiting(1).await;
    let killed = std::time::Instant::now();
    two.servers[0].kill();
    let second = second.await.unwrap().unwrap();
    let taken = killed.elapsed();
    assert!(first.await.unwrap().is_err(), "its process is gone");
    assert_eq!(second.status(), StatusCode::CREATED);
    assert!(!second.headers().contains_key("idempotent-replayed"));
    assert!(taken < Duration::from_secs(1), "no lease to wait for: {taken:?}");
    println!("executed {taken:?} after the kill");
    two.assert_charged_once().await;
}

/// The example server, as a process of its own.
struct Ledger {
    process: std::process::Child,
    url: String,
}

impl Ledger {
    fn start(database: &str) -> Self {
        use std::io::{BufRead as _, BufReader};

        let mut process = Command::new(ledger())
            .env("DATABASE_URL", database)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the ledger starts");
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").expect("it says where").to_owned();
        Self { process, url }
    }

    /// SIGKILL: no code of its own runs any more.
    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Where cargo has put the example; it is built here if only the tests were.
fn ledger() -> PathBuf {
    static BUILT: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    BUILT
        .get_or_init(|| {
            let tests = std::env::current_exe().unwrap();
            let profile = tests.ancestors().nth(2).unwrap();
            let mut build = Command::new(env!("CARGO"));
            build.args(["build", "--quiet", "--example", "ledger"]).current_dir(env!("CARGO_MANIFEST_DIR"));
            build.arg("--target-dir").arg(profile.parent().unwrap());
            if profile.ends_with("release") {
                build.arg("--release");
            }
            assert!(build.status().unwrap().success(), "the ledger is built");
            profile.join("examples/ledger")
        })
        .clone()
}

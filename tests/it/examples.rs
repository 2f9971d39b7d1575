//! The examples, driven as a visitor would.

use std::time::Duration;

use axum::{Router, http::StatusCode};
use axum_idempotency::{Concurrency, Retention};
use serde_json::{Value, json};

use crate::support::{Ask, Database, Reply, engine, get, post, reply};

#[path = "../../examples/ledger.rs"]
#[allow(dead_code, clippy::too_many_lines)]
mod ledger;

#[path = "../../examples/quickstart.rs"]
#[allow(dead_code)]
mod quickstart;

#[path = "../../examples/encryption.rs"]
#[allow(dead_code)]
mod encryption;

#[path = "../../examples/shutdown.rs"]
#[allow(dead_code)]
mod shutdown;

/// A ledger with alice's account `a`, which holds 100.
async fn ledger(database: &Database) -> Router {
    let pool = database.pool().await;
    ledger::prepare(&pool).await.unwrap();
    ledger::prepare(&pool).await.unwrap();
    let app = ledger::app(engine(&pool));
    let opened = reply(&app, alice(post("/accounts")).json(json!({ "id": "a", "balance": 100 }))).await;
    assert_eq!((opened.status, opened.json()), (StatusCode::CREATED, json!({ "id": "a", "balance": 100 })));
    app
}

fn alice(ask: Ask) -> Ask {
    ask.header("authorization", "Bearer alice")
}

fn charge(key: &str, amount: i64) -> Ask {
    alice(post("/charges")).key(key).json(json!({ "account": "a", "amount": amount }))
}

async fn account(app: &Router) -> Value {
    reply(app, alice(get("/accounts/a"))).await.json()
}

fn holds(balance: i64, charges: i64) -> Value {
    json!({ "id": "a", "balance": balance, "charges": charges })
}

#[tokio::test]
async fn ledger_charges_declines_and_refunds_once_each() {
    let database = Database::fresh().await;
    let app = ledger(&database).await;
    let first = reply(&app, charge("k1", 30)).await;
    let id = first.json()["id"].as_i64().unwrap();
    assert_eq!(first.json(), json!({ "id": id, "account": "a", "amount": 30, "balance": 70 }));
    assert!(reply(&app, charge("k1", 30)).await.replayed());
    assert_eq!(reply(&app, charge("k1", 31)).await.status, 422);
    assert_eq!(reply(&app, charge("k2", 71)).await.status, 402);
    assert!(reply(&app, charge("k2", 71)).await.replayed());
    assert_eq!(account(&app).await, holds(70, 1));

    let refund = |key| alice(post(&format!("/charges/{id}/refund"))).key(key);
    // The same key: another operation, another intent.
    let refunded = reply(&app, refund("k1")).await;
    assert_eq!(refunded.json(), json!({ "id": id, "account": "a", "amount": 30, "balance": 100 }));
    assert!(reply(&app, refund("k1")).await.replayed());
    assert_eq!(reply(&app, refund("k3")).await.status, 409);
    assert_eq!(account(&app).await, holds(100, 1));
}

#[tokio::test]
async fn ledger_keeps_owners_apart_and_turns_strangers_away() {
    let database = Database::fresh().await;
    let app = ledger(&database).await;
    for ask in [post("/charges").key("k"), get("/accounts/a"), get("/accounts/a").header("authorization", "Basic x")] {
        assert_eq!(reply(&app, ask).await.status, 401);
    }
    let bob = |ask: Ask| ask.header("authorization", "Bearer bob");
    assert_eq!(reply(&app, bob(get("/accounts/a"))).await.status, 404);
    let charged = reply(&app, bob(post("/charges")).key("k").json(json!({ "account": "a", "amount": 1 }))).await;
    assert_eq!(charged.status, 404);
    let opened = reply(&app, bob(post("/accounts")).json(json!({ "id": "a", "balance": 5 }))).await;
    assert_eq!(opened.status, 201);
    assert_eq!(account(&app).await, holds(100, 0));
}

#[tokio::test]
async fn ledger_bad_input_is_refused_and_leaves_nothing() {
    let database = Database::fresh().await;
    let app = ledger(&database).await;
    for (ask, status) in [
        (charge("k", 0), 400),
        (charge("k", -5), 400),
        (charge("k", 5).header("x-lab-fault", "nonsense"), 400),
        (charge("k", 5).header("x-lab-delay-ms", "soon"), 400),
        (alice(post("/charges")).json(json!({ "account": "a", "amount": 1 })), 400),
        (alice(post("/charges")).key("k").json(json!({ "account": "a" })), 422),
        (alice(post("/charges")).key("k").json(json!({ "account": "b", "amount": 1 })), 404),
        (alice(post("/charges/999/refund")).key("k"), 404),
        (alice(post("/accounts")).json(json!({ "id": "a", "balance": 1 })), 409),
    ] {
        assert_eq!(reply(&app, ask).await.status, status);
    }
    assert_eq!(account(&app).await, holds(100, 0));
    assert_eq!(database.rows().await, []);
}

#[tokio::test]
async fn ledger_every_fault_leaves_nothing_and_the_retry_executes() {
    let database = Database::fresh().await;
    let app = ledger(&database).await;
    let mut balance = 100;
    for (fault, status) in [
        ("panic", 500),
        ("500", 500),
        ("swallow-sql-error", 500),
        ("hold-connection", 500),
        ("big-body:2000000", 500),
        ("status:400", 400),
        ("status:503", 503),
    ] {
        let failed = reply(&app, charge(fault, 10).header("x-lab-fault", fault)).await;
        assert_eq!(failed.status, status, "{fault}");
        let retry: Reply = reply(&app, charge(fault, 10)).await;
        balance -= 10;
        assert_eq!((retry.status, retry.replayed()), (StatusCode::CREATED, false), "{fault}");
        assert_eq!(retry.json()["balance"], balance, "{fault}");
    }
    let big = reply(&app, charge("big", 10).header("x-lab-fault", "big-body:1000")).await;
    assert_eq!((big.status, big.body.len()), (StatusCode::CREATED, 1000));
    assert_eq!(account(&app).await, holds(balance - 10, 8));
    // Decided, but not done.
    let declined = reply(&app, charge("410", 10).header("x-lab-fault", "status:410")).await;
    assert_eq!(declined.status, 410);
    assert_eq!(reply(&app, charge("410", 10)).await.status, 410);
    assert_eq!(account(&app).await, holds(balance - 10, 8));
}

#[test]
fn ledger_options_are_read_or_refused_with_a_reason() {
    let read = |line: &str| ledger::Settings::read(line.split_whitespace().map(str::to_owned));
    let settings = read("--listen 127.0.0.1:81 --concurrency wait:0.5 --retention 60 --pool 3").unwrap();
    assert_eq!(settings.listen.port(), 81);
    assert_eq!(settings.concurrency, Concurrency::Wait { timeout: Duration::from_millis(500) });
    assert_eq!(settings.retention, Retention::new(Duration::from_secs(60)).unwrap());
    assert_eq!((settings.pool, settings.self_check), (3, false));
    assert_eq!(read("--concurrency reject").unwrap().concurrency, Concurrency::NoWait);
    for wrong in [
        "--pool 0",
        "--pool",
        "--retention 0",
        "--retention -1",
        "--concurrency sometimes",
        "--concurrency wait:x",
        "--nonsense 1",
        "--listen nowhere",
        "--keys uuid-v4:60",
        "--keys ulid:0",
        "--keys ulid",
    ] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn ledger_short_windows_shorten_the_wait_and_keys_may_bear_a_time() {
    let database = Database::fresh().await;
    let settings = |line: &str| ledger::Settings::read(line.split_whitespace().map(str::to_owned)).unwrap();
    for line in [
        "--retention 1",
        "--retention 2 --concurrency wait:60",
        "--keys ulid:2",
        "--keys uuid-v7:60 --partitioned",
        "--keys first-sent:60",
    ] {
        assert!(settings(line).idempotency(&database.pool_lazily()).is_ok(), "{line}");
    }
    for line in ["--partitioned", "--keys first-sent:60 --partitioned"] {
        assert!(settings(line).idempotency(&database.pool_lazily()).is_err(), "{line}");
    }
}

#[tokio::test]
async fn quickstart_shows_what_it_says() {
    let database = Database::fresh().await;
    let pool = database.pool().await;
    let account = quickstart::prepare(&pool).await.unwrap();
    let address = crate::support::serve(quickstart::app(&pool)).await;
    let url = format!("http://{address}/charges");
    quickstart::show(&quickstart::Visitor::new(&url, &account, &pool)).await.unwrap();
}

#[tokio::test]
async fn shutdown_finishes_what_was_begun() {
    let database = Database::fresh().await;
    let pool = database.pool().await;
    shutdown::prepare(&pool).await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    shutdown::check(listener, engine(&pool), &database.url()).await.unwrap();
    assert_eq!(database.rows().await.len(), 1);
}

#[tokio::test]
async fn encryption_stores_nothing_readable_and_keys_rotate() {
    let database = Database::fresh().await;
    encryption::check(engine(&database.pool().await)).await.unwrap();
}

#[test]
fn encryption_binds_a_body_to_its_row_and_refuses_what_was_changed() {
    use axum_idempotency::{BodyCodec as _, Fingerprint, IdempotencyKey, IdempotentRequest, Operation, Scope};

    let keys = encryption::Keyring::new([(7, [7; 32])]);
    let request = |key: &str| {
        let key = IdempotencyKey::new(key).unwrap();
        IdempotentRequest::new(Scope::global(), Operation::new("o"), key, Fingerprint::of(["f"]))
    };
    let sealed = keys.encode(&request("a"), b"secret").unwrap();
    assert_eq!(keys.decode(&request("a"), &sealed).unwrap(), b"secret");
    assert_ne!(keys.encode(&request("a"), b"secret").unwrap(), sealed, "no nonce is used twice");
    assert!(keys.decode(&request("b"), &sealed).is_err(), "another row's body");
    for length in 0..sealed.len() {
        assert!(keys.decode(&request("a"), &sealed[..length]).is_err(), "cut to {length}");
    }
    for byte in 0..sealed.len() {
        let mut changed = sealed.clone();
        changed[byte] ^= 1;
        assert!(keys.decode(&request("a"), &changed).is_err(), "byte {byte} changed");
    }
}

/// The program that README and the documentation begin with is an example, and does what README shows.
#[tokio::test]
async fn the_program_of_the_readme_works_as_printed() {
    let readme = include_str!("../../README.md");
    let (_, program) = include_str!("../../examples/charges.rs").split_once("\n\n").unwrap();
    assert!(readme.contains(&format!("```rust,no_run\n{program}```")), "README has another program");
    assert_eq!(include_str!("../../src/docs/program.md"), format!("```no_run\n{program}```\n"));

    let database = Database::unmigrated().await;
    let address = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let built = std::process::Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--example", "charges"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(built.unwrap().success());
    let target = std::env::current_exe().unwrap();
    let program = target.parent().unwrap().parent().unwrap().join("examples/charges");
    let mut server = tokio::process::Command::new(program)
        .env("DATABASE_URL", database.url())
        .env("LISTEN", address.to_string())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let up = async { while tokio::net::TcpStream::connect(address).await.is_err() {} };
    tokio::time::timeout(Duration::from_secs(30), up).await.expect("it listens");

    // The calls of README, each followed by its response up to the next.
    let transcript = readme.split("```console\n").nth(1).unwrap().split("```").next().unwrap();
    let calls: Vec<_> = transcript.split("$ curl ").skip(1).collect();
    assert_eq!(calls.len(), 3);
    for call in calls {
        let quoted: Vec<_> = call.split('\'').skip(1).step_by(2).collect();
        let (headers, body) = quoted.split_at(quoted.len() - 1);
        let mut request = reqwest::Client::new().post(format!("http://{address}/charges")).body(body[0].to_owned());
        for header in headers {
            let (name, value) = header.split_once(": ").unwrap();
            request = request.header(name, value);
        }
        let response = request.send().await.unwrap();
        let shown = call.split_once("HTTP/1.1 ").unwrap().1;
        assert!(shown.starts_with(response.status().as_str()), "{shown}");
        for name in ["content-type", "cache-control", "idempotent-replayed"] {
            let value = response.headers().get(name).map(|value| format!("\n{name}: {}\n", value.to_str().unwrap()));
            match value {
                Some(line) => assert!(shown.contains(&line), "{line}"),
                None => assert!(!shown.contains(&format!("\n{name}:")), "{name}"),
            }
        }
        let shown = shown.split_once("\n\n").unwrap().1.trim();
        let text = response.text().await.unwrap();
        match serde_json::from_str::<Value>(&text) {
            Ok(problem) if problem.get("detail").is_some() => {
                let shown: Value = serde_json::from_str(shown).unwrap();
                for name in ["key_reusable", "occurrence", "retryable", "status", "title"] {
                    assert_eq!(shown[name], problem[name], "{name}");
                }
                assert_eq!(problem.as_object().unwrap().len(), shown.as_object().unwrap().len());
            }
            _ => assert_eq!(text, shown),
        }
    }
    // It ends when it is told to, after what it has begun.
    let pid = server.id().unwrap().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let ended = tokio::time::timeout(Duration::from_secs(30), server.wait()).await.expect("it ends").unwrap();
    assert!(ended.success(), "{ended}");
}

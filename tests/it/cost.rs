//! What the guarantee costs, in statements as the server sees them.

use std::time::Duration;

use axum_idempotency::{RejectionKind, Scope};

use crate::support::{Database, answering, app, app_with, create, engine, layer, post, reply, shares_pool};

/// The statements that the server executed for this database since the last look, by their first words.
fn statements(database: &Database, seen: &mut usize) -> Vec<String> {
    let executed: Vec<_> = database
        .log()
        .iter()
        .filter_map(|line| line.split_once("LOG:  "))
        .filter(|(_, event)| event.starts_with("statement: ") || event.starts_with("execute "))
        .filter_map(|(_, event)| event.split_once(": "))
        .map(|(_, statement)| statement.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
        .collect();
    let new = executed[*seen..].to_vec();
    *seen = executed.len();
    new
}

#[tokio::test]
async fn a_first_call_takes_two_statements_more_than_the_handlers_transaction_and_a_replay_takes_one_or_three() {
    let database = Database::logged().await;
    let options = database.options().options([("log_statement", "all")]);
    let here = app(&Database::pool_with(options.clone(), 1).await, create);
    let elsewhere = app(&Database::pool_with(options, 1).await, create);
    let mut seen = 0;
    statements(&database, &mut seen);

    let begin = if shares_pool() { "begin" } else { "begin read" };
    // A process asks once what kind of database it is.
    reply(&here, post("/things").key("z")).await;
    let asked = ["select pg_catalog.current_setting('default_transaction_isolation')", "with claim", "insert into"];
    let first = statements(&database, &mut seen);
    assert_eq!(first, [&[begin], &asked[..], &["update idempotency.keys", "COMMIT"]].concat());
    for key in ["a", "b"] {
        reply(&here, post("/things").key(key)).await;
        let first = statements(&database, &mut seen);
        assert_eq!(first, [begin, "with claim", "insert into", "update idempotency.keys", "COMMIT"]);
    }
    // The process that has answered it has reason to look first; another one learns of it by its first claim.
    reply(&here, post("/things").key("a")).await;
    assert_eq!(statements(&database, &mut seen), ["select fingerprint,"]);
    reply(&elsewhere, post("/things").key("y")).await;
    statements(&database, &mut seen);
    for expected in [&[begin, "with claim", "ROLLBACK"][..], &["select fingerprint,"]] {
        assert!(reply(&elsewhere, post("/things").key("a")).await.replayed());
        assert_eq!(statements(&database, &mut seen), expected);
    }
}

#[tokio::test]
async fn an_answer_in_memory_takes_no_statement_and_no_connection() {
    let database = Database::logged().await;
    let pool = Database::pool_with(database.options().options([("log_statement", "all")]), 1).await;
    let idempotency = engine(&pool).response_cache(100_000, Duration::from_secs(60));
    let here = app_with(layer(idempotency.clone()), create);
    let sensitive = app_with(layer(idempotency.clone()).operation("secret").discard_responses(true), create);
    let first = reply(&here, post("/things").key("a").body("x")).await;
    reply(&sensitive, post("/things").key("a")).await;
    let mut seen = 0;
    statements(&database, &mut seen);

    let held = pool.acquire().await.unwrap();
    let replay = reply(&here, post("/things").key("a").body("x")).await;
    assert!(replay.replayed() && replay.body == first.body);
    reply(&here, post("/things").key("a").body("y")).await.assert_refused(RejectionKind::KeyReused);
    drop(held);
    assert!(statements(&database, &mut seen).is_empty());
    // Nothing of a sensitive route is in memory.
    reply(&sensitive, post("/things").key("a")).await.assert_refused(RejectionKind::ResponseNotRetained);
    assert_eq!(statements(&database, &mut seen), ["select fingerprint,"]);
    // Another owner, another operation: never.
    assert!(!reply(&here, post("/things").key("a").owner("bob").body("x")).await.replayed());
    // An erasure here is true here at once.
    idempotency.erase_scope(&Scope::new("alice")).await.unwrap();
    assert!(!reply(&here, post("/things").key("a").body("x")).await.replayed());
}

#[tokio::test]
async fn an_answer_in_memory_is_not_replayed_beyond_the_age_nor_unless_it_was_committed() {
    let database = Database::fresh().await;
    let pool = database.pool().await;
    let remembering = |age| engine(&pool).response_cache(100_000, age);
    let brief = app_with(layer(remembering(Duration::from_nanos(1))), create);
    reply(&brief, post("/things").key("a")).await;
    database.expire().await;
    assert!(!reply(&brief, post("/things").key("a")).await.replayed(), "asked anew");

    let failing = layer(remembering(Duration::from_secs(60)));
    assert_eq!(reply(&app_with(failing.clone(), answering(500)), post("/things").key("b")).await.status, 500);
    assert!(!reply(&app_with(failing, create), post("/things").key("b")).await.replayed());
}

#[tokio::test]
async fn a_method_that_is_not_listed_passes_through_without_an_allocation() {
    use axum::{body::Body, http::Request, response::Response};
    use tower::{Layer as _, Service as _};

    let database = Database::fresh().await;
    let bare = tower::service_fn(|_: Request<Body>| {
        std::future::ready(Ok::<_, std::convert::Infallible>(Response::new(Body::empty())))
    });
    let mut layered = layer(engine(&database.pool_lazily())).layer(bare);
    let mut allocations = |method: &str| {
        let request = Request::builder().method(method).uri("/things").body(Body::empty()).unwrap();
        let mut answered = false;
        let counted = allocation_counter::measure(|| {
            let answering = std::pin::pin!(layered.call(request));
            answered = answering.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready();
        });
        assert!(answered, "{method} has nothing to wait for");
        counted.count_total
    };
    assert_eq!((allocations("GET"), allocations("DELETE")), (0, 0));
    assert!(allocations("POST") > 0, "a refusal is counted");
}

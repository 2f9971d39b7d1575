//! What the guarantee costs, in statements as the server sees them.

use crate::support::{Database, app, create, post, reply};

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
async fn a_first_call_takes_two_statements_more_than_the_handlers_transaction_and_a_replay_takes_three() {
    let database = Database::logged().await;
    let pool = Database::pool_with(database.options().options([("log_statement", "all")]), 1).await;
    let app = app(&pool, create);
    let mut seen = 0;
    statements(&database, &mut seen);

    for key in ["a", "b"] {
        reply(&app, post("/things").key(key)).await;
        let first = statements(&database, &mut seen);
        assert_eq!(first, ["BEGIN", "with live", "insert into", "update idempotency.keys", "COMMIT"]);
    }
    reply(&app, post("/things").key("a")).await;
    assert_eq!(statements(&database, &mut seen), ["BEGIN", "with live", "ROLLBACK"]);
}

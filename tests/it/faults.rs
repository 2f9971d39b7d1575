//! The database fails: nothing is executed, or all or nothing has become durable, and a retry finds out.

use std::{sync::atomic::Ordering, time::Duration};

use axum::http::StatusCode;
use axum_idempotency::{RejectionKind, Tx};
use sqlx::{Executor as _, postgres::PgPoolOptions};

use crate::support::{Cut, Database, Gate, Runs, app, effect, post, proxy, reply};

#[tokio::test]
async fn g6_r37_an_unreachable_database_is_answered_503_and_nothing_is_executed() {
    // Nobody listens on the port of a socket that was just closed.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let pool = PgPoolOptions::new()
        .acquire_timeout(Duration::from_millis(200))
        .connect_lazy(&format!("postgres://nobody@127.0.0.1:{port}/none"))
        .unwrap();
    let runs = Runs::default();
    let counted = runs.clone();
    let app = app(&pool, move || async move {
        counted.one();
    });
    reply(&app, post("/things").key("k")).await.assert_refused(RejectionKind::StoreUnavailable);
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn a_missing_table_is_answered_500_that_names_migrate_and_nothing_is_executed() {
    let database = Database::unmigrated().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let app = app(&database.pool().await, move || async move {
        counted.one();
    });
    let refused = reply(&app, post("/things").key("k")).await;
    refused.assert_refused(RejectionKind::Misconfigured);
    assert!(refused.text().contains("axum_idempotency::migrate()"), "{}", refused.text());
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn a_connection_that_dies_under_the_handler_is_answered_503_and_a_retry_executes() {
    let database = Database::fresh().await;
    let runs = Runs::default();
    let app = app(&database.pool().await, move |mut tx: Tx| async move {
        effect(&mut tx).await;
        if runs.one() == 1 {
            tx.execute("select pg_terminate_backend(pg_backend_pid())").await.unwrap_err();
        }
        StatusCode::CREATED
    });
    reply(&app, post("/things").key("k")).await.assert_refused(RejectionKind::StoreUnavailable);
    assert_eq!(database.effects().await, 0);
    let retry = reply(&app, post("/things").key("k")).await;
    assert_eq!((retry.status, retry.replayed()), (StatusCode::CREATED, false));
}

#[tokio::test]
async fn r34_f16_a_connection_lost_before_the_commit_arrives_is_outcome_unknown_and_a_retry_executes() {
    assert_retry_finds_out(Cut::BeforeCommit, false).await;
}

#[tokio::test]
async fn r34_f16_a_connection_lost_after_the_commit_is_outcome_unknown_and_a_retry_replays() {
    assert_retry_finds_out(Cut::AfterCommit, true).await;
}

#[tokio::test]
async fn r34_a_connection_lost_while_a_rejection_is_stored_is_outcome_unknown_and_a_retry_finds_out() {
    for (cut, stored) in [(Cut::BeforeCommit, false), (Cut::AfterCommit, true)] {
        let database = Database::fresh().await;
        let (options, armed) = proxy(database.options(), cut).await;
        let app = app(&Database::pool_with(options, 5).await, crate::support::answering(402));
        armed.store(true, Ordering::SeqCst);
        reply(&app, post("/things").key("k")).await.assert_refused(RejectionKind::OutcomeUnknown);
        let retry = reply(&app, post("/things").key("k")).await;
        assert_eq!((retry.status, retry.replayed()), (StatusCode::PAYMENT_REQUIRED, stored));
        assert_eq!(database.effects().await, 0);
    }
}

#[tokio::test]
async fn only_a_plain_refusal_of_the_commit_is_taken_for_one() {
    for (code, kind) in [
        ("23514", RejectionKind::CommitRefused),
        ("P0001", RejectionKind::CommitRefused),
        ("AB123", RejectionKind::CommitRefused),
        ("40P01", RejectionKind::StoreUnavailable),
        ("40003", RejectionKind::OutcomeUnknown),
        ("58000", RejectionKind::OutcomeUnknown),
        ("08006", RejectionKind::OutcomeUnknown),
    ] {
        let database = Database::fresh().await;
        let refusing = format!(
            "create function refuse() returns trigger language plpgsql as
               $$ begin raise exception using errcode = '{code}'; end $$;
             create constraint trigger refuse after insert on effect deferrable initially deferred
               for each row execute function refuse()"
        );
        database.connection().await.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(refusing))).await.unwrap();
        let app = app(&database.pool().await, crate::support::create);
        reply(&app, post("/things").key("k")).await.assert_refused(kind);
        assert_eq!(database.effects().await, 0);
    }
}

async fn assert_retry_finds_out(cut: Cut, committed: bool) {
    let database = Database::fresh().await;
    let (options, armed) = proxy(database.options(), cut).await;
    let app = app(&Database::pool_with(options, 5).await, |mut tx: Tx| async move {
        (StatusCode::CREATED, effect(&mut tx).await.to_string())
    });
    armed.store(true, Ordering::SeqCst);
    reply(&app, post("/things").key("k")).await.assert_refused(RejectionKind::OutcomeUnknown);
    assert!(!armed.load(Ordering::SeqCst), "the connection was cut");
    assert_eq!(database.effects().await, i64::from(committed));

    let retry = reply(&app, post("/things").key("k")).await;
    assert_eq!((retry.status, retry.replayed()), (StatusCode::CREATED, committed));
    assert_eq!(database.effects().await, 1);
}

#[tokio::test]
async fn f45_f64_a_failing_statement_after_the_handler_rolls_its_effects_back() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, |mut tx: Tx| async move {
        effect(&mut tx).await;
        StatusCode::CREATED
    });
    // The answer cannot be written: every update of the table fails.
    let broken = "create function broken() returns trigger language plpgsql as
                    $$ begin raise 'no update today'; end $$;
                  create trigger broken before update on idempotency.keys for each row execute function broken()";
    let mut connection = database.connection().await;
    connection.execute(sqlx::raw_sql(broken)).await.unwrap();
    reply(&app, post("/things").key("k")).await.assert_refused(RejectionKind::Internal);
    assert_eq!(database.effects().await, 0);
    assert_eq!(database.rows().await, []);
    connection.execute("drop trigger broken on idempotency.keys").await.unwrap();
    assert_eq!(reply(&app, post("/things").key("k")).await.status, StatusCode::CREATED);
}

#[tokio::test]
async fn a_row_that_holds_no_answer_is_refused_and_never_executed_again() {
    let database = Database::fresh().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let app = app(&database.pool().await, move || async move {
        counted.one();
    });
    reply(&app, post("/things").key("k")).await;
    let mut connection = database.connection().await;
    database.without_guard().await;
    for (damage, kind) in [
        ("status = null, header_names = '{}', header_values = '{}'", RejectionKind::TransactionEnded),
        ("status = 7, header_names = '{}', header_values = '{}'", RejectionKind::ResponseUnreadable),
        ("status = 200, header_names = '{a}', header_values = '{}'", RejectionKind::ResponseUnreadable),
        ("status = 200, header_names = '{\"a b\"}', header_values = '{b}'", RejectionKind::ResponseUnreadable),
        ("status = 200, header_names = null, header_values = null", RejectionKind::ResponseUnreadable),
    ] {
        let damage = format!("update idempotency.keys set {damage}");
        connection.execute(sqlx::AssertSqlSafe(damage)).await.unwrap();
        reply(&app, post("/things").key("k")).await.assert_refused(kind);
    }
    assert_eq!(runs.count(), 1);
}

/// Two requests that PostgreSQL cannot put one after the other: one of them is told to come again.
#[tokio::test]
async fn a_serialization_failure_is_answered_503_leaves_nothing_and_a_retry_executes() {
    let database = Database::fresh().await;
    let strict = database.options().options([("default_transaction_isolation", "serializable")]);
    let gate = Gate::closed();
    let inside = gate.clone();
    let app = app(&Database::pool_with(strict, 4).await, move |mut tx: Tx| async move {
        let _: i64 = sqlx::query_scalar("select count(*) from effect").fetch_one(&mut *tx).await.unwrap();
        inside.pass().await;
        // It fails here or at the commit; a handler that swallows it gets no further.
        match sqlx::query("insert into effect (note) values ('done')").execute(&mut *tx).await {
            Ok(_) => StatusCode::CREATED,
            Err(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    });
    let ask = |key: &'static str| {
        let app = app.clone();
        tokio::spawn(async move { reply(&app, post("/things").key(key)).await })
    };
    let (mut one, mut other) = (ask("a"), ask("b"));
    for _ in 0..2 {
        gate.entered().await;
    }
    gate.open();
    // Whichever it lets through commits first and wins.
    let (won, lost_key, lost) = tokio::select! {
        won = &mut one => (won, "b", other),
        won = &mut other => (won, "a", one),
    };
    assert_eq!(won.unwrap().status, StatusCode::CREATED);
    gate.open();
    assert_eq!(lost.await.unwrap().status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(database.effects().await, 1);
    gate.open();
    let retry = ask(lost_key).await.unwrap();
    assert_eq!((retry.status, retry.replayed()), (StatusCode::CREATED, false));
}

/// The failure comes with the COMMIT itself.
#[tokio::test]
async fn a_serialization_failure_at_commit_is_never_answered_with_the_captured_2xx() {
    let database = Database::fresh().await;
    // A deferred trigger runs within the COMMIT.
    let conflict = "create function conflict() returns trigger language plpgsql as
                      $$ begin raise exception using errcode = '40001'; end $$;
                    create constraint trigger conflict after insert on effect deferrable initially deferred
                      for each row execute function conflict()";
    let mut connection = database.connection().await;
    connection.execute(sqlx::raw_sql(conflict)).await.unwrap();
    let app = app(&database.pool().await, crate::support::create);
    reply(&app, post("/things").key("k")).await.assert_refused(RejectionKind::StoreUnavailable);
    assert_eq!(database.effects().await, 0);
    assert_eq!(database.rows().await, []);
    connection.execute("drop trigger conflict on effect").await.unwrap();
    assert_eq!(reply(&app, post("/things").key("k")).await.status, StatusCode::CREATED);
}

//! The request-scoped connection, and routes on which the key is optional.

use axum::{Router, http::StatusCode, routing::post as route};
use axum_idempotency::{IdempotencyKey, IdempotentRequest, RejectionKind, Tx};
use sqlx::Executor as _;

use crate::support::{Database, answering, app, app_with, create, effect, engine, get, layer, post, reply};

async fn optional<H, T>(database: &Database, handler: H) -> Router
where
    H: axum::handler::Handler<T, ()>,
    T: 'static,
{
    app_with(layer(engine(&database.pool_of(2).await)).optional(), handler)
}

#[tokio::test]
async fn extracting_it_twice_is_answered_500_that_says_so() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, async |_one: Tx, _two: Tx| StatusCode::CREATED);
    let refused = reply(&app, post("/things").key("k")).await;
    assert_eq!(refused.kind(), Some(RejectionKind::Misconfigured));
    assert_eq!(refused.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(refused.text().contains("extracts Tx twice"), "{}", refused.text());
    assert_eq!(database.rows().await, []);
}

#[tokio::test]
async fn extracting_it_one_after_the_other_gives_the_same_transaction() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, |request: axum::extract::Request| async move {
        use axum::extract::FromRequestParts as _;
        let mut parts = request.into_parts().0;
        let mut ids = Vec::new();
        for _ in 0..2 {
            let mut tx = Tx::from_request_parts(&mut parts, &()).await.unwrap();
            let id: String = sqlx::query_scalar("select pg_current_xact_id()::text").fetch_one(&mut *tx).await.unwrap();
            ids.push(id);
        }
        (ids[0] == ids[1]).to_string()
    });
    assert_eq!(reply(&app, post("/things").key("k")).await.text(), "true");
}

#[tokio::test]
async fn without_the_layer_it_is_answered_500_that_says_so() {
    let app = Router::new().route("/things", route(create));
    let refused = reply(&app, post("/things").key("k")).await;
    refused.assert_refused(RejectionKind::Misconfigured);
    assert!(refused.text().contains("no IdempotencyLayer handles this request"), "{}", refused.text());

    let database = Database::fresh().await;
    let idempotent = layer(engine(&database.pool().await));
    let app = Router::new().route("/things", axum::routing::get(create).layer(idempotent));
    let refused = reply(&app, get("/things").key("k")).await;
    refused.assert_refused(RejectionKind::Misconfigured);
    assert!(refused.text().contains("IdempotencyLayer::methods"), "{}", refused.text());
}

#[tokio::test]
async fn a_savepoint_undoes_its_part_and_the_rest_is_committed() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, |mut tx: Tx| async move {
        effect(&mut tx).await;
        let mut part = tx.begin().await.unwrap();
        effect(&mut part).await;
        sqlx::query("select 1 / 0").execute(&mut *part).await.unwrap_err();
        part.rollback().await.unwrap();
        let mut dropped = tx.begin().await.unwrap();
        effect(&mut dropped).await;
        drop(dropped);
        let mut kept = tx.begin().await.unwrap();
        effect(&mut kept).await;
        kept.commit().await.unwrap();
        StatusCode::CREATED
    });
    assert_eq!(reply(&app, post("/things").key("k")).await.status, StatusCode::CREATED);
    assert_eq!(database.effects().await, 2);
}

/// sqlx takes the release of a savepoint for a commit if one was forgotten; the connection would go back open.
#[tokio::test]
async fn a_forgotten_savepoint_is_answered_500_and_the_connection_is_not_reused() {
    let database = Database::fresh().await;
    let pool = database.pool_of(1).await;
    let app = app(&pool, |mut tx: Tx| async move {
        effect(&mut tx).await;
        std::mem::forget(tx.begin().await.unwrap());
        StatusCode::CREATED
    });
    reply(&app, post("/things").key("k")).await.assert_refused(RejectionKind::TransactionEnded);
    assert_eq!(database.effects().await, 0);
    sqlx::query("insert into effect (note) values ('next')").execute(&pool).await.unwrap();
    assert_eq!(database.effects().await, 1);
}

#[tokio::test]
async fn the_key_and_the_request_are_extractors() {
    let database = Database::fresh().await;
    let app = optional(&database, |key: Option<IdempotencyKey>, request: Option<IdempotentRequest>| async move {
        match (key, request) {
            (Some(key), Some(request)) => {
                assert_eq!(request.key(), &key);
                format!("{} {} {}", key.as_str(), request.operation(), request.derive_key("mail").len())
            }
            _ => "none".to_owned(),
        }
    })
    .await;
    assert_eq!(reply(&app, post("/things").key("\"k\"")).await.text(), "k POST /things 64");
    assert_eq!(reply(&app, post("/things")).await.text(), "none");

    let bare = Router::new().route("/things", route(|key: IdempotencyKey| async move { key.as_str().to_owned() }));
    reply(&bare, post("/things").key("k")).await.assert_refused(RejectionKind::Misconfigured);
}

#[tokio::test]
async fn r2_a_required_key_that_is_missing_is_refused() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, create);
    let refused = reply(&app, post("/things")).await;
    refused.assert_refused(RejectionKind::MissingKey);
    assert!(refused.text().contains("idempotency-key"), "{}", refused.text());
    assert_eq!(database.effects().await, 0);
}

#[tokio::test]
async fn r2_f55_without_a_key_an_optional_route_executes_every_time_and_keeps_no_row() {
    let database = Database::fresh().await;
    let app = optional(&database, create).await;
    for _ in 0..2 {
        let reply = reply(&app, post("/things").nobody()).await;
        assert_eq!((reply.status, reply.replayed()), (StatusCode::CREATED, false));
    }
    assert_eq!(database.effects().await, 2);
    assert_eq!(database.rows().await, []);
    assert!(!reply(&app, post("/things").key("k")).await.replayed());
    assert!(reply(&app, post("/things").key("k")).await.replayed());
}

#[tokio::test]
async fn r2_without_a_key_an_optional_route_rolls_back_what_did_not_succeed() {
    for (status, effects) in [(201, 1), (302, 1), (402, 0), (404, 0), (500, 0)] {
        let database = Database::fresh().await;
        let app = optional(&database, answering(status)).await;
        assert_eq!(reply(&app, post("/things")).await.status, status);
        assert_eq!(database.effects().await, effects, "{status}");
    }
}

#[tokio::test]
async fn r7_an_invalid_key_is_refused_on_an_optional_route_too() {
    let database = Database::fresh().await;
    let app = optional(&database, create).await;
    reply(&app, post("/things").key("")).await.assert_refused(RejectionKind::InvalidKey);
    reply(&app, post("/things").key("a,b")).await.assert_refused(RejectionKind::InvalidKey);
    assert_eq!(database.effects().await, 0);
}

#[tokio::test]
async fn without_a_key_and_without_tx_an_optional_route_does_not_touch_the_database() {
    let database = Database::fresh().await;
    let pool = database.pool().await;
    let app = app_with(layer(engine(&pool)).optional(), async || "untouched");
    pool.close().await;
    assert_eq!(reply(&app, post("/things")).await.text(), "untouched");
}

#[tokio::test]
async fn f4_without_a_key_a_swallowed_sql_error_is_answered_500_and_rolled_back() {
    let database = Database::fresh().await;
    let app = optional(&database, |mut tx: Tx| async move {
        effect(&mut tx).await;
        sqlx::query("select 1 / 0").execute(&mut *tx).await.unwrap_err();
        StatusCode::CREATED
    })
    .await;
    reply(&app, post("/things")).await.assert_refused(RejectionKind::TransactionAborted);
    assert_eq!(database.effects().await, 0);
}

#[tokio::test]
async fn without_a_key_a_handler_that_ends_its_transaction_is_answered_500() {
    for statement in ["rollback", "commit", "commit; begin"] {
        let database = Database::fresh().await;
        let app = optional(&database, move |mut tx: Tx| async move {
            effect(&mut tx).await;
            drop(tx.execute(sqlx::raw_sql(statement)).await);
            StatusCode::CREATED
        })
        .await;
        reply(&app, post("/things")).await.assert_refused(RejectionKind::TransactionEnded);
        assert_eq!(database.effects().await, 0, "{statement}");
    }
}

#[tokio::test]
async fn r6_without_a_key_a_protocol_switch_is_refused_as_well() {
    let database = Database::fresh().await;
    let app = optional(&database, async |_tx: Tx| StatusCode::SWITCHING_PROTOCOLS).await;
    reply(&app, post("/things")).await.assert_refused(RejectionKind::ResponseUnsupported);
}

#[tokio::test]
async fn f25_without_a_key_a_handler_that_keeps_its_connection_is_answered_500() {
    let database = Database::fresh().await;
    let app = optional(&database, |mut tx: Tx| async move {
        effect(&mut tx).await;
        let body = axum::body::Body::from_stream(futures_util::stream::once(async move {
            drop(tx);
            Ok::<_, std::io::Error>("late")
        }));
        (StatusCode::CREATED, body)
    })
    .await;
    reply(&app, post("/things")).await.assert_refused(RejectionKind::ConnectionHeld);
    assert_eq!(database.effects().await, 0);
}

async fn by_executor(executor: impl sqlx::PgExecutor<'_>) -> i64 {
    sqlx::query_scalar("insert into effect (note) values ('e') returning id").fetch_one(executor).await.unwrap()
}

/// Fails and goes on, in a transaction of its own as it thinks.
async fn by_acquire(acquire: impl sqlx::Acquire<'_, Database = sqlx::Postgres>) {
    let mut part = acquire.begin().await.unwrap();
    sqlx::query("insert into effect (note) values ('a')").execute(&mut *part).await.unwrap();
    part.rollback().await.unwrap();
}

#[tokio::test]
async fn f102_it_is_an_executor_and_can_be_acquired_and_all_of_it_is_one_transaction() {
    use futures_util::TryStreamExt as _;
    use sqlx::Acquire as _;

    let database = Database::fresh().await;
    for keyed in [true, false] {
        let app = optional(&database, async |mut tx: Tx| {
            sqlx::query("insert into effect (note) values ('1')").execute(&mut tx).await.unwrap();
            by_executor(&mut tx).await;
            by_acquire(&mut tx).await;
            (&mut tx).acquire().await.unwrap().execute("insert into effect (note) values ('3')").await.unwrap();
            let notes = sqlx::query_scalar("select note from effect order by id").fetch(&mut tx);
            let notes: Vec<String> = notes.try_collect().await.unwrap();
            let described =
                sqlx::Executor::describe(&mut tx, sqlx::SqlSafeStr::into_sql_str("select 1 as one")).await.unwrap();
            assert_eq!(described.columns().len(), 1);
            sqlx::Executor::prepare(&mut tx, sqlx::SqlSafeStr::into_sql_str("select 1")).await.unwrap();
            (StatusCode::INTERNAL_SERVER_ERROR, notes.join(","))
        })
        .await;
        let ask = if keyed { post("/things").key("k") } else { post("/things") };
        assert_eq!(reply(&app, ask).await.text(), "1,e,3");
        assert_eq!(database.effects().await, 0, "undone with its response");
    }
}

/// A savepoint in a transaction that PostgreSQL has given up would make sqlx roll all of it back.
#[tokio::test]
async fn f102_beginning_by_way_of_acquire_is_as_safe_as_by_itself() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, async |mut tx: Tx| {
        effect(&mut tx).await;
        drop(sqlx::query("select 1 / 0").execute(&mut tx).await);
        assert!(sqlx::Acquire::begin(&mut tx).await.is_err());
        drop(sqlx::query("insert into effect (note) values ('after')").execute(&mut tx).await);
        StatusCode::CREATED
    });
    reply(&app, post("/things").key("k")).await.assert_refused(RejectionKind::TransactionAborted);
    assert_eq!(database.effects().await, 0);
}

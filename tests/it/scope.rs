//! A key belongs to somebody.

use axum::http::StatusCode;
use axum_idempotency::{IdempotencyLayer, RejectionKind, Scope};

use sqlx::Executor as _;

use crate::support::{Database, Runs, app, app_with, create, engine, layer, post, reply};

#[tokio::test]
async fn f32_the_same_key_of_another_owner_is_another_intent() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, create);
    let alice = reply(&app, post("/things").key("k").owner("alice")).await;
    let bob = reply(&app, post("/things").key("k").owner("bob")).await;
    assert!(!bob.replayed());
    assert_ne!(alice.body, bob.body);
    assert_eq!(reply(&app, post("/things").key("k").owner("alice")).await.body, alice.body);
    assert_eq!(reply(&app, post("/things").key("k").owner("bob")).await.body, bob.body);
    assert_eq!(database.effects().await, 2);
}

#[tokio::test]
async fn r5_f33_a_request_without_an_owner_is_refused_and_leaves_nothing() {
    let database = Database::fresh().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let app = app(&database.pool().await, move || async move {
        counted.one();
    });
    for ask in [post("/things").key("k").nobody(), post("/things").key("k").owner("")] {
        let refused = reply(&app, ask).await;
        refused.assert_refused(RejectionKind::Unscoped);
        assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    }
    assert_eq!(runs.count(), 0);
    assert_eq!(database.rows().await, []);
}

#[tokio::test]
async fn f34_one_scope_for_all_is_a_choice_that_is_written_down() {
    let database = Database::fresh().await;
    let everybody = IdempotencyLayer::new(engine(&database.pool().await), |_| Some(Scope::global()));
    let app = app_with(everybody, create);
    reply(&app, post("/things").key("k").owner("alice")).await;
    assert!(reply(&app, post("/things").key("k").owner("bob")).await.replayed());
    assert_eq!(database.rows().await[0].scope, "");
}

#[tokio::test]
async fn an_owner_of_any_length_fits() {
    let database = Database::fresh().await;
    let app = app(&database.pool().await, create);
    let long = "x".repeat(5_000);
    assert_eq!(reply(&app, post("/things").key(&"k".repeat(255)).owner(&long)).await.status, StatusCode::CREATED);
    assert!(reply(&app, post("/things").key(&"k".repeat(255)).owner(&long)).await.replayed());
}

/// Two applications on one database, with the same route: without namespaces one gives the other's response.
#[tokio::test]
async fn f97_applications_that_share_a_database_are_kept_apart_by_a_namespace() {
    let database = Database::fresh().await;
    for (spaces, replayed) in [([None, None], true), ([Some("shop"), Some("bank")], false), ([Some("a"), None], false)]
    {
        let mut replies = Vec::new();
        for space in spaces {
            let layer = layer(engine(&database.pool_of(2).await));
            let layer = match space {
                Some(space) => layer.namespace(space),
                None => layer,
            };
            replies.push(reply(&app_with(layer, create), post("/things").key("k")).await.replayed());
        }
        assert_eq!(replies[1], replayed, "{spaces:?}");
        database.connection().await.execute("truncate idempotency.keys").await.unwrap();
    }
}

#[tokio::test]
async fn f85_an_owner_that_the_databases_encoding_cannot_write_is_refused_and_told_why() {
    let database = Database::in_latin1().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let everybody = IdempotencyLayer::new(engine(&database.pool().await), |parts| {
        Some(Scope::new(if parts.headers["x-owner"] == "known" { "caf\u{e9}" } else { "\u{6771}\u{4eac}" }))
    });
    let app = app_with(everybody, move || async move {
        counted.one();
    });
    let refused = reply(&app, post("/things").owner("unknown").key("k")).await;
    refused.assert_refused(RejectionKind::Misconfigured);
    assert!(refused.text().contains("UTF8"), "{}", refused.text());
    assert_eq!(reply(&app, post("/things").owner("known").key("k")).await.status, StatusCode::OK);
    assert_eq!(runs.count(), 1);
}

//! F91, F95, F96: settings of a request's transaction, and handlers that do not take it.

use std::sync::{Arc, Mutex};

use axum::{Router, http::StatusCode, routing::post as route};
use axum_idempotency::{
    ErrorKind, Fingerprint, IdempotencyKey, IdempotencyLayer, IdempotentRequest, LocalSettings, Operation,
    RejectionKind, Scope, Tx,
};
use proptest::prelude::*;
use sqlx::{Executor as _, PgConnection};

use crate::support::{Database, app_with, create, effect, engine, layer, log, post, reply};

/// Two tenants, one table of the application's and the table of keys, each guarded by row-level security that even its
/// owner is subject to; and the role of the application, which is no superuser.
async fn tenants(database: &Database) -> sqlx::PgPool {
    let role = format!("{}_app", database.name);
    let setup = format!(
        "create role {role} login;
         grant usage on schema idempotency to {role};
         grant select, insert, update, delete on idempotency.keys to {role};
         create table account (tenant text not null default current_setting('app.tenant'), note text not null);
         grant select, insert on account to {role};
         alter table account enable row level security;
         alter table account force row level security;
         create policy own on account using (tenant = current_setting('app.tenant'));
         alter table idempotency.keys enable row level security;
         alter table idempotency.keys force row level security;
         create policy own on idempotency.keys using (scope = current_setting('app.tenant'));"
    );
    let mut connection = database.connection().await;
    connection.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(setup))).await.unwrap();
    Database::pool_with(database.options().username(&role), 3).await
}

async fn drop_role(database: &Database) {
    let role = format!("{}_app", database.name);
    let drop = format!("drop owned by {role}; drop role {role}");
    database.connection().await.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(drop))).await.unwrap();
}

fn by_tenant(layer: IdempotencyLayer) -> IdempotencyLayer {
    layer.with_local_settings(|parts| match parts.headers.get("x-owner").and_then(|owner| owner.to_str().ok()) {
        Some(owner) => LocalSettings::new().set("app.tenant", owner),
        None => LocalSettings::new(),
    })
}

#[tokio::test]
async fn f96_row_level_security_on_business_tables_and_on_the_keys_holds_for_each_tenant() {
    let database = Database::fresh().await;
    let pool = tenants(&database).await;
    let handler = |mut tx: Tx| async move {
        sqlx::query("insert into account (note) values ('n')").execute(&mut *tx).await.unwrap();
        let seen: i64 = sqlx::query_scalar("select count(*) from account").fetch_one(&mut *tx).await.unwrap();
        let keys: i64 = sqlx::query_scalar("select count(*) from idempotency.keys").fetch_one(&mut *tx).await.unwrap();
        (StatusCode::CREATED, format!("{seen} {keys}"))
    };
    let app = app_with(by_tenant(layer(engine(&pool))), handler);
    for owner in ["alice", "bob", "o'brien\\"] {
        for (key, expected) in [("a", "1 1"), ("b", "2 2")] {
            let first = reply(&app, post("/things").owner(owner).key(key)).await;
            assert_eq!((first.status, first.text()), (StatusCode::CREATED, expected), "{owner}");
            let replay = reply(&app, post("/things").owner(owner).key(key)).await;
            assert!(replay.replayed() && replay.body == first.body, "{owner}: {replay:?}");
        }
    }
    // Decisions are stored in a transaction of their own, under the same settings.
    let declining = app_with(by_tenant(layer(engine(&pool))), |_tx: Tx| async { StatusCode::PAYMENT_REQUIRED });
    for replayed in [false, true] {
        let declined = reply(&declining, post("/things").key("c")).await;
        assert_eq!((declined.status, declined.replayed()), (StatusCode::PAYMENT_REQUIRED, replayed));
    }
    // Without a key the settings count as well.
    let optional = app_with(by_tenant(layer(engine(&pool))).optional(), handler);
    assert_eq!(reply(&optional, post("/things")).await.text(), "3 3");
    // Without the settings nothing is executed.
    let without = app_with(layer(engine(&pool)), handler);
    reply(&without, post("/things").key("d")).await.assert_refused(RejectionKind::Internal);
    pool.close().await;
    drop((app, declining, optional, without));
    drop_role(&database).await;
}

#[tokio::test]
async fn f96_settings_cost_no_round_trip_and_end_with_the_transaction() {
    let database = Database::logged().await;
    let pool = Database::pool_with(database.options().options([("log_statement", "all")]), 1).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let writing = seen.clone();
    let handler = move |mut tx: Tx| {
        let seen = writing.clone();
        async move {
            let tenant: Option<String> =
                sqlx::query_scalar("select current_setting('app.tenant', true)").fetch_one(&mut *tx).await.unwrap();
            seen.lock().unwrap().push(tenant.unwrap_or_default());
        }
    };
    let idempotency = engine(&pool);
    let app = app_with(by_tenant(layer(idempotency.clone())), handler.clone());
    reply(&app, post("/things").key("a")).await;
    let statements = |database: &Database| {
        let log = database.log();
        log.iter().filter(|line| line.contains("statement: ") || line.contains("execute ")).count()
    };
    let before = statements(&database);
    reply(&app, post("/things").key("b")).await;
    // BEGIN and the settings in one message, the claim, the handler's own, the response, COMMIT.
    assert_eq!(statements(&database) - before, 5);
    let plain = app_with(layer(idempotency), handler);
    reply(&plain, post("/things").key("c")).await;
    assert_eq!(*seen.lock().unwrap(), ["alice", "alice", ""]);
}

#[tokio::test]
async fn f96_a_setting_that_postgresql_does_not_take_is_refused_and_nothing_is_executed() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool().await);
    for (name, value) in [
        ("app.tenant", "nul\0inside"),
        ("app tenant", "v"),
        ("a'; drop table effect; --", "v"),
        ("statement_timeout", "soon"),
        ("no_such_setting", "v"),
        ("role", "nobody there"),
        ("server_version", "17"),
        ("transaction_read_only", "on"),
        ("transaction_isolation", "serializable"),
        ("idempotency.transaction", "1"),
    ] {
        let settings = LocalSettings::new().set(name, value);
        for optional in [false, true] {
            let layer = layer(idempotency.clone());
            let layer = if optional { layer.optional() } else { layer };
            let settings = settings.clone();
            let app = app_with(layer.with_local_settings(move |_| settings.clone()), create);
            let asked = if optional { post("/things") } else { post("/things").key("k") };
            reply(&app, asked).await.assert_refused(RejectionKind::Misconfigured);
        }
        let key = IdempotencyKey::new("k").unwrap();
        let request = IdempotentRequest::new(Scope::global(), Operation::new("o"), key, Fingerprint::of(["f"]));
        let error = idempotency.claim(request.with_local_settings(settings)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidSetting, "{name}: {error:?}");
    }
    assert_eq!((database.effects().await, database.rows().await.len()), (0, 0));
    assert_eq!(
        reply(&app_with(layer(idempotency), create), post("/things").key("k")).await.status,
        StatusCode::CREATED
    );
}

/// Whatever a value holds: it is read back as it was, and ends nothing.
#[test]
fn literals_are_safe_whatever_they_hold_and_whatever_the_server_thinks_of_backslashes() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (database, engines) = runtime.block_on(async {
        let database = Database::fresh().await;
        let mut engines = Vec::new();
        for (conforming, quote) in [("on", "on"), ("off", "on"), ("off", "off"), ("on", "off")] {
            let options = database.options().options([("standard_conforming_strings", conforming)]);
            let options = options.options([("escape_string_warning", "off"), ("backslash_quote", quote)]);
            engines.push(engine(&Database::pool_with(options, 1).await));
        }
        (database, engines)
    });
    let text = prop_oneof![any::<String>(), "['\\\\;E\\-/*$]{0,12}", "(\\\\|'|\\PC){0,8}"];
    let count = std::cell::Cell::new(0);
    proptest!(ProptestConfig::with_cases(300), |(value in text)| {
        let value: String = value.chars().filter(|character| *character != '\0').collect();
        let n = count.get() + 1;
        count.set(n);
        for idempotency in &engines {
            let key = IdempotencyKey::new(format!("{n}")).unwrap();
            let request = IdempotentRequest::new(Scope::global(), Operation::new("o"), key, Fingerprint::of(["f"]))
                .with_local_settings(LocalSettings::new().set("app.first", &*value).set("app.second", "2"));
            let read: (String, String) = runtime.block_on(async {
                let axum_idempotency::Claim::Fresh(mut attempt) = idempotency.claim(request).await.unwrap() else {
                    panic!("a free key")
                };
                let asked = sqlx::query_as("select current_setting('app.first'), current_setting('app.second')");
                let read = asked.fetch_one(attempt.connection()).await.unwrap();
                attempt.release().await.unwrap();
                read
            });
            prop_assert_eq!(&read, &(value.clone(), "2".to_owned()));
        }
    });
    runtime.block_on(async { drop(engines) });
    drop(database);
}

#[tokio::test]
async fn f91_a_handler_that_does_not_take_its_tx_is_said_once_for_each_operation() {
    const SAID: &str = "without having taken Tx";

    let database = Database::fresh().await;
    let idempotent = layer(engine(&database.pool().await));
    let bare = async || StatusCode::CREATED;
    let app = Router::new()
        .route("/one", route(bare).layer(idempotent.clone()))
        .route("/two", route(bare).layer(idempotent.clone()))
        .route("/fails", route(async || StatusCode::NOT_FOUND).layer(idempotent.clone()))
        .route("/takes", route(create).layer(idempotent.clone()))
        .route("/needs-none", route(bare).layer(idempotent.clone().without_tx()));
    let (log, _listening) = log();
    for (path, said) in [("/one", 1), ("/one", 1), ("/two", 2), ("/fails", 2), ("/takes", 2), ("/needs-none", 2)] {
        for key in ["a", "b"] {
            reply(&app, post(path).key(key)).await;
        }
        assert_eq!(log.matches(SAID), said, "{path}: {}", log.text());
    }
    assert!(log.text().contains("WARN") && log.text().contains("mut tx: Tx"), "{}", log.text());
}

#[tokio::test]
async fn f91_where_tx_is_required_a_handler_that_does_not_take_it_is_refused_and_nothing_is_stored() {
    let database = Database::fresh().await;
    let strict = layer(engine(&database.pool().await)).require_tx();
    let app = app_with(strict.clone(), async || StatusCode::CREATED);
    let refused = reply(&app, post("/things").key("k")).await;
    refused.assert_refused(RejectionKind::Misconfigured);
    assert!(refused.text().contains("without having taken Tx"), "{}", refused.text());
    assert_eq!(database.rows().await, []);
    // One who takes it may do nothing with it; one who fails has nothing to protect.
    for (app, status) in
        [(app_with(strict.clone(), create), 201), (app_with(strict, async || StatusCode::BAD_REQUEST), 400)]
    {
        assert_eq!(reply(&app, post("/things").key("k")).await.status, status);
        database.expire().await;
    }
}

/// What `Tx` says of it: a setting of the session stays for the next request on that connection, unless the request's own
/// settings name it.
#[tokio::test]
async fn f95_a_session_setting_that_a_handler_leaves_behind_does_not_reach_a_request_with_its_own() {
    let database = Database::fresh().await;
    let idempotency = engine(&database.pool_of(1).await);
    let leaving = app_with(layer(idempotency.clone()), |mut tx: Tx| async move {
        tx.execute("select set_config('app.tenant', 'mallory', false)").await.unwrap();
        effect(&mut tx).await;
    });
    let tenant = |mut tx: Tx| async move {
        let connection: &mut PgConnection = &mut tx;
        let tenant: Option<String> =
            sqlx::query_scalar("select current_setting('app.tenant', true)").fetch_one(connection).await.unwrap();
        tenant.unwrap_or_default()
    };
    assert_eq!(reply(&leaving, post("/things").key("a")).await.status, StatusCode::OK);
    let own = app_with(by_tenant(layer(idempotency.clone())), tenant);
    assert_eq!(reply(&own, post("/things").key("b")).await.text(), "alice");
    let none = app_with(layer(idempotency.clone()), tenant);
    assert_eq!(reply(&none, post("/things").key("c")).await.text(), "mallory");
    // A failure takes its settings along.
    let failing = app_with(layer(idempotency), |mut tx: Tx| async move {
        tx.execute("select set_config('app.tenant', 'eve', false)").await.unwrap();
        StatusCode::INTERNAL_SERVER_ERROR
    });
    reply(&failing, post("/things").key("d")).await;
    assert_eq!(reply(&none, post("/things").key("e")).await.text(), "mallory");
}

//! The program of the README, as it stands there.
//!
//! ```sh
//! DATABASE_URL=postgres://… cargo run --example charges
//! ```

use std::time::Duration;

use axum::{
    Extension, Json, Router,
    extract::Request,
    http::StatusCode,
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::post,
};
use axum_idempotency::{Idempotency, IdempotencyLayer, Pruner, Rejection, Scope, Tx};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    axum_idempotency::migrate(&pool).await?;
    sqlx::raw_sql(ACCOUNTS).execute(&pool).await?;

    let idempotency = Idempotency::new(&pool);
    let pruner = tokio::spawn(Pruner::new(idempotency.clone()).run_until(stop()));
    let address = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    axum::serve(listener, app(&idempotency)).with_graceful_shutdown(stop()).await?;
    idempotency.drain(Duration::from_secs(30)).await; // Requests whose clients have gone are finished.
    pruner.await?;
    Ok(())
}

fn app(idempotency: &Idempotency) -> Router {
    let idempotent = IdempotencyLayer::new(idempotency.clone(), |head| {
        head.extensions.get::<Tenant>().map(|tenant| Scope::new(&tenant.0))
    });
    Router::new()
        .route("/charges", post(charge).layer(idempotent.operation("charge.create")))
        .layer(from_fn(authenticate))
}

/// What it writes through `tx` is committed together with its response, or not at all.
async fn charge(
    Extension(tenant): Extension<Tenant>,
    mut tx: Tx,
    Json(charge): Json<Charge>,
) -> Result<Response, Rejection> {
    let balance: Option<i64> = sqlx::query_scalar(
        "update account set balance = balance - $3 where tenant = $1 and id = $2 and balance >= $3 returning balance",
    )
    .bind(&tenant.0)
    .bind(&charge.account)
    .bind(i64::from(charge.amount))
    .fetch_optional(&mut tx)
    .await?;
    Ok(match balance {
        Some(balance) => (StatusCode::CREATED, Json(Charged { balance })).into_response(),
        None => StatusCode::PAYMENT_REQUIRED.into_response(),
    })
}

#[derive(Deserialize)]
struct Charge {
    account: String,
    amount: u32,
}

#[derive(Serialize)]
struct Charged {
    balance: i64,
}

/// The owner of a request and of its key.
#[derive(Clone)]
struct Tenant(String);

async fn authenticate(mut request: Request, next: Next) -> Response {
    match request.headers().get("authorization").map(|token| token.as_bytes()) {
        Some(b"Bearer acme-token") => request.extensions_mut().insert(Tenant("acme".to_owned())),
        _ => return StatusCode::UNAUTHORIZED.into_response(),
    };
    next.run(request).await
}

async fn stop() {
    drop(tokio::signal::ctrl_c().await);
}

const ACCOUNTS: &str = "
    create table if not exists account (tenant text, id text, balance bigint not null, primary key (tenant, id));
    insert into account values ('acme', 'a-1', 100) on conflict do nothing;
";

//! The only code that makes databases and drives routers.

mod clients;
mod clock;
mod database;
mod http;
mod log;
mod pooler;
mod proxy;
mod wire;

pub use self::{
    clients::{Client, Seen},
    clock::{Clock, START, moment},
    database::Database,
    http::{Ask, Gate, Reply, get, post, reply, serve},
    log::log,
    pooler::pooler,
    proxy::{Cut, Silence, proxy, silent_proxy},
};

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use axum_idempotency::{Idempotency, IdempotencyLayer, Scope, Tx};
use sqlx::PgPool;

/// The engine as most tests use it: on a pool of its own; or sharing the test's, if `IDEMPOTENCY_SHARES_POOL` is set, so
/// that the whole suite can be run in both ways.
pub fn engine(pool: &PgPool) -> Idempotency {
    if shares_pool() { Idempotency::sharing(pool).max_connections(u32::MAX) } else { Idempotency::new(pool) }
}

pub fn shares_pool() -> bool {
    std::env::var_os("IDEMPOTENCY_SHARES_POOL").is_some()
}

/// The layer as most tests use it: the owner stands in a header, as if an authentication had put it there.
pub fn layer(idempotency: Idempotency) -> IdempotencyLayer {
    IdempotencyLayer::new(idempotency, owner)
}

pub fn owner(parts: &Parts) -> Option<Scope> {
    parts.headers.get("x-owner")?.to_str().ok().map(Scope::new)
}

/// `POST /things` under the default layer, with this handler.
pub fn app<H, T>(pool: &PgPool, handler: H) -> Router
where
    H: axum::handler::Handler<T, ()>,
    T: 'static,
{
    app_with(layer(engine(pool)), handler)
}

pub fn app_with<H, T>(layer: IdempotencyLayer, handler: H) -> Router
where
    H: axum::handler::Handler<T, ()>,
    T: 'static,
{
    Router::new().route("/things", axum::routing::post(handler).layer(layer))
}

/// How often a handler ran.
#[derive(Clone, Default)]
pub struct Runs(Arc<AtomicUsize>);

impl Runs {
    /// Counts one more and says how many it was.
    pub fn one(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// A handler's effect: one row in the table `effect`.
pub async fn effect(tx: &mut sqlx::PgConnection) -> i64 {
    sqlx::query_scalar("insert into effect (note) values ('done') returning id").fetch_one(tx).await.unwrap()
}

/// A handler that leaves one effect and answers 201 with its number.
pub async fn create(mut tx: Tx) -> Response {
    let id = effect(&mut tx).await;
    (StatusCode::CREATED, id.to_string()).into_response()
}

/// A handler that leaves one effect and answers with this status.
pub fn answering(status: u16) -> impl FnOnce(Tx) -> Boxed + Clone + Send + Sync + 'static {
    move |mut tx: Tx| {
        Box::pin(async move {
            let id = effect(&mut tx).await;
            (StatusCode::from_u16(status).unwrap(), id.to_string()).into_response()
        })
    }
}

type Boxed = std::pin::Pin<Box<dyn Future<Output = Response> + Send>>;

/// Runs all at once on this runtime, and gives what they gave in their order.
pub async fn all<T: Send + 'static>(
    futures: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let tasks: Vec<_> = futures.into_iter().map(tokio::spawn).collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}

/// Lets every task that is not waiting for the network come to where it waits. Duplicates within a process need no
/// network, so on a runtime of one thread they are then known to wait.
pub async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

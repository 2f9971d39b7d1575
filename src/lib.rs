//! Draft.

// Floor 1: words. No I/O, no sqlx, no axum.
mod bounded;
mod error;
mod fingerprint;
mod key;
mod operation;
mod request;
mod response;
mod retention;
mod scope;

// Floor 2: the engine, on PostgreSQL. No HTTP server.
mod engine;
mod postgres;

// Floor 3: Axum and Tower.
#[cfg(feature = "axum")]
pub mod middleware;

#[cfg(feature = "axum")]
pub use self::middleware::{
    Disposition, IdempotencyLayer, IdempotencyService, Rejection, RejectionKind, ResponseFuture, Tx,
};
pub use self::{
    engine::{Attempt, Claim, ClaimUsing, Concurrency, Idempotency, Pruner, Ran, Rejected},
    error::{Error, ErrorKind},
    fingerprint::Fingerprint,
    key::{IdempotencyKey, InvalidKey},
    operation::Operation,
    postgres::schema::{MIGRATOR, migrate},
    request::IdempotentRequest,
    response::StoredResponse,
    retention::{InvalidRetention, Retention},
    scope::Scope,
};

//! The Tower layer for Axum, and what it promises.
//!
//! For a request with an `Idempotency-Key`, the layer does one of five things:
//!
//! 1. **Execute.** The key is free: the handler runs, its effects and its answer are committed together, and the
//!    answer is sent after the commit. What the answer's status does to both is the table of [`Disposition::of`].
//! 2. **Replay.** The key was answered: the stored status, header fields and body are sent again, with
//!    `Idempotent-Replayed: true`. The handler is not called and nothing is written.
//! 3. **Wait.** The key is being executed: the request waits for that answer ([`Concurrency`](crate::Concurrency)),
//!    or gets 409 `in-flight`.
//! 4. **Refuse.** The key was used for another request: 422 `key-reused`. It was answered, and the answer was not kept:
//!    409 `response-not-retained`. It [bears a time](crate::TimestampedKeys) that is too old, or in the future: 412
//!    `key-expired`, 400 `key-from-future`.
//! 5. **Fail closed.** The database cannot be reached: 503, and nothing is executed.
//!
//! Methods other than POST and PATCH pass through untouched. A request without a key is refused with 400, or executed
//! without being remembered on an [`optional`](IdempotencyLayer::optional) route.
//!
//! # Example
//!
//! ```no_run
//! use axum::{Json, Router, http::StatusCode, routing::post};
//! use axum_idempotency::{Idempotency, IdempotencyLayer, Rejection, Scope, Tx};
//!
//! #[derive(Clone)]
//! struct TenantId(String);
//!
//! # fn app(pool: sqlx::PgPool) -> Router {
//! // The authentication outside puts the tenant into the request's extensions.
//! let idempotent = IdempotencyLayer::new(Idempotency::new(&pool), |parts| {
//!     parts.extensions.get::<TenantId>().map(|tenant| Scope::new(&tenant.0))
//! });
//! Router::new()
//!     .route("/charges", post(charge).layer(idempotent.clone().operation("charge.create")))
//!     .route("/notes", post(charge).layer(idempotent.optional()))
//! # }
//!
//! async fn charge(mut tx: Tx, Json(amount): Json<i64>) -> Result<StatusCode, Rejection> {
//!     sqlx::query("update account set balance = balance - $1 where id = 7").bind(amount).execute(&mut tx).await?;
//!     Ok(StatusCode::CREATED)
//! }
//! ```
//!
//! # When a client goes away
//!
//! Dropping the response's future (the client has disconnected, a `TimeoutLayer` outside has given up, a `select!`)
//! does not stop a request: it goes on as a task, is committed, and its retry finds the answer. Otherwise a client with
//! less patience than the handler needs could retry for ever. [`IdempotencyLayer::cancel_on_disconnect`] rolls it back
//! instead. [`Idempotency::drain`](crate::Idempotency::drain) waits for such requests at a shutdown.
//!
//! # When the handler fails
//!
//! | it | the client gets | afterwards |
//! |---|---|---|
//! | panics | the panic goes on to whatever catches it outside, such as `CatchPanicLayer` | nothing is kept |
//! | answers although a statement had failed | 500 `transaction-aborted` | nothing is kept |
//! | ends its transaction, or loses it in a savepoint | 500 `transaction-ended` | nothing is kept ([shared pools](crate::Idempotency::sharing) excepted) |
//! | takes longer than 60 seconds ([`handler_timeout`](IdempotencyLayer::handler_timeout)) | 503 `handler-timeout` | nothing is kept |
//! | keeps its `Tx` | 500 `connection-held` | nothing is kept; the key is free when it lets go |
//! | answers with more than the limit, a broken body, trailers or 1xx | 500 | nothing is kept |
//! | meets a constraint at the commit | 500 `commit-refused` | nothing is kept |
//! | loses its connection before, or during the commit | 503 `store-unavailable`, `outcome-unknown` | a retry finds out |
//!
//! # Which layer goes where
//!
//! Inside what authenticates, limits rates, compresses, decompresses, traces or adds CORS fields; outside what bounds the
//! handler's time. The table is in [`_docs::layers`](crate::_docs::layers), and what to tell clients in
//! [`_docs::clients`](crate::_docs::clients).
//!
//! # Caveats
//!
//! * The whole answer to a request with a key is held in memory and stored; trailers and gRPC are refused.
//! * Add it with `route_layer` or to a route. With `Router::layer` it also runs for requests that no route matches, and
//!   asks them for a key.
//! * **Only what goes through [`Tx`] is protected.** A handler that writes by the application's pool is called once for each
//!   key that is answered, but its effects are neither undone by a 500 nor committed with the response. The layer says so
//!   in the log; [`require_tx`](IdempotencyLayer::require_tx) refuses it.
//! * A request is finished even if its client goes away, so a handler that hangs holds its connection and its key, up to
//!   the [`handler_timeout`](IdempotencyLayer::handler_timeout). What goes on after its client has gone has the tracing
//!   span of its request, but not the task-locals of layers outside.
//! * The claim is the first statement of the transaction, so a handler cannot set another isolation level; the role's
//!   or the database's default applies. The answer is written by the role that the handler leaves behind.

// The layer and its settings.
mod config;
mod layer;
mod policy;
mod settings;
mod settings_fingerprint;

// Tower's part, and the flow.
mod flow;
mod future;
mod service;

// The request: its key, its operation, its body, and what tells it from others.
mod body;
mod canonical_json;
mod content;
mod fingerprint;
#[cfg(test)]
mod fingerprint_property;
mod header;
mod json_rpc;
mod multipart;
mod operation;
mod pairs;

// The handler, with a key and without one, and what it extracts.
mod execute;
mod executor;
mod extract;
mod handler;
mod keyless;
mod panic;
mod tx;
mod tx_use;

// The response: what is kept of it, and how it comes again.
mod capture;
mod codec;
mod disposition;
mod exchange;
mod fields;
mod outcome;

// The layer's own responses.
mod occurrence;
mod refuse;
mod rejection;
mod rejection_kind;

pub use self::{
    codec::BodyCodec, disposition::Disposition, future::ResponseFuture, layer::IdempotencyLayer,
    occurrence::Occurrence, outcome::Outcome, policy::Policy, rejection::Rejection, rejection_kind::RejectionKind,
    service::IdempotencyService, tx::Tx,
};

/// Takes any octets for the header field; what is taken for a key has to be one.
#[cfg(fuzzing)]
#[doc(hidden)]
#[allow(clippy::panic)]
pub fn fuzz_header(value: &[u8]) {
    for strict in [false, true] {
        let rules = header::KeyRules { strict, ..header::KeyRules::default() };
        if let Ok(key) = rules.parse(value) {
            let key = key.as_str();
            assert!((1..=255).contains(&key.len()) && key.bytes().all(|byte| (0x21..=0x7e).contains(&byte)));
        }
    }
}

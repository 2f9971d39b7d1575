//! The Tower layer for Axum, and what it promises.
//!
//! For a request with an `Idempotency-Key`, the layer does one of five things:
//!
//! 1. **Execute.** If the key is free, the handler runs, its effects and its response are committed together, and the
//!    response is sent after the commit. The response's status decides what is kept: see [`Disposition::of`].
//! 2. **Replay.** If the key has a response, the stored status, header fields and body are sent again, with
//!    `Idempotent-Replayed: true`. The handler is not called and nothing is written.
//! 3. **Wait.** If a request with the key is running, the new one waits for its response
//!    ([`Concurrency`](crate::Concurrency)), or gets 409 `in-flight`.
//! 4. **Refuse.** If the key was used for another request, the new one gets 422 `key-reused`. If the response was not
//!    kept, it gets 409 `response-not-retained`. If a [timestamped key](crate::TimestampedKeys) is too old, or from the
//!    future, it gets 412 `key-expired` or 400 `key-from-future`.
//! 5. **Fail closed.** If the database is unreachable, the request gets 503, and nothing is executed.
//!
//! Methods other than POST and PATCH pass through untouched. A request without a key is refused with 400. On an
//! [`optional`](IdempotencyLayer::optional) route it is executed, and nothing is stored for it.
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
//! The response's future may be dropped: because the client has disconnected, an outer `TimeoutLayer` has given up, or in a
//! `select!`. This does not stop a request with a key: it goes on as a task, is committed, and its retry finds the response.
//! Otherwise a client whose timeout is shorter than the handler needs could retry for ever.
//! [`IdempotencyLayer::cancel_on_disconnect`] rolls the request back instead.
//! [`Idempotency::drain`](crate::Idempotency::drain) waits for such requests at a shutdown.
//!
//! # When the handler fails
//!
//! | the handler | the client gets | afterwards |
//! |---|---|---|
//! | panics | the panic goes on to an outer layer that catches it, such as `CatchPanicLayer` | nothing is kept |
//! | responds although a statement had failed | 500 `transaction-aborted` | nothing is kept |
//! | ends its transaction, or loses it in a savepoint | 500 `transaction-ended` | nothing is kept (except on [shared pools](crate::Idempotency::sharing)) |
//! | takes longer than 60 seconds ([`handler_timeout`](IdempotencyLayer::handler_timeout)) | 503 `handler-timeout` | nothing is kept |
//! | keeps its `Tx` | 500 `connection-held` | nothing is kept; the key is free when the `Tx` is dropped |
//! | responds with more than the limit, a broken body, trailers or 1xx | 500 | nothing is kept |
//! | violates a constraint at the commit | 500 `commit-refused` | nothing is kept |
//! | loses its connection before or during the commit | 503 `store-unavailable` or `outcome-unknown` | a retry finds out what happened |
//!
//! # Which layer goes where
//!
//! Put this layer inside layers that authenticate, limit rates, compress, decompress, trace or add CORS fields, and outside
//! layers that bound the handler's time. [`_docs::layers`](crate::_docs::layers) has the table, and
//! [`_docs::clients`](crate::_docs::clients) has the text for clients.
//!
//! # Caveats
//!
//! * The whole response to a request with a key is held in memory and stored; trailers and gRPC are refused.
//! * Add the layer with `route_layer` or to a route. With `Router::layer` it also runs for requests that match no route, and
//!   requires a key of them.
//! * **Only writes through [`Tx`] are protected.** A handler that writes through the application's pool is called once
//!   for each key that gets a response, but its effects are neither undone by a 500 nor committed with the response. The
//!   layer says so in the log; [`require_tx`](IdempotencyLayer::require_tx) refuses such a handler.
//! * A request is finished even if its client goes away, so a handler that hangs holds its connection and its key, up to
//!   the [`handler_timeout`](IdempotencyLayer::handler_timeout). A request that goes on without its client has its
//!   tracing span, but not the task-locals of outer layers.
//! * The claim is the first statement of the transaction, so a handler cannot set another isolation level; the default of
//!   the role or the database applies. The response is written with the role that the handler has set last.

// The layer and its settings.
mod config;
mod layer;
mod policy;
mod settings;
mod settings_fingerprint;

// The Tower service, and the flow.
mod flow;
mod future;
mod service;

// The request: its key, its operation, its body and its fingerprint.
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

// The response: which parts are stored, and how they are replayed.
mod capture;
mod codec;
mod disposition;
mod exchange;
mod fields;
mod outcome;

// The layer's rejections.
mod occurrence;
mod refuse;
mod rejection;
mod rejection_kind;

pub use self::{
    codec::BodyCodec, disposition::Disposition, future::ResponseFuture, layer::IdempotencyLayer,
    occurrence::Occurrence, outcome::Outcome, policy::Policy, rejection::Rejection, rejection_kind::RejectionKind,
    service::IdempotencyService, tx::Tx,
};

/// Parses any octets as the header field; if they are accepted, the result must be a valid key.
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

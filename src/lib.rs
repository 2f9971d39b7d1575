//! Makes HTTP endpoints safe to retry: a Tower layer for Axum that commits the writes of a handler and its response in one
//! PostgreSQL transaction, once for each `Idempotency-Key`.
//!
#![doc = include_str!("docs/program.md")]
//!
//! The client names its intent with a key, and repeats the request with the same key when it gets no response. The first
//! request executes; each later one gets the stored response, byte for byte.
//!
//! * [`middleware`] has the layer for HTTP, and says what it promises.
//! * [`Idempotency`] is the engine alone, for consumers of a message broker and for the application's own transactions.
//! * [`migrate`] makes the tables. [`Retention`], [`TimestampedKeys`] and [`Pruner`] say how long keys are kept.
//! * The guides: [existing applications](_docs::existing), [handlers](_docs::handlers), [testing](_docs::testing),
//!   [settings](_docs::settings), [layers](_docs::layers), [connections](_docs::connections),
//!   [retention](_docs::retention), [header fields](_docs::fields), [clients](_docs::clients),
//!   [problem types](_docs::problems), [cost](_docs::performance).
//!
//! # What is guaranteed
//!
//! * **At most one execution commits** for each owner, operation and key within the retention of the key (or for ever, with
//!   [timestamped keys](TimestampedKeys)), whatever the number of concurrent duplicates, processes and crashes. The claim is
//!   one atomic `INSERT … ON CONFLICT`.
//! * **Effects and response are committed together**, or neither is. No byte of a response is sent before its commit is
//!   acknowledged.
//! * **There is no third state.** A key is free, held by a live transaction, or has a response. A crash frees it at once,
//!   or within two seconds if the server was executing a statement; there are no leases, and nothing to clean up.
//! * **Nothing that the work writes is durable without the stored response**, whatever the work does with its connection.
//! * **The layer fails closed.** The handler does not run if the database is unreachable, the request has no owner, or
//!   the payload differs from that of the first request with the key.
//! * **A client that disconnects does not stop its request**, if the request has a key. The attempt goes on, and the
//!   retry gets its response.
//!
//! # What is not guaranteed
//!
//! * Effects outside the transaction are not covered: what a handler writes on another connection than its [`Tx`], mail,
//!   a call to another service. Pass such a service its own key, from [`IdempotentRequest::derive_key`], so that it can
//!   recognise the second call.
//! * Responses are not streamed: they are held in memory and stored, up to a limit.
//! * Databases that do not speak PostgreSQL's protocol and SQL are not supported.
//!
//! # Logging
//!
//! Events have the target `axum_idempotency`, or a module below it. Each request with a key, and each rejection, is
//! logged at `DEBUG`, with its `operation` and `outcome` (a disposition, `replayed`, or the name of a rejection).
//! Failures of the database and mistakes of the application are logged at `WARN` or `ERROR`, with their cause. Each round
//! of a pruner that did something is logged at `DEBUG`, with `deleted`, `responses_dropped`, `partitions_made` and
//! `partitions_dropped`. Keys and bodies are never logged.
//!
//! # Features
//!
//! * `axum` (default) has the layer and the extractors. Without it only the engine is built, without axum and tower.
//!
//! The crate does not choose sqlx's runtime features or TLS. The application does, as in
//! `sqlx = { version = "0.9", features = ["runtime-tokio", …] }`. Tokio is required.

#![cfg_attr(docsrs, feature(doc_cfg))]
// A duration or a time from a setting, a client or a table may be the longest that its type can hold.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

// Floor 1: words. No I/O, no sqlx, no axum.
mod bounded;
mod error;
mod fingerprint;
mod key;
mod local_settings;
mod operation;
mod request;
mod response;
mod retention;
mod scope;
mod stats;
mod timestamped_keys;
mod unless;

// Floor 2: the engine, on PostgreSQL. No HTTP server.
mod engine;
mod postgres;

// Floor 3: Axum and Tower.
#[cfg(feature = "axum")]
pub mod middleware;

#[cfg(feature = "axum")]
#[doc(inline)]
pub use self::middleware::{
    BodyCodec, Disposition, IdempotencyLayer, IdempotencyService, Occurrence, Outcome, Policy, Rejection,
    RejectionKind, ResponseFuture, Tx,
};
#[doc(inline)]
pub use self::{
    engine::{Attempt, Claim, ClaimUsing, Concurrency, Duplicate, Idempotency, Pruner, Ran, Rejected},
    error::{Error, ErrorKind},
    fingerprint::Fingerprint,
    key::{IdempotencyKey, InvalidKey},
    local_settings::LocalSettings,
    operation::Operation,
    postgres::schema::{MIGRATOR, PARTITIONED_MIGRATOR, migrate, migrate_partitioned},
    request::IdempotentRequest,
    response::{KeyStatus, StoredResponse, Tombstone, Window},
    retention::{InvalidRetention, Retention},
    scope::Scope,
    stats::{Erased, OperationStats, Pruned, Stats},
    timestamped_keys::{KeyTimeError, TimestampedKeys},
};

/// Functions for the fuzz targets; only compiled with `--cfg fuzzing`.
#[cfg(all(fuzzing, feature = "axum"))]
#[doc(hidden)]
#[allow(missing_docs, clippy::missing_panics_doc)]
pub mod fuzzing {
    pub use crate::{middleware::fuzz_header as header, postgres::row::fuzz_row as row};
}

/// The guides, in the order in which they are best read.
pub mod _docs {
    #[cfg(feature = "axum")]
    #[doc = include_str!("docs/existing.md")]
    pub mod existing {}

    #[cfg(feature = "axum")]
    #[doc = include_str!("docs/handlers.md")]
    pub mod handlers {}

    #[doc = include_str!("docs/testing.md")]
    pub mod testing {}

    #[doc = include_str!("docs/settings.md")]
    pub mod settings {}

    #[doc = include_str!("docs/layers.md")]
    pub mod layers {}

    #[doc = include_str!("docs/connections.md")]
    pub mod connections {}

    #[doc = include_str!("docs/retention.md")]
    pub mod retention {}

    #[doc = include_str!("docs/fields.md")]
    pub mod fields {}

    #[doc = include_str!("docs/clients.md")]
    pub mod clients {}

    #[doc = include_str!("docs/problems.md")]
    pub mod problems {}

    #[doc = include_str!("docs/performance.md")]
    #[doc = include_str!("../benches/results/throughput.svg")]
    pub mod performance {}

    #[doc = include_str!("../CHANGELOG.md")]
    pub mod changelog {}
}

#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
mod readme {}

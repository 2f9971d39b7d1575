//! Every test talks to a real PostgreSQL, in a database of its own; races are steered, not slept.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, clippy::mem_forget, clippy::needless_pass_by_value)]
#![allow(clippy::match_wildcard_for_single_variants)]
#![allow(missing_docs, missing_debug_implementations, unreachable_pub)]

mod support;

mod answers;
mod api;
mod backends;
mod cancellation;
mod composition;
mod concurrency;
mod consumer;
mod cost;
mod dispositions;
mod duplicates;
mod examples;
mod expiry;
mod faults;
mod fingerprints;
mod guard;
mod key_reuse;
mod keys;
mod limits;
mod migrations;
mod on_the_wire;
mod operators;
mod outside;
mod pool;
mod properties;
mod readers;
mod refusals;
mod replay;
mod rollback;
mod scope;
mod session;
mod silence;
mod stand_ins;
mod statements;
mod tidy;
mod timed;
mod tx;
mod verdicts;

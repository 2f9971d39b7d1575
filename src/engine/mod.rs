//! Floor 2, upper half: claims and attempts, without HTTP.

// The value that everything begins with, and its settings.
mod concurrency;
mod idempotency;
mod settings;

// Whose turn it is.
mod claim;
mod claim_using;
mod duplicate;
mod patience;
mod timing;
mod verdict;

// What this process knows.
mod clocks;
mod identity;
mod in_flight;
mod recent;

// The work, and how it ends.
mod attempt;
mod backlog;
#[cfg(feature = "axum")]
mod keyless;
mod run;
mod uninterrupted;

// Forgetting.
mod pruner;

#[cfg(feature = "axum")]
pub(crate) use self::{attempt::Slow, keyless::Keyless};
pub use self::{
    attempt::{Attempt, Rejected},
    claim::{Claim, ClaimUsing},
    concurrency::Concurrency,
    duplicate::Duplicate,
    idempotency::Idempotency,
    pruner::Pruner,
    run::Ran,
};
pub(crate) use self::{backlog::Backlog, uninterrupted::Uninterrupted};
#[cfg(feature = "axum")]
pub(crate) use crate::postgres::{error::of_work, transaction::probe};

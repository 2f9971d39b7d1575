//! The same endpoint, protected in different ways.

mod by_hand;
mod kept;
mod merged;
mod ours;
mod peer;
mod plain;
mod two_transactions;
mod zero_to_production;

use std::error::Error;

use axum::{Router, routing::post};

use crate::work::Stage;

/// A way to write `POST /charges`, or something to hold it against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Variant {
    Bare,
    ByHand,
    /// As `ByHand`, in as few messages as there can be.
    Merged,
    Ours,
    /// As `Ours`, for keys that another process has answered.
    OursElsewhere,
    /// As `Ours`, with answers in memory.
    OursInMemory,
    TwoTransactions,
    ZeroToProduction,
    PeerInMemory,
    PeerInRedis,
    Select,
    Constant,
}

impl Variant {
    pub(crate) const ALL: [Self; 12] = [
        Self::Bare,
        Self::ByHand,
        Self::Merged,
        Self::Ours,
        Self::OursElsewhere,
        Self::OursInMemory,
        Self::TwoTransactions,
        Self::ZeroToProduction,
        Self::PeerInMemory,
        Self::PeerInRedis,
        Self::Select,
        Self::Constant,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::ByHand => "by hand",
            Self::Merged => "by hand, two messages",
            Self::Ours => "ours",
            Self::OursElsewhere => "ours, other process",
            Self::OursInMemory => "ours, from memory",
            Self::TwoTransactions => "two transactions",
            Self::ZeroToProduction => "zero2prod",
            Self::PeerInMemory => "axum-idempotent, memory",
            Self::PeerInRedis => "axum-idempotent, Redis",
            Self::Select => "select by primary key",
            Self::Constant => "constant",
        }
    }

    /// A database of its own, so that its statistics are.
    pub(crate) fn database(self) -> String {
        self.name().replace([' ', ',', '-'], "_").to_lowercase()
    }

    /// Whether duplicates in parallel are executed once, and whether all of them get the answer.
    pub(crate) fn in_a_storm(self) -> (bool, bool) {
        match self {
            Self::ByHand
            | Self::Merged
            | Self::Ours
            | Self::OursElsewhere
            | Self::OursInMemory
            | Self::ZeroToProduction => (true, true),
            Self::TwoTransactions => (true, false),
            _ => (false, false),
        }
    }

    /// Whether a replay says that it is one.
    pub(crate) fn marks_replays(self) -> bool {
        !matches!(self, Self::Bare | Self::Select | Self::Constant)
    }

    pub(crate) async fn router(self, stage: Stage) -> Result<Router, Box<dyn Error>> {
        let route = Router::new();
        let router = match self {
            Self::Bare => route.route("/charges", post(plain::bare)),
            Self::ByHand => route.route("/charges", post(by_hand::handler)),
            Self::Merged => route.route("/charges", post(merged::handler)),
            Self::Ours | Self::OursElsewhere => return Ok(ours::router(stage)),
            Self::OursInMemory => return Ok(ours::remembering(stage)),
            Self::TwoTransactions => route.route("/charges", post(two_transactions::handler)),
            Self::ZeroToProduction => route.route("/charges", post(zero_to_production::handler)),
            Self::PeerInMemory => return Ok(peer::in_memory(stage)),
            Self::PeerInRedis => return peer::in_redis(stage, &std::env::var("REDIS_URL")?).await,
            Self::Select => route.route("/charges", post(plain::select)),
            Self::Constant => route.route("/charges", post(plain::constant)),
        };
        Ok(router.with_state(stage))
    }

    /// Where keys are used for the first time before they are replayed; `None` if that is the same router.
    pub(crate) fn first_router(self, stage: Stage) -> Option<Router> {
        match self {
            Self::OursElsewhere => Some(ours::router(stage)),
            Self::Select => Some(Router::new().route("/charges", post(plain::fill)).with_state(stage)),
            _ => None,
        }
    }
}

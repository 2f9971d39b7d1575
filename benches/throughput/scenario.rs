//! What is asked of the variants.

use std::time::Duration;

use crate::variants::Variant::{
    self, Bare, ByHand, Constant, Merged, Ours, OursElsewhere, OursInMemory, PeerInMemory, PeerInRedis, Select,
    TwoTransactions, ZeroToProduction,
};

/// What the clients send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Keys that nobody has used.
    First,
    /// Keys that were answered.
    Replay,
    /// One of each in turn.
    Half,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) load: Load,
    pub(crate) clients: usize,
    pub(crate) request_bytes: usize,
    pub(crate) response_bytes: usize,
    pub(crate) pause: Duration,
    /// A millisecond more for each round trip to the database.
    pub(crate) delayed: bool,
    /// All clients have one owner.
    pub(crate) hot: bool,
    pub(crate) variants: &'static [Variant],
    /// What the others are held against.
    pub(crate) references: [Variant; 2],
}

const OWN: &[Variant] = &[Bare, ByHand, Merged, Ours, TwoTransactions, ZeroToProduction];
const ALL: &[Variant] = &[Bare, ByHand, Merged, Ours, TwoTransactions, ZeroToProduction, PeerInMemory, PeerInRedis];
const REPLAYS: &[Variant] = &[
    Select,
    Constant,
    ByHand,
    Ours,
    OursElsewhere,
    OursInMemory,
    TwoTransactions,
    ZeroToProduction,
    PeerInMemory,
    PeerInRedis,
];

/// First calls of 16 clients with small bodies: the others are held against it.
const USUAL: Scenario = Scenario {
    name: "first calls, 16 clients",
    load: Load::First,
    clients: 16,
    request_bytes: 100,
    response_bytes: 100,
    pause: Duration::ZERO,
    delayed: false,
    hot: false,
    variants: ALL,
    references: [Bare, ByHand],
};

const KIB: usize = 1024;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario { name: "first calls, 1 client", clients: 1, ..USUAL },
    USUAL,
    Scenario { name: "first calls, 64 clients", clients: 64, ..USUAL },
    Scenario { name: "first calls, 16 clients, hot scope", hot: true, variants: OWN, ..USUAL },
    Scenario {
        name: "first calls, 16 clients, 1 KiB bodies",
        request_bytes: KIB,
        response_bytes: KIB,
        variants: OWN,
        ..USUAL
    },
    Scenario {
        name: "first calls, 16 clients, 100 KiB bodies",
        request_bytes: 100 * KIB,
        response_bytes: 100 * KIB,
        variants: OWN,
        ..USUAL
    },
    Scenario { name: "first calls, 16 clients, 50 ms handler", pause: Duration::from_millis(50), ..USUAL },
    Scenario { name: "first calls, 1 client, +1 ms a round trip", clients: 1, delayed: true, variants: OWN, ..USUAL },
    Scenario { name: "first calls, 16 clients, +1 ms a round trip", delayed: true, variants: OWN, ..USUAL },
    Scenario {
        name: "replays, 16 clients",
        load: Load::Replay,
        variants: REPLAYS,
        references: [Select, Constant],
        ..USUAL
    },
    Scenario { name: "half replays, 16 clients", load: Load::Half, ..USUAL },
];

/// Who is asked in a storm of duplicates; the first is what as many requests take that share nothing.
pub(crate) const STORM: &[Variant] =
    &[Constant, ByHand, Ours, TwoTransactions, ZeroToProduction, PeerInMemory, PeerInRedis];

/// Whose statements, WAL and dead rows are counted.
pub(crate) const COUNTED: &[Variant] = OWN;

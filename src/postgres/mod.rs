//! Floor 2, lower half: the only SQL of the crate.

pub(crate) mod begin;
pub(crate) mod claim;
pub(crate) mod connections;
pub(crate) mod error;
#[cfg(feature = "axum")]
pub(crate) mod keyless;
mod lent;
mod literal;
pub(crate) mod lookup;
mod own;
pub(crate) mod partitions;
pub(crate) mod prune;
pub(crate) mod record;
pub(crate) mod row;
pub(crate) mod schema;
mod sending;
#[cfg(feature = "axum")]
pub(crate) mod slow;
mod sql;
pub(crate) mod stats;
mod table;
pub(crate) mod time;
mod token;
pub(crate) mod transaction;
pub(crate) mod windows;

pub(crate) use self::{
    connections::{Connections, PoolSettings},
    sending::Sending,
    table::Table,
};

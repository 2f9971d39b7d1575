//! Floor 2, lower half: the only SQL of the crate.

pub(crate) mod begin;
pub(crate) mod claim;
pub(crate) mod connections;
pub(crate) mod error;
mod lent;
mod literal;
pub(crate) mod lookup;
mod own;
pub(crate) mod partitions;
mod place;
pub(crate) mod prune;
pub(crate) mod record;
pub(crate) mod row;
pub(crate) mod schema;
mod sending;
#[cfg(feature = "axum")]
pub(crate) mod slow;
mod sql;
pub(crate) mod stats;
pub(crate) mod time;
pub(crate) mod transaction;
#[cfg(feature = "axum")]
pub(crate) mod unkeyed;
pub(crate) mod windows;

pub(crate) use self::{
    connections::{Connections, PoolSettings},
    place::Place,
    sending::Sending,
};

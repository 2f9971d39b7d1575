//! Handlers that have a key and do not take their `Tx`.

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
};

use tracing::warn;

use super::{rejection::Rejection, rejection_kind::RejectionKind};
use crate::Operation;

/// What is expected of handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TxUse {
    /// That they take `Tx`; otherwise it is said.
    Expected,
    /// That they take `Tx`; otherwise they are refused.
    Required,
    /// Nothing.
    Unneeded,
}

/// Of which operations it was said.
#[derive(Debug, Default)]
pub(super) struct Warned(Mutex<HashSet<Operation>>);

/// Where operations have no names, each path is one.
const MOST: usize = 1_000;

impl TxUse {
    /// A handler has responded with success, and its `Tx` was not taken.
    pub(super) fn judge(self, operation: &Operation, warned: &Warned) -> Result<(), Rejection> {
        match self {
            Self::Unneeded => Ok(()),
            Self::Expected => {
                if warned.is_first(operation) {
                    warn!(
                        %operation,
                        "the handler responded without having taken Tx: what it writes by another connection is neither \
                         committed with its response nor undone with it; take `mut tx: Tx` as an argument and run queries \
                         on `&mut tx`, or say IdempotencyLayer::without_tx if it writes nothing to this database"
                    );
                }
                Ok(())
            }
            Self::Required => Err(Rejection::new(
                RejectionKind::Misconfigured,
                "the handler responded without having taken Tx, which this operation requires; nothing was kept of what \
                 it did by that, the key is free",
            )),
        }
    }
}

impl Warned {
    fn is_first(&self, operation: &Operation) -> bool {
        let mut operations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        operations.len() < MOST && operations.insert(operation.clone())
    }
}

//! Detects handlers of requests with a key that do not take their `Tx`.

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
    /// They take `Tx`; otherwise a warning is logged.
    Expected,
    /// They take `Tx`; otherwise their responses are refused.
    Required,
    /// They need not take `Tx`.
    Unneeded,
}

/// The operations for which the warning was logged.
#[derive(Debug, Default)]
pub(super) struct Warned(Mutex<HashSet<Operation>>);

/// The maximum number of operations: if they have no names, each path is an operation.
const MOST: usize = 1_000;

impl TxUse {
    /// Checks a handler that has responded with success without having taken its `Tx`.
    pub(super) fn judge(self, operation: &Operation, warned: &Warned) -> Result<(), Rejection> {
        match self {
            Self::Unneeded => Ok(()),
            Self::Expected => {
                if warned.is_first(operation) {
                    warn!(
                        %operation,
                        "the handler responded without having taken Tx: its writes on another connection are neither \
                         committed nor undone with its response; take `mut tx: Tx` as an argument and run queries on \
                         `&mut tx`, or set IdempotencyLayer::without_tx if it writes nothing to this database"
                    );
                }
                Ok(())
            }
            Self::Required => Err(Rejection::new(
                RejectionKind::Misconfigured,
                "The handler responded without having taken Tx, which this operation requires; no response was stored, \
                 and the key is free. The handler must take `mut tx: Tx` as an argument.",
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

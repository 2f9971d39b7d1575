use std::{fmt, sync::Arc};

use crate::bounded;

/// The name of an operation, such as `charge.create`: the same key under another operation is another intent.
///
/// The layer's default is the method and the route's template (`POST /charges/{id}/refund`). If you rename the route, its
/// keys are no longer found. A name that you set with `IdempotencyLayer::operation` keeps them; but the path is also part
/// of the [`Fingerprint`](crate::Fingerprint), so retries under the new path are refused unless you replace the
/// fingerprint too.
///
/// Names have the same limits as those of a [`Scope`](crate::Scope).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Operation(Arc<str>);

impl Operation {
    /// Makes an operation with a stable name of your choice.
    pub fn new(name: impl AsRef<str>) -> Self {
        Self(bounded::name(name.as_ref()))
    }

    /// Returns the name, as stored in the column `operation`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Operation {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<String> for Operation {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Operation").field(&self.0).finish()
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

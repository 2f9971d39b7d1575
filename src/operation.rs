use std::{fmt, sync::Arc};

use crate::bounded;

/// What is being done, such as `charge.create`: the same key under another operation is another intent.
///
/// Behind the layer the default is the method and the route's template (`POST /charges/{id}/refund`). Renaming a route
/// then forgets its keys. A name of its own, by `IdempotencyLayer::operation`, keeps them; but the path is also part of
/// the [`Fingerprint`](crate::Fingerprint), so retries under the new path are refused unless that is given another way.
///
/// Names are bounded as those of a [`Scope`](crate::Scope) are.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Operation(Arc<str>);

impl Operation {
    /// An operation with a stable name of yours.
    pub fn new(name: impl AsRef<str>) -> Self {
        Self(bounded::name(name.as_ref()))
    }

    /// The name, as the column `operation` holds it.
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

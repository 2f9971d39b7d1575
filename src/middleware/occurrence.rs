use std::fmt;

use crate::error::Ended;

/// Whether a refused request was executed, now or before, as far as the layer knows; the member `occurrence` of the problem
/// document.
///
/// It speaks of what has been responded to: another request with the same key that is still under way, or comes later,
/// may be executed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Occurrence {
    /// `executed`: it was executed to its response, or has committed something by itself, and is not executed again under
    /// this key. What a response that [undoes its work](crate::Disposition::Reject) says has been decided counts too.
    Executed,
    /// `not-executed`: nothing of it has taken effect.
    NotExecuted,
    /// `unknown`: the layer cannot tell, for instance since the database does not say whether the key was used before.
    /// The same request again, under the same key, finds out where the refusal is
    /// [retryable](crate::RejectionKind::is_retryable).
    Unknown,
}

impl Occurrence {
    /// As it stands in the problem document.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Executed => "executed",
            Self::NotExecuted => "not-executed",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Occurrence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<Ended> for Occurrence {
    fn from(how: Ended) -> Self {
        match how {
            Ended::Committed => Self::Executed,
            Ended::Savepoint | Ended::Refused | Ended::ReadOnly => Self::NotExecuted,
            // What came after the rollback is durable, and may be all of it or nothing.
            Ended::RolledBack | Ended::Either => Self::Unknown,
        }
    }
}

use std::fmt;

use crate::error::Ended;

/// Whether a rejected request was executed, now or before, as far as the layer knows.
///
/// This is the member `occurrence` of the problem document. It describes requests that have ended: another request with
/// the same key that is still under way, or arrives later, may yet be executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Occurrence {
    /// `executed`: the request was executed and has a response, or has committed something by itself. It is not executed
    /// again under this key. A response that [undoes its work](crate::Disposition::Reject) counts too.
    Executed,
    /// `not-executed`: the request has had no effect.
    NotExecuted,
    /// `unknown`: the layer cannot tell, for instance because the database did not say whether the key was used before.
    /// If the rejection is [retryable](crate::RejectionKind::is_retryable), the same request again, under the same key,
    /// finds out.
    Unknown,
}

impl Occurrence {
    /// Returns the value in the problem document.
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
            Ended::Savepoint | Ended::Refused | Ended::ReadOnly | Ended::OutOfStep => Self::NotExecuted,
            // The writes after the rollback are durable; they may be all of the work or none of it.
            Ended::RolledBack | Ended::Either => Self::Unknown,
        }
    }
}

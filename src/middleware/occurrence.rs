use std::fmt;

use super::rejection::{Rejection, RejectionKind};
use crate::error::Ended;

/// Whether a refused request was executed, now or before, as far as the layer knows; the member `occurrence` of the problem
/// document.
///
/// It speaks of what has been responded to: another request with the same key that is still under way, or comes later, may be
/// executed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Occurrence {
    /// `executed`: it was executed to its response, or has committed something by itself, and is not executed again under this
    /// key. What a response that [undoes its work](crate::Disposition::Reject) says has been decided counts too.
    Executed,
    /// `not-executed`: nothing of it has taken effect.
    NotExecuted,
    /// `unknown`: the layer cannot tell, for instance since the database does not say whether the key was used before. The same
    /// request again, under the same key, finds out where the refusal is [retryable](RejectionKind::is_retryable).
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

impl RejectionKind {
    /// Whether the request was executed, if nothing more is known than the kind: then it is not executed only if it is certain
    /// that no earlier request with its key was.
    #[must_use]
    pub const fn occurrence(self) -> Occurrence {
        match self {
            Self::MissingKey
            | Self::InvalidKey
            | Self::KeyNotHandled
            | Self::KeyFromFuture
            | Self::TimeLimit
            | Self::ResponseTooLarge
            | Self::ResponseUnsupported
            | Self::ConnectionHeld
            | Self::TransactionAborted
            | Self::CommitRefused => Occurrence::NotExecuted,
            Self::ReplayRefused | Self::ResponseNotRetained | Self::AnswerUnreadable => Occurrence::Executed,
            Self::KeyExpired
            | Self::KeyReused
            | Self::Unscoped
            | Self::RequestUnreadable
            | Self::RequestTooLarge
            | Self::InFlight
            | Self::StoreUnavailable
            | Self::OutcomeUnknown
            | Self::TransactionEnded
            | Self::Misconfigured
            | Self::Internal => Occurrence::Unknown,
        }
    }
}

impl Rejection {
    /// For a request whose work began, which says that none was done under its key before, and was undone; or for one without
    /// a key, whose work was undone or did not begin.
    pub(super) fn undone(self) -> Self {
        match self.kind() {
            RejectionKind::StoreUnavailable | RejectionKind::Misconfigured | RejectionKind::Internal => {
                self.with_occurrence(Occurrence::NotExecuted)
            }
            _ => self,
        }
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

use crate::{Error, ErrorKind, KeyTimeError, StoredResponse, Tombstone};

/// The result for a request whose key is not free.
///
/// More may be added, so a `match` on it needs an arm for the rest; [`into_response`](Self::into_response) needs none.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum Duplicate {
    /// The work was done before. This is its response.
    Replay(StoredResponse),
    /// The work was done before, and its response was not retained.
    NotRetained(Tombstone),
    /// Another request under this key is running and did not end in time.
    InProgress,
    /// The key was used for a request with another fingerprint. No part of that request is revealed.
    KeyReused,
    /// The key's timestamp does not allow an execution. It happens only with
    /// [`timestamped_keys`](crate::Idempotency::timestamped_keys).
    KeyTime(KeyTimeError),
}

impl Duplicate {
    /// Makes the result from the stored response of the same request.
    pub(super) fn of(stored: StoredResponse) -> Self {
        match stored.tombstone() {
            None => Self::Replay(stored),
            Some(tombstone) => Self::NotRetained(tombstone),
        }
    }

    /// Returns the stored response.
    ///
    /// # Errors
    ///
    /// Returns an error if there is none for this request: [`NotRetained`](ErrorKind::NotRetained),
    /// [`InProgress`](ErrorKind::InProgress), [`KeyReused`](ErrorKind::KeyReused), [`KeyExpired`](ErrorKind::KeyExpired)
    /// or [`KeyFromFuture`](ErrorKind::KeyFromFuture).
    pub fn into_response(self) -> Result<StoredResponse, Error> {
        Err(Error::new(match self {
            Self::Replay(stored) => return Ok(stored),
            Self::NotRetained(_) => ErrorKind::NotRetained,
            Self::InProgress => ErrorKind::InProgress,
            Self::KeyReused => ErrorKind::KeyReused,
            Self::KeyTime(error) => error.into(),
        }))
    }
}

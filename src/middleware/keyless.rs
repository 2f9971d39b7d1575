//! Refuses a request without a key, or executes it in a transaction and stores nothing for it.

use axum::{body::Body, http::request::Parts, response::Response};
use tokio::time::timeout;

use super::{
    capture,
    config::Config,
    disposition::Disposition,
    handler::{Handler, Stop, blame, out_of_time},
    rejection::Rejection,
    rejection_kind::RejectionKind,
    tx::{Open, Returned, Slot, tolerate},
};
use crate::{LocalSettings, Operation};

/// Handles a request without a key. Its body is not read here, and its response is streamed: neither is stored.
pub(super) async fn keyless<E: Send + 'static>(
    config: &Config,
    handler: Handler<E>,
    parts: Parts,
    body: Body,
    operation: &Operation,
    settings: LocalSettings,
) -> Result<Response, Stop<E>> {
    if config.required {
        let detail = format!("This operation needs the header field {0}. Send a key in {0}.", config.header());
        return Err(Rejection::new(RejectionKind::MissingKey, detail).into());
    }
    let guarded = config.idempotency.has_guarded_sessions();
    let slot = Slot::not_begun(config.idempotency.clone(), settings);
    let mut answering = Box::pin(handler.call(parts, body, &slot));
    let answered = match config.handler_timeout {
        None => answering.await,
        Some(limit) => loop {
            match timeout(limit, &mut answering).await {
                Ok(answered) => break answered,
                // A handler that holds no connection of the engine is not limited, and is polled again.
                Err(_) if !slot.is_begun() => {}
                Err(_) => {
                    drop(answering);
                    let rejection = out_of_time(operation, slot.why_so_slow().await);
                    let certain = slot.release(guarded).await?;
                    return Err(Stop::from(rejection).undone(certain));
                }
            }
        },
    };
    let (mut parts, body) = match answered {
        Ok(response) => response.into_parts(),
        Err(error) => {
            slot.release(guarded).await?;
            return Err(Stop::Failed(error));
        }
    };
    let refused = parts.extensions.remove::<Rejection>().or_else(|| {
        let detail = parts.status.is_informational().then(|| capture::unsupported(&parts)).flatten()?;
        Some(Rejection::new(RejectionKind::ResponseUnsupported, detail))
    });
    if let Some(rejection) = refused {
        let certain = slot.release(guarded).await?;
        return Err(Stop::from(rejection).undone(certain));
    }
    let returned = slot.take().inspect_err(|rejection| blame(rejection, operation));
    let returned = returned.map_err(|rejection| Stop::from(rejection).undone(guarded))?;
    if let Some(Returned { open: Open::Keyless(keyless), .. }) = returned {
        match config.disposition(&parts) {
            Disposition::Commit => keyless.commit().await.map_err(|error| Stop::from(error).undone(guarded))?,
            Disposition::Reject | Disposition::Release => keyless.rollback().await.or_else(tolerate)?,
        }
    }
    Ok(Response::from_parts(parts, body))
}

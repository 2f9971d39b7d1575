//! A request without a key: refused, or executed in a transaction that leaves no trace.

use axum::{
    BoxError,
    body::{Body, Bytes},
    http::{Request, request::Parts},
    response::Response,
};
use http_body::Body as HttpBody;
use tokio::time::timeout;
use tower_service::Service;

use super::{
    capture,
    disposition::Disposition,
    execute::{blame, call, out_of_time},
    layer::Config,
    rejection::{Rejection, RejectionKind},
    service::Stop,
    tx::{Open, Returned, Slot, tolerate},
};
use crate::{LocalSettings, Operation};

/// Its body is not read here, and its answer is not held back: nothing of either is kept.
pub(super) async fn keyless<S, B, R>(
    config: &Config,
    inner: S,
    parts: Parts,
    body: B,
    operation: &Operation,
    settings: LocalSettings,
) -> Result<Response, Stop<S::Error>>
where
    S: Service<Request<Body>, Response = http::Response<R>>,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    if config.required {
        let detail = format!("this operation needs the header field {}", config.header());
        return Err(Rejection::new(RejectionKind::MissingKey, detail).into());
    }
    let slot = Slot::unbegun(config.idempotency.clone(), settings);
    let mut answering = Box::pin(call(inner, parts, Body::new(body), &slot));
    let answered = match config.time_limit {
        None => answering.await,
        Some(limit) => loop {
            match timeout(limit, &mut answering).await {
                Ok(answered) => break answered,
                // One that holds no connection of ours may take as long as it likes, and is asked again.
                Err(_) if !slot.is_begun() => {}
                Err(_) => {
                    drop(answering);
                    let rejection = out_of_time(operation, slot.why_so_slow().await);
                    slot.release().await?;
                    return Err(rejection.into());
                }
            }
        },
    };
    let (mut parts, body) = match answered {
        Ok(response) => response.into_parts(),
        Err(error) => {
            slot.release().await?;
            return Err(Stop::Failed(error));
        }
    };
    let refused = parts.extensions.remove::<Rejection>().or_else(|| {
        let detail = parts.status.is_informational().then(|| capture::unsupported(&parts)).flatten()?;
        Some(Rejection::new(RejectionKind::ResponseUnsupported, detail))
    });
    if let Some(rejection) = refused {
        slot.release().await?;
        return Err(rejection.into());
    }
    let returned = slot.take().inspect_err(|rejection| blame(rejection, operation))?;
    if let Some(Returned { open: Open::Unkeyed(unkeyed), .. }) = returned {
        match config.disposition(&parts) {
            Disposition::Commit => unkeyed.commit().await?,
            Disposition::Reject | Disposition::Release => unkeyed.rollback().await.or_else(tolerate)?,
        }
    }
    Ok(Response::from_parts(parts, Body::new(body)))
}

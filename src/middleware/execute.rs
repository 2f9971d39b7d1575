//! Runs the handler, and keeps or undoes its work and its response.

use axum::{
    body::{Body, Bytes},
    http::{Version, header, request::Parts, response},
    response::Response,
};
use tokio::time::timeout;
use tracing::{debug, error};

use super::{
    body::{Read, Whole, for_status, read},
    capture,
    disposition::Disposition,
    exchange::Exchange,
    handler::{Handler, Stop, blame, out_of_time},
    outcome::Outcome,
    panic,
    rejection::Rejection,
    rejection_kind::RejectionKind,
    tx::{Open, Returned, Slot, tolerate},
};
use crate::{Attempt, Rejected, Retention, StoredResponse};

/// A handler's response, as it is sent and as it is stored.
struct Captured {
    parts: response::Parts,
    body: Body,
    stored: StoredResponse,
}

/// Runs the handler in the attempt's transaction, and ends the attempt as its response requires.
pub(super) async fn execute<E: Send + 'static>(
    exchange: &Exchange,
    handler: Handler<E>,
    parts: Parts,
    body: Whole,
    attempt: Attempt,
) -> Result<Response, Stop<E>> {
    let guarded = exchange.config.idempotency.has_guarded_sessions();
    let slot = Slot::of(attempt);
    let answered = async {
        match handler.call(parts, Body::from(body), &slot).await {
            Ok(response) => capture(exchange, response).await.map_err(Stop::from),
            Err(error) => Err(Stop::Failed(error)),
        }
    };
    let answered = async {
        match exchange.config.handler_timeout {
            Some(limit) => match timeout(limit, answered).await {
                Ok(answered) => answered,
                Err(_) => Err(out_of_time(exchange.request.operation(), slot.why_so_slow().await).into()),
            },
            None => answered.await,
        }
    };
    // The key is free before the client, or an outer layer that catches panics, learns of the failure.
    let captured = match panic::caught(answered).await {
        Ok(Ok(captured)) => captured,
        Ok(Err(stop)) => {
            // If the handler has ended its transaction, that is the more important rejection.
            let certain = slot.release(guarded).await?;
            return Err(stop.undone(certain));
        }
        Err(payload) => {
            drop(slot.release(guarded).await);
            panic::resume(payload);
        }
    };
    // The body was read before, so no part of the response can still be using the connection.
    let operation = exchange.request.operation();
    let returned = slot.take().inspect_err(|rejection| blame(rejection, operation));
    let returned = returned.map_err(|rejection| Stop::from(rejection).undone(guarded))?;
    let Some(Returned { open: Open::Attempt(attempt), taken }) = returned else {
        return Err(Rejection::new(
            RejectionKind::Internal,
            "The request's transaction is gone. The service's log has \
            the cause.",
        )
        .into());
    };
    let config = &exchange.config;
    if !taken
        && captured.parts.status.is_success()
        && let Err(rejection) = config.tx_use.judge(operation, &config.warned)
    {
        blame(&rejection, operation);
        attempt.release().await.or_else(tolerate)?;
        // It may have written by another connection.
        return Err(rejection.into());
    }
    end(exchange, attempt, captured).await
}

async fn end<E>(exchange: &Exchange, attempt: Attempt, captured: Captured) -> Result<Response, Stop<E>> {
    let Captured { mut parts, body, mut stored } = captured;
    if let Some(own) = parts.extensions.remove::<Retention>() {
        stored = stored.with_retention(own);
    }
    let disposition = exchange.config.disposition(&parts);
    debug!(operation = %exchange.request.operation(), outcome = ?disposition, status = parts.status.as_u16(), "executed");
    let (window, kept) = match disposition {
        Disposition::Release => {
            attempt.release().await.or_else(tolerate)?;
            (None, false)
        }
        Disposition::Commit => {
            let completed = attempt.complete(&stored).await;
            let guarded = exchange.config.idempotency.has_guarded_sessions();
            (Some(completed.map_err(|error| Stop::from(error).undone(guarded))?), stored.bytes().is_some())
        }
        Disposition::Reject => match attempt.reject(&stored).await? {
            Rejected::Stored(window) => (Some(window), stored.bytes().is_some()),
            Rejected::Overtaken(duplicate) => return Ok(exchange.respond(duplicate)?),
        },
    };
    // A replay has none of what an upstream's response may have brought.
    parts.version = Version::default();
    exchange.annotate(&mut parts.headers, window, kept);
    parts.extensions.insert(Outcome::Executed(disposition));
    Ok(Response::from_parts(parts, body))
}

/// Reads the response, within the limit.
async fn capture(exchange: &Exchange, response: Response) -> Result<Captured, Rejection> {
    let config = &exchange.config;
    let (mut parts, body) = response.into_parts();
    let refused = |kind, detail: std::borrow::Cow<'static, str>| {
        let rejection = Rejection::new(kind, detail);
        blame(&rejection, exchange.request.operation());
        Err(rejection)
    };
    if let Some(rejection) = parts.extensions.remove::<Rejection>() {
        // An extractor's rejection: it is rendered like those of the layer, and never stored.
        return Err(rejection);
    }
    for name in config.own_fields() {
        parts.headers.remove(name);
    }
    if let Some(detail) = capture::unsupported(&parts) {
        return refused(RejectionKind::ResponseUnsupported, detail.into());
    }
    match read(body, config.max_response_bytes).await {
        Read::Whole(Whole { trailers: Some(trailers), .. }) if !trailers.is_empty() => refused(
            RejectionKind::ResponseUnsupported,
            "The handler's response ends with trailers, which cannot be stored; nothing was kept. Send it without \
             trailers."
                .into(),
        ),
        Read::Whole(whole) => {
            let stored = if config.discard_responses {
                StoredResponse::not_retained(parts.status)
            } else {
                exchange.encode(config.stored_headers.capture(&parts, whole.bytes.clone()))?
            };
            // The fields that frame the message are made again, as for a replay: a middleware inside may have changed the
            // body.
            parts.headers.remove(header::TRANSFER_ENCODING);
            if parts.headers.remove(header::CONTENT_LENGTH).is_some() && !capture::has_no_content(parts.status) {
                parts.headers.insert(header::CONTENT_LENGTH, whole.bytes.len().into());
            }
            let body = for_status(parts.status, whole.bytes);
            Ok(Captured { parts, body, stored })
        }
        Read::TooLarge(begun) if config.discard_oversized_responses => {
            let stored = StoredResponse::not_retained(parts.status);
            // Here too; if the body does not say how long it is, its length is unknown.
            parts.headers.remove(header::TRANSFER_ENCODING);
            parts.headers.remove(header::CONTENT_LENGTH);
            let body = if capture::has_no_content(parts.status) {
                for_status(parts.status, Bytes::new())
            } else {
                Body::new(begun)
            };
            Ok(Captured { parts, body, stored })
        }
        Read::TooLarge(_) => {
            let limit = config.max_response_bytes;
            let detail =
                format!("The handler's response is larger than {limit} bytes; nothing was kept, and the key is free.");
            refused(RejectionKind::ResponseTooLarge, detail.into())
        }
        Read::Broken(error) => {
            error!(operation = %exchange.request.operation(), %error, "the body of the handler's response failed");
            let detail = "The handler's response broke off; nothing was kept, and the key is free.";
            refused(RejectionKind::ResponseUnsupported, detail.into())
        }
    }
}

//! A request, from its head to its response.

use std::sync::Arc;

use axum::{body::Body, extract::Request, http::request::Parts, response::Response};
use tracing::{debug, error};

use super::{
    body::{Read, Whole, is_length_limit, read},
    config::Config,
    exchange::Exchange,
    execute::execute,
    handler::{Handler, Stop},
    header::Sent,
    keyless::keyless,
    operation,
    rejection::Rejection,
    rejection_kind::RejectionKind,
};
use crate::{Attempt, Claim, IdempotentRequest, Operation, engine::Uninterrupted};

pub(super) async fn respond<E: Send + 'static>(
    config: Arc<Config>,
    handler: Handler<E>,
    request: Request,
) -> Result<Response, E> {
    let (mut parts, body) = request.into_parts();
    let operation = operation::of(&config, &parts);
    let head = config.rejection.is_some().then(|| parts.clone());
    let responded = match refuse_a_second_layer(&mut parts, &operation) {
        Ok(()) => flow(&config, handler, parts, body, &operation).await,
        Err(rejection) => Err(rejection.into()),
    };
    match responded {
        Ok(response) => Ok(response),
        Err(Stop::Failed(error)) => Err(error),
        Err(Stop::Refused(rejection)) => {
            debug!(%operation, outcome = rejection.kind().name(), "refused");
            Ok(config.render(rejection, head.as_ref()))
        }
    }
}

/// Key → scope → body → fingerprint → claim → handler → response.
async fn flow<E: Send + 'static>(
    config: &Arc<Config>,
    handler: Handler<E>,
    parts: Parts,
    body: Body,
    operation: &Operation,
) -> Result<Response, Stop<E>> {
    let settings = config.local_settings(&parts);
    let Some(Sent { key, first }) = config.find(&parts.headers)? else {
        return keyless(config, handler, parts, body, operation, settings).await;
    };
    let scope = config.scope(&parts)?;
    let body = whole(body, config.max_request_bytes).await?;
    let fingerprint = config.fingerprint.of(&parts, &body.bytes);
    let mut request = IdempotentRequest::new(scope, operation.clone(), key, fingerprint).with_local_settings(settings);
    if let Some(first) = first {
        request = request.with_first_sent(first);
    }
    let head = config.replay_guard.is_some().then(|| parts.clone());
    let exchange = Exchange { config: config.clone(), request, head };
    let reference = exchange.reference();
    let responded = match config.idempotency.claim(exchange.request.clone()).await {
        Ok(Claim::Fresh(attempt)) => to_the_end(exchange, handler, parts, body, attempt).await,
        Ok(Claim::Duplicate(duplicate)) => exchange.respond(duplicate).map_err(Stop::from),
        Err(error) => Err(error.into()),
    };
    responded.map_err(|stop| stop.map(|rejection| rejection.with_reference(reference)))
}

/// Marks the request, so that a second layer inside does not claim a key for it again.
fn refuse_a_second_layer(parts: &mut Parts, operation: &Operation) -> Result<(), Rejection> {
    #[derive(Clone)]
    struct Inside(Operation);

    if let Some(Inside(outer)) = parts.extensions.get() {
        let detail = format!(
            "The request passes two idempotency layers, for the operations `{outer}` and `{operation}`. Keep one of \
             them."
        );
        let rejection = Rejection::new(RejectionKind::Misconfigured, detail);
        error!(%rejection, "two idempotency layers");
        return Err(rejection);
    }
    parts.extensions.insert(Inside(operation.clone()));
    Ok(())
}

/// Reads the whole body of a request, within the limit.
async fn whole(body: Body, limit: usize) -> Result<Whole, Rejection> {
    match read(body, limit).await {
        Read::Whole(whole) => Ok(whole),
        Read::TooLarge(_) => Err(Rejection::request_too_large(limit)),
        Read::Broken(error) if is_length_limit(&error) => {
            Err(Rejection::new(RejectionKind::RequestTooLarge, "The request body is over a limit. Send a smaller one."))
        }
        Read::Broken(_) => Err(Rejection::request_unreadable()),
    }
}

/// Executes the request, which goes on if its client goes away.
async fn to_the_end<E: Send + 'static>(
    exchange: Exchange,
    handler: Handler<E>,
    mut parts: Parts,
    body: Whole,
    attempt: Attempt,
) -> Result<Response, Stop<E>> {
    parts.extensions.insert(exchange.request.clone());
    let config = exchange.config.clone();
    let executed = async move { execute(&exchange, handler, parts, body, attempt).await };
    if config.cancel_on_disconnect {
        return executed.await;
    }
    Uninterrupted::new(config.idempotency.backlog(), executed).await
}

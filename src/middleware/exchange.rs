use std::sync::Arc;

use axum::{
    http::{HeaderMap, HeaderName, HeaderValue, header, request::Parts},
    response::Response,
};
use tracing::{debug, error};

use super::{
    body::for_status, config::Config, header::REPEATABILITY_RESULT, outcome::Outcome, rejection::Rejection,
    rejection_kind::RejectionKind,
};
use crate::{Duplicate, IdempotentRequest, StoredResponse, Window};

/// A request with a key, and the form of its responses.
pub(super) struct Exchange {
    pub(super) config: Arc<Config>,
    pub(super) request: IdempotentRequest,
    /// The head of the request, for the replay guard, if there is one.
    pub(super) head: Option<Parts>,
}

impl Exchange {
    /// Returns a reference for support tickets and traces: the same for the first response, its replays, and the
    /// rejections of its duplicates. It does not reveal the key.
    pub(super) fn reference(&self) -> Option<Arc<str>> {
        let name = self.config.reference_header.as_ref()?;
        let derived = self.request.derive_key(&format!("reference in {name}"));
        derived.get(..24).map(Into::into)
    }

    /// Encodes a response for the database.
    pub(super) fn encode(&self, answer: StoredResponse) -> Result<StoredResponse, Rejection> {
        let (Some(codec), Some(body)) = (&self.config.codec, answer.bytes()) else {
            return Ok(answer);
        };
        match codec.encode(&self.request, body) {
            Ok(body) => Ok(answer.with_body(body)),
            Err(error) => {
                error!(operation = %self.request.operation(), %error, "the body codec could not encode a response");
                let detail = "The response cannot be stored; nothing was kept. The service's log has the cause.";
                Err(Rejection::new(RejectionKind::Internal, detail))
            }
        }
    }

    fn decode(&self, stored: StoredResponse) -> Result<StoredResponse, Rejection> {
        let (Some(codec), Some(body)) = (&self.config.codec, stored.bytes()) else {
            return Ok(stored);
        };
        match codec.decode(&self.request, body) {
            Ok(body) => Ok(stored.with_body(body)),
            Err(error) => {
                error!(operation = %self.request.operation(), %error, "the body codec could not decode a response");
                let detail = "The request was executed before, and its stored response cannot be read. Query the \
                    result instead.";
                Err(Rejection::new(RejectionKind::ResponseUnreadable, detail))
            }
        }
    }

    /// Makes the response to a duplicate.
    pub(super) fn respond(&self, duplicate: Duplicate) -> Result<Response, Rejection> {
        match duplicate {
            Duplicate::Replay(stored) => self.replay(stored),
            Duplicate::NotRetained(tombstone) => Err(Rejection::not_retained(Some(tombstone))),
            Duplicate::InProgress => Err(Rejection::in_flight()),
            Duplicate::KeyReused => Err(Rejection::key_reused()),
            Duplicate::KeyTime(error) => Err(Rejection::key_time(error)),
        }
    }

    /// Makes a replay: the stored response with the marker. No cache may store it, and it has no `Age`: it is the
    /// response to this request.
    fn replay(&self, stored: StoredResponse) -> Result<Response, Rejection> {
        let stored = self.decode(stored)?;
        if let (Some(guard), Some(head)) = (&self.config.replay_guard, &self.head)
            && !guard(head, &stored)
        {
            return Err(Rejection::new(
                RejectionKind::ReplayRefused,
                "The request was executed before, and you may not receive its response any more. Check your \
                 permissions.",
            ));
        }
        debug!(operation = %self.request.operation(), outcome = "replayed", status = stored.status().as_u16(), "replayed");
        let mut response = Response::new(for_status(stored.status(), stored.bytes().cloned().unwrap_or_default()));
        *response.status_mut() = stored.status();
        let headers = response.headers_mut();
        for (name, value) in stored.headers() {
            headers.append(name, value.clone());
        }
        if !headers.contains_key(header::CACHE_CONTROL) {
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        }
        headers.insert(self.config.marker.clone(), HeaderValue::from_static("true"));
        self.annotate(headers, stored.window(), true);
        response.extensions_mut().insert(Outcome::Replayed);
        Ok(response)
    }

    /// Adds the header fields from the layer's settings to a response; `kept` says whether it will be replayed.
    pub(super) fn annotate(&self, headers: &mut HeaderMap, window: Option<Window>, kept: bool) {
        let config = &self.config;
        if let Some(expires) = window.filter(|_| kept).and_then(|window| window.replay_ends) {
            set(headers, config.expiry_header.as_ref(), || httpdate::fmt_http_date(expires));
        }
        if let Some(reference) = self.reference() {
            set(headers, config.reference_header.as_ref(), || reference.to_string());
        }
        if !kept {
            set(headers, config.not_retained_header.as_ref(), || "true".to_owned());
        }
        if config.repeatability_result {
            headers.insert(REPEATABILITY_RESULT.clone(), HeaderValue::from_static("accepted"));
        }
        if config.echo_key {
            set(headers, Some(config.header()), || self.request.key().as_str().to_owned());
        }
    }
}

fn set(headers: &mut HeaderMap, name: Option<&HeaderName>, value: impl FnOnce() -> String) {
    if let Some(name) = name
        && let Ok(value) = HeaderValue::try_from(value())
    {
        headers.insert(name, value);
    }
}

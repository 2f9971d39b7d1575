//! Request → operation and fingerprint.

use axum::{
    extract::{MatchedPath, OriginalUri},
    http::{HeaderName, Uri, header, request::Parts},
};

use super::layer::Config;
use crate::{Fingerprint, Operation};

/// What the request does: what the route's layer says, or its method and template.
pub(super) fn operation(config: &Config, parts: &Parts) -> Operation {
    if let Some(operation) = &config.operation {
        return operation.clone();
    }
    let path = match parts.extensions.get::<MatchedPath>() {
        Some(template) => template.as_str(),
        // Outside a router, or under a service nested in one, nobody knows the template.
        None => uri(parts).path(),
    };
    Operation::new(format!("{} {path}", parts.method))
}

/// What was asked. Left out is what may differ between a request and its retry: who asks and when, what formats he
/// likes, how the bytes were framed.
pub(super) fn fingerprint(config: &Config, parts: &Parts, body: &[u8]) -> Fingerprint {
    if let Some(fingerprint) = &config.fingerprint {
        return fingerprint(parts, body);
    }
    let uri = uri(parts);
    let content_type = field(parts, &header::CONTENT_TYPE);
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    Fingerprint::of([
        parts.method.as_str().as_bytes(),
        uri.path().as_bytes(),
        uri.query().unwrap_or_default().as_bytes(),
        &essence.trim_ascii().to_ascii_lowercase(),
        field(parts, &header::CONTENT_ENCODING),
        body,
    ])
}

/// As the client sent it: a router that nests another strips the prefix that it matched.
fn uri(parts: &Parts) -> &Uri {
    parts.extensions.get::<OriginalUri>().map_or(&parts.uri, |original| &original.0)
}

fn field<'a>(parts: &'a Parts, name: &HeaderName) -> &'a [u8] {
    parts.headers.get(name).map_or(&[], |value| value.as_bytes())
}

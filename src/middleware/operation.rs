//! Request → operation.

use axum::{extract::MatchedPath, http::request::Parts};

use super::{config::Config, fingerprint::original_uri};
use crate::Operation;

/// What the request does: what the route's layer says, or its method and template; in the application's namespace.
pub(super) fn of(config: &Config, parts: &Parts) -> Operation {
    let operation = within_application(config, parts);
    match &config.namespace {
        Some(namespace) => Operation::new(format!("{namespace}/{}", operation.as_str())),
        None => operation,
    }
}

fn within_application(config: &Config, parts: &Parts) -> Operation {
    if let Some(operation) = &config.operation {
        return operation.clone();
    }
    let path = match parts.extensions.get::<MatchedPath>() {
        Some(template) => template.as_str(),
        // Outside a router, or under a service nested in one, nobody knows the template.
        None => original_uri(parts).path(),
    };
    Operation::new(format!("{} {path}", parts.method))
}

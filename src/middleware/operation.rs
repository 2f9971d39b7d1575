//! Finds the operation of a request.

use axum::{extract::MatchedPath, http::request::Parts};

use super::{config::Config, fingerprint::original_uri};
use crate::Operation;

/// Returns the operation: the name from the route's layer, or method and template; with the application's namespace.
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
        // Outside a router, or under a service nested in one, the template is not known.
        None => original_uri(parts).path(),
    };
    Operation::new(format!("{} {path}", parts.method))
}

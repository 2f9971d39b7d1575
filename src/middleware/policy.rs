use axum::http::Method;
use serde::{Serialize, Serializer};

use super::layer::IdempotencyLayer;
use crate::{Operation, TimestampedKeys, timestamped_keys::iso8601};

/// What a client has to know of a layer, to be published: the IETF draft asks for it, and whoever loses a response
/// cannot learn it from there. It is written as a JSON object with these names; durations are in ISO 8601, and absent
/// if there is no limit.
///
/// ```
/// # use axum_idempotency::{Idempotency, IdempotencyLayer, Scope};
/// # fn f(layer: &IdempotencyLayer) -> serde_json::Result<String> {
/// serde_json::to_string(&layer.policy())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Policy {
    /// The name of what the route does, if the layer names it.
    #[serde(serialize_with = "name", skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
    /// The header field that the key comes in.
    pub header: String,
    /// Is a key required?
    pub required: bool,
    /// The methods that are handled, in alphabetical order.
    #[serde(serialize_with = "names")]
    pub methods: Vec<Method>,
    /// How long a key is remembered from its first use; where keys bear a time, how old one may be that is executed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
    /// How long its answer is replayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay: Option<String>,
    /// What keys have to be, if they bear a time: `uuid-v7`, `ulid` or `first-sent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamped_keys: Option<&'static str>,
    /// The largest request body, in bytes.
    pub max_request_bytes: usize,
}

impl IdempotencyLayer {
    /// What clients have to know, for a configuration endpoint or a document.
    #[must_use]
    pub fn policy(&self) -> Policy {
        let config = self.config();
        let (kept, keys) = (config.idempotency.retention_in_force(), config.idempotency.keys_in_force());
        let mut methods: Vec<_> = config.methods.iter().cloned().collect();
        methods.sort_by(|one, other| one.as_str().cmp(other.as_str()));
        let (window, replay) = match keys {
            Some(keys) => (Some(keys.window()), kept.replay_only().or(Some(keys.window()))),
            None => (kept.window(), kept.replay_window()),
        };
        Policy {
            operation: config.operation.clone(),
            header: config.header().to_string(),
            required: config.required,
            methods,
            window: window.map(iso8601),
            replay: replay.map(iso8601),
            timestamped_keys: keys.map(TimestampedKeys::kind),
            max_request_bytes: config.max_request_bytes,
        }
    }
}

fn name<S: Serializer>(operation: &Option<Operation>, serializer: S) -> Result<S::Ok, S::Error> {
    operation.as_ref().map(Operation::as_str).serialize(serializer)
}

fn names<S: Serializer>(methods: &[Method], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(methods.iter().map(Method::as_str))
}

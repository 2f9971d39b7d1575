use axum::http::Method;
use serde::{Serialize, Serializer};

use super::layer::IdempotencyLayer;
use crate::{Operation, TimestampedKeys, timestamped_keys::iso8601};

/// The settings of a layer that clients must know.
///
/// Publish it, as the IETF draft asks: a client that has lost a response cannot learn these settings from the response.
/// It is serialized as a JSON object with these names; durations are in ISO 8601, and absent if there is no limit.
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
    /// The name of the operation, if the layer sets it.
    #[serde(serialize_with = "name", skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
    /// The header field of the key.
    pub header: String,
    /// Whether a key is required.
    pub required: bool,
    /// The methods that are handled, in alphabetical order.
    #[serde(serialize_with = "names")]
    pub methods: Vec<Method>,
    /// How long a key is kept after its first use; for timestamped keys, the age up to which a key is executed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
    /// How long the response is replayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay: Option<String>,
    /// The kind of timestamped keys, if they are required: `uuid-v7`, `ulid` or `first-sent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamped_keys: Option<&'static str>,
    /// The largest request body, in bytes.
    pub max_request_bytes: usize,
}

impl IdempotencyLayer {
    /// Returns the settings that clients must know, for a configuration endpoint or a document.
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

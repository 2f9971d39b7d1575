use axum::http::Method;
use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use super::layer::IdempotencyLayer;
use crate::{Operation, TimestampedKeys, timestamped_keys::iso8601};

/// What a client has to know of a layer, to be published (T12): the IETF draft asks for it, and whoever loses a response
/// cannot learn it from there. It is written as a JSON object with these names; durations are in ISO 8601, and absent
/// if there is no limit.
///
/// ```
/// # use axum_idempotency::{Idempotency, IdempotencyLayer, Scope};
/// # fn f(layer: &IdempotencyLayer) -> serde_json::Result<String> {
/// serde_json::to_string(&layer.policy())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// The name of what the route does, if the layer names it.
    pub operation: Option<Operation>,
    /// The header field that the key comes in.
    pub header: String,
    /// Is a key required?
    pub required: bool,
    /// The methods that are handled, in alphabetical order.
    pub methods: Vec<Method>,
    /// How long a key is remembered from its first use; where keys bear a time, how old one may be that is executed.
    pub window: Option<String>,
    /// How long its answer is replayed.
    pub replay: Option<String>,
    /// What keys have to be, if they bear a time: `uuid-v7`, `ulid` or `first-sent`.
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

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let optional =
            [self.operation.is_some(), self.window.is_some(), self.replay.is_some(), self.timestamped_keys.is_some()];
        let present = optional.into_iter().filter(|there| *there).count();
        let mut fields = serializer.serialize_struct("Policy", present.saturating_add(4))?;
        match &self.operation {
            Some(operation) => fields.serialize_field("operation", operation.as_str())?,
            None => fields.skip_field("operation")?,
        }
        fields.serialize_field("header", &self.header)?;
        fields.serialize_field("required", &self.required)?;
        fields.serialize_field("methods", &self.methods.iter().map(Method::as_str).collect::<Vec<_>>())?;
        for (name, value) in [("window", &self.window), ("replay", &self.replay)] {
            match value {
                Some(value) => fields.serialize_field(name, value)?,
                None => fields.skip_field(name)?,
            }
        }
        match self.timestamped_keys {
            Some(keys) => fields.serialize_field("timestamped_keys", keys)?,
            None => fields.skip_field("timestamped_keys")?,
        }
        fields.serialize_field("max_request_bytes", &self.max_request_bytes)?;
        fields.end()
    }
}

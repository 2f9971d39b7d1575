use axum::BoxError;

use crate::IdempotentRequest;

/// How bodies lie in the database: encrypted or compressed, say. Set by
/// [`IdempotencyLayer::with_body_codec`](crate::IdempotencyLayer::with_body_codec).
///
/// Status and header fields are stored as they are. The `request` names the row; an encryption should authenticate it,
/// so that no row's body can be passed off as another's. The example `encryption` does so, with AES-GCM and keys that
/// change.
pub trait BodyCodec: Send + Sync + 'static {
    /// The body as it is stored.
    ///
    /// # Errors
    ///
    /// Any; the handler's work is rolled back, and the client gets 500.
    fn encode(&self, request: &IdempotentRequest, body: &[u8]) -> Result<Vec<u8>, BoxError>;

    /// The body as it was given to [`encode`](Self::encode), perhaps by an earlier release of the application.
    ///
    /// # Errors
    ///
    /// Any; the client gets 500, and nothing is executed.
    fn decode(&self, request: &IdempotentRequest, stored: &[u8]) -> Result<Vec<u8>, BoxError>;
}

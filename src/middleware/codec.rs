use axum::BoxError;

use crate::IdempotentRequest;

/// An encoding of stored bodies, for instance an encryption or compression. Set it with
/// [`IdempotencyLayer::with_body_codec`](crate::IdempotencyLayer::with_body_codec).
///
/// Status and header fields are stored unchanged. The `request` identifies the row; an encryption should authenticate it,
/// so that the body of one row is not accepted in another. The example `encryption` does so, with AES-GCM and keys that
/// change.
pub trait BodyCodec: Send + Sync + 'static {
    /// Encodes a body for the database.
    ///
    /// # Errors
    ///
    /// May return any error; the handler's work is then rolled back, and the client gets 500.
    fn encode(&self, request: &IdempotentRequest, body: &[u8]) -> Result<Vec<u8>, BoxError>;

    /// Decodes a body that [`encode`](Self::encode) has encoded, possibly in an earlier release of the application.
    ///
    /// # Errors
    ///
    /// May return any error; the client then gets 500, and nothing is executed.
    fn decode(&self, request: &IdempotentRequest, stored: &[u8]) -> Result<Vec<u8>, BoxError>;
}

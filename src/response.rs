use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};

/// An answer as it is kept: status, header fields in their order with repeats, and the body's bytes.
///
/// Cloning shares all of it. `Debug` shows sizes only: answers hold other people's data.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredResponse(Arc<Parts>);

#[derive(Clone, PartialEq, Eq)]
struct Parts {
    status: StatusCode,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
}

impl StoredResponse {
    /// An answer with this status and body, and no header fields.
    pub fn new(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self(Arc::new(Parts { status, headers: Vec::new(), body: body.into() }))
    }

    /// Adds header fields behind those that are there. Nothing is merged or replaced.
    #[must_use]
    pub fn with_headers(mut self, headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>) -> Self {
        Arc::make_mut(&mut self.0).headers.extend(headers);
        self
    }

    /// The status code.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    /// The header fields, in order.
    #[must_use]
    pub fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        &self.0.headers
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.0.body
    }
}

impl fmt::Debug for StoredResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredResponse")
            .field("status", &self.0.status.as_u16())
            .field("headers", &format_args!("{} fields", self.0.headers.len()))
            .field("body", &format_args!("{} bytes", self.0.body.len()))
            .finish()
    }
}

use std::{fmt, sync::Arc, time::SystemTime};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};

use crate::Retention;

/// A response as it is stored: status, header fields in their order with repeats, and the body's bytes.
///
/// Clones share their content. `Debug` shows only sizes, since responses hold private data. Two are equal if status, header
/// fields and body are equal; their times do not count.
#[derive(Clone)]
pub struct StoredResponse(Arc<Parts>);

#[derive(Clone)]
struct Parts {
    status: StatusCode,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// `None`: a tombstone.
    body: Option<Bytes>,
    window: Option<Window>,
    /// Its own retention, if it has one.
    retention: Option<Retention>,
}

/// The times between which a response is kept, by the database's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Window {
    /// When the key was first used.
    pub first_used: SystemTime,
    /// When the response stops being replayed; `None` means never. For a tombstone, which is never replayed, it is the first
    /// use of the key.
    pub replay_ends: Option<SystemTime>,
    /// When the key expires, and counts as never used; `None` means never.
    pub expires: Option<SystemTime>,
}

impl Window {
    /// Returns the window of a tombstone, of which nothing is replayed.
    pub(crate) fn without_replay(self) -> Self {
        Self { replay_ends: Some(self.first_used), ..self }
    }
}

/// The record of a request that completed, although its response is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tombstone {
    /// The status of the first response.
    pub status: StatusCode,
    /// When the key was first used, and when it expires.
    pub window: Option<Window>,
}

/// The state of a key that has a response; see [`Idempotency::lookup`](crate::Idempotency::lookup).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyStatus {
    /// The status of the response.
    pub status: StatusCode,
    /// The size of the stored body, in bytes; `None` if the response is not kept any more, or never was.
    pub body_bytes: Option<u64>,
    /// When the key was first used, and how long it is kept.
    pub window: Window,
}

impl StoredResponse {
    /// Makes a response with this status and body, and no header fields.
    pub fn new(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self(Arc::new(Parts { status, headers: Vec::new(), body: Some(body.into()), window: None, retention: None }))
    }

    /// Makes a tombstone: it says only that there was a response with this status.
    ///
    /// A later duplicate is refused, and not executed while the key is kept. Use it for responses that are too large to
    /// store, or must not be stored in a database.
    #[must_use]
    pub fn not_retained(status: StatusCode) -> Self {
        Self(Arc::new(Parts { status, headers: Vec::new(), body: None, window: None, retention: None }))
    }

    /// Appends header fields. None are merged or replaced.
    #[must_use]
    pub fn with_headers(mut self, headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>) -> Self {
        Arc::make_mut(&mut self.0).headers.extend(headers);
        self
    }

    /// Replaces the body.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<Bytes>) -> Self {
        Arc::make_mut(&mut self.0).body = Some(body.into());
        self
    }

    /// Sets how long this response is kept, instead of [`Idempotency::retention`](crate::Idempotency::retention).
    ///
    /// The time counts from the first use of the key. A retention that is not longer than the wait of a duplicate and the
    /// handler's timeout together is raised to 1 ms more than their sum. A [timestamped key](crate::TimestampedKeys) is
    /// kept as long as its window requires. For such a key this sets only how long the response is replayed, with
    /// [`refuse_for`](Retention::refuse_for) and [`refuse_forever`](Retention::refuse_forever).
    #[must_use]
    pub fn with_retention(mut self, retention: Retention) -> Self {
        Arc::make_mut(&mut self.0).retention = Some(retention);
        self
    }

    pub(crate) fn retention(&self) -> Option<Retention> {
        self.0.retention
    }

    pub(crate) fn with_window(mut self, window: Window) -> Self {
        Arc::make_mut(&mut self.0).window = Some(window);
        self
    }

    /// Returns the status code.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    /// Returns the header fields, in order.
    #[must_use]
    pub fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        &self.0.headers
    }

    /// Returns the body; it is empty if the response was [not retained](Self::not_retained).
    #[must_use]
    pub fn body(&self) -> &[u8] {
        self.0.body.as_deref().unwrap_or_default()
    }

    /// Returns the body; `None` for a tombstone.
    pub(crate) fn bytes(&self) -> Option<&Bytes> {
        self.0.body.as_ref()
    }

    /// Returns the times between which it is kept; `None` if it has not been stored.
    #[must_use]
    pub fn window(&self) -> Option<Window> {
        self.0.window
    }

    /// Copies the response into memory of its own, so that it does not keep a larger buffer.
    pub(crate) fn copied(&self) -> Self {
        let Parts { status, headers, body, window, retention } = &*self.0;
        let field = |(name, value): &(HeaderName, HeaderValue)| {
            let name = HeaderName::from_bytes(name.as_str().as_bytes()).unwrap_or_else(|_| name.clone());
            let mut copy = HeaderValue::from_bytes(value.as_bytes()).unwrap_or_else(|_| value.clone());
            copy.set_sensitive(value.is_sensitive());
            (name, copy)
        };
        Self(Arc::new(Parts {
            status: *status,
            headers: headers.iter().map(field).collect(),
            body: body.as_deref().map(Bytes::copy_from_slice),
            window: *window,
            retention: *retention,
        }))
    }

    /// Returns the tombstone, if the response was not retained.
    pub(crate) fn tombstone(&self) -> Option<Tombstone> {
        match self.0.body {
            Some(_) => None,
            None => Some(Tombstone { status: self.0.status, window: self.0.window }),
        }
    }
}

impl PartialEq for StoredResponse {
    fn eq(&self, other: &Self) -> bool {
        let parts = |this: &Self| (this.0.status, this.0.body.clone());
        parts(self) == parts(other) && self.0.headers == other.0.headers
    }
}

impl Eq for StoredResponse {}

impl fmt::Debug for StoredResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredResponse")
            .field("status", &self.0.status.as_u16())
            .field("headers", &format_args!("{} fields", self.0.headers.len()))
            .field("body", &format_args!("{} bytes", self.body().len()))
            .field("retained", &self.0.body.is_some())
            .field("window", &self.0.window)
            .finish()
    }
}

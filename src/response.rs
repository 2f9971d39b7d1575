use std::{fmt, sync::Arc, time::SystemTime};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};

use crate::Retention;

/// An answer as it is kept: status, header fields in their order with repeats, and the body's bytes.
///
/// Cloning shares all of it. `Debug` shows sizes only: answers hold other people's data. Two are equal if they answer
/// the same, whenever they were given.
#[derive(Clone)]
pub struct StoredResponse(Arc<Parts>);

#[derive(Clone)]
struct Parts {
    status: StatusCode,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// `None`: a tombstone.
    body: Option<Bytes>,
    window: Option<Window>,
    /// Its own, if not that of its kind.
    retention: Option<Retention>,
}

/// For how long an answer is kept, by the database's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Window {
    /// When the key was first used.
    pub first_used: SystemTime,
    /// From when on the answer is not replayed any more; `None` if never. Of a tombstone, which is never replayed: when the
    /// key was first used.
    pub replay_ends: Option<SystemTime>,
    /// From when on the key counts as never used; `None` if never.
    pub expires: Option<SystemTime>,
}

impl Window {
    /// That of a tombstone: nothing is replayed, from the first use on.
    pub(crate) fn without_replay(self) -> Self {
        Self { replay_ends: Some(self.first_used), ..self }
    }
}

/// What is left of an answer that was not kept: that there was one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tombstone {
    /// The status that the first caller got.
    pub status: StatusCode,
    /// When that was, and how long the key stays taken.
    pub window: Option<Window>,
}

/// What is known of a key that was answered; see [`Idempotency::lookup`](crate::Idempotency::lookup).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyStatus {
    /// The status of the answer.
    pub status: StatusCode,
    /// The size of the body that is kept; `None` if the answer is not kept any more, or never was.
    pub body_bytes: Option<u64>,
    /// When it was given, and how long it is kept.
    pub window: Window,
}

impl StoredResponse {
    /// An answer with this status and body, and no header fields.
    pub fn new(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self(Arc::new(Parts { status, headers: Vec::new(), body: Some(body.into()), window: None, retention: None }))
    }

    /// That there was an answer with this status, and nothing of it: a later duplicate is refused, and never executed.
    /// For answers that are too large to keep, or must not lie in a database.
    #[must_use]
    pub fn not_retained(status: StatusCode) -> Self {
        Self(Arc::new(Parts { status, headers: Vec::new(), body: None, window: None, retention: None }))
    }

    /// Adds header fields behind those that are there. Nothing is merged or replaced.
    #[must_use]
    pub fn with_headers(mut self, headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>) -> Self {
        Arc::make_mut(&mut self.0).headers.extend(headers);
        self
    }

    /// The same with another body.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<Bytes>) -> Self {
        Arc::make_mut(&mut self.0).body = Some(body.into());
        self
    }

    /// Keeps this answer so long, counted from the first use of its key, instead of as long as
    /// [`Idempotency::retention`](crate::Idempotency::retention) says. What is not longer than a duplicate may wait counts
    /// as a millisecond more than that. A key that [bears a time](crate::TimestampedKeys) is kept as long as that asks for;
    /// then only how long the answer is replayed can be said, by [`refuse_for`](Retention::refuse_for) and
    /// [`refuse_forever`](Retention::refuse_forever).
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

    /// The body; nothing if it was [not retained](Self::not_retained).
    #[must_use]
    pub fn body(&self) -> &[u8] {
        self.0.body.as_deref().unwrap_or_default()
    }

    /// The body, shared.
    pub(crate) fn bytes(&self) -> Option<&Bytes> {
        self.0.body.as_ref()
    }

    /// For how long it is kept; `None` if it has not been stored.
    #[must_use]
    pub fn window(&self) -> Option<Window> {
        self.0.window
    }

    /// The same in memory of its own, whatever its parts were cut from.
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

    /// The tombstone that this is, if it was not retained.
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

//! [`StoredResponse`] → Response.

use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::Response,
};

use super::capture::MARKER;
use crate::StoredResponse;

/// The stored answer with the marker. No cache may keep it, and it carries no age: it is the answer to this request.
pub(super) fn replay(stored: &StoredResponse) -> Response {
    let mut response = Response::new(Body::from(stored.body().clone()));
    *response.status_mut() = stored.status();
    let headers = response.headers_mut();
    for (name, value) in stored.headers() {
        headers.append(name, value.clone());
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(MARKER, HeaderValue::from_static("true"));
    response
}

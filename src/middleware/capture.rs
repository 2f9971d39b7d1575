//! Response → [`StoredResponse`]: which header fields are kept.

use std::collections::HashSet;

use axum::{
    BoxError,
    body::Bytes,
    http::{HeaderMap, HeaderName, Response, header, response::Parts},
};
use http_body::Body as HttpBody;

use super::{
    body::{self, Unread},
    rejection::{Rejection, RejectionKind},
};
use crate::StoredResponse;

/// What describes the hop, the attempt or the caller's credentials, and not the answer.
const NEVER: &[&str] = &[
    // The hop (RFC 9110 section 7.6.1); lengths are made anew from the stored bytes.
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
    // The moment and the server.
    "age",
    "alt-svc",
    "date",
    "nel",
    "report-to",
    "reporting-endpoints",
    "server",
    "server-timing",
    "strict-transport-security",
    "via",
    // The attempt.
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "signature",
    "signature-input",
    "traceparent",
    "tracestate",
    "x-request-id",
    // Credentials, which would lie in the database and start a new life on every replay.
    "authentication-info",
    "clear-site-data",
    "proxy-authenticate",
    "proxy-authentication-info",
    "set-cookie",
    "www-authenticate",
    // A replay is never cached, whatever the first answer said.
    "cache-control",
    "expires",
    "pragma",
];

const NEVER_PREFIX: &str = "x-ratelimit-";

/// A handler's answer that was read to its end: as it is sent, and as it is kept.
pub(super) type Captured = ((Parts, Bytes), StoredResponse);

/// Reads the whole answer, `limit` bytes at most.
pub(super) async fn read<B>(response: Response<B>, limit: usize) -> Result<Captured, Rejection>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let (parts, body) = response.into_parts();
    let body = body::read(body, limit).await.map_err(|unread| match unread {
        Unread::TooLarge => Rejection::new(
            RejectionKind::ResponseTooLarge,
            format!("the handler's answer is larger than {limit} bytes; nothing was kept, the key is free"),
        ),
        Unread::Broken => Rejection::new(
            RejectionKind::ResponseUnsupported,
            "the handler's answer broke off; nothing was kept, the key is free",
        ),
    })?;
    if let Some(detail) = unsupported(&parts, body.trailers.as_ref()) {
        return Err(Rejection::new(RejectionKind::ResponseUnsupported, detail));
    }
    let stored = capture(&parts, body.bytes.clone());
    Ok(((parts, body.bytes), stored))
}

/// The answer as it will be kept.
fn capture(parts: &Parts, body: Bytes) -> StoredResponse {
    let named = named_by_connection(&parts.headers);
    let kept = parts.headers.iter().filter(|(name, _)| {
        let name = name.as_str();
        !NEVER.contains(&name) && !name.starts_with(NEVER_PREFIX) && !named.contains(name)
    });
    StoredResponse::new(parts.status, body).with_headers(kept.map(|(name, value)| (name.clone(), value.clone())))
}

/// Fields that `Connection` names belong to the hop too.
fn named_by_connection(headers: &HeaderMap) -> HashSet<String> {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect()
}

/// Does the handler speak a protocol that a stored answer cannot carry?
fn unsupported(parts: &Parts, trailers: Option<&HeaderMap>) -> Option<&'static str> {
    if parts.status.is_informational() {
        return Some("the handler answered with an interim status (1xx) or a protocol switch, which cannot be stored");
    }
    if trailers.is_some_and(|trailers| !trailers.is_empty()) {
        return Some("the handler's answer ends with trailers, which cannot be stored");
    }
    None
}

/// The marker that tells a replay from a first answer.
pub(super) const MARKER: HeaderName = HeaderName::from_static("idempotent-replayed");

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn kept(headers: &[(&'static str, &'static [u8])]) -> Vec<(String, Vec<u8>)> {
        let mut response = Response::new(());
        for (name, value) in headers {
            response.headers_mut().append(*name, HeaderValue::from_bytes(value).expect("a header value"));
        }
        capture(&response.into_parts().0, Bytes::new())
            .headers()
            .iter()
            .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
            .collect()
    }

    #[test]
    fn r47_hop_by_hop_fields_and_those_that_connection_names_are_left_out() {
        let headers = kept(&[
            ("connection", b"X-Hop, close"),
            ("x-hop", b"1"),
            ("keep-alive", b"timeout=5"),
            ("transfer-encoding", b"chunked"),
            ("x-end", b"2"),
        ]);
        assert_eq!(headers, [("x-end".to_owned(), b"2".to_vec())]);
    }

    #[test]
    fn r53_f27_f28_order_repeats_and_bytes_survive() {
        let headers: &[(&str, &[u8])] = &[
            ("link", b"</a>; rel=next"),
            ("link", b"</b>, </c>"),
            ("link", b"</d>"),
            ("x-obs", b"caf\xe9"),
            ("location", b"/charges/1"),
        ];
        let expected: Vec<_> = headers.iter().map(|(name, value)| ((*name).to_owned(), value.to_vec())).collect();
        assert_eq!(kept(headers), expected);
    }

    #[test]
    fn r45_r50_r51_r52_moments_and_credentials_are_left_out() {
        for name in
            ["date", "age", "set-cookie", "www-authenticate", "traceparent", "x-request-id", "x-ratelimit-limit"]
        {
            assert!(kept(&[(name, b"v")]).is_empty(), "{name}");
        }
    }
}

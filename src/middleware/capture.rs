//! Makes a [`StoredResponse`] of a response, and decides which header fields are stored.

use std::collections::HashSet;

use axum::{
    body::Bytes,
    http::{HeaderMap, HeaderName, StatusCode, header, response::Parts},
};

use super::fields::{Belongs, belongs};
use crate::StoredResponse;

/// The rules for which header fields of a response are stored.
#[derive(Clone, Debug, Default)]
pub(super) struct HeaderRules {
    /// Fields that are left out too.
    pub(super) never: HashSet<HeaderName>,
    /// Fields that are stored although they are left out by default.
    pub(super) always: HashSet<HeaderName>,
    /// If set, only these fields and those of `always` are stored.
    pub(super) only: Option<HashSet<HeaderName>>,
}

impl HeaderRules {
    fn keeps(&self, name: &HeaderName) -> bool {
        let belongs = belongs(name.as_str());
        if belongs == Belongs::Message || self.never.contains(name) {
            // Fields that frame a message are made for each message, and no setting stores them.
            return false;
        }
        if self.always.contains(name) {
            return true;
        }
        belongs == Belongs::Response && self.only.as_ref().is_none_or(|only| only.contains(name))
    }

    /// Returns the response as it will be stored.
    pub(super) fn capture(&self, parts: &Parts, body: Bytes) -> StoredResponse {
        let named = named_by_connection(&parts.headers);
        let kept = parts.headers.iter().filter(|(name, _)| self.keeps(name) && !named.contains(name.as_str()));
        let body = if has_no_content(parts.status) { Bytes::new() } else { body };
        StoredResponse::new(parts.status, body).with_headers(kept.map(|(name, value)| (name.clone(), value.clone())))
    }
}

/// Returns whether responses with this status never have content (RFC 9110 sections 15.3.5, 15.3.6, 15.4.5).
pub(super) fn has_no_content(status: StatusCode) -> bool {
    matches!(status, StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED)
}

/// Returns the fields that `Connection` names: they belong to the hop too.
fn named_by_connection(headers: &HeaderMap) -> HashSet<String> {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect()
}

/// Returns why a response cannot be stored, because of its protocol.
pub(super) fn unsupported(parts: &Parts) -> Option<&'static str> {
    if parts.status.is_informational() {
        return Some(
            "The handler responded with an interim status (1xx) or a protocol switch, which cannot be stored.",
        );
    }
    let content_type = parts.headers.get(header::CONTENT_TYPE).map_or(&[][..], |value| value.as_bytes());
    if content_type.to_ascii_lowercase().starts_with(b"application/grpc") {
        return Some("The handler speaks gRPC, whose status is in the trailers, which cannot be stored.");
    }
    None
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderValue, Response};

    use super::*;

    fn kept(headers: &[(&'static str, &'static [u8])]) -> Vec<(String, Vec<u8>)> {
        kept_by(&HeaderRules::default(), headers)
    }

    fn kept_by(rules: &HeaderRules, headers: &[(&'static str, &'static [u8])]) -> Vec<(String, Vec<u8>)> {
        let mut response = Response::new(());
        for (name, value) in headers {
            response.headers_mut().append(*name, HeaderValue::from_bytes(value).expect("a header value"));
        }
        rules
            .capture(&response.into_parts().0, Bytes::new())
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
    fn r45_r47_r50_r51_r52_what_the_rules_name_is_left_out() {
        let named = "Connection Keep-Alive Proxy-Connection TE Transfer-Encoding Upgrade Trailer Content-Length Date Age \
                     Set-Cookie WWW-Authenticate Authentication-Info Proxy-Authenticate Proxy-Authentication-Info \
                     Server-Timing Server Via Alt-Svc NEL Report-To Reporting-Endpoints Clear-Site-Data traceparent \
                     tracestate X-Request-Id RateLimit RateLimit-Policy RateLimit-Limit RateLimit-Remaining \
                     RateLimit-Reset X-RateLimit-Limit X-RateLimit-Anything Strict-Transport-Security Signature \
                     Signature-Input Cache-Control Expires Pragma";
        for name in named.split_whitespace() {
            let lower: &'static str = Box::leak(name.to_ascii_lowercase().into_boxed_str());
            assert!(kept(&[(lower, b"v")]).is_empty(), "{name}");
        }
    }

    #[test]
    fn r45_r47_f38_what_is_made_anew_cannot_be_kept() {
        for name in ["connection", "te", "trailer", "upgrade", "transfer-encoding", "content-length", "date", "age"] {
            let always = HashSet::from([HeaderName::from_static(name)]);
            assert!(kept_by(&HeaderRules { always, ..HeaderRules::default() }, &[(name, b"v")]).is_empty(), "{name}");
        }
    }

    #[test]
    fn r50_r52_settings_add_and_remove_fields_but_never_those_of_the_hop() {
        let set = |names: &[&'static str]| names.iter().map(|name| HeaderName::from_static(name)).collect();
        let headers: &[(&'static str, &'static [u8])] =
            &[("set-cookie", b"a=1"), ("set-cookie", b"b=2"), ("x-own", b"1"), ("etag", b"\"v\""), ("te", b"x")];
        let names = |rules: &HeaderRules| {
            kept_by(rules, headers).into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(&HeaderRules::default()), "x-own etag");
        let rules = HeaderRules { never: set(&["etag"]), always: set(&["set-cookie", "te"]), only: None };
        assert_eq!(names(&rules), "set-cookie set-cookie x-own");
        let rules = HeaderRules { only: Some(set(&["etag", "te"])), ..HeaderRules::default() };
        assert_eq!(names(&rules), "etag");
    }

    #[test]
    fn r48_204_205_and_304_keep_no_content() {
        for (status, length) in [(204, 0), (205, 0), (304, 0), (200, 4), (404, 4)] {
            let mut response = Response::new(());
            *response.status_mut() = StatusCode::from_u16(status).expect("three digits");
            let stored = HeaderRules::default().capture(&response.into_parts().0, Bytes::from_static(b"body"));
            assert_eq!(stored.body().len(), length, "{status}");
        }
    }
}

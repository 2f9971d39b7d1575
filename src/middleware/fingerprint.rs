//! Request → fingerprint.

use std::{borrow::Cow, sync::Arc};

use axum::{
    extract::OriginalUri,
    http::{HeaderName, Uri, header, request::Parts},
};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::{
    canonical_json::canonical,
    rejection::{Rejection, RejectionKind},
};
use crate::Fingerprint;

pub(super) type FingerprintFn = Arc<dyn Fn(&Parts, &[u8]) -> Fingerprint + Send + Sync>;

/// What tells a retry from another request.
#[derive(Clone, Default)]
pub(super) struct FingerprintRules {
    pub(super) own: Option<FingerprintFn>,
    pub(super) canonical_json: bool,
    /// Fields that count as well.
    pub(super) headers: Vec<HeaderName>,
    pub(super) secret: Option<Arc<[u8]>>,
}

/// Not to be mixed up with scheme 1, the plain one.
const RESERVED: u8 = 1;

impl FingerprintRules {
    /// Refuses what has no fingerprint, before its body is read.
    pub(super) fn admit(&self, parts: &Parts) -> Result<(), Rejection> {
        if self.own.is_none() && essence(parts).starts_with(b"multipart/") {
            return Err(Rejection::new(
                RejectionKind::MultipartUnsupported,
                "a multipart body differs on every try, by its boundary; this operation needs a fingerprint function \
                 (IdempotencyLayer::with_fingerprint) to accept it",
            ));
        }
        Ok(())
    }

    /// Left out is what may differ between a request and its retry: who asks and when, what formats he likes, how the
    /// bytes were framed.
    pub(super) fn of(&self, parts: &Parts, body: &[u8]) -> Fingerprint {
        let fingerprint = match &self.own {
            Some(own) => own(parts, body),
            None => self.usual(parts, body),
        };
        let fingerprint = match &self.secret {
            Some(secret) => keyed(fingerprint, secret),
            None => fingerprint,
        };
        match self.settings(fingerprint.scheme()) {
            Some(settings) => {
                let scheme = Fingerprint::of(settings).digest()[0];
                fingerprint.with_scheme(if scheme == RESERVED { 0 } else { scheme })
            }
            None => fingerprint,
        }
    }

    /// What makes the scheme another one; `None` if it is the plain one, or a function's own without more.
    fn settings(&self, own_scheme: u8) -> Option<Vec<Vec<u8>>> {
        let own = self.own.is_some();
        let json = self.canonical_json && !own;
        let headers = if own { &[][..] } else { &self.headers };
        if !json && headers.is_empty() && self.secret.is_none() && (!own || own_scheme != RESERVED) {
            return None;
        }
        let mut settings = vec![vec![own_scheme, u8::from(own), u8::from(json), u8::from(self.secret.is_some())]];
        settings.extend(headers.iter().map(|name| name.as_str().as_bytes().to_vec()));
        if let Some(secret) = &self.secret {
            // Another secret is another scheme; a byte of its keyed hash tells nothing of it.
            settings.push(keyed(Fingerprint::of(["scheme"]), secret).digest().to_vec());
        }
        Some(settings)
    }

    fn usual(&self, parts: &Parts, body: &[u8]) -> Fingerprint {
        let uri = original_uri(parts);
        let essence = essence(parts);
        let encoding = joined(parts, &header::CONTENT_ENCODING, |value| value);
        let is_json = essence == b"application/json" || essence.ends_with(b"+json");
        let canonical = if self.canonical_json && is_json { canonical(body) } else { None };
        let body = canonical.map_or(Cow::Borrowed(body), Cow::Owned);
        let mut fields = vec![
            parts.method.as_str().as_bytes(),
            uri.path().as_bytes(),
            uri.query().unwrap_or_default().as_bytes(),
            &essence,
            &encoding,
            &body,
        ];
        for name in &self.headers {
            let mut count = 0_usize;
            for value in parts.headers.get_all(name) {
                fields.push(name.as_str().as_bytes());
                fields.push(value.as_bytes());
                count += 1;
            }
            if count == 0 {
                // Absent is not the same as empty.
                fields.push(name.as_str().as_bytes());
            }
        }
        Fingerprint::of(fields)
    }
}

/// Without the secret, nobody who reads the table can try out bodies until one fits.
fn keyed(fingerprint: Fingerprint, secret: &[u8]) -> Fingerprint {
    // HMAC takes a key of any length.
    match Hmac::<Sha256>::new_from_slice(secret) {
        Ok(mut mac) => {
            mac.update(fingerprint.digest());
            fingerprint.with_digest(mac.finalize().into_bytes().into())
        }
        Err(_) => fingerprint,
    }
}

/// As the client sent it: a router that nests another strips the prefix that it matched.
pub(super) fn original_uri(parts: &Parts) -> &Uri {
    parts.extensions.get::<OriginalUri>().map_or(&parts.uri, |original| &original.0)
}

/// The media type without parameters, in lower case.
fn essence(parts: &Parts) -> Vec<u8> {
    fn of(value: &[u8]) -> &[u8] {
        value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii()
    }

    joined(parts, &header::CONTENT_TYPE, of).to_ascii_lowercase()
}

/// All lines of a field, as they would stand in one (RFC 9110 section 5.3).
fn joined(parts: &Parts, name: &HeaderName, part: impl Fn(&[u8]) -> &[u8]) -> Vec<u8> {
    let lines: Vec<_> = parts.headers.get_all(name).iter().map(|value| part(value.as_bytes())).collect();
    lines.join(&b", "[..])
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn json(rules: &FingerprintRules, body: &str) -> Fingerprint {
        let request = Request::post("/a").header("content-type", "application/json").body(()).expect("a request");
        rules.of(&request.into_parts().0, body.as_bytes())
    }

    #[test]
    fn r26_canonical_json_ignores_what_json_ignores_and_nothing_else() {
        let rules = FingerprintRules { canonical_json: true, ..FingerprintRules::default() };
        let of = |body| json(&rules, body);
        for (one, other) in [
            (r#"{"a":1,"b":[1,2]}"#, r#" { "b" : [1, 2], "a" : 1.0 } "#),
            (r#"{"a":"é"}"#, r#"{"a":"\u00e9"}"#),
            (r#"{"a":100}"#, r#"{"a":1e2}"#),
        ] {
            assert_eq!(of(one), of(other), "{one} {other}");
        }
        for (one, other) in [
            (r#"{"a":null}"#, "{}"),
            (r#"{"a":[1,2]}"#, r#"{"a":[2,1]}"#),
            (r#"{"a":1}"#, r#"{"a":"1"}"#),
            (r#"{"a":9007199254740992}"#, r#"{"a":9007199254740993}"#),
            (r#"{"a":-9007199254740993}"#, r#"{"a":-9007199254740992}"#),
            (r#"{"a":100000000000000000000001}"#, r#"{"a":100000000000000000000002}"#),
            ("{\"a\":1", "{\"a\":1 "),
        ] {
            assert_ne!(of(one), of(other), "{one} {other}");
        }
        let bytes = FingerprintRules::default();
        assert_ne!(json(&bytes, r#"{"a":1}"#), json(&bytes, r#"{"a": 1}"#));
    }

    #[test]
    fn r28_a_secret_changes_what_is_stored_and_not_what_is_equal() {
        let secret = |secret: &[u8]| FingerprintRules { secret: Some(secret.into()), ..FingerprintRules::default() };
        let (plain, one, other) = (FingerprintRules::default(), secret(b"one"), secret(b"other"));
        assert_eq!(json(&one, "x"), json(&one, "x"));
        assert_ne!(json(&one, "x"), json(&one, "y"));
        assert_ne!(json(&one, "x"), json(&plain, "x"));
        assert_ne!(json(&one, "x"), json(&other, "x"));
    }

    #[test]
    fn r25_a_field_counts_if_it_is_listed() {
        let rules = FingerprintRules { headers: vec![HeaderName::from_static("x-version")], ..Default::default() };
        let of = |rules: &FingerprintRules, values: &[&str]| {
            let mut request = Request::post("/a");
            for value in values {
                request = request.header("x-version", *value);
            }
            rules.of(&request.body(()).expect("a request").into_parts().0, b"")
        };
        let all: [&[&str]; 5] = [&[], &[""], &["1"], &["2"], &["1", "2"]];
        for (n, one) in all.iter().enumerate() {
            assert_eq!(of(&rules, one), of(&rules, one));
            assert_eq!(of(&FingerprintRules::default(), one), of(&FingerprintRules::default(), &[]));
            for other in &all[n + 1..] {
                assert_ne!(of(&rules, one), of(&rules, other), "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn f90_each_line_of_a_field_counts() {
        let of = |name: &str, lines: &[&str]| {
            let mut request = Request::post("/a");
            for line in lines {
                request = request.header(name, *line);
            }
            FingerprintRules::default().of(&request.body(()).expect("a request").into_parts().0, b"body")
        };
        for (name, one, other) in [("content-encoding", "gzip", "br"), ("content-type", "text/plain", "text/html")] {
            let all: [&[&str]; 5] = [&[], &[one], &[other], &[one, other], &[other, one]];
            for (n, first) in all.iter().enumerate() {
                for second in &all[n + 1..] {
                    assert_ne!(of(name, first), of(name, second), "{name}: {first:?} {second:?}");
                }
            }
        }
        assert_eq!(
            of("content-encoding", &["gzip", "br"]),
            of("content-encoding", &["gzip, br"]),
            "a proxy may join them"
        );
        assert_eq!(of("content-type", &["Text/Plain; charset=utf-8"]), of("content-type", &["text/plain"]));
    }
}

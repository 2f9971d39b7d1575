//! Computes the fingerprint of a request.

use std::{borrow::Cow, sync::Arc};

use axum::{
    extract::OriginalUri,
    http::{HeaderName, Uri, header, request::Parts},
};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::{
    content::{Content, ContentRules},
    pairs,
};
use crate::Fingerprint;

pub(super) type FingerprintFn = Arc<dyn Fn(&Parts, &[u8]) -> Fingerprint + Send + Sync>;

/// The rules by which a retry is distinguished from another request.
#[derive(Clone, Default)]
pub(super) struct FingerprintRules {
    pub(super) own: Option<FingerprintFn>,
    pub(super) content: ContentRules,
    pub(super) query_in_any_order: bool,
    /// Header fields that are compared too.
    pub(super) headers: Vec<HeaderName>,
    pub(super) secret: Option<Arc<[u8]>>,
}

/// The scheme of the default settings.
const PLAIN: u8 = 1;

/// From here on each scheme stands for one combination of switches. Lower numbers are chosen by an application's
/// function, or are hashes of settings that are more than switches.
const SWITCHES: u8 = 240;

impl FingerprintRules {
    /// Computes the fingerprint. It leaves out everything that may differ between a request and its retry: the caller and
    /// the time, the preferred formats, and the framing of the bytes.
    pub(super) fn of(&self, parts: &Parts, body: &[u8]) -> Fingerprint {
        let fingerprint = match &self.own {
            Some(own) => own(parts, body),
            None => self.usual(parts, body),
        };
        let fingerprint = match &self.secret {
            Some(secret) => keyed(fingerprint, secret),
            None => fingerprint,
        };
        let scheme = self.scheme(fingerprint.scheme());
        fingerprint.with_scheme(scheme)
    }

    /// Returns the scheme for these settings; other settings have another one, since a row of another scheme matches every
    /// request.
    fn scheme(&self, own_scheme: u8) -> u8 {
        let own = self.own.is_some();
        let (headers, switches) = if own { (&[][..], 0) } else { (&*self.headers, self.switches()) };
        if headers.is_empty() && self.secret.is_none() {
            match (own, switches) {
                (false, 0) => return PLAIN,
                (false, switches) => return SWITCHES.saturating_add(switches),
                (true, _) if own_scheme != PLAIN => return own_scheme,
                (true, _) => {}
            }
        }
        let mut settings = vec![vec![own_scheme, u8::from(own), switches, u8::from(self.secret.is_some())]];
        settings.extend(headers.iter().map(|name| name.as_str().as_bytes().to_vec()));
        if let Some(secret) = &self.secret {
            // Another secret is another scheme; a byte of its keyed hash does not reveal the secret.
            settings.push(keyed(Fingerprint::of(["scheme"]), secret).digest().to_vec());
        }
        match Fingerprint::of(settings).digest()[0] % SWITCHES {
            PLAIN => 0,
            scheme => scheme,
        }
    }

    /// Returns the switches as bits, from 0 to 15.
    fn switches(&self) -> u8 {
        let ContentRules { canonical_json, json_rpc, form_in_any_order } = self.content;
        let bits = [canonical_json, json_rpc, form_in_any_order, self.query_in_any_order];
        bits.into_iter().fold(0, |switches, bit| switches << 1 | u8::from(bit))
    }

    fn usual(&self, parts: &Parts, body: &[u8]) -> Fingerprint {
        let uri = original_uri(parts);
        // `/things?` is another target than `/things`.
        let has_query: &[u8] = if uri.query().is_some() { b"?" } else { b"" };
        let query = uri.query().unwrap_or_default().as_bytes();
        let query = if self.query_in_any_order { Cow::Owned(pairs::ordered(query)) } else { Cow::Borrowed(query) };
        let essence = essence(parts);
        let encoding = joined(parts, &header::CONTENT_ENCODING, |value| value);
        let lines: Vec<_> = parts.headers.get_all(header::CONTENT_TYPE).iter().map(|value| value.as_bytes()).collect();
        let content = Content::of(self.content, &lines, &essence, !encoding.is_empty(), body);
        let head = content.head();
        let listed: Vec<_> = self.headers.iter().map(|name| Listed::of(parts, name)).collect();
        let mut fields = vec![
            parts.method.as_str().as_bytes(),
            uri.path().as_bytes(),
            has_query,
            &query,
            &essence,
            &encoding,
            &head,
        ];
        fields.extend(content.parts.iter().map(|part| &**part));
        fields.extend(&content.others);
        for field in &listed {
            fields.push(&field.count);
            fields.extend(&field.lines);
        }
        Fingerprint::of(fields)
    }
}

/// The lines of a listed field, after their number. So an absent field is not an empty one, and a line of one field is
/// never taken for a line of the next.
struct Listed<'a> {
    count: [u8; 8],
    lines: Vec<&'a [u8]>,
}

impl<'a> Listed<'a> {
    fn of(parts: &'a Parts, name: &HeaderName) -> Self {
        let lines: Vec<_> = parts.headers.get_all(name).iter().map(|value| value.as_bytes()).collect();
        Self { count: (lines.len() as u64).to_be_bytes(), lines }
    }
}

/// Applies the secret. Without it, a reader of the table cannot try bodies until one matches.
fn keyed(fingerprint: Fingerprint, secret: &[u8]) -> Fingerprint {
    // HMAC accepts a key of any length.
    match Hmac::<Sha256>::new_from_slice(secret) {
        Ok(mut mac) => {
            mac.update(fingerprint.digest());
            fingerprint.with_digest(mac.finalize().into_bytes().into())
        }
        Err(_) => fingerprint,
    }
}

/// Returns the URI as the client sent it: a router that nests another strips the prefix that it matched.
pub(super) fn original_uri(parts: &Parts) -> &Uri {
    parts.extensions.get::<OriginalUri>().map_or(&parts.uri, |original| &original.0)
}

/// Returns the media type without parameters, in lower case.
fn essence(parts: &Parts) -> Vec<u8> {
    fn of(value: &[u8]) -> &[u8] {
        value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii()
    }

    joined(parts, &header::CONTENT_TYPE, of).to_ascii_lowercase()
}

/// Joins all lines of a field into one (RFC 9110 section 5.3).
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
        let rules = FingerprintRules {
            content: ContentRules { canonical_json: true, ..ContentRules::default() },
            ..FingerprintRules::default()
        };
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
    fn r25_a_value_of_one_listed_field_is_none_of_another() {
        let rules = FingerprintRules {
            headers: vec![HeaderName::from_static("x-a"), HeaderName::from_static("x-b")],
            ..Default::default()
        };
        let of = |name: &str, value: &str| {
            let request = Request::post("/a").header(name, value).body(()).expect("a request");
            rules.of(&request.into_parts().0, b"")
        };
        for value in ["", "x-a", "x-b"] {
            assert_ne!(of("x-a", value), of("x-b", value), "{value:?}");
        }
    }

    #[test]
    fn r28_each_combination_of_switches_has_a_scheme_of_its_own() {
        let mut schemes = std::collections::HashSet::new();
        for bits in 0..16 {
            let on = |bit: u8| bits & (1 << bit) != 0;
            let content = ContentRules { canonical_json: on(0), json_rpc: on(1), form_in_any_order: on(2) };
            let rules = FingerprintRules { content, query_in_any_order: on(3), ..Default::default() };
            let scheme = json(&rules, "{}").scheme();
            assert!(schemes.insert(scheme) && (scheme > SWITCHES) == (bits > 0), "{bits:04b}");
            let listed = FingerprintRules { headers: vec![header::ACCEPT], ..rules.clone() };
            assert!(json(&listed, "{}").scheme() < SWITCHES && json(&listed, "{}").scheme() != PLAIN);
            let own: FingerprintFn = Arc::new(|_, body| Fingerprint::of([body]));
            let own = FingerprintRules { own: Some(own), ..rules };
            assert_eq!(
                json(&own, "{}").scheme(),
                json(&FingerprintRules { content: ContentRules::default(), query_in_any_order: false, ..own }, "{}")
                    .scheme()
            );
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

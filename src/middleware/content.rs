//! The parts of a request's body that go into its fingerprint.

use std::borrow::Cow;

use super::{canonical_json::canonical, json_rpc, multipart, pairs};

/// The rules for which bodies are compared by more than their bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct ContentRules {
    pub(super) canonical_json: bool,
    pub(super) json_rpc: bool,
    pub(super) form_in_any_order: bool,
}

/// The parts of a body, and the way in which they were found. Parts that were found in different ways are never equal.
pub(super) struct Content<'a> {
    way: Way,
    pub(super) parts: Vec<Cow<'a, [u8]>>,
    /// Parameters of the media type that count.
    pub(super) others: Vec<&'a [u8]>,
}

#[derive(Clone, Copy)]
enum Way {
    Bytes = 0,
    CanonicalJson = 1,
    /// The text around the ids.
    JsonRpc = 2,
    /// The canonical form, in which each id is 0.
    CanonicalJsonRpc = 3,
    Form = 4,
    /// The text around the boundaries.
    Multipart = 5,
    /// The lines of `Content-Type` and the bytes.
    MultipartBytes = 6,
}

impl<'a> Content<'a> {
    /// Finds the parts of `body`. `lines` are those of `Content-Type`, `essence` is their media type, and `encoded` says
    /// whether there is a `Content-Encoding`.
    pub(super) fn of(rules: ContentRules, lines: &[&'a [u8]], essence: &[u8], encoded: bool, body: &'a [u8]) -> Self {
        if lines.iter().any(|line| names_multipart(line)) {
            return Self::of_multipart(lines, encoded, body);
        }
        let is_json = !essence.contains(&b',') && (essence == b"application/json" || essence.ends_with(b"+json"));
        let is_json_rpc = is_json || essence == b"application/json-rpc" || essence == b"application/jsonrequest";
        if encoded {
            return Self::bytes(body);
        }
        if rules.form_in_any_order && essence == b"application/x-www-form-urlencoded" {
            return Self::one(Way::Form, pairs::ordered(body));
        }
        if rules.json_rpc
            && is_json_rpc
            && let Some(ids) = json_rpc::ids(body)
        {
            let around = json_rpc::around(body, &ids);
            return match (rules.canonical_json && is_json).then(|| canonical(&around.join(&b'0'))).flatten() {
                Some(canonical) => Self::one(Way::CanonicalJsonRpc, canonical),
                None => Self::borrowed(Way::JsonRpc, around),
            };
        }
        if rules.canonical_json
            && is_json
            && let Some(canonical) = canonical(body)
        {
            return Self::one(Way::CanonicalJson, canonical);
        }
        Self::bytes(body)
    }

    fn of_multipart(lines: &[&'a [u8]], encoded: bool, body: &'a [u8]) -> Self {
        let parameters = multipart::parameters(lines).filter(|_| !encoded);
        let segments = parameters.as_ref().and_then(|parameters| multipart::segments(body, parameters.boundary));
        match (parameters, segments) {
            (Some(parameters), Some(segments)) => {
                let mut this = Self::borrowed(Way::Multipart, segments);
                // Behind the segments, whose number the head says.
                this.others = parameters.others;
                this
            }
            // The boundary in the field may be read in more than one way.
            _ => Self::borrowed(Way::MultipartBytes, lines.iter().copied().chain([body])),
        }
    }

    fn bytes(body: &'a [u8]) -> Self {
        Self::borrowed(Way::Bytes, [body])
    }

    fn one(way: Way, part: Vec<u8>) -> Self {
        Self { way, parts: vec![Cow::Owned(part)], others: Vec::new() }
    }

    fn borrowed(way: Way, parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        Self { way, parts: parts.into_iter().map(Cow::Borrowed).collect(), others: Vec::new() }
    }

    /// Returns the bytes before the parts, so that the parts are never taken for what follows them.
    pub(super) fn head(&self) -> [u8; 17] {
        let mut head = [self.way as u8; 17];
        head[1..9].copy_from_slice(&(self.parts.len() as u64).to_be_bytes());
        head[9..].copy_from_slice(&(self.others.len() as u64).to_be_bytes());
        head
    }
}

/// Returns whether a reader could find a multipart type in this line: readers may take the first line, the last line, or the
/// value after a comma.
fn names_multipart(line: &[u8]) -> bool {
    const NAME: &[u8] = b"multipart/";
    line.windows(NAME.len()).any(|part| part.eq_ignore_ascii_case(NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: ContentRules = ContentRules { canonical_json: true, json_rpc: true, form_in_any_order: true };

    fn of<'a>(rules: ContentRules, types: &[&'a str], body: &'a str) -> Content<'a> {
        let lines: Vec<_> = types.iter().map(|line| line.as_bytes()).collect();
        let essence =
            types.iter().map(|line| line.split(';').next().unwrap_or_default()).collect::<Vec<_>>().join(", ");
        Content::of(rules, &lines, essence.as_bytes(), false, body.as_bytes())
    }

    #[test]
    fn what_was_come_by_in_another_way_or_has_another_number_of_parts_is_never_the_same() {
        let call = r#"{"jsonrpc":"2.0","method":"m","id":1}"#;
        let inexact = r#"{"jsonrpc":"2.0","method":"m","id":1,"a":1e999}"#;
        let heads = [
            of(ContentRules::default(), &["application/json"], "{}"),
            of(ALL, &["application/json"], "{}"),
            of(ALL, &["application/json"], call),
            of(ALL, &["application/json"], inexact),
            of(ALL, &["application/json"], &format!("[{inexact},{inexact}]")),
            of(ALL, &["application/x-www-form-urlencoded"], "a"),
            of(ALL, &["multipart/mixed; boundary=b"], ""),
            of(ALL, &["multipart/mixed; boundary=b"], "--b--"),
            of(ALL, &["multipart/mixed"], ""),
            of(ALL, &["multipart/mixed", "text/plain"], ""),
        ]
        .map(|content| content.head());
        assert_eq!(heads.iter().collect::<std::collections::HashSet<_>>().len(), heads.len(), "{heads:?}");
    }

    #[test]
    fn each_setting_applies_to_its_media_types_and_to_no_others() {
        let call = r#"{"jsonrpc":"2.0","method":"m","id":1}"#;
        let ways = |types: &[&str]| {
            let way = |body| of(ALL, types, body).way;
            (way("{ }") as u8, way(call) as u8, way("b&a") as u8)
        };
        let json = (Way::CanonicalJson as u8, Way::CanonicalJsonRpc as u8, Way::Bytes as u8);
        assert_eq!(ways(&["application/json; charset=utf-8"]), json);
        assert_eq!(ways(&["application/a+json"]), json);
        for named in ["application/json-rpc", "application/jsonrequest"] {
            assert_eq!(ways(&[named]), (Way::Bytes as u8, Way::JsonRpc as u8, Way::Bytes as u8));
        }
        let form = [Way::Form as u8; 3];
        assert_eq!(ways(&["application/x-www-form-urlencoded;a=b"]), (form[0], form[1], form[2]));
        let bytes = [Way::Bytes as u8; 3];
        for types in [&[][..], &["text/plain"], &["application/x-json"], &["application/json", "application/a+json"]] {
            assert_eq!(ways(types), (bytes[0], bytes[1], bytes[2]), "{types:?}");
        }
        let multipart = [Way::MultipartBytes as u8; 3];
        for types in [&["text/plain", "Multipart/mixed; boundary=a"][..], &["text/plain, multipart/mixed; boundary=a"]]
        {
            assert_eq!(ways(types), (multipart[0], multipart[1], multipart[2]), "{types:?}");
        }
    }
}

//! JSON-RPC requests that differ in nothing but their `id`.

use std::{borrow::Cow, fmt, ops::Range};

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Where the ids of a JSON-RPC 2.0 request stand, or those of all requests in a batch. `None` if the body is neither.
///
/// An id is a string or a number. `null` is left where it is, since there are servers that take it for no id at all; and a
/// response, whose id says to what it responds, is not a request.
pub(super) fn ids(body: &[u8]) -> Option<Vec<Range<usize>>> {
    let text = std::str::from_utf8(body).ok()?;
    let calls = match text.trim_start().starts_with('[') {
        true => serde_json::from_str::<Vec<Call<'_>>>(text).ok()?,
        false => vec![serde_json::from_str(text).ok()?],
    };
    if calls.is_empty() {
        return None;
    }
    calls.into_iter().filter_map(|call| call.id).map(|id| place(text, id)).collect()
}

/// Where in `text` this part of it stands.
fn place(text: &str, part: &str) -> Option<Range<usize>> {
    let begin = part.as_ptr().addr().checked_sub(text.as_ptr().addr())?;
    let place = begin..begin.checked_add(part.len())?;
    (text.get(place.clone()) == Some(part)).then_some(place)
}

/// What stands before, between and behind these places.
pub(super) fn around<'a>(body: &'a [u8], places: &[Range<usize>]) -> Vec<&'a [u8]> {
    let begins = std::iter::once(0).chain(places.iter().map(|place| place.end));
    let ends = places.iter().map(|place| place.start).chain([body.len()]);
    begins.zip(ends).map(|(begin, end)| body.get(begin..end).unwrap_or_default()).collect()
}

/// An object that is a JSON-RPC 2.0 request for every reader: no member that says so is named twice.
struct Call<'a> {
    id: Option<&'a str>,
}

impl<'de> Deserialize<'de> for Call<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(CallVisitor)
    }
}

struct CallVisitor;

impl<'de> Visitor<'de> for CallVisitor {
    type Value = Call<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON-RPC 2.0 request")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Call<'de>, A::Error> {
        let (mut version, mut method, mut id) = (None, None, None);
        while let Some((name, value)) = members.next_entry::<Cow<'de, str>, &'de RawValue>()? {
            let is_excluded = match &*name {
                "jsonrpc" => version.replace(value).is_some(),
                "method" => method.replace(value).is_some(),
                "id" => id.replace(value).is_some(),
                // It is a response, or both.
                "result" | "error" => true,
                _ => false,
            };
            if is_excluded {
                return Err(de::Error::custom("not one request"));
            }
        }
        let text = |value: Option<&RawValue>| value.and_then(|value| serde_json::from_str::<String>(value.get()).ok());
        if text(version).as_deref() != Some("2.0") || text(method).is_none() {
            return Err(de::Error::custom("not a request"));
        }
        let id = id
            .map(RawValue::get)
            .filter(|id| id.starts_with(|first: char| first == '"' || first == '-' || first.is_ascii_digit()));
        Ok(Call { id })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What counts of a request, with `_` where an id was.
    fn of(body: &str) -> Option<String> {
        let around = around(body.as_bytes(), &ids(body.as_bytes())?).join(&b'_');
        Some(String::from_utf8(around).expect("the same letters"))
    }

    #[test]
    fn the_id_of_a_request_is_found_wherever_it_stands_and_whatever_it_is() {
        for (body, counts) in [
            (r#"{"jsonrpc":"2.0","method":"m","id":1}"#, r#"{"jsonrpc":"2.0","method":"m","id":_}"#),
            (
                r#" { "id" : "x\"}" , "method":"m", "jsonrpc":"2.0" } "#,
                r#" { "id" : _ , "method":"m", "jsonrpc":"2.0" } "#,
            ),
            (
                r#"{"id":12345678901234567890123,"method":"m","jsonrpc":"2.0"}"#,
                r#"{"id":_,"method":"m","jsonrpc":"2.0"}"#,
            ),
            (
                r#"{"\u0069d":-1.5e400,"method":"m","jsonrpc":"2\u002e0"}"#,
                r#"{"\u0069d":_,"method":"m","jsonrpc":"2\u002e0"}"#,
            ),
            (r#"{"jsonrpc":"2.0","method":"m"}"#, r#"{"jsonrpc":"2.0","method":"m"}"#),
            (r#"{"jsonrpc":"2.0","method":"m","id":null}"#, r#"{"jsonrpc":"2.0","method":"m","id":null}"#),
            (r#"{"jsonrpc":"2.0","method":"m","id":[1]}"#, r#"{"jsonrpc":"2.0","method":"m","id":[1]}"#),
            (
                r#"{"jsonrpc":"2.0","method":"m","params":{"id":1},"id":2,"ID":3}"#,
                r#"{"jsonrpc":"2.0","method":"m","params":{"id":1},"id":_,"ID":3}"#,
            ),
            (
                r#"[{"jsonrpc":"2.0","method":"m","id":1}, {"jsonrpc":"2.0","method":"n"},{"id":"é","jsonrpc":"2.0","method":"n"}]"#,
                r#"[{"jsonrpc":"2.0","method":"m","id":_}, {"jsonrpc":"2.0","method":"n"},{"id":_,"jsonrpc":"2.0","method":"n"}]"#,
            ),
        ] {
            assert_eq!(of(body).as_deref(), Some(counts), "{body}");
        }
    }

    #[test]
    fn what_is_not_a_request_for_every_reader_has_no_id() {
        for body in [
            "",
            "[]",
            "{}",
            "1",
            r#"{"jsonrpc":"1.0","method":"m","id":1}"#,
            r#"{"jsonrpc":2.0,"method":"m","id":1}"#,
            r#"{"method":"m","id":1}"#,
            r#"{"jsonrpc":"2.0","id":1}"#,
            r#"{"jsonrpc":"2.0","method":null,"id":1}"#,
            r#"{"jsonrpc":"2.0","result":1,"id":1}"#,
            r#"{"jsonrpc":"2.0","error":{},"id":1}"#,
            r#"{"jsonrpc":"2.0","method":"m","result":1,"id":1}"#,
            r#"{"jsonrpc":"2.0","method":"m","id":1,"id":2}"#,
            r#"{"jsonrpc":"2.0","method":"m","id":1,"\u0069d":1}"#,
            r#"{"jsonrpc":"2.0","method":"m","method":"n","id":1}"#,
            r#"{"jsonrpc":"2.0","jsonrpc":"1.0","method":"m","id":1}"#,
            r#"{"jsonrpc":"1.0","jsonrpc":"2.0","method":"m","id":1}"#,
            r#"{"jsonrpc":"2.0","method":"m","id":1} x"#,
            r#"{"jsonrpc":"2.0","method":"m","id":01}"#,
            r#"[{"jsonrpc":"2.0","method":"m","id":1},{"id":1}]"#,
            r#"[[{"jsonrpc":"2.0","method":"m","id":1}]]"#,
        ] {
            assert_eq!(of(body), None, "{body}");
        }
        assert!(ids(b"{\"jsonrpc\":\"2.0\",\"method\":\"\xff\",\"id\":1}").is_none());
    }

    #[test]
    fn a_body_that_nests_deeply_is_no_panic() {
        let deep = "[".repeat(200_000);
        assert_eq!(of(&deep), None);
        let params = [&*deep, &"]".repeat(200_000)].concat();
        assert!(of(&format!(r#"{{"jsonrpc":"2.0","method":"m","id":1,"params":{params}}}"#)).is_some());
    }

    proptest! {
        #[test]
        fn any_text_of_json_letters_has_ids_or_none(body in "[\\[\\]{}\",:0-9idmethojsnrpc.\\\\ -]{0,60}") {
            if let Some(ids) = ids(body.as_bytes()) {
                prop_assert_eq!(around(body.as_bytes(), &ids).len(), ids.len() + 1);
            }
        }
    }
}

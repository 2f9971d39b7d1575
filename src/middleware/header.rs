//! Header field → key.

use axum::http::{HeaderMap, HeaderName};
use sfv::{BareItem, Item, Parser};

use super::rejection::{Rejection, RejectionKind};
use crate::{IdempotencyKey, InvalidKey};

/// The key in `headers`; `None` if there is no such field. Anything that is there and is not one valid key is an
/// error, never taken for absent.
pub(super) fn key(headers: &HeaderMap, name: &HeaderName, strict: bool) -> Result<Option<IdempotencyKey>, Rejection> {
    let mut lines = headers.get_all(name).iter();
    let Some(line) = lines.next() else {
        return Ok(None);
    };
    // Counted, not combined: the lines `"foo` and `bar"` would combine to a valid key that nobody sent.
    if lines.next().is_some() {
        return Err(invalid("the field was sent more than once"));
    }
    parse(line.as_bytes(), strict).map(Some)
}

/// `strict`: a String of RFC 9651 only. Otherwise bare keys as well, as every large provider takes them.
fn parse(value: &[u8], strict: bool) -> Result<IdempotencyKey, Rejection> {
    let value = value.trim_ascii();
    if strict || value.starts_with(b"\"") {
        return quoted(value);
    }
    bare(value)
}

fn quoted(value: &[u8]) -> Result<IdempotencyKey, Rejection> {
    match Parser::new(value).parse::<Item>() {
        Ok(Item { bare_item: BareItem::String(key), .. }) => checked(key.as_str()),
        Ok(_) => Err(invalid("the field must hold a String in double quotes (RFC 9651)")),
        Err(_) => Err(invalid("the field does not hold a well-formed String (RFC 9651)")),
    }
}

/// Visible ASCII without what would make it look like a list, a parameter, or another structured type.
fn bare(value: &[u8]) -> Result<IdempotencyKey, Rejection> {
    let reserved_first = matches!(value.first(), Some(b'\'' | b'?' | b':' | b'@' | b'%' | b'(' | b'*'));
    let plain = value.iter().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b',' | b';'));
    match std::str::from_utf8(value) {
        Ok(key) if plain && !reserved_first => checked(key),
        _ => Err(invalid(
            "a bare key holds visible ASCII characters except \" \\ , ; and begins with none of ' ? : @ % ( *",
        )),
    }
}

fn checked(key: &str) -> Result<IdempotencyKey, Rejection> {
    if key.contains(' ') {
        return Err(invalid("a key must not contain spaces"));
    }
    IdempotencyKey::new(key).map_err(|error| match error {
        InvalidKey::Empty => invalid("the key is empty"),
        InvalidKey::NotPrintable { .. } => invalid("a key holds printable ASCII characters only"),
        InvalidKey::TooLong { length, limit } => {
            Rejection::new(RejectionKind::InvalidKey, format!("the key has {length} characters; {limit} are allowed"))
        }
    })
}

fn invalid(detail: &'static str) -> Rejection {
    Rejection::new(RejectionKind::InvalidKey, detail)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const NAME: HeaderName = HeaderName::from_static("idempotency-key");

    fn parsed(lines: &[&[u8]], strict: bool) -> Result<Option<String>, RejectionKind> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(NAME, HeaderValue::from_bytes(line).map_err(|_| RejectionKind::InvalidKey)?);
        }
        match key(&headers, &NAME, strict) {
            Ok(key) => Ok(key.map(|key| key.as_str().to_owned())),
            Err(rejection) => Err(rejection.kind()),
        }
    }

    fn lenient(value: &str) -> Option<String> {
        parsed(&[value.as_bytes()], false).ok().flatten()
    }

    #[test]
    fn r2_an_absent_field_is_not_an_error() {
        assert_eq!(parsed(&[], false), Ok(None));
        assert_eq!(parsed(&[], true), Ok(None));
    }

    #[test]
    fn r7_an_invalid_value_is_never_taken_for_absent() {
        for value in ["", "   ", "\"\"", "\"abc", "abc,def", "a b", "\"a b\"", "?1", ":YWJj:", "(a b)", "*abc"] {
            assert_eq!(parsed(&[value.as_bytes()], false), Err(RejectionKind::InvalidKey), "{value:?}");
        }
    }

    #[test]
    fn r9_quoted_and_bare_are_one_key() {
        assert_eq!(lenient("\"8e03978e-40d5\""), lenient("8e03978e-40d5"));
        assert_eq!(lenient("-V1StGXR8_Z5").as_deref(), Some("-V1StGXR8_Z5"));
    }

    #[test]
    fn r10_two_lines_are_refused_even_if_equal_or_combinable() {
        for lines in [[&b"\"abc\""[..], b"\"abc\""], [b"\"foo", b"bar\""]] {
            assert_eq!(parsed(&lines, false), Err(RejectionKind::InvalidKey));
        }
    }

    #[test]
    fn r14_r15_escapes_and_parameters() {
        assert_eq!(lenient(r#""a\"b""#).as_deref(), Some("a\"b"));
        assert_eq!(lenient(r#""abc"; v=1;w"#).as_deref(), Some("abc"));
        for bad in [r#""a\nb""#, r#""abc\"#, r#""abc";V=1"#, r#""abc";"#, r#""abc" ;v=1"#, "abc;v=1"] {
            assert_eq!(lenient(bad), None, "{bad}");
        }
    }

    #[test]
    fn r8_r16_strict_takes_strings_only() {
        for value in ["abc", "123", "KG5LxwFBepaKHyUD", "8e03978e-40d5"] {
            assert!(lenient(value).is_some());
            assert_eq!(parsed(&[value.as_bytes()], true), Err(RejectionKind::InvalidKey), "{value}");
        }
        assert_eq!(parsed(&[b"\"abc\""], true), Ok(Some("abc".to_owned())));
    }

    #[test]
    fn r17_r18_octets_and_length() {
        for value in [&b"\"caf\xc3\xa9\""[..], b"caf\xe9", b"\"a\tb\""] {
            assert_eq!(parsed(&[value], false), Err(RejectionKind::InvalidKey));
        }
        let quoted = |length: usize| format!("\"{}\"", "x".repeat(length));
        assert!(lenient(&quoted(255)).is_some());
        assert_eq!(lenient(&quoted(256)), None);
        assert_eq!(lenient(&quoted(2_000)), None);
        assert_eq!(lenient(&format!("\"{}\"", r#"\""#.repeat(255))).map(|key| key.len()), Some(255));
    }
}

//! Reads the key from its header field.

use std::{borrow::Cow, ops::RangeInclusive, sync::Arc, time::SystemTime};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use sfv::{BareItem, Item, Parser};
use uuid::{Uuid, fmt::Hyphenated};

use super::{rejection::Rejection, rejection_kind::RejectionKind};
use crate::{IdempotencyKey, TimestampedKeys};

pub(super) static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

// OASIS Repeatable Requests 1.0.
pub(super) static REPEATABILITY_REQUEST_ID: HeaderName = HeaderName::from_static("repeatability-request-id");
pub(super) static REPEATABILITY_FIRST_SENT: HeaderName = HeaderName::from_static("repeatability-first-sent");
pub(super) static REPEATABILITY_RESULT: HeaderName = HeaderName::from_static("repeatability-result");

/// The key in a request's header.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) key: IdempotencyKey,
    /// The timestamp beside the key, if there is one.
    pub(super) first: Option<SystemTime>,
}

/// The syntax of keys.
#[derive(Clone)]
pub(super) struct KeyRules {
    /// Accepts only a String of RFC 9651. Otherwise keys without quotes are accepted too, as by every large provider.
    pub(super) strict: bool,
    pub(super) spaces: bool,
    pub(super) length: RangeInclusive<usize>,
    /// Requires UUIDs; two spellings of one UUID are one key.
    pub(super) uuid: bool,
    pub(super) check: Option<KeyCheck>,
}

pub(super) type KeyCheck = Arc<dyn Fn(&str) -> bool + Send + Sync>;

impl Default for KeyRules {
    fn default() -> Self {
        Self { strict: false, spaces: false, length: 1..=255, uuid: false, check: None }
    }
}

impl KeyRules {
    /// Returns the key in `headers`; `None` if there is no such field. A field that is present and is not one valid key
    /// is an error, and is never treated as missing.
    pub(super) fn find(
        &self,
        headers: &HeaderMap,
        name: &HeaderName,
        keys: Option<TimestampedKeys>,
    ) -> Result<Option<Sent>, Rejection> {
        let beside = keys.is_some_and(TimestampedKeys::is_beside_the_key);
        match (one(headers, name)?, beside.then(|| one(headers, &REPEATABILITY_FIRST_SENT)).transpose()?.flatten()) {
            (None, None) => Ok(None),
            (Some(key), None) if !beside => Ok(Some(Sent { key: self.parse_with(key, keys)?, first: None })),
            (Some(key), Some(first)) => {
                Ok(Some(Sent { key: self.parse_with(key, keys)?, first: Some(imf_fixdate(first)?) }))
            }
            (Some(_), None) => Err(invalid("The key came without Repeatability-First-Sent. Send both fields.")),
            (None, Some(_)) => Err(invalid("Repeatability-First-Sent came without a key. Send both fields.")),
        }
    }

    /// Parses a key; a timestamped key gets its canonical spelling.
    fn parse_with(&self, value: &HeaderValue, keys: Option<TimestampedKeys>) -> Result<IdempotencyKey, Rejection> {
        let key = self.parse(value.as_bytes())?;
        match keys.filter(|keys| !keys.is_beside_the_key()) {
            None => Ok(key),
            Some(keys) => {
                let (spelled, _) = keys.spell(key.as_str()).ok_or_else(Rejection::key_without_time)?;
                IdempotencyKey::new(spelled).map_err(|_| Rejection::key_without_time())
            }
        }
    }

    pub(super) fn parse(&self, value: &[u8]) -> Result<IdempotencyKey, Rejection> {
        let value = value.trim_ascii();
        if self.strict || value.starts_with(b"\"") {
            return self.quoted(value);
        }
        self.check(bare(value)?)
    }

    fn quoted(&self, value: &[u8]) -> Result<IdempotencyKey, Rejection> {
        match Parser::new(value).parse::<Item>() {
            Ok(Item { bare_item: BareItem::String(key), .. }) => self.check(key.as_str()),
            Ok(_) => Err(invalid("The field must hold a String in double quotes (RFC 9651).")),
            Err(_) => Err(invalid("The field must hold a well-formed String (RFC 9651).")),
        }
    }

    fn check(&self, key: &str) -> Result<IdempotencyKey, Rejection> {
        let (shortest, longest) = (*self.length.start(), *self.length.end());
        if key.is_empty() {
            return Err(invalid("The key is empty. Send a key of one character or more."));
        }
        if key.len() > longest {
            let detail = format!("The key has {} characters. At most {longest} are allowed.", key.len());
            return Err(Rejection::new(RejectionKind::InvalidKey, detail));
        }
        if key.len() < shortest {
            let detail = format!("The key has {} characters. At least {shortest} are needed.", key.len());
            return Err(Rejection::new(RejectionKind::InvalidKey, detail));
        }
        if key.contains(' ') && !self.spaces {
            return Err(invalid("The key contains a space. Send a key without spaces."));
        }
        let canonical = if self.uuid {
            Cow::Owned(uuid(key).ok_or_else(|| invalid("The key must be a UUID with hyphens."))?)
        } else {
            Cow::Borrowed(key)
        };
        if self.check.as_ref().is_some_and(|check| !check(&canonical)) {
            return Err(invalid("The key does not have the form that this operation requires."));
        }
        IdempotencyKey::new(canonical).map_err(|_| invalid("A key must contain printable ASCII characters only."))
    }
}

/// Returns a UUID in lower case; `None` for the forms without hyphens or with braces.
fn uuid(key: &str) -> Option<String> {
    if key.len() != Hyphenated::LENGTH {
        return None;
    }
    Some(Uuid::try_parse(key).ok()?.hyphenated().to_string())
}

/// Parses a key without quotes: visible ASCII without the characters that would make it look like a list, a parameter, or
/// another structured type.
fn bare(value: &[u8]) -> Result<&str, Rejection> {
    let reserved_first = matches!(value.first(), Some(b'\'' | b'?' | b':' | b'@' | b'%' | b'(' | b'*'));
    let plain = value.iter().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b',' | b';'));
    match std::str::from_utf8(value) {
        Ok(key) if plain && !reserved_first => Ok(key),
        _ => Err(invalid(
            "A key without quotes must contain visible ASCII characters except \" \\ , ; and begin with none of ' ? \
             : @ % ( *",
        )),
    }
}

/// Returns the only line of a field; `None` if there is no such field.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, Rejection> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next();
    // The lines are counted, not combined: `"foo` and `bar"` would combine to a valid key that the client did not send.
    if lines.next().is_some() {
        return Err(invalid("The field was sent more than once. Send it once."));
    }
    Ok(line)
}

/// Parses the only one of the three formats of HTTP dates that the OASIS standard allows.
fn imf_fixdate(value: &HeaderValue) -> Result<SystemTime, Rejection> {
    let parsed = value.to_str().ok().and_then(|text| {
        let at = httpdate::parse_http_date(text).ok()?;
        (httpdate::fmt_http_date(at) == text).then_some(at)
    });
    parsed.ok_or_else(|| invalid("Repeatability-First-Sent must be a date such as Tue, 15 Nov 1994 08:12:31 GMT."))
}

fn invalid(detail: &'static str) -> Rejection {
    Rejection::new(RejectionKind::InvalidKey, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: HeaderName = HeaderName::from_static("idempotency-key");

    fn parsed(lines: &[&[u8]], strict: bool) -> Result<Option<String>, RejectionKind> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(NAME, HeaderValue::from_bytes(line).map_err(|_| RejectionKind::InvalidKey)?);
        }
        match (KeyRules { strict, ..KeyRules::default() }).find(&headers, &NAME, None) {
            Ok(sent) => Ok(sent.map(|sent| sent.key.as_str().to_owned())),
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
    fn r7_r11_r12_an_invalid_value_is_never_taken_for_absent() {
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
        // http's own type does not let this one in.
        assert!(KeyRules::default().parse(b"\"a\x7fb\"").is_err());
        for value in [&b"\"caf\xc3\xa9\""[..], b"caf\xe9", b"\"a\tb\""] {
            assert_eq!(parsed(&[value], false), Err(RejectionKind::InvalidKey));
        }
        let quoted = |length: usize| format!("\"{}\"", "x".repeat(length));
        assert!(lenient(&quoted(255)).is_some());
        assert_eq!(lenient(&quoted(256)), None);
        assert_eq!(lenient(&quoted(2_000)), None);
        assert_eq!(lenient(&format!("\"{}\"", r#"\""#.repeat(255))).map(|key| key.len()), Some(255));
    }

    #[test]
    fn r18_length_is_configurable_and_never_cut() {
        let rules = KeyRules { length: 8..=16, ..KeyRules::default() };
        assert!(rules.parse(b"1234567").is_err());
        assert!(rules.parse(b"12345678").is_ok());
        assert!(rules.parse(b"1234567890123456").is_ok());
        let long = rules.parse(b"12345678901234567").unwrap_err();
        assert_eq!(long.detail(), "The key has 17 characters. At most 16 are allowed.");
        let malformed_or_long = KeyRules::default().parse(format!("\"{}\"", "x".repeat(5_000)).as_bytes()).unwrap_err();
        assert_eq!(malformed_or_long.detail(), "The key has 5000 characters. At most 255 are allowed.");
    }

    #[test]
    fn r13_spaces_inside_a_key_are_an_option() {
        let rules = KeyRules { spaces: true, ..KeyRules::default() };
        assert_eq!(rules.parse(b"\"a b\"").unwrap().as_str(), "a b");
        assert_eq!(rules.parse(b"\" a \"").unwrap().as_str(), " a ");
        assert!(rules.parse(b"a b").is_err(), "a bare key still holds none");
    }

    #[test]
    fn r19_uuids_are_one_key_in_any_case_and_in_one_form_only() {
        let rules = KeyRules { uuid: true, ..KeyRules::default() };
        let lower = rules.parse(b"8e03978e-40d5-43e8-bc93-6894a57f9324").unwrap();
        assert_eq!(rules.parse(b"\"8E03978E-40D5-43E8-BC93-6894A57F9324\"").unwrap(), lower);
        assert_eq!(lower.as_str(), "8e03978e-40d5-43e8-bc93-6894a57f9324");
        for other in [
            "8e03978e40d543e8bc936894a57f9324",
            "{8e03978e-40d5-43e8-bc93-6894a57f9324}",
            "abc",
            "8e03978e-40d5-43e8-bc93-6894a57f932g",
        ] {
            assert!(rules.parse(format!("\"{other}\"").as_bytes()).is_err(), "{other}");
        }
    }

    fn repeatable(lines: &[(&'static str, &str)]) -> Result<Option<Sent>, RejectionKind> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::try_from(*value).unwrap());
        }
        let keys = TimestampedKeys::first_sent(std::time::Duration::from_secs(60)).unwrap();
        let found = KeyRules::default().find(&headers, &REPEATABILITY_REQUEST_ID, Some(keys));
        found.map_err(|rejection| rejection.kind())
    }

    #[test]
    fn t6_both_fields_or_none_each_once_and_imf_fixdate_only() {
        const ID: (&str, &str) = ("repeatability-request-id", "abc");
        let sent = |value| ("repeatability-first-sent", value);
        let found = repeatable(&[ID, sent("Tue, 15 Nov 1994 08:12:31 GMT")]).unwrap().unwrap();
        let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(784_887_151);
        assert_eq!((found.key.as_str(), found.first), ("abc", Some(at)));
        assert_eq!(repeatable(&[]), Ok(None));
        for lines in [
            &[ID][..],
            &[sent("Tue, 15 Nov 1994 08:12:31 GMT")],
            &[ID, ID, sent("Tue, 15 Nov 1994 08:12:31 GMT")],
            &[ID, sent("Tue, 15 Nov 1994 08:12:31 GMT"), sent("Tue, 15 Nov 1994 08:12:31 GMT")],
            &[ID, sent("Tuesday, 15-Nov-94 08:12:31 GMT")],
            &[ID, sent("Tue Nov 15 08:12:31 1994")],
            &[ID, sent("Wed, 15 Nov 1994 08:12:31 GMT")],
            &[ID, sent("1994-11-15T08:12:31Z")],
            &[ID, sent("")],
        ] {
            assert_eq!(repeatable(lines), Err(RejectionKind::InvalidKey), "{lines:?}");
        }
    }

    #[test]
    fn t1_a_key_without_a_time_is_refused_and_one_with_it_has_one_spelling() {
        let keys = Some(TimestampedKeys::ulid(std::time::Duration::from_secs(60)).unwrap());
        let parse = |value| {
            let key = KeyRules::default().parse_with(&HeaderValue::from_static(value), keys);
            key.map(|key| key.as_str().to_owned()).map_err(|rejection| rejection.kind())
        };
        assert_eq!(parse("\"01arz3ndektsv4rrffq69g5fav\"").as_deref(), Ok("01ARZ3NDEKTSV4RRFFQ69G5FAV"));
        assert_eq!(parse("order-1"), Err(RejectionKind::InvalidKey));
    }

    #[test]
    fn a_check_of_the_applications_decides() {
        let rules = KeyRules { check: Some(Arc::new(|key| key.starts_with("req_"))), ..KeyRules::default() };
        assert!(rules.parse(b"req_1").is_ok());
        assert_eq!(rules.parse(b"1").unwrap_err().kind(), RejectionKind::InvalidKey);
        // On top of the format, and on its canonical form.
        let version = Arc::new(|key: &str| key.as_bytes().get(14) == Some(&b'7'));
        let rules = KeyRules { uuid: true, check: Some(version), ..KeyRules::default() };
        assert!(
            rules.parse(b"01890A5D-AC96-774B-BCCE-B302099A8057").is_ok_and(|key| key.as_str().starts_with("01890a5d"))
        );
        assert!(rules.parse(b"8e03978e-40d5-43e8-bc93-6894a57f9324").is_err());
    }
}

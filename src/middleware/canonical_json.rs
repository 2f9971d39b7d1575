//! JSON bodies that say the same in different bytes.

use serde_json::Value;

/// The JCS form (RFC 8785) of a JSON text, in which the order of members, white space, and `1.0` for `1` make no
/// difference. `None` if the form would not say all that the text says, whose bytes count then: it is not JSON, has a number
/// that an IEEE double does not hold as it is written, or names a member twice.
pub(super) fn canonical(body: &[u8]) -> Option<Vec<u8>> {
    let value: Value = serde_json::from_slice(body).ok()?;
    let text = std::str::from_utf8(body).ok()?;
    if !holds_all(text, &value) {
        return None;
    }
    serde_json_canonicalizer::to_vec(&value).ok()
}

/// `text` is known to be JSON, so only strings have to be told from the rest.
fn holds_all(text: &str, value: &Value) -> bool {
    let (mut rest, mut names) = (text, 0_usize);
    while let Some(first) = rest.chars().next() {
        rest = match first {
            '"' => {
                let after = after_string(&rest[1..]);
                if is_reserved(rest.get(..rest.len().saturating_sub(after.len())).unwrap_or_default()) {
                    return false;
                }
                after
            }
            '-' | '0'..='9' => {
                let is_of_number = |letter: char| matches!(letter, '0'..='9' | '-' | '+' | '.' | 'e' | 'E');
                let end = rest.find(|letter| !is_of_number(letter)).unwrap_or(rest.len());
                if !is_exact(&rest[..end]) {
                    return false;
                }
                &rest[end..]
            }
            _ => {
                names = names.saturating_add(usize::from(first == ':'));
                &rest[first.len_utf8()..]
            }
        };
    }
    names == members(value)
}

/// Is it a name that serde_json takes for something else than a member's?
fn is_reserved(string: &str) -> bool {
    let may_be = string.contains(['$', '\\']);
    may_be && serde_json::from_str::<String>(string).is_ok_and(|name| name.starts_with("$serde_json::"))
}

/// What follows a string, given what follows its opening quote.
fn after_string(text: &str) -> &str {
    let mut escaped = false;
    for (at, letter) in text.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return text.get(at.saturating_add(1)..).unwrap_or_default(),
            _ => {}
        }
    }
    ""
}

/// How many members all objects have together.
fn members(value: &Value) -> usize {
    match value {
        Value::Array(values) => values.iter().map(members).fold(0, usize::saturating_add),
        Value::Object(object) => object.values().map(members).fold(object.len(), usize::saturating_add),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Is the number what its double prints, but for the way it is written?
fn is_exact(number: &str) -> bool {
    let Ok(double) = number.parse::<f64>() else {
        return false;
    };
    // Some readers tell -0 from 0.
    let is_minus_zero = double == 0.0 && double.is_sign_negative();
    double.is_finite()
        && !is_minus_zero
        && decimal(number).is_some_and(|written| decimal(&format!("{double:e}")) == Some(written))
}

/// A number's sign, its digits without zeros at either end, and the power of ten of the last of them.
fn decimal(number: &str) -> Option<(bool, String, i64)> {
    let (negative, number) = number.strip_prefix('-').map_or((false, number), |number| (true, number));
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent = exponent.strip_prefix('+').unwrap_or(exponent).parse::<i64>().ok()?;
    let digits = [whole, fraction].concat();
    let significant = digits.trim_end_matches('0');
    let zeros = i64::try_from(digits.len().checked_sub(significant.len())?).ok()?;
    let power = exponent.checked_sub(i64::try_from(fraction.len()).ok()?)?.checked_add(zeros)?;
    let significant = significant.trim_start_matches('0');
    if significant.is_empty() {
        // Zero is zero, whatever its sign and exponent.
        return Some((false, String::new(), 0));
    }
    Some((negative, significant.to_owned(), power))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn f89_a_number_counts_as_written_where_a_double_does_not_hold_it() {
        for exact in [
            "0",
            "0.0",
            "0e5",
            "1",
            "1.0",
            "1e2",
            "100",
            "0.1",
            "1.5e-3",
            "1E+2",
            "-12.50",
            "9007199254740992",
            "1e300",
            "5e-324",
            "0.30000000000000004",
        ] {
            assert!(is_exact(exact), "{exact}");
        }
        for rounded in [
            "-0",
            "-0.0e1",
            "9007199254740993",
            "1234567890123456.71",
            "1234567890123456.72",
            "1e-400",
            "0.1000000000000000055511151231",
            "123456789012345678901234567890",
            "1e400",
            "1e99999999999999999999",
            "0.30000000000000001",
        ] {
            assert!(!is_exact(rounded), "{rounded}");
        }
    }

    #[test]
    fn f89_a_member_that_is_named_twice_is_not_left_out() {
        for whole in [r#"{"a":1,"b":{"a":2}}"#, r#"{"a:\":":":","b":[{"c":1},{"c":2}]}"#, "[]", r#""a\\""#] {
            assert!(canonical(whole.as_bytes()).is_some(), "{whole}");
        }
        for doubled in [r#"{"a":1,"a":2}"#, r#"[{"b":{"a":1,"a":1}}]"#, r#"{"a":1,"\u0061":1}"#] {
            assert!(canonical(doubled.as_bytes()).is_none(), "{doubled}");
        }
    }

    proptest! {
        /// Two numbers that a server could tell apart have two forms, or count as they are written.
        #[test]
        fn f89_what_differs_stays_different(
            one in "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?",
            other in "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?",
            end in 0_usize..10,
        ) {
            for other in [other, format!("{one}{end}"), one.replacen(char::is_numeric, &end.to_string(), 1)] {
                if let (Some(a), Some(b)) = (canonical(one.as_bytes()), canonical(other.as_bytes())) {
                    prop_assert_eq!(a == b, decimal(&one) == decimal(&other), "{} {}", one, other);
                }
            }
        }

        #[test]
        fn any_bytes_have_a_form_or_none_and_never_a_panic(body in prop::collection::vec(any::<u8>(), 0..40)) {
            drop(canonical(&body));
        }

        #[test]
        fn any_text_of_json_letters_has_a_form_or_none(body in "[\\[\\]{}\",:0-9eE.+\\\\ -]{0,30}") {
            drop(canonical(body.as_bytes()));
        }
    }
}

//! Forms and queries that name the same in another order.

use std::borrow::Cow;

/// The pairs of a form or query in the order of their names, each with the bytes that it was sent with. Pairs of one name
/// stay in their order. Two names are one if a reader of forms takes them for one, who decodes `+`, `%` and what is not
/// UTF-8 (URL Standard, section 5.1).
pub(super) fn ordered(text: &[u8]) -> Vec<u8> {
    let mut pairs: Vec<_> = text.split(|byte| *byte == b'&').map(|pair| (name(pair), pair)).collect();
    pairs.sort_by(|(one, _), (other, _)| one.cmp(other));
    pairs.into_iter().map(|(_, pair)| pair).collect::<Vec<_>>().join(&b'&')
}

fn name(pair: &[u8]) -> Cow<'_, str> {
    let name = pair.split(|byte| *byte == b'=').next().unwrap_or_default();
    form_urlencoded::parse(name).next().map_or(Cow::Borrowed(""), |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(text: &str) -> String {
        String::from_utf8(ordered(text.as_bytes())).expect("the same letters")
    }

    #[test]
    fn the_order_of_names_does_not_count_and_that_of_the_values_of_one_name_does() {
        for (one, other) in [
            ("a=1&b=2", "b=2&a=1"),
            ("a=1&b=2&a=3", "b=2&a=1&a=3"),
            ("a&b", "b&a"),
            ("a=1&", "&a=1"),
            ("%62=1&a+b=2&a%20b=3", "a+b=2&a%20b=3&%62=1"),
        ] {
            assert_eq!(of(one), of(other), "{one} {other}");
        }
        for (one, other) in [
            ("a=1&a=2", "a=2&a=1"),
            ("a=1&%61=2", "%61=2&a=1"),
            ("a+b=1&a%20b=2", "a%20b=2&a+b=1"),
            ("%ff=1&%fe=2", "%fe=2&%ff=1"),
            ("%ff=1&%EF%BF%BD=2", "%EF%BF%BD=2&%ff=1"),
            ("a=1", "a=%31"),
            ("a=1", "%61=1"),
            ("a", "a="),
            ("a=1", "a=1&"),
            ("a=1&b=2", "a=2&b=1"),
            ("a=1;b=2", "b=2;a=1"),
            ("", "&"),
        ] {
            assert_ne!(of(one), of(other), "{one} {other}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

        /// Two texts have one form if, and only if, a reader of forms gets the same values for each name, and the bytes
        /// of the pairs are the same.
        #[test]
        fn two_forms_are_one_where_each_name_has_the_same_values_in_the_same_order(
            pairs in prop::collection::vec("(a|b|%61|%|%ff|%fe|\\+|%20)?(=[1-2%]{0,2})?", 0..6),
            (from, to) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        ) {
            let mut moved = pairs.clone();
            if !pairs.is_empty() {
                let pair = moved.remove(from.index(pairs.len()));
                moved.insert(to.index(pairs.len()), pair);
            }
            let by_name = |pairs: &[String]| {
                let mut values = std::collections::BTreeMap::<String, Vec<String>>::new();
                for pair in pairs {
                    let name = pair.split('=').next().unwrap_or_default().replace('+', " ");
                    let name = percent(&name);
                    values.entry(name).or_default().push(pair.clone());
                }
                values
            };
            prop_assert_eq!(of(&pairs.join("&")) == of(&moved.join("&")), by_name(&pairs) == by_name(&moved));
        }
    }

    /// The escapes that the property uses.
    fn percent(name: &str) -> String {
        name.replace("%61", "a").replace("%20", " ").replace("%ff", "\u{fffd}").replace("%fe", "\u{fffd}")
    }
}

//! Multipart bodies that differ in nothing but the text of their boundary.

use memchr::memmem::Finder;

/// The longest boundary that RFC 2046 (section 5.1.1) allows.
const LONGEST: usize = 70;

/// What `Content-Type` says of a multipart body.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parameters<'a> {
    pub(super) boundary: &'a [u8],
    /// Names and values of the other parameters, such as the `start` of `multipart/related`.
    pub(super) others: Vec<&'a [u8]>,
}

/// The parameters, if every reader finds the same boundary in them: one line, whose parameters follow the grammar of RFC 9110
/// (section 5.6.6), with one `boundary` among them that is as RFC 2046 has it and holds no escapes, and no other parameter that
/// some reader could take for it (`boundary*0` of RFC 2231, or whatever else holds the word).
pub(super) fn parameters<'a>(lines: &[&'a [u8]]) -> Option<Parameters<'a>> {
    let [line] = *lines else { return None };
    let media_type = line.split(|byte| *byte == b';').next()?;
    if !media_type.trim_ascii().to_ascii_lowercase().starts_with(b"multipart/") || media_type.contains(&b',') {
        return None;
    }
    let mut rest = &line[media_type.len()..];
    let (mut found, mut others) = (None, Vec::new());
    while let Some((b';', after)) = rest.split_first() {
        rest = after.trim_ascii_start();
        let name = token(rest);
        if name.is_empty() {
            // Nothing between two semicolons, or after the last one.
            continue;
        }
        let (b'=', after) = rest[name.len()..].split_first()? else { return None };
        let (value, after) = value(after)?;
        rest = after.trim_ascii_start();
        if name.eq_ignore_ascii_case(b"boundary") {
            if found.replace(value).is_some() {
                return None;
            }
        } else {
            others.extend([name, value]);
        }
    }
    let names_it = |part: &&[u8]| part.to_ascii_lowercase().windows(8).any(|word| word == b"boundary");
    if !rest.is_empty() || others.iter().any(names_it) {
        return None;
    }
    found.filter(|value| is_boundary(value)).map(|boundary| Parameters { boundary, others })
}

/// A parameter's value, as a token or without its quotes, and what follows it.
fn value(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let Some((b'"', quoted)) = text.split_first() else {
        let value = token(text);
        return (!value.is_empty()).then(|| (value, &text[value.len()..]));
    };
    let mut escaped = false;
    let end = quoted.iter().position(|byte| match byte {
        _ if escaped => {
            escaped = false;
            false
        }
        b'\\' => {
            escaped = true;
            false
        }
        byte => *byte == b'"',
    })?;
    Some((&quoted[..end], quoted.get(end.checked_add(1)?..)?))
}

/// The token that a text begins with (RFC 9110 section 5.6.2).
fn token(text: &[u8]) -> &[u8] {
    let is_of_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    &text[..text.iter().position(|byte| !is_of_token(byte)).unwrap_or(text.len())]
}

fn is_boundary(value: &[u8]) -> bool {
    let is_of_boundary = |byte: &u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(byte);
    (1..=LONGEST).contains(&value.len()) && value.iter().all(is_of_boundary) && !value.ends_with(b" ")
}

/// What stands between the delimiters of a body, and before and after them: all of it but the text of the boundary itself,
/// so that what a delimiter is followed by counts.
///
/// `None` if readers might not agree on what is a delimiter and what belongs to a part. They agree on a whole line
/// `--boundary`, and on one `--boundary--` behind which there are no more; where `--boundary` stands elsewhere, as after a
/// bare LF, with blanks behind it, or at the beginning of another boundary, some take it for a delimiter and some do not.
pub(super) fn segments<'a>(body: &'a [u8], boundary: &[u8]) -> Option<Vec<&'a [u8]>> {
    let delimiter = [b"--", boundary].concat();
    let finder = Finder::new(&delimiter);
    let mut segments = Vec::new();
    let (mut begin, mut search, mut closed) = (0, 0, false);
    while let Some(found) = finder.find(&body[search..]) {
        let at = found.checked_add(search)?;
        let end = at.checked_add(delimiter.len())?;
        let (before, after) = (&body[..at], &body[end..]);
        let closes = after == b"--" || after.starts_with(b"--\r\n");
        let is_line = (before.is_empty() || before.ends_with(b"\r\n")) && (closes || after.starts_with(b"\r\n"));
        if !is_line || closed {
            return None;
        }
        closed = closes;
        segments.push(&body[begin..at]);
        begin = end;
        // The next one could overlap this one.
        search = at.checked_add(1)?;
    }
    segments.push(&body[begin..]);
    Some(segments)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn named<'a>(lines: &[&'a [u8]]) -> Option<&'a [u8]> {
        parameters(lines).map(|parameters| parameters.boundary)
    }

    #[test]
    fn r27_a_boundary_is_found_where_every_reader_finds_the_same() {
        let seventy = "x".repeat(70);
        for (line, found) in [
            ("multipart/form-data; boundary=abc", "abc"),
            ("Multipart/Form-Data;BOUNDARY=\"abc\"", "abc"),
            ("multipart/mixed ; charset=utf-8 ; boundary=a.b-c_d'e+f;", "a.b-c_d'e+f"),
            ("multipart/mixed;; boundary=\"gc0p 4/:=?(),\" ; a=\"; b=\\\"x\"", "gc0p 4/:=?(),"),
            (&format!("multipart/mixed; boundary={seventy}"), &*seventy),
        ] {
            assert_eq!(named(&[line.as_bytes()]), Some(found.as_bytes()), "{line}");
        }
        for line in [
            "multipart/form-data",
            "multipart/form-data; boundary=abc; boundary*=utf-8\'\'abc",
            "multipart/form-data; boundary*0=a; boundary=abc",
            "multipart/form-data; xboundary=a; boundary=abc",
            "multipart/form-data; boundary=abc; a=\"; boundary=x\"",
            "multipart/form-data; charset=utf-8",
            "text/plain; boundary=abc",
            "text/plain, multipart/form-data; boundary=abc",
            "multipart/form-data, text/plain; boundary=abc",
            "multipart/form-data; boundary=abc, text/plain",
            "multipart/form-data; boundary=",
            "multipart/form-data; boundary=\"\"",
            "multipart/form-data; boundary=abc; boundary=abc",
            "multipart/form-data; boundary=abc; Boundary=d",
            "multipart/form-data; boundary = abc",
            "multipart/form-data; boundary=a/b",
            "multipart/form-data; boundary=a b",
            "multipart/form-data; boundary=a*b",
            "multipart/form-data; boundary=\"a\\b\"",
            "multipart/form-data; boundary=\"abc\\\"",
            "multipart/form-data; boundary=\"abc",
            "multipart/form-data; boundary=\"abc\"d",
            "multipart/form-data; boundary=\"abc \"",
            "multipart/form-data; boundary*=utf-8''abc",
            "multipart/form-data boundary=abc",
            &format!("multipart/mixed; boundary={seventy}x"),
        ] {
            assert_eq!(named(&[line.as_bytes()]), None, "{line}");
        }
        let line: &[u8] = b"multipart/form-data; boundary=abc";
        assert_eq!(named(&[line, line]), None);
        assert_eq!(named(&[]), None);
    }

    fn of(body: &str, boundary: &str) -> Option<Vec<Vec<u8>>> {
        segments(body.as_bytes(), boundary.as_bytes()).map(|parts| parts.iter().map(|part| part.to_vec()).collect())
    }

    #[test]
    fn r27_what_every_reader_takes_for_a_delimiter_is_one_and_all_else_counts() {
        let whole = "before\r\n--b\r\n\r\none\r\n--b\r\n\r\ntwo\r\n--b--\r\nafter";
        let parts =
            ["before\r\n", "\r\n\r\none\r\n", "\r\n\r\ntwo\r\n", "--\r\nafter"].map(|part| part.as_bytes().to_vec());
        assert_eq!(of(whole, "b").as_deref(), Some(&parts[..]));
        assert_eq!(of(&whole.replace("--b", "--other"), "other").as_deref(), Some(&parts[..]));
        for body in
            ["", "no delimiter", "--b", "--b\r\n", "--b--", "\r\n--b--\r\n", "--b\r\n--b--", "b -b \r\nb\r\n- -b"]
        {
            assert_eq!(of(body, "b").is_some(), body != "--b", "{body:?}");
        }
        for (body, boundary) in [
            ("--b\r\n\n--b\r\n--b--", "b"),
            ("--b\r\n\r\n--bc\r\n\r\n--b--", "b"),
            ("--b\r\nx--b\r\n--b--", "b"),
            ("--b \r\n\r\n--b--", "b"),
            ("--b\r\n\r\n--b-- \r\n", "b"),
            ("--b\n\r\n--b--", "b"),
            ("--b\r\n\r\n--b--c", "b"),
            ("--b\r\n\r\n--b--\r\n--b\r\n", "b"),
            (" --b\r\n\r\n--b--", "b"),
            ("---\r\n\r\n-----", "-"),
        ] {
            assert_eq!(of(body, boundary), None, "{body:?}");
        }
    }

    /// Whether it is a delimiter, by what stands before and behind it.
    type Takes = fn(&[u8], &[u8]) -> bool;

    /// Readers, from one that takes only whole lines for delimiters to one that takes anything. What they make of a body is
    /// told without the boundary's text, and each part is told from what goes on in another one.
    fn read(body: &[u8], boundary: &[u8], takes: Takes) -> Vec<Vec<u8>> {
        let delimiter = [b"--", boundary].concat();
        let (mut parts, mut part, mut at) = (Vec::new(), Vec::new(), 0);
        while at < body.len() {
            let after = &body[at..];
            if after.starts_with(&delimiter) && takes(&body[..at], &after[delimiter.len()..]) {
                parts.push(std::mem::take(&mut part));
                at += delimiter.len();
            } else {
                part.push(body[at]);
                at += 1;
            }
        }
        parts.push(part);
        parts
    }

    fn begins_line(before: &[u8]) -> bool {
        before.is_empty() || before.ends_with(b"\r\n")
    }

    fn closes(after: &[u8]) -> bool {
        after == b"--" || after.starts_with(b"--\r\n")
    }

    const READERS: [Takes; 6] = [
        |before, after| begins_line(before) && (after.starts_with(b"\r\n") || after.starts_with(b"--")),
        |before, after| {
            begins_line(before) && (after.trim_ascii_start().len() < after.len() || after.starts_with(b"--"))
        },
        |before, _| begins_line(before),
        |before, after| begins_line(before) && (after.is_empty() || after.starts_with(b"\r\n") || closes(after)),
        |before, _| before.is_empty() || before.ends_with(b"\n"),
        |_, _| true,
    ];

    proptest! {
        #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_field_value_has_a_boundary_or_none_and_never_a_panic(parameters in "[;=\"\\\\ ,bB/-]{0,8}(boundary=)?[;=\"\\\\ ,bB/-]{0,8}") {
            let line = format!("multipart/mixed;{parameters}");
            if let Some(found) = named(&[line.as_bytes()]) {
                prop_assert!(is_boundary(found));
            }
        }

        /// Where two bodies with two boundaries are taken for one, no reader of any kind finds a difference in them.
        #[test]
        fn r27_bodies_that_count_as_one_are_read_as_one_by_readers_of_any_kind(
            pieces in prop::collection::vec(prop::sample::select(vec![
                "\r\n--a\r\n", "\r\n--ab\r\n", "\r\n--a--", "--a", "--ab", "--b", "\r\n", "\n", " ", "--", "-", "a", "x", "\r",
            ]), 0..8),
            one in prop::sample::select(vec!["a", "ab", "b", "-", "a--"]),
            other in prop::sample::select(vec!["a", "b", "c", "ab", "-", "--", "a--"]),
        ) {
            let body = pieces.concat();
            for renamed in [
                body.replace(&format!("--{one}"), &format!("--{other}")),
                body.replace(&format!("\r\n--{one}"), &format!("\r\n--{other}")),
                body.clone(),
            ] {
                if let (Some(a), Some(b)) = (of(&body, one), of(&renamed, other)) && a == b {
                    for reader in READERS {
                        let read = |body: &str, boundary: &str| read(body.as_bytes(), boundary.as_bytes(), reader);
                        prop_assert_eq!(read(&body, one), read(&renamed, other), "{:?} {:?}", &body, &renamed);
                    }
                }
            }
        }
    }
}

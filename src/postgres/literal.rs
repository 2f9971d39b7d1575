//! Text as a literal of SQL, for the messages that take no parameters.

/// Appends `text` as an escape string, `E'…'`, which means the same whatever `standard_conforming_strings` says. `text`
/// must not hold a NUL character, which PostgreSQL has no way to write.
pub(super) fn push(sql: &mut String, text: &str) {
    sql.push_str("E'");
    for character in text.chars().filter(|character| *character != '\0') {
        sql.push(character);
        if matches!(character, '\'' | '\\') {
            // Doubled: a backslash before a quote is not taken where `backslash_quote` is off.
            sql.push(character);
        }
    }
    sql.push('\'');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_backslashes_do_not_end_a_literal() {
        for (text, literal) in
            [("", "E''"), ("a", "E'a'"), ("'", "E''''"), (r"\", r"E'\\'"), (r"\' or 1=1 --", r"E'\\'' or 1=1 --'")]
        {
            let mut sql = String::new();
            push(&mut sql, text);
            assert_eq!(sql, literal);
        }
    }
}

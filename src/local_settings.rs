use std::fmt;

/// PostgreSQL settings for the transaction of one request, as by `SET LOCAL`: for row-level security, a role, a time zone, a
/// `statement_timeout`.
///
/// They are set in the message that begins the transaction, before the key is claimed. So they cost no round trip and
/// also apply to the table of keys. They end with the transaction.
///
/// ```
/// use axum_idempotency::LocalSettings;
///
/// let settings = LocalSettings::new().set("app.tenant", "tenant-7").set("statement_timeout", "2s");
/// assert!(!settings.is_empty());
/// ```
///
/// A name consists of letters, digits, `_` and `$`, in parts separated by dots, with at most 63 bytes in each part. These
/// are refused when the transaction would begin, with [`ErrorKind::InvalidSetting`](crate::ErrorKind::InvalidSetting),
/// and nothing is executed:
///
/// * any other name, and a value with a NUL character;
/// * a name or a value that PostgreSQL does not accept;
/// * `transaction_isolation`, `transaction_read_only` and `transaction_deferrable`. Set defaults for the role or the
///   database instead, such as `default_transaction_isolation`;
/// * the crate's own names, which begin with `idempotency.`.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct LocalSettings(Vec<(String, String)>);

impl LocalSettings {
    /// Makes an empty list of settings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one setting. If a name is set twice, the later value applies.
    #[must_use]
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.push((name.into(), value.into()));
        self
    }

    /// Returns whether there are no settings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns names and values in the order in which they were added; `None` if one of them cannot be sent.
    pub(crate) fn pairs(&self) -> Option<&[(String, String)]> {
        let is_taken = |(name, value): &(String, String)| is_name(name) && !is_ours(name) && !value.contains('\0');
        self.0.iter().all(is_taken).then_some(&self.0)
    }
}

/// Returns whether the engine sets this name itself, or only BEGIN can set it.
fn is_ours(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.starts_with("idempotency.")
        || matches!(name.as_str(), "transaction_isolation" | "transaction_read_only" | "transaction_deferrable")
}

fn is_name(name: &str) -> bool {
    name.split('.').all(|part| {
        part.len() <= 63
            && part.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && part.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '$'))
    })
}

/// Shows only the names of the settings, since values may be names of tenants.
impl fmt::Debug for LocalSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_postgresql_would_not_take_are_refused() {
        for name in ["app.tenant", "role", "a.b.c", "_x.y$1", "statement_timeout"] {
            assert!(LocalSettings::new().set(name, "v").pairs().is_some(), "{name}");
        }
        let long = "x".repeat(64);
        for name in [
            "transaction_read_only",
            "Idempotency.transaction",
            "",
            ".",
            "app.",
            ".app",
            "1a",
            "a b",
            "a'b",
            "a;b",
            "ä",
            "a-b",
            "app.\0",
            &long,
        ] {
            assert!(LocalSettings::new().set(name, "v").pairs().is_none(), "{name}");
        }
        assert!(LocalSettings::new().set("a", "b\0c").pairs().is_none());
    }

    #[test]
    fn values_are_not_shown() {
        assert_eq!(format!("{:?}", LocalSettings::new().set("app.tenant", "secret")), r#"["app.tenant"]"#);
    }
}

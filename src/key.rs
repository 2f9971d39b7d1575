use std::{fmt, sync::Arc};

/// The client's name for one intent, from the `Idempotency-Key` header field.
///
/// A key holds 1 to [`MAX_LEN`](Self::MAX_LEN) printable ASCII characters (`%x20-7E`) and is compared byte for byte. It
/// means nothing on its own: the [`Scope`](crate::Scope) says who owns it, and the [`Operation`](crate::Operation) what
/// it is used for.
///
/// Clients may put personal data into keys although they should not, so a key is never logged: `Debug` shows its
/// length, and there is no `Display`.
///
/// ```
/// use axum_idempotency::IdempotencyKey;
///
/// let key = IdempotencyKey::new("8e03978e-40d5-43e8-bc93-6894a57f9324")?;
/// assert_eq!(key.as_str().len(), 36);
/// assert_eq!(format!("{key:?}"), "IdempotencyKey(36 bytes)");
/// assert!(IdempotencyKey::new("").is_err());
/// # Ok::<_, axum_idempotency::InvalidKey>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(Arc<str>);

impl IdempotencyKey {
    /// The maximum length of a key, in characters. The layer accepts 255 by default; see
    /// [`key_length`](crate::IdempotencyLayer::key_length).
    pub const MAX_LEN: usize = 1024;

    /// Makes a key from `key`, which is checked and not changed.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidKey`] if `key` is empty, is longer than [`MAX_LEN`](Self::MAX_LEN), or holds a character that is not
    /// printable ASCII.
    pub fn new(key: impl AsRef<str>) -> Result<Self, InvalidKey> {
        let key = key.as_ref();
        if key.is_empty() {
            return Err(InvalidKey::Empty);
        }
        if let Some(position) = key.bytes().position(|byte| !(0x20..=0x7e).contains(&byte)) {
            return Err(InvalidKey::NotPrintable { position });
        }
        if key.len() > Self::MAX_LEN {
            return Err(InvalidKey::TooLong { length: key.len(), limit: Self::MAX_LEN });
        }
        Ok(Self(key.into()))
    }

    /// Returns the key as the client sent it, without its quotes.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdempotencyKey({} bytes)", self.0.len())
    }
}

/// The reason why a string is not an [`IdempotencyKey`]. The message never repeats the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKey {
    /// The string is empty.
    #[error("an idempotency key must not be empty")]
    Empty,
    /// The string holds a character that is not printable ASCII.
    #[error("an idempotency key holds printable ASCII characters only; byte {position} is not")]
    NotPrintable {
        /// The position of the first such byte, counted from 0.
        position: usize,
    },
    /// The string is longer than allowed.
    #[error("an idempotency key holds at most {limit} characters; this one has {length}")]
    TooLong {
        /// The number of characters.
        length: usize,
        /// The number of characters that are allowed.
        limit: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r17_r18_f49_bounds_and_octets() {
        assert_eq!(IdempotencyKey::new(""), Err(InvalidKey::Empty));
        assert!(IdempotencyKey::new("x".repeat(1024)).is_ok());
        assert_eq!(IdempotencyKey::new("x".repeat(1025)), Err(InvalidKey::TooLong { length: 1025, limit: 1024 }));
        for bad in ["a\0b", "a\tb", "a\u{7f}b", "a\u{e9}b"] {
            assert_eq!(IdempotencyKey::new(bad), Err(InvalidKey::NotPrintable { position: 1 }));
        }
    }

    #[test]
    fn r19_compared_byte_for_byte() {
        assert_ne!(IdempotencyKey::new("abc"), IdempotencyKey::new("ABC"));
        assert_ne!(IdempotencyKey::new("a "), IdempotencyKey::new("a"));
    }
}

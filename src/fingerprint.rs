use std::fmt;

use sha2::{Digest as _, Sha256};

/// A SHA-256 over a request, which distinguishes a retry from another request under the same key.
///
/// The parts are length-delimited, so that `("ab", "c")` and `("a", "bc")` differ. The stored form begins with a byte for
/// the scheme, which stands for the choice of parts. A row of another scheme matches every request: a deployment that
/// changes the parts must not cause real retries to be refused.
///
/// ```
/// use axum_idempotency::Fingerprint;
///
/// assert_eq!(Fingerprint::of(["ab", "c"]), Fingerprint::of(["ab", "c"]));
/// assert_ne!(Fingerprint::of(["ab", "c"]), Fingerprint::of(["a", "bc"]));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    scheme: u8,
    digest: [u8; 32],
}

impl Fingerprint {
    /// Computes the fingerprint of `parts`, in their order, with scheme 1.
    pub fn of<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            let part = part.as_ref();
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self { scheme: 1, digest: hash.finalize().into() }
    }

    /// Sets the number of the scheme: change it when the choice of parts changes.
    #[must_use]
    pub fn with_scheme(self, scheme: u8) -> Self {
        Self { scheme, ..self }
    }

    #[cfg(feature = "axum")]
    pub(crate) fn scheme(self) -> u8 {
        self.scheme
    }

    #[cfg(feature = "axum")]
    pub(crate) fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    #[cfg(feature = "axum")]
    pub(crate) fn with_digest(self, digest: [u8; 32]) -> Self {
        Self { digest, ..self }
    }

    /// Returns whether a row with the fingerprint `stored` belongs to this request.
    pub(crate) fn matches(self, stored: &[u8]) -> bool {
        match stored.split_first() {
            Some((scheme, digest)) if *scheme == self.scheme => digest == self.digest,
            _ => true,
        }
    }

    /// Returns the content of the column `fingerprint`.
    pub(crate) fn to_stored(self) -> [u8; 33] {
        let mut stored = [self.scheme; 33];
        stored[1..].copy_from_slice(&self.digest);
        stored
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The first bytes distinguish two in a log; with all of them, a reader of the log could test guesses of a small
        // body.
        write!(f, "Fingerprint({}…)", crate::bounded::hex(&self.digest[..4]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r24_parts_are_length_delimited() {
        let of = |parts: &[&str]| Fingerprint::of(parts);
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["", "a"]), of(&["a", ""]));
        assert_ne!(of(&["a"]), of(&["a", ""]));
    }

    #[test]
    fn r28_another_scheme_matches() {
        let one = Fingerprint::of(["a"]);
        let other = Fingerprint::of(["b"]);
        assert!(one.matches(&one.to_stored()));
        assert!(!one.matches(&other.to_stored()));
        assert!(one.matches(&other.with_scheme(2).to_stored()));
        assert!(!one.with_scheme(2).matches(&other.with_scheme(2).to_stored()));
    }
}

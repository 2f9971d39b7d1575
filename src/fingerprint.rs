use std::fmt;

use sha2::{Digest as _, Sha256};

/// What was asked: a SHA-256 over the request, by which a retry is told from another request under the same key.
///
/// The parts that go in are length-delimited, so that `("ab", "c")` and `("a", "bc")` differ. The stored form begins
/// with a version byte. A row with a version that this release does not know matches every request: a deployment
/// that changes what goes in must not turn honest retries into refusals.
///
/// ```
/// use axum_idempotency::Fingerprint;
///
/// assert_eq!(Fingerprint::of(["ab", "c"]), Fingerprint::of(["ab", "c"]));
/// assert_ne!(Fingerprint::of(["ab", "c"]), Fingerprint::of(["a", "bc"]));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

const VERSION: u8 = 1;

impl Fingerprint {
    /// The fingerprint of `parts`, in their order.
    pub fn of<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> Self {
        let mut hash = Sha256::new_with_prefix([VERSION]);
        for part in parts {
            let part = part.as_ref();
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    #[cfg(feature = "axum")]
    pub(crate) fn digest(&self) -> &[u8; 32] {
        &self.0
    }

    #[cfg(feature = "axum")]
    pub(crate) fn from_digest(digest: [u8; 32]) -> Self {
        Self(digest)
    }

    /// Does a row that was written for `stored` belong to this request?
    pub(crate) fn matches(self, stored: &[u8]) -> bool {
        match stored.split_first() {
            Some((&VERSION, digest)) => digest == self.0,
            _ => true,
        }
    }

    /// What the column `fingerprint` holds.
    pub(crate) fn to_stored(self) -> [u8; 33] {
        let mut stored = [VERSION; 33];
        stored[1..].copy_from_slice(&self.0);
        stored
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The first bytes tell two apart in a log; all of them would let somebody test guesses of a small body.
        write!(f, "Fingerprint({}…)", crate::bounded::hex(&self.0[..4]))
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
    fn r28_an_unknown_version_matches() {
        let one = Fingerprint::of(["a"]);
        let other = Fingerprint::of(["b"]);
        assert!(one.matches(&one.to_stored()));
        assert!(!one.matches(&other.to_stored()));
        let mut unknown = other.to_stored();
        unknown[0] = VERSION + 1;
        assert!(one.matches(&unknown));
    }
}

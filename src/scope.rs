use std::{fmt, sync::Arc};

use crate::bounded;

/// The owner of a key: the tenant, account or user that a request acts for.
///
/// Clients choose keys themselves, so two of them may choose the same one. Without a scope the second client would get
/// the first one's response: that is how layers of this kind have leaked one customer's data to another. So a scope is
/// required, and must come from the authentication in front of the layer, never from something that the client merely
/// claims.
///
/// ```
/// use axum_idempotency::Scope;
///
/// let tenant = Scope::new("tenant-7");
/// assert_ne!(tenant, Scope::global());
/// ```
///
/// An empty owner, `Scope::new("")`, is refused wherever it is used, so that unauthenticated requests never share a scope.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Scope(Repr);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr {
    Global,
    Owner(Arc<str>),
}

impl Scope {
    /// Makes the scope of one owner, named by a stable identifier of your choice.
    ///
    /// Names of up to 200 bytes are stored unchanged. Longer names, and names with control characters, are stored
    /// as their SHA-256, so that any identifier fits and different ones stay different.
    pub fn new(owner: impl AsRef<str>) -> Self {
        Self(Repr::Owner(bounded::name(owner.as_ref())))
    }

    /// Returns the one scope that all requests share.
    ///
    /// Use it only if all callers may see each other's responses, as in a service with a single client.
    #[must_use]
    pub fn global() -> Self {
        Self(Repr::Global)
    }

    /// Returns whether the owner's name is empty.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        matches!(&self.0, Repr::Owner(owner) if owner.is_empty())
    }

    /// Returns the content of the column `scope`: the owner's name, or an empty string for [`Scope::global`].
    #[must_use]
    pub fn as_stored(&self) -> &str {
        match &self.0 {
            Repr::Global => "",
            Repr::Owner(owner) => owner,
        }
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Global => f.write_str("Scope::global()"),
            Repr::Owner(owner) => f.debug_tuple("Scope").field(owner).finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_owners_never_share_a_stored_scope() {
        let long = "t".repeat(10_000);
        let longer = "t".repeat(10_001);
        let hashed = Scope::new(&long).as_stored().to_owned();
        let names = ["a", "b", "a\0", "a\n", &long, &longer, &hashed];
        for (i, one) in names.iter().enumerate() {
            for other in &names[i + 1..] {
                assert_ne!(Scope::new(one).as_stored(), Scope::new(other).as_stored());
            }
        }
        assert!(names.iter().all(|name| Scope::new(name).as_stored().len() <= 200));
    }

    #[test]
    fn a_blank_owner_is_not_the_global_scope() {
        assert!(Scope::new("").is_blank());
        assert!(!Scope::global().is_blank());
        assert_ne!(Scope::new(""), Scope::global());
    }
}

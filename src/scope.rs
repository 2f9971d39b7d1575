use std::{fmt, sync::Arc};

use crate::bounded;

/// Who owns a key: the tenant, account or user that a request acts for.
///
/// Clients choose keys themselves, so two of them may choose the same one. Without a scope the second would be
/// answered with the first one's response: that is how layers of this kind have leaked one customer's data to
/// another. A scope therefore has to be given, and has to come from what the authentication in front of the layer
/// established, never from something the client merely claims.
///
/// ```
/// use axum_idempotency::Scope;
///
/// let tenant = Scope::new("tenant-7");
/// assert_ne!(tenant, Scope::global());
/// ```
///
/// An empty owner, `Scope::new("")`, is a blank where a name should be. It is refused wherever it is used, instead
/// of becoming a bucket that strangers share.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Scope(Repr);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr {
    Global,
    Owner(Arc<str>),
}

impl Scope {
    /// The scope of one owner, named by a stable identifier of yours.
    ///
    /// Names of up to 200 bytes are stored as they are. Longer ones, and names with control characters, are stored
    /// as their SHA-256, so that any identifier fits and different ones stay different.
    pub fn new(owner: impl AsRef<str>) -> Self {
        Self(Repr::Owner(bounded::name(owner.as_ref())))
    }

    /// One scope for everybody: right only where all callers are one party that trusts itself, such as a service
    /// with a single client.
    #[must_use]
    pub fn global() -> Self {
        Self(Repr::Global)
    }

    /// Is this a blank where an owner's name should be?
    #[must_use]
    pub fn is_blank(&self) -> bool {
        matches!(&self.0, Repr::Owner(owner) if owner.is_empty())
    }

    /// What the column `scope` holds: the owner's name, or nothing for [`Scope::global`].
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

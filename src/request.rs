use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest as _, Sha256};

use crate::{Fingerprint, IdempotencyKey, LocalSettings, Operation, Scope, bounded};

/// One request under a key: whose it is, what it does, which intent it belongs to, and what exactly was asked.
///
/// The first three name a row of the table; the [`Fingerprint`] tells a retry from a misuse of the key.
///
/// ```
/// use axum_idempotency::{Fingerprint, IdempotencyKey, IdempotentRequest, Operation, Scope};
///
/// let request = IdempotentRequest::new(
///     Scope::new("tenant-7"),
///     Operation::new("order.import"),
///     IdempotencyKey::new("orders-3-1042")?,
///     Fingerprint::of([r#"{"order":42}"#]),
/// );
/// assert_ne!(request.derive_key("payment"), request.derive_key("mail"));
/// # Ok::<_, axum_idempotency::InvalidKey>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IdempotentRequest {
    scope: Scope,
    operation: Operation,
    key: IdempotencyKey,
    fingerprint: Fingerprint,
    first_sent: Option<SystemTime>,
    local_settings: LocalSettings,
}

impl IdempotentRequest {
    /// Puts the four together.
    #[must_use]
    pub fn new(scope: Scope, operation: Operation, key: IdempotencyKey, fingerprint: Fingerprint) -> Self {
        Self { scope, operation, key, fingerprint, first_sent: None, local_settings: LocalSettings::new() }
    }

    /// When the client first sent it, for [`TimestampedKeys::first_sent`](crate::TimestampedKeys::first_sent): to the
    /// second, and not before 1970.
    #[must_use]
    pub fn with_first_sent(self, at: SystemTime) -> Self {
        let seconds = at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { first_sent: UNIX_EPOCH.checked_add(Duration::from_secs(seconds)), ..self }
    }

    /// Settings of PostgreSQL for the transaction that executes it, from before the claim until it ends. Not for
    /// [`claim_using`](crate::Idempotency::claim_using), whose transaction is the caller's.
    ///
    /// With such settings a replay takes three round trips even where the process has seen the key.
    #[must_use]
    pub fn with_local_settings(self, settings: LocalSettings) -> Self {
        Self { local_settings: settings, ..self }
    }

    pub(crate) fn local_settings(&self) -> &LocalSettings {
        &self.local_settings
    }

    /// Who owns the key.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// What is being done.
    #[must_use]
    pub fn operation(&self) -> &Operation {
        &self.operation
    }

    /// The client's name for the intent.
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// What was asked.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// When the client first sent it, if that is known.
    #[must_use]
    pub fn first_sent(&self) -> Option<SystemTime> {
        self.first_sent
    }

    /// A key for a call to another service, or for a step within this request: 64 hexadecimal digits that are the
    /// same on every retry, and different for another `purpose`, key, operation or owner.
    ///
    /// Send it as *that* service's idempotency key. Effects outside the transaction are not undone by a rollback, so
    /// a retry makes the call again, and the other side recognises it.
    #[must_use]
    pub fn derive_key(&self, purpose: &str) -> String {
        bounded::hex(&self.digest(purpose))
    }

    /// A number that stands for the row in the database's advisory locks. Two rows that share one only wait for, or
    /// turn away, each other without need.
    pub(crate) fn lock_number(&self) -> i64 {
        let digest = self.digest("axum-idempotency lock");
        digest.iter().take(8).fold(0, |number, byte| (number << 8) | i64::from(*byte))
    }

    fn digest(&self, purpose: &str) -> [u8; 32] {
        let mut hash = Sha256::new();
        for part in [self.scope.as_stored(), self.operation.as_str(), self.key.as_str(), purpose] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_keys_differ_by_owner_operation_key_and_purpose() {
        let derive = |scope: &str, operation: &str, key: &str, purpose: &str| {
            IdempotentRequest::new(
                Scope::new(scope),
                Operation::new(operation),
                IdempotencyKey::new(key).expect("a valid key"),
                Fingerprint::of(["body"]),
            )
            .derive_key(purpose)
        };
        let first = derive("s", "o", "k", "p");
        assert_eq!(first, derive("s", "o", "k", "p"));
        assert_eq!(first.len(), 64);
        for other in [
            derive("t", "o", "k", "p"),
            derive("s", "x", "k", "p"),
            derive("s", "o", "l", "p"),
            derive("s", "o", "k", "q"),
            derive("so", "", "k", "p"),
        ] {
            assert_ne!(first, other);
        }
    }
}

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest as _, Sha256};

use crate::{Fingerprint, IdempotencyKey, LocalSettings, Operation, Scope, bounded};

/// One request under a key: its owner, its operation, its key and its fingerprint.
///
/// The first three identify a row of the table; the [`Fingerprint`] distinguishes a retry from a misuse of the key.
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
    /// Makes a request from its four parts.
    #[must_use]
    pub fn new(scope: Scope, operation: Operation, key: IdempotencyKey, fingerprint: Fingerprint) -> Self {
        Self { scope, operation, key, fingerprint, first_sent: None, local_settings: LocalSettings::new() }
    }

    /// Sets when the client first sent the request, for [`TimestampedKeys::first_sent`](crate::TimestampedKeys::first_sent).
    ///
    /// The time is cut to whole seconds; a time before 1970 counts as 1970.
    #[must_use]
    pub fn with_first_sent(self, at: SystemTime) -> Self {
        let seconds = at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { first_sent: UNIX_EPOCH.checked_add(Duration::from_secs(seconds)), ..self }
    }

    /// Sets PostgreSQL settings for the transaction that executes the request, from before the claim until the end.
    ///
    /// [`claim_using`](crate::Idempotency::claim_using) ignores them, since its transaction belongs to the caller.
    ///
    /// With such settings a replay takes three round trips even where the process has seen the key.
    #[must_use]
    pub fn with_local_settings(self, settings: LocalSettings) -> Self {
        Self { local_settings: settings, ..self }
    }

    pub(crate) fn local_settings(&self) -> &LocalSettings {
        &self.local_settings
    }

    /// Returns the owner of the key.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Returns the operation.
    #[must_use]
    pub fn operation(&self) -> &Operation {
        &self.operation
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// Returns the fingerprint.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Returns when the client first sent the request, if that is known.
    #[must_use]
    pub fn first_sent(&self) -> Option<SystemTime> {
        self.first_sent
    }

    /// Derives a key for a call to another service, or for a step within this request.
    ///
    /// It has 64 hexadecimal digits, which are the same on every retry, and different for another `purpose`, key,
    /// operation or owner. Send it as the other service's idempotency key. A rollback does not undo effects outside the
    /// transaction, so a retry makes the call again, and the other service recognises it.
    #[must_use]
    pub fn derive_key(&self, purpose: &str) -> String {
        bounded::hex(&self.digest(purpose))
    }

    /// Returns the number of the row's advisory lock. If two rows share a number, their claims only wait for each other,
    /// or are refused, without need.
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

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ulid::Ulid;
use uuid::{Uuid, fmt::Hyphenated};

use crate::{
    IdempotentRequest, InvalidRetention,
    retention::{beyond, checked},
};

/// Keys that carry the time at which they were made (UUIDv7, ULID, …), so that an expired key can be rejected without
/// being stored.
///
/// A key whose timestamp is within the window is stored until it leaves the window. An older key that is not stored may
/// have been executed and deleted, so it is not executed, and gets 412 `key-expired`. A key from the future is refused
/// too. So a key is executed at most once, without any limit in time. If the timestamp is [beside](Self::first_sent) the
/// key, this holds for the key and its timestamp together.
///
/// ```
/// use std::time::Duration;
/// use axum_idempotency::TimestampedKeys;
///
/// const DAY: Duration = Duration::from_secs(24 * 60 * 60);
///
/// let keys = TimestampedKeys::uuid_v7(7 * DAY)?;
/// assert_eq!(keys.advertised(), "P7D");
/// # Ok::<_, axum_idempotency::InvalidRetention>(())
/// ```
///
/// Pass it to [`Idempotency::timestamped_keys`](crate::Idempotency::timestamped_keys) or to a layer. The database's clock
/// decides. The key is kept for the window and the [margin](Self::margin), and so is the response, unless the
/// [`Retention`](crate::Retention) says how long responses are replayed, with
/// [`refuse_for`](crate::Retention::refuse_for) or [`refuse_forever`](crate::Retention::refuse_forever). The time for
/// which a `Retention` keeps keys is ignored.
///
/// # Changes
///
/// The table `idempotency.windows` has a permanent row for each operation: the longest window with which the operation
/// was claimed, and since when. So [name](crate::Operation) an operation that has no route template.
///
/// 1. **To shorten the window**, set the shorter one. It takes effect at once; keys are still kept for the longer one.
/// 2. **To lengthen the window**, set the longer one. Keys that were made before the change, or less than the
///    [skew](Self::future_skew) and the [margin](Self::margin) after it (two minutes by default), are still judged by the
///    shorter window, since they may have been deleted under it.
/// 3. **To enable timestamps** for an operation that was used without them, or to move an operation to the other table,
///    make the change in all processes at once, or under a new name of the operation: a process that goes on without
///    timestamps deletes keys as it did before. Keys that were made before the change, or less than skew and margin after
///    it, are refused, unless they are stored in the table where they now belong.
///    * An operation of which the tables hold no row counts as new. Then keys are refused that are older than
///      [`Idempotency::retention`](crate::Idempotency::retention), which must not change at the same time.
///    * If the tables are too large to be searched in two seconds, the operation counts as used. Make one claim under it
///      before requests arrive.
///    * The change does not account for responses without timestamps that had a shorter retention of their own, nor for
///      keys from further in the future than the skew.
/// 4. **To go back** to keys without timestamps, delete the operation's row of `idempotency.windows` afterwards, so that a
///    later change is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimestampedKeys {
    source: Source,
    window: Duration,
    skew: Duration,
    margin: Duration,
    partitioned: bool,
}

/// Where a key's timestamp comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    UuidV7,
    Ulid,
    FirstSent,
}

/// The reason why a request with a timestamped key is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyTimeError {
    /// The key is older than the window, and is not stored: it may have been executed and deleted.
    Expired,
    /// The key's timestamp is further in the future than the [skew](TimestampedKeys::future_skew) allows.
    InFuture,
    /// The key was used with another timestamp. This happens only if the timestamp is
    /// [beside](TimestampedKeys::first_sent) the key; [`run`](crate::Idempotency::run) returns
    /// [`KeyReused`](crate::ErrorKind::KeyReused) for it.
    Mismatch,
}

impl TimestampedKeys {
    /// Requires keys that are UUIDs of version 7 (RFC 9562, section 5.7), in lower case, with hyphens.
    ///
    /// The layer accepts upper case as well. The timestamp is exact to the millisecond. `window` is the age up to which a
    /// key is executed.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidRetention`] if the window is shorter than a millisecond or longer than
    /// [`Retention::MAX`](crate::Retention::MAX).
    pub fn uuid_v7(window: Duration) -> Result<Self, InvalidRetention> {
        Self::new(Source::UuidV7, window)
    }

    /// Requires keys that are ULIDs (github.com/ulid/spec), in upper case.
    ///
    /// The layer accepts lower case as well. The timestamp is exact to the millisecond.
    ///
    /// # Errors
    ///
    /// As for [`uuid_v7`](Self::uuid_v7).
    pub fn ulid(window: Duration) -> Result<Self, InvalidRetention> {
        Self::new(Source::Ulid, window)
    }

    /// Requires a timestamp beside the key.
    ///
    /// The layer reads it from `Repeatability-First-Sent`, with the key in `Repeatability-Request-ID` (OASIS Repeatable
    /// Requests 1.0); without the layer, set it with [`IdempotentRequest::with_first_sent`]. It is exact to the second.
    /// While a key is stored, it is refused with another timestamp. When it has expired, whether its row has been pruned
    /// or not, the same key with a new timestamp is a new request, as that standard says. The keys of that standard are
    /// UUIDs in upper or lower case: add [`uuid_keys`](crate::IdempotencyLayer::uuid_keys) to accept both as one key.
    ///
    /// # Errors
    ///
    /// As for [`uuid_v7`](Self::uuid_v7).
    pub fn first_sent(window: Duration) -> Result<Self, InvalidRetention> {
        Self::new(Source::FirstSent, window)
    }

    fn new(source: Source, window: Duration) -> Result<Self, InvalidRetention> {
        const MINUTE: Duration = Duration::from_secs(60);

        Ok(Self { source, window: checked(window)?, skew: MINUTE, margin: MINUTE, partitioned: false })
    }

    /// Sets how far in the future a key's timestamp may be, for clients whose clocks are fast.
    ///
    /// Default: 60 seconds, since clocks that are set by the network differ by seconds at most. A value above
    /// [`Retention::MAX`](crate::Retention::MAX) counts as that maximum.
    #[must_use]
    pub fn future_skew(self, skew: Duration) -> Self {
        Self { skew: skew.min(crate::Retention::MAX), ..self }
    }

    /// Sets how much longer than the window a key is kept: the database's clock may be set back by this much without harm.
    ///
    /// Default: 60 seconds. Use the same margin in all processes; otherwise the largest one takes effect only from the
    /// first claim of a process that uses it. A value above [`Retention::MAX`](crate::Retention::MAX) counts as that
    /// maximum.
    #[must_use]
    pub fn margin(self, margin: Duration) -> Self {
        Self { margin: margin.min(crate::Retention::MAX), ..self }
    }

    /// Keeps the keys in the table `idempotency.timed_keys`, which is partitioned by their timestamps.
    ///
    /// Expired keys are removed by dropping a partition. Each partition covers an eighth of the longest window, or of the
    /// longest [skew](Self::future_skew) if that is longer, but at least a minute. [`prune`](crate::Idempotency::prune)
    /// makes and drops partitions, and a claim that finds none for its timestamp makes it.
    ///
    /// [`migrate_partitioned`](crate::migrate_partitioned) makes the table. The roles that prune and claim must own it; a
    /// claim of another role fails if no pruner has made its partition before. Default: keys are kept in
    /// `idempotency.keys`. An operation that moves to this table counts as one that was used without timestamps (see
    /// [changes](Self#changes)).
    ///
    /// # Errors
    ///
    /// Returns [`InvalidRetention::NotPartitionable`] for keys with a timestamp [beside](Self::first_sent) them: one key
    /// with two timestamps would be in two partitions, unnoticed.
    pub fn partitioned(self) -> Result<Self, InvalidRetention> {
        match self.source {
            Source::UuidV7 | Source::Ulid => Ok(Self { partitioned: true, ..self }),
            Source::FirstSent => Err(InvalidRetention::NotPartitionable),
        }
    }

    /// Returns the age up to which a key is executed.
    #[must_use]
    pub fn window(self) -> Duration {
        self.window
    }

    /// Returns the same keys, with a window that is longer than `least`.
    pub(crate) fn outlasting(self, least: Duration) -> Self {
        if self.window <= least { Self { window: beyond(least), ..self } } else { self }
    }

    /// Returns the window as an ISO 8601 duration, such as `P7D` or `P1DT12H`, rounded down to seconds.
    ///
    /// Publish it in the API's documentation or at a configuration endpoint: a client must know it before it needs it.
    #[must_use]
    pub fn advertised(self) -> String {
        iso8601(self.window)
    }

    #[cfg(feature = "axum")]
    pub(crate) fn is_beside_the_key(self) -> bool {
        self.source == Source::FirstSent
    }

    /// Returns the kind of keys: `uuid-v7`, `ulid` or `first-sent`.
    #[must_use]
    pub fn kind(self) -> &'static str {
        match self.source {
            Source::UuidV7 => "uuid-v7",
            Source::Ulid => "ulid",
            Source::FirstSent => "first-sent",
        }
    }

    pub(crate) fn is_partitioned(self) -> bool {
        self.partitioned
    }

    pub(crate) fn skew(self) -> Duration {
        self.skew
    }

    /// Returns how long a key is kept after its timestamp.
    pub(crate) fn keep(self) -> Duration {
        self.window.saturating_add(self.margin)
    }

    /// Returns when the request's key was made; `None` if it has no timestamp, or is not in its canonical spelling.
    pub(crate) fn born(self, request: &IdempotentRequest) -> Option<SystemTime> {
        match self.source {
            Source::FirstSent => request.first_sent(),
            Source::UuidV7 | Source::Ulid => {
                let key = request.key().as_str();
                let (canonical, born) = self.spell(key)?;
                (canonical == key).then_some(born)
            }
        }
    }

    /// Returns a key in its canonical spelling, and when it was made; `None` if it carries no timestamp.
    pub(crate) fn spell(self, key: &str) -> Option<(String, SystemTime)> {
        let (spelled, millis) = match self.source {
            Source::FirstSent => return None,
            Source::UuidV7 => {
                let uuid = Uuid::try_parse(key).ok().filter(|_| key.len() == Hyphenated::LENGTH)?;
                if uuid.get_version_num() != 7 || uuid.get_variant() != uuid::Variant::RFC4122 {
                    return None;
                }
                let [a, b, c, d, e, f, ..] = uuid.into_bytes();
                (uuid.hyphenated().to_string(), u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
            }
            Source::Ulid => {
                // 26 characters hold 130 bits: the first one has three to itself.
                if !key.starts_with(|first: char| ('0'..='7').contains(&first)) {
                    return None;
                }
                let ulid = Ulid::from_string(key).ok()?;
                let spelled = ulid.to_string();
                if !spelled.eq_ignore_ascii_case(key) {
                    return None;
                }
                (spelled, ulid.timestamp_ms())
            }
        };
        Some((spelled, UNIX_EPOCH.checked_add(Duration::from_millis(millis))?))
    }
}

pub(crate) fn iso8601(window: Duration) -> String {
    let seconds = window.as_secs();
    let part = |number: u64, unit: char| if number > 0 { format!("{number}{unit}") } else { String::new() };
    let days = part(seconds / 86_400, 'D');
    let time = [part(seconds % 86_400 / 3_600, 'H'), part(seconds % 3_600 / 60, 'M'), part(seconds % 60, 'S')].concat();
    match (days.is_empty(), time.is_empty()) {
        (true, true) => "PT0S".to_owned(),
        (false, true) => format!("P{days}"),
        (_, false) => format!("P{days}T{time}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fingerprint, IdempotencyKey, Operation, Scope};

    const DAY: Duration = Duration::from_secs(86_400);

    fn millis(time: SystemTime) -> u128 {
        time.duration_since(UNIX_EPOCH).expect("after 1970").as_millis()
    }

    fn request(key: &str) -> IdempotentRequest {
        let key = IdempotencyKey::new(key).expect("a key");
        IdempotentRequest::new(Scope::global(), Operation::new("o"), key, Fingerprint::of([""]))
    }

    #[test]
    fn t1_a_uuid_has_to_be_of_version_7_and_variant_10() {
        let keys = TimestampedKeys::uuid_v7(DAY).expect("a window");
        // The example of RFC 9562, appendix A.6.
        let (spelled, born) = keys.spell("017F22E2-79B0-7CC3-98C4-DC0C0C07398F").expect("version 7");
        assert_eq!(spelled, "017f22e2-79b0-7cc3-98c4-dc0c0c07398f");
        assert_eq!(millis(born), 0x017F_22E2_79B0);
        for other in [
            "017f22e2-79b0-4cc3-98c4-dc0c0c07398f",
            "017f22e2-79b0-8cc3-98c4-dc0c0c07398f",
            "017f22e2-79b0-7cc3-18c4-dc0c0c07398f",
            "017f22e2-79b0-7cc3-d8c4-dc0c0c07398f",
            "017f22e279b07cc398c4dc0c0c07398f",
            "{017f22e2-79b0-7cc3-98c4-dc0c0c07398f}",
            "order-1",
            "",
        ] {
            assert_eq!(keys.spell(other), None, "{other}");
        }
    }

    #[test]
    fn t1_a_ulid_has_26_characters_of_crockfords_and_no_overflow() {
        let keys = TimestampedKeys::ulid(DAY).expect("a window");
        // The example of the ULID specification.
        let (spelled, born) = keys.spell("01arz3ndektsv4rrffq69g5fav").expect("a ULID");
        assert_eq!(spelled, "01ARZ3NDEKTSV4RRFFQ69G5FAV");
        assert_eq!(millis(born), 1_469_922_850_259);
        assert!(keys.spell("7ZZZZZZZZZZZZZZZZZZZZZZZZZ").is_some());
        for other in [
            "8ZZZZZZZZZZZZZZZZZZZZZZZZZ",
            "01ARZ3NDEKTSV4RRFFQ69G5FA",
            "01ARZ3NDEKTSV4RRFFQ69G5FAVV",
            "01ARZ3NDEKTSV4RRFFQ69G5FAU",
            "O1ARZ3NDEKTSV4RRFFQ69G5FAV",
            "01ARZ3NDEKTSV4RRFFQ69G5FIL",
            "",
        ] {
            assert_eq!(keys.spell(other), None, "{other}");
        }
    }

    #[test]
    fn two_spellings_are_never_two_keys() {
        let keys = TimestampedKeys::uuid_v7(DAY).expect("a window");
        assert!(keys.born(&request("017f22e2-79b0-7cc3-98c4-dc0c0c07398f")).is_some());
        assert!(keys.born(&request("017F22E2-79B0-7CC3-98C4-DC0C0C07398F")).is_none());
        let keys = TimestampedKeys::ulid(DAY).expect("a window");
        assert!(keys.born(&request("01ARZ3NDEKTSV4RRFFQ69G5FAV")).is_some());
        assert!(keys.born(&request("01arz3ndektsv4rrffq69g5fav")).is_none());
    }

    #[test]
    fn t6_first_sent_counts_in_whole_seconds_and_cannot_be_partitioned() {
        let keys = TimestampedKeys::first_sent(DAY).expect("a window");
        assert_eq!(keys.born(&request("k")), None);
        let sent = UNIX_EPOCH + Duration::from_millis(12_999);
        assert_eq!(keys.born(&request("k").with_first_sent(sent)), Some(UNIX_EPOCH + Duration::from_secs(12)));
        assert_eq!(keys.partitioned(), Err(InvalidRetention::NotPartitionable));
        assert!(TimestampedKeys::ulid(DAY).and_then(TimestampedKeys::partitioned).is_ok());
    }

    #[test]
    fn t12_the_window_is_advertised_as_an_iso_8601_duration() {
        for (seconds, text) in [
            (7 * 86_400, "P7D"),
            (3_600, "PT1H"),
            (90, "PT1M30S"),
            (86_400 + 1, "P1DT1S"),
            (2 * 86_400 + 3 * 3_600 + 4 * 60 + 5, "P2DT3H4M5S"),
        ] {
            assert_eq!(iso8601(Duration::from_secs(seconds)), text);
        }
        assert_eq!(iso8601(Duration::from_millis(5)), "PT0S");
    }

    #[test]
    fn f51_a_window_of_nothing_is_refused() {
        assert_eq!(TimestampedKeys::uuid_v7(Duration::ZERO), Err(InvalidRetention::TooShort));
        assert_eq!(TimestampedKeys::ulid(Duration::MAX), Err(InvalidRetention::TooLong));
        let keys = TimestampedKeys::ulid(DAY).expect("a window").future_skew(Duration::MAX).margin(Duration::MAX);
        assert_eq!(keys.keep(), DAY + crate::Retention::MAX);
    }
}

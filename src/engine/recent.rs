//! What this process has responded to recently: that it was, and, if the application asks for it, with what.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    hash::{BuildHasher as _, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use http::{HeaderName, HeaderValue};

use super::{clocks::Moment, identity::Identity};
use crate::{IdempotentRequest, LocalSettings, Scope, StoredResponse, Window};

/// Everything in it comes in two generations: when the
/// younger one is full, it becomes the older one, and what was older is gone. So it is bounded, and nobody has to look
/// for what to drop.
#[derive(Default)]
pub(super) struct Recent {
    hasher: RandomState,
    generations: Mutex<Generations>,
}

#[derive(Default)]
struct Generations {
    /// Hashes of what was responded to. Two that share one only cost a look at the table.
    seen: [HashSet<u64>; 2],
    answers: [Answers; 2],
    limits: Limits,
    /// When responses were erased last: what was on its way then is not remembered.
    erased: Option<Instant>,
}

#[derive(Default)]
struct Answers {
    by_identity: HashMap<Identity, Remembered>,
    bytes: usize,
}

/// How much is kept of responses: nothing, unless the application says otherwise.
#[derive(Clone, Copy, Default)]
struct Limits {
    bytes: usize,
    age: Duration,
}

/// A response that was committed here.
#[derive(Clone)]
pub(super) struct Remembered {
    pub(super) request: IdempotentRequest,
    pub(super) response: StoredResponse,
    bytes: usize,
    until: Moment,
}

/// Hashes in a generation: about half a megabyte for both.
const HASHES: usize = 16 * 1024;

/// What a response takes besides its body, and a header field besides its text.
const OVERHEAD: usize = 512;
const FIELD_OVERHEAD: usize = 128;

impl Recent {
    pub(super) fn limit(&self, bytes: usize, age: Duration) {
        lock(&self.generations).limits = Limits { bytes, age };
    }

    fn hash(&self, identity: &Identity) -> u64 {
        self.hasher.hash_one(identity)
    }

    /// Is there reason to look for a response before claiming? "No" is no proof that there is none.
    pub(super) fn has_seen(&self, identity: &Identity) -> bool {
        let hash = self.hash(identity);
        lock(&self.generations).seen.iter().any(|generation| generation.contains(&hash))
    }

    pub(super) fn saw(&self, identity: &Identity) {
        let hash = self.hash(identity);
        let mut generations = lock(&self.generations);
        let [younger, older] = &mut generations.seen;
        if younger.len() >= HASHES {
            *older = std::mem::take(younger);
        }
        younger.insert(hash);
    }

    /// Are responses kept at all?
    pub(super) fn keeps_answers(&self) -> bool {
        lock(&self.generations).limits.bytes > 0
    }

    /// The response, if it is still known.
    pub(super) fn answer(&self, identity: &Identity) -> Option<Remembered> {
        let generations = lock(&self.generations);
        let found = generations.answers.iter().find_map(|generation| generation.by_identity.get(identity))?;
        (!found.until.has_passed()).then(|| found.clone())
    }

    /// Keeps a response that was committed here. The request came at `since`, when its key's window had not begun yet: by
    /// this process's clock, the window does not end later than the database says.
    pub(super) fn remember(
        &self,
        identity: &Identity,
        request: &IdempotentRequest,
        response: &StoredResponse,
        since: Moment,
    ) {
        let mut generations = lock(&self.generations);
        let Limits { bytes: limit, age } = generations.limits;
        if limit == 0 {
            return;
        }
        let (Some(body), Some(window)) = (response.bytes(), response.window()) else {
            // A tombstone tells nothing that a look would not.
            return;
        };
        let field = |(name, value): &(HeaderName, HeaderValue)| {
            name.as_str().len().saturating_add(value.len()).saturating_add(FIELD_OVERHEAD)
        };
        let headers = response.headers().iter().map(field).fold(0, usize::saturating_add);
        let (scope, operation, key) = identity;
        let parts =
            [body.len(), headers, scope.as_stored().len(), operation.as_str().len(), key.as_str().len(), OVERHEAD];
        let bytes = parts.into_iter().fold(0, usize::saturating_add);
        if bytes > limit / 2 || generations.erased.is_some_and(|erased| since.monotonic <= erased) {
            return;
        }
        let age = shortest(window).map_or(age, |shortest| shortest.min(age));
        let Some(until) = since.checked_add(age) else { return };
        let [younger, older] = &mut generations.answers;
        if younger.bytes.saturating_add(bytes) > limit / 2 {
            *older = std::mem::take(younger);
        }
        // In memory of their own: a body or a field may be a small part of a large buffer, which it would keep. The settings
        // of the request's transaction tell it from no other.
        let request = request.clone().with_local_settings(LocalSettings::new());
        let remembered = Remembered { request, response: response.copied(), bytes, until };
        let replaced = younger.by_identity.insert(identity.clone(), remembered).map_or(0, |replaced| replaced.bytes);
        younger.bytes = younger.bytes.saturating_add(bytes).saturating_sub(replaced);
    }

    /// Forgets the responses of an owner.
    pub(super) fn forget(&self, scope: &Scope) {
        let mut generations = lock(&self.generations);
        generations.erased = Some(Instant::now());
        for generation in &mut generations.answers {
            generation.by_identity.retain(|(owner, _, _), _| owner != scope);
            generation.bytes = generation.by_identity.values().map(|remembered| remembered.bytes).sum();
        }
    }
}

/// How long after its first use a response is replayed, if that is limited.
fn shortest(window: Window) -> Option<Duration> {
    let ends = window.replay_ends.into_iter().chain(window.expires).min()?;
    Some(ends.duration_since(window.first_used).unwrap_or_default())
}

/// No code panics while it holds the lock, and if some did, nothing in it could be wrong.
fn lock(generations: &Mutex<Generations>) -> MutexGuard<'_, Generations> {
    generations.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Recent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let generations = lock(&self.generations);
        f.debug_struct("Recent")
            .field("seen", &generations.seen.iter().map(HashSet::len).sum::<usize>())
            .field("bytes", &generations.answers.iter().map(|answers| answers.bytes).sum::<usize>())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;
    use crate::{Fingerprint, IdempotencyKey, Operation};

    fn request(n: usize) -> (Identity, IdempotentRequest) {
        let (scope, operation) = (Scope::new(format!("owner-{}", n % 2)), Operation::new("o"));
        let key = IdempotencyKey::new(n.to_string()).expect("a key");
        let request = IdempotentRequest::new(scope.clone(), operation.clone(), key.clone(), Fingerprint::of([""]));
        ((scope, operation, key), request)
    }

    fn answer(body: usize, window: Duration) -> StoredResponse {
        let first_used = std::time::SystemTime::UNIX_EPOCH;
        let expires = Some(first_used + window);
        StoredResponse::new(StatusCode::OK, vec![0; body]).with_window(Window {
            first_used,
            replay_ends: expires,
            expires,
        })
    }

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn what_was_seen_is_bounded_and_recent() {
        let recent = Recent::default();
        for n in 0..3 * HASHES {
            recent.saw(&request(n).0);
        }
        assert!(recent.has_seen(&request(3 * HASHES - 1).0));
        assert!(!recent.has_seen(&request(0).0));
        assert!(lock(&recent.generations).seen.iter().all(|generation| generation.len() <= HASHES));
    }

    #[test]
    fn answers_are_bounded_in_bytes_and_off_unless_asked_for() {
        let recent = Recent::default();
        let keep = |n, bytes| {
            let (identity, request) = request(n);
            recent.remember(&identity, &request, &answer(bytes, HOUR), Moment::now());
        };
        let known = |n| recent.answer(&request(n).0).is_some();
        keep(0, 10);
        assert!(!known(0));
        recent.limit(10_000, HOUR);
        keep(1, 5_000);
        assert!(!known(1), "too large for any generation");
        for n in 0..100 {
            keep(n, 500);
            assert!(known(n));
        }
        assert!(!known(0) && known(98));
        assert!(lock(&recent.generations).answers.iter().all(|answers| answers.bytes <= 5_000));
    }

    #[test]
    fn answers_are_bounded_in_time_by_the_window_and_by_the_age() {
        let recent = Recent::default();
        recent.limit(100_000, HOUR);
        let since = |ago| {
            let now = Moment::now();
            let monotonic = now.monotonic.checked_sub(ago).expect("a running machine");
            Moment { monotonic, wall: now.wall.checked_sub(ago).expect("a set clock") }
        };
        let second = Duration::from_secs(1);
        for (n, window, ago, known) in [
            (1, second, Duration::ZERO, true),
            (2, second, second, false),
            (3, 2 * HOUR, Duration::from_millis(1), true),
            (4, Duration::from_millis(1), Duration::from_millis(2), false),
        ] {
            let (identity, request) = request(n);
            recent.remember(&identity, &request, &answer(1, window), since(ago));
            assert_eq!(recent.answer(&identity).is_some(), known, "{n}");
        }
        recent.limit(100_000, second);
        let (identity, request) = request(5);
        recent.remember(&identity, &request, &answer(1, HOUR), since(second));
        assert!(recent.answer(&identity).is_none());
    }

    #[test]
    fn f101_a_machine_that_was_suspended_does_not_replay_what_is_too_old() {
        let recent = Recent::default();
        recent.limit(100_000, HOUR);
        for (n, asleep, known) in [(1, Duration::ZERO, true), (2, HOUR, false)] {
            let (identity, request) = request(n);
            let now = Moment::now();
            // The monotonic clock stood still meanwhile.
            let since = Moment { wall: now.wall.checked_sub(asleep).expect("a set clock"), ..now };
            recent.remember(&identity, &request, &answer(1, 2 * HOUR), since);
            assert_eq!(recent.answer(&identity).is_some(), known, "{n}");
        }
    }

    #[test]
    fn f101_what_is_kept_of_large_buffers_takes_no_more_memory_than_it_is_counted_for() {
        const LIMIT: usize = 1_000_000;

        let recent = Recent::default();
        recent.limit(LIMIT, HOUR);
        let large = |text: &str| {
            let mut buffer = vec![b'x'; 1_000_000];
            buffer[..text.len()].copy_from_slice(text.as_bytes());
            bytes::Bytes::from(buffer).slice(..text.len())
        };
        let kept = allocation_counter::measure(|| {
            for n in 0..3_000 {
                let (identity, request) = request(n);
                let request = request.with_local_settings(LocalSettings::new().set("app.note", "x".repeat(10_000)));
                let window = answer(1, HOUR).window().expect("a window");
                let name = HeaderName::from_bytes(b"x-a-name-that-no-standard-has").expect("a name");
                let value = HeaderValue::from_maybe_shared(large("value")).expect("a value");
                let response = StoredResponse::new(StatusCode::OK, large("body")).with_headers([(name, value)]);
                let response = response.with_window(window);
                recent.remember(&identity, &request, &response, Moment::now());
                assert_eq!(recent.answer(&identity).map(|known| known.response), Some(response));
            }
        });
        let limit = i64::try_from(LIMIT).expect("small");
        assert!(kept.bytes_current <= limit, "{}", kept.bytes_current);
        assert!(kept.bytes_current > limit / 4, "nothing is kept: {}", kept.bytes_current);
    }

    #[test]
    fn tombstones_and_what_was_erased_are_not_remembered() {
        let recent = Recent::default();
        recent.limit(100_000, HOUR);
        for n in 0..4 {
            let (identity, request) = request(n);
            recent.remember(&identity, &request, &answer(1, HOUR), Moment::now());
        }
        recent.forget(&Scope::new("owner-1"));
        let known: Vec<_> = (0..4).map(|n| recent.answer(&request(n).0).is_some()).collect();
        assert_eq!(known, [true, false, true, false]);
        let (identity, late) = request(5);
        let now = Moment::now();
        let monotonic = now.monotonic.checked_sub(Duration::from_secs(1)).expect("a running machine");
        let before = Moment { monotonic, ..now };
        recent.remember(&identity, &late, &answer(1, HOUR), before);
        assert!(recent.answer(&identity).is_none(), "it began before the erasure");
        let (identity, request) = request(9);
        recent.remember(&identity, &request, &StoredResponse::not_retained(StatusCode::OK), Moment::now());
        assert!(recent.answer(&identity).is_none());
    }
}

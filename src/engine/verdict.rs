//! Whether a known request is this very one: the same for the table, for memory, and for what is being executed.

use crate::IdempotentRequest;

/// What a request is to one that is known under its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The same, so what became of that one is its own.
    Same,
    /// It claims to have been sent first at another time.
    OtherTime,
    /// Another one.
    Other,
}

/// Compares with what is stored of a known request: its fingerprint, and when it was first sent, where times count.
pub(super) fn verdict(request: &IdempotentRequest, fingerprint: &[u8], times: Option<bool>) -> Verdict {
    if times == Some(false) {
        Verdict::OtherTime
    } else if request.fingerprint().matches(fingerprint) {
        Verdict::Same
    } else {
        Verdict::Other
    }
}

/// Likewise, with a request that this process knows. Times beside keys count only where keys carry timestamps.
pub(super) fn verdict_on_known(request: &IdempotentRequest, known: &IdempotentRequest, timed: bool) -> Verdict {
    let times = timed.then(|| request.first_sent() == known.first_sent());
    verdict(request, &known.fingerprint().to_stored(), times)
}

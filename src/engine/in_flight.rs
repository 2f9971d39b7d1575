//! What this process is executing right now. Duplicates wait here, and not in the pool.

use std::{
    collections::{HashMap, hash_map},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use super::{
    Duplicate,
    clocks::Moment,
    identity::{Identity, identity},
    recent::Recent,
    verdict::{Verdict, verdict_on_known},
};
use crate::{IdempotentRequest, KeyTimeError, StoredResponse};

/// One for all clones of an [`Idempotency`](crate::Idempotency).
#[derive(Clone, Default)]
pub(super) struct InFlight(Arc<Shared>);

#[derive(Default)]
struct Shared {
    entries: Mutex<HashMap<Identity, Entry>>,
    /// What they came to.
    recent: Recent,
}

struct Entry {
    request: IdempotentRequest,
    state: watch::Receiver<State>,
}

/// How far the leader of an entry has come. That it has gone without a response is not a state: the channel is closed.
enum State {
    /// It asks the database, and may be told of a response to another request than its own.
    Claiming,
    /// The key is its own, and so is what becomes of it.
    Executing,
    /// It has a response, committed.
    Answered(StoredResponse),
    /// Its key was used for another request.
    Reused,
}

/// What a request finds when it comes.
pub(super) enum Entered {
    /// Nobody in this process is at it.
    Leader(Leader),
    /// Somebody is.
    Follower(Follower),
}

impl InFlight {
    /// `timed`: whether keys carry timestamps.
    pub(super) fn enter(&self, request: &IdempotentRequest, timed: bool) -> Entered {
        let identity = identity(request);
        match lock(&self.0.entries).entry(identity.clone()) {
            hash_map::Entry::Occupied(entry) => Entered::Follower(Follower {
                asks: verdict_on_known(request, &entry.get().request, timed),
                state: entry.get().state.clone(),
            }),
            hash_map::Entry::Vacant(entry) => {
                let (sender, state) = watch::channel(State::Claiming);
                entry.insert(Entry { request: request.clone(), state });
                Entered::Leader(Leader {
                    in_flight: self.clone(),
                    asked: Box::new((identity, request.clone(), Moment::now())),
                    sender,
                })
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.0.entries).len()
    }

    pub(super) fn recent(&self) -> &Recent {
        &self.0.recent
    }
}

/// No code panics while it holds the lock, and if some did, the table would still be whole.
fn lock(entries: &Mutex<HashMap<Identity, Entry>>) -> MutexGuard<'_, HashMap<Identity, Entry>> {
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The one that acts for all duplicates in this process. The entry goes with it, however it ends: then those who
/// wait either find its response or enter anew, and the first of them is the next leader.
pub(super) struct Leader {
    in_flight: InFlight,
    /// The third is when it came, before it asked the database.
    asked: Box<(Identity, IdempotentRequest, Moment)>,
    sender: watch::Sender<State>,
}

impl Leader {
    pub(super) fn request(&self) -> &IdempotentRequest {
        let (_, request, _) = &*self.asked;
        request
    }

    fn identity(&self) -> &Identity {
        let (identity, _, _) = &*self.asked;
        identity
    }

    pub(super) fn executes(&self) {
        self.sender.send_replace(State::Executing);
    }

    /// It found this response.
    pub(super) fn answered(self, response: StoredResponse) {
        self.in_flight.recent().saw(self.identity());
        self.sender.send_replace(State::Answered(response));
    }

    /// It has given this response, and it is committed.
    pub(super) fn committed(self, response: StoredResponse) {
        let (identity, request, since) = &*self.asked;
        self.in_flight.recent().remember(identity, request, &response, *since);
        self.answered(response);
    }

    /// Is there reason to look for a response before claiming?
    pub(super) fn has_been_seen(&self) -> bool {
        self.in_flight.recent().has_seen(self.identity())
    }

    pub(super) fn reused(self) {
        self.sender.send_replace(State::Reused);
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        lock(&self.in_flight.0.entries).remove(self.identity());
    }
}

/// One that came while a leader was there.
pub(super) struct Follower {
    /// What it is to its leader.
    asks: Verdict,
    state: watch::Receiver<State>,
}

impl Follower {
    /// Would this one have to wait for an execution? While the leader is still asking the database, nobody knows.
    pub(super) async fn is_refused(&mut self) -> bool {
        let same = self.asks == Verdict::Same;
        let claimed = self.state.wait_for(|state| !matches!(state, State::Claiming)).await;
        same && claimed.is_ok_and(|state| matches!(*state, State::Executing))
    }

    /// Waits for what becomes of the leader. One that asks for something else than the leader *executes* is told so at
    /// once; while the leader only asks, the key may well be this one's and not the leader's.
    pub(super) async fn learn(&mut self) -> Option<Duplicate> {
        let asks = self.asks;
        let settled = self.state.wait_for(|state| match state {
            State::Claiming => false,
            State::Executing => asks != Verdict::Same,
            State::Answered(_) | State::Reused => true,
        });
        match (settled.await.as_deref(), asks) {
            (Ok(State::Answered(response)), Verdict::Same) => Some(Duplicate::of(response.clone())),
            (Ok(State::Reused), Verdict::Same) | (Ok(State::Executing), Verdict::Other) => Some(Duplicate::KeyReused),
            (Ok(State::Executing), Verdict::OtherTime) => Some(Duplicate::KeyTime(KeyTimeError::Mismatch)),
            // Nothing that concerns it: the leader is gone, or was asking in vain. Enter anew.
            _ => None,
        }
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight").field("len", &self.len()).finish()
    }
}

impl fmt::Debug for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leader").finish_non_exhaustive()
    }
}

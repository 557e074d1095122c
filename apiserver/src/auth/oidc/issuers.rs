//! The keys of the issuers that policies name: [`State`] machines, each with the one task that asks for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use scafo_telemetry::metrics::{Counter, Family};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::cache::{Found, Question, Refusal, State, Step};
use super::fetch::{Fetcher, REQUEST};
use super::jwks::KeySet;
use crate::clock::Clock;
use crate::figures::Outcome;

/// Issuers that are remembered at once.
const ISSUERS_MAX: usize = 64;
/// How long a request waits for an issuer that is being asked: two requests, and some time to be told.
const WAIT: Duration = REQUEST.saturating_mul(2).saturating_add(Duration::from_secs(1));
/// Rounds of asking for one token: everything, then once more for a key that is not among it, then the use.
const ROUNDS: usize = 3;

pub(super) struct Issuers {
    fetcher: Arc<Fetcher>,
    clock: Arc<dyn Clock>,
    known: Mutex<HashMap<String, Known>>,
    /// One task at most for each known issuer. They belong to no request: a caller who goes away in the middle would
    /// otherwise throw away the question and have the issuer asked again.
    asking: Mutex<JoinSet<()>>,
    fetches: Family<Outcome, Counter>,
}

struct Known {
    used: Instant,
    state: Arc<watch::Sender<State>>,
}

impl Issuers {
    pub(super) fn new(fetcher: Fetcher, clock: Arc<dyn Clock>) -> Self {
        Self {
            fetcher: Arc::new(fetcher),
            clock,
            known: Mutex::default(),
            asking: Mutex::default(),
            fetches: Family::default(),
        }
    }

    /// Questions to issuers so far, by outcome.
    pub(super) fn fetches(&self) -> Family<Outcome, Counter> {
        self.fetches.clone()
    }

    /// The keys to verify a token of `issuer` with, which names `kid`.
    ///
    /// # Errors
    /// [`Refusal`]. The reason why an issuer failed stands in the log once, when it fails.
    pub(super) async fn keys(&self, issuer: &str, kid: Option<&str>) -> Result<Arc<KeySet>, Refusal> {
        let state = self.state_of(issuer)?;
        for _ in 0..ROUNDS {
            let now = self.clock.mono();
            let mut step = Step::Wait;
            // Nobody waits for what changes here, so nobody is woken.
            state.send_if_modified(|state| {
                step = state.step(kid, now);
                false
            });
            match step {
                Step::Use(keys) => return Ok(keys),
                Step::Refuse(refusal) => return Err(refusal),
                Step::Ask(question) => self.ask(issuer, question, state.clone(), now),
                Step::Wait => {}
            }
            let mut watching = state.subscribe();
            let answered = watching.wait_for(|state| !state.is_asking());
            if tokio::time::timeout(WAIT, answered).await.is_err() {
                return Err(Refusal::TooSlow);
            }
        }
        Err(Refusal::TooSlow)
    }

    fn state_of(&self, issuer: &str) -> Result<Arc<watch::Sender<State>>, Refusal> {
        let now = self.clock.mono();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = known.get_mut(issuer) {
            there.used = now;
            return Ok(there.state.clone());
        }
        if known.len() >= ISSUERS_MAX {
            let idle = known.iter().filter(|(_, known)| !known.state.borrow().is_asking());
            let oldest = idle.min_by_key(|(_, known)| known.used).map(|(issuer, _)| issuer.clone());
            known.remove(&oldest.ok_or(Refusal::TooMany)?);
        }
        let state = Arc::new(watch::Sender::new(State::default()));
        known.insert(issuer.to_owned(), Known { used: now, state: state.clone() });
        Ok(state)
    }

    fn ask(&self, issuer: &str, question: Question, state: Arc<watch::Sender<State>>, sent: Instant) {
        let answer = Answer { state, clock: self.clock.clone(), sent, found: None };
        let (fetcher, fetches, issuer) = (self.fetcher.clone(), self.fetches.clone(), issuer.to_owned());
        let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        while asking.try_join_next().is_some() {}
        asking.spawn(async move {
            let mut answer = answer;
            let asked = fetcher.ask(&issuer, &question).await;
            let outcome = if asked.is_ok() { "found" } else { "failed" };
            fetches.get_or_create(&Outcome::new(outcome)).inc();
            match asked {
                Ok(found) => answer.found = Some(found),
                Err(error) => tracing::warn!(issuer, %error, "an issuer of workload tokens gives no keys"),
            }
        });
    }

    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.known.lock().unwrap().len()
    }
}

/// What is owed to the state. It is given when this is dropped, so that a task that panics or is aborted counts as a failure
/// of the issuer and nobody waits for it.
struct Answer {
    state: Arc<watch::Sender<State>>,
    clock: Arc<dyn Clock>,
    sent: Instant,
    found: Option<Found>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        let (found, now) = (self.found.take(), self.clock.mono());
        self.state.send_modify(|state| state.answered(found, self.sent, now));
    }
}

//! The gate between requests and workerd. It is open onto one generation, or holds requests while there is none.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, timeout_at},
};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::generation::Generation;

/// How long a request waits while workerd is exchanged. An exchange takes a fraction of a second.
const HOLD_LIMIT: Duration = Duration::from_secs(5);

/// How many wait at a time: what a client notices as a hiccup, not as a queue.
const HELD_MAX: usize = 256;

/// The most that a drain gives open connections, as in celld.
const DRAIN_GRACE: Duration = Duration::from_secs(2);

/// Where requests pass.
pub(super) struct Gate {
    current: watch::Sender<Option<Arc<Generation>>>,
    held: Semaphore,
}

/// The right to use a generation; it is not stopped while one exists, within the bounds of its stop.
pub(super) struct Pass {
    pub generation: Arc<Generation>,
    pub token: TaskTrackerToken,
}

/// No workerd came in time, or too many wait for one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Closed;

impl Gate {
    /// A gate that holds.
    pub(super) fn new() -> Self {
        Self { current: watch::Sender::new(None), held: Semaphore::new(HELD_MAX) }
    }

    /// Passes, waiting for at most 5 s, and not to the incarnation `not` (one that has just failed the request).
    pub(super) async fn pass(&self, not: Option<u64>) -> Result<Pass, Closed> {
        if let Some(pass) = Self::try_pass(&self.current.borrow(), not) {
            return Ok(pass);
        }
        let _place = self.held.try_acquire().map_err(|_| Closed)?;
        let deadline = Instant::now() + HOLD_LIMIT;
        let mut changes = self.current.subscribe();
        loop {
            // The token is taken while the value is borrowed: whoever replaces it afterwards waits for the token.
            if let Some(pass) = Self::try_pass(&changes.borrow_and_update(), not) {
                return Ok(pass);
            }
            match timeout_at(deadline, changes.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Err(Closed),
            }
        }
    }

    fn try_pass(current: &Option<Arc<Generation>>, not: Option<u64>) -> Option<Pass> {
        let generation = current.as_ref().filter(|generation| Some(generation.incarnation) != not)?;
        Some(Pass { token: generation.requests.token(), generation: Arc::clone(generation) })
    }

    /// Opens onto a generation, and gives back the one before.
    pub(super) fn open(&self, generation: Arc<Generation>) -> Option<Arc<Generation>> {
        self.current.send_replace(Some(generation))
    }

    /// Holds requests from now on, and gives back the generation that served.
    pub(super) fn hold(&self) -> Option<Arc<Generation>> {
        self.current.send_replace(None)
    }

    pub(super) fn current(&self) -> Option<Arc<Generation>> {
        self.current.borrow().clone()
    }

    /// Waits until nothing is under way, at most 2 s or a quarter of `total`.
    pub(super) async fn drained(&self, total: Duration) {
        if let Some(generation) = self.current() {
            let grace = DRAIN_GRACE.min(total / 4);
            generation.finish(grace, grace).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_is_held_for_five_seconds_and_no_longer() {
        let gate = Gate::new();
        let start = Instant::now();
        assert!(gate.pass(None).await.is_err());
        assert_eq!(start.elapsed(), HOLD_LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_256_requests_are_held() {
        let gate = Arc::new(Gate::new());
        let mut held = tokio::task::JoinSet::new();
        for _ in 0..HELD_MAX {
            let gate = Arc::clone(&gate);
            held.spawn(async move { gate.pass(None).await.is_err() });
        }
        while gate.held.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let start = Instant::now();
        assert!(gate.pass(None).await.is_err());
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}

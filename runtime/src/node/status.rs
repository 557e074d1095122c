//! What health answers: a few facts that several parts of the node set and all of them read.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

const BOOTING: u8 = 0;
const ACCEPTING: u8 = 1;
const DRAINING: u8 = 2;

/// Whether this node may serve, and whether it says so.
pub(super) struct Status {
    phase: AtomicU8,
    held_back: AtomicBool,
    lease: std::sync::OnceLock<watch::Receiver<Instant>>,
    draining: CancellationToken,
}

impl Status {
    /// A node that boots. `held_back`: a hook keeps it from ever saying that it is ready.
    pub(super) fn new(held_back: bool) -> Self {
        Self {
            phase: AtomicU8::new(BOOTING),
            held_back: AtomicBool::new(held_back),
            lease: std::sync::OnceLock::new(),
            draining: CancellationToken::new(),
        }
    }

    /// Follows the authority of a lease from now on.
    pub(super) fn follow(&self, lapses: watch::Receiver<Instant>) {
        // Set once in a process: there is one lease.
        let _only_once = self.lease.set(lapses);
    }

    /// Holds readiness back or lets it go.
    pub(super) fn hold_back(&self, held_back: bool) {
        self.held_back.store(held_back, Ordering::Release);
    }

    pub(super) fn accept(&self) {
        self.phase.store(ACCEPTING, Ordering::Release);
    }

    pub(super) fn drain(&self) {
        self.phase.store(DRAINING, Ordering::Release);
        self.draining.cancel();
    }

    pub(super) fn is_draining(&self) -> bool {
        self.phase.load(Ordering::Acquire) == DRAINING
    }

    /// Ends when the drain begins.
    pub(super) async fn draining(&self) {
        self.draining.cancelled().await;
    }

    /// Whether the lease, if this node has one, is still its own. The clock decides, not the keeper: a process that was
    /// stopped for a while must not believe in it for even one request.
    pub(super) fn has_authority(&self) -> bool {
        self.lease.get().is_none_or(|lapses| Instant::now() < *lapses.borrow())
    }

    /// What health says.
    pub(super) fn is_ready(&self) -> bool {
        self.phase.load(Ordering::Acquire) == ACCEPTING
            && !self.held_back.load(Ordering::Acquire)
            && self.has_authority()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn readiness_follows_lease_drain_and_hook() {
        let status = Status::new(false);
        assert!(!status.is_ready(), "booting");
        status.accept();
        assert!(status.is_ready());
        let lapses = watch::Sender::new(Instant::now() + Duration::from_secs(10));
        status.follow(lapses.subscribe());
        assert!(status.is_ready());
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(!status.is_ready(), "lapsed");
        lapses.send_replace(Instant::now() + Duration::from_secs(10));
        assert!(status.is_ready());
        status.hold_back(true);
        assert!(!status.is_ready(), "held back");
        status.hold_back(false);
        status.drain();
        assert!(!status.is_ready(), "draining");
    }
}

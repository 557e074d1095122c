//! The lease of a node: the record that says it lives, and the decision whether it still may.
//!
//! The record is written under the condition that nothing but our own last write is there. Whoever starts under the same
//! node id overwrites it at once, and we notice at our next renewal: two processes never both believe in it for longer than
//! a renewal takes. Authority counts from when a write left, not from when its answer came, and by our own clock.

mod keeper;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

pub(crate) use keeper::{Held, Keeper, now_ms};

/// The protocol number in our record: none that celld knows, so that a celld refuses to talk to us.
pub(crate) const PEER_PROTOCOL: u32 = 0;

/// `nodes/<node>.json`, as we write it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Record {
    pub node: String,
    /// Milliseconds since 1970 by our wall clock; live while above now.
    pub expires_ms: u64,
    /// Where the internal listener is reached.
    pub addr: String,
    /// Ed25519, new in each process, in hexadecimal.
    pub probe_public_key: String,
    pub peer_protocol: u32,
    /// New in each process: how we recognise our own record.
    pub ownership_index_generation: String,
    pub load: Load,
}

/// How much there is to do. Zero where the stand-in has no such thing.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Load {
    pub sampled_ms: u64,
    pub resident_cells: u64,
    pub host_websockets: u64,
    pub rss_bytes: u64,
    pub in_use_bytes: u64,
    pub cpu_percent_x100: u64,
    pub open_fds: u64,
    pub fd_limit: u64,
    pub pressured: bool,
    pub shed_cells: u64,
    pub restoring: u64,
}

/// What we read of anybody's record.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Peer {
    pub node: String,
    pub expires_ms: u64,
    #[serde(default)]
    pub addr: String,
    #[serde(default)]
    pub peer_protocol: Option<u32>,
    #[serde(default)]
    pub ownership_index_generation: String,
}

impl Peer {
    pub(crate) fn is_live(&self, now_ms: u64) -> bool {
        self.expires_ms > now_ms
    }
}

/// What one try to renew came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Written,
    /// The condition did not hold.
    Refused,
    /// There was no record to overwrite.
    Gone,
    /// Certainly not written, try later.
    NotWritten,
    /// Perhaps written.
    Unknown,
    /// Read back after a refusal: our own write of an earlier try is there.
    Ours,
    /// Read back after a refusal: somebody else's record is there, or none.
    NotOurs,
}

/// Since when we hold the lease, and whether a write of ours may have landed without our knowing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tenure {
    /// From here on we are nobody.
    pub lapses: Instant,
    /// When the newest write left whose end we do not know.
    pub unsure_since: Option<Instant>,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Write again at this time.
    Renew(Instant),
    /// Look who wrote the record.
    ReadBack,
    /// Stop being a node.
    Fence(Fence),
}

/// Why a node fences itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fence {
    Expired,
    Replaced,
    Missing,
    /// By a test hook.
    Dropped,
}

impl Fence {
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::Expired => "its lease expired before it could be renewed",
            Self::Replaced => "another process took its lease over",
            Self::Missing => "its lease was removed",
            Self::Dropped => "its lease was dropped by a test hook",
        }
    }
}

impl Tenure {
    /// The tenure that a write which left at `sent` begins.
    pub(crate) fn new(sent: Instant, ttl: Duration) -> Self {
        Self { lapses: sent + ttl, unsure_since: None }
    }

    /// The time of the next renewal: a third of the lease after the last one left, so that two may fail.
    pub(crate) fn renewal(sent: Instant, ttl: Duration) -> Instant {
        sent + ttl / 3
    }

    /// Decides on the answer to a write that left at `sent`, now being `now`.
    pub(crate) fn step(self, answer: Answer, sent: Instant, now: Instant, ttl: Duration) -> (Self, Next) {
        if now >= self.lapses {
            return (self, Next::Fence(Fence::Expired));
        }
        let again = Next::Renew(Self::renewal(sent, ttl).max(now));
        match answer {
            Answer::Written => (Self::new(sent, ttl), again),
            Answer::NotWritten => (self, again),
            Answer::Unknown => (Self { unsure_since: Some(sent), ..self }, again),
            // Our own write may be what refuses us.
            Answer::Refused if self.unsure_since.is_some() => (self, Next::ReadBack),
            Answer::Ours => match self.unsure_since {
                Some(landed) => (Self::new(landed, ttl), Next::Renew(now)),
                None => (self, again),
            },
            Answer::Refused | Answer::NotOurs => (self, Next::Fence(Fence::Replaced)),
            Answer::Gone => (self, Next::Fence(Fence::Missing)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(9);

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// One step from a tenure that lapses after `TTL`, the write having left at `sent` and its answer come at `now`.
    #[track_caller]
    fn check(unsure: Option<u64>, answer: Answer, sent: u64, now: u64, expected: impl Fn(Instant) -> Next) -> Tenure {
        let start = Instant::now();
        let tenure = Tenure { lapses: start + TTL, unsure_since: unsure.map(|at| start + s(at)) };
        let (after, next) = tenure.step(answer, start + s(sent), start + s(now), TTL);
        assert_eq!(next, expected(start));
        Tenure { lapses: after.lapses, ..after }
    }

    #[test]
    fn a_renewal_counts_from_when_it_left() {
        let start = Instant::now();
        let (tenure, next) = Tenure::new(start, TTL).step(Answer::Written, start + s(3), start + s(5), TTL);
        assert_eq!(tenure.lapses, start + s(3) + TTL);
        assert_eq!(next, Next::Renew(start + s(6)));
    }

    #[test]
    fn refused_renewal_fences_at_once() {
        check(None, Answer::Refused, 3, 4, |_| Next::Fence(Fence::Replaced));
        check(None, Answer::Gone, 3, 4, |_| Next::Fence(Fence::Missing));
        check(Some(3), Answer::Gone, 6, 7, |_| Next::Fence(Fence::Missing));
        check(Some(3), Answer::NotOurs, 6, 7, |_| Next::Fence(Fence::Replaced));
    }

    #[test]
    fn a_refusal_after_an_unknown_write_is_read_back_first() {
        let unsure = check(None, Answer::Unknown, 3, 4, |start| Next::Renew(start + s(6)));
        assert!(unsure.unsure_since.is_some());
        check(Some(3), Answer::Refused, 6, 7, |_| Next::ReadBack);
        check(Some(3), Answer::Ours, 6, 7, |start| Next::Renew(start + s(7)));
    }

    #[test]
    fn a_write_that_did_not_happen_is_tried_again_until_the_lease_lapses() {
        check(None, Answer::NotWritten, 3, 4, |start| Next::Renew(start + s(6)));
        check(None, Answer::NotWritten, 3, 8, |start| Next::Renew(start + s(8)));
        check(None, Answer::NotWritten, 6, 9, |_| Next::Fence(Fence::Expired));
    }

    #[test]
    fn an_answer_after_the_lapse_comes_too_late_whatever_it_says() {
        for answer in [Answer::Written, Answer::Ours, Answer::Unknown, Answer::Refused] {
            check(None, answer, 6, 9, |_| Next::Fence(Fence::Expired));
        }
    }
}

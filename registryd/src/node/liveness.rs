//! Which nodes live, judged without anybody's wall clock but the store's own. Pure.
//!
//! At first sight a node lives when the store says that its record was written recently: `Date` and `Last-Modified` of one
//! answer are the same clock. From then on it lives for as long as its record moves, and only time in which this node could
//! look counts as silence: a bucket out of reach declares nobody dead.

use std::collections::BTreeMap;
use std::time::Duration;

use scafo_core::NodeId;
use scafo_store::ETag;

use crate::registry::Mono;

/// A node's record as a listing names it.
#[derive(Debug, Clone)]
pub(crate) struct Sighting {
    pub(crate) id: NodeId,
    pub(crate) etag: ETag,
    /// The age of the record by the store's clock; `None` when the store does not say.
    pub(crate) age: Option<Duration>,
}

#[derive(Debug)]
struct Watched {
    etag: ETag,
    silent: Duration,
}

/// What is known of every node.
#[derive(Debug)]
pub(crate) struct Liveness {
    window: Duration,
    nodes: BTreeMap<NodeId, Watched>,
    /// The last listing of all nodes that succeeded.
    looked: Option<Mono>,
    /// The last request of a look that went through, whatever it asked for.
    heard: Option<Mono>,
    /// Whether a look has failed since then.
    failing: bool,
    /// How long the bucket was out of reach since the last listing.
    lost: Duration,
}

impl Liveness {
    /// Nothing seen yet. A node that has been silent for longer than `window` (default 90 s) is dead.
    pub(crate) const fn new(window: Duration) -> Self {
        Self { window, nodes: BTreeMap::new(), looked: None, heard: None, failing: false, lost: Duration::ZERO }
    }

    /// A listing of all node records succeeded, and what else its look asked for.
    pub(crate) fn looked(&mut self, sightings: Vec<Sighting>, now: Mono) {
        self.heard(now);
        let passed = self.looked.map_or(Duration::ZERO, |before| now.since(before));
        let counted = passed.saturating_sub(std::mem::take(&mut self.lost));
        let mut before = std::mem::take(&mut self.nodes);
        for sighting in sightings {
            let silent = match before.remove(&sighting.id) {
                Some(watched) if watched.etag == sighting.etag => watched.silent.saturating_add(counted),
                Some(_) => Duration::ZERO,
                // A store that gives no dates gets the benefit of the doubt, which ends after one window.
                None => sighting.age.unwrap_or(Duration::ZERO),
            };
            self.nodes.insert(sighting.id, Watched { etag: sighting.etag, silent });
        }
        self.looked = Some(now);
    }

    /// A look asked the bucket for something and succeeded.
    pub(crate) fn heard(&mut self, now: Mono) {
        if std::mem::take(&mut self.failing) {
            let gap = self.heard.map_or(Duration::ZERO, |before| now.since(before));
            self.lost = self.lost.saturating_add(gap);
        }
        self.heard = Some(now);
    }

    /// A look failed, whatever it asked for: the time from the last one that did not to the next one counts for nobody.
    pub(crate) const fn failed(&mut self) {
        self.failing = true;
    }

    /// Whether a node lives, as of the last look.
    pub(crate) fn lives(&self, id: &NodeId) -> bool {
        self.nodes.get(id).is_some_and(|watched| watched.silent <= self.window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn see(liveness: &mut Liveness, etag: &str, age: u64, at: u64) -> bool {
        let id: NodeId = "b".parse().unwrap();
        let sighting = Sighting { id: id.clone(), etag: ETag::parse(etag).unwrap(), age: Some(s(age)) };
        liveness.looked(vec![sighting], Mono::at(s(at)));
        liveness.lives(&id)
    }

    #[test]
    fn at_first_sight_the_stores_clock_decides() {
        assert!(see(&mut Liveness::new(s(90)), "x", 90, 0));
        assert!(!see(&mut Liveness::new(s(90)), "x", 91, 0));
    }

    #[test]
    fn afterwards_only_movement_counts() {
        let mut liveness = Liveness::new(s(90));
        assert!(see(&mut liveness, "x", 60, 0));
        assert!(see(&mut liveness, "x", 90, 30));
        assert!(!see(&mut liveness, "x", 0, 31));
        assert!(see(&mut liveness, "y", 9999, 60));
    }

    #[test]
    fn time_in_which_nobody_could_look_is_no_silence() {
        let mut liveness = Liveness::new(s(90));
        see(&mut liveness, "x", 0, 0);
        liveness.failed();
        assert!(see(&mut liveness, "x", 0, 1000));
        assert!(see(&mut liveness, "x", 0, 1090));
        assert!(!see(&mut liveness, "x", 0, 1091));
    }

    #[test]
    fn only_the_time_between_two_looks_that_succeed_is_lost_to_one_that_fails() {
        let mut liveness = Liveness::new(s(90));
        see(&mut liveness, "x", 0, 0);
        for listing in 1..=3 {
            let at = 36 * listing;
            liveness.heard(Mono::at(s(at - 16)));
            liveness.failed();
            liveness.heard(Mono::at(s(at - 10)));
            // One that fails in the same moment takes nothing.
            liveness.failed();
            liveness.heard(Mono::at(s(at - 10)));
            assert!(see(&mut liveness, "x", 0, at), "silent for {} s", 30 * listing);
        }
        assert!(!see(&mut liveness, "x", 0, 109));
    }

    #[test]
    fn a_removed_record_is_a_dead_node() {
        let mut liveness = Liveness::new(s(90));
        see(&mut liveness, "x", 0, 0);
        liveness.looked(vec![], Mono::at(s(1)));
        assert!(!liveness.lives(&"b".parse().unwrap()));
    }
}

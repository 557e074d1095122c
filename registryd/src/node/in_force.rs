//! Which placement counts on this node. Pure; the file is next door.
//!
//! A coordinator that lost its lease may have a write on the wire that lands late and satisfies its condition. So the
//! receiver refuses as well: a body that *changed* under a fence below the highest one seen is held back. An unchanged body
//! stays in force whatever its fence, so a new coordinator need not write everything anew. A body that was held back counts
//! after all when it has stood for two lease lives beside a living coordinator of a higher fence: that one has seen it too
//! and let it stand.

use std::collections::BTreeMap;
use std::time::Duration;

use scafo_core::record::{Fence, PlacementRecord};
use scafo_core::{ApplicationName, NodeId};
use serde::{Deserialize, Serialize};

#[cfg(test)]
use crate::model::seeds::{Rule, is_broken};
use crate::registry::Mono;

/// What survives a restart. It belongs to one installation: another bucket starts from nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) installation: String,
    pub(crate) fence: Fence,
    pub(crate) placements: BTreeMap<ApplicationName, PlacementRecord>,
}

/// The lease as this node has seen it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LeaseSeen {
    pub(crate) fence: Fence,
    /// Counts the bodies of the lease that this node has seen, except for copies from before the highest fence.
    pub(crate) bodies: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct HeldBack {
    record: PlacementRecord,
    since: Mono,
    bodies: u64,
}

/// The placements in force.
#[derive(Debug)]
pub(crate) struct InForce {
    kept: Kept,
    held_back: BTreeMap<ApplicationName, HeldBack>,
}

impl InForce {
    /// What an earlier run kept, if that was of this installation.
    pub(crate) fn resume(kept: Option<Kept>, installation: &str) -> Self {
        let kept = kept
            .filter(|kept| kept.installation == installation)
            .unwrap_or_else(|| Kept { installation: installation.to_owned(), ..Kept::default() });
        Self { kept, held_back: BTreeMap::new() }
    }

    /// Takes in what the bucket shows. Where something has to be kept anew it answers what was kept before, to go back to
    /// ([`InForce::restore`]) if it cannot be.
    pub(crate) fn observe<'a>(
        &mut self,
        shown: impl Iterator<Item = &'a PlacementRecord> + Clone,
        unreadable: &[ApplicationName],
        lease: LeaseSeen,
        now: Mono,
        ttl: Duration,
    ) -> Option<Kept> {
        // The whole of what is shown counts: in which order the records are looked at decides nothing.
        let highest = shown.clone().map(|record| record.fence).fold(self.kept.fence.max(lease.fence), Fence::max);
        let mut held_back = std::mem::take(&mut self.held_back);
        if highest == self.kept.fence && unreadable.is_empty() && self.is_all(shown.clone()) {
            // Nearly every look of a fleet at rest.
            return None;
        }
        let before = self.kept.clone();
        let mut placements = BTreeMap::new();
        for record in shown {
            let name = &record.application;
            let in_force = self.kept.placements.get(name);
            let counts = in_force == Some(record) || record.fence >= highest;
            #[cfg(test)]
            let counts = counts || is_broken(Rule::LateWritesAreHeldBack);
            if counts {
                placements.insert(name.clone(), record.clone());
                continue;
            }
            let held = match held_back.remove(name) {
                Some(held) if held.record == *record => held,
                _ => HeldBack { record: record.clone(), since: now, bodies: lease.bodies },
            };
            let stood = now.since(held.since) >= ttl * 2;
            let renewed = lease.fence > record.fence && lease.bodies > held.bodies;
            if stood && renewed {
                placements.insert(name.clone(), record.clone());
                continue;
            }
            if let Some(in_force) = in_force {
                placements.insert(name.clone(), in_force.clone());
            }
            self.held_back.insert(name.clone(), held);
        }
        for name in unreadable {
            // A record that cannot be read changes nothing.
            if let Some(in_force) = self.kept.placements.get(name) {
                placements.insert(name.clone(), in_force.clone());
            }
        }
        self.kept.fence = highest;
        self.kept.placements = placements;
        (self.kept != before).then_some(before)
    }

    /// Whether these are the placements in force, all of them as they are.
    fn is_all<'a>(&self, mut shown: impl Iterator<Item = &'a PlacementRecord> + Clone) -> bool {
        let in_force = &self.kept.placements;
        shown.clone().count() == in_force.len() && shown.all(|it| in_force.get(&it.application) == Some(it))
    }

    /// Goes back to what was kept. What the bucket shows is taken in anew by the next look; what was held back waits again.
    pub(crate) fn restore(&mut self, before: Kept) {
        self.kept = before;
    }

    /// This node claims `fence`: whatever changes under a lower one is late. To be kept before anything is done under it; answers
    /// what was kept before.
    pub(crate) fn claim(&mut self, fence: Fence) -> Kept {
        let before = self.kept.clone();
        self.kept.fence = before.fence.max(fence);
        before
    }

    pub(crate) const fn kept(&self) -> &Kept {
        &self.kept
    }

    /// The placement in force of an application.
    pub(crate) fn get(&self, name: &ApplicationName) -> Option<&PlacementRecord> {
        self.kept.placements.get(name)
    }

    /// The applications whose placement in force names this node, whether they may serve or not.
    pub(crate) fn placed_on(&self, node: &NodeId) -> impl Iterator<Item = &ApplicationName> {
        self.kept.placements.iter().filter(|(_, placement)| placement.nodes.contains(node)).map(|(name, _)| name)
    }

    /// Applications whose placement in the bucket is not in force here. A coordinator overwrites them under its own fence.
    pub(crate) fn held_back(&self) -> impl Iterator<Item = &ApplicationName> {
        self.held_back.keys()
    }
}

#[cfg(test)]
mod tests {
    use scafo_core::Timestamp;
    use scafo_core::record::V1;

    use super::*;

    const TTL: Duration = Duration::from_secs(15);

    fn placed(node: &str, fence: u64) -> PlacementRecord {
        PlacementRecord {
            v: V1,
            application: "shop".parse().unwrap(),
            nodes: vec![node.parse().unwrap()],
            wanted: 1,
            reason: None,
            fence: Fence(fence),
            updated_at: Timestamp::from_millis(0),
            rest: Default::default(),
        }
    }

    fn see(in_force: &mut InForce, record: &PlacementRecord, lease: (u64, u64), at: u64) -> Option<String> {
        let lease = LeaseSeen { fence: Fence(lease.0), bodies: lease.1 };
        in_force.observe(std::iter::once(record), &[], lease, Mono::at(Duration::from_secs(at)), TTL);
        in_force.get(&"shop".parse().unwrap()).map(|record| record.nodes[0].to_string())
    }

    #[test]
    fn a_late_write_of_a_dead_coordinator_starts_and_stops_nothing() {
        let mut in_force = InForce::resume(None, "i");
        assert_eq!(see(&mut in_force, &placed("a", 8), (8, 1), 0).as_deref(), Some("a"));
        // A new coordinator; the body it found stays.
        assert_eq!(see(&mut in_force, &placed("a", 8), (9, 2), 5).as_deref(), Some("a"));
        // The late write.
        let late = placed("b", 8);
        assert_eq!(see(&mut in_force, &late, (9, 3), 10).as_deref(), Some("a"));
        assert_eq!(in_force.held_back().count(), 1);
        // The coordinator overwrites it.
        assert_eq!(see(&mut in_force, &placed("c", 9), (9, 4), 15).as_deref(), Some("c"));
        assert_eq!(in_force.held_back().count(), 0);
    }

    #[test]
    fn what_a_living_coordinator_lets_stand_counts_in_the_end() {
        let mut in_force = InForce::resume(None, "i");
        let late = placed("b", 8);
        assert_eq!(see(&mut in_force, &late, (9, 1), 0), None);
        assert_eq!(see(&mut in_force, &late, (9, 2), 29), None);
        assert_eq!(see(&mut in_force, &late, (9, 2), 30).as_deref(), Some("b"));
        let mut unled = InForce::resume(None, "i");
        see(&mut unled, &late, (9, 1), 0);
        assert_eq!(see(&mut unled, &late, (9, 1), 100), None);
    }

    #[test]
    fn what_was_in_force_stays_over_a_restart_in_the_same_installation_only() {
        let mut in_force = InForce::resume(None, "i");
        see(&mut in_force, &placed("a", 8), (8, 1), 0);
        let kept = in_force.kept().clone();
        assert_eq!(kept.fence, Fence(8));
        let mut again = InForce::resume(Some(kept.clone()), "i");
        assert_eq!(see(&mut again, &placed("a", 8), (9, 1), 0).as_deref(), Some("a"));
        let mut other = InForce::resume(Some(kept), "another");
        assert_eq!(see(&mut other, &placed("a", 8), (9, 1), 0), None);
    }

    #[test]
    fn absence_is_no_placement_and_an_unreadable_record_changes_nothing() {
        let mut in_force = InForce::resume(None, "i");
        see(&mut in_force, &placed("a", 8), (8, 1), 0);
        let shop: ApplicationName = "shop".parse().unwrap();
        let lease = LeaseSeen::default();
        in_force.observe(std::iter::empty(), std::slice::from_ref(&shop), lease, Mono::at(TTL), TTL);
        assert!(in_force.get(&shop).is_some());
        let before = in_force.observe(std::iter::empty(), &[], lease, Mono::at(TTL), TTL);
        assert!(before.is_some_and(|before| before.placements.contains_key(&shop)));
        assert!(in_force.get(&shop).is_none());
    }
}

//! From a pass to those who wait for it: the world for the rest of this daemon, the snapshot for the router.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use scafo_core::NodeId;
use scafo_core::record::{Fence, NodeRecord};
use scafo_core::snapshot::{Snapshot, SnapshotApplication};
use scafo_core::view::{ProcessStatus, ReconcileStatus};

use super::in_force::InForce;
use super::records::Records;
use super::wake::Asked;
use super::world::{NodeView, Shown, World};
use crate::daemon::Core;

/// What was told last.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    shown: Shown,
    answered: u64,
    attempted: u64,
    content: u64,
    seen: bool,
    reconcile: Option<ReconcileStatus>,
    nodes: Arc<BTreeMap<NodeId, NodeView>>,
    held_back: Arc<BTreeSet<scafo_core::ApplicationName>>,
    /// The content that the last snapshot was made from.
    rendered: u64,
    snapshot: Option<Snapshot>,
}

impl Publisher {
    /// Takes the outcome of a look: the records of one that went through.
    pub(crate) fn looked(&mut self, records: Option<&Records>, asked: Asked, status: ReconcileStatus) {
        self.attempted = asked.all;
        if let Some(records) = records {
            let shown = records.shown();
            let same = Arc::ptr_eq(&shown.applications, &self.shown.applications)
                && Arc::ptr_eq(&shown.placements, &self.shown.placements);
            if !same || !self.seen {
                self.content += 1;
            }
            self.seen = true;
            self.shown = shown.clone();
            self.answered = records.answered().all;
        }
        self.reconcile = Some(status);
    }

    /// Whether a look has gone through.
    pub(crate) const fn is_seen(&self) -> bool {
        self.seen
    }

    /// What the last one showed.
    pub(crate) fn shown(&self) -> Shown {
        self.shown.clone()
    }

    /// The world of this moment.
    pub(crate) fn world(&mut self, own: NodeRecord, in_force: &InForce, statuses: &[ProcessStatus]) -> World {
        let mut nodes = (*self.shown.nodes).clone();
        nodes.insert(own.id.clone(), NodeView { record: Arc::new(own), live: true });
        if !alike(&nodes, &self.nodes) {
            self.content += 1;
        }
        self.nodes = Arc::new(nodes);
        let held_back: BTreeSet<_> = in_force.held_back().cloned().collect();
        if held_back != *self.held_back {
            self.content += 1;
            self.held_back = Arc::new(held_back);
        }
        let placed = self.shown.placements.values().map(|placement| placement.fence);
        let noted = self.nodes.values().map(|node| node.record.fence);
        let floor = placed.chain(noted).fold(in_force.kept().fence, Fence::max);
        World {
            answered: self.answered,
            attempted: self.attempted,
            content: self.content,
            shown: self.shown.clone(),
            nodes: Arc::clone(&self.nodes),
            held_back: Arc::clone(&self.held_back),
            floor,
            processes: Arc::new(statuses.to_vec()),
            reconcile: self.reconcile.clone(),
        }
    }

    /// Tells the router when routing may differ.
    pub(crate) fn snapshot(&mut self, core: &Core, world: &World) {
        if self.rendered == world.content && self.snapshot.is_some() {
            return;
        }
        self.rendered = world.content;
        let generation = self.snapshot.as_ref().map_or(1, |before| before.generation);
        let next = compose(core, world, generation);
        if self.snapshot.as_ref() == Some(&next) {
            return;
        }
        let generation = self.snapshot.as_ref().map_or(1, |before| before.generation + 1);
        let next = Snapshot { generation, ..next };
        let document = serde_json::to_vec(&next).expect("records hold nothing that JSON cannot: keys are strings");
        core.snapshots.send_replace(Some(Bytes::from(document)));
        self.snapshot = Some(next);
    }
}

fn compose(core: &Core, world: &World, generation: u64) -> Snapshot {
    let identity = &core.settings.node;
    // Who lives is decided here. Without its heartbeat a record only differs when routing may.
    let quiet = |record: &NodeRecord| NodeRecord { heartbeat_at: record.started_at, ..record.clone() };
    Snapshot {
        generation,
        node: identity.id.clone(),
        platform_domains: identity.platform_domains.clone(),
        api_public: identity.api_public,
        nodes: world.nodes.values().filter(|node| node.live).map(|node| quiet(&node.record)).collect(),
        applications: world
            .shown
            .applications
            .values()
            .map(|application| SnapshotApplication::from(&**application))
            .collect(),
    }
}

/// Whether two views of the nodes are the same for placement and routing: a heartbeat alone changes nothing.
fn alike(a: &BTreeMap<NodeId, NodeView>, b: &BTreeMap<NodeId, NodeView>) -> bool {
    let same = |a: &NodeView, b: &NodeView| {
        a.live == b.live
            && (Arc::ptr_eq(&a.record, &b.record)
                || (a.record.serving == b.record.serving
                    && a.record.leaving == b.record.leaving
                    && a.record.draining == b.record.draining
                    && a.record.labels == b.record.labels
                    && a.record.address == b.record.address
                    && a.record.api == b.record.api
                    && a.record.api_public == b.record.api_public
                    && a.record.platform_domains == b.record.platform_domains))
    };
    a.len() == b.len() && a.iter().zip(b).all(|((ida, va), (idb, vb))| ida == idb && same(va, vb))
}

#[cfg(test)]
mod tests {
    use scafo_store::MemoryBucket;
    use serde_json::json;

    use super::*;
    use crate::daemon::testing::{core, show};
    use crate::registry::testing::node;

    #[tokio::test(start_paused = true)]
    async fn a_node_that_stopped_beating_is_in_no_snapshot_and_one_that_drains_is_named_as_such() {
        let core = core("a", MemoryBucket::new());
        let view = |(id, live, draining): (&str, bool, bool)| {
            let record = NodeRecord { draining, ..node(id, 1) };
            (record.id.clone(), NodeView { record: Arc::new(record), live })
        };
        let views = [("a", true, false), ("b", false, false), ("c", true, true), ("d", false, true)].map(view);
        let world = World { nodes: Arc::new(views.into()), ..(**core.worlds.borrow()).clone() };
        let snapshot = compose(&core, &world, 1);
        let told: Vec<_> = snapshot.nodes.iter().map(|node| (node.id.as_str(), node.draining)).collect();
        assert_eq!(told, [("a", false), ("c", true)]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_blocked_retired_or_being_deleted_may_not_answer() {
        let core = core("a", MemoryBucket::new());
        for (member, value, routable) in [
            ("blocked", json!(false), true),
            ("blocked", json!(true), false),
            ("retiredAt", json!("2026-01-01T00:00:00.000Z"), false),
            ("deleting", json!(true), false),
        ] {
            let mut record = json!({ "v": 1, "name": "shop", "createdAt": "2026-01-01T00:00:00.000Z" });
            record[member] = value;
            show(&core, &[serde_json::from_value(record.clone()).unwrap()], &[], &[]);
            let snapshot = compose(&core, &core.worlds.borrow(), 1);
            assert_eq!(snapshot.applications[0].routable, routable, "{record}");
        }
    }
}

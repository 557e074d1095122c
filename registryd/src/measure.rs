//! What the benchmarks need of the insides. No interface: nothing else uses it, and it changes with what it measures.

pub mod idle;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use scafo_core::record::{ApplicationRecord, Fence, NodeRecord, PlacementRecord};
use scafo_core::{ApplicationName, NodeId, Timestamp};
use sha2::{Digest as _, Sha256};

use crate::coordinator::places::{Past, Terms, plan};
use crate::node::world::{NodeView, Shown, World};
use crate::registry::Mono;

/// A fleet in memory, as a coordinator sees it.
#[derive(Debug)]
pub struct Placing {
    world: World,
    past: Past,
}

impl Placing {
    /// Every node lives.
    #[must_use]
    pub fn new(applications: Vec<ApplicationRecord>, nodes: Vec<NodeRecord>) -> Self {
        let applications = applications.into_iter().map(|it| (it.name.clone(), Arc::new(it))).collect();
        let view = |record: NodeRecord| (record.id.clone(), NodeView { record: Arc::new(record), live: true });
        let nodes = Arc::new(nodes.into_iter().map(view).collect());
        let shown = Shown { applications: Arc::new(applications), ..Shown::default() };
        Self { world: World { content: 1, shown, nodes, ..World::unseen() }, past: Past::default() }
    }

    /// One pass over everything. Answers the placements that it would write, which then stand.
    pub fn pass(&mut self, fence: u64) -> usize {
        let wall = Timestamp::from_millis(0);
        let terms = Terms { now: Mono::at(Duration::ZERO), wall, hold: Duration::from_secs(35), fence: Fence(fence) };
        let (planned, _, _) = plan(&self.world, &terms, &mut self.past);
        let placements = Arc::make_mut(&mut self.world.shown.placements);
        let count = planned.len();
        for planned in planned {
            placements.insert(planned.record.application.clone(), Arc::new(planned.record));
        }
        count
    }

    /// A node is silent from now on.
    pub fn lose(&mut self, id: &NodeId) {
        if let Some(node) = Arc::make_mut(&mut self.world.nodes).get_mut(id) {
            node.live = false;
        }
    }

    /// The same decision without an index, for the first `applications` of them: for each one every node's processes are gone
    /// through. Answers how many nodes were chosen.
    #[must_use]
    pub fn naive(&self, applications: usize) -> usize {
        let some = self.world.shown.applications.values().take(applications);
        some.map(|application| naive_choice(application, &self.world.nodes).len()).sum()
    }

    /// The placements that stand.
    pub fn placements(&self) -> impl Iterator<Item = (&ApplicationName, &PlacementRecord)> {
        self.world.shown.placements.iter().map(|(name, placement)| (name, &**placement))
    }
}

fn naive_choice<'a>(application: &ApplicationRecord, nodes: &'a BTreeMap<NodeId, NodeView>) -> Vec<&'a NodeId> {
    let mut scored: Vec<(Vec<u8>, bool, &NodeId)> = Vec::new();
    for (id, node) in nodes.iter().filter(|(_, node)| node.live && !node.record.leaving) {
        let serves = node.record.serving.iter().any(|serving| serving.application == application.name);
        let name = format!("{}\0{id}", application.name);
        scored.push((Sha256::digest(name.as_bytes()).to_vec(), serves, id));
    }
    scored.sort();
    scored.into_iter().rev().take(1).map(|(_, _, id)| id).collect()
}

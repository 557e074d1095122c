//! The fleet as one node sees it: what its last look at the bucket showed and what its own processes do. Immutable; each
//! pass makes a new one, which shares with the last one what did not change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use scafo_core::record::{ApplicationRecord, Fence, NodeRecord, PlacementRecord};
use scafo_core::view::{ProcessStatus, ReconcileStatus, RecordFault};
use scafo_core::{ApplicationName, NodeId};

/// A node and whether it lives.
#[derive(Debug, Clone)]
pub(crate) struct NodeView {
    pub(crate) record: Arc<NodeRecord>,
    pub(crate) live: bool,
}

/// What a look at the bucket shows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shown {
    pub(crate) applications: Arc<BTreeMap<ApplicationName, Arc<ApplicationRecord>>>,
    pub(crate) placements: Arc<BTreeMap<ApplicationName, Arc<PlacementRecord>>>,
    /// This node is in here as the bucket has it; [`World::nodes`] has it as it is.
    pub(crate) nodes: Arc<BTreeMap<NodeId, NodeView>>,
    /// Applications of which the record, or the placement, cannot be read.
    pub(crate) unreadable: Arc<BTreeSet<ApplicationName>>,
    /// Applications of which the placement cannot be read.
    pub(crate) unreadable_placements: Arc<Vec<ApplicationName>>,
    pub(crate) faults: Arc<Vec<RecordFault>>,
    /// A record that moved gave no answer: an older one stands here for it.
    pub(crate) incomplete: bool,
}

/// Everything at once.
#[derive(Debug, Clone)]
pub(crate) struct World {
    /// The number of the last look that was asked for before this look began, and that succeeded.
    pub(crate) answered: u64,
    /// The same, whether it succeeded or not.
    pub(crate) attempted: u64,
    /// Counts the changes of what placement depends on.
    pub(crate) content: u64,
    pub(crate) shown: Shown,
    /// All nodes, this one as it is right now.
    pub(crate) nodes: Arc<BTreeMap<NodeId, NodeView>>,
    /// Placements in the bucket that are not in force here.
    pub(crate) held_back: Arc<BTreeSet<ApplicationName>>,
    /// The highest fence in any placement, in any node record and on this node's disk.
    pub(crate) floor: Fence,
    pub(crate) processes: Arc<Vec<ProcessStatus>>,
    pub(crate) reconcile: Option<ReconcileStatus>,
}

impl World {
    /// The world before the first look.
    pub(crate) fn unseen() -> Self {
        Self {
            answered: 0,
            attempted: 0,
            content: 0,
            shown: Shown::default(),
            nodes: Arc::default(),
            held_back: Arc::default(),
            floor: Fence::default(),
            processes: Arc::default(),
            reconcile: None,
        }
    }

    /// Whether there has been a look that went through.
    pub(crate) const fn is_seen(&self) -> bool {
        self.content > 0
    }

    /// Whether a node answers, as far as this one can tell.
    pub(crate) fn lives(&self, node: &NodeId) -> bool {
        self.nodes.get(node).is_some_and(|node| node.live)
    }
}

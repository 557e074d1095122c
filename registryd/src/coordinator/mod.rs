//! Coordination: one node at a time decides where applications run, and sweeps up.
//!
//! Only the holder of the lease writes placements, each under its fence and after a look at its own clock. Nothing here is
//! trusted by the nodes that read it: see `node::in_force` for what they refuse.

mod candidates;
pub(crate) mod driver;
mod fences;
mod ideals;
pub(crate) mod lease;
pub(crate) mod placement;
pub(crate) mod places;
pub(crate) mod reaper;
mod retention;
mod round;

use async_trait::async_trait;
use scafo_core::record::{CoordinatorLease, Fence};
use scafo_core::view::RecordFault;
use scafo_core::{Problem, ProblemCode};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::daemon::Core;
use crate::node::in_force::LeaseSeen;
use crate::registry::{Guard, Mono};

/// The election as this node sees it.
#[derive(Debug, Clone, Default)]
pub(crate) struct LeaseView {
    /// The record that was read or written last.
    pub(crate) record: Option<CoordinatorLease>,
    /// Until when somebody else's record counts.
    pub(crate) stands_until: Option<Mono>,
    pub(crate) seen: LeaseSeen,
    /// Present while this node coordinates.
    pub(crate) lead: Option<Lead>,
    /// Why the record cannot be read, when it stands and cannot: until somebody removes it, nobody coordinates.
    pub(crate) fault: Option<RecordFault>,
    /// What the last sweep of this node could not read, while it coordinates.
    pub(crate) swept: Vec<RecordFault>,
}

/// The authority to coordinate.
#[derive(Debug, Clone)]
pub(crate) struct Lead {
    pub(crate) fence: Fence,
    pub(crate) lapses: Mono,
    /// Cancelled when this node steps down.
    pub(crate) authority: CancellationToken,
}

/// Asked right before each fenced write: does this node still hold the lease, under this fence, by its own clock?
pub(crate) struct Holder<'a> {
    core: &'a Core,
    leases: watch::Receiver<LeaseView>,
    fence: Fence,
}

impl<'a> Holder<'a> {
    pub(crate) fn new(core: &'a Core, fence: Fence) -> Self {
        Self { core, leases: core.lease.subscribe(), fence }
    }
}

#[async_trait]
impl Guard for Holder<'_> {
    async fn check(&self) -> Result<(), Problem> {
        let now = self.core.mono();
        let holds =
            self.leases.borrow().lead.as_ref().is_some_and(|lead| lead.fence == self.fence && now < lead.lapses);
        if holds {
            return Ok(());
        }
        Err(Problem::new(ProblemCode::LeaseLost, "this node does not coordinate any more"))
    }
}

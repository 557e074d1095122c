//! `GET /v1/state`, unfiltered.

use scafo_core::view::{CoordinatorView, DaemonState, PlacementView};

use crate::coordinator::driver::standing;
use crate::daemon::Core;

/// The document of this moment.
pub(crate) fn state(core: &Core) -> DaemonState {
    let world = core.worlds.borrow().clone();
    let lease = core.lease.borrow().clone();
    let me = &core.settings.node.id;
    let standing = standing(&lease, core.mono());
    let coordinator = standing.map(|record| {
        let is_self = lease.lead.as_ref().is_some_and(|lead| lead.fence == record.fence);
        let unplaced = if is_self { core.unplaced.borrow().clone() } else { None };
        CoordinatorView { node: record.node.clone(), fence: record.fence, is_self, unplaced }
    });
    let placements = world.shown.placements.values().map(|placement| PlacementView {
        application: placement.application.clone(),
        nodes: placement.nodes.clone(),
        fence: placement.fence,
        here: placement.nodes.contains(me),
    });
    DaemonState {
        node: world.nodes.get(me).map(|node| (*node.record).clone()),
        lease: lease.record.clone(),
        coordinator,
        processes: (*world.processes).clone(),
        placements: placements.collect(),
        reconcile: world.reconcile.clone(),
        faults: (*world.shown.faults).clone(),
        scoped: None,
    }
}

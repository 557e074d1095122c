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
    let swept = lease.swept.iter().filter(|_| lease.lead.is_some());
    let faults = lease.fault.iter().chain(world.shown.faults.iter()).chain(swept);
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
        faults: faults.cloned().collect(),
        scoped: None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use scafo_store::MemoryBucket;
    use serde_json::{Value, json};

    use super::*;
    use crate::daemon::testing::core;

    fn document(core: &Core) -> Value {
        serde_json::to_value(state(core)).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_state_before_the_first_look_names_nobody() {
        let document = document(&core("a", MemoryBucket::new()));
        for name in ["node", "lease", "coordinator"] {
            assert_eq!(document.get(name), Some(&Value::Null), "{name}");
        }
        assert_eq!((&document["processes"], &document["placements"]), (&json!([]), &json!([])));
        assert!(document.get("reconcile").is_none() && document.get("scoped").is_none(), "{document}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_lapsed_is_shown_and_nobody_coordinates() {
        let core = core("a", MemoryBucket::new());
        let record = serde_json::from_value(json!({
            "v": 1, "node": "b", "fence": 7, "ttlMs": 15000, "nonce": "n",
            "acquiredAt": "2026-04-01T12:30:00.000Z", "renewedAt": "2026-04-01T12:30:00.000Z",
        }));
        core.lease.send_modify(|view| {
            view.record = Some(record.unwrap());
            view.stands_until = Some(core.mono().after(Duration::from_secs(15)));
        });
        let standing = document(&core);
        assert_eq!(standing["coordinator"], json!({ "node": "b", "fence": 7, "self": false }));
        tokio::time::advance(Duration::from_secs(16)).await;
        let lapsed = document(&core);
        assert_eq!((&lapsed["coordinator"], &lapsed["lease"]["node"]), (&Value::Null, &json!("b")));
    }
}

//! `GET /v1/state`, unfiltered.

use scafo_core::view::{CoordinatorView, DaemonState, PlacementView, RecordFault};

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
        faults: faults(core),
        scoped: None,
    }
}

/// What cannot be read, as far as this node knows: what it looks at, the lease, and what it sweeps up while it coordinates.
pub(crate) fn faults(core: &Core) -> Vec<RecordFault> {
    let world = core.worlds.borrow().clone();
    let lease = core.lease.borrow().clone();
    let swept = lease.swept.iter().filter(|_| lease.lead.is_some());
    lease.fault.iter().chain(world.shown.faults.iter()).chain(swept).cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use scafo_core::record::Fence;
    use scafo_store::MemoryBucket;
    use serde_json::{Value, json};
    use tokio::sync::watch;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::coordinator::Lead;
    use crate::daemon::Phase;
    use crate::daemon::testing::core;
    use crate::figures::Figures;

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
    async fn as_many_faults_are_counted_as_are_shown() {
        let core = core("a", MemoryBucket::new());
        let (_phases, phase) = watch::channel(Phase::Ready(Arc::clone(&core)));
        let metrics = Figures::default().metrics(&phase);
        let counted = || -> f64 {
            let text = metrics.text();
            let line = text.lines().find(|line| line.starts_with("scafo_record_faults")).unwrap().to_owned();
            line.rsplit_once(' ').unwrap().1.parse().unwrap()
        };
        assert!(counted().abs() < 0.5);
        let fault = |key: &str| RecordFault { key: key.to_owned(), error: "unreadable".to_owned() };
        core.lease.send_modify(|view| {
            view.fault = Some(fault("_scafo/coordinator/lease.json"));
            view.swept = vec![fault("_scafo/deploys/shop/1.json"), fault("_scafo/domains/a.example.json")];
            let (lapses, authority) = (core.mono().after(Duration::from_secs(15)), CancellationToken::new());
            view.lead = Some(Lead { fence: Fence(1), lapses, authority });
        });
        assert_eq!(state(&core).faults.len(), 3);
        assert!((counted() - 3.0).abs() < 0.5);
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

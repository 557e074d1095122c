//! Single scenes on the stage of the histories: how a node leaves its fleet.

use std::sync::Arc;
use std::time::Duration;

use scafo_core::key::prefix;
use scafo_core::record::{Drain, DrainState, NodeRecord, ProcessState, Replicas};
use scafo_core::{ApplicationName, NodeId};
use tokio::time::{Instant, sleep};

use super::checks::{all, placements};
use super::people::publish;
use super::seeds::run;
use super::sim::Sim;
use super::{TTL, come_to_rest, start};
use crate::registry::{DrainRequest, Registry};

fn person(sim: &Arc<Sim>, machine: usize) -> Registry {
    Registry::new(sim.bucket(machine, sim.next_run()), sim.clock(machine), "person")
}

/// Applications that are published, each on as many nodes as its number says, `0` for all.
async fn furnish(sim: &Arc<Sim>, registry: &Registry, replicas: &[u32]) -> Vec<ApplicationName> {
    let mut names = Vec::new();
    for (index, replicas) in replicas.iter().enumerate() {
        let name: ApplicationName = format!("app-{index}").parse().unwrap();
        registry.create_application(&name).await.unwrap();
        let replicas = std::num::NonZeroU32::new(*replicas).map_or(Replicas::All, Replicas::Count);
        registry.set_replicas(&name, replicas).await.unwrap();
        publish(sim, registry, &name, 1).await.unwrap();
        names.push(name);
    }
    names
}

async fn record(sim: &Sim, id: &NodeId) -> NodeRecord {
    all::<NodeRecord>(sim, prefix::NODES).await.into_iter().find(|node| node.id == *id).unwrap()
}

/// Applications that no document would route anywhere now.
async fn unrouted(sim: &Sim, names: &[ApplicationName]) -> Vec<ApplicationName> {
    let nodes: Vec<NodeRecord> = all(sim, prefix::NODES).await;
    let routed = |name: &&ApplicationName| {
        let serves = |node: &NodeRecord| {
            let ready = node.serving.iter().any(|it| it.application == **name && it.state == ProcessState::Ready);
            ready && !node.draining
        };
        !nodes.iter().any(serves)
    };
    names.iter().filter(routed).cloned().collect()
}

/// Waits until the drain of `id` is in this state, and sees to it that everything stays routed.
async fn until(sim: &Sim, id: &NodeId, state: DrainState, names: &[ApplicationName]) -> Drain {
    let limit = Instant::now() + Duration::from_secs(300);
    loop {
        assert_eq!(unrouted(sim, names).await, []);
        let drain = record(sim, id).await.drain.unwrap();
        if drain.state == state {
            return drain;
        }
        assert!(Instant::now() < limit, "{drain:?}");
        sleep(Duration::from_millis(200)).await;
    }
}

fn request(timeout: u64, force: bool) -> DrainRequest {
    DrainRequest { by: "op".to_owned(), timeout: Duration::from_secs(timeout), force }
}

#[test]
fn a_drained_node_gives_everything_away_without_a_gap_and_takes_it_back() {
    run(async {
        let sim = Sim::new(1, 4, TTL);
        let _fleet = start(&sim, 3);
        let registry = person(&sim, 3);
        let names = furnish(&sim, &registry, &[1, 1, 1, 2, 2, 0]).await;
        come_to_rest(&sim, &[0, 1, 2]).await.unwrap();
        let before = placements(&sim).await;
        for machine in 0..3 {
            let id: NodeId = sim.machines[machine].id.parse().unwrap();
            registry.drain_node(&id, &request(120, false)).await.unwrap();
            until(&sim, &id, DrainState::Drained, &names).await;
            let left = record(&sim, &id).await;
            assert!(left.leaving && left.draining && left.serving.is_empty(), "{left:?}");
            come_to_rest(&sim, &[0, 1, 2]).await.unwrap();
            assert!(placements(&sim).await.values().all(|nodes| !nodes.contains(&id)));
            registry.undrain_node(&id).await.unwrap();
            come_to_rest(&sim, &[0, 1, 2]).await.unwrap();
            assert_eq!(placements(&sim).await, before, "it wins back what it had, and nothing else moves");
        }
        assert_eq!(sim.ledger().repeated, 0, "no record is written again that says the same");
    });
}

#[test]
fn a_drain_without_replacement_fails_by_name_and_goes_on_serving_until_forced() {
    run(async {
        let sim = Sim::new(2, 2, TTL);
        let _fleet = start(&sim, 1);
        let registry = person(&sim, 1);
        let names = furnish(&sim, &registry, &[1, 0]).await;
        come_to_rest(&sim, &[0]).await.unwrap();
        let id: NodeId = sim.machines[0].id.parse().unwrap();
        registry.drain_node(&id, &request(60, false)).await.unwrap();
        let failed = until(&sim, &id, DrainState::Failed, &names).await;
        assert_eq!(failed.waits_for, names);
        sleep(Duration::from_secs(120)).await;
        assert_eq!(unrouted(&sim, &names).await, []);
        registry.drain_node(&id, &request(30, true)).await.unwrap();
        let asked = Instant::now();
        until(&sim, &id, DrainState::Drained, &[]).await;
        assert!(asked.elapsed() >= Duration::from_secs(30 + 35), "its time and the hold");
        registry.undrain_node(&id).await.unwrap();
        come_to_rest(&sim, &[0]).await.unwrap();
        assert_eq!(unrouted(&sim, &names).await, []);
    });
}

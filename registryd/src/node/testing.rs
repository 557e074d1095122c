//! A node as it decides, without what it runs: the reconcile loop and the election, on a bucket in memory.

use std::path::Path;
use std::sync::Arc;

use scafo_core::record::{ApplicationRecord, Fence, PlacementRecord, V1};
use scafo_core::{ApplicationName, Timestamp, key};
use scafo_store::MemoryBucket;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::apply::Desired;
use super::disk::Disk;
use super::in_force::InForce;
use super::pass::Pass;
use crate::bootstrap::record;
use crate::coordinator::driver::elect;
use crate::daemon::testing::{core_on, settings};
use crate::daemon::{Core, Fatal};
use crate::registry::testing::put_raw;
use crate::registry::{Arrival, Registry, TokioClock};
use crate::supervisor::Supervisor;

/// One that runs; it is killed when this is dropped.
pub(crate) struct Node {
    pub(crate) core: Arc<Core>,
    pub(crate) desired: watch::Receiver<Desired>,
    _statuses: watch::Sender<Option<Vec<scafo_core::view::ProcessStatus>>>,
    _tasks: JoinSet<Fatal>,
}

/// The reconcile loop and the election of a node that keeps its state in `dir`.
pub(crate) async fn node(id: &str, memory: MemoryBucket, dir: &Path) -> Node {
    let clock = TokioClock::starting_at(Timestamp::from_millis(1_800_000_000_000));
    let registry = Registry::new(Arc::new(memory), Arc::new(clock), id);
    let settings = settings(id);
    let own = record(&settings, registry.clock().wall());
    let own = registry.register_node(&own, Arrival::Joining).await.unwrap();
    let supervisor = Supervisor::new(&settings.supervisor_socket);
    let (core, asked) = core_on(settings, registry, Disk::File(dir.join("state.json")), supervisor);
    let (desired, wanted) = watch::channel(None);
    let (reports, statuses) = watch::channel(Some(Vec::new()));
    let mut tasks = JoinSet::new();
    let in_force = InForce::resume(None, "i");
    tasks.spawn(Pass::new(Arc::clone(&core), own, in_force, asked, statuses, desired).run());
    tasks.spawn(elect(Arc::clone(&core), CancellationToken::new()));
    Node { core, desired: wanted, _statuses: reports, _tasks: tasks }
}

pub(crate) async fn until_leads(node: &Node) -> Fence {
    let mut leases = node.core.lease.subscribe();
    leases.wait_for(|view| view.lead.is_some()).await.unwrap().lead.as_ref().unwrap().fence
}

/// An application, and its placement on node `a`.
pub(crate) async fn place(memory: &MemoryBucket, fence: u64) -> ApplicationName {
    let name: ApplicationName = "shop".parse().unwrap();
    let application = serde_json::json!({ "v": 1, "name": "shop", "createdAt": "2026-01-01T00:00:00.000Z", "blocked": false,
        "domains": [], "wildcardDomains": [] });
    let application: ApplicationRecord = serde_json::from_value(application).unwrap();
    put_raw(memory, &key::application(&name), &serde_json::to_string(&application).unwrap()).await;
    let placement = PlacementRecord {
        v: V1,
        application: name.clone(),
        nodes: vec!["a".parse().unwrap()],
        wanted: 1,
        reason: None,
        fence: Fence(fence),
        updated_at: Timestamp::from_millis(0),
        rest: Default::default(),
    };
    put_raw(memory, &key::placement(&name), &serde_json::to_string(&placement).unwrap()).await;
    name
}

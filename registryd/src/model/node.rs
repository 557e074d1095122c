//! One machine of a simulation: the daemon's own parts, and a supervisor whose processes only take their time.

use std::sync::Arc;
use std::time::Duration;

use scafo_core::record::{NodeRecord, ProcessState};
use scafo_core::settings::Millis;
use scafo_core::view::ProcessStatus;
use scafo_core::{ApplicationName, NodeId, Problem, Timestamp};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::sim::{Life, Process, Sim};
use crate::daemon::testing::{core_on, settings};
use crate::daemon::{Core, Fatal};
use crate::node::adoption::Reloaded;
use crate::node::apply::Desired;
use crate::node::disk::Disk;
use crate::node::in_force::InForce;
use crate::node::pass::Pass;
use crate::registry::{Arrival, Registry};
use crate::supervisor::Supervisor;
use crate::{bootstrap, coordinator};

/// Names the simulated bucket.
const INSTALLATION: &str = "simulated";

/// Keeps the daemons of a machine running: after each death they start again when the machine is up.
pub(super) async fn keep_alive(sim: Arc<Sim>, machine: usize) {
    loop {
        sim.until_up(machine).await;
        let mut life = JoinSet::new();
        life.spawn(live(Arc::clone(&sim), machine));
        tokio::select! {
            biased;
            () = sim.machines[machine].killed.notified() => {}
            ended = life.join_next() => {
                let ended = ended.map(|ended| ended.map_err(|error| error.to_string()));
                sim.ledger().violated(format!("{:?}: node {machine} ended: {ended:?}", sim.elapsed()));
                return;
            }
        }
        life.shutdown().await;
        *sim.machines[machine].life.lock().unwrap() = None;
        // Half of the deaths take the whole computer along, and with it what ran there.
        if sim.dice().chance(50) {
            sim.machines[machine].processes.lock().unwrap().clear();
        }
    }
}

async fn live(sim: Arc<Sim>, machine: usize) -> Fatal {
    let it = &sim.machines[machine];
    let run = sim.next_run();
    let mut settings = settings(&it.id);
    settings.node.labels = [("region".to_owned(), it.region.to_owned())].into();
    settings.lease_ttl = Millis::from(sim.ttl);
    let id = settings.node.id.clone();
    let registry = Registry::new(sim.bucket(machine, run), sim.clock(machine), id.to_string());
    let kept = it.disk.lock().unwrap().clone();
    let in_force = InForce::resume(kept, INSTALLATION);
    let mut record = bootstrap::record(&settings, registry.clock().wall());
    record.fence = in_force.kept().fence;
    let own = loop {
        match register(&registry, &id, &mut record).await {
            Ok(own) => break own,
            Err(_) => registry.clock().sleep(Duration::from_secs(1)).await,
        }
    };
    let reloading = Arc::clone(&sim);
    let supervisor = Supervisor::answering(move |name| reload(&reloading, machine, name));
    let (core, asked) = core_on(settings, registry, Disk::Memory(Arc::clone(&it.disk)), supervisor);
    *it.life.lock().unwrap() = Some(Life { run, core: Arc::clone(&core) });
    let (desired, wanted) = watch::channel(None);
    let (reports, statuses) = watch::channel(None);
    let mut parts: JoinSet<Fatal> = JoinSet::new();
    parts.spawn(Pass::new(Arc::clone(&core), own, in_force, asked, statuses, desired).run());
    parts.spawn(coordinator::driver::elect(Arc::clone(&core), CancellationToken::new()));
    parts.spawn(coordinator::places::place(Arc::clone(&core)));
    parts.spawn(coordinator::reaper::reap(Arc::clone(&core)));
    parts.spawn(supervise(Arc::clone(&sim), machine, wanted, reports));
    parts.join_next().await.unwrap().unwrap()
}

async fn register(registry: &Registry, id: &NodeId, record: &mut NodeRecord) -> Result<NodeRecord, Problem> {
    let before = registry.node(id).await?;
    record.serving = before.map(|stored| stored.record.serving).unwrap_or_default();
    registry.register_node(record, Arrival::Joining).await
}

/// Starts and ends processes, each in its time.
async fn supervise(
    sim: Arc<Sim>,
    machine: usize,
    mut wanted: watch::Receiver<Desired>,
    reports: watch::Sender<Option<Vec<ProcessStatus>>>,
) -> Fatal {
    loop {
        let set = wanted.borrow_and_update().clone();
        let statuses: Vec<ProcessStatus> = {
            let published = sim.published.lock().unwrap().clone();
            let mut processes = sim.machines[machine].processes.lock().unwrap();
            let now = Instant::now();
            let ready_in = || sim.dice().millis(200, 3_000);
            if let Some(set) = set {
                processes.retain(|name, _| set.contains_key(name));
                for name in set.keys() {
                    processes.entry(name.clone()).or_insert_with(|| begin(&sim, name, now + ready_in()));
                }
            }
            for (name, process) in processes.iter_mut() {
                let Some(published) = published.get(name) else { continue };
                if process.status.state == ProcessState::Starting && process.ready <= now {
                    process.status.state = ProcessState::Ready;
                    process.status.deployment = Some(published.version.clone());
                }
            }
            processes.values().map(|process| process.status.clone()).collect()
        };
        reports.send_if_modified(|reported| {
            let moved = reported.as_ref() != Some(&statuses);
            *reported = Some(statuses);
            moved
        });
        tokio::select! {
            biased;
            changed = wanted.changed() => if changed.is_err() { return Fatal::ended("the reconcile loop") },
            () = sleep(Duration::from_millis(500)) => {}
        }
    }
}

/// The process serves what its pointer names now.
fn reload(sim: &Sim, machine: usize, name: &ApplicationName) -> Reloaded {
    let published = sim.published.lock().unwrap().get(name).cloned();
    let mut processes = sim.machines[machine].processes.lock().unwrap();
    match (published, processes.get_mut(name)) {
        (Some(published), Some(process)) if process.status.state == ProcessState::Ready => {
            process.status.deployment = Some(published.version.clone());
            Reloaded::Serves(published.version)
        }
        _ => Reloaded::Unavailable,
    }
}

fn begin(sim: &Sim, application: &ApplicationName, ready: Instant) -> Process {
    let status = ProcessStatus {
        application: application.clone(),
        state: ProcessState::Starting,
        since: Timestamp::from_millis(0),
        pid: Some(u32::try_from(sim.next_run()).unwrap()),
        port: 24000,
        internal_port: 24001,
        deployment: None,
        celld_version: Some("0.6.0".into()),
        restarts: 0,
        started_at: None,
        last_exit: None,
        adopted: false,
    };
    Process { status, ready }
}

/// What the daemon's parts on a machine share, once they are up.
pub(super) fn core(sim: &Sim, machine: usize) -> Option<Arc<Core>> {
    sim.machines[machine].core()
}

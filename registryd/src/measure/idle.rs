//! A fleet at rest on virtual time: every part of the daemon that asks the bucket for something, for each node, on one bucket in
//! memory, and each request counted. An hour of a thousand nodes takes minutes and depends on no clock.

mod fleet;
mod stage;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use scafo_core::key::prefix;
use scafo_core::record::{Adoption, NodeRecord, ProcessState};
use scafo_core::settings::RegistrydSettings;
use scafo_core::view::ProcessStatus;
use scafo_core::{ApplicationName, Timestamp};
use scafo_store::Bucket as _;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use self::fleet::furnish;
use self::stage::{Counting, Stage, StageClock, Tally};
use crate::bootstrap::{Registered, record};
use crate::coordinator::driver::elect;
use crate::daemon::{Core, Fatal};
use crate::deploy::open::Open;
use crate::figures::Figures;
use crate::node::apply::Desired;
use crate::node::disk::Disk;
use crate::node::in_force::InForce;
use crate::parts::{Means, Processes, spawn};
use crate::registry::{Arrival, Registry};
use crate::service::Operations;
use crate::supervisor::Supervisor;

/// The wall clock at the start, in milliseconds since 1970.
const WALL: i64 = 1_800_000_000_000;
/// Names the simulated bucket.
const INSTALLATION: &str = "simulated";
const VERSION: &str = "1";

/// A fleet to look at.
#[derive(Debug, Clone)]
pub struct Scene {
    /// One for each node.
    pub settings: Vec<RegistrydSettings>,
    /// Applications, each published, with one host and one deploy.
    pub applications: usize,
    /// How many of them run, each on one node. The others select a label that no node has.
    pub running: usize,
    /// How long the fleet may take to come to rest after all nodes start at once.
    pub warm_up: Duration,
    /// How long requests are counted then.
    pub window: Duration,
    /// Decides everything that chance decides.
    pub seed: u64,
}

/// What a request does, which is what stores charge by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Does {
    /// Reads an object, or its head.
    Get,
    /// One page of a listing.
    List,
    /// Writes.
    Put,
    /// Deletes.
    Delete,
}

impl fmt::Display for Does {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Put => "put",
            Self::Delete => "delete",
        })
    }
}

/// Requests by what they do and which kind of record they are about.
pub type Requests = BTreeMap<(Does, String), u64>;

/// What one node sent within the window.
#[derive(Debug, Clone)]
pub struct Counted {
    /// Whether it held the lease at the end.
    pub coordinates: bool,
    /// Its requests.
    pub requests: Requests,
}

impl Counted {
    /// All of its requests in a minute of a window.
    #[must_use]
    pub fn per_minute(&self, window: Duration) -> f64 {
        let all: u64 = self.requests.values().sum();
        f64::from(u32::try_from(all).unwrap_or(u32::MAX)) * 60.0 / window.as_secs_f64()
    }
}

/// Runs a scene on a runtime of its own, whose clock only moves when nobody has anything to do.
///
/// # Errors
/// Why it says nothing: a part of a node ended, or the fleet was not at rest.
pub fn run(scene: &Scene) -> Result<Vec<Counted>, String> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().map_err(|error| error.to_string())?;
    runtime.block_on(count(scene))
}

async fn count(scene: &Scene) -> Result<Vec<Counted>, String> {
    let stage = Arc::new(Stage::new());
    furnish(&stage, scene).await?;
    let mut tasks: JoinSet<Fatal> = JoinSet::new();
    let mut nodes = Vec::new();
    for (index, settings) in scene.settings.iter().enumerate() {
        nodes.push(Node::register(&stage, settings, scene.seed.wrapping_add(index as u64)).await?);
    }
    let cores: Vec<(Arc<Core>, Arc<Tally>)> = nodes.into_iter().map(|node| node.start(&mut tasks)).collect();
    while_all_run(&mut tasks, scene.warm_up).await?;
    for (_, tally) in &cores {
        tally.lock().clear();
    }
    while_all_run(&mut tasks, scene.window).await?;
    let counted: Vec<Counted> = cores.iter().map(|(core, tally)| counted(core, tally)).collect();
    at_rest(&stage, scene, &cores, &counted).await?;
    Ok(counted)
}

async fn while_all_run(tasks: &mut JoinSet<Fatal>, duration: Duration) -> Result<(), String> {
    tokio::select! {
        biased;
        Some(ended) = tasks.join_next() => Err(format!("a part of a node ended: {ended:?}")),
        () = sleep(duration) => Ok(()),
    }
}

fn counted(core: &Core, tally: &Tally) -> Counted {
    let coordinates = core.lease.borrow().lead.as_ref().is_some_and(|lead| core.mono() < lead.lapses);
    Counted { coordinates, requests: tally.lock().clone() }
}

/// The window counts only if one node coordinates, everything is served, and nobody wrote anything but what a fleet at rest
/// writes.
async fn at_rest(
    stage: &Stage,
    scene: &Scene,
    cores: &[(Arc<Core>, Arc<Tally>)],
    counted: &[Counted],
) -> Result<(), String> {
    let leaders = counted.iter().filter(|node| node.coordinates).count();
    if leaders != 1 {
        return Err(format!("{leaders} nodes coordinate"));
    }
    for (core, _) in cores {
        let world = core.worlds.borrow();
        if !world.held_back.is_empty() || world.shown.applications.len() != scene.applications {
            return Err(format!("{} sees another fleet", core.settings.node.id));
        }
    }
    let regular = ["nodes", "coordinator"];
    let changes =
        |(does, kind): &&(Does, String)| matches!(does, Does::Put | Does::Delete) && !regular.contains(&kind.as_str());
    if let Some((does, kind)) = counted.iter().flat_map(|node| node.requests.keys()).find(changes) {
        return Err(format!("a fleet at rest does not {does} {kind}"));
    }
    let mut served = 0;
    for key in stage.memory.keys(prefix::NODES) {
        let object = stage.memory.get(&key).await.map_err(|error| error.to_string())?;
        let record = object.and_then(|object| serde_json::from_slice::<NodeRecord>(&object.body).ok());
        let serving = record.map(|record| record.serving).unwrap_or_default();
        served += serving.iter().filter(|it| it.adoption == Some(Adoption::Adopted)).count();
    }
    if served == scene.running {
        return Ok(());
    }
    Err(format!("{served} of {} applications are served", scene.running))
}

/// A node that has registered.
struct Node {
    core: Arc<Core>,
    owned: crate::parts::Owned,
    registered: Registered,
    tally: Arc<Tally>,
}

impl Node {
    async fn register(stage: &Arc<Stage>, settings: &RegistrydSettings, seed: u64) -> Result<Self, String> {
        let tally = Arc::new(Tally::default());
        let bucket = Arc::new(Counting::new(stage, &tally));
        let clock = Arc::new(StageClock::new(stage, seed));
        let registry = Registry::new(bucket, clock, settings.node.id.to_string());
        let started = registry.clock().wall();
        let own = registry.register_node(&record(settings, started), Arrival::Joining).await;
        let own = own.map_err(|problem| problem.detail)?;
        let means = Means {
            supervisor: Supervisor::new(&settings.supervisor_socket),
            disk: Disk::Memory(Arc::default()),
            operations: Operations::in_memory(),
            figures: Figures::default(),
            open: Open::in_memory(),
        };
        let (core, owned) = Core::assemble(settings.clone(), registry, started, means);
        // An API that never has a deploy to offer.
        core.deploys.neighbour_is_up();
        let registered = Registered { own, in_force: InForce::resume(None, INSTALLATION) };
        Ok(Self { core, owned, registered, tally })
    }

    fn start(self, tasks: &mut JoinSet<Fatal>) -> (Arc<Core>, Arc<Tally>) {
        let (reports, statuses) = watch::channel(Some(Vec::new()));
        let (desired, wanted) = watch::channel(None);
        tasks.spawn(supervise(wanted, reports));
        spawn(tasks, &self.core, self.registered, self.owned, Processes { statuses, desired });
        tasks.spawn(elect(Arc::clone(&self.core), CancellationToken::new()));
        (self.core, self.tally)
    }
}

/// Processes that are ready once they are wanted, with what was published, and stay so.
async fn supervise(mut wanted: watch::Receiver<Desired>, reports: watch::Sender<Option<Vec<ProcessStatus>>>) -> Fatal {
    loop {
        let set = wanted.borrow_and_update().clone().unwrap_or_default();
        for state in [ProcessState::Starting, ProcessState::Ready] {
            let statuses: Vec<ProcessStatus> = set.keys().map(|name| process(name, state)).collect();
            reports.send_if_modified(|reported| {
                let moved = reported.as_ref() != Some(&statuses);
                *reported = Some(statuses);
                moved
            });
            // Time for the node to see a process that starts.
            sleep(Duration::from_secs(1)).await;
        }
        if wanted.changed().await.is_err() {
            return Fatal::ended("the reconcile loop");
        }
    }
}

fn process(application: &ApplicationName, state: ProcessState) -> ProcessStatus {
    ProcessStatus {
        application: application.clone(),
        state,
        since: Timestamp::from_millis(WALL),
        pid: Some(1),
        port: 24000,
        internal_port: 24001,
        deployment: VERSION.parse().ok().filter(|_| state == ProcessState::Ready),
        celld_version: Some("0.6.0".to_owned()),
        restarts: 0,
        started_at: None,
        last_exit: None,
        adopted: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::testing::settings;

    /// What the design allows a node, and one that coordinates, in a minute at the default intervals. A request a minute of each
    /// is left for observations, which are written beside this.
    const GOALS: (f64, f64) = (21.0, 31.0);

    fn keeps_the_goals(nodes: usize, applications: usize, warm_up: u64, minutes: u64) {
        let window = Duration::from_mins(minutes);
        let scene = Scene {
            settings: (0..nodes).map(|index| settings(&format!("n{index}"))).collect(),
            applications,
            running: applications.min(30),
            warm_up: Duration::from_mins(warm_up),
            window,
            seed: 7,
        };
        for node in run(&scene).unwrap() {
            let (rate, goal) = (node.per_minute(window), if node.coordinates { GOALS.1 } else { GOALS.0 });
            assert!(rate <= goal, "{nodes} nodes, {applications} applications: {rate} a minute: {node:?}");
        }
    }

    // Each of them sees a whole look of every node at everything: those come every quarter of an hour, and of 10,000
    // applications every three quarters. Who begins to coordinate reads all claims and deploys once, in as many minutes as
    // there are pages of them.

    #[test]
    fn an_idle_node_costs_the_same_whatever_the_fleet_holds() {
        for (nodes, applications, warm_up, minutes) in [(1, 1, 3, 20), (3, 60, 3, 20), (1, 10_000, 12, 40)] {
            keeps_the_goals(nodes, applications, warm_up, minutes);
        }
    }

    #[test]
    fn an_idle_node_costs_the_same_however_many_there_are() {
        for nodes in [2, 100] {
            keeps_the_goals(nodes, 1, 3, 20);
        }
    }
}

//! The daemon as a whole: what its parts share, in which order they start, and what happens when one of them ends.
//!
//! Each part is a task with one owner, and none may end: when one does, the process goes with it and the supervisor starts a
//! new one. A daemon that lives on without its heartbeat or its election is worse than a restart.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use scafo_core::problem::ProblemCode;
use scafo_core::record::Fence;
use scafo_core::settings::RegistrydSettings;
use scafo_core::view::Unplaced;
use scafo_core::{NodeId, Problem, Timestamp};
use scafo_proto::child::EXIT_REFUSED;
use scafo_proto::figures::Exposed;
use scafo_proto::transport::{Peers, serve, server};
use scafo_store::Bucket;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};

use crate::bootstrap::{NotRegistered, Registered, STATE, register};
use crate::coordinator::LeaseView;
use crate::deploy::driver::Deploys;
use crate::deploy::open::Open;
use crate::figures::{Counted, Figures, Others};
use crate::node::disk::Disk;
use crate::node::parting::Parting;
use crate::node::wake::Wake;
use crate::node::world::World;
use crate::observe::flush::{Desk, Flusher};
use crate::parts::{Means, Processes};
use crate::registry::{Clock, Mono, Registry};
use crate::service::{
    AdminService, AdministrationService, Door, ObservationsService, Operations, RecorderService, RegistryService,
    StorageService, UnderWay,
};
use crate::supervisor::Supervisor;
use crate::tls::Locks;
use crate::{coordinator, node, parts};

/// Bounds of the pause between two tries to register: quick when bucketd is only starting beside us, patient when a bucket is
/// down for hours.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The upper bound while a record or the store waits for a person, who does not come within seconds: each try is a dozen requests.
const PAUSE_FOR_A_PERSON: Duration = Duration::from_mins(1);
/// How long a hint that is on its way may hold up the end.
const FLUSH: Duration = Duration::from_secs(2);
/// How long the work may take to end: giving the lease back and the last hint, each for [`FLUSH`], and a moment.
const LAST: Duration = Duration::from_secs(5);

/// Why the daemon ends although nobody asked it to.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    /// This node cannot be part of this fleet, and starting again changes nothing.
    #[error("{0}")]
    Refused(Problem),
    /// A task that must not end has ended.
    #[error("{0} ended unexpectedly")]
    Ended(&'static str),
    /// The state directory fails.
    #[error("cannot keep state in {}: {cause}; free space or set it right, then start again", path.display())]
    Disk {
        /// What was to be written.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// A listening socket broke.
    #[error("a local socket broke")]
    Socket(#[source] tonic::transport::Error),
}

impl Fatal {
    pub(crate) const fn ended(what: &'static str) -> Self {
        Self::Ended(what)
    }

    pub(crate) fn disk(path: &Path, cause: &io::Error) -> Self {
        Self::Disk { path: path.to_owned(), cause: io::Error::new(cause.kind(), cause.to_string()) }
    }

    pub(crate) fn removed(id: &NodeId) -> Self {
        Self::Refused(Problem::new(
            ProblemCode::NotFound,
            format!("node `{id}` was removed from the fleet; `scafo sail --rejoin` brings it back"),
        ))
    }

    /// The exit code: [`EXIT_REFUSED`] tells the supervisor not to start this daemon again.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(_) => EXIT_REFUSED,
            Self::Ended(_) | Self::Disk { .. } | Self::Socket(_) => 1,
        }
    }
}

/// What a task of a part brought; one that panicked ends the daemon, which starts anew with a clear state.
pub(crate) fn unbroken<T>(ended: Result<T, tokio::task::JoinError>) -> Result<T, Fatal> {
    ended.map_err(|_| Fatal::ended("a task of the daemon"))
}

/// What the parts of the daemon share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) settings: RegistrydSettings,
    pub(crate) registry: Registry,
    pub(crate) supervisor: Supervisor,
    pub(crate) wake: Wake,
    pub(crate) worlds: watch::Sender<Arc<World>>,
    /// The JSON of the last snapshot.
    pub(crate) snapshots: watch::Sender<Option<Bytes>>,
    pub(crate) lease: watch::Sender<LeaseView>,
    /// The fence of this node's last claim. The reconcile loop keeps it and writes it into this node's record.
    pub(crate) claim: watch::Sender<Fence>,
    /// The fence of the last claim that this node's disk did not take.
    pub(crate) unkept: watch::Sender<Option<Fence>>,
    /// What this node could not place, while it coordinates.
    pub(crate) unplaced: watch::Sender<Option<Vec<Unplaced>>>,
    pub(crate) deploys: Deploys,
    pub(crate) locks: Locks,
    pub(crate) disk: Disk,
    pub(crate) operations: Operations,
    pub(crate) parting: Parting,
    pub(crate) figures: Figures,
    /// Names this run of the daemon to the supervisor.
    pub(crate) run: String,
    pub(crate) started: Timestamp,
}

impl Core {
    pub(crate) fn mono(&self) -> Mono {
        self.registry.clock().mono()
    }
}

/// How far the daemon is.
#[derive(Debug, Clone)]
pub(crate) enum Phase {
    /// Not registered yet; what to tell callers.
    Starting(Problem),
    /// At work.
    Ready(Arc<Core>),
}

impl Phase {
    /// Not registered yet, and tried again: nothing that callers are told meanwhile is a refusal, which they would act upon for
    /// good. The API would end deploys that it has acknowledged.
    fn waiting(problem: Problem) -> Self {
        let code = match problem.code {
            ProblemCode::StoreUnavailable => ProblemCode::StoreUnavailable,
            _ => ProblemCode::Draining,
        };
        Self::Starting(Problem::new(code, problem.detail))
    }
}

/// The sockets that it serves.
#[derive(Debug)]
pub struct Sockets {
    /// For apiserver and routerd.
    pub grpc: UnixListener,
    /// For the node's own command line.
    pub admin: UnixListener,
}

/// Runs the daemon until `shutdown`, or until it cannot go on.
///
/// # Errors
/// [`Fatal`]; its exit code says whether starting again makes sense.
pub async fn run(
    settings: RegistrydSettings,
    bucket: Arc<dyn Bucket>,
    clock: Arc<dyn Clock>,
    sockets: Sockets,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Fatal> {
    let stop = CancellationToken::new();
    let (reporter, health) = health_reporter();
    // The library starts with "serving" for the server as a whole.
    reporter.set_service_status("", ServingStatus::NotServing).await;
    let starting = Problem::new(ProblemCode::Draining, "this node is starting; try again in a moment");
    let (phases, phase) = watch::channel(Phase::Starting(starting));
    let mut tasks: JoinSet<Result<(), Fatal>> = JoinSet::new();
    let registry_service = RegistryService::new(phase.clone(), stop.clone()).into_server();
    let under_way = UnderWay::default();
    let administration = |door| AdministrationService::new(phase.clone(), door, under_way.clone()).into_server();
    let figures = Figures::default();
    let others = Others::of(&settings);
    let metrics = figures.metrics(&phase);
    let collect = Figures::collect(metrics.clone(), others.clone());
    let desk = settings.observe_flush.map(|_| Desk::default());
    let grpc = server()
        .add_service(health.clone())
        .add_service(Exposed::server(collect))
        .add_service(RecorderService::server(desk.clone()))
        .add_service(registry_service)
        .add_service(administration(Door::Api))
        .add_service(StorageService::new(phase.clone()).into_server());
    let admin = server()
        .add_service(health)
        .add_service(administration(Door::Admin))
        .add_service(ObservationsService::server(phase.clone()))
        .add_service(AdminService::new(phase.clone()).into_server());
    for (name, listener, router) in [("grpc", sockets.grpc, grpc), ("admin", sockets.admin, admin)] {
        let stop = stop.clone();
        tasks.spawn(async move {
            let stopped = stop.cancelled_owned();
            serve(listener, Peers::of_socket(name), router, stopped).await.map_err(Fatal::Socket)
        });
    }
    let counted: Arc<dyn Bucket> = Arc::new(Counted::new(bucket, figures.clone()));
    let flusher = desk.zip(settings.observe_flush).map(|(desk, every)| Flusher {
        bucket: Arc::clone(&counted),
        clock: Arc::clone(&clock),
        node: settings.node.id.clone(),
        every: every.get(),
        desk,
        metrics,
        others,
        figures: figures.clone(),
        sequence: 0,
    });
    let counted = (counted, figures, flusher);
    let mut work = JoinSet::new();
    let worker = stop.clone();
    work.spawn(async move { start_and_work(settings, counted, clock, phases, &reporter, worker).await });
    let end = tokio::select! {
        biased;
        () = shutdown => Ok(()),
        Some(ended) = work.join_next() => Err(ended.unwrap_or(Fatal::Ended("the daemon's work"))),
        Some(ended) = tasks.join_next() => Err(match ended {
            Ok(Err(fatal)) => fatal,
            Ok(Ok(())) | Err(_) => Fatal::Ended("a local server"),
        }),
    };
    stop.cancel();
    // Open calls finish (bounded by the transport) while the work ends in good order; what is left of it is dropped.
    while tasks.join_next().await.is_some() {}
    if tokio::time::timeout(LAST, work.join_next()).await.is_err() {
        tracing::warn!("the daemon ends with work under way");
    }
    work.shutdown().await;
    end
}

/// Registers, however long the bucket takes to answer, then works until a part ends.
async fn start_and_work(
    settings: RegistrydSettings,
    (bucket, figures, flusher): (Arc<dyn Bucket>, Figures, Option<Flusher>),
    clock: Arc<dyn Clock>,
    phases: watch::Sender<Phase>,
    reporter: &HealthReporter,
    stop: CancellationToken,
) -> Fatal {
    let started = clock.wall();
    let registry = Registry::new(bucket, clock, settings.node.id.to_string());
    let registered = match persist(&registry, &settings, started, &phases).await {
        Ok(registered) => registered,
        Err(fatal) => return fatal,
    };
    let installation = registered.in_force.kept().installation.clone();
    let means = Means {
        supervisor: Supervisor::new(&settings.supervisor_socket),
        disk: Disk::File(settings.dir.join(STATE)),
        operations: Operations::resume(&settings.dir).await,
        figures,
        open: Open::resume(&settings.dir, &installation, &settings.node.id).await,
    };
    let (core, owned) = Core::assemble(settings, registry, started, means);
    let mut parts: JoinSet<Fatal> = JoinSet::new();
    let (reports, statuses) = watch::channel(None);
    let (desired, wanted) = watch::channel(None);
    let supervisor = core.supervisor.clone();
    parts.spawn(async move {
        supervisor.watch(reports).await;
        Fatal::Ended("the watch on the processes")
    });
    parts.spawn(node::apply::apply(Arc::clone(&core), installation, wanted));
    parts::spawn(&mut parts, &core, registered, owned, Processes { statuses, desired });
    let mut observing = JoinSet::new();
    if let Some(flusher) = flusher {
        observing.spawn(flusher.run(stop.clone()));
    }
    let mut election = JoinSet::new();
    election.spawn(coordinator::driver::elect(Arc::clone(&core), stop.clone()));
    phases.send_replace(Phase::Ready(Arc::clone(&core)));
    reporter.set_service_status("", ServingStatus::Serving).await;
    tracing::info!(node = %core.settings.node.id, "registered");
    let end = Running { parts, election, observing }.until_end(&stop).await;
    reporter.set_service_status("", ServingStatus::NotServing).await;
    if let Err(problem) = core.registry.flush_hints(FLUSH).await {
        tracing::warn!(?problem, "a change hint did not go out");
    }
    end
}

/// The tasks of a daemon at work.
struct Running {
    parts: JoinSet<Fatal>,
    /// Gives the lease back when it is asked to end.
    election: JoinSet<Fatal>,
    /// Flushes once more when it is asked to end.
    observing: JoinSet<Fatal>,
}

impl Running {
    /// Waits until one of them ends, or all are asked to; then for what they have to do last.
    async fn until_end(mut self, stop: &CancellationToken) -> Fatal {
        let Self { parts, election, observing } = &mut self;
        let end = tokio::select! {
            biased;
            ended = parts.join_next() => ended.and_then(Result::ok).unwrap_or(Fatal::Ended("a part of the daemon")),
            () = stop.cancelled() => Fatal::Ended("the daemon, as asked,"),
            ended = election.join_next() => ended.and_then(Result::ok).unwrap_or(Fatal::Ended("the election")),
            Some(ended) = observing.join_next() => ended.unwrap_or(Fatal::Ended("the flushing of observations")),
        };
        if stop.is_cancelled() {
            let last = async |tasks: &mut JoinSet<Fatal>| {
                tokio::time::timeout(FLUSH, async { while tasks.join_next().await.is_some() {} }).await
            };
            let (lease, observed) = tokio::join!(last(election), last(observing));
            if lease.is_err() {
                tracing::warn!("the lease is not given back; another node takes over when it lapses");
            }
            if observed.is_err() {
                tracing::warn!("what was measured and traced last is not in the bucket");
            }
        }
        end
    }
}

/// Tries to register until it is done or refused. One line in the log for each change of what keeps it.
async fn persist(
    registry: &Registry,
    settings: &RegistrydSettings,
    started: Timestamp,
    phases: &watch::Sender<Phase>,
) -> Result<Registered, Fatal> {
    let mut pause = PAUSE.0;
    let mut last = String::new();
    loop {
        let mut longest = PAUSE.1;
        match register(registry, settings, started).await {
            Ok(registered) => return Ok(registered),
            Err(NotRegistered::Refused(problem)) => return Err(Fatal::Refused(problem)),
            Err(NotRegistered::Disk(error)) => return Err(Fatal::disk(&settings.dir, &error)),
            Err(NotRegistered::Away(problem)) => {
                if problem.code == ProblemCode::StoreNonconforming {
                    longest = PAUSE_FOR_A_PERSON;
                }
                if problem.detail != last {
                    if problem.code == ProblemCode::StoreNonconforming {
                        // Nobody else may be about to set it right.
                        tracing::error!(?problem, "cannot register until this is set right, trying again");
                    } else {
                        tracing::warn!(?problem, "cannot register yet, trying again");
                    }
                    last.clone_from(&problem.detail);
                }
                phases.send_replace(Phase::waiting(problem));
            }
        }
        registry.clock().sleep(pause.mul_f64(0.5 + f64::from(rand::random::<u16>()) / 131_072.0)).await;
        pause = (pause * 2).min(longest);
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! The shared parts without the tasks, on a bucket in memory and on the runtime's clock.

    use std::collections::BTreeMap;

    use ed25519_dalek::SigningKey;
    use scafo_core::record::{ApplicationRecord, PlacementRecord};
    use scafo_core::settings::{BucketAccess, FiguresSockets, Millis, NodeIdentity, Secret};
    use scafo_core::token::PublicKey;
    use scafo_store::MemoryBucket;

    use super::*;
    use crate::node::wake::Asked;
    use crate::node::world::{NodeView, Shown};
    use crate::registry::TokioClock;

    pub(crate) fn settings(id: &str) -> RegistrydSettings {
        RegistrydSettings {
            node: NodeIdentity {
                id: id.parse().unwrap(),
                public_key: PublicKey::from(&SigningKey::from_bytes(&[1; 32])),
                address: "127.0.0.1".into(),
                api: "127.0.0.1:7400".into(),
                labels: BTreeMap::new(),
                platform_domains: Vec::new(),
                api_public: true,
                celld_version: Some("0.6.0".into()),
            },
            bucket: BucketAccess {
                name: "unused".into(),
                prefix: String::new(),
                endpoint: None,
                region: "unused".into(),
                path_style: true,
                access_key_id: "unused".into(),
                secret_access_key: Secret::new("unused"),
                session_token: None,
            },
            embedded: false,
            dir: "/nonexistent/registry".into(),
            supervisor_socket: "/nonexistent/supervisor.sock".into(),
            figures_sockets: FiguresSockets::default(),
            lease_ttl: Millis(15_000),
            heartbeat: Millis(30_000),
            liveness: Millis(90_000),
            reconcile_interval: Millis(5_000),
            ingress_hold: Millis(35_000),
            deploy_task_timeout: Millis(600_000),
            deploy_jobs: 2,
            deploy_queue: 16,
            local_only: false,
            drain_timeout: RegistrydSettings::drain_timeout(),
            observe_flush: None,
            observe_retention: RegistrydSettings::observe_retention(),
            storage_value_bytes: RegistrydSettings::storage_value_bytes(),
        }
    }

    /// A core whose world holds nothing but has been seen.
    pub(crate) fn core(id: &str, memory: MemoryBucket) -> Arc<Core> {
        let clock = TokioClock::starting_at(Timestamp::from_millis(1_800_000_000_000));
        let registry = Registry::new(Arc::new(memory), Arc::new(clock), id);
        let settings = settings(id);
        let supervisor = Supervisor::new(&settings.supervisor_socket);
        let (core, _) = core_on(settings, registry, Disk::Memory(Arc::default()), supervisor);
        show(&core, &[], &[], &[]);
        core
    }

    /// A core before its first look, and what is asked of the loop that takes it.
    pub(crate) fn core_on(
        settings: RegistrydSettings,
        registry: Registry,
        disk: Disk,
        supervisor: Supervisor,
    ) -> (Arc<Core>, watch::Receiver<Asked>) {
        let started = registry.clock().wall();
        let (operations, open) = (Operations::in_memory(), Open::in_memory());
        let means = Means { supervisor, disk, operations, figures: Figures::default(), open };
        let (core, owned) = Core::assemble(settings, registry, started, means);
        (core, owned.asked)
    }

    /// Makes these what the last look showed. Nodes are given with whether they live.
    pub(crate) fn show(
        core: &Core,
        applications: &[ApplicationRecord],
        placements: &[PlacementRecord],
        nodes: &[(&str, bool)],
    ) {
        let view = |(id, live): &(&str, bool)| {
            let record = crate::bootstrap::record(&settings(id), core.started);
            (record.id.clone(), NodeView { record: Arc::new(record), live: *live })
        };
        let shown = Shown {
            applications: Arc::new(applications.iter().map(|it| (it.name.clone(), Arc::new(it.clone()))).collect()),
            placements: Arc::new(placements.iter().map(|it| (it.application.clone(), Arc::new(it.clone()))).collect()),
            ..Shown::default()
        };
        core.worlds.send_modify(|world| {
            let content = world.content + 1;
            let nodes = Arc::new(nodes.iter().map(view).collect());
            // Whatever was asked for counts as answered, so that nobody waits for a loop that does not run here.
            *world =
                Arc::new(World { answered: u64::MAX, attempted: u64::MAX, content, shown, nodes, ..World::unseen() });
        });
    }
}

#[cfg(test)]
mod tests {
    use scafo_core::key;

    use super::testing::settings;
    use super::*;
    use crate::registry::testing::{World, put_raw};

    #[tokio::test(start_paused = true)]
    async fn a_node_that_waits_for_a_person_asks_for_little() {
        let (world, dir) = (World::new(), tempfile::tempdir().unwrap());
        let settings = RegistrydSettings { dir: dir.path().join("registry"), ..settings("a") };
        let started = world.registry.clock().wall();
        register(&world.registry, &settings, started).await.unwrap();
        put_raw(&world.memory, &key::node("a"), "damaged").await;
        let again = world.sibling();
        let (phases, _phase) = watch::channel(Phase::Starting(Problem::new(ProblemCode::Draining, "starting")));
        let waiting = persist(&again.registry, &settings, started, &phases);
        assert!(tokio::time::timeout(Duration::from_hours(1), waiting).await.is_err(), "it waits");
        let requests = again.registry.requests();
        assert!(requests < 60 * 10, "{requests} in an hour");
    }
}

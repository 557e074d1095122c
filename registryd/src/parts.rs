//! The tasks that the daemon consists of: what they share is put together here, and those that ask the bucket for something are
//! started here, for the daemon as for what measures it. The election is started beside them, since it ends in its own way.

use std::sync::Arc;

use scafo_core::Timestamp;
use scafo_core::record::Fence;
use scafo_core::settings::RegistrydSettings;
use scafo_core::view::ProcessStatus;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::bootstrap::Registered;
use crate::coordinator::{self, LeaseView};
use crate::daemon::{Core, Fatal};
use crate::deploy;
use crate::deploy::driver::Deploys;
use crate::deploy::open::Open;
use crate::figures::Figures;
use crate::node::apply::Desired;
use crate::node::disk::Disk;
use crate::node::parting::Parting;
use crate::node::pass::Pass;
use crate::node::wake::{Asked, Wake};
use crate::node::world::World;
use crate::registry::Registry;
use crate::service::Operations;
use crate::supervisor::Supervisor;
use crate::tls::LockKeeper;

/// What differs between a daemon and one that is only simulated.
pub(crate) struct Means {
    pub(crate) supervisor: Supervisor,
    pub(crate) disk: Disk,
    pub(crate) operations: Operations,
    pub(crate) figures: Figures,
    pub(crate) open: Open,
}

/// What single tasks hold of their own.
pub(crate) struct Owned {
    /// What is asked of the reconcile loop.
    pub(crate) asked: watch::Receiver<Asked>,
    projects: mpsc::Receiver<()>,
    keeper: LockKeeper,
}

/// The processes of this node: what is reported of them, and which shall run.
pub(crate) struct Processes {
    pub(crate) statuses: watch::Receiver<Option<Vec<ProcessStatus>>>,
    pub(crate) desired: watch::Sender<Desired>,
}

impl Core {
    /// What the parts share, and what is one part's own.
    pub(crate) fn assemble(
        settings: RegistrydSettings,
        registry: Registry,
        started: Timestamp,
        means: Means,
    ) -> (Arc<Self>, Owned) {
        let (wake, asked) = Wake::new();
        let (deploys, projects) = Deploys::new(settings.deploy_queue, means.open);
        let (keeper, locks) = LockKeeper::new(&registry, settings.node.id.clone());
        let core = Self {
            supervisor: means.supervisor,
            wake,
            worlds: watch::Sender::new(Arc::new(World::unseen())),
            snapshots: watch::Sender::new(None),
            lease: watch::Sender::new(LeaseView::default()),
            claim: watch::Sender::new(Fence::default()),
            unkept: watch::Sender::new(None),
            unplaced: watch::Sender::new(None),
            deploys,
            locks,
            disk: means.disk,
            operations: means.operations,
            parting: Parting::new(),
            figures: means.figures,
            run: format!("{:016x}", rand::random::<u64>()),
            started,
            registry,
            settings,
        };
        (Arc::new(core), Owned { asked, projects, keeper })
    }
}

/// Starts every part but the election and what talks to the supervisor.
pub(crate) fn spawn(
    parts: &mut JoinSet<Fatal>,
    core: &Arc<Core>,
    registered: Registered,
    owned: Owned,
    processes: Processes,
) {
    let Registered { own, in_force } = registered;
    let Owned { asked, projects, keeper } = owned;
    let Processes { statuses, desired } = processes;
    parts.spawn(Pass::new(Arc::clone(core), own, in_force, asked, statuses, desired).run());
    parts.spawn(coordinator::places::place(Arc::clone(core)));
    parts.spawn(coordinator::reaper::reap(Arc::clone(core)));
    parts.spawn(deploy::driver::work(Arc::clone(core), projects));
    parts.spawn(deploy::driver::forget(Arc::clone(core)));
    parts.spawn(async move {
        keeper.run().await;
        Fatal::ended("the keeper of certificate locks")
    });
}

//! The part of a boot that needs a bucket: checks it, waits for a deployment, starts it, takes the lease.

use std::{path::PathBuf, sync::Arc, time::Duration};

use scafo_store::Bucket;
use tokio::{
    net::{TcpListener, TcpStream},
    process::Command,
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    conductor::{Adoption, Conductor, Orders, View},
    gate::Gate,
    peers,
    sample::Sampler,
    status::Status,
};
use crate::{
    Failure,
    bucket::Fleet,
    environment::Surface,
    failure::{Context, Outcome},
    lease::{Held, Keeper},
    probe::{self, Verdict},
    settings::NodeSettings,
    shapes::Pointer,
    workerd::{AssetCache, Launcher, Stage, load, read_pointer},
};

/// How often a node that waits for its first deployment looks for it.
const WAITING_POLL: Duration = Duration::from_secs(2);

/// How soon it looks again when somebody knocks at the internal listener.
const WAITING_POLL_SHORTEST: Duration = Duration::from_millis(50);

/// Connections that are kept, unanswered, while the node waits.
const EARLY_MAX: usize = 64;

/// How long `workerd --version` may take.
const VERSION_LIMIT: Duration = Duration::from_secs(10);

/// What serves behind the listeners.
pub(super) struct Engine {
    pub lease: Option<Held>,
    pub conductor: JoinSet<Outcome<()>>,
    pub gate: Option<Arc<Gate>>,
    pub orders: Option<Orders>,
    pub view: Arc<View>,
}

/// An engine whose deployment runs and which nobody may use before it has its lease.
pub(super) struct Started {
    bucket: Arc<dyn Bucket>,
    conductor: Conductor,
    gate: Arc<Gate>,
}

/// Where connections wait during the boot, and those that were taken from there.
pub(super) struct Door<'a> {
    pub listener: &'a TcpListener,
    pub early: &'a mut Vec<TcpStream>,
}

impl Engine {
    /// Without a bucket: nothing to run, nothing to lose.
    pub(super) fn idle(stops: CancellationToken) -> Self {
        let mut conductor = JoinSet::new();
        conductor.spawn(async move {
            stops.cancelled().await;
            Ok(())
        });
        Self { lease: None, conductor, gate: None, orders: None, view: Arc::default() }
    }

    /// Everything up to a running deployment.
    ///
    /// # Errors
    /// The bucket, a living peer, or a deployment that does not run.
    pub(super) async fn start(
        settings: &Arc<NodeSettings>,
        fleet: Fleet,
        workerd: PathBuf,
        door: Door<'_>,
    ) -> Outcome<Started> {
        let bucket = fleet.bucket;
        let ready = async {
            // Lists the bucket, which is also how an inaccessible one is found.
            peers::check(&*bucket, &settings.node, settings.hooks.multi).await?;
            match probe::conditional_writes(&*bucket, "start").await {
                Ok(Verdict::Honoured) => {}
                Ok(Verdict::Unclear(why)) => tracing::warn!(why, "conditional writes could not be probed"),
                Err(violation) => return Err(violation),
            }
            peers::ensure_peer_auth(&*bucket).await
        };
        let (newest_date, ()) = tokio::try_join!(newest_date(&workerd), ready)?;
        let cache = AssetCache::open(&settings.asset_cache, settings.asset_cache_max)?;
        let stage = Stage::take(&settings.watch, cache, newest_date).await?;
        let launcher = Launcher::start()?;
        let gate = Arc::new(Gate::new());
        let pointer = first_pointer(&*bucket, settings.surface, door).await?;
        let deployment = load(&*bucket, pointer).await.context(|| "the deployment cannot be loaded".into())?;
        let mut conductor =
            Conductor::new(Arc::clone(settings), Arc::clone(&bucket), workerd, launcher, stage, Arc::clone(&gate));
        conductor.begin(deployment).await.context(|| "the deployment does not start".into())?;
        // Somebody may have come while this node waited.
        peers::check(&*bucket, &settings.node, settings.hooks.multi).await?;
        Ok(Started { bucket, conductor, gate })
    }
}

impl Started {
    /// Takes the lease and lets the conductor conduct.
    ///
    /// # Errors
    /// No authority in time.
    pub(super) async fn take_lease(
        self,
        settings: &NodeSettings,
        advertise: String,
        status: &Status,
        stops: CancellationToken,
    ) -> Outcome<Engine> {
        let Self { bucket, conductor, gate } = self;
        let sampler = Sampler::new(Some(Arc::clone(&gate)));
        let keeper = Keeper::new(bucket, settings.node.clone(), advertise, settings.lease_ttl, move || sampler.load());
        let held = keeper.take().await?;
        status.follow(held.lapses());
        let (orders, waiting): (Orders, mpsc::Receiver<oneshot::Sender<Adoption>>) = Conductor::orders();
        let view = Arc::clone(&conductor.view);
        let mut tasks = JoinSet::new();
        tasks.spawn(conductor.conduct(waiting, stops));
        Ok(Engine { lease: Some(held), conductor: tasks, gate: Some(gate), orders: Some(orders), view })
    }
}

/// The newest compatibility date of this workerd: its version is that date.
async fn newest_date(program: &std::path::Path) -> Outcome<String> {
    let output = Command::new(program).arg("--version").kill_on_drop(true).output();
    let output = timeout(VERSION_LIMIT, output).await.context(|| "workerd --version does not end".into())?;
    let output = output.context(|| format!("start {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let date = said.split_whitespace().find(|word| word.parse::<jiff::civil::Date>().is_ok());
    date.map(str::to_owned).context(|| format!("{} is no workerd: it has no dated version", program.display()))
}

/// The pointer, waited for where the surface waits.
///
/// Nobody is answered meanwhile. A knock at the internal listener is taken as a hint, since a supervisor that has just
/// published asks for a reload there; the connection is kept and answered when there is something to say.
async fn first_pointer(bucket: &dyn Bucket, surface: Surface, door: Door<'_>) -> Outcome<Pointer> {
    let mut said = false;
    loop {
        match read_pointer(bucket).await {
            Ok(Some(pointer)) => return Ok(pointer),
            Ok(None) if surface == Surface::V0_3 => {
                return Err(Failure::new(
                    "this fleet has no deployment: run `celld deploy` first, then start the node",
                ));
            }
            Ok(None) => {}
            Err(failure) if said => tracing::warn!(error = failure.chain(), "the deployment pointer cannot be read"),
            Err(failure) => return Err(Failure::because("read the deployment pointer", failure)),
        }
        if !said {
            said = true;
            tracing::info!(event = "awaiting_initial_deployment", "waiting for the first deployment");
        }
        let earliest = Instant::now() + WAITING_POLL_SHORTEST;
        tokio::select! {
            () = sleep_until(Instant::now() + WAITING_POLL) => {}
            knock = door.listener.accept() => {
                if let Ok((stream, _)) = knock {
                    // The oldest client has most likely given up.
                    if door.early.len() >= EARLY_MAX {
                        door.early.remove(0);
                    }
                    door.early.push(stream);
                }
                sleep_until(earliest).await;
            }
        }
    }
}

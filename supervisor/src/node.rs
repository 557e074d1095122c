//! Preparing a node: everything that can be refused is refused here, before the first process is started.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use scafo_core::address::is_private;
use scafo_core::config::Config;
use scafo_core::settings::{BucketAccess, Secret};
use scafo_core::token::PublicKey;

use crate::api::{Error, NODE_FILE, Options, Pids, Ready};
use crate::celld::{Fleet, Launch, Runtime, Version};
use crate::confine;
use crate::daemon::{Daemon, Handles, Name, Plan, reachable};
use crate::deploy::Runner;
use crate::manager::{Enclosure, Fence, Kept};
use crate::reload::{Planner, filter_log};
use crate::service::Service;
use crate::sockets::{self, Sockets, address};
use crate::spawn::{Spawner, proc};
use crate::state::{self, Dirs, EmbeddedBucket, Lock, Users, cannot_write, write_json};

/// A node that is about to run.
pub(crate) struct Node {
    pub(crate) dirs: Dirs,
    pub(crate) daemons: Vec<Daemon>,
    pub(crate) service: Service,
    pub(crate) supervisor_socket: std::os::unix::net::UnixListener,
    pub(crate) spawner: Spawner,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) deploys: Runner,
    pub(crate) facts: Facts,
    pub(crate) footprint: Footprint,
    pub(crate) planner: Planner,
    /// Where it stands.
    pub(crate) fence: Option<Fence>,
}

/// What the ready node says of itself, less the process ids.
pub(crate) struct Facts {
    node: scafo_core::NodeId,
    api: SocketAddr,
    api_listen: Vec<SocketAddr>,
    ingress: Option<SocketAddr>,
    bucket: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
    domains: Vec<scafo_core::domain::Host>,
    ingress_token_file: PathBuf,
    runtime: Option<Version>,
    not_enforced: Vec<String>,
    /// Where the bucket is, for people.
    pub(crate) bucket_shown: String,
}

/// What a running node leaves in the file system; removed when it is dropped. The locks go last.
pub(crate) struct Footprint {
    dirs: Dirs,
    /// The service manager keeps the sockets, so their files stay for the next supervisor.
    sockets_stay: bool,
    _locks: Vec<Lock>,
}

impl Drop for Footprint {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.dirs.state.join(NODE_FILE));
        if !self.sockets_stay {
            Sockets::remove_files(&self.dirs);
        }
    }
}

impl Footprint {
    /// Leaves what the next supervisor takes over.
    pub(crate) fn leave_sockets(&mut self) {
        self.sockets_stay = true;
    }
}

impl Node {
    pub(crate) async fn prepare(config: &Config, options: &Options) -> Result<Self, Error> {
        raise_file_limit();
        filter_log(config)?;
        let (dirs, footprint, users) = directories(config)?;
        let node = state::node_id(&dirs, config.node.id.as_ref())?;
        let key = state::node_key(&dirs)?;
        let (ingress_tokens, ingress_token_file) = state::ingress_token(&dirs, &config.ingress.tokens)?;
        let mut embedded = match config.bucket {
            Some(_) => None,
            None => Some(EmbeddedBucket::load_or_create(&dirs)?),
        };
        let kept = Kept::take();
        if kept.is_empty() {
            sockets::until_let_go(config, &dirs, embedded.as_ref()).await;
        }
        let sockets = Sockets::bind(config, &dirs, embedded.as_mut(), kept)?;
        let bucket = bucket_access(config, &sockets, embedded.as_ref())?;
        let executables = executables(options)?;
        let spawner =
            Spawner::start().map_err(|error| Error::new(format!("cannot start a thread: {error}"), "start again"))?;
        let (runtime, version) = runtime(config, options, &executables, &spawner).await?;
        let launch = Arc::new(Launch {
            users: users.clone(),
            enclosure: Enclosure::open(users.as_deref()).await,
            ..launch(config, options, &node, &dirs, &bucket, embedded.is_some())
        });
        let mut not_enforced = not_enforced(users.is_some(), &launch.enclosure);
        let ports = config.celld.port_range.clone();
        let fleet = Arc::new(Fleet::open(Arc::clone(&launch), Arc::clone(&runtime), spawner.clone(), ports)?);
        // What was taken over is fenced, too. The fence of the supervisor that started it stands until then.
        let fence = fence(users.as_ref(), config, &fleet, &spawner, options.dev.is_some()).await;
        let fence = fence.map_err(|open| not_enforced.push(open)).ok();
        let deploys = Runner::new(launch, runtime, spawner.clone(), config.deploy_jobs);
        let cannot_share = |error: std::io::Error| Error::new(format!("cannot share a socket: {error}"), "start again");
        let supervisor_socket = sockets.supervisor.try_clone().map_err(cannot_share)?;
        let planner = Planner {
            dirs: dirs.clone(),
            sockets,
            executables,
            environment: options.environment.clone(),
            node: node.clone(),
            public_key: PublicKey::from(&key),
            bucket,
            embedded,
            celld_version: version.as_ref().map(ToString::to_string),
            dev: options.dev.is_some(),
            users: users.clone(),
        };
        let plan = planner.plan(config, &ingress_tokens);
        let daemons = plan.daemons()?;
        let facts = facts(config, &plan, version, ingress_token_file, not_enforced)?;
        say_what_is_special(config, options, &ingress_tokens, &facts);
        Ok(Self {
            service: Service { node, key, fleet: Arc::clone(&fleet), deploys: deploys.clone() },
            supervisor_socket,
            daemons,
            dirs,
            spawner,
            fleet,
            deploys,
            facts,
            footprint,
            planner,
            fence,
        })
    }
}

/// The node's directories, nobody else's from here on, and whose they are.
fn directories(config: &Config) -> Result<(Dirs, Footprint, Option<Arc<Users>>), Error> {
    let dirs = Dirs::create(&config.state_dir, &config.runtime_dir)?;
    let mut locks = vec![Lock::take(&dirs.state)?];
    if dirs.runtime != dirs.state {
        locks.push(Lock::take(&dirs.runtime)?);
    }
    let footprint = Footprint { _locks: locks, dirs: dirs.clone(), sockets_stay: false };
    let users = Users::open(&dirs, config.celld.uid_range.as_ref())?.map(Arc::new);
    if let Some(users) = &users {
        // Of a node that was killed.
        proc::kill_all_of(users.jobs());
    }
    proc::kill_left_in(&[dirs.jobs(), dirs.state.join("apiserver/stage")]);
    dirs.sweep_jobs()?;
    dirs.hand_out(users.as_deref())?;
    // Of a node that was killed.
    state::remove(&dirs.state.join(NODE_FILE)).map_err(|error| cannot_write(&dirs.state.join(NODE_FILE), &error))?;
    Ok((dirs, footprint, users))
}

impl Facts {
    /// What the ready node says, with the process ids of this moment.
    pub(crate) fn ready(&self, dirs: &Dirs, daemons: &Handles) -> Ready {
        let pid = |name| daemons.pid(name);
        Ready {
            node: self.node.clone(),
            api: format!("http://{}", self.api),
            api_listen: self.api_listen.clone(),
            ingress: self.ingress.map(|address| format!("http://{address}")),
            bucket: self.bucket.map(|address| format!("http://{address}")),
            metrics: self.metrics.map(|address| format!("http://{address}/metrics")),
            platform_domains: self.domains.clone(),
            ingress_token_file: self.ingress_token_file.clone(),
            state_dir: dirs.state.clone(),
            admin_socket: dirs.socket(sockets::ADMIN),
            celld_version: self.runtime.as_ref().map(ToString::to_string),
            standin: self.runtime.as_ref().is_some_and(Version::is_standin),
            not_enforced: self.not_enforced.clone(),
            started: proc::start_time(std::process::id()),
            pids: Pids {
                supervisor: std::process::id(),
                registryd: pid(Name::Registryd).unwrap_or(0),
                routerd: pid(Name::Routerd).unwrap_or(0),
                apiserver: pid(Name::Apiserver).unwrap_or(0),
                bucketd: pid(Name::Bucketd),
                ingressd: pid(Name::Ingressd),
            },
        }
    }
}

/// What this node does not hold, on this machine and as this user.
fn not_enforced(users: bool, enclosure: &Enclosure) -> Vec<String> {
    let mut open = confine::gaps();
    if !users {
        open.push(if rustix::process::geteuid().is_root() {
            "a user id for each daemon and application: all run as root; set celld.uidRange".to_owned()
        } else {
            "a user id for each daemon and application: the node does not run as root".to_owned()
        });
    }
    open.extend(enclosure.gaps());
    open
}

/// Puts up the fence between applications; says when there is none. A shared machine without it is worth a loud word.
async fn fence(
    users: Option<&Arc<Users>>,
    config: &Config,
    fleet: &Fleet,
    spawner: &Spawner,
    dev: bool,
) -> Result<Fence, String> {
    let open = "closing the internal ports of applications to each other";
    let Some(users) = users else {
        if !dev {
            tracing::warn!(
                "applications reach each other's internal ports, which ask for no credentials, because all are one user: run as root \
                 with celld.uidRange, or run only applications here that trust each other"
            );
        }
        return Err(format!("{open}: they are not users of their own"));
    };
    let mut fence = Fence {
        users: Arc::clone(users),
        strays: fleet.strays(),
        address: config.advertised(),
        range: config.celld.port_range.clone(),
        beside_range: fleet.ports_beside_range(),
    };
    let Err(why) = fence.raise(spawner).await else { return Ok(fence) };
    tracing::error!(
        why,
        "applications reach each other's internal ports, which ask for no credentials: run only applications here that trust each other"
    );
    Err(format!("{open}: {why}"))
}

/// Writes the file by which other commands find the node.
pub(crate) fn write_node_file(dirs: &Dirs, ready: &Ready) -> Result<(), Error> {
    let path = dirs.state.join(NODE_FILE);
    write_json(&path, ready).map_err(|error| cannot_write(&path, &error))
}

fn bucket_access(config: &Config, sockets: &Sockets, embedded: Option<&EmbeddedBucket>) -> Result<BucketAccess, Error> {
    match (&config.bucket, embedded, &sockets.bucket) {
        (Some(bucket), _, _) => Ok(bucket.clone()),
        (None, Some(embedded), Some(listener)) => Ok(embedded.access(format!("http://{}", address(listener)?))),
        (None, _, _) => Err(Error::new("there is no bucket", "set bucket.name")),
    }
}

fn executables(options: &Options) -> Result<PathBuf, Error> {
    if let Some(dir) = &options.executables {
        return Ok(dir.clone());
    }
    if let Some(dir) = options.environment.get("SCAFO_LIBEXEC") {
        return Ok(PathBuf::from(dir));
    }
    let own = std::env::current_exe().ok().and_then(|own| own.parent().map(Path::to_owned));
    own.ok_or_else(|| {
        Error::new(
            "cannot find out where scafo is installed",
            "set SCAFO_LIBEXEC to the directory with its executables",
        )
    })
}

async fn runtime(
    config: &Config,
    options: &Options,
    executables: &Path,
    spawner: &Spawner,
) -> Result<(Arc<Runtime>, Option<Version>), Error> {
    let beside = options.dev.is_some().then_some(executables);
    let runtime = Runtime::find(&config.celld, &options.environment, beside, spawner.clone())?;
    let version = match runtime.current().await {
        Ok((_, version)) => Some(version),
        Err(problem) => {
            tracing::warn!(
                ?problem,
                "this node runs without a runtime: it serves no applications and takes no deploys"
            );
            None
        }
    };
    Ok((Arc::new(runtime), version))
}

fn launch(
    config: &Config,
    options: &Options,
    node: &scafo_core::NodeId,
    dirs: &Dirs,
    bucket: &BucketAccess,
    embedded: bool,
) -> Launch {
    Launch {
        node: node.clone(),
        dirs: dirs.clone(),
        bucket: bucket.clone(),
        embedded,
        address: config.advertised(),
        tools: options.dev.clone().unwrap_or_default(),
        path: options.environment.get("PATH").cloned(),
        extra: config.celld.env.clone(),
        users: None,
        enclosure: Enclosure::None,
    }
}

fn facts(
    config: &Config,
    plan: &Plan<'_>,
    runtime: Option<Version>,
    token: PathBuf,
    not_enforced: Vec<String>,
) -> Result<Facts, Error> {
    let bucket = plan.bucket;
    let place = bucket.endpoint.clone().unwrap_or_else(|| format!("AWS, region {}", bucket.region));
    Ok(Facts {
        node: plan.node.clone(),
        api: plan.api_local()?,
        api_listen: plan.sockets.api.iter().map(address).collect::<Result<_, _>>()?,
        ingress: plan.sockets.ingress.as_ref().map(address).transpose()?.map(reachable),
        bucket: plan.sockets.bucket.as_ref().map(address).transpose()?,
        metrics: plan.sockets.metrics.as_ref().map(address).transpose()?,
        domains: config.platform_domains.clone(),
        ingress_token_file: token,
        runtime,
        not_enforced,
        bucket_shown: format!("`{}` at {place}", bucket.name),
    })
}

/// Says at every start what an operator should not find out later.
fn say_what_is_special(config: &Config, options: &Options, tokens: &[Secret], facts: &Facts) {
    if config.bucket.is_none() && options.dev.is_none() {
        tracing::warn!("no bucket is configured: the embedded store is used, on this disk only and for this node only");
    }
    if facts.runtime.as_ref().is_some_and(Version::is_standin) {
        tracing::warn!("the runtime is celld-workerd, a stand-in for development: nothing is replicated");
    }
    if config.celld.uid_range.is_some() && !rustix::process::geteuid().is_root() {
        tracing::warn!("celld.uidRange is for nodes that run as root: everything runs as the user of this node");
    }
    for listen in facts.api_listen.iter().filter(|listen| !is_private(listen.ip())) {
        tracing::warn!(%listen, "the API listens on a public address without TLS: tokens and certificate keys travel in clear");
    }
    tracing::debug!(tokens = tokens.len(), "ingress tokens are admitted");
}

/// celld takes about eight descriptors for each resident cell and raises its soft limit to the hard one by itself; our daemons
/// inherit ours.
fn raise_file_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::debug!(%error, "cannot raise the limit of open files");
    }
}

//! Running a node: start, announce, watch, and end in order.

use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use scafo_core::config::Config;
use scafo_core::record::ProcessState;
use scafo_proto::figures::Exposed;
use scafo_proto::record::Recording;
use scafo_proto::supervisor::supervisor_server::SupervisorServer;
use scafo_proto::transport::{self, Peers};
use sd_notify::NotifyState;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::api::{EXIT_REFUSED, Ended, Error, NODE_FILE, OnReady, Options};
use crate::celld::{self, Fleet, Stop};
use crate::daemon::{Group, Handles, Name};
use crate::ending::Ending;
use crate::figures;
use crate::leave::Leave;
use crate::manager::{self, Fence, Parting};
use crate::node::{Facts, Node, write_node_file};
use crate::reload;
use crate::service::Service;
use crate::signals::Signals;
use crate::spawn::{Spawner, proc};
use crate::state::{Dirs, Users};

/// When a daemon that is not ready yet is named for the first time…
const FIRST_COMPLAINT: Duration = Duration::from_secs(5);
/// …and again.
const COMPLAINTS: Duration = Duration::from_secs(30);
/// Runs a node until it is asked to end (SIGTERM, SIGINT; SIGHUP too in development). The caller makes the runtime and the log.
///
/// Asked to, it leaves the routes and holds what other nodes serve too, lets the servers finish their requests, drains the
/// applications, and ends the rest. Asked a second time it kills what is still there. A service manager that restarts the node, or starts it again after a failure, finds the
/// applications serving: then they are left alone and taken over.
///
/// # Errors
/// What keeps the node from running, with the next step and the exit code to end with.
pub async fn run(config: Config, options: Options) -> Result<Ended, Error> {
    let mut signals = Signals::install(options.dev.is_some())?;
    let node = match prepared(&config, &options, &mut signals).await? {
        ControlFlow::Continue(node) => *node,
        ControlFlow::Break(ended) => return Ok(ended),
    };
    let Node {
        dirs,
        daemons,
        service,
        supervisor_socket,
        spawner,
        fleet,
        deploys,
        facts,
        planner,
        fence,
        mut footprint,
    } = node;
    let served = CancellationToken::new();
    let known = Arc::new(OnceLock::<Handles>::new());
    let figures = figures::collect(Arc::clone(&known), Arc::clone(&fleet));
    let users = planner.users.clone();
    let peers = callers(users.as_ref().map(|users| users.daemon(Name::Registryd).uid), Arc::clone(&known));
    let mut server = serve(service, figures, supervisor_socket, peers, served.clone())?;
    // Ends with this function.
    let mut talking = JoinSet::new();
    talking.spawn(feed_watchdog());
    if let Some(fence) = fence {
        talking.spawn(fence.follow(spawner.clone()));
    }
    // What it measures registryd asks it for.
    let _recording = Recording::begin("supervisor", planner.plan(&config, &[]).observe().as_ref(), String::new);
    let mut daemons = Group::start(daemons, &spawner);
    let handles = daemons.handles();
    let handles = known.get_or_init(|| handles).clone();
    if let Some(read) = options.reload {
        talking.spawn(reload::follow(signals.reloads(), read, planner, config.clone(), handles.clone()));
    }
    let outcome = {
        let announcing = announce(&dirs, &facts, &handles, &fleet, options.on_ready);
        tokio::select! {
            biased;
            () = signals.stop() => Ok(()),
            error = daemons.failed() => Err(error),
            error = broken(&mut server) => Err(error),
            error = announcing => Err(error),
        }
    };
    let parting = parting(outcome.as_ref().err()).await;
    manager::tell(&[NotifyState::Stopping, NotifyState::Status("ending")]);
    match &outcome {
        Ok(()) => tracing::info!(?parting, "stopping"),
        Err(error) => tracing::error!(%error, ?parting, "stopping"),
    }
    // The embedded store serves one node only, and one that was not ready yet is in no document of this run.
    let others = config.bucket.is_some() && outcome.is_ok() && dirs.state.join(NODE_FILE).exists();
    let leave = others.then(|| Leave::new(&dirs, handles.clone(), config.ingress.hold));
    let ending = Ending { daemons: &mut daemons, handles: &handles, fleet: &fleet, deploys: &deploys, parting, leave };
    let ended = ending.end(&mut signals).await;
    // No other settings from here on.
    talking.shutdown().await;
    if parting == Parting::Stop {
        clear(&fleet, users.as_deref(), &spawner).await;
    }
    served.cancel();
    while server.join_next().await.is_some() {}
    if parting == Parting::Leave {
        footprint.leave_sockets();
    }
    drop(footprint);
    outcome.map(|()| ended)
}

/// The node, or the end of a node that was asked to end before there was one.
async fn prepared(
    config: &Config,
    options: &Options,
    signals: &mut Signals,
) -> Result<ControlFlow<Ended, Box<Node>>, Error> {
    let preparing = Node::prepare(config, options);
    tokio::pin!(preparing);
    tokio::select! {
        biased;
        () = signals.stop() => end_early(preparing, config, signals).await.map(ControlFlow::Break),
        node = &mut preparing => Ok(ControlFlow::Continue(Box::new(node?))),
    }
}

/// Asked to end before there was a node. A stop ends what an earlier supervisor left serving, too, and only a node that was prepared
/// knows how; each step of that has a limit of its own. Asked again, it kills.
///
/// # Errors
/// What keeps the node from being prepared, where something was left: nobody has ended that then.
async fn end_early(
    mut preparing: Pin<&mut impl Future<Output = Result<Node, Error>>>,
    config: &Config,
    signals: &mut Signals,
) -> Result<Ended, Error> {
    if manager::asked_to_end().await == Parting::Leave {
        return Ok(Ended::Stopped);
    }
    let left = Dirs::of_earlier(&config.state_dir, &config.runtime_dir).filter(celld::is_anything_left);
    let Some(left) = left else { return Ok(Ended::Stopped) };
    tracing::info!("asked to end while starting: ending what an earlier run left");
    manager::tell(&[NotifyState::Stopping, NotifyState::Status("ending what an earlier run left")]);
    let node = tokio::select! {
        biased;
        // Looked at first: after one look it holds the directory's lock, or has failed, so that what is killed is no other node's.
        node = &mut preparing => node?,
        () = signals.stop() => {
            tracing::warn!("asked again: killing what is still there");
            celld::kill_what_is_left(&left).await;
            return Ok(Ended::Hurried);
        }
    };
    let Node { fleet, spawner, planner, footprint, .. } = node;
    let ended = tokio::select! {
        biased;
        () = fleet.stop(Stop::Drained) => Ended::Stopped,
        () = signals.stop() => {
            tracing::warn!("asked again: killing what is still there");
            fleet.stop(Stop::Killed).await;
            Ended::Hurried
        }
    };
    clear(&fleet, planner.users.as_deref(), &spawner).await;
    drop(footprint);
    Ok(ended)
}

/// Removes what bounded and fenced the applications. To be called once all of them have ended.
async fn clear(fleet: &Fleet, users: Option<&Users>, spawner: &Spawner) {
    fleet.clear().await;
    if let Some(users) = users {
        Fence::lower(users, spawner).await;
    }
}

/// What becomes of the applications now that the node ends.
async fn parting(error: Option<&Error>) -> Parting {
    match error {
        None => manager::asked_to_end().await,
        // It starts us again, unless we refuse.
        Some(error) if manager::is_there() && error.exit_code != EXIT_REFUSED => Parting::Leave,
        Some(_) => Parting::Stop,
    }
}

type Served = Result<(), tonic::transport::Error>;

/// Who may call the supervisor: registryd. Where all daemons are one user, they are told apart by their processes; whoever that user
/// starts by himself may do all that the node may.
fn callers(registryd: Option<u32>, daemons: Arc<OnceLock<Handles>>) -> Peers {
    match registryd {
        Some(uid) => Peers::users([uid]),
        None => Peers::same_user().but_not(move |pid| {
            let pid = u32::try_from(pid).unwrap_or(0);
            let registryd = daemons.get().and_then(|daemons| daemons.pid(Name::Registryd));
            proc::parent(pid) == Some(std::process::id()) && registryd != Some(pid)
        }),
    }
}

fn serve(
    service: Service,
    figures: impl Fn() -> std::future::Ready<String> + Send + Sync + 'static,
    socket: std::os::unix::net::UnixListener,
    peers: Peers,
    stopped: CancellationToken,
) -> Result<JoinSet<Served>, Error> {
    let listener = tokio::net::UnixListener::from_std(socket)
        .map_err(|error| Error::new(format!("cannot serve the supervisor's socket: {error}"), "start again"))?;
    let mut server = JoinSet::new();
    server.spawn(async move {
        let (health, health_service) = tonic_health::server::health_reporter();
        health.set_serving::<SupervisorServer<Service>>().await;
        let router = transport::server()
            .add_service(health_service)
            .add_service(SupervisorServer::new(service))
            .add_service(Exposed::server(figures));
        transport::serve(listener, peers, router, stopped.cancelled()).await
    });
    Ok(server)
}

async fn broken(server: &mut JoinSet<Served>) -> Error {
    let ended = server.join_next().await;
    tracing::error!(?ended, "the supervisor's own server ended");
    Error::new("the supervisor's own server ended", "start again and report this")
}

/// Waits until the node is ready and says so to everybody who wants to know. Resolves only when that fails.
async fn announce(dirs: &Dirs, facts: &Facts, daemons: &Handles, fleet: &Fleet, on_ready: Option<OnReady>) -> Error {
    let all = async {
        // The bucket may be away for long, and registryd with it; the node answers meanwhile, so the service has started.
        daemons.ready(|name| name != Name::Registryd).await;
        manager::tell(&[NotifyState::Ready, NotifyState::Status("waiting for the registry")]);
        daemons.ready(|_| true).await;
    };
    tokio::select! {
        () = all => {}
        () = complain(facts, daemons) => {}
    }
    let ready = facts.ready(dirs, daemons);
    if let Err(error) = write_node_file(dirs, &ready) {
        return error;
    }
    tracing::info!(node = %ready.node, api = %ready.api, "ready");
    if let Some(on_ready) = on_ready
        && let Err(error) = on_ready(ready).await
    {
        return error;
    }
    show_applications(fleet).await
}

/// Keeps the line that `systemctl status` shows up to date.
async fn show_applications(fleet: &Fleet) -> ! {
    let mut statuses = fleet.watch();
    let mut shown = String::new();
    loop {
        let line = {
            let statuses = statuses.borrow_and_update();
            let ready = statuses.values().filter(|status| status.state == ProcessState::Ready).count();
            format!("{ready} of {} applications ready", statuses.len())
        };
        if line != shown {
            manager::tell(&[NotifyState::Status(&line)]);
            shown = line;
        }
        if statuses.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

async fn complain(facts: &Facts, daemons: &Handles) {
    tokio::time::sleep(FIRST_COMPLAINT).await;
    loop {
        let waiting_for = daemons.lagging();
        if waiting_for.contains(&Name::Bucketd.executable()) {
            tracing::warn!(
                ?waiting_for,
                "not ready yet: scafo-bucketd, which keeps what this node stores, does not serve; its own lines say why; trying on"
            );
        } else if waiting_for.contains(&Name::Registryd.executable()) {
            let bucket = &facts.bucket_shown;
            tracing::warn!(
                ?waiting_for,
                "not ready yet: the bucket {bucket} has not answered; check that bucket.endpoint and bucket.name are right and that it \
                 runs; trying on"
            );
        } else {
            tracing::warn!(?waiting_for, "not ready yet");
        }
        tokio::time::sleep(COMPLAINTS).await;
    }
}

/// Shows systemd that the runtime still turns, twice in each interval that it allows; when it does not ask, never.
async fn feed_watchdog() {
    let Some(allowed) = sd_notify::watchdog_enabled() else { return };
    loop {
        tokio::time::sleep(allowed / 2).await;
        manager::tell(&[NotifyState::Watchdog]);
    }
}

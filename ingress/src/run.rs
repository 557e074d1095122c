//! The daemon from its start to its end.

use std::{
    future::{Future, ready},
    path::Path,
    sync::Arc,
    time::Duration,
};

use scafo_proto::boot::Boot;
use scafo_proto::figures::say;
use tokio::{
    net::{TcpListener, UnixListener},
    sync::watch,
    task::JoinSet,
    time::timeout,
};

use crate::{
    config::{Config, Source},
    decide::Routing,
    figures::{Figures, Places},
    front::Front,
    health::Askers,
    keeper::{Desk, Keeper},
    kept::{Kept, Unusable},
    poll::Poller,
    serve::{Capacity, Connections},
};

/// How long reading what was kept may take. One of a million hosts, the largest that may be kept, is read in two to three seconds; on
/// a disk that takes longer the nodes are asked instead.
const RESTORE_LIMIT: Duration = Duration::from_secs(5);

/// The sockets of the daemon.
#[derive(Debug)]
pub struct Sockets {
    /// Where requests come.
    pub http: TcpListener,
    /// Where it says what it counts, if anybody wants to know.
    pub figures: Option<UnixListener>,
}

impl From<TcpListener> for Sockets {
    fn from(http: TcpListener) -> Self {
        Self { http, figures: None }
    }
}

/// A task of the daemon ended although nobody asked it to. The process ends with it: an ingress that no longer polls
/// would route by a document that grows old in silence.
#[derive(Debug, thiserror::Error)]
#[error("a task of the ingress ended by itself; it is started again with the process")]
pub struct EndedByItself;

/// Serves on `listener` until `stop` resolves, then lets what is under way end within the grace of the configuration.
///
/// # Errors
///
/// [`EndedByItself`].
pub async fn run(
    config: Config,
    sockets: impl Into<Sockets>,
    stop: impl Future<Output = ()>,
) -> Result<(), EndedByItself> {
    let Sockets { http, figures: says } = sockets.into();
    let capacity = Capacity::claim();
    let (places, figures) = (Places::new(capacity), Figures::default());
    let (kept, held) = restored(config.dir.as_deref(), &config.sources).await;
    let (routing, seen) = watch::channel(Arc::new(held));
    let metrics = figures.metrics(places.clone(), seen.clone());
    let askers = Askers::of(&config.sources);
    let front = Front::new(seen, &places, config.first_wait, figures.clone()).telling(askers);
    let connections = Connections::new(front, Arc::clone(&places.connections));
    tracing::info!(?capacity, fleets = config.sources.len(), "serving");

    let mut tasks = JoinSet::new();
    for (fleet, source) in config.sources.into_iter().enumerate() {
        let desk = kept.as_ref().map(|kept| {
            let desk = Arc::<Desk>::default();
            tasks.spawn(Keeper::new(kept.clone(), source.fleet.clone(), Arc::clone(&desk)).run());
            desk
        });
        let poller = Poller::new(fleet, source, config.interval, routing.clone());
        tasks.spawn(poller.telling(desk).counting(figures.clone()).run());
    }
    if let Some(socket) = says {
        tasks.spawn(say(socket, move || ready(metrics.text())));
    }
    tasks.spawn(Arc::clone(&connections).accept(http));
    let outcome = tokio::select! {
        biased;
        () = stop => Ok(()),
        _ = tasks.join_next() => Err(EndedByItself),
    };

    // Nothing new comes in; routing stays as it is for what is under way.
    tasks.shutdown().await;
    let (cut, cut_tunnels) = tokio::join!(connections.end(config.grace), places.tunnels.close(config.grace));
    tracing::info!(cut, cut_tunnels, "ended");
    outcome
}

/// What was kept of each fleet, and where to keep what comes. Nothing of that is needed to serve, so nothing of it fails.
async fn restored(dir: Option<&Path>, sources: &[Source]) -> (Option<Kept>, Routing) {
    let silent = Routing::silent(sources.len());
    let Some(dir) = dir.map(Path::to_owned) else { return (None, silent) };
    let fleets: Vec<(String, String)> =
        sources.iter().map(|source| (source.fleet.clone(), source.to_string())).collect();
    let reading = tokio::task::spawn_blocking(move || restore(&dir, &fleets));
    match timeout(RESTORE_LIMIT, reading).await {
        Ok(Ok(restored)) => restored,
        Ok(Err(error)) => {
            tracing::error!(%error, "what was kept of the routing documents could not be read");
            (None, silent)
        }
        Err(_) => {
            tracing::warn!("reading what was kept of the routing documents takes too long: nothing is kept");
            (None, silent)
        }
    }
}

/// Reads what was kept of these fleets; beside each stands its node, for the log.
fn restore(dir: &Path, fleets: &[(String, String)]) -> (Option<Kept>, Routing) {
    let mut routing = Routing::silent(fleets.len());
    let boot = match Boot::current() {
        Ok(boot) => boot,
        Err(error) => {
            tracing::warn!(%error, "no routing documents are kept: the kernel does not say which boot this is");
            return (None, routing);
        }
    };
    let kept = match Kept::open(dir, boot) {
        Ok(kept) => kept,
        Err(error) => {
            tracing::warn!(dir = %dir.display(), %error, "no routing documents are kept: the directory cannot be used");
            return (None, routing);
        }
    };
    let now = Boot::uptime();
    for (number, (fleet, node)) in fleets.iter().enumerate() {
        match kept.read(fleet, now) {
            Ok(None) => {}
            Ok(Some((table, age))) => {
                tracing::info!(
                    node,
                    hosts = table.len(),
                    ?age,
                    "routing by what this node said last, until it answers"
                );
                routing = routing.with(number, Arc::new(table));
            }
            Err(unusable @ Unusable::OtherBoot) => {
                tracing::info!(node, %unusable, "the kept routing document is not used");
            }
            Err(unusable) => {
                let cause = std::error::Error::source(&unusable).map(ToString::to_string);
                tracing::warn!(node, %unusable, cause, "the kept routing document is not used");
            }
        }
    }
    kept.sweep(now);
    (Some(kept), routing)
}

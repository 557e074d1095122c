//! The daemon from its start to its end.

use std::{future::Future, sync::Arc};

use scafo_proxy::Tunnels;
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

use crate::{
    config::Config,
    decide::Routing,
    front::Front,
    poll::Poller,
    serve::{Capacity, Connections},
};

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
pub async fn run(config: Config, listener: TcpListener, stop: impl Future<Output = ()>) -> Result<(), EndedByItself> {
    let capacity = Capacity::claim();
    let tunnels = Tunnels::new(capacity.tunnels);
    let (routing, seen) = watch::channel(Arc::new(Routing::silent(config.sources.len())));
    let connections =
        Connections::new(Front::new(seen, tunnels.clone(), capacity.requests, config.first_wait), capacity.connections);
    tracing::info!(?capacity, fleets = config.sources.len(), "serving");

    let mut tasks = JoinSet::new();
    for (fleet, source) in config.sources.into_iter().enumerate() {
        tasks.spawn(Poller::new(fleet, source, config.interval, routing.clone()).run());
    }
    tasks.spawn(Arc::clone(&connections).accept(listener));
    let outcome = tokio::select! {
        biased;
        () = stop => Ok(()),
        _ = tasks.join_next() => Err(EndedByItself),
    };

    // Nothing new comes in; routing stays as it is for what is under way.
    tasks.shutdown().await;
    let (cut, cut_tunnels) = tokio::join!(connections.end(config.grace), tunnels.close(config.grace));
    tracing::info!(cut, cut_tunnels, "ended");
    outcome
}

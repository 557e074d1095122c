//! The process put together: one task that follows the registry, one server that answers from what it rendered.

use std::future::Future;
use std::sync::Arc;

use scafo_core::settings::{ObserveSettings, RouterdSettings};
use scafo_proto::figures::Exposed;
use scafo_proto::record::Recording;
use scafo_proto::router::router_server::RouterServer;
use scafo_proto::transport;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::figures::Figures;
use crate::service::RouterService;
use crate::watch::Follower;

/// Serves on `socket` until `shutdown`, and hands in what it measures and traces where `observe` says. Calls wait for nothing: before the first document they are answered `draining`.
///
/// # Errors
/// When the listener breaks.
pub async fn run(
    settings: RouterdSettings,
    observe: Option<&ObserveSettings>,
    socket: UnixListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let (publish, current) = watch::channel(None);
    let figures = Figures::default();
    let metrics = figures.metrics();
    let measured = metrics.clone();
    let recording = Recording::begin("routerd", observe, move || measured.text());
    let follower = Follower::new(&settings, publish, figures);
    // Owned by this function: it ends with the server. It never ends by itself.
    let mut following = AbortOnDropHandle::new(follow(follower));
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<RouterServer<RouterService>>().await;
    let router = transport::server()
        .add_service(health_service)
        .add_service(Exposed::server(move || std::future::ready(metrics.text())))
        .add_service(RouterServer::new(RouterService::new(settings.node, Arc::new(current))));
    let served = transport::serve(socket, transport::Peers::of_socket("grpc"), router, shutdown);
    let ended = tokio::select! {
        served = served => served,
        // A router that no longer follows would serve yesterday's routes for ever: end, and be started again.
        ended = &mut following => {
            tracing::error!(?ended, "the task that follows the registry ended");
            Ok(())
        }
    };
    if let Some(recording) = recording {
        recording.end().await;
    }
    ended
}

#[expect(clippy::disallowed_methods, reason = "the handle goes straight to its owner, who aborts it on drop")]
fn follow(follower: Follower) -> tokio::task::JoinHandle<()> {
    tokio::spawn(follower.run())
}

#[cfg(test)]
mod tests;

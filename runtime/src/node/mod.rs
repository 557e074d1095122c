//! A running node: boots, serves, takes new deployments, and leaves.
//!
//! Who may do what: the *conductor* alone starts, swaps and stops workerd. The *gate* alone hands a running one to requests.
//! The *keeper* alone writes the lease. The listeners only ask.

mod boot;
mod conductor;
mod crons;
mod engine;
mod gate;
mod generation;
mod internal;
mod misbehave;
mod peers;
mod public;
mod sample;
mod server;
mod state;
mod status;

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};

pub(crate) use self::peers::leases;
use self::{boot::Booted, gate::Gate, status::Status};
use crate::{
    bucket::Fleet,
    failure::{Context, Exit, Outcome},
    lease::{Fence, Held},
    output,
    settings::NodeSettings,
};

/// Runs a node until it is told to stop, fences itself, or cannot go on.
///
/// # Errors
/// Whatever keeps it from starting or from going on; exit code 1.
pub(crate) async fn run(settings: NodeSettings, fleet: Option<Fleet>, workerd: PathBuf) -> Outcome<Exit> {
    let settings = Arc::new(settings);
    let status = Arc::new(Status::new(settings.hooks.never_ready || settings.hooks.ready_delay.is_some()));
    let mut hooked = std::pin::pin!(misbehave::start(&settings.hooks));
    let booted = tokio::select! {
        biased;
        exit = &mut hooked => return Ok(exit),
        booted = boot::boot(&settings, fleet, workerd, &status) => booted?,
    };
    serve(&settings, &status, booted, hooked).await
}

/// From the first accepted connection to the exit.
async fn serve(
    settings: &NodeSettings,
    status: &Arc<Status>,
    booted: Booted,
    mut hooked: std::pin::Pin<&mut impl Future<Output = Exit>>,
) -> Outcome<Exit> {
    let Booted { lease, mut conductor, gate, stops, shutdown, listeners } = booted;
    let helpers = helpers(settings, status, gate.as_ref());
    let mut lease = std::pin::pin!(authority(lease, settings.hooks.drop_lease_after));
    listeners.announce();
    // Before this line a signal ends the process as it ends any other.
    let mut terminate = signal(SignalKind::terminate()).context(|| "handle SIGTERM".into())?;
    let mut interrupt = signal(SignalKind::interrupt()).context(|| "handle SIGINT".into())?;
    status.accept();
    let mut servers = listeners.serve();
    // Authority first: a node without a lease does nothing else any more.
    tokio::select! {
        biased;
        fence = &mut lease => return Ok(fenced(settings, fence)),
        ended = conductor.join_next() => return ended_early(ended),
        exit = &mut hooked => return Ok(exit),
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = shutdown.cancelled() => {}
    }
    tracing::info!("draining");
    status.drain();
    drop(helpers);
    let drain = async {
        if settings.hooks.ignore_sigterm {
            std::future::pending::<()>().await;
        }
        if let Some(gate) = gate {
            gate.drained(settings.shutdown_total).await;
        }
        servers.stop().await;
        stops.cancel();
        while conductor.join_next().await.is_some() {}
    };
    // A second signal changes nothing: its handler is installed and nobody listens any more.
    tokio::select! {
        biased;
        fence = &mut lease => return Ok(fenced(settings, fence)),
        exit = &mut hooked => return Ok(exit),
        () = drain => {}
        () = deadline(settings) => output::note(&format!(
            "celld shutdown drain reached its {}ms deadline: what still ran was cut off",
            settings.shutdown_total.as_millis()
        )),
    }
    tracing::info!("stopped");
    Ok(Exit::Clean)
}

/// When a drain is cut short; never for a hook that is there to hang.
async fn deadline(settings: &NodeSettings) {
    if settings.hooks.ignore_sigterm {
        return std::future::pending().await;
    }
    tokio::time::sleep(settings.shutdown_total).await;
}

/// Tasks that end with the serving: crons, and a readiness that comes late.
fn helpers(settings: &NodeSettings, status: &Arc<Status>, gate: Option<&Arc<Gate>>) -> JoinSet<()> {
    let mut helpers = JoinSet::new();
    if let Some(gate) = gate {
        helpers.spawn(crons::run(Arc::clone(gate), Arc::clone(status)));
    }
    if let (Some(delay), false) = (settings.hooks.ready_delay, settings.hooks.never_ready) {
        let status = Arc::clone(status);
        helpers.spawn(async move {
            tokio::time::sleep(delay).await;
            status.hold_back(false);
        });
    }
    helpers
}

/// Keeps the lease, if there is one, and ends when it is lost.
async fn authority(lease: Option<Held>, drop_after: Option<Duration>) -> Fence {
    let dropped = async {
        match drop_after {
            Some(after) => tokio::time::sleep(after).await,
            None => std::future::pending().await,
        }
    };
    let kept = async {
        match lease {
            Some(held) => held.keep().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        fence = kept => fence,
        () = dropped => Fence::Dropped,
    }
}

/// Says why on both streams: supervisors look for the word in either.
fn fenced(settings: &NodeSettings, fence: Fence) -> Exit {
    let line = format!("SELF-FENCE: node {} stops at once: {}", settings.node, fence.reason());
    tracing::error!(event = "node_lease_fence", "{line}");
    output::note(&line);
    Exit::Fenced
}

fn ended_early(ended: Option<Result<Outcome<()>, tokio::task::JoinError>>) -> Outcome<Exit> {
    let outcome = ended.context(|| "the conductor is gone".into())?;
    outcome.context(|| "the conductor broke".into())??;
    Ok(Exit::Refused)
}

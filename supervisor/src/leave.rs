//! The first step of a stop: this node leaves the routing documents, and what others can be sent to instead lives on until no
//! ingress can name it here any more. The registry decides what that is; here is only the waiting, which always ends.

use std::time::Duration;

use scafo_proto::registry::PrepareStopRequest;
use scafo_proto::registry::admin_client::AdminClient;
use scafo_proto::transport::{channel, within};
use sd_notify::NotifyState;
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::daemon::{Handles, Name};
use crate::manager;
use crate::sockets;
use crate::state::Dirs;

/// One call: the registry itself gives up after 8 s when the bucket does not take the record.
const CALL: Duration = Duration::from_secs(10);
/// How long a registry that is away is waited for: it was killed just now, or starts; a restart takes about a second.
const AWAY: Duration = Duration::from_secs(10);
/// The hold is asked for again this often, because a registry that starts anew takes the node back into the documents.
const AGAIN: Duration = Duration::from_secs(1);
/// What a hold may take beyond its own length: the registry was killed in the middle, and everything began anew once.
const SPARE: Duration = Duration::from_secs(20);
/// What the rest of a stop may take, for the service manager: the graces of the front (35 s), of celld (90 s), of our
/// daemons behind (15 s each) and some.
const REST: Duration = Duration::from_secs(175);

/// How a node leaves.
pub(crate) struct Leave {
    registry: AdminClient<Channel>,
    daemons: Handles,
    /// `ingress.hold`.
    hold: Duration,
}

impl Leave {
    pub(crate) fn new(dirs: &Dirs, daemons: Handles, hold: Duration) -> Self {
        Self { registry: AdminClient::new(channel(&dirs.socket(sockets::ADMIN))), daemons, hold }
    }

    /// Leaves, and waits until what runs here may end. May be dropped: then it ends sooner.
    pub(crate) async fn leave(&self) {
        let asked = Instant::now();
        // Whatever the registry says, a stop ends.
        let latest = asked + self.hold + SPARE;
        let mut told = false;
        let mut silent_since = asked;
        while Instant::now() < latest {
            let pause = match self.ask().await {
                Ok((left, _)) if left.is_zero() => return,
                Ok((left, applications)) => {
                    silent_since = Instant::now();
                    if !std::mem::replace(&mut told, true) {
                        tracing::info!(
                            ?left,
                            applications,
                            "out of the routes; what runs here serves on until no ingress names it; ask again to stop at once"
                        );
                        manager::tell(&[
                            NotifyState::Status("out of the routes, holding its applications"),
                            extend(left),
                        ]);
                    }
                    left.min(AGAIN)
                }
                Err(error) if silent_since.elapsed() >= AWAY => {
                    tracing::warn!(%error, "stopping without a hold: requests that are sent here meanwhile fail");
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "the registry does not say that this node has left, asking again");
                    AGAIN / 4
                }
            };
            tokio::time::sleep(pause).await;
        }
        tracing::warn!(waited = ?asked.elapsed(), "the hold took too long; stopping");
    }

    /// What is left of the hold, and how many applications are held.
    async fn ask(&self) -> Result<(Duration, u32), String> {
        // One that has never been ready has not said that anything serves here, and says nothing now.
        if self.daemons.lagging().contains(&Name::Registryd.executable()) {
            return Err("registryd is not ready".to_owned());
        }
        let mut registry = self.registry.clone();
        match tokio::time::timeout(CALL, registry.prepare_stop(within(CALL, PrepareStopRequest {}))).await {
            Ok(Ok(reply)) => {
                let reply = reply.into_inner();
                Ok((Duration::from_millis(reply.hold_ms), reply.applications))
            }
            Ok(Err(status)) => Err(status.message().to_owned()),
            Err(_) => Err("registryd does not answer".to_owned()),
        }
    }
}

/// Asks the service manager for the time that the rest of the stop may take.
fn extend(left: Duration) -> NotifyState<'static> {
    let allowed = (left + REST).as_micros();
    NotifyState::ExtendTimeoutUsec(u32::try_from(allowed).unwrap_or(u32::MAX))
}

//! Asking a celld how it is: its health route, and now and then what it serves.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::BoxFuture;
use scafo_core::DeploymentVersion;
use serde::Deserialize;

use super::life::Found;
use super::version::Version;
use crate::http::{Question, Unanswered};

/// Time between two probes of a process that has not been ready: what a deploy waits for.
pub(super) const STARTING: Duration = Duration::from_millis(50);
/// Time between two probes of one that has.
pub(super) const USUAL: Duration = Duration::from_secs(2);
/// So many probes after somebody knew of something new, each also asks what is served; otherwise every so-manieth does, since
/// the answer may be long and what is served changes without our doing only when celld's own poll (30 s) finds something.
const LOOKS: u32 = 5;
/// How long one probe waits for its answer.
const DEADLINE: Duration = Duration::from_secs(3);
const MAX_HEALTH_BYTES: usize = 64 * 1024;
/// `/state` names every resident cell: 8 MiB are about a hundred thousand.
const MAX_STATE_BYTES: usize = 8 * 1024 * 1024;

/// What a probe brought.
pub(super) struct Probed {
    pub(super) found: Found,
    pub(super) deployment: Option<DeploymentVersion>,
}

/// Which of the probes of one process ask what is served.
#[derive(Debug, Default)]
pub(super) struct Prober {
    /// Probes until the next one that does, and how many in a row are to.
    until_look: u32,
    looks: u32,
}

impl Prober {
    /// Somebody knows that there is something new to see.
    pub(super) const fn nudge(&mut self) {
        self.looks = LOOKS;
    }

    /// The next probe. `unknown`: what is served is not known at all.
    pub(super) fn next(
        &mut self,
        pause: Duration,
        public: SocketAddr,
        internal: SocketAddr,
        unknown: bool,
    ) -> BoxFuture<'static, Probed> {
        let look = self.looks > 0 || self.until_look == 0 || unknown;
        self.looks = self.looks.saturating_sub(1);
        self.until_look = if look { LOOKS } else { self.until_look - 1 };
        Box::pin(async move {
            tokio::time::sleep(pause).await;
            probe(public, internal, look).await
        })
    }
}

/// Asks the health route, and, when it is ready and it is time to `look`, what it serves.
async fn probe(public: SocketAddr, internal: SocketAddr, look: bool) -> Probed {
    let health = Question::get(public, Version::health_path(), MAX_HEALTH_BYTES, DEADLINE);
    let found = match health.ask().await {
        Ok(answer) if answer.status.is_success() => Found::Ready,
        Ok(_) => Found::NotReady,
        Err(Unanswered::Silent) => Found::Silent,
        Err(Unanswered::NotAsked) => Found::Unknown,
    };
    let deployment = match found {
        Found::Ready if look => Question::get(internal, "/state", MAX_STATE_BYTES, DEADLINE).ask().await.ok(),
        Found::Ready | Found::NotReady | Found::Silent | Found::Unknown => None,
    };
    Probed { found, deployment: deployment.and_then(|answer| served(&answer.body?)) }
}

/// The version in an answer of `/state`, read leniently: other fields come and go.
fn served(body: &[u8]) -> Option<DeploymentVersion> {
    #[derive(Deserialize)]
    struct State {
        deployment: Option<Deployment>,
    }
    #[derive(Deserialize)]
    struct Deployment {
        version: Option<String>,
    }
    let state: State = serde_json::from_slice(body).ok()?;
    state.deployment?.version?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_served_version_is_read_whatever_stands_around_it() {
        let body = br#"{"ownership":"s3","residents":[],"deployment":{"version":"0123456789abcdef","generation":3}}"#;
        assert_eq!(served(body).unwrap().as_str(), "0123456789abcdef");
        for other in [&b"{}"[..], b"[]", b"", br#"{"deployment":null}"#, br#"{"deployment":{"version":"../x"}}"#] {
            assert_eq!(served(other), None);
        }
    }
}

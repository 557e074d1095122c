//! One running deployment: a workerd, the connections to it, and who is using it.

use std::{sync::Arc, time::Duration};

use http_body_util::Limited;
use hyper::body::Incoming;
use scafo_proxy::{Forwarder, Limits, Tunnels};
use tokio_util::task::TaskTracker;

use crate::workerd::{Deployment, Workerd};

/// WebSockets that one process carries. Each takes two descriptors here and one in workerd, so that a limit of 65,536
/// descriptors leaves two thirds for the rest.
const TUNNELS_MAX: usize = 10_000;

/// How long workerd gets to end by itself.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// A request's body on its way to workerd.
pub(super) type Upload = Limited<Incoming>;

/// A workerd that serves one deployment.
pub(super) struct Generation {
    /// Rises with each deployment that is taken.
    pub number: u64,
    /// Rises with each start of workerd, so that a request can tell a restarted one from the one that failed it.
    pub incarnation: u64,
    pub deployment: Arc<Deployment>,
    pub workerd: Workerd,
    /// Connections of this workerd alone: its socket's path may be another one's later.
    pub forwarder: Forwarder<Upload>,
    pub tunnels: Tunnels,
    /// One token for each request under way.
    pub requests: TaskTracker,
}

impl Generation {
    pub(super) fn new(number: u64, incarnation: u64, deployment: Arc<Deployment>, workerd: Workerd) -> Self {
        Self {
            number,
            incarnation,
            deployment,
            workerd,
            forwarder: Forwarder::new(Limits::default()),
            tunnels: Tunnels::new(TUNNELS_MAX),
            requests: TaskTracker::new(),
        }
    }

    pub(super) fn version(&self) -> &str {
        &self.deployment.pointer.version
    }

    /// Waits for requests and WebSockets to end, at most `grace`, then cuts the WebSockets.
    pub(super) async fn finish(&self, grace: Duration) {
        self.requests.close();
        let requests = tokio::time::timeout(grace, self.requests.wait());
        let (ended, cut) = tokio::join!(requests, self.tunnels.close(grace));
        if ended.is_err() || cut > 0 {
            tracing::info!(generation = self.number, websockets = cut, requests = self.requests.len(), "cut off");
        }
    }

    /// Ends the process.
    pub(super) async fn stop(&self) {
        self.workerd.stop(STOP_GRACE).await;
    }
}

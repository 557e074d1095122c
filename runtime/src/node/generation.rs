//! One running deployment: a workerd, the connections to it, and who is using it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use scafo_proxy::{Forwarder, Limits, Outbound, Tunnels};
use tokio_util::task::TaskTracker;

use crate::{
    failure::{Context, Outcome},
    workerd::{Deployment, Workerd},
};

/// WebSockets that one process carries. Each takes two descriptors here and one in workerd, so that a limit of 65,536
/// descriptors leaves two thirds for the rest.
const TUNNELS_MAX: usize = 10_000;

/// How long workerd gets to end by itself.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// The time between two questions whether workerd is alive.
const PROBE_PAUSE: Duration = Duration::from_secs(2);

/// The node's own Worker answers with two fields.
const ANSWER_BYTES_MAX: usize = 64 << 10;

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
    /// For the node's own requests.
    side: Forwarder<Full<Bytes>>,
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
            side: Forwarder::new(Limits::default()),
            requests: TaskTracker::new(),
        }
    }

    pub(super) fn version(&self) -> &str {
        &self.deployment.pointer.version
    }

    /// Asks the node's own Worker in this workerd: whether it is alive (GET), or to run `scheduled` (POST). The caller
    /// sets the deadline.
    pub(super) async fn ask(&self, method: Method, body: String) -> Outcome<Bytes> {
        let request = Request::builder().method(method).uri("http://side/").body(Full::new(Bytes::from(body)));
        let outbound =
            Outbound::new(request.context(|| "make a request".into())?).context(|| "make a request".into())?;
        let sent = self.side.forward(&self.workerd.side, outbound, &Tunnels::new(0)).await;
        // A failure may carry the request back, which is not an error's business.
        let response = sent.map_err(|failure| failure.to_string()).context(|| "call workerd".into())?;
        let answer = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        Ok(answer.context(|| "read the answer of workerd".into())?.to_bytes())
    }

    /// Ends when workerd has not answered for `limit`.
    pub(super) async fn hung(&self, limit: Duration) {
        loop {
            tokio::time::sleep(PROBE_PAUSE).await;
            // A failure is an answer too: the process's end is noticed elsewhere.
            if tokio::time::timeout(limit, self.ask(Method::GET, String::new())).await.is_err() {
                return;
            }
        }
    }

    /// Waits for requests and WebSockets to end, at most so long each, then cuts the WebSockets.
    pub(super) async fn finish(&self, requests: Duration, websockets: Duration) {
        self.requests.close();
        let ended = tokio::time::timeout(requests, self.requests.wait());
        let (ended, cut) = tokio::join!(ended, self.tunnels.close(websockets));
        if ended.is_err() || cut > 0 {
            tracing::info!(generation = self.number, websockets = cut, requests = self.requests.len(), "cut off");
        }
    }

    /// Ends the process.
    pub(super) async fn stop(&self) {
        self.workerd.stop(STOP_GRACE).await;
    }
}

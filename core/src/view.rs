//! What the API answers that is no record: views of the state of a node and of a deploy.

use serde::{Deserialize, Serialize};

use crate::id::{ApplicationName, DeployId, DeploymentVersion, NodeId};
use crate::problem::ProblemCode;
use crate::record::{CoordinatorLease, DeployRecord, DeployState, Fence, NodeRecord, ProcessState, UnplacedReason};
use crate::time::Timestamp;

/// Answer of `GET /v1/state`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DaemonState {
    /// This node's record; `null` until it has registered.
    pub node: Option<NodeRecord>,
    /// The lease, whoever holds it.
    pub lease: Option<CoordinatorLease>,
    /// The effective result of the election.
    pub coordinator: Option<CoordinatorView>,
    /// What runs here.
    pub processes: Vec<ProcessStatus>,
    /// Where applications are placed. A missing one is pending.
    pub placements: Vec<PlacementView>,
    /// The last reconcile pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reconcile: Option<ReconcileStatus>,
    /// Records that could not be read, each with what is wrong with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<RecordFault>,
    /// Present when an operator's scope filtered the document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scoped: Option<bool>,
}

/// A record that was left out because it could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordFault {
    /// Its key.
    pub key: String,
    /// What is wrong.
    pub error: String,
}

/// Who coordinates, as the answering node sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoordinatorView {
    /// The holder of the lease.
    pub node: NodeId,
    /// Its fence.
    pub fence: Fence,
    /// Whether that is the node that answers.
    #[serde(rename = "self")]
    pub is_self: bool,
    /// What the coordinator could not place; only from the coordinator itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unplaced: Option<Vec<Unplaced>>,
}

/// An application with fewer nodes than it wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unplaced {
    /// Which.
    pub application: ApplicationName,
    /// How many it wants.
    pub wanted: u32,
    /// How many it has.
    pub placed: u32,
    /// Why.
    pub reason: UnplacedReason,
}

/// One application's nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementView {
    /// Which application.
    pub application: ApplicationName,
    /// Its nodes.
    pub nodes: Vec<NodeId>,
    /// The fence that placed it.
    pub fence: Fence,
    /// Whether this node is one of them.
    pub here: bool,
}

/// One runtime process of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessStatus {
    /// Which application.
    pub application: ApplicationName,
    /// Where it is in its life.
    pub state: ProcessState,
    /// Since when.
    pub since: Timestamp,
    /// While one runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Public port; kept for as long as the application exists.
    pub port: u16,
    /// The port beside it, for peers and the supervisor.
    pub internal_port: u16,
    /// What it really serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<DeploymentVersion>,
    /// Version of the runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub celld_version: Option<String>,
    /// How often it was started again.
    pub restarts: u32,
    /// When the running one was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// How the last one ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_exit: Option<LastExit>,
    /// Whether an earlier supervisor started it.
    pub adopted: bool,
}

/// How a process ended, or why it could not be started. Neither `code` nor `signal` is known of one that was adopted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastExit {
    /// Its exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// When.
    pub at: Timestamp,
    /// The end of what it printed, at most 1 KiB, when it ended before it was ready; the reason after [`LastExit::NOT_STARTED`] when
    /// there was no process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
}

impl LastExit {
    /// How [`LastExit::said`] begins where it tells why the process could not be started.
    pub const NOT_STARTED: &str = "could not be started: ";

    /// Why the process could not be started, if that is what happened.
    #[must_use]
    pub fn not_started(&self) -> Option<&str> {
        let said = self.said.as_deref().filter(|_| self.code.or(self.signal).is_none());
        said.and_then(|said| said.strip_prefix(Self::NOT_STARTED))
    }
}

/// The last pass of the reconcile loop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReconcileStatus {
    /// Its number since the daemon started.
    pub pass: u64,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Timestamp,
    /// How long it took.
    pub took_ms: u64,
    /// Whether it went through.
    pub ok: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Requests to the bucket since the daemon started.
    pub store_requests: u64,
}

/// Answer of `GET /v1/deploys/:id` and body of the 202.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeployStatus {
    /// Which deploy.
    pub id: DeployId,
    /// Of which application.
    pub application: ApplicationName,
    /// Where it is.
    pub state: DeployState,
    /// What it produced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<DeploymentVersion>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<ProblemCode>,
    /// Why it failed, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl From<&DeployRecord> for DeployStatus {
    fn from(record: &DeployRecord) -> Self {
        Self {
            id: record.id.clone(),
            application: record.application.clone(),
            state: record.state,
            deployment: record.deployment.clone(),
            code: record.code,
            detail: record.detail.clone(),
        }
    }
}

/// A node of the fleet, as another one sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its record.
    pub node: NodeRecord,
    /// Whether it shows signs of life.
    pub live: bool,
}

/// Answer of `GET /.well-known/scafo/health`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Always `true`: the route answers only when the API does.
    pub ok: bool,
    /// Version of scafo.
    pub version: String,
    /// The node that answers.
    pub node: NodeId,
}

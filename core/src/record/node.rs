//! The record of a node, and what it says of its processes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Fence, Rest, V1};
use crate::domain::Host;
use crate::id::{ApplicationName, DeployId, DeploymentVersion, NodeId};
use crate::time::Timestamp;
use crate::token::PublicKey;

/// One node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRecord {
    /// Record version.
    pub v: V1,
    /// Its id.
    pub id: NodeId,
    /// Its key.
    pub public_key: PublicKey,
    /// The host that peers and ingresses reach it at.
    pub address: String,
    /// `host:port` of its API.
    pub api: String,
    /// Labels for selectors.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Its platform domains, sorted.
    #[serde(default)]
    pub platform_domains: Vec<Host>,
    /// Whether it publishes the API on the bare platform domains.
    pub api_public: bool,
    /// Version of scafo.
    pub version: String,
    /// Version of the runtime; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub celld_version: Option<String>,
    /// When its registry daemon started.
    pub started_at: Timestamp,
    /// When it wrote this last.
    pub heartbeat_at: Timestamp,
    /// Unplaceable, still routed.
    #[serde(default)]
    pub leaving: bool,
    /// Dropped from every document.
    #[serde(default)]
    pub draining: bool,
    /// How far it is with leaving; absent unless somebody asked it to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// Its address was not configured, so that no other machine reaches it: it is a fleet of one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub local_only: bool,
    /// The highest fence that it has seen.
    #[serde(default)]
    pub fence: Fence,
    /// What it runs.
    #[serde(default)]
    pub serving: Vec<Serving>,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

/// A node's way out of the fleet: who asked for it, and how far the node is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// Random; a drain with another id begins anew.
    pub id: String,
    /// Who asked.
    pub by: String,
    /// When.
    pub asked_at: Timestamp,
    /// How long the node waits until others serve what it serves, in milliseconds, by its own clock.
    pub timeout_ms: u64,
    /// Whether it goes after that time even if nobody does.
    #[serde(default)]
    pub force: bool,
    /// How far it is.
    pub state: DrainState,
    /// What nobody else serves yet; at most a hundred are named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<ApplicationName>,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

/// How far a node is with leaving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrainState {
    /// Takes nothing new; others take over what it serves.
    Waiting,
    /// Nobody took over in time. It goes on serving and takes nothing new.
    Failed,
    /// Out of every document; its processes live on for the hold.
    Draining,
    /// Nothing runs there any more.
    Drained,
}

/// One application's process on a node, as the fleet sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Serving {
    /// Which application.
    pub application: ApplicationName,
    /// Its public port.
    pub port: u16,
    /// The version that the process serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<DeploymentVersion>,
    /// The deploy that `adoption` speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deploy: Option<DeployId>,
    /// How taking that deploy ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adoption: Option<Adoption>,
    /// What the runtime said of a failed one, at most 2 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// State of the process.
    pub state: ProcessState,
    /// Version of the runtime that it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub celld_version: Option<String>,
    /// Since when it is in this state.
    pub since: Timestamp,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

/// How a process took a deploy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Adoption {
    /// It serves it.
    Adopted,
    /// It could not build it and serves what it had.
    Failed,
}

/// State of a runtime process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessState {
    /// Spawned, not ready yet; also while it waits for its first deployment.
    Starting,
    /// Its health route answers 200.
    Ready,
    /// It was ready and its health fails.
    Unhealthy,
    /// Asked to end.
    Stopping,
    /// Ended, waits to be started again.
    BackingOff,
    /// Ended too often without having been ready; waits to be started again.
    CrashLooping,
}

//! Applications, their places, their hosts and whom they trust.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Fence, Rest, V1};
use crate::domain::Host;
use crate::id::{ApplicationName, DeployId, DeploymentVersion, NodeId};
use crate::time::Timestamp;

/// How many nodes shall serve an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replicas {
    /// That many, at least one.
    Count(std::num::NonZeroU32),
    /// Every eligible node.
    All,
}

impl Default for Replicas {
    fn default() -> Self {
        Self::Count(std::num::NonZeroU32::MIN)
    }
}

impl Serialize for Replicas {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Count(count) => serializer.serialize_u32(count.get()),
            Self::All => serializer.serialize_str("all"),
        }
    }
}

impl<'de> Deserialize<'de> for Replicas {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let count = value.as_u64().and_then(|count| u32::try_from(count).ok()).and_then(std::num::NonZeroU32::new);
        match (count, value.as_str()) {
            (Some(count), _) => Ok(Self::Count(count)),
            (None, Some("all")) => Ok(Self::All),
            _ => Err(serde::de::Error::custom("must be \"all\" or a whole number of at least 1")),
        }
    }
}

/// What scafo deploys, places and serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApplicationRecord {
    /// Record version.
    pub v: V1,
    /// Its name; never changes.
    pub name: ApplicationName,
    /// When the first deploy created it.
    pub created_at: Timestamp,
    /// How many nodes; absent means one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<Replicas>,
    /// Which nodes; absent means any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<BTreeMap<String, String>>,
    /// The fleet's own notes; never interpreted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// An admin has stopped it.
    #[serde(default)]
    pub blocked: bool,
    /// Since when it is retired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retired_at: Option<Timestamp>,
    /// Its deletion is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleting: Option<bool>,
    /// Claimed hosts.
    #[serde(default)]
    pub domains: Vec<Host>,
    /// Those of them claimed with their subdomains.
    #[serde(default)]
    pub wildcard_domains: Vec<Host>,
    /// What was published last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<Published>,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

impl ApplicationRecord {
    /// Whether processes of it may run and answer: it is not blocked, not retired and not being deleted.
    pub fn may_serve(&self) -> bool {
        !self.blocked && self.retired_at.is_none() && self.deleting != Some(true)
    }
}

/// A deployment and the deploy that published it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// The version that celld serves.
    pub version: DeploymentVersion,
    /// The deploy. Two deploys may have published one version.
    pub deploy: DeployId,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

/// Where an application runs. Its absence means that no process may start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacementRecord {
    /// Record version.
    pub v: V1,
    /// Which application.
    pub application: ApplicationName,
    /// Its nodes; may be empty.
    pub nodes: Vec<NodeId>,
    /// How many were wanted.
    pub wanted: u32,
    /// Why there are fewer than wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<UnplacedReason>,
    /// The coordinator's fence.
    pub fence: Fence,
    /// When it was written.
    pub updated_at: Timestamp,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

/// Why an application has fewer nodes than it wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnplacedReason {
    /// No node is live, or each is leaving.
    NoLiveNode,
    /// The selector matches too few of them.
    Selector,
    /// More replicas than nodes.
    Capacity,
}

/// Which workload tokens may deploy an application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustPolicy {
    /// Record version.
    pub v: V1,
    /// Which application; it need not exist yet.
    pub application: ApplicationName,
    /// Any of these admits.
    pub rules: Vec<TrustRule>,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

/// One issuer and the subjects of it that are trusted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustRule {
    /// `iss`, exactly.
    pub issuer: String,
    /// `aud`.
    #[serde(default = "default_audience")]
    pub audience: String,
    /// Patterns for `sub`; `*` stands for any run of characters.
    pub subjects: Vec<String>,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

fn default_audience() -> String {
    "scafo".to_owned()
}

/// First claim on a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DomainClaim {
    /// Record version.
    pub v: V1,
    /// The host.
    pub host: Host,
    /// Who holds it.
    pub application: ApplicationName,
    /// Whether the label below it is claimed too.
    pub wildcard: bool,
    /// Since when.
    pub claimed_at: Timestamp,
    /// By whom.
    pub by: String,
    /// Random, new with each write: a call withdraws only the very claim that it wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<String>,
    /// Given up; its removal follows. Counts as no claim.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub released: bool,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

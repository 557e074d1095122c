//! The records in the bucket. What is serialised here is a promise to every other version of scafo.
//!
//! Every record has `v: 1`; another version does not decode. Every record keeps the members that it does not know in
//! `rest`, so that a mutation by an older node loses nothing that a newer one wrote.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::domain::Host;
use crate::id::{ApplicationName, DeployId, DeploymentVersion, NodeId, OperatorId};
use crate::problem::ProblemCode;
use crate::scope::ApplicationScope;
use crate::time::Timestamp;
use crate::token::PublicKey;

/// Members of a record that this build does not know.
pub type Rest = Map<String, Value>;

/// The record version that this build reads and writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct V1;

impl TryFrom<u64> for V1 {
    type Error = String;

    fn try_from(version: u64) -> Result<Self, String> {
        if version == 1 { Ok(Self) } else { Err(format!("record version {version}, this build reads 1")) }
    }
}

impl From<V1> for u64 {
    fn from(_: V1) -> Self {
        1
    }
}

/// A fencing token. It only ever grows for the life of a bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(pub u64);

impl Fence {
    /// The next one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

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

/// Where code came from, as the caller of the deploy said. All four are there and none is empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "SourceFields")]
pub struct Source {
    /// For example `github`.
    pub provider: String,
    /// The repository.
    pub repo: String,
    /// The branch or tag.
    pub r#ref: String,
    /// The commit.
    pub commit: String,
}

#[derive(Deserialize)]
struct SourceFields {
    provider: String,
    repo: String,
    r#ref: String,
    commit: String,
}

impl TryFrom<SourceFields> for Source {
    type Error = &'static str;

    fn try_from(fields: SourceFields) -> Result<Self, &'static str> {
        let SourceFields { provider, repo, r#ref, commit } = fields;
        if [&provider, &repo, &r#ref, &commit].iter().any(|field| field.is_empty()) {
            return Err("`provider`, `repo`, `ref` and `commit` must not be empty");
        }
        Ok(Self { provider, repo, r#ref, commit })
    }
}

/// Who a bucket belongs to. Written once, by the first node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RegistryMeta {
    /// Record version.
    pub v: V1,
    /// When.
    pub created_at: Timestamp,
    /// By which node.
    pub created_by: NodeId,
    /// Random; local state belongs to one installation.
    pub installation: String,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

/// The fleet's deploy freeze. Its absence means that deploys are taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FreezeRecord {
    /// Record version.
    pub v: V1,
    /// Since when.
    pub frozen_at: Timestamp,
    /// By which operator.
    pub by: String,
    /// One line of at most 200 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

/// Says that the registry moved. A hint and never authority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeHint {
    /// Record version.
    pub v: V1,
    /// Random, new with each change.
    pub token: String,
    /// When.
    pub at: Timestamp,
    /// By whom.
    pub by: String,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

/// Who coordinates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CoordinatorLease {
    /// Record version.
    pub v: V1,
    /// The holder.
    pub node: NodeId,
    /// Its fencing token.
    pub fence: Fence,
    /// Lifetime without a renewal, in milliseconds.
    pub ttl_ms: u64,
    /// When the holder took it.
    pub acquired_at: Timestamp,
    /// When it renewed it last, by its own clock. No decision rests on it.
    pub renewed_at: Timestamp,
    /// Random, new with each write: equal bytes would have equal ETags.
    pub nonce: String,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

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

/// First claim on an id, kept for ever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdentityReservation {
    /// Record version.
    pub v: V1,
    /// The id.
    pub id: String,
    /// What it is.
    pub kind: IdentityKind,
    /// Whose it is.
    pub public_key: PublicKey,
    /// Since when.
    pub reserved_at: Timestamp,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

/// What an id stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdentityKind {
    /// A node.
    Node,
    /// An operator key.
    Operator,
}

/// An operator key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OperatorRecord {
    /// Record version.
    pub v: V1,
    /// Its id.
    pub id: OperatorId,
    /// The key.
    pub public_key: PublicKey,
    /// Its tier.
    pub role: Role,
    /// What it reaches.
    pub applications: ApplicationScope,
    /// The key that it replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<OperatorId>,
    /// When it was registered.
    pub created_at: Timestamp,
    /// By whom; absent for the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    /// A revocation is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoking: Option<Value>,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

/// The tier of an operator key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The whole installation.
    Admin,
    /// The applications of its scope.
    Operator,
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

/// The artifact that a deploy uploaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// SHA-256 of the bytes that were received, in lower-case hexadecimal.
    pub sha256: String,
    /// Their number.
    pub bytes: u64,
}

/// One thing that celld served or serves. Created, read and listed, never updated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentRecord {
    /// Record version.
    pub v: V1,
    /// Which application.
    pub application: ApplicationName,
    /// The version that celld gave.
    pub version: DeploymentVersion,
    /// The deploy that published it first.
    pub deploy: DeployId,
    /// The node that ran it.
    pub node: NodeId,
    /// Who deployed.
    pub by: String,
    /// Version of the runtime that published.
    pub celld_version: String,
    /// Where the code came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Verified OIDC provenance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oidc: Option<Value>,
    /// What was uploaded.
    pub artifact: Artifact,
    /// When.
    pub created_at: Timestamp,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

/// One deploy, from acceptance to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeployRecord {
    /// Record version.
    pub v: V1,
    /// Its id.
    pub id: DeployId,
    /// Which application.
    pub application: ApplicationName,
    /// Where it is.
    pub state: DeployState,
    /// The node that accepted it.
    pub node: NodeId,
    /// Who deployed.
    pub by: String,
    /// When it was accepted.
    pub accepted_at: Timestamp,
    /// When it moved last.
    pub moved_at: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// What it produced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<DeploymentVersion>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<ProblemCode>,
    /// Why it failed, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Where the code came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Verified OIDC provenance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oidc: Option<Value>,
    /// What was uploaded; absent until it has arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<Artifact>,
    /// Version of the runtime that publishes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub celld_version: Option<String>,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

/// Where a deploy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeployState {
    /// A node has taken it on.
    Accepted,
    /// Its artifact is there and is being published.
    Uploading,
    /// It is served. Final.
    Deployed,
    /// It is not. Final.
    Failed,
}

impl DeployState {
    /// Whether it never moves again.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Deployed | Self::Failed)
    }
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

/// Spells a record as the bucket holds it: JSON with an indent of two spaces.
pub fn to_bytes<T: Serialize>(record: &T) -> Vec<u8> {
    serde_json::to_vec_pretty(record).expect("records hold nothing that JSON cannot: keys are strings")
}

#[cfg(test)]
mod tests {
    use super::*;

    const APPLICATION: &str = r#"{
  "v": 1,
  "name": "shop",
  "createdAt": "2026-04-01T12:30:00.000Z",
  "replicas": 2,
  "blocked": true,
  "domains": ["shop.example"],
  "wildcardDomains": [],
  "deployment": { "version": "0123456789abcdef", "deploy": "shop.0123456789abcdef", "later": 1 },
  "added by a later version": { "kept": [1, 2] }
}"#;

    #[test]
    fn a_record_keeps_what_it_does_not_know() {
        let record: ApplicationRecord = serde_json::from_str(APPLICATION).unwrap();
        let before: Value = serde_json::from_str(APPLICATION).unwrap();
        let after: Value = serde_json::from_slice(&to_bytes(&record)).unwrap();
        assert_eq!(before, after);
    }

    #[test]
    fn a_record_of_another_version_does_not_decode() {
        let other = APPLICATION.replace("\"v\": 1", "\"v\": 2");
        let error = serde_json::from_str::<ApplicationRecord>(&other).unwrap_err().to_string();
        assert!(error.contains("record version 2"), "{error}");
    }

    #[test]
    fn records_are_indented_by_two_spaces() {
        let record: ApplicationRecord = serde_json::from_str(APPLICATION).unwrap();
        assert!(String::from_utf8(to_bytes(&record)).unwrap().starts_with("{\n  \"v\": 1,\n  \"name\": \"shop\""));
    }
}

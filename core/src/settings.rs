//! What the supervisor hands to each daemon when it starts it: one JSON document on standard input.
//!
//! Secrets travel in these documents and nowhere else: never in arguments, never in the environment of a daemon of ours.
//! Each daemon gets the least that it can work with, so the type says what a daemon may know.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::domain::Host;
use crate::id::NodeId;

/// A string that must not be printed. `Debug` and `Display` show that there is one, never what it is.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// The secret itself. Every call is a place to look at in a review.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// How to reach the bucket, credentials included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BucketAccess {
    /// The bucket's name.
    pub name: String,
    /// Put before every key, without leading or trailing slash; empty for none.
    #[serde(default)]
    pub prefix: String,
    /// Base URL of an S3-compatible store; absent means AWS.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// The region to sign for.
    pub region: String,
    /// Whether the bucket's name goes into the path and not into the host name.
    pub path_style: bool,
    /// Access key id.
    pub access_key_id: String,
    /// Secret access key.
    pub secret_access_key: Secret,
    /// Session token of temporary credentials.
    #[serde(default)]
    pub session_token: Option<Secret>,
}

/// What this node is to the fleet. Stands in its `NodeRecord`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeIdentity {
    /// The node's id.
    pub id: NodeId,
    /// Its Ed25519 public key.
    pub public_key: crate::token::PublicKey,
    /// The host that peers and ingresses reach it at, an IP literal.
    pub address: String,
    /// `host:port` of its API, as peers reach it.
    pub api: String,
    /// Operator-given labels, matched by node selectors.
    pub labels: BTreeMap<String, String>,
    /// Domains under which every application answers at `<name>.<domain>`, sorted.
    pub platform_domains: Vec<crate::domain::Host>,
    /// Whether the bare platform domains route to the API.
    pub api_public: bool,
    /// Version of the runtime that this node starts, as in `celld --version`; absent when there is none.
    pub celld_version: Option<String>,
}

/// Settings of `scafo-registryd`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RegistrydSettings {
    /// This node.
    pub node: NodeIdentity,
    /// The bucket.
    pub bucket: BucketAccess,
    /// Whether the bucket is this node's own `scafo-bucketd`; then a second node is refused.
    pub embedded: bool,
    /// Where the highest fence seen and the placements in force are kept.
    pub dir: PathBuf,
    /// The supervisor's socket.
    pub supervisor_socket: PathBuf,
    /// Where the other processes of the node that only count say what they count.
    #[serde(default)]
    pub figures_sockets: FiguresSockets,
    /// Lease lifetime of the coordinator, default 15 s.
    pub lease_ttl: Millis,
    /// How often the node record is written, default 30 s.
    pub heartbeat: Millis,
    /// How long a silent node counts as live, default 90 s.
    pub liveness: Millis,
    /// Time between two reconcile passes, default 5 s.
    pub reconcile_interval: Millis,
    /// How long a process that leaves lives on after it left the routing document, default 35 s.
    pub ingress_hold: Millis,
    /// How long one deploy may take from its upload to its end, default 10 min.
    pub deploy_task_timeout: Millis,
    /// How many `celld deploy` jobs run at once, default 2.
    pub deploy_jobs: u32,
    /// How many deploys the API takes on at once, default 16.
    #[serde(default = "RegistrydSettings::deploy_queue")]
    pub deploy_queue: u32,
    /// Whether `node.address` was left out, so that no other machine reaches this node; then a second node is refused.
    #[serde(default)]
    pub local_only: bool,
    /// How long a drain waits for replacements, default 10 min.
    #[serde(default = "RegistrydSettings::drain_timeout")]
    pub drain_timeout: Millis,
    /// How often observations are written to the bucket, default 60 s; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observe_flush: Option<Millis>,
    /// How long observations are kept, default 7 d.
    #[serde(default = "RegistrydSettings::observe_retention")]
    pub observe_retention: Millis,
    /// Bound of one value of certificate storage in bytes, default 16 MiB.
    #[serde(default = "RegistrydSettings::storage_value_bytes")]
    pub storage_value_bytes: u64,
}

/// The sockets of daemons that have no service for others but saying what they count; absent: this node has no such daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FiguresSockets {
    /// Of the embedded store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucketd: Option<PathBuf>,
    /// Of our own ingress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingressd: Option<PathBuf>,
}

impl RegistrydSettings {
    /// The default of `drain.timeout`.
    pub const fn drain_timeout() -> Millis {
        Millis(10 * 60 * 1000)
    }

    /// The default of `deploy.queue`.
    pub const fn deploy_queue() -> u32 {
        16
    }

    /// The default of `storage.valueBytes`.
    pub const fn storage_value_bytes() -> u64 {
        16 << 20
    }

    /// The default of `observe.retention`.
    pub const fn observe_retention() -> Millis {
        Millis(7 * 24 * 3600 * 1000)
    }
}

/// Settings of `scafo-routerd`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouterdSettings {
    /// This node, to answer `prefer=self`.
    pub node: NodeId,
    /// The registry's socket.
    pub registry_socket: PathBuf,
    /// Traefik entry points that rendered routers attach to, default `["web"]`.
    pub entry_points: Vec<String>,
    /// What rendered routers say of TLS; nothing by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TraefikTls>,
}

/// What Traefik is told of certificates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraefikTls {
    /// Name of a certificate resolver in Traefik's own configuration.
    pub cert_resolver: String,
    /// Bases of the wildcard certificates that it gets, sorted; a host right below one asks for that and not for its own.
    pub wildcard_bases: Vec<Host>,
}

/// Settings of `scafo-apiserver`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiserverSettings {
    /// This node.
    pub node: NodeId,
    /// Version of scafo, shown by the health route.
    pub version: String,
    /// The registry's socket.
    pub registry_socket: PathBuf,
    /// The router's socket.
    pub router_socket: PathBuf,
    /// Where artifacts are staged and token ids are remembered; the apiserver's alone.
    pub dir: PathBuf,
    /// Admitted ingress tokens, none of them empty.
    pub ingress_tokens: Vec<Secret>,
    /// Bound of a JSON request body in bytes, default 65,536.
    pub json_bytes: u64,
    /// Bound of one value of certificate storage in bytes, default 16 MiB.
    pub storage_value_bytes: u64,
    /// The deploy intake's bounds.
    pub deploy: DeployIntakeSettings,
    /// Whether this node has a runtime to run deploys with; without one intake answers `capability-missing`.
    pub deploy_runner: bool,
}

/// Bounds of the deploy intake.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeployIntakeSettings {
    /// Bound of one artifact in bytes, compressed and expanded each, default 512 MiB.
    pub artifact_bytes: u64,
    /// Bound of the entries in one archive, default 65,536.
    pub archive_entries: u64,
    /// Bound of everything staged at once in bytes, default 4 GiB.
    pub staged_bytes: u64,
    /// How many deploys may wait or run at once, default 16.
    pub queue: u32,
    /// How long receiving one artifact may take, default 10 min.
    pub receive_timeout: Millis,
    /// How long a staged deploy may wait to be unpacked, default 5 min.
    pub queue_timeout: Millis,
    /// How long one deploy may take after that, default 10 min.
    pub task_timeout: Millis,
}

/// Settings of `scafo-ingressd`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IngressdSettings {
    /// The nodes whose documents are pulled, one for each fleet.
    pub nodes: Vec<IngressSource>,
    /// Time between two polls, default 5 s.
    pub poll_interval: Millis,
    /// Where the last document of each fleet is kept, the ingress's alone; absent: nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
}

/// One fleet as an ingress sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IngressSource {
    /// Base URL of the node's API, for example `http://127.0.0.1:7400`.
    pub url: String,
    /// The ingress token.
    pub token: Secret,
    /// What a kept document is this fleet's by: another text means another fleet, or this one under settings by which an old document
    /// is not to be used. Absent: the URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<String>,
}

/// Settings of `scafo-bucketd`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BucketdSettings {
    /// Where the objects are.
    pub dir: PathBuf,
    /// The one bucket, created when it is not there.
    pub bucket: String,
    /// Access key id that requests must be signed with.
    pub access_key_id: String,
    /// The secret beside it.
    pub secret_access_key: Secret,
}

/// What every daemon is told beside its own settings, as the member `telemetry` of the same document.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TelemetrySettings {
    /// This node's id.
    #[serde(default)]
    pub node: String,
    /// URL of the OTLP receiver (gRPC) that spans are sent to; absent: none are recorded.
    #[serde(default)]
    pub otlp: Option<String>,
    /// Where observations are handed in; absent: they are not recorded, or by this daemon itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observe: Option<ObserveSettings>,
}

/// How a daemon hands in what it measured and traced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObserveSettings {
    /// The registry's socket.
    pub registry_socket: PathBuf,
    /// Time between two flushes, default 60 s.
    pub flush: Millis,
}

/// A duration that is whole milliseconds on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Millis {
    /// The duration.
    pub const fn get(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl From<Duration> for Millis {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }
}

//! The configuration of a node: a flag wins over the environment, that over the file, that over the default.
//!
//! Everything is passed in ([`Layers`]); what comes out ([`Config`]) is complete and checked, so that nobody behind it looks at
//! a default, a spelling or a bound again. An unknown key is refused by name, because a setting that was ignored is worse than a
//! node that does not start. No message repeats a value: it may be a secret.

mod keys;
mod layers;
mod reference;
mod resolve;
mod value;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

pub use keys::{ENVIRONMENT_PREFIX, KEYS, Key, Kind, nearest};
pub use layers::{Error, File, Layers, Origin};
pub use reference::reference;
pub use value::{parse_duration, parse_size};

use crate::domain::Host;
use crate::id::NodeId;
use crate::settings::{BucketAccess, DeployIntakeSettings, Secret, TraefikTls};

/// Where the configuration file is when no flag says otherwise. It may be missing there.
pub const DEFAULT_FILE: &str = "/etc/scafo/scafo.toml";

/// A node's configuration, complete and checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// `node.*`
    pub node: Node,
    /// `lease.ttl`
    pub lease_ttl: Duration,
    /// `platform.domains`, sorted, without duplicates.
    pub platform_domains: Vec<Host>,
    /// `stateDir`
    pub state_dir: PathBuf,
    /// `runtimeDir`
    pub runtime_dir: PathBuf,
    /// `bucket.*` with the credentials of the environment; `None` for the embedded store.
    pub bucket: Option<BucketAccess>,
    /// `api.*`
    pub api: Api,
    /// `ingress.*`
    pub ingress: Ingress,
    /// `ingressd.listen`; `None`: not started.
    pub ingressd_listen: Option<SocketAddr>,
    /// `celld.*`
    pub celld: Celld,
    /// `deploy.*` but `deploy.jobs`.
    pub deploy: DeployIntakeSettings,
    /// `deploy.jobs`
    pub deploy_jobs: u32,
    /// `storage.valueBytes`
    pub storage_value_bytes: u64,
    /// `log`; `None`: the default filter.
    pub log: Option<String>,
    /// `reconcile.interval`
    pub reconcile_interval: Duration,
    /// `drain.timeout`
    pub drain_timeout: Duration,
    /// `observe.*`
    pub observe: Observe,
}

/// `node.*`
#[derive(Debug, Clone)]
pub struct Node {
    /// `node.id`; `None`: from the state directory, or from the host name at first.
    pub id: Option<NodeId>,
    /// `node.address`; `None`: 127.0.0.1, and a second node is refused.
    pub address: Option<IpAddr>,
    /// `node.labels`
    pub labels: BTreeMap<String, String>,
    /// `node.heartbeat`
    pub heartbeat: Duration,
    /// `node.liveness`
    pub liveness: Duration,
}

/// `api.*`
#[derive(Debug, Clone)]
pub struct Api {
    /// `api.listen`, never empty. Port 0: any free one.
    pub listen: Vec<SocketAddr>,
    /// `api.public`
    pub public: bool,
    /// `api.jsonBytes`
    pub json_bytes: u64,
}

/// `ingress.*`
#[derive(Debug, Clone)]
pub struct Ingress {
    /// `ingress.token[]`, none of them empty; no item: mint one.
    pub tokens: Vec<Secret>,
    /// `ingress.entryPoints[]`, never empty.
    pub entry_points: Vec<String>,
    /// `ingress.tls.*`; without a resolver rendered routers say nothing of TLS.
    pub tls: Option<TraefikTls>,
    /// `ingress.hold`
    pub hold: Duration,
}

/// `celld.*`
#[derive(Debug, Clone)]
pub struct Celld {
    /// `celld.path`; `None`: `celld` on `PATH`.
    pub path: Option<PathBuf>,
    /// `celld.portRange`
    pub port_range: RangeInclusive<u16>,
    /// `celld.env`
    pub env: BTreeMap<String, String>,
    /// `celld.uidRange`
    pub uid_range: Option<RangeInclusive<u32>>,
}

/// `observe.*`
#[derive(Debug, Clone)]
pub struct Observe {
    /// `observe.flush`; `None`: nothing is recorded.
    pub flush: Option<Duration>,
    /// `observe.retention`
    pub retention: Duration,
    /// `observe.otlp`
    pub otlp: Option<String>,
    /// `observe.metricsListen`, a loopback address; `None`: not served.
    pub metrics_listen: Option<SocketAddr>,
}

impl Config {
    /// Merges the layers and checks the result.
    ///
    /// # Errors
    /// [`Error`], naming the key and where it stands.
    pub fn resolve(layers: &Layers<'_>) -> Result<Self, Error> {
        resolve::resolve(layers)
    }

    /// The address that peers reach this node at: `node.address`, else loopback.
    pub fn advertised(&self) -> IpAddr {
        self.node.address.unwrap_or(IpAddr::from([127, 0, 0, 1]))
    }
}

//! Several nodes on one bucket, on this machine.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::node::Place;
use crate::stores::Store;
use crate::{Node, process};

/// Applications that one node of a test may have at most, times two ports.
const PORTS_PER_NODE: u16 = 40;
/// Where ports for nodes of fleets begin: below what the system gives out by itself, and away from the default range.
const FIRST_PORT: u16 = 12_000;
/// How many such ports one test process may use before it begins anew.
const PORTS: u16 = 10_000;

/// Timings that make a fleet react within a second or two, for tests that wait for its reactions.
const QUICK: [(&str, &str); 5] = [
    ("SCAFO_LEASE_TTL", "3s"),
    ("SCAFO_NODE_HEARTBEAT", "1s"),
    ("SCAFO_NODE_LIVENESS", "4s"),
    ("SCAFO_RECONCILE_INTERVAL", "500ms"),
    ("SCAFO_INGRESS_HOLD", "5s"),
];

/// For fleets whose nodes all stay or say that they go: on a busy machine nobody takes one that is only slow for dead.
pub const PATIENT: [(&str, &str); 2] = [("SCAFO_NODE_LIVENESS", "120s"), ("SCAFO_LEASE_TTL", "15s")];

/// The same timings as they are when nobody says otherwise.
pub const DEFAULTS: [(&str, &str); 5] = [
    ("SCAFO_LEASE_TTL", "15s"),
    ("SCAFO_NODE_HEARTBEAT", "30s"),
    ("SCAFO_NODE_LIVENESS", "90s"),
    ("SCAFO_RECONCILE_INTERVAL", "5s"),
    ("SCAFO_INGRESS_HOLD", "35s"),
];

/// A bucket, and what nodes on it have in common.
pub struct Fleet {
    /// The bucket.
    pub store: Store,
    dir: TempDir,
    environment: Vec<(String, String)>,
    /// Port ranges by node.
    ports: Mutex<BTreeMap<String, String>>,
}

impl Fleet {
    /// A fleet without nodes on a bucket of its own. `environment` is set for every node and wins over the quick timings.
    pub async fn new(environment: &[(&str, &str)]) -> Self {
        let store = Store::bucketd().await;
        let dir = TempDir::new().expect("a temporary directory");
        let access = store.access();
        let secret = access.secret_access_key.expose();
        let own = [
            ("SCAFO_BUCKET_NAME", access.name.as_str()),
            ("SCAFO_BUCKET_ENDPOINT", access.endpoint.as_deref().unwrap_or_default()),
            ("SCAFO_BUCKET_REGION", access.region.as_str()),
            ("AWS_ACCESS_KEY_ID", access.access_key_id.as_str()),
            ("AWS_SECRET_ACCESS_KEY", secret),
            ("SCAFO_NODE_ADDRESS", "127.0.0.1"),
            // The development runtime asks for both: data of an application stays on its node.
            ("SCAFO_CELLD_ENV", "CELLD_STANDIN_ALLOW_BUCKET=1,CELLD_STANDIN_MULTI=1"),
        ];
        let all = QUICK.iter().chain(&own).chain(environment);
        let environment = all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self { store, dir, environment, ports: Mutex::default() }
    }

    /// Starts a node with this id, or starts it again on what it left.
    pub async fn node(&self, id: &str) -> Node {
        self.node_with(id, &[]).await
    }

    /// The same with more environment.
    pub async fn node_with(&self, id: &str, more: &[(&str, &str)]) -> Node {
        self.node_at(&Place::default(), id, more).await
    }

    /// The same somewhere else.
    ///
    /// # Panics
    /// When the node does not start.
    pub async fn node_at(&self, place: &Place, id: &str, more: &[(&str, &str)]) -> Node {
        self.try_node_at(place, id, more).await.unwrap_or_else(|error| panic!("{id} did not start: {error}"))
    }

    /// The same; a node that does not start gives what it printed.
    ///
    /// # Errors
    /// The text of standard error.
    pub async fn try_node_at(&self, place: &Place, id: &str, more: &[(&str, &str)]) -> Result<Node, String> {
        let ports = {
            let mut held = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
            held.entry(id.to_owned()).or_insert_with(next_ports).clone()
        };
        let mut environment: Vec<(&str, &str)> =
            self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        environment.push(("SCAFO_NODE_ID", id));
        environment.push(("SCAFO_CELLD_PORT_RANGE", &ports));
        environment.extend(more);
        Node::try_start_at(place, &self.dir.path().join(id), &environment).await
    }
}

impl Drop for Fleet {
    /// Whatever happened, nothing of a node that was left behind outlives the fleet.
    fn drop(&mut self) {
        for left in process::mentioning(self.dir.path().to_str().unwrap_or_default()) {
            if left.pid != std::process::id() {
                process::signal(left.pid, Signal::SIGKILL);
            }
        }
    }
}

/// Ports for one node. Test processes that run at the same time begin elsewhere; a port that is taken is passed over anyway.
fn next_ports() -> String {
    static USED: AtomicU16 = AtomicU16::new(0);
    let begin = u16::try_from(std::process::id() % u32::from(PORTS)).unwrap_or_default();
    let used = USED.fetch_add(PORTS_PER_NODE, Ordering::Relaxed);
    let first = FIRST_PORT + begin.wrapping_add(used) % (PORTS - PORTS_PER_NODE);
    format!("{first}-{}", first + PORTS_PER_NODE - 1)
}

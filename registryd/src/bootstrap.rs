//! Becoming a node of a fleet: the bucket is looked over, then this node registers.

use std::io;
use std::path::Path;

use scafo_core::record::{NodeRecord, Rest, V1};
use scafo_core::settings::RegistrydSettings;
use scafo_core::{Problem, ProblemCode, Timestamp};
use serde::{Deserialize, Serialize};

use crate::files;
use crate::node::in_force::{InForce, Kept};
use crate::registry::{Arrival, Registry};

/// Name of the file with the fence and the placements in force, in the settings' `dir`.
pub(crate) const STATE: &str = "state.json";
/// Name of the file that says that this node has registered once. Without it (`sail --rejoin` removes it) a node whose record
/// is gone joins anew; with it, it was removed and stays away.
const REGISTERED: &str = "registered.json";

/// A node that has registered.
#[derive(Debug)]
pub(crate) struct Registered {
    /// Its record.
    pub(crate) own: NodeRecord,
    pub(crate) in_force: InForce,
}

/// Why it has not.
#[derive(Debug)]
pub(crate) enum NotRegistered {
    /// The bucket does not answer now; trying again may help.
    Away(Problem),
    /// It never will like this.
    Refused(Problem),
    /// This machine's disk.
    Disk(io::Error),
}

impl From<Problem> for NotRegistered {
    fn from(problem: Problem) -> Self {
        match problem.code {
            ProblemCode::StoreUnavailable | ProblemCode::CasConflict | ProblemCode::Draining => Self::Away(problem),
            _ => Self::Refused(problem),
        }
    }
}

impl From<io::Error> for NotRegistered {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Marker {
    installation: String,
}

/// Registers. Safe to repeat.
///
/// # Errors
/// See [`NotRegistered`].
pub(crate) async fn register(
    registry: &Registry,
    settings: &RegistrydSettings,
    started: Timestamp,
) -> Result<Registered, NotRegistered> {
    prepare_dir(&settings.dir).await?;
    let id = &settings.node.id;
    let meta = registry.bootstrap(id).await?;
    let kept: Option<Kept> = files::read(&settings.dir.join(STATE)).await?;
    let in_force = InForce::resume(kept, &meta.installation);
    refuse_strangers(registry, settings).await?;
    // What it served a moment ago it still serves: only this daemon started anew, and nobody else is to drop it for that.
    let before = registry.node(id).await?.map(|stored| stored.record);
    let before = before.filter(|before| before.public_key == settings.node.public_key);
    let mut record = record(settings, started);
    record.fence = in_force.kept().fence;
    record.serving = before.map(|before| before.serving).unwrap_or_default();
    let marker_path = settings.dir.join(REGISTERED);
    let marker = Marker { installation: meta.installation };
    let known = files::read::<Marker>(&marker_path).await?.as_ref() == Some(&marker);
    let arrival = if known { Arrival::Returning } else { Arrival::Joining };
    let own = registry.register_node(&record, arrival).await?;
    if !known {
        files::write(&marker_path, &marker).await?;
    }
    Ok(Registered { own, in_force })
}

async fn prepare_dir(dir: &Path) -> io::Result<()> {
    tokio::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).await
}

/// Refuses a fleet of several nodes of which one cannot be reached: it would be placed on and routed to, and nobody could
/// follow. Nodes that come at the same moment may both pass; the next start of either says so.
async fn refuse_strangers(registry: &Registry, settings: &RegistrydSettings) -> Result<(), Problem> {
    let id = &settings.node.id;
    for other in registry.node_ids().await?.iter().filter(|other| *other != id) {
        if settings.embedded {
            return Err(refused(format!(
                "the embedded store belongs to node `{other}` and serves one node only; set `node.id` back to `{other}`, \
                 or configure a bucket (`bucket.name`) that both can reach"
            )));
        }
        if settings.local_only {
            return Err(refused(format!(
                "node `{other}` is in this fleet already, and `node.address` of this node is not set, so that the other \
                 cannot reach it; set `node.address` to an IP address of this machine"
            )));
        }
        let there = match registry.node(other).await {
            Ok(there) => there,
            // A record that cannot be read is its own node's trouble.
            Err(problem) if problem.code == ProblemCode::StoreNonconforming => None,
            Err(problem) => return Err(problem),
        };
        if there.is_some_and(|there| there.record.local_only) {
            return Err(refused(format!(
                "node `{other}` is in this fleet and has no `node.address`, so that this node cannot reach it; set it \
                 there and start that node again, or remove it (`scafo node remove {other}`), then start this one"
            )));
        }
    }
    Ok(())
}

fn refused(detail: String) -> Problem {
    Problem::new(ProblemCode::ReferenceHeld, detail)
}

/// What the settings say about this node, with no process yet.
pub(crate) fn record(settings: &RegistrydSettings, started: Timestamp) -> NodeRecord {
    let node = &settings.node;
    NodeRecord {
        v: V1,
        id: node.id.clone(),
        public_key: node.public_key.clone(),
        address: node.address.clone(),
        api: node.api.clone(),
        labels: node.labels.clone(),
        platform_domains: node.platform_domains.clone(),
        api_public: node.api_public,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        celld_version: node.celld_version.clone(),
        started_at: started,
        heartbeat_at: started,
        leaving: false,
        draining: false,
        drain: None,
        local_only: settings.local_only,
        fence: scafo_core::record::Fence::default(),
        serving: Vec::new(),
        rest: Rest::new(),
    }
}

//! What the registry daemon tells the router daemon after each reconcile pass: everything that routing is rendered from,
//! and nothing else.

use serde::{Deserialize, Serialize};

use crate::domain::Host;
use crate::id::{ApplicationName, NodeId};
use crate::record::{ApplicationRecord, NodeRecord};

/// The fleet at the end of one pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// Counts the changes since the daemon started; equal for equal content within one run of it.
    pub generation: u64,
    /// The node that tells.
    pub node: NodeId,
    /// Its platform domains.
    pub platform_domains: Vec<Host>,
    /// Whether it publishes the API.
    pub api_public: bool,
    /// Live nodes, those that drain included, sorted by id.
    pub nodes: Vec<NodeRecord>,
    /// Applications whose record could be read, sorted by name.
    pub applications: Vec<SnapshotApplication>,
}

/// What routing needs of an application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotApplication {
    /// Its name.
    pub name: ApplicationName,
    /// Whether it may answer at all: not blocked, not retired, not being deleted.
    pub routable: bool,
    /// Hosts that it claimed, sorted.
    pub domains: Vec<Host>,
    /// Those claimed with their subdomains, sorted.
    pub wildcard_domains: Vec<Host>,
}

impl From<&ApplicationRecord> for SnapshotApplication {
    fn from(record: &ApplicationRecord) -> Self {
        let mut domains = record.domains.clone();
        let mut wildcard_domains = record.wildcard_domains.clone();
        domains.sort();
        wildcard_domains.sort();
        Self { name: record.name.clone(), routable: record.may_serve(), domains, wildcard_domains }
    }
}

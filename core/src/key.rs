//! Where each record lives in the bucket: `_scafo/`, flat and one prefix per kind.

use crate::id::{ApplicationName, DeployId, DeploymentVersion};

/// The registry's root.
pub const ROOT: &str = "_scafo/";
/// `RegistryMeta`.
pub const META: &str = "_scafo/meta.json";
/// `FreezeRecord`.
pub const FREEZE: &str = "_scafo/freeze.json";
/// `ChangeHint`.
pub const CHANGES: &str = "_scafo/changes.json";
/// `CoordinatorLease`.
pub const LEASE: &str = "_scafo/coordinator/lease.json";

/// Listing prefixes, each with its trailing separator.
pub mod prefix {
    /// Node records.
    pub const NODES: &str = "_scafo/nodes/";
    /// Operator keys.
    pub const OPERATORS: &str = "_scafo/operators/";
    /// Identity reservations.
    pub const IDENTITIES: &str = "_scafo/identities/";
    /// Placements.
    pub const PLACEMENT: &str = "_scafo/placement/";
    /// Applications.
    pub const APPLICATIONS: &str = "_scafo/applications/";
    /// Deploys of every application.
    pub const DEPLOYS: &str = "_scafo/deploys/";
    /// Deployments of every application.
    pub const DEPLOYMENTS: &str = "_scafo/deployments/";
    /// Trust policies.
    pub const TRUST: &str = "_scafo/trust/";
    /// Domain claims.
    pub const DOMAINS: &str = "_scafo/domains/";
    /// Observations of every node.
    pub const OBSERVE: &str = "_scafo/observe/";
    /// Certificate storage.
    pub const TLS_OBJECTS: &str = "_scafo/tls/objects/";
    /// Certificate locks.
    pub const TLS_LOCKS: &str = "_scafo/tls/locks/";
}

/// A node record. The id must have been checked to be one path segment (a node or operator id).
pub fn node(id: &str) -> String {
    format!("{}{id}.json", prefix::NODES)
}

/// An operator key. See [`node`] for `id`.
pub fn operator(id: &str) -> String {
    format!("{}{id}.json", prefix::OPERATORS)
}

/// An identity reservation. See [`node`] for `id`.
pub fn identity(id: &str) -> String {
    format!("{}{id}.json", prefix::IDENTITIES)
}

/// An application.
pub fn application(name: &ApplicationName) -> String {
    format!("{}{name}.json", prefix::APPLICATIONS)
}

/// The placement of an application.
pub fn placement(name: &ApplicationName) -> String {
    format!("{}{name}.json", prefix::PLACEMENT)
}

/// The trust policy of an application.
pub fn trust(name: &ApplicationName) -> String {
    format!("{}{name}.json", prefix::TRUST)
}

/// The deployments of an application, with the trailing separator.
pub fn deployments(name: &ApplicationName) -> String {
    format!("{}{name}/", prefix::DEPLOYMENTS)
}

/// One deployment.
pub fn deployment(name: &ApplicationName, version: &DeploymentVersion) -> String {
    format!("{}{version}.json", deployments(name))
}

/// The deploys of an application, with the trailing separator.
pub fn deploys(name: &ApplicationName) -> String {
    format!("{}{name}/", prefix::DEPLOYS)
}

/// One deploy.
pub fn deploy(id: &DeployId) -> String {
    format!("{}{id}.json", deploys(&id.application()))
}

/// The domain claim on a host.
pub fn domain(host: &crate::domain::Host) -> String {
    format!("{}{host}.json", prefix::DOMAINS)
}

/// The prefix of an application's celld fleet, outside [`ROOT`], without trailing separator.
pub fn fleet(name: &ApplicationName) -> String {
    format!("fleets/{name}")
}

/// What celld serves next for this application: the fleet pointer.
pub fn fleet_pointer(name: &ApplicationName) -> String {
    format!("fleets/{name}/deploy/current.json")
}

/// The name that a key of a listing has: what stands between `prefix` and `.json`, when that is one segment.
pub fn name_of<'a>(key: &'a str, prefix: &str) -> Option<&'a str> {
    key.strip_prefix(prefix)?.strip_suffix(".json").filter(|name| !name.contains('/'))
}

/// Whether writes under this key move the change hint.
pub fn is_hinted(key: &str) -> bool {
    [prefix::APPLICATIONS, prefix::PLACEMENT, prefix::DOMAINS].iter().any(|hinted| key.starts_with(hinted))
}

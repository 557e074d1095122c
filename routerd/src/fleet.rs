//! What routing is rendered from: the part of a snapshot that can show in a document, in one order.
//!
//! It is read straight from the snapshot's bytes. Of a node record most members can never show (keys, labels, deploys), and a
//! fleet of a hundred thousand applications has enough of them that reading them would cost more than rendering.

use std::net::Ipv6Addr;
use std::sync::Arc;

use scafo_core::domain::Host;
use scafo_core::id::{ApplicationName, NodeId};
use scafo_core::record::ProcessState;
use scafo_core::snapshot::SnapshotApplication;
use serde::Deserialize;

/// A fleet. Equal ones have equal documents, and lists are sorted, so that it does not matter how they came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fleet {
    /// Which snapshot it came from; counts nothing that shows.
    pub(crate) generation: u64,
    /// Platform domains.
    pub(crate) domains: Vec<Host>,
    /// Whether the API stands on them.
    pub(crate) api_public: bool,
    /// Live nodes that do not drain, by id.
    pub(crate) nodes: Vec<Node>,
    /// By name.
    pub(crate) applications: Vec<SnapshotApplication>,
}

/// A node that may be chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    /// Where its processes are; `None` for an address that could not stand in a URL, whose processes are left out.
    pub(crate) machine: Option<Arc<Machine>>,
    /// Where its API is, if it publishes that.
    pub(crate) api: Option<Place>,
    pub(crate) id: NodeId,
    /// Ready processes by application, one for each, with their public ports.
    pub(crate) serving: Vec<(ApplicationName, u16)>,
}

/// A node under one of its addresses.
#[derive(Debug, PartialEq, Eq)]
pub struct Machine {
    /// The node.
    pub(crate) id: NodeId,
    /// A host as it stands in a URL.
    pub(crate) host: String,
}

/// One place that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub(crate) machine: Arc<Machine>,
    pub(crate) port: u16,
}

impl Place {
    /// Reads `host:port`; `None` for what could not stand in a URL.
    pub(crate) fn parse(id: &NodeId, authority: &str) -> Option<Self> {
        let (host, port) = authority.rsplit_once(':')?;
        let port: u16 = port.parse().ok().filter(|port| *port > 0)?;
        let machine = Arc::new(Machine { id: id.clone(), host: url_host(host)? });
        Some(Self { machine, port })
    }
}

impl Fleet {
    /// Reads the bytes of a [`scafo_core::snapshot::Snapshot`].
    ///
    /// # Errors
    /// When they are none.
    pub fn parse(snapshot: &[u8]) -> serde_json::Result<Self> {
        let said: Said = serde_json::from_slice(snapshot)?;
        let mut nodes: Vec<Node> = said.nodes.into_iter().filter(|node| !node.draining).map(Node::from).collect();
        nodes.sort_by(|a, b| a.id.cmp(&b.id));
        nodes.dedup_by(|later, earlier| later.id == earlier.id);
        let mut applications = said.applications;
        for application in &mut applications {
            in_order(&mut application.domains);
            in_order(&mut application.wildcard_domains);
        }
        applications.sort_by(|a, b| a.name.cmp(&b.name));
        applications.dedup_by(|later, earlier| later.name == earlier.name);
        let mut domains = said.platform_domains;
        in_order(&mut domains);
        Ok(Self { generation: said.generation, domains, api_public: said.api_public, nodes, applications })
    }

    /// The node.
    pub(crate) fn node(&self, id: &NodeId) -> Option<&Node> {
        self.nodes.get(self.nodes.binary_search_by(|node| node.id.cmp(id)).ok()?)
    }

    /// The application's record.
    pub(crate) fn application(&self, name: &str) -> Option<&SnapshotApplication> {
        let index = self.applications.binary_search_by(|application| application.name.as_str().cmp(name)).ok()?;
        self.applications.get(index)
    }

    /// Applications whose name starts so, by name.
    pub(crate) fn starting_with<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a SnapshotApplication> {
        let from = self.applications.partition_point(|application| application.name.as_str() < prefix);
        self.applications[from..].iter().take_while(move |application| application.name.as_str().starts_with(prefix))
    }
}

fn in_order(hosts: &mut Vec<Host>) {
    hosts.sort();
    hosts.dedup();
}

/// The members that count.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Said {
    generation: u64,
    platform_domains: Vec<Host>,
    api_public: bool,
    nodes: Vec<SaidNode>,
    applications: Vec<SnapshotApplication>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SaidNode {
    id: NodeId,
    address: String,
    api: String,
    api_public: bool,
    #[serde(default)]
    draining: bool,
    #[serde(default)]
    serving: Vec<SaidServing>,
}

#[derive(Deserialize)]
struct SaidServing {
    application: ApplicationName,
    port: u16,
    state: ProcessState,
}

impl From<SaidNode> for Node {
    fn from(said: SaidNode) -> Self {
        let machine = url_host(&said.address).map(|host| Arc::new(Machine { id: said.id.clone(), host }));
        if machine.is_none() {
            tracing::warn!(node = %said.id, "a node is left out of routing: its address is no host");
        }
        let api = said.api_public.then(|| Place::parse(&said.id, &said.api)).flatten();
        let ready = said.serving.into_iter().filter(|serving| serving.state == ProcessState::Ready);
        let mut serving: Vec<_> = ready.map(|serving| (serving.application, serving.port)).collect();
        serving.sort();
        // One process of an application on a node, whatever a record says.
        serving.dedup_by(|later, earlier| later.0 == earlier.0);
        Self { machine, api, id: said.id, serving }
    }
}

/// The host as it stands in a URL (RFC 3986 §3.2.2); `None` for text that is neither an address nor a name.
pub(crate) fn url_host(address: &str) -> Option<String> {
    let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
    if let Ok(v6) = bare.parse::<Ipv6Addr>() {
        return Some(format!("[{v6}]"));
    }
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    let shaped = address.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    (shaped && address.len() <= 253 && address.bytes().all(legal)).then(|| address.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_would_not_stand_in_a_url_is_none() {
        for (address, host) in [
            ("10.0.0.1", Some("10.0.0.1")),
            ("fd00::1", Some("[fd00::1]")),
            ("[fd00::1]", Some("[fd00::1]")),
            ("node-1.internal", Some("node-1.internal")),
            ("::::", None),
            ("", None),
            ("a b", None),
            ("a/../b", None),
            ("a`b", None),
            ("a:1", None),
        ] {
            assert_eq!(url_host(address).as_deref(), host, "{address}");
        }
        let node: NodeId = "a".parse().unwrap();
        for wrong in ["10.0.0.1", "10.0.0.1:0", "10.0.0.1:65536", ":80", "a b:80"] {
            assert_eq!(Place::parse(&node, wrong), None, "{wrong}");
        }
    }
}

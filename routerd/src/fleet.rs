//! What routing is rendered from: the part of a snapshot that can show in a document, in one order.
//!
//! It is read straight from the snapshot's bytes. Of a node record most members can never show (keys, labels, deploys), and a
//! fleet of a hundred thousand applications has enough of them that reading them would cost more than rendering.

use std::borrow::Cow;
use std::net::Ipv6Addr;
use std::sync::Arc;

use scafo_core::domain::Host;
use scafo_core::id::{NodeId, is_label};
use scafo_core::record::ProcessState;
use serde::Deserialize;
use serde::de::Error as _;

use crate::names::Names;

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
    /// Applications, each with whether it may answer.
    pub(crate) applications: Names<bool>,
    /// What those claim that claim something, by name.
    pub(crate) claims: Vec<Claims>,
}

/// The hosts of one application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claims {
    pub(crate) application: Box<str>,
    /// Hosts that it claims, sorted.
    pub(crate) domains: Vec<Host>,
    /// Those that it claims with their subdomains, sorted.
    pub(crate) wildcard_domains: Vec<Host>,
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
    pub(crate) serving: Names<u16>,
}

/// A node under one of its addresses. Both are made of letters, digits and `-.:[]`, so that they can stand in JSON and in URLs
/// as they are.
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
        let said: Said<'_> = serde_json::from_slice(snapshot)?;
        let nodes = said.nodes.into_iter().filter(|node| !node.draining).map(Node::read);
        let mut nodes: Vec<Node> = nodes.collect::<serde_json::Result<_>>()?;
        nodes.sort_by(|a, b| a.id.cmp(&b.id));
        nodes.dedup_by(|later, earlier| later.id == earlier.id);
        let mut applications = said.applications;
        applications.sort_by(|a, b| a.name.cmp(&b.name));
        applications.dedup_by(|later, earlier| later.name == earlier.name);
        let mut fleet = Self {
            generation: said.generation,
            domains: in_order(said.platform_domains),
            api_public: said.api_public,
            nodes,
            applications: Names::default(),
            claims: Vec::new(),
        };
        for said in applications {
            fleet.applications.push(checked(&said.name)?, said.routable);
            if !said.domains.is_empty() || !said.wildcard_domains.is_empty() {
                fleet.claims.push(Claims {
                    application: said.name.into(),
                    domains: in_order(said.domains),
                    wildcard_domains: in_order(said.wildcard_domains),
                });
            }
        }
        Ok(fleet)
    }

    /// The node.
    pub(crate) fn node(&self, id: &NodeId) -> Option<&Node> {
        self.nodes.get(self.nodes.binary_search_by(|node| node.id.cmp(id)).ok()?)
    }

    /// What the application claims, if it claims something.
    pub(crate) fn claims(&self, application: &str) -> Option<&Claims> {
        self.claims.get(self.claims.binary_search_by(|claims| (*claims.application).cmp(application)).ok()?)
    }
}

fn in_order(mut hosts: Vec<Host>) -> Vec<Host> {
    hosts.sort();
    hosts.dedup();
    hosts
}

/// The members that count. Names are borrowed from the snapshot: they go into one text for all of them.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Said<'a> {
    generation: u64,
    platform_domains: Vec<Host>,
    api_public: bool,
    #[serde(borrow)]
    nodes: Vec<SaidNode<'a>>,
    #[serde(borrow)]
    applications: Vec<SaidApplication<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SaidApplication<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    routable: bool,
    domains: Vec<Host>,
    wildcard_domains: Vec<Host>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SaidNode<'a> {
    id: NodeId,
    address: String,
    api: String,
    api_public: bool,
    #[serde(default)]
    draining: bool,
    #[serde(default, borrow)]
    serving: Vec<SaidServing<'a>>,
}

#[derive(Deserialize)]
struct SaidServing<'a> {
    #[serde(borrow)]
    application: Cow<'a, str>,
    port: u16,
    state: ProcessState,
}

impl Node {
    fn read(said: SaidNode<'_>) -> serde_json::Result<Self> {
        let machine = url_host(&said.address).map(|host| Arc::new(Machine { id: said.id.clone(), host }));
        if machine.is_none() {
            tracing::warn!(node = %said.id, "a node is left out of routing: its address is no host");
        }
        let api = said.api_public.then(|| Place::parse(&said.id, &said.api)).flatten();
        let mut ready: Vec<_> = said.serving.iter().filter(|serving| serving.state == ProcessState::Ready).collect();
        ready.sort_by(|a, b| (&a.application, a.port).cmp(&(&b.application, b.port)));
        // One process of an application on a node, whatever a record says.
        ready.dedup_by(|later, earlier| later.application == earlier.application);
        let mut serving = Names::default();
        for it in ready {
            serving.push(checked(&it.application)?, it.port);
        }
        Ok(Self { machine, api, id: said.id, serving })
    }
}

/// An application's name, which everything relies on that writes it into a document.
fn checked(name: &str) -> serde_json::Result<&str> {
    if is_label(name) { Ok(name) } else { Err(serde_json::Error::custom("an application's name is no label")) }
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

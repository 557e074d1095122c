//! Dynamic configuration for the http provider of Traefik v3.
//!
//! Only members that v3.0 knows are written, since Traefik refuses a whole document for one that it does not know. Names are
//! built with an underscore, which no host contains, so a host can never spell the name of another thing. Hosts reach the
//! rules as the types of the vocabulary let them through: letters, digits, hyphens and dots.

use std::collections::BTreeSet;

use scafo_core::id::NodeId;
use scafo_core::routing::DENIED;
use scafo_core::settings::TraefikTls;

use super::{json, ordered};
use crate::fleet::Place;
use crate::routes::{Block, Routing};

/// Without any router the document is an empty object: Traefik keeps what it has when a map is empty.
pub(super) const NOTHING: &str = "{}";
pub(super) const HEAD: &str = r#"{"http":{"routers":{"#;
const BEFORE_SERVICES: &[u8] = br#"},"services":{"#;
/// How often a router tries another server when one cannot be reached stands here as well.
const TAIL: &[u8] = br#"},"middlewares":{"scafo_retry":{"retry":{"attempts":3}}}}}"#;
const RETRY: &[u8] = br#","middlewares":["scafo_retry"]"#;
/// Traefik's own service that dials nothing: a router with it is active and answers 418.
const NOBODY: &str = "noop@internal";
const APPLICATION_HEALTH: &str = "/.well-known/celld/health";
const API_HEALTH: &str = "/.well-known/scafo/health";

/// The API's routers and the wildcards state a priority, because by default Traefik takes the length of a rule for one.
mod priority {
    pub(super) const DENY: &str = "3";
    pub(super) const API: &str = "2";
    pub(super) const WILDCARD: &str = "1";
}

/// What routers carry beside their rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// Their entry points, as JSON.
    entry_points: String,
    tls: Option<Tls>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Tls {
    /// The certificate resolver, as JSON.
    resolver: String,
    bases: BTreeSet<String>,
}

impl Attributes {
    /// From the node's settings.
    pub fn new(entry_points: &[String], tls: Option<&TraefikTls>) -> Self {
        let tls = tls.map(|tls| Tls {
            resolver: json::string(&tls.cert_resolver),
            bases: tls.wildcard_bases.iter().map(ToString::to_string).collect(),
        });
        Self { entry_points: serde_json::Value::from(entry_points).to_string(), tls }
    }

    /// The certificate that a host or wildcard key asks for: one that covers everything right below its base, where the
    /// operator has named that base, else its own. Nothing is ever asked for on the strength of a key alone: strangers choose
    /// the names below it.
    fn write_tls(&self, out: &mut Vec<u8>, host: &str) {
        let Some(tls) = &self.tls else { return };
        let (label, base) = host.split_once('.').unwrap_or(("", host));
        out.extend_from_slice(br#","tls":{"#);
        let covered = tls.bases.contains(base);
        if covered || label != "*" {
            out.extend_from_slice(br#""certResolver":"#);
            out.extend_from_slice(tls.resolver.as_bytes());
        }
        if covered {
            out.extend_from_slice(br#","domains":[{"main":"*."#);
            out.extend_from_slice(base.as_bytes());
            out.extend_from_slice(br#""}]"#);
        }
        out.push(b'}');
    }
}

/// One router.
struct Router<'a> {
    /// Its name is `scafo_`, this, and the host.
    kind: &'a str,
    host: &'a str,
    service: Option<&'a str>,
    priority: Option<&'a str>,
    /// For which names it has certificates.
    certified: &'a str,
}

impl Router<'_> {
    /// Writes the router; `rule` writes its rule.
    fn write(&self, out: &mut Vec<u8>, attributes: &Attributes, rule: impl FnOnce(&mut Vec<u8>)) {
        name(out, self.kind, self.host, "");
        out.extend_from_slice(br#":{"rule":""#);
        rule(out);
        out.extend_from_slice(br#"","service":"#);
        match self.service {
            Some(service) => out.extend_from_slice(json::string(service).as_bytes()),
            None => name(out, self.kind, self.host, ""),
        }
        out.extend_from_slice(br#","entryPoints":"#);
        out.extend_from_slice(attributes.entry_points.as_bytes());
        if self.service.is_none() {
            out.extend_from_slice(RETRY);
        }
        if let Some(priority) = self.priority {
            out.extend_from_slice(br#","priority":"#);
            out.extend_from_slice(priority.as_bytes());
        }
        attributes.write_tls(out, self.certified);
        out.push(b'}');
    }
}

/// The routers of a block; `first` is the first block of the document.
pub(super) fn routers(out: &mut Vec<u8>, block: &Block, first: bool, attributes: &Attributes) {
    for (index, entry) in block.entries.iter().enumerate() {
        comma(out, first && index == 0);
        let (kind, host) = kind(&entry.host);
        let priority = (kind == WILD).then_some(priority::WILDCARD);
        let router = Router { kind, host, service: None, priority, certified: &entry.host };
        router.write(out, attributes, |out| {
            if kind == WILD {
                out.extend_from_slice(br"HostRegexp(`^[^.]+\\.");
                out.extend_from_slice(host.replace('.', r"\\.").as_bytes());
                out.extend_from_slice(b"$`)");
            } else {
                host_rule(out, host);
            }
        });
    }
}

/// The services of a block; `first` is the first block of the document.
pub(super) fn services(out: &mut Vec<u8>, block: &Block, first: bool, preferred: Option<&NodeId>) {
    for (index, entry) in block.entries.iter().enumerate() {
        comma(out, first && index == 0);
        let (kind, host) = kind(&entry.host);
        service(out, (kind, host), &entry.served.upstreams, preferred, Some(host));
    }
}

/// The routers of the API, and the end of the routers.
pub(super) fn between(out: &mut Vec<u8>, routing: &Routing, attributes: &Attributes) {
    let hosts = routing.api.iter().flat_map(|api| &api.hosts);
    for (index, host) in hosts.enumerate() {
        comma(out, routing.blocks.is_empty() && index == 0);
        let router =
            |kind, service, priority| Router { kind, host, service, priority: Some(priority), certified: host };
        router("apideny_", Some(NOBODY), priority::DENY).write(out, attributes, |out| {
            host_rule(out, host);
            out.extend_from_slice(b" && (");
            denied(out, "", " || ");
            out.push(b')');
        });
        out.push(b',');
        router(API, None, priority::API).write(out, attributes, |out| {
            host_rule(out, host);
            out.extend_from_slice(b" && ");
            denied(out, "!", " && ");
        });
    }
    out.extend_from_slice(BEFORE_SERVICES);
}

/// The services of the API, and the end of the document.
pub(super) fn tail(out: &mut Vec<u8>, routing: &Routing, preferred: Option<&NodeId>) {
    if let Some(api) = &routing.api {
        for (index, host) in api.hosts.iter().enumerate() {
            comma(out, routing.blocks.is_empty() && index == 0);
            service(out, (API, host), &api.upstreams, preferred, None);
        }
    }
    out.extend_from_slice(TAIL);
}

const WILD: &str = "wild_";
const API: &str = "api_";
/// What stands behind the name of a service that has two halves.
pub(super) const LOCAL: &str = "_local";
pub(super) const PEERS: &str = "_peers";

/// What a host's things are named by.
fn kind(host: &str) -> (&'static str, &str) {
    host.strip_prefix("*.").map_or(("", host), |base| (WILD, base))
}

/// What the router and the service of a host or wildcard key are called, or a half of the service.
pub(super) fn called(host: &str, half: &str) -> String {
    let (kind, host) = kind(host);
    format!("scafo_{kind}{host}{half}")
}

fn name(out: &mut Vec<u8>, kind: &str, host: &str, half: &str) {
    out.extend_from_slice(b"\"scafo_");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(host.as_bytes());
    out.extend_from_slice(half.as_bytes());
    out.push(b'"');
}

fn comma(out: &mut Vec<u8>, first: bool) {
    if !first {
        out.push(b',');
    }
}

fn host_rule(out: &mut Vec<u8>, host: &str) {
    out.extend_from_slice(b"Host(`");
    out.extend_from_slice(host.as_bytes());
    out.extend_from_slice(b"`)");
}

/// Each denied prefix as itself and as everything below it.
fn denied(out: &mut Vec<u8>, not: &str, between: &str) {
    let rules = DENIED.iter().map(|prefix| format!("{not}Path(`{prefix}`){between}{not}PathPrefix(`{prefix}/`)"));
    out.extend_from_slice(rules.collect::<Vec<_>>().join(between).as_bytes());
}

/// A balancer over all, or, where the preferred node and another one answer, the other ones behind the preferred.
fn service(
    out: &mut Vec<u8>,
    (kind, host): (&str, &str),
    upstreams: &[Place],
    preferred: Option<&NodeId>,
    hostname: Option<&str>,
) {
    let is_local = |place: &&Place| Some(&place.machine.id) == preferred;
    let local = upstreams.iter().filter(is_local).count();
    name(out, kind, host, "");
    if local == 0 || local == upstreams.len() {
        balancer(out, ordered(upstreams, preferred), hostname);
        return;
    }
    out.extend_from_slice(br#":{"failover":{"service":"#);
    name(out, kind, host, LOCAL);
    out.extend_from_slice(br#","fallback":"#);
    name(out, kind, host, PEERS);
    out.extend_from_slice(b"}},");
    name(out, kind, host, LOCAL);
    balancer(out, upstreams.iter().filter(is_local), hostname);
    out.push(b',');
    name(out, kind, host, PEERS);
    balancer(out, upstreams.iter().filter(|place| !is_local(place)), hostname);
}

fn balancer<'a>(out: &mut Vec<u8>, places: impl Iterator<Item = &'a Place>, hostname: Option<&str>) {
    out.extend_from_slice(br#":{"loadBalancer":{"servers":["#);
    for (index, place) in places.enumerate() {
        let open: &[u8] = if index == 0 { br#"{"url":"http://"# } else { br#",{"url":"http://"# };
        out.extend_from_slice(open);
        out.extend_from_slice(place.machine.host.as_bytes());
        out.push(b':');
        json::port(out, place.port);
        out.extend_from_slice(br#""}"#);
    }
    out.extend_from_slice(br#"],"healthCheck":{"path":""#);
    let path = if hostname.is_some() { APPLICATION_HEALTH } else { API_HEALTH };
    out.extend_from_slice(path.as_bytes());
    out.extend_from_slice(br#"","interval":"10s","timeout":"3s""#);
    if let Some(hostname) = hostname {
        out.extend_from_slice(br#","hostname":""#);
        out.extend_from_slice(hostname.as_bytes());
        out.push(b'"');
    }
    out.extend_from_slice(b"}}}");
}

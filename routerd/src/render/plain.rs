//! The rules of the generic document over whole lists, class by class as they are told, slowly: what the tests compare with.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use scafo_core::domain::{Host, platform_host};
use scafo_core::id::{ApplicationName, NodeId, is_label};
use scafo_core::record::{NodeRecord, ProcessState, V1};
use scafo_core::routing::{ApiRoute, DENIED, FleetRouting, Route, Upstream, prefer};
use scafo_core::snapshot::{Snapshot, SnapshotApplication};

use crate::fleet::url_host;

/// Renders what the fleet answers on.
pub(super) fn render(snapshot: &Snapshot) -> FleetRouting {
    let routes = Routes::collect(snapshot);
    let api = api(snapshot, &routes);
    let routes = routes.0.into_iter().map(|(host, target)| target.route(host)).collect();
    FleetRouting { v: V1, routes, api }
}

/// The same with the upstreams of `node` first on every route and on the API.
pub(super) fn preferring(routing: &FleetRouting, node: &NodeId) -> FleetRouting {
    let mut ordered = routing.clone();
    for route in &mut ordered.routes {
        route.upstreams = prefer(&route.upstreams, node.as_str());
    }
    if let Some(api) = &mut ordered.api {
        api.upstreams = prefer(&api.upstreams, node.as_str());
    }
    ordered
}

/// The document's bytes.
pub(super) fn to_json(routing: &FleetRouting) -> Vec<u8> {
    serde_json::to_vec(routing).expect("strings, a number and lists always serialise")
}

/// Who answers for an application, by its name as text, so that names with a common prefix can be looked up.
type Upstreams<'a> = BTreeMap<&'a str, Served<'a>>;

struct Served<'a> {
    application: &'a SnapshotApplication,
    /// By node id.
    upstreams: Vec<Upstream>,
}

struct Target<'a> {
    application: &'a ApplicationName,
    upstreams: Vec<Upstream>,
}

impl Target<'_> {
    fn route(self, host: String) -> Route {
        Route { host, application: self.application.clone(), upstreams: self.upstreams }
    }
}

/// Hosts with who answers; the first entry of a host stays.
struct Routes<'a>(BTreeMap<String, Target<'a>>);

impl<'a> Routes<'a> {
    /// The classes in their order: platform hosts, claimed hosts, environments below a covering claim, wildcard keys.
    fn collect(snapshot: &'a Snapshot) -> Self {
        let applications: BTreeMap<_, _> = snapshot.applications.iter().map(|a| (&a.name, a)).collect();
        let upstreams = upstreams(snapshot, &applications);
        let domains: BTreeSet<&Host> = snapshot.platform_domains.iter().collect();
        let mut routes = Self(BTreeMap::new());
        for served in upstreams.values() {
            for domain in &domains {
                routes.add(platform_host(&served.application.name, domain), served);
            }
        }
        for served in upstreams.values() {
            for host in sorted(&served.application.domains) {
                routes.add(host.to_string(), served);
            }
        }
        let covering: Vec<_> = applications
            .values()
            .flat_map(|holder| sorted(&holder.wildcard_domains).map(move |base| (&holder.name, base)))
            // Every host under a platform domain comes from an application's name.
            .filter(|(_, base)| !domains.iter().any(|domain| base.is_under(domain.as_str())))
            .collect();
        for (holder, base) in &covering {
            for (environment, served) in environments(&upstreams, holder) {
                let host = format!("{environment}.{base}");
                if !domains.iter().any(|domain| domain.as_str() == host) {
                    routes.add(host, served);
                }
            }
        }
        for (holder, base) in &covering {
            if let Some(served) = upstreams.get(holder.as_str()) {
                routes.add(format!("*.{base}"), served);
            }
        }
        routes
    }

    fn add(&mut self, host: String, served: &Served<'a>) {
        let target = || Target { application: &served.application.name, upstreams: served.upstreams.clone() };
        self.0.entry(host).or_insert_with(target);
    }
}

fn sorted(hosts: &[Host]) -> impl Iterator<Item = &Host> {
    hosts.iter().collect::<BTreeSet<_>>().into_iter()
}

/// Applications named `<holder>-<environment>` that are served, with the environment.
fn environments<'a, 'b>(
    upstreams: &'b Upstreams<'a>,
    holder: &ApplicationName,
) -> impl Iterator<Item = (&'a str, &'b Served<'a>)> + use<'a, 'b> {
    let prefix = format!("{holder}-");
    // Sorted by name, so those with the prefix stand together.
    let from = upstreams.range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded));
    from.map_while(move |(name, served)| Some((name.strip_prefix(prefix.as_str())?, served)))
        // `a--b` is no environment of `a`: `-b` is no label of a host.
        .filter(|(environment, _)| is_label(environment))
}

fn upstreams<'a>(
    snapshot: &'a Snapshot,
    applications: &BTreeMap<&'a ApplicationName, &'a SnapshotApplication>,
) -> Upstreams<'a> {
    let mut upstreams: Upstreams<'a> = BTreeMap::new();
    for node in nodes(snapshot) {
        let Some(host) = url_host(&node.address) else { continue };
        for serving in node.serving.iter().filter(|serving| serving.state == ProcessState::Ready) {
            let application = applications.get(&serving.application).filter(|application| application.routable);
            if let Some(&application) = application {
                let upstream = Upstream { node: node.id.clone(), address: format!("{host}:{}", serving.port) };
                let served = Served { application, upstreams: Vec::new() };
                upstreams.entry(application.name.as_str()).or_insert(served).upstreams.push(upstream);
            }
        }
    }
    for served in upstreams.values_mut() {
        served.upstreams.sort();
        // One process of an application on a node, whatever a record says.
        served.upstreams.dedup_by(|later, earlier| later.node == earlier.node);
    }
    upstreams
}

/// Live nodes that do not drain, by id.
fn nodes(snapshot: &Snapshot) -> impl Iterator<Item = &NodeRecord> {
    let by_id: BTreeMap<_, _> =
        snapshot.nodes.iter().filter(|node| !node.draining).map(|node| (&node.id, node)).collect();
    by_id.into_values()
}

fn api(snapshot: &Snapshot, routes: &Routes<'_>) -> Option<ApiRoute> {
    if !snapshot.api_public {
        return None;
    }
    let claimed: BTreeSet<&Host> = snapshot.applications.iter().flat_map(|application| &application.domains).collect();
    let hosts: BTreeSet<String> = snapshot
        .platform_domains
        .iter()
        .filter(|apex| !claimed.contains(apex) && !routes.0.contains_key(apex.as_str()))
        .map(Host::to_string)
        .collect();
    let upstreams: Vec<Upstream> = nodes(snapshot)
        .filter(|node| node.api_public)
        .filter_map(|node| Some(Upstream { node: node.id.clone(), address: url_authority(&node.api)? }))
        .collect();
    // With no apex, or nobody behind it, nothing is published.
    let published = !hosts.is_empty() && !upstreams.is_empty();
    let denied = DENIED.iter().map(ToString::to_string).collect();
    published.then(|| ApiRoute { hosts: hosts.into_iter().collect(), upstreams, denied })
}

fn url_authority(authority: &str) -> Option<String> {
    let (host, port) = authority.rsplit_once(':')?;
    let port: u16 = port.parse().ok().filter(|port| *port > 0)?;
    Some(format!("{}:{port}", url_host(host)?))
}

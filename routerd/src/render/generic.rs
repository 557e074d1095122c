//! The generic document.
//!
//! Kept true here: hosts are sorted by code unit and each stands once; no route has an empty list of upstreams; a claim never
//! shadows a platform host and a wildcard key never stands for a platform domain; the same snapshot gives the same bytes,
//! in whatever order its lists came. A node whose address could not stand in a URL is left out, the others stay.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;
use std::ops::Bound;

use scafo_core::domain::{Host, platform_host};
use scafo_core::id::{ApplicationName, NodeId, is_label};
use scafo_core::record::{NodeRecord, ProcessState, V1};
use scafo_core::routing::{ApiRoute, DENIED, FleetRouting, Route, Upstream, prefer};
use scafo_core::snapshot::{Snapshot, SnapshotApplication};

/// Renders what the fleet answers on.
pub fn render(snapshot: &Snapshot) -> FleetRouting {
    let routes = Routes::collect(snapshot);
    let api = api(snapshot, &routes);
    let routes = routes.0.into_iter().map(|(host, target)| target.route(host)).collect();
    FleetRouting { v: V1, routes, api }
}

/// The same with the upstreams of `node` first on every route and on the API.
pub fn preferring(routing: &FleetRouting, node: &NodeId) -> FleetRouting {
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
pub fn to_json(routing: &FleetRouting) -> Vec<u8> {
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
                routes.add(format!("{environment}.{base}"), served);
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
        let Some(host) = url_host(&node.address) else {
            tracing::warn!(node = %node.id, "a node is left out of routing: its address is no host");
            continue;
        };
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

/// The host as it stands in a URL (RFC 3986 §3.2.2); `None` for text that is neither an address nor a name.
fn url_host(address: &str) -> Option<String> {
    let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
    if let Ok(v6) = bare.parse::<Ipv6Addr>() {
        return Some(format!("[{v6}]"));
    }
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    let shaped = address.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    (shaped && address.len() <= 253 && address.bytes().all(legal)).then(|| address.to_owned())
}

fn url_authority(authority: &str) -> Option<String> {
    let (host, port) = authority.rsplit_once(':')?;
    let port: u16 = port.parse().ok().filter(|port| *port > 0)?;
    Some(format!("{}:{port}", url_host(host)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::render::testing::{Claim as _, fleet, node};

    fn hosts(routing: &FleetRouting) -> Vec<(&str, &str)> {
        routing.routes.iter().map(|route| (route.host.as_str(), route.application.as_str())).collect()
    }

    #[test]
    fn an_application_answers_under_every_platform_domain() {
        let mut fleet = fleet(&[node("b").serves("shop", 2), node("a").serves("shop", 1)], &["shop", "idle"]);
        fleet.platform_domains = ["z.test", "a.test"].map(|domain| domain.parse().unwrap()).into();
        let routing = render(&fleet);
        assert_eq!(hosts(&routing), [("shop.a.test", "shop"), ("shop.z.test", "shop")]);
        let addresses: Vec<_> = routing.routes[0].upstreams.iter().map(|upstream| upstream.address.as_str()).collect();
        assert_eq!(addresses, ["10.0.0.1:1", "10.0.0.1:2"]);
    }

    #[test]
    fn only_ready_processes_of_nodes_that_do_not_drain_are_upstreams() {
        let nodes = [
            node("a").serves_in("shop", 1, ProcessState::Starting),
            node("b").serves("shop", 2).draining(),
            node("c").serves_in("shop", 3, ProcessState::Unhealthy),
            node("d").serves("shop", 4).leaving(),
        ];
        let routing = render(&fleet(&nodes, &["shop"]));
        let upstreams: Vec<_> = routing.routes[0].upstreams.iter().map(|upstream| upstream.node.as_str()).collect();
        assert_eq!(upstreams, ["d"]);
    }

    #[test]
    fn what_may_not_serve_or_is_unknown_has_no_route() {
        let mut fleet = fleet(&[node("a").serves("shop", 1).serves("ghost", 2)], &["shop"]);
        fleet.applications[0].routable = false;
        assert_eq!(render(&fleet).routes, []);
    }

    #[test]
    fn a_claim_never_shadows_a_platform_host() {
        let mut fleet = fleet(&[node("a").serves("shop", 1).serves("blog", 2)], &["shop", "blog"]);
        fleet.claim("blog", "shop.apps.test", false);
        fleet.claim("blog", "blog.example", false);
        let expected = [("blog.apps.test", "blog"), ("blog.example", "blog"), ("shop.apps.test", "shop")];
        assert_eq!(hosts(&render(&fleet)), expected);
    }

    #[test]
    fn a_covering_claim_gives_environments_and_then_the_wildcard_key() {
        let names = ["shop", "shop-a", "shop-b", "shop--c", "third"];
        let serving = names.iter().fold(node("a"), |node, name| node.serves(name, 9));
        let mut fleet = fleet(&[serving], &names);
        fleet.platform_domains.clear();
        fleet.claim("shop", "shop.example", true);
        fleet.claim("third", "b.shop.example", false);
        let expected = [
            ("*.shop.example", "shop"),
            ("a.shop.example", "shop-a"),
            ("b.shop.example", "third"),
            ("shop.example", "shop"),
        ];
        assert_eq!(hosts(&render(&fleet)), expected);
    }

    #[test]
    fn an_environment_is_routed_even_while_the_holder_is_not_served() {
        let mut fleet = fleet(&[node("a").serves("shop-a", 1)], &["shop", "shop-a"]);
        fleet.platform_domains.clear();
        fleet.claim("shop", "shop.example", true);
        assert_eq!(hosts(&render(&fleet)), [("a.shop.example", "shop-a")]);
    }

    #[test]
    fn there_is_no_wildcard_under_a_platform_domain() {
        let mut fleet = fleet(&[node("a").serves("shop", 1)], &["shop"]);
        fleet.claim("shop", "apps.test", true);
        fleet.claim("shop", "x.apps.test", true);
        let routing = render(&fleet);
        assert!(routing.routes.iter().all(|route| !route.host.starts_with('*')), "{:?}", hosts(&routing));
    }

    #[test]
    fn the_api_stands_on_apexes_that_nobody_claims_behind_nodes_that_publish() {
        let mut fleet = fleet(&[node("a").serves("shop", 1), node("b").private()], &["shop"]);
        fleet.platform_domains.push("other.test".parse().unwrap());
        let api = render(&fleet).api.unwrap();
        assert_eq!(api.hosts, ["apps.test", "other.test"]);
        assert_eq!(api.upstreams.len(), 1);
        assert_eq!(api.upstreams[0].address, "10.0.0.1:7400");
        fleet.claim("shop", "apps.test", false);
        assert_eq!(render(&fleet).api.unwrap().hosts, ["other.test"]);
        fleet.api_public = false;
        assert_eq!(render(&fleet).api, None);
    }

    #[test]
    fn an_address_that_would_not_stand_in_a_url_leaves_out_one_node() {
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
        let mut broken = node("a").serves("shop", 1);
        broken.0.address = "::::".to_owned();
        let routing = render(&fleet(&[broken, node("b").serves("shop", 2)], &["shop"]));
        assert_eq!(routing.routes[0].upstreams.len(), 1);
    }

    #[test]
    fn a_preferred_node_stands_first_and_the_rest_keeps_its_order() {
        let fleet = fleet(&["a", "b", "c"].map(|id| node(id).serves("shop", 1)), &["shop"]);
        let ordered = preferring(&render(&fleet), &"c".parse().unwrap());
        let ids: Vec<_> = ordered.routes[0].upstreams.iter().map(|upstream| upstream.node.as_str()).collect();
        assert_eq!(ids, ["c", "a", "b"]);
        assert_eq!(ordered.api.unwrap().upstreams[0].node.as_str(), "c");
    }

    const NAMES: [&str; 6] = ["a", "a-b", "a-b-c", "ab", "a--b", "z"];
    const HOSTS: [&str; 6] = ["a.test", "b.a.test", "apps.test", "a.apps.test", "ab.test", "a-b.test"];

    fn any_fleet() -> impl Strategy<Value = Snapshot> {
        let serving = prop::collection::vec((0..4usize, 0..NAMES.len(), any::<bool>()), 0..20);
        let claims = prop::collection::vec((0..NAMES.len(), 0..HOSTS.len(), any::<bool>()), 0..10);
        (serving, claims, any::<bool>()).prop_map(|(serving, claims, public)| {
            let mut nodes = ["n3", "n1", "n0", "n2"].map(node);
            for (index, name, ready) in serving {
                let state = if ready { ProcessState::Ready } else { ProcessState::Starting };
                nodes[index] = nodes[index].clone().serves_in(NAMES[name], 1000 + index as u16, state);
            }
            let mut fleet = fleet(&nodes, &NAMES);
            for (name, host, wildcard) in claims {
                fleet.claim(NAMES[name], HOSTS[host], wildcard);
            }
            fleet.api_public = public;
            fleet
        })
    }

    proptest! {
        #[test]
        fn hosts_are_sorted_and_unique_and_nobody_is_empty(fleet in any_fleet()) {
            let routing = render(&fleet);
            prop_assert!(routing.routes.windows(2).all(|pair| pair[0].host < pair[1].host));
            prop_assert!(routing.routes.iter().all(|route| !route.upstreams.is_empty()));
            prop_assert!(routing.api.iter().all(|api| !api.hosts.is_empty() && !api.upstreams.is_empty()));
        }

        #[test]
        fn a_wildcard_never_shadows_what_is_served_by_name(fleet in any_fleet()) {
            let routing = render(&fleet);
            for route in routing.routes.iter().filter(|route| route.host.starts_with("*.")) {
                let base = route.host.trim_start_matches("*.");
                prop_assert!(!base.ends_with("apps.test"));
                for (name, served) in fleet.applications.iter().map(|a| (&a.name, &a.domains)) {
                    let exact = served.iter().filter(|host| host.as_str().split_once('.').is_some_and(|(_, b)| b == base));
                    for host in exact {
                        let serves = routing.routes.iter().any(|r| r.application == *name);
                        let named = routing.routes.iter().any(|r| r.host == host.as_str());
                        prop_assert!(named || !serves, "{host} of {name} fell to {}", route.host);
                    }
                }
            }
        }

        #[test]
        fn the_order_of_the_lists_does_not_show(fleet in any_fleet()) {
            let mut shuffled = fleet.clone();
            shuffled.nodes.reverse();
            shuffled.applications.reverse();
            shuffled.platform_domains.reverse();
            for node in &mut shuffled.nodes { node.serving.reverse(); }
            for application in &mut shuffled.applications {
                application.domains.reverse();
                application.wildcard_domains.reverse();
            }
            prop_assert_eq!(to_json(&render(&fleet)), to_json(&render(&shuffled)));
        }
    }
}

//! Dynamic configuration for the http provider of Traefik v3.
//!
//! Only members that v3.0 knows are written, since Traefik refuses a whole document for one that it does not know. Names are
//! built with an underscore, which no host contains, so a host can never spell the name of another thing. Hosts reach the
//! rules as the types of the vocabulary let them through: letters, digits, hyphens and dots.

use std::collections::BTreeMap;

use scafo_core::id::NodeId;
use scafo_core::routing::{ApiRoute, FleetRouting, Route, Upstream};
use serde::Serialize;

const RETRY: &str = "scafo_retry";
/// Traefik's own service that dials nothing: a router with it is active and answers 418.
const NOBODY: &str = "noop@internal";
/// How often a router tries another server when one cannot be reached.
const ATTEMPTS: u32 = 3;
const APPLICATION_HEALTH: &str = "/.well-known/celld/health";
const API_HEALTH: &str = "/.well-known/scafo/health";
const HEALTH_INTERVAL: &str = "10s";
const HEALTH_TIMEOUT: &str = "3s";

/// The API's routers and the wildcards state a priority, because by default Traefik takes the length of a rule for one.
mod priority {
    pub(super) const DENY: u32 = 3;
    pub(super) const API: u32 = 2;
    pub(super) const WILDCARD: u32 = 1;
}

/// The whole configuration. Without any router it is an empty object: Traefik keeps what it has when a map is empty.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Configuration {
    #[serde(skip_serializing_if = "Option::is_none")]
    http: Option<Http>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Http {
    routers: BTreeMap<String, Router>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    services: BTreeMap<String, Service>,
    middlewares: BTreeMap<&'static str, Middleware>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Router {
    rule: String,
    service: String,
    entry_points: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    middlewares: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u32>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Service {
    LoadBalancer(LoadBalancer),
    Failover { service: String, fallback: String },
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct LoadBalancer {
    servers: Vec<Server>,
    health_check: HealthCheck,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Server {
    url: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct HealthCheck {
    path: &'static str,
    interval: &'static str,
    timeout: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Middleware {
    Retry { attempts: u32 },
}

/// Renders `routing`, whose upstreams are in the order in force. `preferred` is the node that was put first, if any.
pub fn render(routing: &FleetRouting, entry_points: &[String], preferred: Option<&NodeId>) -> Configuration {
    let mut out = Renderer { entry_points, preferred, routers: BTreeMap::new(), services: BTreeMap::new() };
    for route in &routing.routes {
        out.host(route);
    }
    if let Some(api) = &routing.api {
        for host in &api.hosts {
            out.api(host, api);
        }
    }
    out.finish()
}

/// The configuration's bytes.
pub fn to_json(configuration: &Configuration) -> Vec<u8> {
    serde_json::to_vec(configuration).expect("strings, numbers and maps with string keys always serialise")
}

struct Renderer<'a> {
    entry_points: &'a [String],
    preferred: Option<&'a NodeId>,
    routers: BTreeMap<String, Router>,
    services: BTreeMap<String, Service>,
}

impl Renderer<'_> {
    fn host(&mut self, route: &Route) {
        let (key, rule, hostname, priority) = match route.host.strip_prefix("*.") {
            Some(base) => {
                let rule = format!("HostRegexp(`^[^.]+\\.{}$`)", base.replace('.', "\\."));
                (format!("scafo_wild_{base}"), rule, base, Some(priority::WILDCARD))
            }
            None => (format!("scafo_{}", route.host), host_rule(&route.host), route.host.as_str(), None),
        };
        self.router(&key, rule, key.clone(), priority);
        let health = health(APPLICATION_HEALTH, Some(hostname.to_owned()));
        self.service(key, &route.upstreams, &health);
    }

    fn api(&mut self, host: &str, api: &ApiRoute) {
        let key = format!("scafo_api_{host}");
        let parts = api.denied.iter().map(|prefix| [format!("Path(`{prefix}`)"), format!("PathPrefix(`{prefix}/`)")]);
        let parts: Vec<String> = parts.flatten().collect();
        if parts.is_empty() {
            self.router(&key, host_rule(host), key.clone(), Some(priority::API));
        } else {
            let denied = format!("{} && ({})", host_rule(host), parts.join(" || "));
            let allowed = format!("{} && !{}", host_rule(host), parts.join(" && !"));
            self.router(&format!("scafo_apideny_{host}"), denied, NOBODY.to_owned(), Some(priority::DENY));
            self.router(&key, allowed, key.clone(), Some(priority::API));
        }
        self.service(key, &api.upstreams, &health(API_HEALTH, None));
    }

    fn router(&mut self, key: &str, rule: String, service: String, priority: Option<u32>) {
        let middlewares = if service == NOBODY { vec![] } else { vec![RETRY] };
        let entry_points = self.entry_points.to_vec();
        self.routers.insert(key.to_owned(), Router { rule, service, entry_points, middlewares, priority });
    }

    /// A balancer over all, or, where the preferred node and another one answer, the other ones behind the preferred.
    fn service(&mut self, key: String, upstreams: &[Upstream], health: &HealthCheck) {
        let (local, peers): (Vec<_>, Vec<_>) =
            upstreams.iter().partition(|upstream| self.preferred == Some(&upstream.node));
        if local.is_empty() || peers.is_empty() {
            self.services.insert(key, balancer(upstreams, health));
            return;
        }
        let (service, fallback) = (format!("{key}_local"), format!("{key}_peers"));
        self.services.insert(service.clone(), balancer(local, health));
        self.services.insert(fallback.clone(), balancer(peers, health));
        self.services.insert(key, Service::Failover { service, fallback });
    }

    fn finish(self) -> Configuration {
        if self.routers.is_empty() {
            return Configuration::default();
        }
        let middlewares = BTreeMap::from([(RETRY, Middleware::Retry { attempts: ATTEMPTS })]);
        Configuration { http: Some(Http { routers: self.routers, services: self.services, middlewares }) }
    }
}

fn host_rule(host: &str) -> String {
    format!("Host(`{host}`)")
}

fn health(path: &'static str, hostname: Option<String>) -> HealthCheck {
    HealthCheck { path, interval: HEALTH_INTERVAL, timeout: HEALTH_TIMEOUT, hostname }
}

fn balancer<'a>(upstreams: impl IntoIterator<Item = &'a Upstream>, health: &HealthCheck) -> Service {
    let servers =
        upstreams.into_iter().map(|upstream| Server { url: format!("http://{}", upstream.address) }).collect();
    Service::LoadBalancer(LoadBalancer { servers, health_check: health.clone() })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::render::generic;
    use crate::render::testing::{Claim as _, fleet, node};

    fn rendered(fleet: &scafo_core::snapshot::Snapshot, preferred: Option<&str>) -> Value {
        let preferred: Option<NodeId> = preferred.map(|id| id.parse().unwrap());
        let mut routing = generic::render(fleet);
        if let Some(node) = &preferred {
            routing = generic::preferring(&routing, node);
        }
        let configuration = render(&routing, &["web".to_owned()], preferred.as_ref());
        serde_json::from_slice(&to_json(&configuration)).unwrap()
    }

    fn balancer(url: &str, health: &Value) -> Value {
        json!({ "loadBalancer": { "servers": [{ "url": url }], "healthCheck": health } })
    }

    #[test]
    fn two_nodes_and_a_preferred_one_render_as_specified() {
        let nodes = [node("n1").at("10.9.0.1").serves("till", 24417), node("n2").at("10.9.0.2").serves("till", 24902)];
        let mut fleet = fleet(&nodes, &["till"]);
        fleet.platform_domains = vec!["d.test".parse().unwrap()];
        let app = json!({ "path": "/.well-known/celld/health", "interval": "10s", "timeout": "3s",
                          "hostname": "till.d.test" });
        let api = json!({ "path": "/.well-known/scafo/health", "interval": "10s", "timeout": "3s" });
        let failover = |key: &str| json!({ "failover": { "service": format!("{key}_local"), "fallback": format!("{key}_peers") } });
        let expected = json!({ "http": {
            "routers": {
                "scafo_till.d.test": {
                    "rule": "Host(`till.d.test`)", "service": "scafo_till.d.test",
                    "entryPoints": ["web"], "middlewares": ["scafo_retry"],
                },
                "scafo_apideny_d.test": {
                    "rule": "Host(`d.test`) && (Path(`/v1/storage`) || PathPrefix(`/v1/storage/`) || \
                             Path(`/v1/ingress/routes`) || PathPrefix(`/v1/ingress/routes/`))",
                    "service": "noop@internal", "entryPoints": ["web"], "priority": 3,
                },
                "scafo_api_d.test": {
                    "rule": "Host(`d.test`) && !Path(`/v1/storage`) && !PathPrefix(`/v1/storage/`) && \
                             !Path(`/v1/ingress/routes`) && !PathPrefix(`/v1/ingress/routes/`)",
                    "service": "scafo_api_d.test", "entryPoints": ["web"], "middlewares": ["scafo_retry"], "priority": 2,
                },
            },
            "services": {
                "scafo_till.d.test": failover("scafo_till.d.test"),
                "scafo_till.d.test_local": balancer("http://10.9.0.1:24417", &app),
                "scafo_till.d.test_peers": balancer("http://10.9.0.2:24902", &app),
                "scafo_api_d.test": failover("scafo_api_d.test"),
                "scafo_api_d.test_local": balancer("http://10.9.0.1:7400", &api),
                "scafo_api_d.test_peers": balancer("http://10.9.0.2:7400", &api),
            },
            "middlewares": { "scafo_retry": { "retry": { "attempts": 3 } } },
        }});
        assert_eq!(rendered(&fleet, Some("n1")), expected);
    }

    #[test]
    fn a_wildcard_matches_one_label_below_everything_else() {
        let mut fleet = fleet(&[node("a").serves("shop", 1)], &["shop"]);
        fleet.claim("shop", "shop.example", true);
        let out = rendered(&fleet, None);
        let router = &out["http"]["routers"]["scafo_wild_shop.example"];
        assert_eq!(router["rule"], r"HostRegexp(`^[^.]+\.shop\.example$`)");
        assert_eq!(router["priority"], 1);
        let health = &out["http"]["services"]["scafo_wild_shop.example"]["loadBalancer"]["healthCheck"];
        assert_eq!(health["hostname"], "shop.example");
    }

    #[test]
    fn without_a_choice_there_is_one_balancer_in_the_order_of_the_document() {
        let fleet = fleet(&[node("b").serves("shop", 2), node("a").serves("shop", 1)], &["shop"]);
        for preferred in [None, Some("nobody")] {
            let out = rendered(&fleet, preferred);
            let servers = &out["http"]["services"]["scafo_shop.apps.test"]["loadBalancer"]["servers"];
            assert_eq!(*servers, json!([{ "url": "http://10.0.0.1:1" }, { "url": "http://10.0.0.1:2" }]));
        }
    }

    #[test]
    fn nothing_to_route_is_an_empty_object_and_no_map_is_ever_empty() {
        let mut empty = fleet(&[node("a")], &[]);
        empty.api_public = false;
        assert_eq!(rendered(&empty, None), json!({}));
        let only_api = rendered(&fleet(&[node("a")], &[]), None);
        for map in only_api["http"].as_object().unwrap().values() {
            assert!(!map.as_object().unwrap().is_empty());
        }
    }
}

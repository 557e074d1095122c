use proptest::prelude::*;
use scafo_core::domain::Host;
use scafo_core::record::ProcessState;
use scafo_core::routing::FleetRouting;
use scafo_core::settings::TraefikTls;
use scafo_core::snapshot::Snapshot;
use serde_json::{Value, json};

use super::testing::{Claim as _, attributes, decoded, fleet, node, parsed};
use super::{Attributes, Format, View, plain};
use crate::documents::Documents;
use crate::routes::{Catalogue, Routing};

fn written(routing: &Routing, format: Format, preferred: Option<&str>) -> Vec<u8> {
    let node = preferred.map(|id| id.parse().unwrap());
    View { format, prefer: node.as_ref(), attributes: &attributes() }.write(routing)
}

fn bytes(fleet: &Snapshot, format: Format, preferred: Option<&str>) -> Vec<u8> {
    written(Catalogue::new(parsed(fleet)).routing(), format, preferred)
}

fn json<T: serde::de::DeserializeOwned>(fleet: &Snapshot, format: Format, preferred: Option<&str>) -> T {
    serde_json::from_slice(&bytes(fleet, format, preferred)).unwrap()
}

fn generic(fleet: &Snapshot) -> FleetRouting {
    json(fleet, Format::Generic, None)
}

fn traefik(fleet: &Snapshot, preferred: Option<&str>) -> Value {
    json(fleet, Format::Traefik, preferred)
}

fn hosts(routing: &FleetRouting) -> Vec<(&str, &str)> {
    routing.routes.iter().map(|route| (route.host.as_str(), route.application.as_str())).collect()
}

#[test]
fn an_application_answers_under_every_platform_domain() {
    let mut fleet = fleet(&[node("b").serves("shop", 2), node("a").serves("shop", 1)], &["shop", "idle"]);
    fleet.platform_domains = ["z.test", "a.test"].map(|domain| domain.parse().unwrap()).into();
    let routing = generic(&fleet);
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
    let routing = generic(&fleet(&nodes, &["shop"]));
    let upstreams: Vec<_> = routing.routes[0].upstreams.iter().map(|upstream| upstream.node.as_str()).collect();
    assert_eq!(upstreams, ["d"]);
}

#[test]
fn what_may_not_serve_or_is_unknown_has_no_route() {
    let mut fleet = fleet(&[node("a").serves("shop", 1).serves("ghost", 2)], &["shop"]);
    fleet.applications[0].routable = false;
    assert_eq!(generic(&fleet).routes, []);
}

#[test]
fn a_claim_never_shadows_a_platform_host() {
    let mut fleet = fleet(&[node("a").serves("shop", 1).serves("blog", 2)], &["shop", "blog"]);
    fleet.claim("blog", "shop.apps.test", false);
    fleet.claim("blog", "blog.example", false);
    let expected = [("blog.apps.test", "blog"), ("blog.example", "blog"), ("shop.apps.test", "shop")];
    assert_eq!(hosts(&generic(&fleet)), expected);
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
    assert_eq!(hosts(&generic(&fleet)), expected);
}

#[test]
fn an_environment_is_routed_even_while_the_holder_is_not_served() {
    let mut fleet = fleet(&[node("a").serves("shop-a", 1)], &["shop", "shop-a"]);
    fleet.platform_domains.clear();
    fleet.claim("shop", "shop.example", true);
    assert_eq!(hosts(&generic(&fleet)), [("a.shop.example", "shop-a")]);
}

#[test]
fn there_is_no_wildcard_under_a_platform_domain() {
    let mut fleet = fleet(&[node("a").serves("shop", 1)], &["shop"]);
    fleet.claim("shop", "apps.test", true);
    fleet.claim("shop", "x.apps.test", true);
    let routing = generic(&fleet);
    assert!(routing.routes.iter().all(|route| !route.host.starts_with('*')), "{:?}", hosts(&routing));
}

#[test]
fn the_api_stands_on_apexes_that_nobody_claims_behind_nodes_that_publish() {
    let mut fleet = fleet(&[node("a").serves("shop", 1), node("b").private()], &["shop"]);
    fleet.platform_domains.push("other.test".parse().unwrap());
    let api = generic(&fleet).api.unwrap();
    assert_eq!(api.hosts, ["apps.test", "other.test"]);
    assert_eq!(api.upstreams.len(), 1);
    assert_eq!(api.upstreams[0].address, "10.0.0.1:7400");
    fleet.claim("shop", "apps.test", false);
    assert_eq!(generic(&fleet).api.unwrap().hosts, ["other.test"]);
    fleet.api_public = false;
    assert_eq!(generic(&fleet).api, None);
}

#[test]
fn a_claimed_apex_is_not_the_apis_even_while_nobody_serves_it() {
    let mut fleet = fleet(&[node("a").serves("shop", 1)], &["shop", "idle"]);
    fleet.platform_domains.push("other.test".parse().unwrap());
    fleet.claim("idle", "apps.test", false);
    let routing = generic(&fleet);
    assert_eq!(hosts(&routing), [("shop.apps.test", "shop"), ("shop.other.test", "shop")]);
    assert_eq!(routing.api.unwrap().hosts, ["other.test"]);
}

#[test]
fn an_apex_that_is_the_host_of_an_application_is_not_the_apis_while_it_is_served() {
    let mut fleet = fleet(&[node("a").serves("shop", 1)], &["shop"]);
    fleet.platform_domains.push("shop.apps.test".parse().unwrap());
    let routing = generic(&fleet);
    assert_eq!(hosts(&routing), [("shop.apps.test", "shop"), ("shop.shop.apps.test", "shop")]);
    assert_eq!(routing.api.unwrap().hosts, ["apps.test"]);
    fleet.nodes[0].serving.clear();
    assert_eq!(generic(&fleet).api.unwrap().hosts, ["apps.test", "shop.apps.test"]);
}

#[test]
fn an_environment_never_takes_the_apex_of_a_platform_domain() {
    let mut fleet = fleet(&[node("n").serves("a-b", 1).serves("a-c", 2)], &["a", "a-b", "a-c"]);
    fleet.platform_domains = vec!["b.a.test".parse().unwrap()];
    fleet.claim("a", "a.test", true);
    let routing = generic(&fleet);
    let expected = [("a-b.b.a.test", "a-b"), ("a-c.b.a.test", "a-c"), ("c.a.test", "a-c")];
    assert_eq!(hosts(&routing), expected);
    assert_eq!(routing.api.unwrap().hosts, ["b.a.test"]);
}

#[test]
fn an_address_that_would_not_stand_in_a_url_leaves_out_one_node() {
    let mut broken = node("a").serves("shop", 1);
    broken.0.address = "::::".to_owned();
    let routing = generic(&fleet(&[broken, node("b").serves("shop", 2)], &["shop"]));
    assert_eq!(routing.routes[0].upstreams.len(), 1);
}

#[test]
fn a_preferred_node_stands_first_and_the_rest_keeps_its_order() {
    let fleet = fleet(&["a", "b", "c"].map(|id| node(id).serves("shop", 1)), &["shop"]);
    let ordered: FleetRouting = json(&fleet, Format::Generic, Some("c"));
    let ids: Vec<_> = ordered.routes[0].upstreams.iter().map(|upstream| upstream.node.as_str()).collect();
    assert_eq!(ids, ["c", "a", "b"]);
    assert_eq!(ordered.api.unwrap().upstreams[0].node.as_str(), "c");
}

const NAMES: [&str; 6] = ["a", "a-b", "a-b-c", "ab", "a--b", "z"];
const HOSTS: [&str; 6] = ["a.test", "b.a.test", "apps.test", "a.apps.test", "ab.test", "a-b.test"];

/// One lies below another, and one below a host that may be claimed with its subdomains.
const DOMAINS: [&str; 3] = ["apps.test", "a.apps.test", "b.a.test"];

fn any_domains() -> impl Strategy<Value = Vec<Host>> {
    let some = prop::sample::subsequence(&DOMAINS, 1..=DOMAINS.len()).prop_shuffle();
    some.prop_map(|domains| domains.into_iter().map(|domain| domain.parse().unwrap()).collect())
}

fn any_fleet() -> impl Strategy<Value = Snapshot> {
    any_domains().prop_flat_map(any_fleet_under)
}

fn any_fleet_under(domains: Vec<Host>) -> impl Strategy<Value = Snapshot> {
    let serving = prop::collection::vec((0..4usize, 0..NAMES.len(), any::<bool>()), 0..20);
    let claims = prop::collection::vec((0..NAMES.len(), 0..HOSTS.len(), any::<bool>()), 0..10);
    let draining = prop::array::uniform4(prop::bool::weighted(0.2));
    (serving, claims, draining, any::<bool>()).prop_map(move |(serving, claims, draining, public)| {
        let mut nodes = ["n3", "n1", "n0", "n2"].map(node);
        for (node, draining) in nodes.iter_mut().zip(draining) {
            node.0.draining = draining;
        }
        for (index, name, ready) in serving {
            let state = if ready { ProcessState::Ready } else { ProcessState::Starting };
            nodes[index] = nodes[index].clone().serves_in(NAMES[name], 1000 + index as u16, state);
        }
        let mut fleet = fleet(&nodes, &NAMES);
        fleet.platform_domains.clone_from(&domains);
        for (name, host, wildcard) in claims {
            fleet.claim(NAMES[name], HOSTS[host], wildcard);
        }
        fleet.api_public = public;
        fleet
    })
}

/// States of one fleet. Other domains are a new beginning, so that most of them keep theirs.
fn any_states() -> impl Strategy<Value = Vec<Snapshot>> {
    any_domains().prop_flat_map(|domains| {
        let state = prop_oneof![7 => any_fleet_under(domains), 1 => any_fleet()];
        prop::collection::vec(state, 2..8)
    })
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
    let failover =
        |key: &str| json!({ "failover": { "service": format!("{key}_local"), "fallback": format!("{key}_peers") } });
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
    assert_eq!(traefik(&fleet, Some("n1")), expected);
}

#[test]
fn a_wildcard_matches_one_label_below_everything_else() {
    let mut fleet = fleet(&[node("a").serves("shop", 1)], &["shop"]);
    fleet.claim("shop", "shop.example", true);
    let out = traefik(&fleet, None);
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
        let out = traefik(&fleet, preferred);
        let servers = &out["http"]["services"]["scafo_shop.apps.test"]["loadBalancer"]["servers"];
        assert_eq!(*servers, json!([{ "url": "http://10.0.0.1:1" }, { "url": "http://10.0.0.1:2" }]));
    }
}

#[test]
fn nothing_to_route_is_an_empty_object_and_no_map_is_ever_empty() {
    let mut empty = fleet(&[node("a")], &[]);
    empty.api_public = false;
    assert_eq!(traefik(&empty, None), json!({}));
    let only_api = traefik(&fleet(&[node("a")], &[]), None);
    for map in only_api["http"].as_object().unwrap().values() {
        assert!(!map.as_object().unwrap().is_empty());
    }
}

proptest! {
    #[test]
    fn hosts_are_sorted_and_unique_and_nobody_is_empty(fleet in any_fleet()) {
        let routing = generic(&fleet);
        prop_assert!(routing.routes.windows(2).all(|pair| pair[0].host < pair[1].host));
        prop_assert!(routing.routes.iter().all(|route| !route.upstreams.is_empty()));
        prop_assert!(routing.api.iter().all(|api| !api.hosts.is_empty() && !api.upstreams.is_empty()));
    }

    #[test]
    fn a_wildcard_never_shadows_what_is_served_by_name(fleet in any_fleet()) {
        let routing = generic(&fleet);
        for route in routing.routes.iter().filter(|route| route.host.starts_with("*.")) {
            let base: Host = route.host.trim_start_matches("*.").parse().unwrap();
            prop_assert!(!fleet.platform_domains.iter().any(|domain| base.is_under(domain.as_str())));
            for (name, served) in fleet.applications.iter().map(|a| (&a.name, &a.domains)) {
                let exact = served.iter().filter(|host| host.as_str().split_once('.').is_some_and(|(_, b)| b == base.as_str()));
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
        for format in [Format::Generic, Format::Traefik] {
                prop_assert_eq!(bytes(&fleet, format, None), bytes(&shuffled, format, None));
        }
    }

    #[test]
    fn documents_say_what_the_rules_say_class_by_class(fleet in any_fleet(), node in 0..4) {
        let plain = plain::render(&fleet);
        prop_assert_eq!(bytes(&fleet, Format::Generic, None), plain::to_json(&plain));
        let node = format!("n{node}");
        let preferred = plain::to_json(&plain::preferring(&plain, &node.parse().unwrap()));
        prop_assert_eq!(bytes(&fleet, Format::Generic, Some(&node)), preferred);
    }

    #[test]
    fn followed_changes_give_the_bytes_and_tags_of_a_whole_rendering(states in any_states()) {
        let mut follower = Follower::new(&states[0]);
        for state in &states {
            follower.follow(state);
        }
    }
}

/// Goes from state to state and compares with what a node that starts there would say.
struct Follower {
    catalogue: Catalogue,
    documents: Documents,
}

impl Follower {
    fn new(fleet: &Snapshot) -> Self {
        let catalogue = Catalogue::new(parsed(fleet));
        let documents = Documents::write(catalogue.routing().clone(), attributes(), None).unwrap();
        Self { catalogue, documents }
    }

    fn follow(&mut self, fleet: &Snapshot) {
        let before = self.documents.etag().to_owned();
        let moved = self.catalogue.follow(parsed(fleet));
        let fresh = Self::new(fleet);
        // Nothing said to have moved means nothing that shows: the documents stay, as in the daemon.
        if moved {
            self.documents =
                Documents::write(self.catalogue.routing().clone(), attributes(), Some(&self.documents)).unwrap();
        } else {
            assert_eq!(fresh.documents.etag(), before);
        }
        for (format, node) in
            [(Format::Generic, ""), (Format::Generic, "n2"), (Format::Traefik, ""), (Format::Traefik, "n2")]
        {
            let of = |documents: &Documents| documents.get(format, &documents.prefer(node)).unwrap();
            let (followed, whole) = (of(&self.documents), of(&fresh.documents));
            assert_eq!(decoded(&followed), decoded(&whole));
            assert_eq!(followed.etag, whole.etag);
            let preferred = (!node.is_empty()).then_some(node);
            assert_eq!(decoded(&whole).into_bytes(), written(fresh.catalogue.routing(), format, preferred));
        }
    }
}

/// Many hosts in many blocks, and one change after the other: names come and go, claims, ports, nodes, whole domains.
#[test]
fn a_large_fleet_is_followed_through_many_changes() {
    let mut random = 1_u64;
    let mut below = |bound: usize| {
        // Any sequence will do, and the same one each time.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(random >> 33).unwrap() % bound
    };
    let name = |index: usize| format!("app{}-{}", index % 7, index);
    let names: Vec<String> = (0..1500).map(name).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let nodes = ["n0", "n1", "n2"].map(|id| names.iter().fold(node(id), |node, name| node.serves(name, 7)));
    let mut state = fleet(&nodes, &names);
    let mut follower = Follower::new(&state);
    for step in 0..30 {
        for _ in 0..=below(3) {
            let (at, on) = (below(state.applications.len()), below(state.nodes.len()));
            match below(9) {
                0 => state.applications[at].routable ^= true,
                1 => drop(state.applications.remove(at)),
                2 => {
                    let mut new = state.applications[at].clone();
                    new.name = name(10_000 + step).parse().unwrap();
                    state.nodes[on] = node_serving(&state.nodes[on], new.name.as_str());
                    state.applications.push(new);
                }
                3 => state.applications[at].domains.push(format!("claim-{}.example", below(50)).parse().unwrap()),
                4 => {
                    let base = format!("claim-{}.example", below(50)).parse().unwrap();
                    state.applications[at].wildcard_domains.push(base);
                }
                5 => drop(state.applications[at].wildcard_domains.pop()),
                6 => state.nodes[on].serving[below(1000)].port = 8,
                7 if step % 10 == 0 => state.nodes[on].draining ^= true,
                8 if step % 20 == 0 => state.platform_domains = vec![format!("d{step}.test").parse().unwrap()],
                _ => drop(state.nodes[on].serving.remove(below(1000))),
            }
        }
        follower.follow(&state);
    }
}

fn node_serving(record: &scafo_core::record::NodeRecord, application: &str) -> scafo_core::record::NodeRecord {
    super::testing::Node(record.clone()).serves(application, 9).0
}

#[test]
fn routers_ask_for_certificates_only_when_they_are_told_a_resolver() {
    let mut fleet = fleet(&[node("a").serves("shop", 1)], &["shop"]);
    fleet.claim("shop", "shop.example", true);
    fleet.claim("shop", "www.covered.example", false);
    fleet.claim("shop", "covered.example", true);
    let routing = Catalogue::new(parsed(&fleet)).routing().clone();
    let routers = |tls: Option<&TraefikTls>| -> Value {
        let attributes = Attributes::new(&["web".to_owned(), "a\"b".to_owned()], tls);
        let view = View { format: Format::Traefik, prefer: None, attributes: &attributes };
        let document: Value = serde_json::from_slice(&view.write(&routing)).unwrap();
        document["http"]["routers"].clone()
    };
    let without = routers(None);
    assert_eq!(without["scafo_shop.apps.test"]["entryPoints"], json!(["web", "a\"b"]));
    assert!(without.as_object().unwrap().values().all(|router| router.get("tls").is_none()));

    let bases = vec!["apps.test".parse().unwrap(), "covered.example".parse().unwrap()];
    let with = routers(Some(&TraefikTls { cert_resolver: "le".to_owned(), wildcard_bases: bases }));
    let own = json!({ "certResolver": "le" });
    let covering = |base: &str| json!({ "certResolver": "le", "domains": [{ "main": format!("*.{base}") }] });
    for (router, expected) in [
        ("scafo_shop.apps.test", covering("apps.test")),
        ("scafo_www.covered.example", covering("covered.example")),
        ("scafo_wild_covered.example", covering("covered.example")),
        ("scafo_covered.example", own.clone()),
        ("scafo_shop.example", own.clone()),
        // Routed, and served over HTTPS where there is a certificate already; none is asked for.
        ("scafo_wild_shop.example", json!({})),
        ("scafo_api_apps.test", own.clone()),
        ("scafo_apideny_apps.test", own),
    ] {
        assert_eq!(with[router]["tls"], expected, "{router}");
    }
}

/// Files that other versions wrote as well: a change of theirs is a new configuration in every Traefik of a fleet, and new tags. With
/// `SCAFO_UPDATE_GOLDEN=1` they are written again.
#[test]
fn documents_are_byte_for_byte_what_they_were() {
    let nodes = [
        node("a").at("10.83.0.1").serves("shop", 24417).serves("shop-dev", 24419),
        node("b").at("10.83.0.2").serves("shop", 24902).serves("blog", 24904),
        node("c").at("fd00::3").private().serves("blog", 24001),
        node("d").draining().serves("shop", 24000),
    ];
    let mut fleet = fleet(&nodes, &["blog", "idle", "shop", "shop-dev"]);
    fleet.platform_domains.push("dev.test".parse().unwrap());
    fleet.claim("shop", "shop.example", true);
    fleet.claim("blog", "blog.example", false);
    let routing = Catalogue::new(parsed(&fleet)).routing().clone();
    let (plain, preferred) = (Attributes::new(&["web".to_owned()], None), "b".parse().unwrap());
    let tls = TraefikTls { cert_resolver: "le".to_owned(), wildcard_bases: vec!["apps.test".parse().unwrap()] };
    let secure = Attributes::new(&["websecure".to_owned()], Some(&tls));
    for (name, format, prefer, attributes) in [
        ("generic", Format::Generic, None, &plain),
        ("generic-preferred", Format::Generic, Some(&preferred), &plain),
        ("traefik", Format::Traefik, None, &plain),
        ("traefik-preferred", Format::Traefik, Some(&preferred), &plain),
        ("traefik-tls", Format::Traefik, None, &secure),
    ] {
        let now = View { format, prefer, attributes }.write(&routing);
        let path = format!("{}/src/render/golden/{name}.json", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("SCAFO_UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &now).unwrap();
        }
        let before = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(now == before, "{name}: {}", String::from_utf8_lossy(&now));
    }
}

#[test]
fn a_document_can_be_read_back_and_rendered_in_another_format() {
    let fleet = fleet(&[node("a").serves("shop", 1), node("b").serves("shop", 2)], &["shop"]);
    let routing = Routing::of(&generic(&fleet)).unwrap();
    for format in [Format::Generic, Format::Traefik] {
        assert_eq!(written(&routing, format, Some("b")), bytes(&fleet, format, Some("b")));
    }
}

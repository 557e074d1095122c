//! One document, four consumers: the lookup of the protocol, Traefik, Caddy and scafo-ingressd decide alike.
//!
//! Where Traefik differs, and may, since the protocol writes its rules down to the letter:
//!
//! - `HostRegexp` ends at the base, so a host with a trailing dot is not below a wildcard; below `Host` it is the same host.
//! - `HostRegexp` takes any text without a dot for the label, so the literal host `*.<base>` goes where the wildcard goes.
//! - It tidies a path up before it decides and forwards (dot segments, doubled slashes, escapes of plain characters), and
//!   refuses some escapes altogether. The others deny every spelling of a denied path and forward paths as they came.
//! - Upstreams without the preferred node are balanced, not tried in order.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use scafo_core::routing::{DENIED, FleetRouting, is_denied};
use scafo_tests::ingresses::echo::{Echo, reached};
use scafo_tests::ingresses::fake_node::{FakeNode, NODE, Says};
use scafo_tests::ingresses::http::Answer;
use scafo_tests::ingresses::{Ingress, Kind};
use serde_json::{Value, json};

use crate::lookup::{By, Decision, decide};

const PORTS: usize = 16;
const LIMIT: Duration = Duration::from_secs(120);
/// Requests under way at a time: enough to keep two cores busy.
const AT_ONCE: usize = 8;

/// Why a request was made up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sort {
    Exact,
    Wildcard,
    Denied,
    NearMiss,
}

#[derive(Debug, Clone)]
struct Request {
    host: String,
    target: String,
}

/// A document with what a generator of requests has to know about it.
struct Plan {
    document: FleetRouting,
    marker: String,
    exact: Vec<String>,
    bases: Vec<String>,
    apexes: Vec<String>,
}

impl Plan {
    fn random(rng: &mut StdRng, ports: &[u16], number: usize) -> Self {
        let mut hosts: BTreeMap<String, Value> = BTreeMap::new();
        let long = format!("{}.example", "b".repeat(52));
        let apexes = vec!["dev.example".to_owned(), format!("p{}.test", label(rng))];
        // The key of this one would cover a host of the API.
        let over_the_api = rng.random_bool(0.5).then(|| "example".to_owned());
        let bases: Vec<String> = (0..4)
            .map(|_| format!("{}.{}", label(rng), ["test", "example", "shop.example"].choose(rng).unwrap()))
            .chain([long])
            .chain(over_the_api)
            .collect();
        for base in &bases {
            hosts.insert(format!("*.{base}"), upstreams(rng, ports));
            // Some bases are served themselves, some names below are too, and some two labels below.
            for host in
                [base.clone(), format!("{}.{base}", label(rng)), format!("{}.{}.{base}", label(rng), label(rng))]
            {
                if rng.random_bool(0.6) {
                    hosts.insert(host, upstreams(rng, ports));
                }
            }
        }
        for _ in 0..12 {
            let host = format!("{}.{}", label(rng), apexes.choose(rng).unwrap());
            hosts.insert(host, upstreams(rng, ports));
        }
        // A route takes a host of the API over. The first one stays, for denied requests.
        if rng.random_bool(0.3) {
            hosts.insert(apexes[1].clone(), upstreams(rng, ports));
        }
        // No key of the document before covers it.
        let marker = format!("marker-{number}.test");
        hosts.insert(marker.clone(), json!([upstream(NODE, ports[number % ports.len()])]));
        let exact = hosts.keys().filter(|host| !host.starts_with('*')).cloned().collect();
        let routes: Vec<Value> = hosts
            .iter()
            .map(|(host, upstreams)| json!({"host": host, "application": "app", "upstreams": upstreams}))
            .collect();
        let mut sorted = apexes.clone();
        sorted.sort();
        let api = json!({"hosts": sorted, "upstreams": upstreams(rng, ports), "denied": DENIED});
        let document = serde_json::from_value(json!({"v": 1, "routes": routes, "api": api})).unwrap();
        Self { document, marker, exact, bases, apexes }
    }

    /// A request that really is of that sort.
    fn request(&self, rng: &mut StdRng, sort: Sort) -> Request {
        loop {
            let request = self.candidate(rng, sort);
            let decision = decide(&self.document, &request.host, &request.target, NODE);
            if sort == Sort::NearMiss || sort == sort_of(&decision) {
                return request;
            }
        }
    }

    fn candidate(&self, rng: &mut StdRng, sort: Sort) -> Request {
        let (host, target) = match sort {
            Sort::Exact => (self.exact.choose(rng).unwrap().clone(), path(rng)),
            Sort::Wildcard => (format!("{}.{}", label(rng), self.bases.choose(rng).unwrap()), path(rng)),
            Sort::Denied => (self.apexes.choose(rng).unwrap().clone(), denied_path(rng)),
            Sort::NearMiss => return self.near_miss(rng),
        };
        Request { host: spelled(rng, &host), target }
    }

    fn near_miss(&self, rng: &mut StdRng) -> Request {
        let exact = self.exact.choose(rng).unwrap();
        let base = self.bases.choose(rng).unwrap();
        let apex = self.apexes.choose(rng).unwrap();
        let host = match rng.random_range(0..10) {
            0 => format!("{}.{}.{base}", label(rng), label(rng)),
            1 => format!("*.{base}"),
            2 => base.clone(),
            3 => format!("{}.{apex}", label(rng)),
            4 => exact[1..].to_owned(),
            5 => format!("{exact}.{}", label(rng)),
            6 => format!("{}{base}", label(rng)),
            7 => {
                ["127.0.0.1", "[::1]", "localhost", "example", "test", "xdev.example"].choose(rng).unwrap().to_string()
            }
            8 => exact.replacen('.', "-", 1),
            // The host is right, and the path is just not a denied one.
            _ => {
                let near = ["x", "-", ".", "s/x", "_/y"].choose(rng).unwrap();
                let target = match rng.random_range(0..3) {
                    0 => format!("{}{near}", DENIED.choose(rng).unwrap()),
                    1 => format!("/x{}", DENIED.choose(rng).unwrap()),
                    _ => ["/v1", "/v1/ingress", "/v1/ingress/", "/v1/stor", "/"].choose(rng).unwrap().to_string(),
                };
                return Request { host: spelled(rng, apex), target };
            }
        };
        Request { host, target: path(rng) }
    }
}

fn sort_of(decision: &Decision) -> Sort {
    match decision {
        Decision::Forward(By::Exact, _) => Sort::Exact,
        Decision::Forward(By::Wildcard, _) => Sort::Wildcard,
        Decision::Denied => Sort::Denied,
        Decision::Forward(By::Api, _) | Decision::Unknown => Sort::NearMiss,
    }
}

/// One to three letters of three: short enough that names collide.
fn label(rng: &mut StdRng) -> String {
    (0..rng.random_range(1..=3)).map(|_| *["a", "b", "c"].choose(rng).unwrap()).collect()
}

fn upstream(node: &str, port: u16) -> Value {
    json!({"node": node, "address": format!("127.0.0.1:{port}")})
}

/// The preferred node alone, another one alone, or both in either order of their ids.
fn upstreams(rng: &mut StdRng, ports: &[u16]) -> Value {
    let nodes: &[&str] = [&[NODE][..], &["n0"], &["n0", NODE], &[NODE, "n2"], &["n0", NODE, "n2"]].choose(rng).unwrap();
    nodes.iter().map(|node| upstream(node, *ports.choose(rng).unwrap())).collect()
}

/// The same host in another spelling, sometimes.
fn spelled(rng: &mut StdRng, host: &str) -> String {
    match rng.random_range(0..6) {
        0 => host.to_ascii_uppercase(),
        1 => format!("{host}:{}", rng.random_range(1..=65_535)),
        2 => format!("{host}."),
        _ => host.to_owned(),
    }
}

/// A path that every consumer leaves as it is.
fn path(rng: &mut StdRng) -> String {
    let paths = ["/", "/v1/storage", "/v1/ingress/routes/traefik", "/a/b?c=d", "/v1/storagex", "/x%20y"];
    paths.choose(rng).unwrap().to_string()
}

fn denied_path(rng: &mut StdRng) -> String {
    let rest = ["", "/", "/objects/x", "?a=b", "/a/b?c=/d"].choose(rng).unwrap();
    format!("{}{rest}", DENIED.choose(rng).unwrap())
}

/// What a consumer made of a request.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Reached(u16),
    Denied,
    Unknown,
    Other(Answer),
}

fn outcome(kind: Kind, answer: Answer) -> Outcome {
    if let Some((port, _)) = reached(&answer.body) {
        return Outcome::Reached(port);
    }
    let says = |text: &str| answer.body.contains(text);
    match (kind, answer.status) {
        (Kind::Traefik | Kind::OldestTraefik, 418) => Outcome::Denied,
        (Kind::Traefik | Kind::OldestTraefik, 404) if says("404 page not found") => Outcome::Unknown,
        (Kind::Caddy | Kind::Ingressd, 404) if says("not served to the outside") => Outcome::Denied,
        (Kind::Caddy | Kind::Ingressd, 404) if says("no application answers on this host") => Outcome::Unknown,
        _ => Outcome::Other(answer),
    }
}

/// Whether `outcome` is what the lookup says, or one of the differences that are written down above.
fn agrees(kind: Kind, document: &FleetRouting, request: &Request, outcome: &Outcome) -> bool {
    let port = |upstream: &scafo_core::routing::Upstream| upstream.address.rsplit(':').next().unwrap().parse().ok();
    let asked = |host: &str| decide(document, host, &request.target, NODE);
    let mut expected = asked(&request.host);
    if kind.is_traefik() {
        let exact = |host: &str| document.routes.iter().any(|route| route.host.eq_ignore_ascii_case(host));
        let name = request.host.split(':').next().unwrap_or_default();
        if let Some(base) = name.strip_prefix("*.") {
            // Any label that no exact host has.
            expected = asked(&format!("no-such-label.{base}"));
        } else if let Some(bare) = name.strip_suffix('.')
            && !exact(bare)
            && document.api.iter().all(|api| api.hosts.iter().all(|host| !host.eq_ignore_ascii_case(bare)))
        {
            expected = Decision::Unknown;
        }
    }
    match (&expected, outcome) {
        (Decision::Forward(_, upstreams), Outcome::Reached(reached)) => {
            let balanced = kind.is_traefik() && upstreams.iter().all(|upstream| upstream.node.as_str() != NODE);
            let tried = if balanced { upstreams.len() } else { 1 };
            upstreams.iter().take(tried).any(|upstream| port(upstream) == Some(*reached))
        }
        (Decision::Denied, Outcome::Denied) | (Decision::Unknown, Outcome::Unknown) => true,
        _ => false,
    }
}

async fn asked(ingress: &Ingress, request: &Request) -> Outcome {
    match ingress.ask(&request.host, &request.target).await {
        Ok(answer) => outcome(ingress.kind(), answer),
        Err(error) => panic!("{:?} {request:?}: {error}", ingress.kind()),
    }
}

fn seed() -> u64 {
    std::env::var("SCAFO_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random)
}

#[tokio::test(flavor = "multi_thread")]
async fn four_consumers_decide_alike() {
    let (documents, of_each) = if crate::long() { (50, 50) } else { (12, 50) };
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let (node, echo) = (FakeNode::start().await, Echo::start(PORTS).await);
    let ports = echo.ports();
    let ingresses = Ingress::start_each(&Kind::WITH_OLDEST, &node.source()).await;
    for number in 0..documents {
        let plan = Plan::random(&mut rng, &ports, number);
        node.say(Says::Document(plan.document.clone()));
        let marked = format!("reached {} ", ports[number % ports.len()]);
        join_all(ingresses.iter().map(|ingress| ingress.until_answered(&plan.marker, "/", 200, &marked, LIMIT))).await;
        let sorts = [Sort::Exact, Sort::Wildcard, Sort::Denied, Sort::NearMiss];
        let sorts = sorts.iter().flat_map(|sort| std::iter::repeat_n(*sort, of_each));
        let requests: Vec<Request> = sorts.map(|sort| plan.request(&mut rng, sort)).collect();
        let differing: Vec<String> = futures_util::stream::iter(&requests)
            .map(|request| differences(&ingresses, &plan.document, request))
            .buffer_unordered(AT_ONCE)
            .concat()
            .await;
        assert!(
            differing.is_empty(),
            "SCAFO_TEST_SEED={seed}, document {number}: {}\n{:#?}",
            serde_json::to_string(&plan.document).unwrap(),
            &differing[..differing.len().min(10)]
        );
    }
}

async fn differences(ingresses: &[Ingress], document: &FleetRouting, request: &Request) -> Vec<String> {
    let mut differing = Vec::new();
    for ingress in ingresses {
        let outcome = asked(ingress, request).await;
        if !agrees(ingress.kind(), document, request, &outcome) {
            let expected = decide(document, &request.host, &request.target, NODE);
            differing.push(format!("{:?} {request:?}: {outcome:?}, not {expected:?}", ingress.kind()));
        }
    }
    differing
}

/// Targets that ours refuse as no HTTP (RFC 9112 §3.2). Go reads a scheme and no path in them, and the oldest Traefik, whose rules
/// have seen none then, passes on what stands after the scheme.
const ROOTLESS: [&str; 6] = [
    "x:http://dev.example/v1/storage",
    "http:http://dev.example/v1/storage/list?prefix=",
    "x:https://other.example/v1/ingress/routes",
    "x:x://dev.example/v1/storage",
    "x:http:/v1/storage",
    "x:v1/storage",
];

/// However a denied path is spelled, ours answer it themselves, and what a Traefik passes on is nothing that a node takes for one.
#[tokio::test(flavor = "multi_thread")]
async fn no_spelling_of_a_denied_path_arrives() {
    let (node, echo) = (FakeNode::start().await, Echo::start(1).await);
    let api = json!({"hosts": ["dev.example"], "upstreams": [upstream(NODE, echo.ports()[0])], "denied": DENIED});
    node.say(Says::Document(serde_json::from_value(json!({"v": 1, "routes": [], "api": api})).unwrap()));
    let ingresses = Ingress::start_each(&Kind::WITH_OLDEST, &node.source()).await;
    let plain = [
        "/v1//storage",
        "//v1/storage",
        "/v1/./storage",
        "/v1/x/../storage",
        "/../v1/storage",
        "/v1/%73torage",
        "/v1/%2573torage",
        "/%76%31/%73torage/objects/x",
        "/v1%2Fstorage",
        "/v1%2fstorage/objects/x",
        "/v1/x/%2e%2e/storage",
        "/v1/x/%2E%2E%2Fstorage",
        "/v1\\storage",
        "/v1%5Cstorage",
        "/v1/storage%2Fobjects",
        "/v1/storage/../storage/x",
        "/v1/storage/",
        "/v1/storage//",
        "/v1/storage?x",
        "/v1/ingress//routes",
        "/v1/ingress/%72outes/traefik",
        "/v1/ingress/routes/../routes",
        "http://dev.example/v1/storage",
        "http://dev.example//v1/ingress/routes",
    ];
    for ingress in &ingresses {
        ingress.until_answered("dev.example", "/v1/applications", 200, "reached", LIMIT).await;
        for target in plain {
            let answer = ingress.ask("dev.example", target).await.unwrap();
            assert!(is_kept_out(ingress.kind(), &answer, 404), "{:?} {target}: {answer:?}", ingress.kind());
        }
        for target in ROOTLESS {
            let answer = ingress.ask("dev.example", target).await.unwrap();
            assert!(is_kept_out(ingress.kind(), &answer, 400), "{:?} {target}: {answer:?}", ingress.kind());
        }
        // The host of a target in absolute form is the host (RFC 9112 §3.2.2), and nobody serves this one.
        let answer = ingress.ask("dev.example", "http://other.example/v1/storage").await.unwrap();
        let outcome = outcome(ingress.kind(), answer);
        assert_eq!(outcome, Outcome::Unknown, "{:?}", ingress.kind());
    }
}

/// Whether the ingress has answered itself, ours with that status, or passed on what a node takes for nothing that is denied.
fn is_kept_out(kind: Kind, answer: &Answer, status: u16) -> bool {
    let denied = answer.body.contains("not served to the outside");
    match (kind, reached(&answer.body)) {
        (Kind::Caddy | Kind::Ingressd, None) => answer.status == status && (status == 400 || denied),
        (Kind::Caddy | Kind::Ingressd, Some(_)) => false,
        (Kind::Traefik | Kind::OldestTraefik, None) => [400, 418].contains(&answer.status),
        (Kind::Traefik | Kind::OldestTraefik, Some((_, arrived))) => {
            let bare = arrived.split_once("://").map(|(_, rest)| rest.find('/').map_or("", |path| &rest[path..]));
            let path = bare.unwrap_or(arrived).split('?').next().unwrap_or_default();
            // A node hides these paths from targets in absolute form, for the sake of this Traefik alone.
            !is_denied(path, &DENIED) || kind == Kind::OldestTraefik && bare.is_some()
        }
    }
}

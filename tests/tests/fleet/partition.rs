//! Three nodes in network namespaces of their own, on one bridge with the host of their bucket; one is cut off, and comes back.

use std::net::Ipv4Addr;
use std::process::Command;

use reqwest::Method;
use scafo_tests::fault_proxy::FaultProxy;
use scafo_tests::fleet::Fleet;
use scafo_tests::node::Place;
use scafo_tests::{Node, Project};
use serde_json::{Value, json};

use crate::support::{LIMIT, call, ended, id, record, send_deploy, until};

const NODES: usize = 3;

/// Namespaces, a bridge between them on which the host of the bucket is, and a link to each of them that is never cut, for
/// the test. All of it goes when this is dropped.
struct Network {
    name: String,
    /// Second and third part of all addresses; another test may run at the same time.
    subnet: (u8, u8),
    namespaces: Vec<String>,
    links: Vec<String>,
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

impl Network {
    /// # Errors
    /// Why this machine does not allow it.
    fn new() -> Result<Self, String> {
        let name = format!("sc{:05x}", rand::random::<u32>() & 0xF_FFFF);
        // Private addresses (RFC 1918), since celld opens its internal port on no other; these are rarely in use.
        let subnet = (192 + rand::random::<u8>() % 64, rand::random());
        let mut network = Self { name, subnet, namespaces: Vec::new(), links: Vec::new() };
        network.build()?;
        Ok(network)
    }

    fn build(&mut self) -> Result<(), String> {
        let bridge = format!("{}b", self.name);
        ip(&format!("link add {bridge} type bridge"))?;
        self.links.push(bridge.clone());
        ip(&format!("addr add {}/25 dev {bridge}", self.store()))?;
        ip(&format!("link set {bridge} up"))?;
        for number in 0..NODES {
            let namespace = format!("{}n{number}", self.name);
            ip(&format!("netns add {namespace}"))?;
            self.namespaces.push(namespace.clone());
            ip(&format!("-n {namespace} link set lo up"))?;
            let links = [
                (self.link(number), "bus", format!("{}/25", self.bus(number))),
                (format!("{}m{number}", self.name), "own", format!("{}/30", self.own(number))),
            ];
            for (outside, inside, address) in links {
                ip(&format!("link add {outside} type veth peer name {inside} netns {namespace}"))?;
                self.links.push(outside.clone());
                ip(&format!("-n {namespace} addr add {address} dev {inside}"))?;
                ip(&format!("-n {namespace} link set {inside} up"))?;
                ip(&format!("link set {outside} up"))?;
            }
            ip(&format!("link set {} master {bridge}", self.link(number)))?;
            ip(&format!("addr add {}/30 dev {}m{number}", self.beside(number), self.name))?;
        }
        Ok(())
    }

    fn address(&self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.subnet.0, self.subnet.1, last)
    }

    /// Of the host of the bucket, on the bridge.
    fn store(&self) -> Ipv4Addr {
        self.address(1)
    }

    /// Of a node, on the bridge.
    fn bus(&self, number: usize) -> Ipv4Addr {
        self.address(11 + u8::try_from(number).unwrap())
    }

    /// Of a node, on its link to the test.
    fn own(&self, number: usize) -> Ipv4Addr {
        self.address(130 + 4 * u8::try_from(number).unwrap())
    }

    /// Of the test, on that link.
    fn beside(&self, number: usize) -> Ipv4Addr {
        self.address(129 + 4 * u8::try_from(number).unwrap())
    }

    fn link(&self, number: usize) -> String {
        format!("{}v{number}", self.name)
    }

    fn place(&self, number: usize) -> Place {
        Place { address: self.own(number).to_string(), namespace: Some(self.namespaces[number].clone()) }
    }

    /// Takes a node off the bridge.
    fn cut(&self, number: usize) {
        ip(&format!("link set {} down", self.link(number))).unwrap();
    }

    fn heal(&self, number: usize) {
        ip(&format!("link set {} up", self.link(number))).unwrap();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for link in &self.links {
            let _ = ip(&format!("link del {link}"));
        }
        for namespace in &self.namespaces {
            let _ = ip(&format!("netns del {namespace}"));
        }
    }
}

/// A fleet on such a network.
struct Cut {
    // In the order in which they have to go.
    nodes: Vec<Node>,
    _proxy: FaultProxy,
    fleet: Fleet,
    network: Network,
}

impl Cut {
    async fn start() -> Result<Self, String> {
        let network = Network::new()?;
        let fleet = Fleet::new(&[]).await;
        // No faults: it is the bucket's address on the bridge.
        let proxy = FaultProxy::start_on((network.store(), 0).into(), fleet.store.access(), 1).await.unwrap();
        let mut nodes = Vec::new();
        for number in 0..NODES {
            let address = network.bus(number).to_string();
            let more = [("SCAFO_BUCKET_ENDPOINT", proxy.endpoint()), ("SCAFO_NODE_ADDRESS", address.as_str())];
            nodes.push(fleet.node_at(&network.place(number), &id(number), &more).await);
        }
        Ok(Self { nodes, _proxy: proxy, fleet, network })
    }

    /// The two that are not this one.
    fn others(&self, number: usize) -> Vec<&Node> {
        (0..NODES).filter(|other| *other != number).map(|other| &self.nodes[other]).collect()
    }
}

async fn document(node: &Node) -> Option<Vec<u8>> {
    let answer = node.api().ingress("/v1/ingress/routes").send().await.ok()?;
    (answer.status().as_u16() == 200).then_some(answer.bytes().await.ok()?.to_vec())
}

/// Whether this node says that it coordinates.
async fn coordinates(node: &Node) -> bool {
    let (_, state) = call(&node.api(), Method::GET, "/v1/state", None).await;
    state["coordinator"]["self"] == true
}

/// The nodes of an application, as the bucket has them.
async fn placed(cut: &Cut, application: &str) -> Vec<String> {
    let placement = record(&cut.fleet.store, &format!("_scafo/placement/{application}.json")).await;
    let nodes = placement.map(|placement| placement["nodes"].clone()).unwrap_or_default();
    serde_json::from_value(nodes).unwrap_or_default()
}

fn upstreams(document: &[u8], host: &str) -> Vec<String> {
    let document: Value = serde_json::from_slice(document).unwrap_or_default();
    let routes = document["routes"].as_array().cloned().unwrap_or_default();
    let route = routes.into_iter().find(|route| route["host"] == host).unwrap_or_default();
    let upstreams = route["upstreams"].as_array().cloned().unwrap_or_default();
    let mut nodes: Vec<String> =
        upstreams.iter().filter_map(|upstream| upstream["node"].as_str().map(str::to_owned)).collect();
    nodes.sort();
    nodes
}

async fn deploy(node: &Node, application: &str, answer: &str) {
    let api = node.api();
    let project = Project::answering(application, answer);
    let deploy = send_deploy(&api, application, &project).await.unwrap();
    let deploy = ended(&api, &deploy).await;
    assert_eq!(deploy["state"], "deployed", "{deploy}\n{}", node.log());
}

async fn replicas(node: &Node, application: &str, count: usize) {
    let path = format!("/v1/applications/{application}/replicas");
    let (status, body) = call(&node.api(), Method::POST, &path, Some(json!({ "replicas": count }))).await;
    assert_eq!(status, 200, "{body}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_cut_off_serves_on_and_the_others_take_over_until_it_is_back() {
    let cut = match Cut::start().await {
        Ok(cut) => cut,
        Err(why) => {
            eprintln!("SKIPPED: no network of its own for this test: {why}");
            return;
        }
    };
    deploy(&cut.nodes[0], "shop", "the shop").await;
    deploy(&cut.nodes[1], "blog", "the blog").await;
    replicas(&cut.nodes[0], "shop", 2).await;
    let host = cut.nodes[0].host("shop");
    until("two nodes to serve the shop", &cut.nodes, || async {
        for node in &cut.nodes {
            let served = document(node).await.map(|document| upstreams(&document, &host));
            if served.as_ref().map(Vec::len) != Some(2) {
                return Err(format!("{served:?}"));
            }
        }
        Ok(())
    })
    .await;

    // The one that is cut off holds the lease if it can: then the fence has to hold too.
    let mut lost = 0;
    for (number, node) in cut.nodes.iter().enumerate() {
        if coordinates(node).await {
            lost = number;
        }
    }
    let served = placed(&cut, "shop").await;
    let at_lost = served.contains(&id(lost));
    let before = record(&cut.fleet.store, "_scafo/coordinator/lease.json").await.unwrap();
    let last = document(&cut.nodes[lost]).await.unwrap();
    cut.network.cut(lost);
    println!("{} is cut off; the shop is on {served:?}", id(lost));
    assert_eq!(document(&cut.nodes[lost]).await.unwrap(), last, "it keeps to its last snapshot");

    take_over(&cut, lost, &host).await;
    let after = record(&cut.fleet.store, "_scafo/coordinator/lease.json").await.unwrap();
    assert!(after["fence"].as_u64() > before["fence"].as_u64(), "{before} {after}");
    assert_ne!(after["node"], json!(id(lost)));
    // What the rest decides meanwhile, and what the lost one says.
    let others = cut.others(lost);
    replicas(others[0], "blog", 2).await;
    deploy(others[1], "news", "the news").await;
    let kept = document(&cut.nodes[lost]).await.unwrap();
    // Its own processes have fenced themselves by now, as celld does without its bucket; of the others it knows what it knew.
    let of_others = |document: &[u8]| {
        let upstreams = upstreams(document, &host);
        upstreams.into_iter().filter(|node| *node != id(lost)).collect::<Vec<String>>()
    };
    assert_eq!(of_others(&kept), of_others(&last), "it keeps to its last snapshot");
    assert_eq!(upstreams(&kept, &cut.nodes[lost].host("news")), Vec::<String>::new());
    assert!(!coordinates(&cut.nodes[lost]).await, "its lease has lapsed by its own clock");
    let refused = call(&cut.nodes[lost].api(), Method::POST, "/v1/applications/shop/block", None).await;
    assert!(refused.0 == 503 || refused.0 == 0, "it cannot have changed anything: {refused:?}");
    println!("the others have taken over; the shop was {}on the lost node", if at_lost { "" } else { "not " });

    cut.network.heal(lost);
    together(&cut).await;
    let record = record(&cut.fleet.store, "_scafo/applications/blog.json").await.unwrap();
    assert_eq!(record["replicas"], 2, "what was acknowledged stands");
    for node in cut.nodes {
        node.stop().await;
    }
}

/// The rest of the fleet elects, places anew after liveness, and routes around the lost node.
async fn take_over(cut: &Cut, lost: usize, host: &str) {
    let others = cut.others(lost);
    until("the others to take over", &cut.nodes, || async {
        let mut holders = 0;
        for node in &others {
            holders += usize::from(coordinates(node).await);
            let served = document(node).await.map(|document| upstreams(&document, host)).unwrap_or_default();
            if served.len() != 2 || served.contains(&id(lost)) {
                return Err(format!("{} routes to {served:?}", node.dev.node));
            }
            for (application, answer) in [("shop", "the shop"), ("blog", "the blog")] {
                let answered = node.get(application, "/").await;
                if !matches!(&answered, Ok((200, body)) if body == answer) {
                    return Err(format!("{application} at {}: {answered:?}", node.dev.node));
                }
            }
        }
        if holders == 1 { Ok(()) } else { Err(format!("{holders} of the others coordinate")) }
    })
    .await;
}

/// All nodes know and serve the same again, with one coordinator, and nothing runs where it is not placed.
async fn together(cut: &Cut) {
    until("the fleet to be one again", &cut.nodes, || async {
        let (mut holders, mut seen) = (0, Vec::new());
        for (number, node) in cut.nodes.iter().enumerate() {
            holders += usize::from(coordinates(node).await);
            let path = format!("/v1/ingress/routes?prefer={}", id(0));
            let answer = node.api().ingress(&path).send().await.map_err(|error| error.to_string())?;
            seen.push(answer.bytes().await.map_err(|error| error.to_string())?);
            let (_, state) = call(&node.api(), Method::GET, "/v1/state", None).await;
            let processes = state["processes"].as_array().ok_or_else(|| format!("{state}"))?;
            for application in ["shop", "blog", "news"] {
                let nodes = placed(cut, application).await;
                let wanted = if application == "news" { 1 } else { 2 };
                let runs = processes.iter().any(|process| process["application"] == application);
                if nodes.len() != wanted || runs != nodes.contains(&id(number)) {
                    return Err(format!("{application} is placed on {nodes:?}, and {} runs it: {runs}", id(number)));
                }
                let answered = node.get(application, "/").await;
                if !matches!(&answered, Ok((200, body)) if *body == format!("the {application}")) {
                    return Err(format!("{application} at {}: {answered:?}", node.dev.node));
                }
            }
        }
        let same = seen.windows(2).all(|pair| pair[0] == pair[1]);
        if holders == 1 && same { Ok(()) } else { Err(format!("{holders} coordinate, equal documents: {same}")) }
    })
    .await;
    println!("one fleet again, within {LIMIT:?}");
}

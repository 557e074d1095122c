//! What the tests of fleets have in common.

use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::Method;
use scafo_store::{Bucket as _, Put, PutOptions};
use scafo_tests::fault_proxy::FaultProxy;
use scafo_tests::load::{Outcome, send};
use scafo_tests::node::Place;
use scafo_tests::stores::Store;
use scafo_tests::{Api, Node, Project, project, wait};
use serde_json::Value;

/// How long anything may take that is waited for. Applications that ended are started again after a minute at most.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// Whether to run longer than CI has time for.
pub(crate) fn long() -> bool {
    std::env::var_os("SCAFO_TEST_LONG").is_some_and(|value| value == "1")
}

/// The seed of this run: `SCAFO_TEST_SEED` replays one.
pub(crate) fn seed() -> u64 {
    std::env::var("SCAFO_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random)
}

/// A fleet of which each node reaches the bucket through a proxy of its own.
pub(crate) struct Fleet {
    // Nodes end before what they run on.
    pub(crate) nodes: Vec<Node>,
    pub(crate) proxies: Vec<FaultProxy>,
    pub(crate) fleet: scafo_tests::fleet::Fleet,
}

impl Fleet {
    pub(crate) async fn start(nodes: usize, seed: u64, environment: &[(&str, &str)]) -> Self {
        let mut started =
            Self { nodes: Vec::new(), proxies: Vec::new(), fleet: scafo_tests::fleet::Fleet::new(environment).await };
        for number in 0..nodes {
            let proxy = FaultProxy::start(started.store().access(), seed.wrapping_add(number as u64)).await.unwrap();
            started.proxies.push(proxy);
            let node = started.node(number).await;
            started.nodes.push(node);
        }
        started
    }

    /// Starts a node, or starts it again.
    pub(crate) async fn node(&self, number: usize) -> Node {
        let address = format!("127.0.0.{}", number + 1);
        let more =
            [("SCAFO_BUCKET_ENDPOINT", self.proxies[number].endpoint()), ("SCAFO_NODE_ADDRESS", address.as_str())];
        self.fleet.node_at(&Place::loopback(&address), &id(number), &more).await
    }

    pub(crate) fn store(&self) -> &Store {
        &self.fleet.store
    }

    pub(crate) async fn stop(self) {
        for node in self.nodes {
            node.stop().await;
        }
    }
}

/// The id of a node.
pub(crate) fn id(number: usize) -> String {
    format!("vps-{number}")
}

/// Status and body of a request, whose body may be empty. No answer at all is status 0.
pub(crate) async fn call(api: &Api, method: Method, path: &str, body: Option<Value>) -> (u16, Value) {
    let request = api.request(method, path);
    let request = match body {
        Some(body) => request.json(&body),
        None => request,
    };
    match send(request).await {
        Outcome::Answered { status, body } => (status, serde_json::from_str(&body).unwrap_or_default()),
        Outcome::Refused | Outcome::Cut(_) => (0, Value::Null),
    }
}

/// Sends a deploy: its id, when it was accepted.
pub(crate) async fn send_deploy(api: &Api, application: &str, files: &Project) -> Result<String, (u16, Value)> {
    let request = api.request(Method::POST, &format!("/v1/applications/{application}/deploys"));
    let request = request
        .header("content-type", "application/octet-stream")
        .header(scafo_core::deploy::HEADER, scafo_core::deploy::Metadata::default().encode())
        .body(project::pack(files.path()));
    match send(request).await {
        Outcome::Answered { status: 202, body } => {
            let deploy: Value = serde_json::from_str(&body).unwrap();
            Ok(deploy["id"].as_str().unwrap().to_owned())
        }
        Outcome::Answered { status, body } => Err((status, serde_json::from_str(&body).unwrap_or_default())),
        Outcome::Refused | Outcome::Cut(_) => Err((0, Value::Null)),
    }
}

/// Waits for the end of a deploy that was accepted: `deployed` or `failed`.
pub(crate) async fn ended(api: &Api, deploy: &str) -> Value {
    wait::until(&format!("the end of {deploy}"), LIMIT * 2, || async {
        let (status, deploy) = call(api, Method::GET, &format!("/v1/deploys/{deploy}"), None).await;
        (status == 200 && ["deployed", "failed"].contains(&deploy["state"].as_str()?)).then_some(deploy)
    })
    .await
}

/// A record of the true store.
pub(crate) async fn record(store: &Store, key: &str) -> Option<Value> {
    let object = store.bucket().get(key).await.expect("the true store answers")?;
    serde_json::from_slice(&object.body).ok()
}

/// Puts any bytes into the true store.
pub(crate) async fn put(store: &Store, key: &str, body: impl Into<Bytes>) {
    let put = store.bucket().put(key, body.into(), PutOptions::default()).await.expect("an outcome");
    assert!(matches!(put, Put::Written(_)), "{put:?}");
}

/// Waits, and says more than what was waited for when that does not come.
pub(crate) async fn until<F: Future<Output = Result<(), String>>>(
    what: &str,
    nodes: &[Node],
    mut condition: impl FnMut() -> F,
) {
    let started = Instant::now();
    loop {
        let Err(why) = condition().await else { return };
        if started.elapsed() > LIMIT {
            let logs: Vec<String> = nodes.iter().map(|node| format!("== {}\n{}", node.dev.node, tail(node))).collect();
            panic!("waited {LIMIT:?} for {what}: {why}\n{}", logs.join("\n"));
        }
        wait::moment().await;
    }
}

fn tail(node: &Node) -> String {
    let log = node.log();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}

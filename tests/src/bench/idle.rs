//! How many requests idle nodes send to their bucket, at the default intervals: with few and many applications, and with few and
//! many nodes. Counted in front of the bucket, by what they are about.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use scafo_core::record::NodeRecord;
use scafo_registryd::registry::{Registry, SystemClock};
use scafo_store::{Bucket as _, PutOptions};
use scafo_tests::fault_proxy::{Exchange, FaultProxy, Operation};
use scafo_tests::fleet::{DEFAULTS, Fleet};
use scafo_tests::node::Place;
use scafo_tests::{Node, wait};
use tokio::task::JoinSet;

/// Applications, and nodes that do nothing but send their heartbeats, beside the two that are looked at.
const SCENES: [(usize, usize); 4] = [(10, 0), (100, 0), (1_000, 0), (10, 98)];
const WINDOW: Duration = Duration::from_secs(60);
/// What the design allows a node, and one that coordinates, at the default intervals.
const GOALS: (usize, usize) = (22, 32);
/// How long a fleet may take to come to rest: a thousand placements are written one after the other.
const REST: Duration = Duration::from_secs(60);
/// Time without a write but the regular ones, after which a fleet is at rest: longer than a pass and a hint.
const STILL: Duration = Duration::from_secs(12);

/// Two nodes on a bucket with so many applications and other nodes.
struct Scene {
    applications: usize,
    others: usize,
    nodes: Vec<(Node, FaultProxy)>,
    fleet: Fleet,
}

pub(crate) async fn run() {
    println!(
        "## idle: requests to the bucket in {} s (goal for a node ≤ {}, coordinating ≤ {})",
        WINDOW.as_secs(),
        GOALS.0,
        GOALS.1
    );
    let mut starting = JoinSet::new();
    for (applications, others) in SCENES {
        starting.spawn(Scene::start(applications, others));
    }
    let mut scenes = starting.join_all().await;
    scenes.sort_by_key(|scene| (scene.others, scene.applications));
    let mut beats = JoinSet::new();
    for scene in &scenes {
        beats.spawn(heartbeats(registry(&scene.fleet), scene.others));
    }
    for scene in &scenes {
        scene.rest().await;
    }
    let started = Instant::now();
    for scene in &scenes {
        scene.forget();
    }
    tokio::time::sleep(WINDOW).await;
    let minute = 60.0 / started.elapsed().as_secs_f64();
    // All of them before the first one stops, which takes a while in which the others go on.
    for scene in &scenes {
        scene.report(minute);
    }
    for scene in scenes {
        for (node, _) in scene.nodes {
            node.stop().await;
        }
    }
    beats.shutdown().await;
    println!();
}

fn registry(fleet: &Fleet) -> Registry {
    Registry::new(std::sync::Arc::new(fleet.store.bucket()), std::sync::Arc::new(SystemClock), "bench")
}

impl Scene {
    async fn start(applications: usize, others: usize) -> Self {
        let fleet = Fleet::new(&DEFAULTS).await;
        let registry = registry(&fleet);
        let nowhere = [("bench".to_owned(), "nowhere".to_owned())].into();
        for number in 0..applications {
            let name = format!("app-{number}").parse().expect("a name");
            registry.create_application(&name).await.expect("an application");
            // Nothing runs of it: the cost is that of records.
            registry.set_selector(&name, Some(&nowhere)).await.expect("an application");
        }
        let mut nodes = Vec::new();
        for number in 0..2 {
            let proxy = FaultProxy::start(fleet.store.access(), 1).await.expect("a proxy");
            let more = [("SCAFO_BUCKET_ENDPOINT", proxy.endpoint())];
            let node = fleet.node_at(&Place::default(), &format!("vps-{number}"), &more).await;
            nodes.push((node, proxy));
        }
        join(&registry, others).await;
        Self { applications, others, nodes, fleet }
    }

    /// Waits until everything is placed and nothing moves any more.
    async fn rest(&self) {
        let bucket = self.fleet.store.bucket();
        wait::until("all placements", REST, || async {
            let placed = bucket.list("_scafo/placement/").await.ok()?.entries.len();
            (placed >= self.applications).then_some(())
        })
        .await;
        let mut last = (moving(&self.nodes), Instant::now());
        wait::until("rest", REST * 2, || {
            let now = moving(&self.nodes);
            if now != last.0 {
                last = (now, Instant::now());
            }
            let still = last.1.elapsed() > STILL;
            async move { still.then_some(()) }
        })
        .await;
    }

    fn forget(&self) {
        for (_, proxy) in &self.nodes {
            proxy.take_log();
        }
    }

    fn report(&self, minute: f64) {
        for (_, proxy) in &self.nodes {
            let log = proxy.take_log();
            let coordinates =
                log.iter().any(|it| it.asked.operation == Operation::Put && it.asked.key.contains("lease"));
            let (role, goal) = if coordinates { ("coordinates", GOALS.1) } else { ("follows", GOALS.0) };
            let mut about: BTreeMap<String, usize> = BTreeMap::new();
            for exchange in &log {
                *about.entry(subject(exchange)).or_default() += 1;
            }
            let about: Vec<String> = about.iter().map(|(subject, count)| format!("{subject} {count}")).collect();
            let count = f64::from(u32::try_from(log.len()).unwrap_or(u32::MAX)) * minute;
            println!(
                "{:>5} applications, {:>3} nodes: {role:<11} {count:>5.1} a minute (goal ≤ {goal})   {}",
                self.applications,
                self.others + 2,
                about.join(", ")
            );
        }
    }
}

/// Writes that an idle node does not make.
fn moving(nodes: &[(Node, FaultProxy)]) -> usize {
    let regular = ["/nodes/", "/coordinator/"];
    let moves = |exchange: &&Exchange| {
        exchange.asked.operation == Operation::Put && !regular.iter().any(|key| exchange.asked.key.contains(key))
    };
    nodes.iter().map(|(_, proxy)| proxy.log().iter().filter(moves).count()).sum()
}

fn subject(exchange: &Exchange) -> String {
    let key = exchange.asked.key.trim_start_matches("_scafo/");
    let kind = key.split('/').next().unwrap_or_default().trim_end_matches(".json");
    format!("{:?} {kind}", exchange.asked.operation).to_lowercase()
}

/// The records of nodes that are nowhere.
async fn join(registry: &Registry, others: usize) {
    let Some(own) = registry.node(&"vps-0".parse().expect("an id")).await.expect("a record") else { return };
    for number in 0..others {
        let id = format!("silent-{number}").parse().expect("an id");
        put(registry, &NodeRecord { id, serving: Vec::new(), ..own.record.clone() }).await;
    }
    registry.mint_hint();
}

/// Keeps them alive.
async fn heartbeats(registry: Registry, others: usize) {
    let mut every = tokio::time::interval(Duration::from_secs(30));
    loop {
        every.tick().await;
        for number in 0..others {
            let id = format!("silent-{number}").parse().expect("an id");
            let Ok(Some(stored)) = registry.node(&id).await else { continue };
            let heartbeat_at = scafo_core::Timestamp::from_system(std::time::SystemTime::now());
            put(&registry, &NodeRecord { heartbeat_at, ..stored.record }).await;
        }
    }
}

async fn put(registry: &Registry, node: &NodeRecord) {
    let body = scafo_core::record::to_bytes(node);
    let key = scafo_core::key::node(node.id.as_str());
    registry.bucket().put(&key, body.into(), PutOptions::default()).await.expect("an outcome");
}

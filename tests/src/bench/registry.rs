//! What a large fleet costs the node that coordinates it: reading everything at a cold start, and placing it.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ed25519_dalek::SigningKey;
use scafo_core::record::{
    ApplicationRecord, DomainClaim, Fence, NodeRecord, PlacementRecord, ProcessState, Replicas, Rest, Serving, V1,
    to_bytes,
};
use scafo_core::token::PublicKey;
use scafo_core::{ApplicationName, NodeId, Timestamp};
use scafo_registryd::measure::Placing;
use scafo_registryd::registry::{Cache, Kind, Read, Registry, SystemClock};
use scafo_store::{Bucket as _, MemoryBucket, PutOptions};

const APPLICATIONS: usize = 10_000;
/// Hosts of each application; with its own record and its placement that makes 50,000 records.
const HOSTS: usize = 3;
const NODES: usize = 100;
/// One in so many applications is placed the naive way, so that this ends in a debug build too.
const SAMPLE: u32 = 20;

pub(crate) async fn run() {
    cold_start().await;
    placing();
}

fn now() -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000)
}

fn name(index: usize) -> ApplicationName {
    format!("app-{index}").parse().expect("a name")
}

fn node_id(index: usize) -> NodeId {
    format!("node-{index}").parse().expect("an id")
}

fn application(index: usize) -> ApplicationRecord {
    let body = serde_json::json!({
        "v": 1, "name": name(index), "createdAt": now(), "blocked": false, "domains": [], "wildcardDomains": [],
    });
    serde_json::from_value(body).expect("a record")
}

fn placement(index: usize) -> PlacementRecord {
    PlacementRecord {
        v: V1,
        application: name(index),
        nodes: vec![node_id(index % NODES)],
        wanted: 1,
        reason: None,
        fence: Fence(1),
        updated_at: now(),
        rest: Rest::new(),
    }
}

fn claim(index: usize, host: usize) -> DomainClaim {
    DomainClaim {
        v: V1,
        host: format!("host-{host}.app-{index}.example").parse().expect("a host"),
        application: name(index),
        wildcard: false,
        claimed_at: now(),
        by: "bench".to_owned(),
        nonce: Some(format!("{index}-{host}")),
        released: false,
        rest: Rest::new(),
    }
}

async fn put<T: Kind>(memory: &MemoryBucket, record: &T) {
    memory.put(&record.key(), Bytes::from(to_bytes(record)), PutOptions::default()).await.expect("a store in memory");
}

/// What one refresh of every cache takes.
struct Caches {
    applications: Cache<ApplicationRecord>,
    placements: Cache<PlacementRecord>,
    claims: Cache<DomainClaim>,
}

impl Caches {
    async fn refresh(&mut self, registry: &Registry) -> Duration {
        let started = Instant::now();
        let engine = registry.engine();
        self.applications.refresh(engine, Read::Moved).await.expect("a listing");
        self.placements.refresh(engine, Read::Moved).await.expect("a listing");
        self.claims.refresh(engine, Read::Moved).await.expect("a listing");
        started.elapsed()
    }
}

async fn cold_start() {
    let records = APPLICATIONS * (2 + HOSTS);
    println!("## registry: {APPLICATIONS} applications, {records} records, a store in memory (no network)");
    let memory = Arc::new(MemoryBucket::new());
    for index in 0..APPLICATIONS {
        put(&memory, &application(index)).await;
        put(&memory, &placement(index)).await;
        for host in 0..HOSTS {
            put(&memory, &claim(index, host)).await;
        }
    }
    let registry = Registry::new(Arc::clone(&memory) as _, Arc::new(SystemClock), "bench");
    let mut caches = Caches { applications: Cache::default(), placements: Cache::default(), claims: Cache::default() };
    let before = registry.requests();
    let cold = caches.refresh(&registry).await;
    let cold_requests = registry.requests() - before;
    let before = registry.requests();
    let warm = caches.refresh(&registry).await;
    let warm_requests = registry.requests() - before;
    // What it would be without a cache, or with one that reads one record after the other.
    let started = Instant::now();
    let listing = registry.engine().list(ApplicationRecord::PREFIX).await.expect("a listing");
    for listed in &listing.entries {
        let loaded = registry.engine().try_load::<ApplicationRecord>(&listed.key).await.expect("a record");
        assert!(loaded.is_some(), "{}", listed.key);
    }
    let naive = started.elapsed() * u32::try_from(2 + HOSTS).unwrap_or(1);
    let row = |what: &str, time: Duration, requests: u64| {
        let ratio = time.as_secs_f64() / warm.as_secs_f64();
        println!("  {what:<28} {:>8.0} ms   {requests:>6} requests   {ratio:>6.1} × warm", time.as_secs_f64() * 1e3);
    };
    row("cold: everything is read", cold, cold_requests);
    row("warm: nothing moved", warm, warm_requests);
    row("one after the other, no cache", naive, cold_requests);
    // Sixteen reads at once, each taking a round trip.
    for (round_trip, far) in [(2, "near"), (20, "another region")] {
        let network = Duration::from_millis(round_trip) * u32::try_from(cold_requests / 16).unwrap_or(u32::MAX);
        println!("  a store {round_trip} ms away ({far}) adds {:.0} s to a cold start", network.as_secs_f64());
    }
    println!();
}

fn node(index: usize) -> NodeRecord {
    let serves = |application: usize| {
        let body = serde_json::json!({
            "application": name(application), "port": 24000, "state": ProcessState::Ready, "celldVersion": "0.6.0",
            "since": now(),
        });
        serde_json::from_value::<Serving>(body).expect("an entry")
    };
    NodeRecord {
        v: V1,
        id: node_id(index),
        public_key: PublicKey::from(&SigningKey::from_bytes(&[1; 32])),
        address: "127.0.0.1".to_owned(),
        api: "127.0.0.1:7400".to_owned(),
        labels: BTreeMap::from([("region".to_owned(), "eu".to_owned()), ("disk".to_owned(), "ssd".to_owned())]),
        platform_domains: Vec::new(),
        api_public: true,
        version: "0.1.0".to_owned(),
        celld_version: Some("0.6.0".to_owned()),
        started_at: now(),
        heartbeat_at: now(),
        leaving: false,
        draining: false,
        drain: None,
        local_only: false,
        fence: Fence(1),
        serving: (0..APPLICATIONS).filter(|application| application % NODES == index).map(serves).collect(),
        rest: Rest::new(),
    }
}

fn placing() {
    println!("## placement: {APPLICATIONS} applications on {NODES} nodes");
    let one = NonZeroU32::MIN;
    let applications = (0..APPLICATIONS)
        .map(|index| ApplicationRecord { replicas: Some(Replicas::Count(one)), ..application(index) })
        .collect();
    let mut fleet = Placing::new(applications, (0..NODES).map(node).collect());
    let timed = |what: &mut dyn FnMut() -> usize| {
        let started = Instant::now();
        let count = what();
        (started.elapsed(), count)
    };
    let (first, all) = timed(&mut || fleet.pass(1));
    assert_eq!(all, APPLICATIONS, "each is placed");
    let (again, none) = timed(&mut || fleet.pass(2));
    assert_eq!(none, 0, "nothing moves by itself");
    let lost = node_id(7);
    let had = fleet.placements().filter(|(_, placement)| placement.nodes.contains(&lost)).count();
    fleet.lose(&lost);
    let (after, moved) = timed(&mut || fleet.pass(3));
    assert_eq!(moved, had, "what the lost node had moves, and nothing else");
    let sample = APPLICATIONS / SAMPLE as usize;
    let (naive, chosen) = timed(&mut || fleet.naive(sample));
    assert_eq!(chosen, sample, "the naive way finds as many places");
    let naive = naive * SAMPLE;
    let row = |what: &str, time: Duration, moved: usize| {
        let ratio = naive.as_secs_f64() / time.as_secs_f64();
        println!("  {what:<49} {:>8.1} ms   {moved:>6} placements   naive/this {ratio:>5.1}", time.as_secs_f64() * 1e3);
    };
    row("first pass: everything is placed", first, all);
    row("a pass in which nothing moves", again, none);
    row("a pass after a node was lost", after, moved);
    row("naive (of a sample): every process of every node", naive, APPLICATIONS);
    println!();
}

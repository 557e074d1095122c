//! What idle fleets send to their bucket in a minute, and what that costs: the daemon's own code on virtual time, up to a thousand
//! nodes. `idle` counts the same in front of a real bucket, for a few.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ed25519_dalek::SigningKey;
use scafo_core::settings::{BucketAccess, Millis, NodeIdentity, RegistrydSettings, Secret};
use scafo_core::token::PublicKey;
use scafo_registryd::measure::idle::{self, Counted, Does, Requests, Scene};

const NODES: [usize; 4] = [1, 10, 100, 1_000];
const APPLICATIONS: [usize; 4] = [10, 100, 1_000, 10_000];
/// Scenes with more nodes × applications than this are left out: each node holds every record in memory, here in one process.
const LARGEST: usize = 100_000;
/// Applications that run on each node; the others have only their records.
const RUNNING: usize = 10;
/// All nodes start at once; so long they may take to come to rest, and so long requests are counted then: every node looks at
/// everything once meanwhile.
const TIMES: (Duration, Duration) = (Duration::from_mins(4), Duration::from_mins(20));
/// The same beyond [`MANY`] applications: the coordinator first reads all claims and deploys once, a page of 1,000 in each minute,
/// and nodes look at everything less often.
const TIMES_OF_MANY: (Duration, Duration) = (Duration::from_mins(12), Duration::from_mins(40));
const MANY: usize = 1_000;
const SEED: u64 = 1;

/// Intervals, at their defaults.
const LEASE_TTL: Millis = Millis(15_000);
const HEARTBEAT: Millis = Millis(30_000);
const LIVENESS: Millis = Millis(90_000);
const RECONCILE: Millis = Millis(5_000);

/// What the design allows a node, and one that coordinates, in a minute. One request of each is for observations, which are not
/// simulated.
const GOALS: (f64, f64) = (22.0, 32.0);

/// Public prices in US dollars for a thousand requests, as large stores ask them for their standard class.
const USD_PER_1000_WRITES_AND_LISTINGS: f64 = 0.005;
const USD_PER_1000_READS: f64 = 0.0004;
const MINUTES_OF_A_MONTH: f64 = 30.0 * 24.0 * 60.0;

type Outcome = Result<(Vec<Counted>, Duration), String>;

pub(crate) fn run() {
    println!(
        "## simulate: requests of an idle fleet in a minute, on virtual time (goal for a node ≤ {}, \
         coordinating ≤ {}); {USD_PER_1000_WRITES_AND_LISTINGS} USD per 1,000 PUT and LIST, {USD_PER_1000_READS} per 1,000 GET",
        GOALS.0, GOALS.1
    );
    let all: Vec<(usize, usize)> =
        NODES.iter().flat_map(|nodes| APPLICATIONS.iter().map(|applications| (*nodes, *applications))).collect();
    let (mut scenes, left_out): (Vec<_>, Vec<_>) = all.into_iter().partition(|(nodes, held)| nodes * held <= LARGEST);
    // The quick ones first: whoever ends this early has their figures.
    scenes.sort_by_key(|(nodes, held)| (nodes * held, *nodes));
    simulate(&scenes);
    let left_out: Vec<String> = left_out.iter().map(|(nodes, held)| format!("{nodes} × {held}")).collect();
    println!("  not simulated for their size (nodes × applications): {}\n", left_out.join(", "));
}

/// As many at once as there are cores, each reported when it ends. Counts do not depend on that.
fn simulate(scenes: &[(usize, usize)]) {
    let next = AtomicUsize::new(0);
    let printing = Mutex::new(());
    let work = || {
        while let Some((nodes, applications)) = scenes.get(next.fetch_add(1, Ordering::Relaxed)) {
            let started = Instant::now();
            let outcome = std::panic::catch_unwind(|| idle::run(&scene_of(*nodes, *applications)));
            let outcome = outcome.unwrap_or_else(|_| Err("it panicked".to_owned()));
            // The lines of two scenes stay apart.
            let _whole = printing.lock().unwrap_or_else(PoisonError::into_inner);
            report(*nodes, *applications, outcome.map(|counted| (counted, started.elapsed())));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from).min(4) {
            scope.spawn(work);
        }
    });
}

fn report(nodes: usize, applications: usize, outcome: Outcome) {
    let (counted, took) = match outcome {
        Ok(outcome) => outcome,
        Err(why) => return println!("{nodes:>5} nodes, {applications:>6} applications: no figures: {why}"),
    };
    let window = times(applications).1;
    let rates = |coordinates: bool| {
        let of = counted.iter().filter(|node| node.coordinates == coordinates);
        of.map(|node| node.per_minute(window)).collect::<Vec<f64>>()
    };
    let (follows, coordinates) = (rates(false), rates(true));
    let total: f64 = follows.iter().chain(&coordinates).sum();
    // A sum of nothing is -0.
    let mean = (follows.iter().sum::<f64>() + 0.0) / follows.len().max(1) as f64;
    let most = follows.iter().copied().fold(0.0, f64::max);
    let month = counted.iter().map(|node| price(&node.requests)).sum::<f64>() * MINUTES_OF_A_MONTH / minutes(window);
    println!(
        "{nodes:>5} nodes, {applications:>6} applications: node {mean:>5.2} (most {most:>5.2}), coordinates {:>5.2}, \
         fleet {total:>8.1}; a month {month:>8.2} USD, {:.2} a node   ({:.0} s)",
        coordinates.iter().sum::<f64>(),
        month / nodes as f64,
        took.as_secs_f64()
    );
    for (role, coordinates) in [("node", false), ("coordinates", true)] {
        let of: Vec<&Counted> = counted.iter().filter(|node| node.coordinates == coordinates).collect();
        if !of.is_empty() {
            println!("{role:>14}: {}", kinds(&of, window));
        }
    }
}

/// The mean of these nodes in a minute, by kind.
fn kinds(nodes: &[&Counted], window: Duration) -> String {
    let mut all = Requests::new();
    for ((does, kind), count) in nodes.iter().flat_map(|node| &node.requests) {
        *all.entry((*does, kind.clone())).or_default() += count;
    }
    let each = |((does, kind), count): (&(Does, String), &u64)| {
        format!("{does} {kind} {:.2}", *count as f64 / nodes.len() as f64 / minutes(window))
    };
    all.iter().map(each).collect::<Vec<_>>().join(", ")
}

fn minutes(window: Duration) -> f64 {
    window.as_secs_f64() / 60.0
}

const fn times(applications: usize) -> (Duration, Duration) {
    if applications > MANY { TIMES_OF_MANY } else { TIMES }
}

/// In US dollars. Deletes are free.
fn price(requests: &Requests) -> f64 {
    let each = |((does, _), count): (&(Does, String), &u64)| {
        let thousand = match does {
            Does::Get => USD_PER_1000_READS,
            Does::Put | Does::List => USD_PER_1000_WRITES_AND_LISTINGS,
            Does::Delete => 0.0,
        };
        *count as f64 * thousand / 1000.0
    };
    requests.iter().map(each).sum()
}

fn scene_of(nodes: usize, applications: usize) -> Scene {
    let (warm_up, window) = times(applications);
    Scene {
        settings: (0..nodes).map(settings).collect(),
        applications,
        running: applications.min(nodes * RUNNING),
        warm_up,
        window,
        seed: SEED,
    }
}

fn settings(index: usize) -> RegistrydSettings {
    let nothing = || PathBuf::from("/nonexistent");
    RegistrydSettings {
        node: NodeIdentity {
            id: format!("node-{index}").parse().expect("an id"),
            public_key: PublicKey::from(&SigningKey::from_bytes(&[1; 32])),
            address: "127.0.0.1".to_owned(),
            api: "127.0.0.1:7400".to_owned(),
            labels: [("region".to_owned(), "eu".to_owned())].into(),
            platform_domains: Vec::new(),
            api_public: true,
            celld_version: Some("0.6.0".to_owned()),
        },
        bucket: BucketAccess {
            name: "simulated".to_owned(),
            prefix: String::new(),
            endpoint: None,
            region: "simulated".to_owned(),
            path_style: true,
            access_key_id: "simulated".to_owned(),
            secret_access_key: Secret::new("simulated"),
            session_token: None,
        },
        embedded: false,
        dir: nothing(),
        supervisor_socket: nothing(),
        figures_sockets: scafo_core::settings::FiguresSockets::default(),
        lease_ttl: LEASE_TTL,
        heartbeat: HEARTBEAT,
        liveness: LIVENESS,
        reconcile_interval: RECONCILE,
        ingress_hold: Millis(35_000),
        deploy_task_timeout: Millis(600_000),
        deploy_jobs: 2,
        deploy_queue: RegistrydSettings::deploy_queue(),
        local_only: false,
        drain_timeout: RegistrydSettings::drain_timeout(),
        observe_flush: None,
        observe_retention: RegistrydSettings::observe_retention(),
        storage_value_bytes: RegistrydSettings::storage_value_bytes(),
    }
}

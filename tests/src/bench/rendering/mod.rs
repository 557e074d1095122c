//! Rendering, beside the same written plainly in JavaScript: whole, after one change, and what it holds in memory.
//!
//! Both read the same snapshot. The times are of what comes after reading it, up to the bytes (in JavaScript, the string) of
//! one document; reading is shown apart. The documents are compared before anything is measured.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use scafo_core::id::NodeId;
use scafo_routerd::document::Document;
use scafo_routerd::documents::Documents;
use scafo_routerd::fleet::Fleet;
use scafo_routerd::render::{Attributes, Format, View};
use scafo_routerd::routes::Catalogue;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::statistics::Sample;

const ROUNDS: usize = 7;
const NODES: usize = 10;
const PREFERRED: [&str; 2] = ["node-3", "node-7"];
const PLAIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/rendering/plain.mjs");

pub(crate) fn run() {
    println!("## rendering: median of {ROUNDS} rounds, {NODES} nodes, two processes for each application");
    let dir = TempDir::new().expect("a directory");
    for (hosts, goals) in [(10_000, (3.0, 5.0)), (100_000, (4.0, 6.0))] {
        let snapshot = dir.path().join(format!("{hosts}.json"));
        fs::write(&snapshot, self::snapshot(hosts).to_string()).expect("a file");
        whole(dir.path(), &snapshot, hosts, goals);
    }
    let largest = dir.path().join("100000.json");
    one_change(&largest);
    memory(&largest);
    println!();
}

/// Four hosts of five come from an application's name, the fifth is claimed by every fourth of them.
pub(crate) fn snapshot(hosts: usize) -> Value {
    let applications = hosts * 4 / 5;
    let name = |index: usize| format!("app-{index:06}");
    let mut serving: Vec<Vec<Value>> = vec![Vec::new(); NODES];
    for index in 0..applications {
        for (copy, at) in [index % NODES, (index * 7 + 1) % NODES].into_iter().enumerate() {
            serving[if copy == 1 && at == index % NODES { (at + 1) % NODES } else { at }].push(json!({
                "application": name(index), "port": 24_000 + index % 8000, "state": "ready",
                "deployment": format!("{index:016x}"), "deploy": format!("{}.{index:016x}", name(index)),
                "adoption": "adopted", "celldVersion": "0.6.0", "since": "2026-04-01T12:30:00.000Z",
            }));
        }
    }
    let nodes: Vec<Value> = serving
        .into_iter()
        .enumerate()
        .map(|(index, serving)| {
            json!({
                "v": 1, "id": format!("node-{index}"), "address": format!("10.83.0.{}", index + 1),
                "api": format!("10.83.0.{}:7400", index + 1), "apiPublic": true, "version": "0.1.0",
                "publicKey": {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
                "startedAt": "2026-04-01T12:30:00.000Z", "heartbeatAt": "2026-04-01T12:30:00.000Z", "serving": serving,
            })
        })
        .collect();
    let applications: Vec<Value> = (0..applications)
        .map(|index| {
            let claimed: Vec<String> =
                (index % 4 == 0).then(|| format!("www.customer-{index}.example")).into_iter().collect();
            json!({"name": name(index), "routable": true, "domains": claimed, "wildcardDomains": []})
        })
        .collect();
    json!({
        "generation": 1, "node": "node-0", "platformDomains": ["apps.example.com"], "apiPublic": true,
        "nodes": nodes, "applications": applications,
    })
}

fn whole(dir: &Path, snapshot: &Path, hosts: usize, goals: (f64, f64)) {
    let plain = javascript(&[snapshot.to_str().unwrap_or_default(), &ROUNDS.to_string(), PREFERRED[0], path(dir)]);
    let bytes = fs::read(snapshot).expect("the snapshot");
    let fleet = Fleet::parse(&bytes).expect("a snapshot");
    let attributes = attributes();
    let node: NodeId = PREFERRED[0].parse().expect("an id");
    let view = |format, prefer| View { format, prefer, attributes: &attributes };
    // Both are kept, as the daemon keeps them.
    let render = |view: View<'_>, fleet: Fleet| {
        let catalogue = Catalogue::new(fleet);
        (view.write(catalogue.routing()), catalogue)
    };
    let (generic, traefik) = (view(Format::Generic, None), view(Format::Traefik, Some(&node)));
    for (view, file) in [(generic, "generic.json"), (traefik, "traefik.json")] {
        let theirs: Value = serde_json::from_slice(&fs::read(dir.join(file)).expect("a document")).expect("JSON");
        let ours: Value = serde_json::from_slice(&render(view, fleet.clone()).0).expect("JSON");
        assert!(ours == theirs, "{file} differs");
    }
    let (mut of_generic, mut of_traefik, mut of_parsing) = (Sample::default(), Sample::default(), Sample::default());
    for _ in 0..ROUNDS {
        for (view, sample) in [(generic, &mut of_generic), (traefik, &mut of_traefik)] {
            let fleet = fleet.clone();
            sample.push(timed(|| render(view, fleet)));
        }
        of_parsing.push(timed(|| Fleet::parse(&bytes)));
    }
    for (name, sample, key, goal) in [
        ("generic", &of_generic, "generic", Some(goals.0)),
        ("Traefik, failover", &of_traefik, "traefik", Some(goals.1)),
        ("reading the snapshot", &of_parsing, "parsed", None),
    ] {
        let (ours, theirs) = (milliseconds(sample.median()), plain[key].as_f64().unwrap_or_default());
        let goal = goal.map(|goal| format!(" (goal ≥ {goal})")).unwrap_or_default();
        println!(
            "{hosts:>7} hosts, {name:<21} {ours:>8.1} ms   JavaScript {theirs:>8.1} ms   ratio {:.1}{goal}",
            theirs / ours
        );
    }
}

/// A process moves to another port, and back.
fn one_change(snapshot: &Path) {
    let bytes = fs::read(snapshot).expect("the snapshot");
    let mut value: Value = serde_json::from_slice(&bytes).expect("JSON");
    value["nodes"][4]["serving"][3000]["port"] = json!(31_999);
    let states =
        [Fleet::parse(&bytes), Fleet::parse(value.to_string().as_bytes())].map(|fleet| fleet.expect("a snapshot"));
    let attributes = attributes();
    let view = View { format: Format::Generic, prefer: None, attributes: &attributes };
    let (mut whole, mut changed) = (Sample::default(), Sample::default());
    for _ in 0..3 {
        let fleet = states[0].clone();
        whole.push(timed(|| {
            let catalogue = Catalogue::new(fleet);
            (Document::write(&view, catalogue.routing(), None).expect("a document"), catalogue)
        }));
    }
    let mut catalogue = Catalogue::new(states[0].clone());
    let mut document = Document::write(&view, catalogue.routing(), None).expect("a document");
    for round in 1..=2 * ROUNDS {
        let fleet = states[round % 2].clone();
        let before = document.etag.clone();
        changed.push(timed(|| {
            assert!(catalogue.follow(fleet));
            document = Document::write(&view, catalogue.routing(), Some(&document)).expect("a document");
        }));
        assert_ne!(document.etag, before);
    }
    let ratio = milliseconds(whole.median()) / milliseconds(changed.median());
    println!(
        "one host changed of 100000, with its gzip form: {:.2} ms   rendered and compressed whole {:.1} ms   ratio {ratio:.0} (goal ≥ 20)",
        milliseconds(changed.median()),
        milliseconds(whole.median()),
    );
}

/// Each in a process of its own, which has nothing else.
fn memory(snapshot: &Path) {
    let own = std::env::current_exe().expect("this program");
    let output = Command::new(own).arg("rendering-memory").arg(snapshot).output().expect("it runs");
    let ours: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let theirs = javascript(&[snapshot.to_str().unwrap_or_default(), "memory", PREFERRED[0], PREFERRED[1]]);
    let mebibytes = |value: &Value| value.as_f64().unwrap_or_default() / f64::from(1 << 20);
    println!(
        "100000 hosts × 2 formats × 3 orders, {:.0} MiB of JSON: {:.0} MiB held   JavaScript {:.0} MiB   ratio {:.1}",
        mebibytes(&theirs["documents"]),
        mebibytes(&ours["rss"]),
        mebibytes(&theirs["rss"]),
        mebibytes(&theirs["rss"]) / mebibytes(&ours["rss"]),
    );
}

/// What the child of [`memory`] does.
pub(crate) fn hold(snapshot: &str) {
    let bytes = fs::read(snapshot).expect("the snapshot");
    let catalogue = Catalogue::new(Fleet::parse(&bytes).expect("a snapshot"));
    drop(bytes);
    let documents = Documents::write(Arc::clone(catalogue.routing()), Arc::new(attributes()), None).expect("documents");
    let mut held = Vec::new();
    for order in [documents.prefer(""), documents.prefer(PREFERRED[0]), documents.prefer(PREFERRED[1])] {
        for format in [Format::Generic, Format::Traefik] {
            held.push(documents.get(format, &order).expect("a document"));
        }
    }
    let rss = scafo_tests::process::resident(std::process::id());
    println!("{}", json!({"rss": rss, "documents": held.iter().map(|document| document.length).sum::<u64>()}));
}

fn attributes() -> Attributes {
    Attributes::new(&["web".to_owned()], None)
}

fn javascript(arguments: &[&str]) -> Value {
    let output = Command::new("node").arg("--expose-gc").arg(PLAIN).args(arguments).output().expect("node runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn timed<T>(work: impl FnOnce() -> T) -> Duration {
    let started = Instant::now();
    let done = std::hint::black_box(work());
    let took = started.elapsed();
    drop(done);
    took
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn path(dir: &Path) -> &str {
    dir.to_str().unwrap_or_default()
}

//! The lease: its record, its renewal, and what its loss means.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::harness::{Node, World, eventually};

const LEASE: &str = "nodes/node-a.json";

/// Short enough for a test to see renewals, long enough for a loaded machine to make them.
const TTL: (&str, &str) = ("CELLD_TTL_MS", "6000");

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}

fn serving(world: &World, more: &[(&str, &str)]) -> Node {
    if world.bucket.read("deploy/current.json").is_none() {
        world.deploy(&world.worker("one"));
    }
    world.node(more)
}

#[track_caller]
fn assert_fenced(node: &mut Node) {
    assert_eq!(node.ended().code(), Some(3), "{}", node.stderr());
    assert!(node.stderr().contains("SELF-FENCE:"), "{}", node.stderr());
}

#[test]
fn the_record_is_renewed_and_left_in_place_at_the_end() {
    let world = World::new();
    let mut node = serving(&world, &[TTL]);
    let record = world.bucket.read(LEASE).unwrap();
    assert_eq!(record["node"], "node-a");
    assert_eq!(record["addr"], node.internal().to_string());
    assert_eq!(record["peer_protocol"], 0);
    for key in [
        "sampled_ms",
        "resident_cells",
        "host_websockets",
        "rss_bytes",
        "cpu_percent_x100",
        "open_fds",
        "fd_limit",
        "pressured",
        "shed_cells",
        "restoring",
    ] {
        assert!(record["load"].get(key).is_some(), "{key}");
    }
    let expires = |record: &Value| record["expires_ms"].as_u64().unwrap();
    assert!(expires(&record) > now_ms());
    eventually("it is renewed", || (expires(&world.bucket.read(LEASE)?) > expires(&record)).then_some(()));
    node.stopped();
    assert!(world.bucket.read(LEASE).is_some());
}

#[test]
fn a_record_that_somebody_rewrote_fences() {
    let world = World::new();
    let mut node = serving(&world, &[TTL]);
    let mut record = world.bucket.read(LEASE).unwrap();
    record["ownership_index_generation"] = json!("somebody else");
    world.bucket.write(LEASE, &record);
    assert_fenced(&mut node);
}

#[test]
fn a_record_that_somebody_removed_fences() {
    let world = World::new();
    let mut node = serving(&world, &[TTL]);
    world.bucket.delete(LEASE);
    assert_fenced(&mut node);
}

#[test]
fn a_second_process_under_the_same_name_fences_the_first() {
    let world = World::new();
    let mut first = serving(&world, &[TTL]);
    let other = world.directory.path().join("other").display().to_string();
    let second = serving(&world, &[TTL, ("CELLD_WATCH", &other)]);
    assert_fenced(&mut first);
    assert_eq!(second.get("/").body, "one");
}

#[test]
fn a_store_that_goes_away_fences_when_the_lease_lapses() {
    let world = World::new();
    let mut node = serving(&world, &[TTL]);
    let World { bucket, directory } = world;
    drop(bucket);
    assert_fenced(&mut node);
    drop(directory);
}

#[test]
fn a_fenced_node_leaves_no_workerd_behind() {
    let world = World::new();
    let mut node = serving(&world, &[("CELLD_STANDIN_DROP_LEASE_AFTER_MS", "300")]);
    let workerd = node.children("workerd");
    assert_fenced(&mut node);
    for pid in workerd {
        eventually("workerd is gone", || (!crate::harness::is_alive(pid)).then_some(()));
    }
}

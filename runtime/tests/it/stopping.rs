//! Stops, the drain, and the internal listener.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use nix::sys::signal::Signal;

use crate::harness::{LIMIT, Node, World, eventually, example, get, is_alive, join, post, request};

fn serving(more: &[(&str, &str)]) -> (World, Node) {
    let world = World::new();
    world.deploy(&world.worker("one"));
    let node = world.node(more);
    (world, node)
}

#[test]
fn every_way_to_stop_ends_with_zero_and_leaves_no_workerd() {
    for way in ["SIGTERM", "SIGINT", "/shutdown", "/shutdown?handoff=preserve"] {
        let (_world, mut node) = serving(&[]);
        let workerd = node.children("workerd");
        match way {
            "SIGTERM" => node.signal(Signal::SIGTERM),
            "SIGINT" => node.signal(Signal::SIGINT),
            path => assert_eq!(post(node.internal(), path).body, r#"{"ok":true}"#),
        }
        assert_eq!(node.ended().code(), Some(0), "{way}: {}", node.stderr());
        assert!(workerd.into_iter().all(|pid| !is_alive(pid)), "{way}");
    }
}

#[test]
fn a_draining_node_refuses_work_and_still_answers_health_and_state() {
    let (_world, node) = serving(&[("CELLD_STANDIN_IGNORE_SIGTERM", "1")]);
    node.signal(Signal::SIGTERM);
    let health = eventually("health is 503", || Some(node.health()).filter(|answer| answer.status == 503));
    assert_eq!(health.body, r#"{"ok":false}"#);
    let refused = node.get("/");
    assert_eq!((refused.status, refused.body.as_str()), (503, r#"{"draining":true,"ok":false}"#));
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(refused.header("connection"), Some("close"));
    assert_eq!(get(node.internal(), "/state").status, 200);
    for (path, method) in [("/reload", "POST"), ("/shutdown", "POST"), ("/nothing", "GET")] {
        let answer = request(node.internal(), method, path, "", "").unwrap();
        assert_eq!((answer.status, &answer.json()["draining"]), (503, &serde_json::json!(true)), "{path}");
    }
}

#[test]
fn a_hung_drain_ignores_a_second_signal() {
    let (_world, mut node) = serving(&[("CELLD_STANDIN_IGNORE_SIGTERM", "1"), ("CELLD_SHUTDOWN_TOTAL_MS", "100")]);
    node.signal(Signal::SIGTERM);
    eventually("it drains", || (node.health().status == 503).then_some(()));
    node.signal(Signal::SIGTERM);
    node.signal(Signal::SIGINT);
    assert_eq!(node.health().status, 503);
    assert!(node.is_running());
}

#[test]
fn a_request_under_way_is_finished() {
    let world = World::new();
    world.deploy(&world.project(
        "export default { async fetch() { console.log('under way'); \
         await new Promise((done) => setTimeout(done, 700)); return new Response('done'); } };",
        "",
    ));
    let mut node = world.node(&[]);
    let mut stream = TcpStream::connect(node.public()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: shop.test\r\n\r\n").unwrap();
    eventually("it is under way", || node.stdout().contains("under way").then_some(()));
    node.signal(Signal::SIGTERM);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("done"), "{answer}");
    assert_eq!(node.ended().code(), Some(0));
}

#[test]
fn a_request_that_does_not_end_is_cut_off_and_the_exit_is_still_zero() {
    let world = World::new();
    world.deploy(&world.project(
        "export default { async fetch() { await new Promise((done) => setTimeout(done, 600000)); return new Response(''); } };",
        "",
    ));
    let mut node = world.node(&[]);
    let mut stream = TcpStream::connect(node.public()).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: shop.test\r\n\r\n").unwrap();
    node.stopped();
}

#[test]
fn the_internal_listener_has_its_routes_and_no_others() {
    let (_world, node) = serving(&[]);
    let internal = node.internal();
    for (method, path, status) in [
        ("GET", "/state", 200),
        ("POST", "/state", 405),
        ("GET", "/shutdown", 405),
        ("GET", "/reload", 405),
        ("GET", "/", 404),
        ("GET", "/do/Counter:x", 404),
        ("GET", "/.well-known/celld/health", 404),
    ] {
        let answer = request(internal, method, path, "", "").unwrap();
        assert_eq!(answer.status, status, "{method} {path}");
    }
    assert_eq!(get(internal, "/nothing").body, r#"{"error":"not_found"}"#);
}

#[test]
fn state_has_every_key_of_celld() {
    let (_world, node) = serving(&[]);
    let state = node.state();
    for key in [
        "ownership",
        "occupied",
        "evicting",
        "restoring",
        "activating",
        "activation_waiting",
        "capacity_waiting",
        "phases",
        "shedding",
        "rss_bytes",
        "in_use_bytes",
        "residents",
        "published",
        "publishes",
        "stops",
        "owned_cells",
        "quiescing",
        "releasing",
        "adopting",
        "handed_off",
        "handoff_failed",
        "rebalanced",
        "rebalance_failed",
        "remote_route_refreshes",
        "allocator",
        "libc_malloc",
        "cgroup_working_set_bytes",
        "cgroup_current_bytes",
        "node_load",
    ] {
        assert!(state.get(key).is_some(), "{key}");
    }
    assert_eq!(state["ownership"], "s3");
    assert_eq!(state["standin"], true);
    assert!(state["rss_bytes"].as_u64().unwrap() > 10 << 20, "its own and that of workerd");
    for key in ["version", "prefix", "generation", "draining", "swapping", "cells", "isolates"] {
        assert!(state["deployment"].get(key).is_some(), "{key}");
    }
}

#[test]
fn an_open_websocket_does_not_keep_a_node_from_leaving() {
    let world = World::new();
    world.deploy(&example("chat"));
    let mut node = world.node(&[]);
    let mut member = join(&node, "/lobby");
    node.stopped();
    assert!(node.stdout().contains("stopped"), "the last line is written: {}", node.stdout());
    assert!(member.read().is_err());
}

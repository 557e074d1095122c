//! Ports, boot, banner, and who may not be in the fleet.

use std::{
    io::Read as _,
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::process::ExitStatusExt as _,
    time::Duration,
};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::harness::{Node, World, eventually, own_address, post};

/// A port that is free and stays so.
fn free() -> SocketAddr {
    TcpListener::bind((own_address(), 0)).unwrap().local_addr().unwrap()
}

#[test]
fn the_banner_is_two_lines_with_the_real_ports_and_one_for_people() {
    let world = World::new();
    world.deploy(&world.worker("one"));
    let node = world.node(&[]);
    let said = node.stdout();
    let plain: Vec<_> = said.lines().filter(|line| line.starts_with("celld")).collect();
    assert_eq!(plain.len(), 3, "{said}");
    assert!(plain[0].starts_with("celld listening on 127.0.0.1:") && plain[0].ends_with(" (ownership=s3)"), "{said}");
    let internal = node.internal();
    assert_eq!(plain[1], format!("celld internal listening on {internal} (advertise={internal})"));
    assert_ne!(node.public().port(), 0);
    assert!(plain[2].contains("development stand-in"));
}

#[test]
fn a_port_in_use_ends_with_one() {
    let world = World::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let finished = world.run(&["--listen", &address.to_string()], &[]);
    assert_eq!(finished.code, Some(1));
    assert!(finished.stderr.contains("cannot be bound"), "{finished:?}");
}

#[test]
fn a_bucket_that_does_not_answer_ends_with_one() {
    let world = World::new();
    let finished = world.run(&["--listen", "127.0.0.1:0"], &[("S3_ENDPOINT", &format!("http://{}", free()))]);
    assert_eq!(finished.code, Some(1));
    assert!(finished.stderr.contains("the bucket does not answer"), "{finished:?}");
}

#[test]
fn without_a_deployment_a_node_is_bound_and_silent_and_then_serves() {
    let world = World::new();
    let (public, internal) = (free(), free());
    let command = world.command(&["--listen", &public.to_string(), "--internal-listen", &internal.to_string()], &[]);
    let node = Node::start(command, world.directory.path());
    eventually("it waits", || node.stdout().contains("awaiting_initial_deployment").then_some(()));
    let mut waiting = TcpStream::connect(public).expect("bound");
    std::io::Write::write_all(&mut waiting, b"GET /.well-known/celld/health HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    waiting.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(waiting.read(&mut [0; 1]).is_err(), "nobody answers");
    assert!(!node.stdout().contains("listening on"));

    // A reload that is asked for now is answered as soon as there is something to say.
    let asked = std::thread::spawn(move || post(internal, "/reload"));
    world.deploy(&world.worker("first"));
    let answer = asked.join().unwrap();
    assert_eq!((answer.status, answer.json()["ok"].clone()), (200, json!(true)));
    waiting.set_read_timeout(Some(crate::harness::LIMIT)).unwrap();
    let mut head = [0; 12];
    waiting.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    assert_eq!(node.get("/").body, "first");
}

#[test]
fn a_signal_before_the_node_is_ready_is_no_drain() {
    let world = World::new();
    let mut node = world.start(&[]);
    eventually("it waits", || node.stdout().contains("awaiting_initial_deployment").then_some(()));
    node.signal(Signal::SIGTERM);
    assert_eq!(node.ended().signal(), Some(15));
}

#[test]
fn the_older_surface_does_not_wait_for_a_deployment() {
    let world = World::new();
    let mut node = world.start(&[("CELLD_STANDIN_SURFACE", "0.3")]);
    assert_eq!(node.ended().code(), Some(1));
    assert!(node.stderr().contains("no deployment"), "{}", node.stderr());
}

#[test]
fn the_fleets_secret_is_made_once() {
    let world = World::new();
    world.deploy(&world.worker("one"));
    world.node(&[]).stopped();
    let secret = world.bucket.read("fleet/peer-auth.json").unwrap();
    assert_eq!(secret["version"], 1);
    assert_eq!(secret["key"].as_str().unwrap().len(), 64);
    world.node(&[]).stopped();
    assert_eq!(world.bucket.read("fleet/peer-auth.json").unwrap(), secret);
}

#[test]
fn a_deployment_that_needs_an_unknown_feature_is_refused() {
    let world = World::new();
    let version = world.deploy(&world.worker("one"));
    let key = format!("deploy/shop/{version}/manifest.json");
    let mut manifest = world.bucket.read(&key).unwrap();
    manifest["required_features"] = json!(["d1-v1"]);
    world.bucket.write(&key, &manifest);
    let mut node = world.start(&[]);
    assert_eq!(node.ended().code(), Some(1));
    assert!(node.stderr().contains("d1-v1"), "{}", node.stderr());
}

#[test]
fn a_deployment_that_does_not_start_ends_with_its_own_words() {
    let world = World::new();
    world.deploy(&world.project("throw new Error('boom at start'); export default {};", ""));
    let mut node = world.start(&[]);
    assert_eq!(node.ended().code(), Some(1));
    assert!(node.stderr().contains("boom at start"), "{}", node.stderr());
}

#[test]
fn without_a_bucket_a_node_serves_nothing_and_says_so() {
    let world = World::new();
    let node = world.node(&[("CELLD_BUCKET", "")]);
    assert!(node.stdout().contains("(ownership=memory)"));
    assert_eq!(node.health().status, 200);
    assert_eq!(node.get("/").status, 404);
}

#[test]
fn two_stand_ins_do_not_share_a_fleet_unless_they_are_let() {
    let world = World::new();
    world.deploy(&world.worker("one"));
    let _first = world.node(&[]);
    let other = world.directory.path().join("other").display().to_string();
    let second = [("CELLD_NODE", "node-b"), ("CELLD_WATCH", other.as_str())];
    let mut refused = world.start(&second);
    assert_eq!(refused.ended().code(), Some(1));
    assert!(refused.stderr().contains("CELLD_STANDIN_MULTI"), "{}", refused.stderr());
    let let_in = world.node(&[second[0], second[1], ("CELLD_STANDIN_MULTI", "1")]);
    assert_eq!(let_in.get("/").body, "one");
}

#[test]
fn a_fleet_of_real_celld_is_never_joined() {
    let world = World::new();
    world.deploy(&world.worker("one"));
    let lease =
        |expires_ms: u64| json!({ "node": "real", "expires_ms": expires_ms, "addr": "10.0.0.1:1", "peer_protocol": 2 });
    world.bucket.write("nodes/real.json", &lease(u64::MAX >> 12));
    let mut refused = world.start(&[("CELLD_STANDIN_MULTI", "1")]);
    assert_eq!(refused.ended().code(), Some(1));
    assert!(refused.stderr().contains("real celld"), "{}", refused.stderr());
    world.bucket.write("nodes/real.json", &lease(1));
    world.node(&[]).stopped();
}

#[test]
fn two_processes_do_not_share_a_data_directory() {
    let world = World::new();
    world.deploy(&world.worker("one"));
    let _first = world.node(&[]);
    let mut second = world.start(&[("CELLD_NODE", "node-b"), ("CELLD_STANDIN_MULTI", "1")]);
    assert_eq!(second.ended().code(), Some(1));
    assert!(second.stderr().contains("is used by another process"), "{}", second.stderr());
}

//! New deployments in a running node.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use serde_json::json;

use tokio_tungstenite::tungstenite::Message;

use crate::harness::{World, eventually, example, get, join};

#[test]
fn a_reload_takes_the_new_deployment_and_raises_the_generation() {
    let world = World::new();
    let first = world.deploy(&world.worker("one"));
    let node = world.node(&[]);
    assert_eq!(node.state()["deployment"]["version"], first);
    let second = world.deploy(&world.worker("two"));
    let answer = node.reload();
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.json(),
        json!({ "ok": true, "outcome": "adopted", "generation": 2, "version": second, "prefix": format!("deploy/shop/{second}") })
    );
    assert_eq!(node.get("/").body, "two");
    assert_eq!(node.state()["deployment"]["version"], second);
    assert_eq!(node.reload().json()["outcome"], "unchanged");
}

#[test]
fn the_pointer_is_polled() {
    let world = World::new();
    world.deploy(&world.worker("one"));
    let node = world.node(&[("CELLD_DEPLOY_POLL_S", "1")]);
    world.deploy(&world.worker("two"));
    eventually("it is taken", || (node.get("/").body == "two").then_some(()));
}

#[test]
fn no_request_fails_while_a_deployment_without_state_is_taken() {
    let world = World::new();
    world.deploy(&world.worker("one"));
    let node = world.node(&[]);
    let (public, stop) = (node.public(), Arc::new(AtomicBool::new(false)));
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                let mut bodies = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let answer = get(public, "/");
                    assert_eq!(answer.status, 200, "{answer:?}");
                    bodies.push(answer.body);
                }
                bodies
            })
        })
        .collect();
    for text in ["two", "three", "four"] {
        world.deploy(&world.worker(text));
        assert_eq!(node.reload().json()["outcome"], "adopted");
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        let bodies = client.join().unwrap();
        assert!(bodies.len() > 1 && bodies.iter().all(|body| ["one", "two", "three", "four"].contains(&&**body)));
    }
    assert_eq!(node.get("/").body, "four");
    eventually("the old ones have ended", || (node.state()["deployment"]["draining"] == json!([])).then_some(()));
    eventually("one workerd is left", || (node.children("workerd").len() == 1).then_some(()));
}

/// Streams for ever, and keeps a WebSocket open.
const ENDLESS: &str = r#"
export default {
  fetch(request) {
    if (request.headers.get("upgrade") === "websocket") {
      const [client, server] = Object.values(new WebSocketPair());
      server.accept();
      return new Response(null, { status: 101, webSocket: client });
    }
    const piece = new TextEncoder().encode("x");
    const pull = async (to) => { await scheduler.wait(20); to.enqueue(piece); };
    return new Response(new ReadableStream({ pull }));
  },
};"#;

#[test]
fn what_never_ends_keeps_an_old_deployment_no_longer_than_its_greatest_age() {
    let world = World::new();
    world.deploy(&world.project(ENDLESS, ""));
    let node = world.node(&[("CELLD_DEPLOY_MAX_AGE_S", "1")]);
    let mut stream = TcpStream::connect(node.public()).unwrap();
    write!(stream, "GET / HTTP/1.1\r\nHost: shop.test\r\n\r\n").unwrap();
    let mut head = [0; 16];
    stream.read_exact(&mut head).unwrap();
    let mut socket = join(&node, "/");
    world.deploy(&world.worker("two"));
    assert_eq!(node.reload().json()["outcome"], "adopted");
    eventually("the stream is cut", || matches!(stream.read(&mut [0; 1024]), Ok(0) | Err(_)).then_some(()));
    assert!(socket.read().is_err(), "so is the WebSocket");
    eventually("the old one has ended", || (node.state()["deployment"]["draining"] == json!([])).then_some(()));
    eventually("one workerd is left", || (node.children("workerd").len() == 1).then_some(()));
    assert_eq!(node.get("/").body, "two");
}

#[test]
fn state_survives_a_deployment_and_requests_are_held_meanwhile() {
    let world = World::new();
    let counter = world.directory.path().join("counter");
    copy(&example("counter"), &counter);
    world.deploy(&counter);
    let node = world.node(&[]);
    assert_eq!(node.get("/").body, "1\n");
    let (public, stop) = (node.public(), Arc::new(AtomicBool::new(false)));
    let client = thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            let mut last = 1;
            while !stop.load(Ordering::Relaxed) {
                let answer = get(public, "/");
                assert_eq!(answer.status, 200, "{answer:?}");
                let value: u64 = answer.body.trim().parse().unwrap();
                assert!(value > last, "{value} after {last}");
                last = value;
            }
            last
        }
    });
    let source = std::fs::read_to_string(counter.join("src/index.js")).unwrap();
    std::fs::write(counter.join("src/index.js"), format!("{source}\nglobalThis.revision = 2;\n")).unwrap();
    let second = world.deploy(&counter);
    let answer = node.reload().json();
    assert_eq!((&answer["outcome"], &answer["version"]), (&json!("adopted"), &json!(second)));
    stop.store(true, Ordering::Relaxed);
    let last = client.join().unwrap();
    assert_eq!(node.get("/").body, format!("{}\n", last + 1));
}

#[test]
fn a_deployment_that_does_not_start_leaves_the_old_one_serving() {
    let world = World::new();
    let counter = example("counter");
    for stateful in [false, true] {
        let old = if stateful { world.deploy(&counter) } else { world.deploy(&world.worker("one")) };
        let mut node = world.node(&[]);
        let bad = world.deploy(&world.project("throw new Error('boom at start'); export default {};", ""));
        let answer = node.reload();
        assert_eq!(answer.status, 422);
        let document = answer.json();
        assert_eq!(document["ok"], false);
        assert_eq!(document["outcome"], "failed");
        assert_eq!(document["version"], bad);
        assert!(document["error"].as_str().unwrap().contains("boom at start"), "{document}");
        assert_eq!(node.state()["deployment"]["version"], old);
        assert_eq!(node.get("/").status, 200);
        assert_eq!(node.health().status, 200);
        // The log has a thread of its own, which may be behind the answer.
        eventually("it is logged", || node.stdout().contains("deployment_adoption_failed").then_some(()));
        node.stopped();
    }
}

#[test]
fn a_schedule_alone_is_taken_by_a_reload() {
    let world = World::new();
    let script = "export default { fetch() { return new Response('one'); }, scheduled() {} };";
    let first = world.deploy(&world.project(script, r#", "triggers": { "crons": ["0 0 1 1 *"] }"#));
    let node = world.node(&[]);
    let second = world.deploy(&world.project(script, r#", "triggers": { "crons": ["0 0 2 1 *"] }"#));
    assert_eq!(first, second, "crons are no part of the version");
    assert_eq!(node.reload().json()["outcome"], "adopted");
}

#[test]
fn a_hook_fails_the_next_adoption_and_only_that() {
    let world = World::new();
    world.deploy(&world.worker("one"));
    let node = world.node(&[("CELLD_STANDIN_FAIL_ADOPTION", "as the test asked")]);
    world.deploy(&world.worker("two"));
    let failed = node.reload();
    assert_eq!((failed.status, failed.json()["error"].clone()), (422, json!("as the test asked")));
    assert_eq!(node.get("/").body, "one");
    assert_eq!(node.reload().json()["outcome"], "adopted");
    assert_eq!(node.get("/").body, "two");
}

#[test]
fn a_bucket_that_gives_no_answer_fails_no_adoption() {
    let mut world = World::new();
    world.deploy(&world.worker("one"));
    let node = world.node(&[]);
    world.deploy(&world.worker("two"));
    world.bucket.goes_away();
    let unanswered = node.reload();
    assert_eq!((unanswered.status, unanswered.json()["outcome"].clone()), (503, json!("unavailable")));
    assert_eq!(node.get("/").body, "one");
    world.bucket.comes_back();
    assert_eq!(node.reload().json()["outcome"], "adopted");
    assert_eq!(node.get("/").body, "two");
}

#[test]
fn a_damaged_pointer_fails_the_adoption_and_says_so() {
    let world = World::new();
    world.deploy(&world.worker("one"));
    let node = world.node(&[]);
    world.bucket.write("deploy/current.json", &json!({ "version": 1 }));
    let failed = node.reload();
    assert_eq!((failed.status, failed.json()["version"].clone()), (422, json!(null)));
    assert!(failed.json()["error"].as_str().is_some_and(|error| !error.is_empty()), "{}", failed.body);
    assert_eq!(node.get("/").body, "one");
}

#[test]
fn websockets_of_a_stateful_deployment_are_cut_and_their_clients_may_come_back() {
    let world = World::new();
    let chat = world.directory.path().join("chat");
    copy(&example("chat"), &chat);
    world.deploy(&chat);
    let node = world.node(&[]);
    let mut before = join(&node, "/lobby");
    let source = std::fs::read_to_string(chat.join("src/index.js")).unwrap();
    std::fs::write(chat.join("src/index.js"), format!("{source}\nglobalThis.revision = 2;\n")).unwrap();
    world.deploy(&chat);
    assert_eq!(node.reload().json()["outcome"], "adopted");
    assert!(before.read().is_err(), "it is cut");
    let (mut one, mut two) = (join(&node, "/lobby"), join(&node, "/lobby"));
    one.send(Message::text("again")).unwrap();
    assert_eq!(two.read().unwrap().into_text().unwrap().as_str(), "again");
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

//! The remaining test hooks; those of deploy, adoption, lease and drain are tested where these are.

use std::time::{Duration, Instant};

use crate::harness::{Node, World, eventually};

fn serving(more: &[(&str, &str)]) -> (World, Node) {
    let world = World::new();
    world.deploy(&world.worker("one"));
    let node = world.node(more);
    (world, node)
}

#[test]
fn a_late_node_becomes_ready_and_a_never_ready_one_does_not() {
    // It may be over before a busy machine looks for the first time.
    let late = ["1500", "6000", "24000"].iter().any(|delay| {
        let (_world, node) = serving(&[("CELLD_STANDIN_READY_DELAY_MS", delay)]);
        let health = node.health();
        assert_eq!(node.get("/").body, "one", "the Worker serves all the same");
        eventually("it is ready", || (node.health().status == 200).then_some(()));
        (health.status, health.body.as_str()) == (503, r#"{"ok":false}"#)
    });
    assert!(late, "it was ready at once");
    let (_world, node) = serving(&[("CELLD_STANDIN_NEVER_READY", "1"), ("CELLD_STANDIN_READY_DELAY_MS", "1")]);
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        assert_eq!(node.health().status, 503);
    }
}

#[test]
fn a_node_leaves_by_itself_with_the_code_that_it_is_told() {
    let world = World::new();
    world.deploy(&world.worker("one"));
    // Whether it serves by then is for the machine to say.
    let mut node = world.start(&[("CELLD_STANDIN_EXIT_AFTER_MS", "2000"), ("CELLD_STANDIN_EXIT_CODE", "134")]);
    assert_eq!(node.ended().code(), Some(134));
    let mut waiting = world.start(&[("CELLD_STANDIN_EXIT_AFTER_MS", "100")]);
    assert_eq!(waiting.ended().code(), Some(1), "also while it boots");
}

#[test]
fn a_node_eats_what_it_is_told() {
    let (_world, node) = serving(&[("CELLD_STANDIN_HOG", "memory")]);
    eventually("it is fat", || (node.state()["rss_bytes"].as_u64()? > 300 << 20).then_some(()));
    drop(node);
    let (_world, node) = serving(&[("CELLD_STANDIN_HOG", "log")]);
    eventually("it talks", || (node.stdout().len() > 1 << 20).then_some(()));
    drop(node);
    let (_world, node) = serving(&[("CELLD_STANDIN_HOG", "tasks")]);
    let children = eventually("it has many children", || Some(node.children("sleep")).filter(|found| found.len() > 20));
    drop(node);
    for child in children {
        eventually("they go with it", || (!crate::harness::is_alive(child)).then_some(()));
    }
}

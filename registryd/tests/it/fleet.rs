//! Several nodes on one bucket, and what one of them costs.

use std::time::{Duration, Instant};

use scafo_core::record::DeployState;
use scafo_core::settings::Millis;
use scafo_store::{Bucket as _, MemoryBucket, PutOptions};

use crate::node::{Node, until};
use crate::supervisor::Job;

#[tokio::test(flavor = "multi_thread")]
async fn a_deploy_waits_for_every_node_that_it_is_placed_on() {
    let memory = MemoryBucket::new();
    let second = memory.sibling();
    let a = Node::start("a", memory);
    until(|| async { a.state().await.ok().filter(|state| state.coordinator.is_some()) }).await;
    let b = Node::start("b", second);
    let both = || async {
        let states = [a.state().await.ok()?, b.state().await.ok()?];
        let fences: Vec<_> = states.iter().filter_map(|state| Some(state.coordinator.as_ref()?.fence)).collect();
        let leaders = states.iter().filter(|state| state.coordinator.as_ref().is_some_and(|view| view.is_self)).count();
        assert!(leaders <= 1, "{states:?}");
        (leaders == 1 && fences.len() == 2 && fences[0] == fences[1]).then_some(())
    };
    until(both).await;
    a.prepare("shop", r#"{"replicas":"all"}"#).await.unwrap();
    a.supervisor.then(Job::Publishes("v1"));
    let done = a.deploy("shop", 1).await;
    assert_eq!(done.state, DeployState::Deployed, "{:?}", done.detail);
    until(|| async { (b.supervisor.applied() == ["shop"]).then_some(()) }).await;
    // Any node answers for any deploy.
    assert_eq!(b.deploy_status(&done.id).await.unwrap().state, DeployState::Deployed);
    let routed =
        b.snapshot(|snapshot| snapshot.nodes.iter().filter(|node| !node.serving.is_empty()).count() == 2).await;
    assert!(routed.applications[0].routable);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_blocked_stops_at_once_and_comes_back_as_it_was() {
    let node = Node::start("a", MemoryBucket::new());
    node.supervisor.then(Job::Publishes("v1"));
    node.deploy("shop", 1).await;
    let set = async |blocked: bool| {
        let key = "_scafo/applications/shop.json";
        let object = node.memory().get(key).await.unwrap().unwrap();
        let mut record: serde_json::Value = serde_json::from_slice(&object.body).unwrap();
        record["blocked"] = blocked.into();
        let body = serde_json::to_vec(&record).unwrap();
        node.memory().put(key, body.into(), PutOptions::default()).await.unwrap();
        // As the writer's registry context does.
        let hint = format!(r#"{{"v":1,"token":"{blocked}","at":"2026-01-01T00:00:00.000Z","by":"test"}}"#);
        node.memory().put("_scafo/changes.json", hint.into(), PutOptions::default()).await.unwrap();
    };
    set(true).await;
    until(|| async { node.supervisor.applied().is_empty().then_some(()) }).await;
    set(false).await;
    until(|| async { (node.supervisor.applied() == ["shop"]).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_bad_record_leaves_out_one_application() {
    let memory = MemoryBucket::new();
    memory.put("_scafo/applications/bad.json", r#"{"v":1,"name":7}"#.into(), PutOptions::default()).await.unwrap();
    let node = Node::start("a", memory);
    node.supervisor.then(Job::Publishes("v1"));
    assert_eq!(node.deploy("shop", 1).await.state, DeployState::Deployed);
    let state = node.state().await.unwrap();
    assert_eq!(state.faults[0].key, "_scafo/applications/bad.json");
    assert_eq!(node.applications().await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_coordinator_stays_within_its_requests() {
    // The default intervals, twenty times as fast. A slow machine sends fewer requests, never more.
    let quick = |millis: u64| Millis(millis / 20);
    let node = Node::start_with("a", MemoryBucket::new(), |settings| {
        settings.reconcile_interval = quick(5_000);
        settings.heartbeat = quick(30_000);
        settings.lease_ttl = quick(15_000);
    });
    node.supervisor.then(Job::Publishes("v1"));
    node.deploy("shop", 1).await;
    // The trailing hint of the deploy and the look that it causes are over once a heartbeat has gone by.
    let settled = || async {
        let before = node.memory().keys("_scafo/nodes/");
        (before.len() == 1).then_some(())
    };
    until(settled).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (requests, since) = (node.memory().requests(), Instant::now());
    tokio::time::sleep(Duration::from_secs(6)).await;
    let minutes = since.elapsed().as_secs_f64() * 20.0 / 60.0;
    let sent = f64::from(u32::try_from(node.memory().requests() - requests).unwrap());
    // One whole round more than goes into the time: where the window begins is chance.
    assert!(sent <= 32.0 * minutes + 5.0, "{sent} requests in {minutes} minutes");
}

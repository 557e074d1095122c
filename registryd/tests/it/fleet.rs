//! Several nodes on one bucket, and what one of them costs.

use scafo_core::record::{CoordinatorLease, DeployState, DrainState, ProcessState, UnplacedReason};
use scafo_core::settings::{Millis, RegistrydSettings};
use scafo_core::snapshot::Snapshot;
use scafo_core::{DeployId, ProblemCode};
use scafo_proto::registry::WatchSnapshotRequest;
use scafo_store::{Bucket as _, Fault, MemoryBucket, PutOptions};

use crate::node::{LIMIT, Node, change, name, until};
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
        // They were asked one after the other: a lease may have lapsed in between, and then the fences differ.
        assert!(leaders <= 1 || fences[0] != fences[1], "{states:?}");
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
    stops_and_comes_back("blocked", true.into(), false.into()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_retired_stops_at_once_and_comes_back_as_it_was() {
    stops_and_comes_back("retiredAt", "2026-01-01T00:00:00.000Z".into(), serde_json::Value::Null).await;
}

async fn stops_and_comes_back(member: &str, stopped: serde_json::Value, back: serde_json::Value) {
    let node = Node::start("a", MemoryBucket::new());
    node.supervisor.then(Job::Publishes("v1"));
    node.deploy("shop", 1).await;
    node.snapshot(|snapshot| snapshot.applications[0].routable).await;
    // It has no route any more, whether its process is gone already or not.
    node.supervisor.holds_on(true);
    change(node.memory(), "shop", member, stopped).await;
    let without_route = node.snapshot(|snapshot| !snapshot.applications[0].routable).await;
    assert_eq!(without_route.nodes[0].serving.len(), 1, "its process is still there");
    assert_eq!(node.supervisor.applied(), ["shop"]);
    node.supervisor.holds_on(false);
    until(|| async { node.supervisor.applied().is_empty().then_some(()) }).await;
    change(node.memory(), "shop", member, back).await;
    until(|| async { (node.supervisor.applied() == ["shop"]).then_some(()) }).await;
    node.snapshot(|snapshot| snapshot.applications[0].routable).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_to_go_leaves_the_documents_first_and_runs_on_for_the_hold() {
    let node = Node::start("a", MemoryBucket::new());
    node.supervisor.then(Job::Publishes("v1"));
    node.deploy("shop", 1).await;
    change(node.memory(), "shop", "nodeSelector", serde_json::json!({ "region": "mars" })).await;
    let state = |snapshot: &Snapshot| snapshot.nodes[0].serving.first().map(|serving| serving.state);
    let leaving = node.snapshot(|snapshot| state(snapshot) != Some(ProcessState::Ready)).await;
    assert_eq!(state(&leaving), Some(ProcessState::Stopping));
    // It has left the documents and still runs; then it is gone.
    until(|| async { node.supervisor.applied().is_empty().then_some(()) }).await;
    node.snapshot(|snapshot| snapshot.nodes[0].serving.is_empty()).await;
    let unplaced = node.state().await.unwrap().coordinator.unwrap().unplaced.unwrap();
    assert_eq!(unplaced[0].reason, UnplacedReason::Selector);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_makes_before_it_breaks() {
    let memory = MemoryBucket::new();
    let second = memory.sibling();
    let labelled = |region: &str| {
        let labels = [("region".to_owned(), region.to_owned())].into();
        |settings: &mut RegistrydSettings| settings.node.labels = labels
    };
    let a = Node::start_with("a", memory, labelled("eu"));
    let b = Node::start_with("b", second, labelled("us"));
    until(|| async { b.state().await.ok()?.coordinator }).await;
    a.prepare("shop", r#"{"nodeSelector":{"region":"eu"}}"#).await.unwrap();
    a.supervisor.then(Job::Publishes("v1"));
    assert_eq!(a.deploy("shop", 1).await.state, DeployState::Deployed);
    change(a.memory(), "shop", "nodeSelector", serde_json::json!({ "region": "us" })).await;
    let ready = |snapshot: &Snapshot| {
        let serving = snapshot.nodes.iter().flat_map(|node| &node.serving);
        serving.filter(|serving| serving.state == ProcessState::Ready).count()
    };
    // In no document of the way is there nobody.
    let never_empty = |snapshot: &Snapshot| {
        assert!(ready(snapshot) >= 1, "{snapshot:?}");
        ready(snapshot) == 1
            && snapshot.nodes.iter().any(|node| node.id.as_str() == "b" && !node.serving.is_empty())
            && snapshot.nodes.iter().any(|node| node.id.as_str() == "a" && node.serving.is_empty())
    };
    a.snapshot(never_empty).await;
    assert!(a.supervisor.applied().is_empty() && b.supervisor.applied() == ["shop"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_applications_of_a_dead_node_are_taken_over() {
    let memory = MemoryBucket::new();
    let second = memory.sibling();
    let quick = |settings: &mut RegistrydSettings| settings.liveness = Millis(6_000);
    let a = Node::start_with("a", memory, quick);
    let mut b = Node::start_with("b", second, quick);
    until(|| async { b.state().await.ok()?.coordinator }).await;
    // Either may coordinate, and places on those that it knows.
    for node in [&a, &b] {
        node.snapshot(|snapshot| snapshot.nodes.len() == 2).await;
    }
    // Among eight there is one for either node.
    for index in 0..8 {
        a.prepare(&format!("app-{index}"), "{}").await.unwrap();
    }
    until(|| async { (a.supervisor.applied().len() + b.supervisor.applied().len() == 8).then_some(()) }).await;
    assert!(!b.supervisor.applied().is_empty() && !a.supervisor.applied().is_empty());
    b.kill();
    until(|| async { (a.supervisor.applied().len() == 8).then_some(()) }).await;
    let state = a.state().await.unwrap();
    assert!(state.placements.iter().all(|placement| placement.here && placement.nodes.len() == 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_often_fails_delays_deploys_and_loses_nothing() {
    let node = Node::start("a", MemoryBucket::new());
    until(|| async { node.state().await.ok()?.coordinator }).await;
    let mut turn = 0_u32;
    // Every seventh request goes wrong, each time in another way.
    node.memory().plan(move |_| {
        turn += 1;
        let faults = [Fault::LoseAnswer, Fault::Busy, Fault::LoseRequest, Fault::Conflict];
        turn.is_multiple_of(7).then(|| faults[(turn / 7 % 4) as usize])
    });
    for (random, version) in [(1, "v1"), (2, "v2")] {
        node.supervisor.then(Job::Publishes(version));
        until(|| async { node.prepare("shop", "{}").await.ok() }).await;
        let id = DeployId::new(&name("shop"), random);
        until(|| async { node.accept(&id).await.ok() }).await;
        until(|| async { node.publish(&id).await.ok() }).await;
        let done = node.ended(&id).await;
        assert_eq!(done.state, DeployState::Deployed, "{done:?}");
        assert_eq!(done.deployment.unwrap().as_str(), version);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_drained_over_the_admin_socket_and_then_removed() {
    let memory = MemoryBucket::new();
    let second = memory.sibling();
    let a = Node::start("a", memory);
    let mut b = Node::start("b", second);
    until(|| async { b.state().await.ok()?.coordinator }).await;
    a.prepare("shop", r#"{"replicas":"all"}"#).await.unwrap();
    a.supervisor.then(Job::Publishes("v1"));
    assert_eq!(a.deploy("shop", 1).await.state, DeployState::Deployed);
    assert_eq!(a.remove("b", false).await.unwrap_err().code, ProblemCode::ReferenceHeld);
    assert_eq!(a.drain("nobody").await.unwrap_err().code, ProblemCode::NotFound);
    let asked = a.drain("b").await.unwrap();
    assert!(asked.leaving && asked.drain.unwrap().state == DrainState::Waiting);
    let drained = || async {
        let nodes = a.nodes().await.ok()?;
        let node = nodes.into_iter().find(|status| status.node.id.as_str() == "b")?;
        (node.node.drain.as_ref()?.state == DrainState::Drained).then_some(node)
    };
    let status = until(drained).await;
    assert!(status.live && status.node.draining && status.node.serving.is_empty());
    assert!(b.supervisor.applied().is_empty() && a.supervisor.applied() == ["shop"]);
    // It can come back from there, and leave again.
    assert!(!b.undrain("b").await.unwrap().draining);
    until(|| async { (b.supervisor.applied() == ["shop"]).then_some(()) }).await;
    a.drain("b").await.unwrap();
    until(drained).await;
    a.remove("b", false).await.unwrap();
    assert_eq!(b.end().await.unwrap_err().exit_code(), 78);
    until(|| async { (a.nodes().await.ok()?.len() == 1).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_in_good_order_hands_the_lease_over() {
    let memory = MemoryBucket::new();
    let second = memory.sibling();
    let mut a = Node::start("a", memory);
    until(|| async { a.state().await.ok()?.coordinator.filter(|view| view.is_self) }).await;
    let b = Node::start("b", second);
    until(|| async { b.state().await.ok()?.coordinator }).await;
    a.stop().await.unwrap();
    let lease = b.memory().get("_scafo/coordinator/lease.json").await.unwrap().unwrap();
    let lease: CoordinatorLease = serde_json::from_slice(&lease.body).unwrap();
    assert!(lease.node.as_str() == "b" || lease.ttl_ms == 0, "{lease:?}");
    until(|| async { b.state().await.ok()?.coordinator.filter(|view| view.is_self) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_asked_to_end_ends_although_somebody_watches() {
    let mut node = Node::start("a", MemoryBucket::new());
    let first = node.snapshot(|_| true).await;
    assert_eq!(first.generation, 1);
    let watching = node.client.clone().watch_snapshot(WatchSnapshotRequest {}).await.unwrap();
    let mut stream = watching.into_inner();
    stream.message().await.unwrap().unwrap();
    node.stop().await.unwrap();
    let end = async { while let Ok(Some(_)) = stream.message().await {} };
    tokio::time::timeout(LIMIT, end).await.unwrap();
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

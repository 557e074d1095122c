//! From the checks of a deploy to being served, and what goes wrong in between.

use scafo_core::problem::ProblemCode;
use scafo_core::record::{Adoption, DeployState, ProcessState};
use scafo_core::{DeployId, key};
use scafo_store::{Bucket as _, MemoryBucket, PutOptions};

use crate::node::{Node, name, until};
use crate::supervisor::Job;

#[tokio::test(flavor = "multi_thread")]
async fn a_first_deploy_ends_when_it_is_served() {
    let node = Node::start("a", MemoryBucket::new());
    node.supervisor.then(Job::Publishes("v1"));
    assert!(node.prepare("shop", r#"{"replicas":1}"#).await.unwrap());
    assert!(!node.prepare("shop", "{}").await.unwrap());
    let done = node.deploy("shop", 1).await;
    assert_eq!((done.state, done.deployment.unwrap().as_str()), (DeployState::Deployed, "v1"), "{:?}", done.detail);
    // None when the process booted after the record named the deploy, one when it was faster than the record.
    assert!(node.supervisor.reloads() <= 1);
    let snapshot = node.snapshot(|snapshot| !snapshot.nodes[0].serving.is_empty()).await;
    let serving = &snapshot.nodes[0].serving[0];
    assert_eq!((serving.state, serving.adoption), (ProcessState::Ready, Some(Adoption::Adopted)));
    let applications = node.applications().await.unwrap();
    assert_eq!(applications[0].deployment.as_ref().unwrap().version.as_str(), "v1");
    assert!(node.memory().get("_scafo/deployments/shop/v1.json").await.unwrap().is_some());
    let state = node.state().await.unwrap();
    assert!(state.placements[0].here && state.coordinator.unwrap().is_self);
    assert_eq!(state.processes.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_publication_says_the_bundlers_words_and_keeps_what_serves() {
    let node = Node::start("a", MemoryBucket::new());
    node.supervisor.then(Job::Publishes("v1"));
    node.deploy("shop", 1).await;
    node.supervisor.then(Job::Fails("✘ [ERROR] Expected \";\"\n\n    TREE/src/index.js:1:2:\n"));
    let failed = node.deploy("shop", 2).await;
    assert_eq!((failed.state, failed.code), (DeployState::Failed, Some(ProblemCode::PublishFailed)));
    let detail = failed.detail.unwrap();
    assert!(detail.contains("Expected \";\"") && detail.contains("    src/index.js:1:2:"), "{detail}");
    assert!(!detail.contains("/stage"), "{detail}");
    let state = node.state().await.unwrap();
    assert_eq!(state.processes[0].deployment.as_ref().unwrap().as_str(), "v1");
    assert_eq!(
        node.applications().await.unwrap()[0].deployment.as_ref().unwrap().deploy,
        DeployId::new(&name("shop"), 1)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_deploy_is_told_to_the_process_even_with_an_equal_version() {
    let node = Node::start("a", MemoryBucket::new());
    for (random, version) in [(1, "v1"), (2, "v2"), (3, "v2"), (4, "v1")] {
        node.supervisor.then(Job::Publishes(version));
        let done = node.deploy("shop", random).await;
        assert_eq!(done.state, DeployState::Deployed, "{random}: {:?}", done.detail);
    }
    assert!((3..=4).contains(&node.supervisor.reloads()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_adoption_fails_the_deploy_with_the_runtimes_words() {
    let node = Node::start("a", MemoryBucket::new());
    node.supervisor.then(Job::Publishes("v1"));
    node.deploy("shop", 1).await;
    node.supervisor.breaks_on("v2");
    node.supervisor.then(Job::Publishes("v2"));
    let failed = node.deploy("shop", 2).await;
    assert_eq!(failed.code, Some(ProblemCode::PublishFailed));
    let detail = failed.detail.unwrap();
    assert!(detail.contains("SyntaxError: boom") && detail.contains("`a`"), "{detail}");
    assert_eq!(node.state().await.unwrap().processes[0].deployment.as_ref().unwrap().as_str(), "v1");
    // And a working one repairs it.
    node.supervisor.then(Job::Publishes("v3"));
    assert_eq!(node.deploy("shop", 3).await.state, DeployState::Deployed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_the_middle_goes_on_when_the_artifact_is_offered_again() {
    let mut node = Node::start("a", MemoryBucket::new());
    node.supervisor.then(Job::Hangs);
    node.prepare("shop", "{}").await.unwrap();
    let id = DeployId::new(&name("shop"), 1);
    node.accept(&id).await.unwrap();
    node.publish(&id).await.unwrap();
    until(|| async { (node.supervisor.runs() == 1).then_some(()) }).await;
    node.restart().await;
    assert_eq!(node.deploy_status(&id).await.unwrap().state, DeployState::Uploading);
    node.supervisor.then(Job::Publishes("v1"));
    // Offered twice, carried out once.
    node.publish(&id).await.unwrap();
    node.publish(&id).await.unwrap();
    assert_eq!(node.ended(&id).await.state, DeployState::Deployed);
    assert_eq!(node.supervisor.runs(), 2);
    // And when it is over, it is over.
    assert_eq!(node.publish(&id).await.unwrap().state, DeployState::Deployed);
    assert_eq!(node.supervisor.runs(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn deploys_run_in_the_order_of_acceptance_even_when_a_restart_has_them_offered_in_another() {
    let mut node = Node::start("a", MemoryBucket::new());
    node.supervisor.then(Job::Hangs);
    node.prepare("shop", "{}").await.unwrap();
    // The order of the ids is another one, too.
    let ids = [5, 9, 1, 7].map(|random| DeployId::new(&name("shop"), random));
    for id in &ids {
        node.accept(id).await.unwrap();
    }
    for id in ids.iter().rev() {
        node.publish(id).await.unwrap();
    }
    until(|| async { (node.supervisor.runs() == 1).then_some(()) }).await;
    node.restart().await;
    for version in ["v1", "v2", "v3", "v4"] {
        node.supervisor.then(Job::Publishes(version));
    }
    for id in ids.iter().rev() {
        node.publish(id).await.unwrap();
    }
    for (id, version) in ids.iter().zip(["v1", "v2", "v3", "v4"]) {
        let done = node.ended(id).await;
        assert_eq!(done.state, DeployState::Deployed, "{:?}", done.detail);
        assert_eq!(done.deployment.unwrap().as_str(), version);
    }
    let served = node.applications().await.unwrap()[0].deployment.clone().unwrap();
    assert_eq!((served.version.as_str(), &served.deploy), ("v4", &ids[3]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deploy_that_was_published_and_overtaken_before_it_was_named_is_published_again() {
    let mut node = Node::start("a", MemoryBucket::new());
    node.supervisor.then(Job::Publishes("v1"));
    node.deploy("shop", 1).await;
    let id = DeployId::new(&name("shop"), 2);
    node.accept(&id).await.unwrap();
    node.kill();
    // As if its job had run, and somebody older had moved the pointer before it was named.
    let object = node.memory().get(&key::deploy(&id)).await.unwrap().unwrap();
    let mut record: serde_json::Value = serde_json::from_slice(&object.body).unwrap();
    record["state"] = "uploading".into();
    record["deployment"] = "v2".into();
    let body = serde_json::to_vec(&record).unwrap();
    node.memory().put(&key::deploy(&id), body.into(), PutOptions::default()).await.unwrap();
    node.restart().await;
    node.supervisor.then(Job::Publishes("v2"));
    node.publish(&id).await.unwrap();
    let done = node.ended(&id).await;
    assert_eq!((done.state, done.deployment.unwrap().as_str()), (DeployState::Deployed, "v2"), "{:?}", done.detail);
    assert_eq!(node.supervisor.runs(), 2);
    assert_eq!(node.applications().await.unwrap()[0].deployment.as_ref().unwrap().deploy, id);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adoption_is_remembered_over_a_restart() {
    let mut node = Node::start("a", MemoryBucket::new());
    for (random, version) in [(1, "v1"), (2, "v2")] {
        node.supervisor.then(Job::Publishes(version));
        node.deploy("shop", random).await;
    }
    let recorded = || async {
        let object = node.memory().get("_scafo/nodes/a.json").await.unwrap()?;
        let text = String::from_utf8_lossy(&object.body).into_owned();
        (text.contains("\"adopted\"") && text.contains("shop.0000000000000002")).then_some(())
    };
    until(recorded).await;
    let reloads = node.supervisor.reloads();
    node.restart().await;
    let serving = |snapshot: &scafo_core::snapshot::Snapshot| {
        snapshot.nodes[0].serving.first().is_some_and(|serving| serving.adoption == Some(Adoption::Adopted))
    };
    node.snapshot(serving).await;
    assert_eq!(node.supervisor.reloads(), reloads);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_may_be_repeated_and_mean_the_same() {
    let node = Node::start("a", MemoryBucket::new());
    node.prepare("shop", "{}").await.unwrap();
    let id = DeployId::new(&name("shop"), 1);
    assert_eq!(node.accept(&id).await.unwrap(), node.accept(&id).await.unwrap());
    let unknown = node.deploy_status(&DeployId::new(&name("shop"), 9)).await.unwrap_err();
    assert_eq!(unknown.code, ProblemCode::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_freeze_is_read_before_anything_is_created() {
    let node = Node::start("a", MemoryBucket::new());
    let freeze = r#"{"v":1,"frozenAt":"2026-01-01T00:00:00.000Z","by":"op-1","reason":"moving"}"#;
    node.memory().put(key::FREEZE, freeze.into(), PutOptions::default()).await.unwrap();
    let refused = node.prepare("shop", "{}").await.unwrap_err();
    assert_eq!(refused.code, ProblemCode::DeploysFrozen);
    for part in ["op-1", "moving", "2026-01-01", "scafo fleet unfreeze"] {
        assert!(refused.detail.contains(part), "{}", refused.detail);
    }
    assert!(node.applications().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_application_takes_no_deploys_and_a_deleted_one_neither() {
    let node = Node::start("a", MemoryBucket::new());
    for (name, member, code) in [
        ("blocked", r#""blocked":true"#, ProblemCode::ApplicationBlocked),
        ("deleting", r#""deleting":true"#, ProblemCode::ReferenceHeld),
    ] {
        let record = format!(r#"{{"v":1,"name":"{name}","createdAt":"2026-01-01T00:00:00.000Z",{member}}}"#);
        let key = format!("_scafo/applications/{name}.json");
        node.memory().put(&key, record.into(), PutOptions::default()).await.unwrap();
        assert_eq!(node.prepare(name, r#"{"replicas":2}"#).await.unwrap_err().code, code);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_says_nothing_of_its_end_leaves_it_to_the_pointer() {
    let node = Node::start("a", MemoryBucket::new());
    for (random, version, job) in [(1, "v1", Job::Dies as fn(_) -> _), (2, "v2", Job::Mumbles)] {
        for _ in 0..3 {
            node.supervisor.then(job(version));
        }
        let done = node.deploy("shop", random).await;
        assert_eq!((done.state, done.deployment.unwrap().as_str()), (DeployState::Deployed, version));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_lost_a_race_or_its_answer_is_run_again() {
    let node = Node::start("a", MemoryBucket::new());
    node.supervisor.then(Job::Fails("error: the write lost a race, run it again"));
    node.supervisor.then(Job::Doubts("v1"));
    node.supervisor.then(Job::Publishes("v1"));
    assert_eq!(node.deploy("shop", 1).await.state, DeployState::Deployed);
    assert_eq!(node.supervisor.runs(), 3);
    // One that never learns how it ended has the pointer for a witness.
    for _ in 0..3 {
        node.supervisor.then(Job::Doubts("v2"));
    }
    let done = node.deploy("shop", 2).await;
    assert_eq!((done.state, done.deployment.unwrap().as_str()), (DeployState::Deployed, "v2"));
    // The pointer is no witness for one that always loses.
    for _ in 0..3 {
        node.supervisor.then(Job::Fails("error: the write lost a race, run it again"));
    }
    let id = DeployId::new(&name("shop"), 3);
    node.prepare("shop", "{}").await.unwrap();
    node.accept_artifact(&id, &"f".repeat(64)).await.unwrap();
    node.publish_artifact(&id, &"f".repeat(64)).await.unwrap();
    assert_eq!(node.ended(&id).await.code, Some(ProblemCode::PublishFailed));
}

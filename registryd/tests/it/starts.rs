//! How a node comes into a fleet, or does not.

use scafo_core::DeployId;
use scafo_core::problem::ProblemCode;
use scafo_proto::registry::ResolveKeyRequest;
use scafo_proto::registry::resolve_key_response::Kind;
use scafo_proto::status::to_problem;
use scafo_registryd::daemon::Fatal;
use scafo_store::{Bucket as _, Fault, Lie, MemoryBucket, PutOptions};

use crate::node::{Node, key, until};

#[tokio::test(flavor = "multi_thread")]
async fn the_first_operator_is_made_once() {
    let node = Node::start("a", MemoryBucket::new());
    let operator = node.init_operator("op-1", 7, false).await.unwrap();
    assert_eq!(operator.public_key, key(7));
    assert_eq!(node.init_operator("op-2", 8, false).await.unwrap_err().code, ProblemCode::ReferenceHeld);
    node.init_operator("op-2", 8, true).await.unwrap();
    let resolve = |kid: &str| {
        let mut client = node.client.clone();
        let request = ResolveKeyRequest { kid: kid.to_owned(), fresh: false };
        async move {
            client.resolve_key(request).await.map(tonic::Response::into_inner).map_err(|status| to_problem(&status))
        }
    };
    let found = resolve("op-1").await.unwrap();
    assert_eq!(found.kind(), Kind::Operator);
    assert_eq!(found.public_key, serde_json::to_vec(&key(7)).unwrap());
    assert_eq!(resolve("a").await.unwrap().kind(), Kind::Node);
    for nobody in ["nobody", "", "../a", "A"] {
        assert_eq!(resolve(nobody).await.unwrap_err().code, ProblemCode::NotFound, "{nobody}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_does_not_answer_is_waited_for_and_callers_are_told() {
    let memory = MemoryBucket::new();
    memory.plan(|_| Some(Fault::Busy));
    let store = memory.sibling();
    let node = Node::start("a", memory);
    let told = until(|| async { node.state().await.err() }).await;
    assert!(matches!(told.code, ProblemCode::StoreUnavailable | ProblemCode::Draining), "{told:?}");
    assert!(store.keys("").is_empty());
    node.memory().plan(|_| None);
    let state = until(|| async { node.state().await.ok().filter(|state| state.node.is_some()) }).await;
    assert_eq!(state.node.unwrap().id.as_str(), "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_lies_is_refused_for_good() {
    for lie in [Lie::IgnoresIfNoneMatch, Lie::IgnoresIfMatch, Lie::IgnoresRange] {
        let mut node = Node::start("a", MemoryBucket::lying(lie));
        let fatal = node.end().await.unwrap_err();
        assert!(
            matches!(&fatal, Fatal::Refused(problem) if problem.code == ProblemCode::StoreNonconforming),
            "{fatal}"
        );
        assert_eq!(fatal.exit_code(), 78);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_of_another_version_is_refused_for_good() {
    let memory = MemoryBucket::new();
    memory.put("_scafo/meta.json", r#"{"v":2}"#.into(), PutOptions::default()).await.unwrap();
    let mut node = Node::start("a", memory);
    assert_eq!(node.end().await.unwrap_err().exit_code(), 78);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_restart_waits_for_a_record_callers_are_put_off_and_not_refused() {
    let mut node = Node::start("a", MemoryBucket::new());
    until(|| async { node.state().await.ok()?.node }).await;
    node.kill();
    let good = node.memory().get("_scafo/meta.json").await.unwrap().unwrap().body;
    node.memory().put("_scafo/meta.json", "damaged".into(), PutOptions::default()).await.unwrap();
    node.try_again();
    let id = DeployId::new(&"shop".parse().unwrap(), 1);
    // Until the first try has failed it is only starting. What is asked of a connection to the killed daemon fails once.
    let told = until(|| async {
        let problem = node.deploy_status(&id).await.err()?;
        assert!(matches!(problem.code, ProblemCode::Draining | ProblemCode::StoreUnavailable), "{problem:?}");
        problem.detail.contains("_scafo/meta.json").then_some(problem)
    })
    .await;
    assert_eq!(told.code, ProblemCode::Draining, "what the API tries again");
    node.memory().put("_scafo/meta.json", good, PutOptions::default()).await.unwrap();
    until(|| async { node.state().await.ok()?.node }).await;
    assert_eq!(node.deploy_status(&id).await.unwrap_err().code, ProblemCode::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_store_serves_one_node() {
    let memory = MemoryBucket::new();
    let second = memory.sibling();
    let first = Node::start_with("a", memory, |settings| settings.embedded = true);
    until(|| async { first.state().await.ok()?.node }).await;
    let mut second = Node::start_with("b", second, |settings| settings.embedded = true);
    let fatal = second.end().await.unwrap_err();
    assert_eq!(fatal.exit_code(), 78);
    assert!(fatal.to_string().contains("`a`"), "{fatal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_node_is_refused_while_either_has_no_address() {
    for unset in ["a", "b"] {
        let memory = MemoryBucket::new();
        let second = memory.sibling();
        let first = Node::start_with("a", memory, |settings| settings.local_only = unset == "a");
        until(|| async { first.state().await.ok()?.node }).await;
        let mut second = Node::start_with("b", second, |settings| settings.local_only = unset == "b");
        let fatal = second.end().await.unwrap_err();
        assert_eq!(fatal.exit_code(), 78);
        let text = fatal.to_string();
        assert!(text.contains("`a`") && text.contains("`node.address`"), "{text}");
        assert_eq!(first.memory().keys("_scafo/nodes/"), ["_scafo/nodes/a.json"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_with_another_key_is_refused_for_good() {
    let memory = MemoryBucket::new();
    let second = memory.sibling();
    let first = Node::start("a", memory);
    until(|| async { first.state().await.ok()?.node }).await;
    let mut second = Node::start_with("a", second, |settings| settings.node.public_key = key(99));
    let fatal = second.end().await.unwrap_err();
    assert!(matches!(&fatal, Fatal::Refused(problem) if problem.code == ProblemCode::ReferenceHeld), "{fatal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_record_was_removed_stops_and_stays_away() {
    let mut node = Node::start("a", MemoryBucket::new());
    until(|| async { node.state().await.ok().filter(|state| state.node.is_some()) }).await;
    node.memory().delete("_scafo/nodes/a.json").await.unwrap();
    let fatal = node.end().await.unwrap_err();
    assert_eq!(fatal.exit_code(), 78);
    assert!(fatal.to_string().contains("--rejoin"), "{fatal}");
    node.try_again();
    assert_eq!(node.end().await.unwrap_err().exit_code(), 78);
}

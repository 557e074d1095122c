//! What an application leaves when it is deleted: nothing, for nobody.

use std::time::Duration;

use scafo_tests::node::both;
use scafo_tests::project::example;
use scafo_tests::{Node, wait};

use crate::deploy::count;

async fn counted(node: &Node) -> u64 {
    let (status, body) = node.get("counter", "/").await.unwrap();
    assert_eq!(status, 200, "{body}");
    count(&body)
}

async fn delete(node: &Node) {
    let output = node.scafo(["app", "delete", "counter", "--force"]).await;
    assert!(output.status.success(), "{}\n{}", both(&output), node.log());
}

#[tokio::test]
async fn an_application_that_is_deployed_anew_under_a_deleted_ones_name_starts_from_nothing() {
    let node = Node::start().await;
    node.deploy(&example("counter")).await;
    for expected in 1..=3 {
        assert_eq!(counted(&node).await, expected);
    }
    delete(&node).await;
    node.deploy(&example("counter")).await;
    assert_eq!(counted(&node).await, 1, "the data of the deleted one is not its own");

    delete(&node).await;
    let (data, log) = (node.state().join("celld/counter"), node.state().join("logs/counter.log"));
    wait::until("what it left on the disk to be removed", Duration::from_secs(60), || async {
        (!data.exists() && !log.exists()).then_some(())
    })
    .await;
    node.stop().await;
}

//! How many requests an idle node sends to its bucket.

use std::time::{Duration, Instant};

use scafo_tests::{Node, Project};

const APPLICATIONS: usize = 3;
const WINDOW: Duration = Duration::from_secs(60);
/// What the design allows a node, and one that coordinates, at the default intervals.
const GOALS: (u64, u64) = (22, 32);

pub(crate) async fn run() {
    println!("## idle: requests of registryd to the bucket (this node coordinates)");
    let node = Node::start().await;
    for index in 0..APPLICATIONS {
        node.deploy(Project::answering(&format!("app-{index}"), "hello").path()).await;
    }
    // What the deploys still have to say is said within the first pass after them.
    tokio::time::sleep(Duration::from_secs(15)).await;
    let (before, started) = (requests(&node).await, Instant::now());
    tokio::time::sleep(WINDOW).await;
    // Each look at the state costs one read of the operator's record, which an idle node does not have.
    let sent = requests(&node).await - before - 1;
    let minute = f64::from(u32::try_from(sent).unwrap_or(u32::MAX)) * 60.0 / started.elapsed().as_secs_f64();
    println!("{APPLICATIONS} applications: {minute:.1} a minute (goal ≤ {}, coordinating ≤ {})\n", GOALS.0, GOALS.1);
    node.stop().await;
}

async fn requests(node: &Node) -> u64 {
    let (status, state) = node.api().get("/v1/state").await.expect("an answer");
    assert_eq!(status, 200, "{state}");
    state["reconcile"]["storeRequests"].as_u64().expect("a count")
}

//! From a change that is written straight to the bucket to its effect on a node that nobody told, at the default intervals;
//! beside the same change through that node's API.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::Method;
use scafo_registryd::registry::{Registry, SystemClock};
use scafo_tests::fleet::Fleet;
use scafo_tests::{Node, Project, wait};
use serde_json::Value;

use crate::statistics::Sample;

const ROUNDS: usize = 8;
/// A node looks at the hint this often.
const INTERVAL: &str = "5s";

pub(crate) async fn run() {
    println!("## direct: change → its effect in the routing document of a node (reconcile.interval {INTERVAL})");
    let fleet = Fleet::new(&[("SCAFO_RECONCILE_INTERVAL", INTERVAL)]).await;
    let node = fleet.node("vps-a").await;
    node.deploy(Project::answering("bench", "hello").path()).await;
    until_routed(&node, true).await;
    let registry = Registry::new(Arc::new(fleet.store.bucket()), Arc::new(SystemClock), "bench");
    let name = "bench".parse().expect("a name");
    let (mut direct, mut told) = (Sample::default(), Sample::default());
    for round in 0..ROUNDS {
        for blocked in [true, false] {
            // At another moment between two looks each time.
            tokio::time::sleep(Duration::from_millis(617 * round as u64 % 5_000)).await;
            let started = Instant::now();
            registry.set_blocked(&name, blocked).await.expect("the bucket takes it");
            until_routed(&node, !blocked).await;
            direct.push(started.elapsed());
            registry.flush_hints(Duration::from_secs(10)).await.expect("the hint lands");
        }
        for what in ["block", "unblock"] {
            let started = Instant::now();
            let path = format!("/v1/applications/bench/{what}");
            let answer = node.api().request(Method::POST, &path).send().await.expect("an answer");
            assert_eq!(answer.status(), 200);
            until_routed(&node, what == "unblock").await;
            told.push(started.elapsed());
        }
    }
    println!("bucket-direct   {}", direct.row());
    println!("through the API {}", told.row());
    let ratio = direct.median().as_secs_f64() / told.median().as_secs_f64().max(0.001);
    println!("bucket-direct / through the API {ratio:.1}; an unlucky change waits for one interval of {INTERVAL}\n");
    node.stop().await;
}

async fn until_routed(node: &Node, routed: bool) {
    let host = node.host("bench");
    wait::until("the document to follow", Duration::from_secs(120), || async {
        let answer = node.api().ingress("/v1/ingress/routes").send().await.ok()?;
        let document: Value = answer.json().await.ok()?;
        let named = document["routes"].as_array()?.iter().any(|route| route["host"] == host);
        (named == routed).then_some(())
    })
    .await;
}

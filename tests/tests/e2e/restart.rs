//! A node that ends and starts again.

use std::path::Path;

use scafo_tests::node::{Node, both, run, scafo};
use scafo_tests::project::example;
use scafo_tests::{Project, wait};
use serde_json::Value;
use std::time::Duration;

use crate::deploy::count;

#[tokio::test]
async fn a_restart_keeps_the_counters_value_and_every_port() {
    let dir = tempfile::TempDir::new().unwrap();
    let state = dir.path().join("state");
    let node = Node::start_in(&state, &[]).await;
    node.deploy(&example("counter")).await;
    let other = Project::answering("other", "still here");
    node.deploy(other.path()).await;
    let mut last = 0;
    for _ in 0..5 {
        last = count(&node.get("counter", "/").await.unwrap().1);
    }
    let ports = ports(&node).await;
    let id = node.dev.node.clone();
    node.stop().await;

    let node = Node::start_in(&state, &[]).await;
    assert_eq!(node.dev.node, id);
    let next = served(&node, "counter").await;
    assert_eq!(count(&next), last + 1);
    assert_eq!(served(&node, "other").await, "still here");
    assert_eq!(self::ports(&node).await, ports);
    node.stop().await;
}

#[tokio::test]
async fn an_operator_key_and_the_ingress_token_survive_a_restart() {
    let dir = tempfile::TempDir::new().unwrap();
    let state = dir.path().join("state");
    let node = Node::start_in(&state, &[]).await;
    let (id, key) = (node.dev.operator_id.clone(), std::fs::read(&node.dev.operator_key).unwrap());
    let token = std::fs::read(&node.dev.ingress_token_file).unwrap();
    node.stop().await;
    let node = Node::start_in(&state, &[]).await;
    assert_eq!(node.dev.operator_id, id);
    assert_eq!(std::fs::read(&node.dev.operator_key).unwrap(), key);
    assert_eq!(std::fs::read(&node.dev.ingress_token_file).unwrap(), token);
    assert_eq!(node.api().get("/v1/applications").await.unwrap().0, 200);
    node.stop().await;
}

#[tokio::test]
async fn a_second_node_on_the_same_state_directory_is_refused() {
    let node = Node::start().await;
    let mut second = scafo();
    second.args(["dev", "--json", "--api-listen", "127.0.0.1:0", "--ingress-listen", "127.0.0.1:0", "--state-dir"]);
    let output = run(second.arg(node.state())).await;
    let said = both(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(output.stdout.is_empty(), "standard output is for the one line of a node that is ready");
    assert!(said.contains(&node.dev.pids.supervisor.to_string()), "the process that has it is named: {said}");
    assert_eq!(node.api().get("/v1/applications").await.unwrap().0, 200, "the first one goes on");
    node.stop().await;
}

#[tokio::test]
async fn secrets_are_files_that_only_their_owner_reads() {
    use std::os::unix::fs::PermissionsExt as _;
    let node = Node::start().await;
    for file in [&node.dev.operator_key, &node.dev.ingress_token_file, &node.state().join("node.key")] {
        let mode = std::fs::metadata(file).unwrap_or_else(|e| panic!("{}: {e}", file.display())).permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }
    let secrets: Vec<String> = [node.dev.ingress_token_file.clone()]
        .iter()
        .map(|f| std::fs::read_to_string(f).unwrap().trim().into())
        .collect();
    for secret in secrets {
        assert!(!node.log().contains(&secret), "a secret in the log");
        let shown: Vec<_> = node.processes().into_iter().filter(|p| arguments(p.pid).contains(&secret)).collect();
        assert!(shown.is_empty(), "a secret in arguments: {shown:?}");
    }
    node.stop().await;
}

fn arguments(pid: u32) -> String {
    std::fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline"))
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}

async fn ports(node: &Node) -> Vec<(String, u64, u64)> {
    let (status, state) = node.api().get("/v1/state").await.unwrap();
    assert_eq!(status, 200, "{state}");
    let port = |process: &Value, name: &str| process[name].as_u64().unwrap();
    let mut ports: Vec<_> = state["processes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| (p["application"].as_str().unwrap().to_owned(), port(p, "port"), port(p, "internalPort")))
        .collect();
    ports.sort();
    ports
}

async fn served(node: &Node, application: &str) -> String {
    wait::until(&format!("{application} to answer"), Duration::from_secs(60), || async {
        match node.get(application, "/").await {
            Ok((200, body)) => Some(body),
            _ => None,
        }
    })
    .await
}

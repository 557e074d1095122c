//! Deploys of one application that wait for each other while parts of their node are killed: every one of them ends well, and
//! what was accepted last is what is served.

use std::ffi::OsStr;
use std::time::Duration;

use scafo_tests::node::both;
use scafo_tests::{Node, Project, wait};

/// Enough for some that wait: the first is at work when the last is accepted.
const DEPLOYS: usize = 4;

fn answer(turn: usize) -> String {
    format!("answer {turn}")
}

/// Deploys without waiting for any end. The ids, in the order of acceptance.
async fn queue(node: &Node) -> Vec<String> {
    let project = Project::answering("shop", "none yet");
    let mut ids = Vec::new();
    for turn in 0..DEPLOYS {
        let answer = answer(turn);
        project.write("index.js", &format!("export default {{ fetch() {{ return new Response({answer:?}); }} }};\n"));
        let args = [OsStr::new("deploy"), project.path().as_os_str(), OsStr::new("--no-wait")];
        let output = node.scafo(args).await;
        assert!(output.status.success(), "{}\n{}", both(&output), node.log());
        ids.push(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    ids
}

/// Waits for the end of each, and for the answer of the last.
async fn all_deployed_and_the_last_is_served(node: &Node, ids: &[String]) {
    let api = node.api();
    for id in ids {
        let path = format!("/v1/deploys/{id}");
        let ended = wait::until(&format!("the end of {id}"), Duration::from_secs(120), || async {
            let (status, deploy) = api.get(&path).await.ok()?;
            let ended = status == 200 && ["deployed", "failed"].contains(&deploy["state"].as_str()?);
            ended.then_some(deploy)
        })
        .await;
        assert_eq!(ended["state"], "deployed", "{ended}\n{}", node.log());
    }
    let last = answer(DEPLOYS - 1);
    wait::until("the last answer", Duration::from_secs(60), || async {
        matches!(node.get("shop", "/").await, Ok((200, body)) if body == last).then_some(())
    })
    .await;
}

#[tokio::test]
async fn deploys_that_wait_outlive_a_whole_nodes_kill() {
    let dir = tempfile::TempDir::new().unwrap();
    let state = dir.path().join("state");
    let node = Node::start_in(&state, &[]).await;
    let ids = queue(&node).await;
    node.crash().await;
    let node = Node::start_in(&state, &[]).await;
    all_deployed_and_the_last_is_served(&node, &ids).await;
    node.stop().await;
}

#[tokio::test]
async fn a_deploy_whose_job_runs_when_its_node_is_stopped_goes_on_after_the_start() {
    let dir = tempfile::TempDir::new().unwrap();
    let state = dir.path().join("state");
    // No job of this run ends by itself, so that one is cut off by the stop.
    let node = Node::start_in(&state, &[("SCAFO_CELLD_ENV", "CELLD_STANDIN_DEPLOY=hang")]).await;
    let ids = queue(&node).await;
    wait::until("the first job", Duration::from_secs(60), || async {
        let jobs = std::fs::read_dir(state.join("jobs")).ok()?;
        (jobs.count() > 0).then_some(())
    })
    .await;
    node.stop().await;
    let node = Node::start_in(&state, &[]).await;
    all_deployed_and_the_last_is_served(&node, &ids).await;
    node.stop().await;
}

async fn outlive(daemon: &str) {
    let node = Node::start().await;
    let ids = queue(&node).await;
    node.kill_daemon(daemon).await;
    all_deployed_and_the_last_is_served(&node, &ids).await;
    node.stop().await;
}

#[tokio::test]
async fn deploys_that_wait_outlive_a_killed_registryd() {
    outlive("scafo-registryd").await;
}

#[tokio::test]
async fn deploys_that_wait_outlive_a_killed_apiserver() {
    outlive("scafo-apiserver").await;
}

#[tokio::test]
async fn a_first_deploy_that_throws_at_its_start_fails_as_published_and_a_working_one_follows() {
    let node = Node::start().await;
    let project = Project::answering("shop", "hello");
    let code = std::fs::read_to_string(project.path().join("index.js")).unwrap();
    project.write("index.js", &format!("throw new Error('not today');\n{code}"));
    let output = node.scafo([OsStr::new("deploy"), project.path().as_os_str()]).await;
    let said = both(&output);
    assert!(!output.status.success() && said.contains("publish-failed"), "{said}\n{}", node.log());
    project.write("index.js", &code);
    node.deploy(project.path()).await;
    assert_eq!(node.get("shop", "/").await.unwrap(), (200, "hello".to_owned()));
    node.stop().await;
}

//! From `202 Accepted` to the first good answer through the ingress, less what the bundler takes by itself.

use std::path::Path;
use std::time::Instant;

use reqwest::Method;
use scafo_tests::{Node, Project, project};

use crate::statistics::Sample;

const ROUNDS: usize = 10;

pub(crate) async fn run() {
    println!("## deploy: accepted → first good answer through the ingress");
    let node = Node::start().await;
    let worker = Project::answering("bench", "round 0");
    node.deploy(worker.path()).await;
    let (mut served, mut bundled) = (Sample::default(), Sample::default());
    for round in 1..=ROUNDS {
        let answer = format!("round {round}");
        let code = format!("export default {{ fetch() {{ return new Response({answer:?}); }} }};\n");
        worker.write("index.js", &code);
        let artifact = project::pack(worker.path());
        let request = node.api().request(Method::POST, "/v1/applications/bench/deploys");
        let request = request
            .header("content-type", "application/octet-stream")
            .header(scafo_core::deploy::HEADER, scafo_core::deploy::Metadata::default().encode())
            .body(artifact);
        let answered = request.send().await.expect("an answer");
        assert_eq!(answered.status(), 202, "{:?}", answered.text().await);
        let accepted = Instant::now();
        while node.get("bench", "/").await.ok() != Some((200, answer.clone())) {
            assert!(accepted.elapsed().as_secs() < 60, "not served within a minute\n{}", node.log());
        }
        served.push(accepted.elapsed());
        finished(&node).await;
        bundled.push(bundler(worker.path()));
    }
    println!("accepted → served   {}", served.row());
    println!("esbuild alone       {}", bundled.row());
    let own = served.median().saturating_sub(bundled.median());
    println!("scafo and workerd   median {:>8.1} ms (the difference)\n", own.as_secs_f64() * 1000.0);
    node.stop().await;
}

/// Waits for the end of the deploy, so that the rounds do not queue behind each other.
async fn finished(node: &Node) {
    let (_, state) = node.api().get("/v1/applications").await.expect("an answer");
    let deploy = state["applications"][0]["deployment"]["deploy"].as_str().expect("a deploy").to_owned();
    scafo_tests::wait::until("the deploy to end", std::time::Duration::from_secs(60), || async {
        let (_, status) = node.api().get(&format!("/v1/deploys/{deploy}")).await.ok()?;
        (status["state"] == "deployed").then_some(())
    })
    .await;
}

fn bundler(project: &Path) -> std::time::Duration {
    let esbuild = project::tool("@esbuild/linux-x64/bin/esbuild");
    let started = Instant::now();
    let output = std::process::Command::new(esbuild)
        .args(["--bundle", "--format=esm", "--platform=browser", "--target=es2024", "index.js"])
        .current_dir(project)
        .output()
        .expect("esbuild runs");
    assert!(output.status.success());
    started.elapsed()
}

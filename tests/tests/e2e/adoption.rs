//! A bucket that dies while a process takes a new deployment: late is all that it may be.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use scafo_tests::node::{LONG_LEASES, both};
use scafo_tests::{Node, Project, process, wait};

/// So many bodies to fetch that the bucket dies among them.
const ASSETS: usize = 1500;
/// How often it is tried to have it die there; each round is a deploy that has to succeed.
const ROUNDS: usize = 5;

/// Files below a directory.
fn files(dir: &Path) -> usize {
    let below = |entry: std::fs::DirEntry| if entry.path().is_dir() { files(&entry.path()) } else { 1 };
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(below).sum()
}

#[tokio::test]
async fn a_bucket_that_dies_while_a_deploy_is_adopted_does_not_fail_it() {
    let node = Node::start_with(&[LONG_LEASES]).await;
    let config = r#"{ "name": "shop", "main": "index.js", "compatibility_date": "2026-01-01",
        "assets": { "directory": "public" } }"#;
    let project = Project::new(&[("wrangler.jsonc", config), ("public/0.txt", "0")]);
    project.write("index.js", "export default { fetch() { return new Response('code'); } };\n");
    node.deploy(project.path()).await;

    let (cache, log) = (node.state().join("celld/shop/assets"), node.state().join("logs/shop.log"));
    for round in 1.. {
        assert!(round <= ROUNDS, "the bucket never died within an adoption");
        for number in 0..ASSETS {
            project.write(&format!("public/{number}.txt"), &format!("asset {number} of round {round}"));
        }
        let cached = files(&cache);
        let output = node.scafo([OsStr::new("deploy"), project.path().as_os_str(), OsStr::new("--no-wait")]).await;
        assert!(output.status.success(), "{}", both(&output));
        let (api, path) = (node.api(), format!("/v1/deploys/{}", String::from_utf8_lossy(&output.stdout).trim()));
        let bucket = wait::until("the first bodies of the new deployment", Duration::from_secs(120), || async {
            (files(&cache) > cached).then(|| node.daemon("scafo-bucketd"))
        })
        .await;
        process::signal(bucket.expect("it runs").pid, Signal::SIGKILL);
        let ended = wait::until("its end", Duration::from_secs(120), || async {
            let (status, deploy) = api.get(&path).await.ok()?;
            let ended = status == 200 && ["deployed", "failed"].contains(&deploy["state"].as_str()?);
            ended.then_some(deploy)
        })
        .await;
        assert_eq!(ended["state"], "deployed", "{ended}\n{}", node.log());
        let last = format!("asset {} of round {round}", ASSETS - 1);
        wait::until("the new answers", Duration::from_secs(120), || async {
            let answer = node.get("shop", &format!("/{}.txt", ASSETS - 1)).await;
            matches!(answer, Ok((200, body)) if body == last).then_some(())
        })
        .await;
        if std::fs::read_to_string(&log).unwrap().contains("deployment_unavailable") {
            break;
        }
    }
    node.stop().await;
}

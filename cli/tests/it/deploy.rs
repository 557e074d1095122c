use std::collections::HashSet;
use std::io::Read as _;

use scafo_core::deploy::Metadata;
use scafo_core::record::Replicas;
use scafo_core::{Problem, ProblemCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::node::{Asked, Node, Say, deploy, state};
use crate::run::{Home, Ran};

fn archived(upload: &Asked) -> Vec<(String, String)> {
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(upload.body.as_ref()));
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (path, text)
    });
    entries.collect()
}

#[tokio::test]
async fn a_deploy_is_uploaded_followed_to_its_end_and_its_url_printed() {
    let home = Home::new();
    let node = Node::start([
        Say::Json(202, deploy("accepted")),
        Say::Json(200, deploy("uploading")),
        Say::Json(200, deploy("deployed")),
        Say::Json(200, state()),
    ])
    .await;
    let ran = home.against(&node.url, "deploy project --replicas all --selector tier=fast --var A=b=c").await;
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert_eq!(ran.stdout, "deployed shop version 00d1f0e2a9b8c7d6\nhttp://shop.apps.example/\n");
    assert!(ran.stderr.contains("accepted as shop.0123456789abcdef"), "{}", ran.all());

    let asked = node.asked();
    let paths: Vec<String> = asked.iter().map(|asked| format!("{} {}", asked.method, asked.uri.path())).collect();
    let poll = "GET /v1/deploys/shop.0123456789abcdef";
    assert_eq!(paths, ["POST /v1/applications/shop/deploys", poll, poll, "GET /v1/state"]);
    let upload = &asked[0];
    assert_eq!(upload.header("content-length"), upload.body.len().to_string());
    assert_eq!(upload.header("content-type"), "application/octet-stream");
    let metadata = Metadata::decode(upload.header("x-scafo-deploy")).unwrap();
    assert_eq!((metadata.replicas, metadata.node_selector.unwrap()["tier"].as_str()), (Some(Replicas::All), "fast"));
    let files = archived(upload);
    assert_eq!(
        files.iter().map(|(path, _)| path.trim_end_matches('/')).collect::<Vec<_>>(),
        ["src", "src/index.js", "wrangler.jsonc"]
    );
    assert!(files[2].1.contains("\"A\": \"b=c\""), "{files:?}");
}

#[tokio::test]
async fn every_request_carries_a_token_of_its_own() {
    let home = Home::new();
    let node = Node::start([
        Say::Json(202, deploy("accepted")),
        Say::Problem(Problem::new(ProblemCode::Draining, "starting")),
        Say::Json(200, deploy("deployed")),
        Say::Json(200, state()),
    ])
    .await;
    let ran = home.against(&node.url, "deploy project").await;
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let tokens: HashSet<String> = node.asked().iter().map(Asked::verified_jti).collect();
    assert_eq!(tokens.len(), 4);
}

#[tokio::test]
async fn a_full_queue_is_waited_for_unless_told_not_to() {
    let home = Home::new();
    let node = Node::start([
        Say::Full,
        Say::Full,
        Say::Json(202, deploy("accepted")),
        Say::Json(200, deploy("deployed")),
        Say::Json(200, state()),
    ])
    .await;
    let ran = home.against(&node.url, "deploy project --json").await;
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let bodies: HashSet<_> = node.asked()[..3].iter().map(|asked| asked.body.clone()).collect();
    assert_eq!(bodies.len(), 1, "the same archive each time");
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&json["state"], &json["url"]), (&"deployed".into(), &"http://shop.apps.example/".into()));

    let node = Node::start([Say::Full]).await;
    let ran = home.against(&node.url, "deploy project --no-wait").await;
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    assert!(ran.stderr.contains("deploy-overloaded") && ran.stdout.is_empty(), "{}", ran.all());
}

#[tokio::test]
async fn without_waiting_the_id_is_the_answer() {
    let home = Home::new();
    let node = Node::start([Say::Json(202, deploy("accepted"))]).await;
    let ran = home.against(&node.url, "deploy project --no-wait").await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "shop.0123456789abcdef\n"), "{}", ran.all());
    assert_eq!(node.asked().len(), 1);
}

#[tokio::test]
async fn a_failed_deploy_exits_1_with_the_bundlers_own_message() {
    let home = Home::new();
    let node = Node::start([Say::Json(202, deploy("accepted")), Say::Json(200, deploy("failed"))]).await;
    let ran = home.against(&node.url, "deploy project").await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{}", ran.all());
    for said in ["publish-failed", "src/index.js:1:5: ERROR: Expected \";\" but found \"default\"", "\nhint: "] {
        assert!(ran.stderr.contains(said), "{said} in {}", ran.all());
    }
}

#[tokio::test]
async fn a_failed_deploy_exits_1_also_when_nobody_reads_its_json() {
    let home = Home::new();
    let node = Node::start([Say::Json(202, deploy("accepted")), Say::Json(200, deploy("failed"))]).await;
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = home.command(&format!("deploy project --json --url {} --key ops.pem", node.url));
    let ran = Ran::from(command.stdout(writer).output().await.unwrap());
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    assert!(ran.stderr.contains("publish-failed"), "{}", ran.all());
}

#[tokio::test]
async fn a_refusal_is_final_and_names_its_code() {
    let home = Home::new();
    for (code, said) in [(ProblemCode::DeploysFrozen, "until noon"), (ProblemCode::AuthInvalid, "a token")] {
        let node = Node::start([Say::Problem(Problem::new(code, said))]).await;
        let ran = home.against(&node.url, "deploy project").await;
        assert_eq!(ran.code, Some(1));
        assert!(ran.stderr.contains(code.as_str()) && ran.stderr.contains(said), "{}", ran.all());
        assert_eq!(node.asked().len(), 1);
    }
}

#[tokio::test]
async fn a_dry_run_sends_nothing_and_needs_no_node() {
    let home = Home::new();
    std::fs::write(home.project().join(".env"), "SECRET=1").unwrap();
    let ran = home.run("deploy project --dry-run --json").await;
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&json["application"], &json["entries"]), (&"shop".into(), &3.into()));
    assert_eq!(json["leftOut"], serde_json::json!([".env"]));
    let left: Vec<_> = std::fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "no archive stays behind: {left:?}");
}

#[tokio::test]
async fn a_project_that_is_none_names_the_two_files() {
    let home = Home::new();
    std::fs::remove_file(home.project().join("wrangler.jsonc")).unwrap();
    let ran = home.run("deploy project").await;
    assert_eq!(ran.code, Some(1));
    for said in ["wrangler.jsonc", "wrangler.json\n", "hint: "] {
        assert!(ran.stderr.contains(said), "{}", ran.all());
    }
}

#[tokio::test]
async fn the_state_of_a_node_is_never_deployed() {
    let home = Home::new();
    let ran = home.run("deploy project --dry-run --state-dir project").await;
    assert!(ran.code == Some(1) && ran.stderr.contains("state directory"), "{}", ran.all());
}

/// A node that refuses after the head, while most of the body is still to come.
async fn refuse_early(listener: tokio::net::TcpListener) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut head = Vec::new();
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        stream.read_buf(&mut head).await.unwrap();
    }
    let problem = Problem::new(ProblemCode::ResourceLimit, "the artifact has more than 1 MiB");
    let body = serde_json::to_string(&problem.document()).unwrap();
    let answer = format!("HTTP/1.1 413 Payload Too Large\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(answer.as_bytes()).await.unwrap();
    tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.ok();
}

#[tokio::test]
async fn a_refusal_in_the_middle_of_a_large_upload_is_read() {
    let home = Home::new();
    // What does not compress, so that the connection is full long before the end.
    let mut state = 1_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
    .take(24 << 20)
    .collect();
    std::fs::write(home.project().join("noise"), noise).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut serving = tokio::task::JoinSet::new();
    serving.spawn(refuse_early(listener));
    let ran = home.against(&url, "deploy project").await;
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    assert!(ran.stderr.contains("resource-limit") && ran.stderr.contains("more than 1 MiB"), "{}", ran.all());
}

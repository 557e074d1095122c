//! Deploys, from the upload to the end.

use bytes::Bytes;
use http::{Method, StatusCode};
use scafo_core::problem::{Problem, ProblemCode};
use serde_json::json;
use sha2::Digest as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::harness::{Harness, NO_METADATA, Options, archive, project};

fn refused(code: ProblemCode) -> Option<Problem> {
    Some(Problem::new(code, "as the test wants it"))
}

#[tokio::test]
async fn an_accepted_deploy_is_staged_unpacked_published_and_cleared() {
    let harness = Harness::start().await;
    harness.registry.world().slow = true;
    let artifact = project();
    let answer = harness.deploy("shop", "team", artifact.clone()).await;
    assert_eq!(answer.status, StatusCode::ACCEPTED);
    let status = answer.json();
    let id = status["id"].as_str().unwrap().to_owned();
    assert_eq!(status, json!({ "id": id, "application": "shop", "state": "accepted" }));
    assert_eq!(answer.headers["location"], format!("/v1/deploys/{id}"));

    harness.until("the deploy is offered", |world| !world.published.is_empty()).await;
    let (accepted, published) = {
        let world = harness.registry.world();
        assert_eq!(world.prepared, [("shop".to_owned(), json!({}))]);
        (world.accepted[0].clone(), world.published[0].clone())
    };
    assert_eq!(
        (accepted.id.as_str(), accepted.by.as_str(), accepted.bytes),
        (id.as_str(), "team", artifact.len() as u64)
    );
    assert_eq!(accepted.sha256, hex::encode(sha2::Sha256::digest(&artifact)));
    assert_eq!((published.id.as_str(), &published.sha256), (id.as_str(), &accepted.sha256));
    assert!(published.config_path.starts_with('/'));
    assert_eq!(std::fs::read_to_string(&published.config_path).unwrap(), "{ /* yes */ }");

    let poll = harness.get(&format!("/v1/deploys/{id}"), &harness.token("n1")).await;
    assert_eq!((poll.status, poll.json()["state"].as_str()), (StatusCode::OK, Some("uploading")));
    harness.registry.world().deploys.get_mut(&id).unwrap()["state"] = "deployed".into();
    harness.until_staged(0).await;
}

#[tokio::test]
async fn the_first_failing_check_answers() {
    let harness = Harness::start_with(Options { runner: false, queue: 0, ..Options::default() }).await;
    let mut headers: Vec<(&str, String)> = Vec::new();
    let path = |name: &str| format!("/v1/applications/{name}/deploys");
    let mut steps: Vec<(&str, String)> = Vec::new();
    let mut check = async |path: &str, headers: &[(&str, String)], expected: &str| {
        let sent: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let answer = harness.send(Method::POST, path, &sent, Bytes::new()).await;
        assert_eq!(answer.problem(), expected, "{path} {headers:?}");
        steps.push(("", expected.to_owned()));
    };
    // Everything is wrong at first; each step rights the first wrong.
    harness.registry.world().refuse_prepare = refused(ProblemCode::DeploysFrozen);
    check(&path("No"), &headers, "auth-invalid").await;
    headers.push(("authorization", harness.token("team")));
    check(&path("No"), &headers, "invalid-slug").await;
    headers[0].1 = harness.token("team");
    check(&path("blog"), &headers, "auth-scope").await;
    headers[0].1 = harness.token("team");
    check(&path("shop"), &headers, "invalid-input").await;
    assert!(harness.registry.world().prepared.is_empty(), "nothing was asked of the registry yet");
    headers[0].1 = harness.token("team");
    headers.push(("x-scafo-deploy", NO_METADATA.to_owned()));
    check(&path("shop"), &headers, "deploys-frozen").await;
    harness.registry.world().refuse_prepare = None;
    headers[0].1 = harness.token("team");
    check(&path("shop"), &headers, "capability-missing").await;

    let harness = Harness::start_with(Options { queue: 0, ..Options::default() }).await;
    assert_eq!(harness.deploy("shop", "team", "").await.problem(), "deploy-overloaded");
    let harness = Harness::start().await;
    let answer = harness.deploy("shop", "team", "").await;
    assert_eq!((answer.problem().as_str(), answer.status), ("invalid-input", StatusCode::BAD_REQUEST));
    assert!(answer.json()["detail"].as_str().unwrap().contains("no body"));
    assert_eq!(harness.staged(), 0);
}

#[tokio::test]
async fn metadata_is_read_strictly_and_passed_on() {
    let harness = Harness::start().await;
    let send = async |headers: &[(&str, &str)]| {
        let token = harness.token("team");
        let mut all = vec![("authorization", token.as_str())];
        all.extend(headers);
        harness.send(Method::POST, "/v1/applications/shop/deploys", &all, project()).await
    };
    let header = |json: &str| {
        use base64::Engine as _;
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(json)
    };
    for bad in ["e30=", "", "!", &header("{ }"), &header(r#"{"application":null}"#), &header(r#"{"replicas":0}"#)] {
        assert_eq!(send(&[("x-scafo-deploy", bad)]).await.problem(), "invalid-input", "{bad}");
    }
    let twice = send(&[("x-scafo-deploy", NO_METADATA), ("x-scafo-deploy", NO_METADATA)]).await;
    assert_eq!(twice.problem(), "invalid-input");
    let good = header(
        r#"{"nodeSelector":{"tier":"fast"},"replicas":"all","source":{"commit":"c","provider":"p","ref":"r","repo":"o"},"x":1}"#,
    );
    assert_eq!(send(&[("x-scafo-deploy", &good)]).await.status, StatusCode::ACCEPTED);
    let world = harness.registry.world();
    assert_eq!(world.prepared.len(), 1);
    assert_eq!(
        (&world.prepared[0].1["replicas"], &world.prepared[0].1["nodeSelector"]["tier"]),
        (&json!("all"), &json!("fast"))
    );
    let source: serde_json::Value = serde_json::from_slice(&world.accepted[0].source).unwrap();
    assert_eq!(source["commit"], "c");
}

#[tokio::test]
async fn an_artifact_that_is_too_large_is_refused_announced_or_not() {
    let harness = Harness::start_with(Options { artifact_bytes: 1000, ..Options::default() }).await;
    let answer = harness.deploy("shop", "team", vec![0; 1001]).await;
    assert_eq!((answer.status, answer.problem().as_str()), (StatusCode::PAYLOAD_TOO_LARGE, "resource-limit"));

    let mut stream = TcpStream::connect(harness.address).await.unwrap();
    let head = format!(
        "POST /v1/applications/shop/deploys HTTP/1.1\r\nhost: x\r\nauthorization: {}\r\nx-scafo-deploy: {NO_METADATA}\r\n\
         transfer-encoding: chunked\r\n\r\n",
        harness.token("team")
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..4 {
        stream.write_all(format!("190\r\n{}\r\n", "x".repeat(400)).as_bytes()).await.unwrap();
    }
    let mut answer = [0; 12];
    tokio::io::AsyncReadExt::read_exact(&mut stream, &mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
    assert_eq!(harness.staged(), 0);
}

#[tokio::test]
async fn a_caller_that_goes_away_in_the_middle_leaves_nothing() {
    let harness = Harness::start_with(Options { queue: 1, ..Options::default() }).await;
    let mut stream = TcpStream::connect(harness.address).await.unwrap();
    let head = format!(
        "POST /v1/applications/shop/deploys HTTP/1.1\r\nhost: x\r\nauthorization: {}\r\nx-scafo-deploy: {NO_METADATA}\r\n\
         content-length: 1000\r\n\r\nhalf",
        harness.token("team")
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    harness.until_staged(1).await;
    assert_eq!(harness.deploy("shop", "team", project()).await.problem(), "deploy-overloaded");
    drop(stream);
    harness.until_staged(0).await;
    assert!(harness.registry.world().accepted.is_empty());
    assert_eq!(harness.deploy("shop", "team", project()).await.status, StatusCode::ACCEPTED);
}

#[tokio::test]
async fn a_caller_that_stops_sending_is_timed_out_and_leaves_nothing() {
    let harness = Harness::start_with(Options { receive_timeout_ms: 50, ..Options::default() }).await;
    let mut stream = TcpStream::connect(harness.address).await.unwrap();
    let head = format!(
        "POST /v1/applications/shop/deploys HTTP/1.1\r\nhost: x\r\nauthorization: {}\r\nx-scafo-deploy: {NO_METADATA}\r\n\
         content-length: 1000\r\n\r\nhalf",
        harness.token("team")
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    tokio::io::AsyncReadExt::read_exact(&mut stream, &mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");
    assert_eq!(harness.staged(), 0);
}

#[tokio::test]
async fn a_full_queue_says_when_to_come_back_and_takes_the_next_when_one_ends() {
    let harness = Harness::start_with(Options { queue: 1, ..Options::default() }).await;
    harness.registry.world().slow = true;
    let first = harness.deploy("shop", "team", project()).await;
    assert_eq!(first.status, StatusCode::ACCEPTED);
    let second = harness.deploy("shop", "team", project()).await;
    assert_eq!((second.status, second.problem().as_str()), (StatusCode::TOO_MANY_REQUESTS, "deploy-overloaded"));
    assert_eq!(second.headers["retry-after"], "1");
    let id = first.json()["id"].as_str().unwrap().to_owned();
    harness.registry.world().deploys.get_mut(&id).unwrap()["state"] = "failed".into();
    harness.until_staged(0).await;
    assert_eq!(harness.deploy("shop", "team", project()).await.status, StatusCode::ACCEPTED);
}

#[tokio::test]
async fn staged_bytes_are_bounded_before_the_body_is_read() {
    let harness = Harness::start_with(Options { staged_bytes: 4096, ..Options::default() }).await;
    let answer = harness.deploy("shop", "team", vec![0; 5000]).await;
    assert_eq!(answer.problem(), "deploy-overloaded");
    assert_eq!(harness.deploy("shop", "team", project()).await.status, StatusCode::ACCEPTED);
}

#[tokio::test]
async fn a_deploy_that_waits_too_long_to_be_unpacked_fails_on_its_record() {
    // Beside the tree of the first there is no room for another one.
    let options =
        Options { artifact_bytes: 1 << 20, staged_bytes: 1 << 19, queue_timeout_ms: 200, ..Options::default() };
    let harness = Harness::start_with(options).await;
    harness.registry.world().slow = true;
    assert_eq!(harness.deploy("shop", "team", project()).await.status, StatusCode::ACCEPTED);
    harness.until("the first is offered", |world| !world.published.is_empty()).await;
    let second = harness.deploy("team-a", "team", project()).await;
    let id = second.json()["id"].as_str().unwrap().to_owned();
    harness.until("the second has failed", |world| world.deploys[&id]["state"] == "failed").await;
    let poll = harness.get(&format!("/v1/deploys/{id}"), &harness.token("team")).await.json();
    assert_eq!(poll["code"], "deploy-timeout");
    assert!(poll["detail"].as_str().unwrap().contains("deploy.queueTimeout"), "{poll}");
}

#[tokio::test]
async fn an_artifact_that_cannot_be_deployed_fails_on_its_record() {
    let harness = Harness::start().await;
    for (artifact, code, part) in [
        (archive(&[("wrangler.toml", "")]), "invalid-input", "wrangler.jsonc"),
        (b"not an archive".to_vec(), "invalid-input", "neither tar"),
    ] {
        let answer = harness.deploy("shop", "team", artifact).await;
        assert_eq!(answer.status, StatusCode::ACCEPTED);
        harness.until_staged(0).await;
        let id = answer.json()["id"].as_str().unwrap().to_owned();
        let poll = harness.get(&format!("/v1/deploys/{id}"), &harness.token("team")).await.json();
        assert_eq!((&poll["state"], &poll["code"]), (&json!("failed"), &json!(code)));
        assert!(poll["detail"].as_str().unwrap().contains(part), "{poll}");
    }
    assert!(harness.registry.world().published.is_empty());
}

#[tokio::test]
async fn a_deploy_that_was_not_accepted_leaves_nothing() {
    let harness = Harness::start().await;
    harness.registry.world().refuse_accept = refused(ProblemCode::CasConflict);
    assert_eq!(harness.deploy("shop", "team", project()).await.problem(), "cas-conflict");
    harness.until_staged(0).await;
    // It may have been written: it is ended, so that no record waits for ever.
    harness.registry.world().refuse_accept = refused(ProblemCode::StoreUnavailable);
    assert_eq!(harness.deploy("shop", "team", project()).await.problem(), "store-unavailable");
    harness.until_staged(0).await;
    assert_eq!(harness.registry.world().failed.len(), 1);
}

#[tokio::test]
async fn a_deploy_whose_caller_was_not_told_of_it_is_not_carried_by_the_next_process() {
    let mut harness = Harness::start().await;
    harness.registry.world().unsure = refused(ProblemCode::StoreUnavailable);
    assert_eq!(harness.deploy("shop", "team", project()).await.problem(), "store-unavailable");
    assert_eq!(harness.staged(), 0, "it is gone before the caller reads that it failed");
    harness.until("its end is tried to be written down", |world| !world.failed.is_empty()).await;
    harness.stop().await;
    harness.registry.world().unsure = None;
    harness.open().await;
    harness.deploy("team-a", "team", project()).await;
    harness.until("another one is offered", |world| !world.published.is_empty()).await;
    let world = harness.registry.world();
    assert_eq!((world.deploys.len(), world.published.len()), (2, 1), "the record of the first is there");
    assert!(world.published[0].id.starts_with("team-a."));
}

#[tokio::test]
async fn an_acknowledged_deploy_is_offered_again_by_the_next_process() {
    let mut harness = Harness::start().await;
    harness.registry.world().slow = true;
    let id = harness.deploy("shop", "team", project()).await.json()["id"].as_str().unwrap().to_owned();
    harness.until("it is offered", |world| !world.published.is_empty()).await;
    let stage = harness.dir.path().join("api/stage");
    std::fs::create_dir(stage.join("shop.00000000000000aa")).unwrap();
    std::fs::write(stage.join("shop.00000000000000aa/artifact"), "half").unwrap();
    harness.stop().await;
    // Each offers again and again: what comes from here on is from the next one.
    let before = std::mem::take(&mut harness.registry.world().published);
    harness.open().await;
    assert_eq!(harness.staged(), 1, "what was never acknowledged is gone");
    harness.until("it is offered again", |world| !world.published.is_empty()).await;
    {
        let world = harness.registry.world();
        assert_eq!(world.published[0], before[0]);
        assert!(std::path::Path::new(&world.published[0].config_path).is_file());
    }
    harness.registry.world().deploys.get_mut(&id).unwrap()["state"] = "deployed".into();
    harness.until_staged(0).await;
}

/// The registry daemon goes on with the job that it started, and that reads the tree.
#[tokio::test]
async fn what_was_offered_is_left_as_it_is_by_the_next_process() {
    let mut harness = Harness::start().await;
    harness.registry.world().slow = true;
    let id = harness.deploy("shop", "team", project()).await.json()["id"].as_str().unwrap().to_owned();
    harness.until("it is offered", |world| !world.published.is_empty()).await;
    let config = harness.registry.world().published[0].config_path.clone();
    let tree = std::path::Path::new(&config).parent().unwrap().to_owned();
    // Not what a deploy job does: it shows whether these are the same files.
    std::fs::write(tree.join("src/index.js"), "as the job found it").unwrap();
    let offered_by_the_next = async |harness: &mut Harness| {
        harness.stop().await;
        harness.registry.world().published.clear();
        harness.open().await;
        harness.until("it is offered again", |world| !world.published.is_empty()).await;
        harness.registry.world().published[0].config_path.clone()
    };
    assert_eq!(offered_by_the_next(&mut harness).await, config);
    assert_eq!(std::fs::read_to_string(tree.join("src/index.js")).unwrap(), "as the job found it");

    // The machine was started anew: no job is left, and what was not synchronised may be lost.
    std::fs::write(tree.with_file_name("unpacked.json"), r#"{"boot":"another","bytes":1}"#).unwrap();
    assert_eq!(offered_by_the_next(&mut harness).await, config);
    assert_eq!(std::fs::read_to_string(tree.join("src/index.js")).unwrap(), "export default {}");
    harness.registry.world().deploys.get_mut(&id).unwrap()["state"] = "deployed".into();
    harness.until_staged(0).await;
}

#[tokio::test]
async fn a_stage_without_a_record_or_with_an_ended_one_is_cleared_at_the_start() {
    let mut harness = Harness::start().await;
    harness.registry.world().slow = true;
    let first = harness.deploy("shop", "team", project()).await.json()["id"].as_str().unwrap().to_owned();
    harness.deploy("team-a", "team", project()).await;
    harness.until("both are offered", |world| world.published.iter().any(|offer| offer.id != first)).await;
    {
        let mut world = harness.registry.world();
        world.deploys.retain(|id, _| *id == first);
        world.deploys.get_mut(&first).unwrap()["state"] = "failed".into();
    }
    harness.restart().await;
    harness.until_staged(0).await;
}

#[tokio::test]
async fn a_poll_is_judged_by_the_application_in_the_id() {
    let harness = Harness::start().await;
    let id = "blog.0123456789abcdef";
    let record = json!({ "id": id, "application": "blog", "state": "accepted" });
    harness.registry.world().deploys.insert(id.to_owned(), record);
    let foreign = json!({ "id": "shop.0123456789abcdef", "application": "blog", "state": "accepted" });
    harness.registry.world().deploys.insert("shop.0123456789abcdef".to_owned(), foreign);
    for (signer, id, status) in [
        ("root", id, StatusCode::OK),
        ("n1", id, StatusCode::OK),
        ("team", id, StatusCode::FORBIDDEN),
        ("team", "blog.00000000000000ff", StatusCode::FORBIDDEN),
        ("team", "shop.00000000000000ff", StatusCode::NOT_FOUND),
        ("root", "shop.0123456789abcdef", StatusCode::NOT_FOUND),
        ("team", "nonsense", StatusCode::NOT_FOUND),
        ("team", "shop.0123456789ABCDEF", StatusCode::NOT_FOUND),
    ] {
        let answer = harness.get(&format!("/v1/deploys/{id}"), &harness.token(signer)).await;
        assert_eq!(answer.status, status, "{signer} {id}");
    }
}

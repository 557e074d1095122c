//! What should not be in the bucket, and an endpoint that is none: named, left as it is, and nobody else's trouble.

use std::time::Duration;

use reqwest::Method;
use scafo_store::Bucket as _;
use scafo_tests::fault_proxy::{Fault, FaultProxy, Operation, Reply, Rule};
use scafo_tests::node::{Place, both};
use scafo_tests::{Node, Project};
use serde_json::json;

use crate::support::{Fleet, call, ended, put, send_deploy, until};

/// What is wrong with a record, where it is put, and the words that have to name it.
fn bad_records() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let large = format!(
        r#"{{"v": 1, "name": "large", "createdAt": "2026-01-01T00:00:00.000Z", "later": "{}"}}"#,
        "x".repeat(5 << 20)
    );
    let later = r#"{"v": 2, "name": "later", "createdAt": "2026-01-01T00:00:00.000Z"}"#;
    let other = r#"{"v": 1, "name": "somebody-else", "createdAt": "2026-01-01T00:00:00.000Z"}"#;
    vec![
        ("_scafo/applications/later.json", later.into(), "version"),
        ("_scafo/applications/cut.json", br#"{"v": 1, "name": "cut", "crea"#.into(), "EOF"),
        ("_scafo/applications/other.json", other.into(), "names another record"),
        ("_scafo/applications/large.json", large.into(), "more than"),
        ("_scafo/placement/cut.json", b"{".into(), "EOF"),
        ("_scafo/nodes/ghost.json", b"<!doctype html><title>Router</title>".into(), "expected value"),
    ]
}

/// What is nothing of scafo's, under its prefix: not read, and not complained about.
const FOREIGN: [&str; 6] = [
    "_scafo/applications/README.txt",
    "_scafo/applications/ü %2F+.json",
    "_scafo/applications/a/b.json",
    "_scafo/applications/",
    "_scafo/notes/todo.json",
    "_scafo/nodes/\u{1f6a2}.json",
];

async fn status(node: &Node) -> String {
    both(&node.scafo(["status"]).await)
}

async fn until_status_says(fleet: &Fleet, node: usize, what: &str, says: impl Fn(&str) -> bool) {
    until(what, &fleet.nodes, || async {
        let said = status(&fleet.nodes[node]).await;
        if says(&said) { Ok(()) } else { Err(said) }
    })
    .await;
}

async fn deploy(node: &Node, application: &str, answer: &str) {
    let api = node.api();
    let deploy = send_deploy(&api, application, &Project::answering(application, answer)).await.unwrap();
    let deploy = ended(&api, &deploy).await;
    assert_eq!(deploy["state"], "deployed", "{deploy}\n{}", node.log());
}

async fn served(fleet: &Fleet, application: &str, answer: &str) {
    until(&format!("{application} at both nodes"), &fleet.nodes, || async {
        for node in &fleet.nodes {
            let answered = node.get(application, "/").await;
            if !matches!(&answered, Ok((200, body)) if body == answer) {
                return Err(format!("{}: {answered:?}", node.dev.node));
            }
        }
        Ok(())
    })
    .await;
}

/// Makes every node look at everything.
async fn hint(fleet: &Fleet) {
    let body =
        json!({ "v": 1, "token": rand::random::<u64>().to_string(), "at": "2026-01-01T00:00:00.000Z", "by": "x" });
    put(fleet.store(), "_scafo/changes.json", body.to_string()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_record_is_named_left_alone_and_nobody_elses_trouble() {
    let fleet = Fleet::start(2, 1, &[]).await;
    deploy(&fleet.nodes[0], "shop", "the shop").await;
    let bad = bad_records();
    for (key, body, _) in &bad {
        put(fleet.store(), key, body.clone()).await;
    }
    for key in FOREIGN {
        put(fleet.store(), key, "anything").await;
    }
    hint(&fleet).await;
    for node in 0..2 {
        until_status_says(&fleet, node, "every bad record to be named", |said| {
            bad.iter().all(|(key, _, words)| {
                said.lines().any(|line| line.contains(&format!("the record {key} ")) && line.contains(words))
            })
        })
        .await;
    }
    let said = status(&fleet.nodes[1]).await;
    for key in FOREIGN {
        assert!(!said.contains(&format!("the record {key} ")), "{key}: {said}");
    }
    // The rest goes on: what serves, what changes, what is new.
    served(&fleet, "shop", "the shop").await;
    let api = fleet.nodes[1].api();
    let (code, body) = call(&api, Method::POST, "/v1/applications/shop/replicas", Some(json!({ "replicas": 2 }))).await;
    assert_eq!(code, 200, "{body}");
    deploy(&fleet.nodes[1], "news", "the news").await;
    served(&fleet, "news", "the news").await;
    let (code, body) = call(&api, Method::GET, "/v1/applications", None).await;
    let names: Vec<_> = body["applications"].as_array().unwrap().iter().map(|it| it["name"].clone()).collect();
    assert_eq!((code, names), (200, vec![json!("news"), json!("shop")]));
    for path in ["/v1/applications/later", "/v1/applications/cut", "/v1/applications/large"] {
        let (code, body) = call(&api, Method::GET, path, None).await;
        assert_eq!((code, &body["type"]), (502, &json!("urn:scafo:store-nonconforming")), "{body}");
        let block = call(&api, Method::POST, &format!("{path}/block"), None).await;
        assert_eq!((block.0, &block.1["type"]), (502, &json!("urn:scafo:store-nonconforming")), "{}", block.1);
    }
    let refused = send_deploy(&api, "later", &Project::answering("later", "?")).await.unwrap_err();
    assert_eq!(refused.0, 502, "{}", refused.1);
    for (key, body, _) in &bad {
        let stands = fleet.store().bucket().get(key).await.unwrap().unwrap();
        assert!(stands.body == body, "{key} was changed");
    }
    for key in FOREIGN {
        assert!(fleet.store().bucket().get(key).await.unwrap().is_some(), "{key} was removed");
    }
    fleet.stop().await;
}

/// Without a coordinator nothing moves, so the one record that all others rest on is named first of all.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_cannot_be_read_is_named_and_serving_goes_on() {
    let fleet = Fleet::start(2, 1, &[]).await;
    deploy(&fleet.nodes[0], "shop", "the shop").await;
    let lease = "_scafo/coordinator/lease.json";
    put(fleet.store(), lease, r#"{"v": 2}"#).await;
    for node in 0..2 {
        until_status_says(&fleet, node, "the lease to be named", |said| {
            said.contains(&format!("the record {lease} ")) && said.contains("nobody coordinates")
        })
        .await;
    }
    served(&fleet, "shop", "the shop").await;
    let stands = fleet.store().bucket().get(lease).await.unwrap().unwrap();
    assert_eq!(stands.body, r#"{"v": 2}"#, "it is left as it is");
    fleet.store().bucket().delete(lease).await.unwrap();
    for node in 0..2 {
        until_status_says(&fleet, node, "a coordinator", |said| {
            !said.contains(lease) && !said.contains("nobody coordinates")
        })
        .await;
    }
    deploy(&fleet.nodes[1], "news", "the news").await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_answers_web_pages_is_named_and_the_last_snapshot_is_served() {
    let fleet = Fleet::start(2, 1, &[]).await;
    deploy(&fleet.nodes[0], "shop", "the shop").await;
    served(&fleet, "shop", "the shop").await;
    let page = || Rule::new(Fault::Answer(Reply::WebPage)).under("_scafo/");
    fleet.proxies[1].push(page());
    // The operator's own record cannot be read either, so that the error of the command is all that there is.
    until_status_says(&fleet, 1, "the endpoint to be named", |said| said.contains("bucket.endpoint")).await;
    served(&fleet, "shop", "the shop").await;
    fleet.proxies[1].calm();
    until_status_says(&fleet, 1, "an end of it", |said| said.contains("went through")).await;

    // A node that starts on it says so, and is no part of the fleet.
    let proxy = FaultProxy::start(fleet.store().access(), 1).await.unwrap();
    proxy.push(Rule::new(Fault::Answer(Reply::WebPage)).on([Operation::Get, Operation::Put, Operation::List]));
    let more = [("SCAFO_BUCKET_ENDPOINT", proxy.endpoint()), ("SCAFO_NODE_ADDRESS", "127.0.0.9")];
    let place = Place::loopback("127.0.0.9");
    let start = fleet.fleet.try_node_at(&place, "vps-9", &more);
    let said = tokio::time::timeout(Duration::from_secs(90), start).await.expect("an end");
    let said = said.err().expect("no node");
    assert!(said.contains("bucket.endpoint"), "{said}");
    assert!(fleet.store().bucket().get("_scafo/nodes/vps-9.json").await.unwrap().is_none());
    fleet.stop().await;
}

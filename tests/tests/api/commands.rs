//! Commands that work on the bucket itself, without a node: by the rules of a node, and heard of by every node.

use std::ffi::OsStr;
use std::process::Output;
use std::time::Duration;

use scafo_store::{Bucket as _, PutOptions};
use scafo_tests::fleet::{Fleet, PATIENT};
use scafo_tests::node::{both, run, scafo};
use scafo_tests::{Node, Project, wait};
use serde_json::Value;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);

/// Somebody with the bucket's credentials and a directory of his own.
struct Person<'a> {
    fleet: &'a Fleet,
    home: TempDir,
}

impl Person<'_> {
    /// Runs `scafo LINE --bucket …`.
    async fn run(&self, line: &str) -> Output {
        let access = self.fleet.store.access();
        let mut command = scafo();
        command
            .args(line.split(' '))
            .args(["--bucket", &access.name, "--bucket-endpoint", access.endpoint.as_deref().unwrap()])
            .env("AWS_ACCESS_KEY_ID", &access.access_key_id)
            .env("AWS_SECRET_ACCESS_KEY", access.secret_access_key.expose())
            .env("XDG_CONFIG_HOME", self.home.path())
            .current_dir(self.home.path());
        run(&mut command).await
    }

    /// Standard output of a command that is done.
    async fn done(&self, line: &str) -> String {
        let output = self.run(line).await;
        assert_eq!(output.status.code(), Some(0), "{line}: {}", both(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    async fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.done(&format!("{line} --json")).await).unwrap()
    }

    /// What is said by a command that is refused.
    async fn refused(&self, line: &str) -> String {
        let output = self.run(line).await;
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{line}: {}", both(&output));
        both(&output)
    }
}

async fn answers(node: &Node, expected: Option<&str>) {
    wait::until(&format!("the answer {expected:?}"), LIMIT, || async {
        let answer = node.get("shop", "/").await.ok()?;
        let fits = expected.map_or(answer.0 == 404, |text| answer == (200, text.to_owned()));
        fits.then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_is_done_on_the_bucket_itself_reaches_every_node_at_once() {
    // Without the change hint it would be a quarter of an hour until the next full look.
    let fleet = Fleet::new(&PATIENT).await;
    let node = fleet.node("a").await;
    let project = Project::answering("shop", "hello");
    node.deploy(project.path()).await;
    let person = Person { fleet: &fleet, home: TempDir::new().unwrap() };

    for (stop, again) in [("retire", "unretire"), ("block", "unblock")] {
        person.done(&format!("app {stop} shop")).await;
        answers(&node, None).await;
        person.done(&format!("app {again} shop")).await;
        answers(&node, Some("hello")).await;
    }
    person.done("app domain add shop shop.example").await;
    wait::until("the host in the routes", LIMIT, || async {
        let document: Value = node.api().ingress("/v1/ingress/routes").send().await.ok()?.json().await.ok()?;
        document["routes"].as_array()?.iter().any(|route| route["host"] == "shop.example").then_some(())
    })
    .await;
    applications(&person).await;
    the_fleet(&person, &node).await;
    operators_and_trust(&person).await;
    the_runtimes_own(&person).await;
    nodes_and_strangers(&person).await;
    node.stop().await;
}

async fn applications(person: &Person<'_>) {
    assert!(person.done("app list").await.contains("shop"));
    let shown = person.json("app show shop").await;
    assert_eq!(shown["application"]["domains"][0], "shop.example");
    assert_eq!(person.done("app domain remove shop shop.example").await, "shop has given up shop.example\n");
    assert_eq!(person.done("app replicas shop all").await, "shop is for each node that may serve it\n");
    assert_eq!(person.done("app labels shop plan=pro").await, "shop has the labels plan=pro\n");
    assert_eq!(person.done("app selector shop --any").await, "shop is for any node\n");
    assert!(person.refused("app show nobody").await.contains("not-found"));
    assert!(person.refused("app delete shop --force").await.contains("Needs a node"));
    let deploys = person.json("deploys shop").await;
    assert_eq!(deploys["deploys"][0]["state"], "deployed");
    let deployments = person.json("deployment list shop").await;
    assert_eq!(deployments["deployments"][0]["application"], "shop");
}

async fn the_fleet(person: &Person<'_>, node: &Node) {
    assert!(person.done("fleet freeze --reason noon").await.starts_with("deploys are frozen"));
    let (status, freeze) = node.api().get("/v1/fleet/freeze").await.unwrap();
    assert_eq!((status, &freeze["freeze"]["reason"]), (200, &Value::from("noon")));
    let shown = person.json("fleet status").await;
    assert_eq!((&shown["freeze"]["by"], &shown["coordinator"]["node"]), (&Value::from("bucket"), &Value::from("a")));
    assert_eq!(person.done("fleet unfreeze").await, "deploys are taken again\n");
}

async fn operators_and_trust(person: &Person<'_>) {
    assert!(person.refused("operator init --id boss").await.contains("reference-held"));
    assert_eq!(person.done("operator init --id boss --force").await, "boss\n");
    assert!(person.home.path().join("scafo/keys/boss.pem").is_file());
    assert_eq!(person.done("operator add ci --applications shop --key-out ci.pem").await, "ci\n");
    let listed = person.done("operator list").await;
    assert!(listed.contains("boss") && listed.contains("ci"), "{listed}");
    assert_eq!(person.done("operator revoke ci").await, "ci\n");
    assert!(person.refused("operator revoke ci").await.contains("not-found"));

    let set = "trust set shop --issuer https://ci.example --subject repo:acme/shop:*";
    assert!(person.done(set).await.contains("repo:acme/shop:*"));
    assert!(person.done("trust show shop").await.contains("https://ci.example"));
    assert!(person.done("trust remove shop").await.contains("may not deploy shop any more"));
    assert_eq!(person.json("trust show shop").await["policy"], Value::Null);
}

/// Objects of the runtime.
async fn the_runtimes_own(person: &Person<'_>) {
    let bucket = person.fleet.store.bucket();
    let put = async |key: &str, body: &'static str| {
        bucket.put(key, body.into(), PutOptions::default()).await.unwrap();
    };
    assert!(person.refused("deployment prune shop").await.contains("scafo fleet freeze"));
    let looked = person.run("deployment prune shop --dry-run").await;
    assert!(looked.status.success() && both(&looked).contains("unstable"), "{}", both(&looked));
    person.done("fleet freeze").await;
    put("fleets/shop/deploy/shop/0000000000000000/manifest.json", "{}").await;
    let pruned = person.json("deployment prune shop --keep 0 --older-than 30d").await;
    assert_eq!((&pruned["objects"], &pruned["dryRun"]), (&Value::from(0), &Value::from(false)), "all of it is young");
    person.done("fleet unfreeze").await;

    let leases = bucket.list("fleets/shop/nodes/").await.unwrap().entries;
    let live = leases[0].key.rsplit('/').next().unwrap().trim_end_matches(".json");
    assert!(person.refused(&format!("app lease drop shop {live}")).await.contains("a process lives by it"));
    put("fleets/shop/nodes/broken.json", "<html>").await;
    assert_eq!(person.done("app lease drop shop broken").await, "the lease of broken is removed\n");
    assert!(person.refused("app lease drop shop broken").await.contains("not-found"));
}

async fn nodes_and_strangers(person: &Person<'_>) {
    let nodes = person.json("node list").await;
    assert_eq!((&nodes["nodes"][0]["node"]["id"], &nodes["nodes"][0]["live"]), (&Value::from("a"), &Value::from(true)));
    assert!(person.refused("node remove a").await.contains("reference-held"));
    let elsewhere = person.run("app list --bucket-prefix elsewhere").await;
    assert!(elsewhere.status.code() == Some(1) && both(&elsewhere).contains("no installation"), "{}", both(&elsewhere));
    for wrong in ["app list --state-dir x", "app list --url http://127.0.0.1:1"] {
        let output = person.run(wrong).await;
        assert_eq!(output.status.code(), Some(2), "{wrong}: {}", both(&output));
    }
}

#[tokio::test]
async fn a_rotated_key_of_a_development_node_outlives_its_restart() {
    let dir = TempDir::new().unwrap();
    let state = dir.path().join("state");
    let node = Node::start_in(&state, &[]).await;
    let first = node.dev.operator_id.clone();
    let rotate = node.scafo([OsStr::new("operator"), OsStr::new("rotate")]).await;
    assert!(rotate.status.success(), "{}", both(&rotate));
    let rotated = listed(&node).await;
    assert!(rotated.len() == 1 && rotated[0] != first, "the new key alone: {rotated:?}");
    node.stop().await;

    let node = Node::start_in(&state, &[]).await;
    assert_eq!(node.dev.operator_id, rotated[0]);
    assert_eq!(listed(&node).await, rotated, "no other key was made");
    let project = Project::answering("shop", "hello");
    node.deploy(project.path()).await;
    assert_eq!(node.get("shop", "/").await.unwrap(), (200, "hello".to_owned()));
    node.stop().await;
}

/// The ids of the keys that the fleet knows.
async fn listed(node: &Node) -> Vec<String> {
    let output = node.scafo(["operator", "list", "--json"]).await;
    assert!(output.status.success(), "{}", both(&output));
    let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let operators = listed["operators"].as_array().unwrap();
    operators.iter().map(|operator| operator["id"].as_str().unwrap().to_owned()).collect()
}

//! Calls that change something, of which the registry daemon is killed in the middle: right after the bucket has carried out a
//! step, and before the daemon hears of it. The caller gets one answer, the one that it would have got, and the change is made
//! once.

use std::sync::Arc;

use ed25519_dalek::SigningKey;
use reqwest::Method;
use scafo_core::record::Replicas;
use scafo_core::token::PublicKey;
use scafo_registryd::registry::{Registry, SystemClock};
use scafo_store::Bucket as _;
use scafo_tests::fault_proxy::{Exchange, Fault, Nth, Operation, Rule};
use scafo_tests::node::both;
use scafo_tests::{Project, wait};
use serde_json::{Value, json};

use crate::support::{Fleet, LIMIT, call, ended, put, record, send_deploy};

const REGISTRYD: &str = "scafo-registryd";

/// Where a call is cut off: behind this request for a key that has this in it.
#[derive(Clone, Copy)]
struct Step(Operation, &'static str);

/// Makes a call, and kills the daemon when the bucket has carried out `step` of it. `meanwhile` comes in between.
async fn killed_behind<T>(
    fleet: &Fleet,
    Step(operation, key): Step,
    request: impl Future<Output = T>,
    meanwhile: impl Future<Output = ()>,
) -> T {
    let proxy = &fleet.proxies[0];
    proxy.take_log();
    // The daemon is dead long before the answer would come.
    let held = Rule::new(Fault::DelayAnswer { by_ms: 600_000 }).on([operation]).about(key).nth(Nth::Only(1));
    proxy.push(held);
    let kill = async {
        let carried_out = |exchange: &Exchange| {
            let fits = exchange.asked.operation == operation && exchange.asked.key.contains(key);
            fits && exchange.store.is_some_and(|status| (200..300).contains(&status))
        };
        wait::until(&format!("{operation:?} of {key}"), LIMIT, || async {
            proxy.log().iter().any(carried_out).then_some(())
        })
        .await;
        meanwhile.await;
        fleet.nodes[0].kill_daemon(REGISTRYD).await;
        proxy.calm();
    };
    let (answer, ()) = tokio::join!(request, kill);
    answer
}

async fn nothing() {}

/// A fleet of one node with an application that nothing runs of.
async fn with_shop() -> Fleet {
    let fleet = Fleet::start(1, 1, &[]).await;
    let shop = "shop".parse().unwrap();
    let registry = other(&fleet);
    registry.create_application(&shop).await.unwrap();
    registry.set_retired(&shop, true).await.unwrap();
    registry.flush_hints(LIMIT).await.unwrap();
    fleet
}

/// Somebody else who works on the bucket.
fn other(fleet: &Fleet) -> Registry {
    Registry::new(Arc::new(fleet.store().bucket()), Arc::new(SystemClock), "other")
}

async fn shop(fleet: &Fleet) -> Value {
    record(fleet.store(), "_scafo/applications/shop.json").await.unwrap()
}

async fn interrupted(fleet: &Fleet, step: Step, method: Method, path: &str, body: Option<Value>) -> (u16, Value) {
    let api = fleet.nodes[0].api();
    killed_behind(fleet, step, call(&api, method, path, body), nothing()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setter_that_comes_again_is_made_once_and_not_over_what_others_decided_since() {
    let fleet = with_shop().await;
    let step = Step(Operation::Put, "applications/shop.json");
    let before = shop(&fleet).await["revision"].as_u64().unwrap_or_default();
    let path = "/v1/applications/shop/labels";
    let labels = json!({ "labels": { "plan": "pro" } });
    let (status, body) = interrupted(&fleet, step, Method::POST, path, Some(labels.clone())).await;
    assert_eq!((status, &body["application"]["labels"]), (200, &labels["labels"]), "{body}");
    assert_eq!(shop(&fleet).await["revision"], before + 1, "written once");

    let (status, body) = interrupted(&fleet, step, Method::POST, "/v1/applications/shop/block", None).await;
    assert_eq!((status, &body["application"]["blocked"]), (200, &json!(true)), "{body}");
    assert_eq!(shop(&fleet).await["revision"], before + 2, "written once");

    // It took place; then somebody else decided; and only then did the caller's node come back to it.
    let later = async {
        let three = Replicas::Count(3.try_into().unwrap());
        other(&fleet).set_replicas(&"shop".parse().unwrap(), three).await.unwrap();
    };
    let api = fleet.nodes[0].api();
    let request = call(&api, Method::POST, "/v1/applications/shop/replicas", Some(json!({ "replicas": 2 })));
    let (status, body) = killed_behind(&fleet, step, request, later).await;
    assert_eq!(status, 200, "{body}");
    let stands = shop(&fleet).await;
    assert_eq!((&stands["replicas"], &stands["revision"]), (&json!(3), &json!(before + 4)), "{stands}");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_freeze_and_its_end_that_come_again_answer_as_the_first_time() {
    let fleet = with_shop().await;
    let (put, delete) = (Step(Operation::Put, "freeze.json"), Step(Operation::Delete, "freeze.json"));
    let reason = json!({ "reason": "release" });
    let (status, body) = interrupted(&fleet, put, Method::POST, "/v1/fleet/freeze", Some(reason)).await;
    assert_eq!((status, &body["created"], &body["freeze"]["reason"]), (200, &json!(true), &json!("release")), "{body}");
    let (status, body) = interrupted(&fleet, delete, Method::DELETE, "/v1/fleet/freeze", None).await;
    assert_eq!((status, &body["lifted"]), (200, &json!(true)), "{body}");
    assert!(record(fleet.store(), "_scafo/freeze.json").await.is_none());

    // The one that is lifted goes; the one that somebody makes before the call comes again stays.
    other(&fleet).freeze("other", None).await.unwrap();
    let again = async {
        assert!(other(&fleet).freeze("another", None).await.unwrap().created);
    };
    let api = fleet.nodes[0].api();
    let request = call(&api, Method::DELETE, "/v1/fleet/freeze", None);
    let (status, body) = killed_behind(&fleet, delete, request, again).await;
    assert_eq!((status, &body["lifted"]), (200, &json!(true)), "{body}");
    assert_eq!(record(fleet.store(), "_scafo/freeze.json").await.unwrap()["by"], "another");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_and_its_release_that_come_again_answer_as_the_first_time() {
    let fleet = with_shop().await;
    let path = "/v1/applications/shop/domains/shop.example";
    for key in ["domains/shop.example.json", "applications/shop.json"] {
        let (status, body) = interrupted(&fleet, Step(Operation::Put, key), Method::POST, path, None).await;
        assert_eq!((status, &body["application"]["domains"]), (200, &json!(["shop.example"])), "{key}: {body}");
        let delete = Step(Operation::Delete, "domains/shop.example.json");
        let (status, body) = interrupted(&fleet, delete, Method::DELETE, path, None).await;
        assert_eq!((status, &body["application"]["domains"]), (200, &json!([])), "{key}: {body}");
        assert!(record(fleet.store(), "_scafo/domains/shop.example.json").await.is_none());
    }
    let api = fleet.nodes[0].api();
    assert_eq!(call(&api, Method::DELETE, path, None).await.0, 404, "another call finds nothing");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registered_and_a_revoked_key_that_come_again_answer_as_the_first_time() {
    let fleet = with_shop().await;
    let key = PublicKey::from(&SigningKey::from_bytes(&[7; 32]));
    let team = json!({ "id": "team", "publicKey": key, "applications": ["shop"] });
    let register = Step(Operation::Put, "operators/team.json");
    let (status, body) = interrupted(&fleet, register, Method::POST, "/v1/operators", Some(team.clone())).await;
    assert_eq!((status, &body["operator"]["id"]), (200, &json!("team")), "{body}");
    let api = fleet.nodes[0].api();
    for step in [Operation::Put, Operation::Delete] {
        let step = Step(step, "operators/team.json");
        let (status, body) = interrupted(&fleet, step, Method::DELETE, "/v1/operators/team", None).await;
        assert_eq!((status, &body["removed"]), (200, &json!("team")), "{body}");
        assert!(record(fleet.store(), "_scafo/operators/team.json").await.is_none());
        assert_eq!(call(&api, Method::DELETE, "/v1/operators/team", None).await.0, 404, "another call finds nothing");
        assert_eq!(call(&api, Method::POST, "/v1/operators", Some(team.clone())).await.0, 200);
    }
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_comes_again_answers_as_the_first_time_and_leaves_what_was_made_anew() {
    let fleet = with_shop().await;
    let path = "/v1/applications/shop?force=1";
    let step = Step(Operation::Delete, "applications/shop.json");
    let (status, body) = interrupted(&fleet, step, Method::DELETE, path, None).await;
    assert_eq!(status, 200, "{body}");
    let deleted = body["deleted"].as_array().unwrap();
    assert!(deleted.contains(&json!("_scafo/applications/shop.json")), "{body}");
    let api = fleet.nodes[0].api();
    assert_eq!(call(&api, Method::DELETE, path, None).await.0, 404, "another call finds nothing");

    let name = "shop".parse().unwrap();
    other(&fleet).create_application(&name).await.unwrap();
    other(&fleet).set_retired(&name, true).await.unwrap();
    let anew = async {
        other(&fleet).create_application(&name).await.unwrap();
    };
    let request = call(&api, Method::DELETE, path, None);
    let (status, body) = killed_behind(&fleet, step, request, anew).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(shop(&fleet).await.get("retiredAt"), None, "the new one stands");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deploy_whose_acceptance_comes_again_is_one_deploy() {
    let fleet = Fleet::start(1, 1, &[]).await;
    let api = fleet.nodes[0].api();
    let project = Project::answering("shop", "once");
    for key in ["applications/shop.json", "deploys/shop/"] {
        let request = send_deploy(&api, "shop", &project);
        let deploy = killed_behind(&fleet, Step(Operation::Put, key), request, nothing()).await;
        let deploy = ended(&api, &deploy.unwrap()).await;
        assert_eq!(deploy["state"], "deployed", "{deploy}\n{}", fleet.nodes[0].log());
    }
    let deploys = fleet.store().bucket().list("_scafo/deploys/shop/").await.unwrap();
    assert_eq!(deploys.entries.len(), 2, "{:?}", deploys.entries);
    // Deployed is what the nodes are; the ingress reads of it at its next poll.
    wait::until("the shop to answer", LIMIT, || async {
        matches!(fleet.nodes[0].get("shop", "/").await, Ok((200, body)) if body == "once").then_some(())
    })
    .await;
    fleet.stop().await;
}

/// What has no route in the API goes through the admin socket, and is recognised there as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_trust_policy_and_a_removed_node_that_come_again_answer_as_the_first_time() {
    let fleet = with_shop().await;
    let node = &fleet.nodes[0];
    let set = ["trust", "set", "shop", "--issuer", "https://ci.example", "--subject", "repo:me/shop:*"];
    let remove = ["trust", "remove", "shop"];
    for (step, arguments) in [(Operation::Put, &set[..]), (Operation::Delete, &remove[..])] {
        let output = killed_behind(&fleet, Step(step, "trust/shop.json"), node.scafo(arguments), nothing()).await;
        let said = both(&output);
        assert!(output.status.success() && !said.contains("could deploy"), "{arguments:?}: {said}");
    }
    assert!(record(fleet.store(), "_scafo/trust/shop.json").await.is_none());
    let again = both(&node.scafo(remove).await);
    assert!(again.contains("could deploy"), "another call finds nothing: {again}");
    let own = record(fleet.store(), &format!("_scafo/nodes/{}.json", node.dev.node)).await.unwrap();
    let mut gone = own;
    gone["id"] = json!("gone");
    put(fleet.store(), "_scafo/nodes/gone.json", gone.to_string()).await;
    let arguments = ["node", "remove", "gone", "--force"];
    let step = Step(Operation::Delete, "nodes/gone.json");
    let output = killed_behind(&fleet, step, node.scafo(arguments), nothing()).await;
    assert!(output.status.success(), "{}", both(&output));
    assert!(record(fleet.store(), "_scafo/nodes/gone.json").await.is_none());
    fleet.stop().await;
}

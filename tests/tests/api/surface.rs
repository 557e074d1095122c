//! Two nodes on one bucket: whichever is asked, the fleet answers.

use std::time::Duration;

use ed25519_dalek::SigningKey;
use reqwest::{Method, RequestBuilder};
use scafo_core::deploy::{HEADER, Metadata};
use scafo_core::record::Replicas;
use scafo_core::token::PublicKey;
use scafo_core::{Timestamp, token};
use scafo_tests::fleet::{Fleet, PATIENT};
use scafo_tests::project::pack;
use scafo_tests::{Api, Dev, Node, Project, wait};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(120);

/// Status and JSON of an answer; `null` where there is no body.
async fn told(request: RequestBuilder) -> (u16, Value) {
    let answer = request.timeout(LIMIT).send().await.unwrap();
    let status = answer.status().as_u16();
    let body = answer.bytes().await.unwrap();
    (status, if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() })
}

async fn good(request: RequestBuilder) -> Value {
    let (status, body) = told(request).await;
    assert!((200..300).contains(&status), "{status} {body}");
    body
}

/// Status and kind of a refusal.
async fn refused(request: RequestBuilder) -> (u16, String, String) {
    let (status, body) = told(request).await;
    let of = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    (status, of("type"), of("detail"))
}

fn metadata(nobody: bool) -> String {
    let node_selector = nobody.then(|| [("nobody".to_owned(), "1".to_owned())].into());
    Metadata { replicas: (!nobody).then_some(Replicas::All), node_selector, ..Metadata::default() }.encode()
}

fn deploy(api: &Api, name: &str, header: &str, body: impl Into<reqwest::Body>) -> RequestBuilder {
    api.request(Method::POST, &format!("/v1/applications/{name}/deploys")).header(HEADER, header).body(body)
}

struct Two {
    a: Node,
    b: Node,
    /// The first node's operator, asking the first node and the second.
    at_a: Api,
    at_b: Api,
}

impl Two {
    async fn start(fleet: &Fleet) -> Self {
        let (a, b) = (fleet.node("a").await, fleet.node("b").await);
        let elsewhere =
            Dev { api: b.dev.api.clone(), ingress_token_file: b.dev.ingress_token_file.clone(), ..a.dev.clone() };
        let (at_a, at_b) = (a.api(), Api::of(&elsewhere));
        Self { a, b, at_a, at_b }
    }

    /// The APIs of the node that coordinates and of the other one.
    async fn by_authority(&self) -> (&Api, &Api) {
        wait::until("a coordinator that both know", LIMIT, || async {
            let (one, other) = (self.at_a.get("/v1/state").await.ok()?.1, self.at_b.get("/v1/state").await.ok()?.1);
            let (one, other) = (&one["coordinator"], &other["coordinator"]);
            let same = one["node"].is_string() && one["node"] == other["node"] && one["fence"] == other["fence"];
            let only = one["self"].as_bool()? != other["self"].as_bool()?;
            // What has no place is known where it was decided.
            let known = [one, other].iter().all(|view| view.get("unplaced").is_some() == (view["self"] == true));
            let ours = one["self"] == true;
            (same && only && known).then_some(if ours { (&self.at_a, &self.at_b) } else { (&self.at_b, &self.at_a) })
        })
        .await
    }
}

#[tokio::test]
async fn any_node_answers_any_call() {
    let fleet = Fleet::new(&PATIENT).await;
    let two = Two::start(&fleet).await;
    a_deploy_that_one_took_is_told_by_the_other(&two).await;
    a_decision_at_one_is_read_at_the_other(&two).await;
    a_freeze_stops_deploys_everywhere_and_nothing_else(&two).await;
    a_deletion_goes_to_whoever_coordinates(&two).await;
    a_key_lives_and_dies_everywhere(&two).await;
    two.a.stop().await;
    two.b.stop().await;
}

async fn a_deploy_that_one_took_is_told_by_the_other(two: &Two) {
    let project = Project::answering("shop", "hello");
    let answer = deploy(&two.at_a, "shop", &metadata(false), pack(project.path())).send().await.unwrap();
    assert_eq!(answer.status(), 202);
    let location = answer.headers()["location"].to_str().unwrap().to_owned();
    let accepted: Value = answer.json().await.unwrap();
    assert_eq!(location, format!("/v1/deploys/{}", accepted["id"].as_str().unwrap()));
    let ended = wait::until("the deploy to end", LIMIT, || async {
        let (status, deploy) = told(two.at_b.request(Method::GET, &location)).await;
        assert_eq!(status, 200, "{deploy}");
        ["deployed", "failed"].contains(&deploy["state"].as_str()?).then_some(deploy)
    })
    .await;
    assert!(ended["state"] == "deployed" && ended["deployment"].is_string(), "{ended}\n{}", two.a.log());
    for (api, id) in [(&two.at_a, "a"), (&two.at_b, "b")] {
        // A pass may fail for a moment, as on a busy machine.
        let state = wait::until("a pass that went well", LIMIT, || async {
            let state = good(api.request(Method::GET, "/v1/state")).await;
            (state["reconcile"]["ok"] == true).then_some(state)
        })
        .await;
        assert_eq!((&state["node"]["id"], &state["processes"][0]["application"]), (&json!(id), &json!("shop")));
        assert!(state.get("scoped").is_none(), "{state}");
        wait::until("both nodes in the routes", LIMIT, || async {
            let document = good(api.ingress("/v1/ingress/routes")).await;
            let upstreams = document["routes"][0]["upstreams"].as_array()?.len();
            (upstreams == 2).then_some(())
        })
        .await;
    }
}

async fn a_decision_at_one_is_read_at_the_other(two: &Two) {
    let path = "/v1/applications/shop";
    let at_a = |path: &str| two.at_a.request(Method::POST, path);
    good(at_a("/v1/applications/shop/labels").body(r#"{"labels":{"plan":"pro"}}"#)).await;
    good(at_a("/v1/applications/shop/domains/shop.example")).await;
    let record = good(two.at_b.request(Method::GET, path)).await;
    assert_eq!(record["application"]["labels"], json!({ "plan": "pro" }));
    assert_eq!(record["application"]["domains"], json!(["shop.example"]));
    let under = format!("/v1/applications/shop/domains/x.{}", two.a.dev.domain);
    let (status, kind, _) = refused(two.at_b.request(Method::POST, &under)).await;
    assert_eq!((status, kind.as_str()), (400, "urn:scafo:invalid-input"), "every host there is an application's name");
    let key = "/v1/storage/objects/certificates/shop.example.key";
    good(two.at_a.ingress_with(Method::PUT, key).body("secret")).await;
    let answer = two.at_b.ingress(key).send().await.unwrap();
    assert_eq!(answer.bytes().await.unwrap(), "secret");
    // Retiring and taking it back need no coordinator, and are seen by whoever serves.
    good(two.at_b.request(Method::POST, "/v1/applications/shop/retire")).await;
    wait::until("nobody to serve it", LIMIT, || async {
        let document = good(two.at_a.ingress("/v1/ingress/routes")).await;
        document["routes"].as_array()?.is_empty().then_some(())
    })
    .await;
    good(two.at_a.request(Method::POST, "/v1/applications/shop/unretire")).await;
    wait::until("it to be served again", LIMIT, || async {
        matches!(two.b.get("shop", "/").await, Ok((200, body)) if body == "hello").then_some(())
    })
    .await;
}

async fn a_freeze_stops_deploys_everywhere_and_nothing_else(two: &Two) {
    good(deploy(&two.at_a, "other", &metadata(true), "no archive")).await;
    let freeze = two.at_a.request(Method::POST, "/v1/fleet/freeze").body(r#"{"reason":"a new release"}"#);
    assert_eq!(good(freeze).await["created"], true);
    let (status, kind, detail) = refused(deploy(&two.at_b, "fresh", &metadata(true), "x")).await;
    assert_eq!((status, kind.as_str()), (409, "urn:scafo:deploys-frozen"));
    for named in [two.a.dev.operator_id.as_str(), "a new release", "scafo fleet unfreeze"] {
        assert!(detail.contains(named), "{named}: {detail}");
    }
    assert_eq!(told(two.at_b.request(Method::GET, "/v1/applications/fresh")).await.0, 404, "nothing was created");
    assert_eq!(two.b.get("shop", "/").await.unwrap(), (200, "hello".to_owned()), "it is served on");
    good(two.at_b.request(Method::POST, "/v1/applications/other/retire")).await;
    let deleted = good(two.at_b.request(Method::DELETE, "/v1/applications/other?force=1")).await;
    assert!(deleted["deleted"].as_array().unwrap().contains(&json!("_scafo/applications/other.json")), "{deleted}");
    assert_eq!(good(two.at_b.request(Method::DELETE, "/v1/fleet/freeze")).await, json!({ "lifted": true }));
    good(deploy(&two.at_a, "fresh", &metadata(true), "no archive")).await;
}

async fn a_deletion_goes_to_whoever_coordinates(two: &Two) {
    good(deploy(&two.at_b, "second", &metadata(true), "no archive")).await;
    let (coordinator, another) = two.by_authority().await;
    for (api, name) in [(another, "fresh"), (coordinator, "second")] {
        let path = format!("/v1/applications/{name}");
        let first = refused(api.request(Method::DELETE, &path)).await;
        assert_eq!((first.0, first.1.as_str()), (409, "urn:scafo:reference-held"), "{name} is not retired");
        let deleted = good(api.request(Method::DELETE, &format!("{path}?force=true"))).await;
        let key = format!("_scafo/applications/{name}.json");
        assert!(deleted["deleted"].as_array().unwrap().contains(&json!(key)), "{deleted}");
        let gone = refused(api.request(Method::DELETE, &path)).await;
        assert_eq!((gone.0, gone.1.as_str()), (404, "urn:scafo:not-found"), "{name}");
    }
}

async fn a_key_lives_and_dies_everywhere(two: &Two) {
    let secret = SigningKey::from_bytes(&[42; 32]);
    let new = json!({ "id": "team", "publicKey": PublicKey::from(&secret), "applications": ["shop"] });
    let registered = good(two.at_a.request(Method::POST, "/v1/operators").body(new.to_string())).await;
    assert_eq!((&registered["operator"]["role"], &registered["operator"]["id"]), (&json!("operator"), &json!("team")));
    let as_team = |api: &Api, path: &str| {
        let now = Timestamp::from_system(std::time::SystemTime::now());
        api.with_token(Method::GET, path, &token::sign(&secret, "team", now, rand::random()))
    };
    let seen = good(as_team(&two.at_b, "/v1/applications")).await;
    assert_eq!((&seen["scoped"], seen["applications"].as_array().map(Vec::len)), (&json!(true), Some(1)), "{seen}");
    assert!(seen["applications"][0].get("labels").is_none(), "{seen}");
    assert_eq!(told(two.at_b.request(Method::DELETE, "/v1/operators/team")).await, (200, json!({ "removed": "team" })));
    for api in [&two.at_a, &two.at_b] {
        let refused = refused(as_team(api, "/v1/applications")).await;
        assert_eq!((refused.0, refused.1.as_str()), (401, "urn:scafo:auth-invalid"));
    }
}

//! What the routes about applications, operator keys and the fleet pass on and answer.

use http::{Method, StatusCode};
use scafo_core::problem::{Problem, ProblemCode};
use scafo_proto::transport::Operation;
use serde_json::{Value, json};

use crate::harness::{Answer, Harness};
use crate::oracle::{application, settle};

async fn send(harness: &Harness, method: Method, path: &str, signer: &str, body: &str) -> Answer {
    harness.send(method, path, &[("authorization", &harness.token(signer))], body.to_owned()).await
}

async fn post(harness: &Harness, path: &str, signer: &str, body: &str) -> Answer {
    send(harness, Method::POST, path, signer, body).await
}

fn asked(harness: &Harness) -> (&'static str, String, Value) {
    harness.registry.world().administered.asked.last().cloned().unwrap()
}

#[tokio::test]
async fn a_change_names_its_caller_and_answers_the_record() {
    let harness = Harness::start().await;
    settle(&harness);
    for (path, body, call, what) in [
        ("block", "", "block", json!(["shop", true])),
        ("unblock", "ignored", "block", json!(["shop", false])),
        ("labels", r#"{"labels":{"a":"1"}}"#, "labels", json!(["shop", { "a": "1" }])),
        ("labels", r#"{"labels":{}}"#, "labels", json!(["shop", {}])),
        ("retire", "", "retire", json!(["shop", true])),
        ("unretire", "", "retire", json!(["shop", false])),
        ("selector", r#"{"selector":{"tier":"fast"}}"#, "selector", json!(["shop", { "tier": "fast" }])),
        ("selector", r#"{"selector":{}}"#, "selector", json!(["shop", {}])),
        ("selector", r#"{"selector":null}"#, "selector", json!(["shop", null])),
        ("replicas", r#"{"replicas":"all"}"#, "replicas", json!(["shop", "all"])),
        ("replicas", r#"{"replicas":2.0}"#, "replicas", json!(["shop", 2])),
        ("replicas", r#"{"replicas":3,"more":1}"#, "replicas", json!(["shop", 3])),
    ] {
        let answer = post(&harness, &format!("/v1/applications/shop/{path}"), "root", body).await;
        assert_eq!(answer.status, StatusCode::OK, "{path} {body}");
        assert_eq!(asked(&harness), (call, "operator root *".to_owned(), what), "{path} {body}");
        let document = answer.json();
        assert_eq!(document.as_object().unwrap().len(), 1);
        assert_eq!(
            (&document["application"]["name"], &document["application"]["future"]["kept"]),
            (&json!("shop"), &json!(true))
        );
    }
    let answer = post(&harness, "/v1/applications/shop/retire", "n1", "").await;
    assert_eq!((answer.status, asked(&harness).1.as_str()), (StatusCode::OK, "node n1"));
}

#[tokio::test]
async fn the_fleets_notes_are_for_admins_and_nodes() {
    let harness = Harness::start().await;
    settle(&harness);
    let mut redacted = application("shop");
    redacted.as_object_mut().unwrap().remove("labels");
    assert_eq!(
        harness.get("/v1/applications/shop", &harness.token("root")).await.json(),
        json!({ "application": application("shop") })
    );
    for signer in ["team", "every"] {
        settle(&harness);
        let answer = harness.get("/v1/applications/shop", &harness.token(signer)).await;
        assert_eq!(answer.json(), json!({ "application": redacted }), "{signer}");
        let answer = post(&harness, "/v1/applications/shop/retire", signer, "").await;
        assert_eq!(answer.json()["application"].get("labels"), None, "{signer}");
        let answer = post(&harness, "/v1/applications/shop/domains/shop.example", signer, "").await;
        assert_eq!(answer.json()["application"].get("labels"), None, "{signer}");
    }
    let answer = post(&harness, "/v1/applications/shop/retire", "n1", "").await;
    assert_eq!(answer.json()["application"]["labels"], json!({ "plan": "pro" }));
}

#[tokio::test]
async fn only_1_and_true_force_a_delete_and_only_a_node_says_that_it_was_forwarded() {
    let harness = Harness::start().await;
    for (query, force) in [
        ("", false),
        ("?force=1", true),
        ("?force=true", true),
        ("?force", false),
        ("?force=", false),
        ("?force=yes", false),
        ("?force=TRUE", false),
        ("?force=0&force=1", false),
        ("?x=1&force=%31", true),
    ] {
        for (signer, mark, forwarded) in [
            ("root", None, false),
            ("root", Some("1"), false),
            ("n1", None, false),
            ("n1", Some("1"), true),
            ("n1", Some("2"), false),
        ] {
            settle(&harness);
            let token = harness.token(signer);
            let mut headers = vec![("authorization", token.as_str())];
            headers.extend(mark.map(|mark| (scafo_core::token::FORWARDED, mark)));
            let answer = harness.send(Method::DELETE, &format!("/v1/applications/shop{query}"), &headers, "").await;
            assert_eq!(answer.json(), json!({ "deleted": ["a"] }));
            let what = json!({ "application": "shop", "force": force, "forwarded": forwarded });
            assert_eq!((asked(&harness).0, asked(&harness).2), ("delete", what), "{query} {signer} {mark:?}");
        }
    }
}

#[tokio::test]
async fn the_coordinators_answer_is_passed_on_byte_for_byte() {
    let harness = Harness::start().await;
    let body = br#"{ "type":"urn:scafo:draining" , "status":503,"title":"Not the coordinator","detail":"..." }"#;
    for pieces in [vec![&body[..]], vec![&body[..7], &body[7..]], vec![b"", &body[..], b""]] {
        settle(&harness);
        let pieces = pieces.into_iter().map(bytes::Bytes::copy_from_slice).collect();
        harness.registry.world().administered.deleted = Some((503, "application/problem+json".to_owned(), pieces));
        let answer = send(&harness, Method::DELETE, "/v1/applications/shop", "root", "").await;
        assert_eq!((answer.status.as_u16(), &answer.body[..]), (503, &body[..]));
        assert_eq!(answer.headers["content-type"], "application/problem+json");
    }
    settle(&harness);
    harness.registry.world().administered.deleted = Some((1000, "x\ny".to_owned(), vec!["".into()]));
    let answer = send(&harness, Method::DELETE, "/v1/applications/shop", "root", "").await;
    assert_eq!(answer.problem(), "internal");
}

const KEY: &str = r#"{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#;

#[tokio::test]
async fn an_operator_key_is_registered_with_its_public_half_only() {
    let harness = Harness::start().await;
    let public: Value = serde_json::from_str(KEY).unwrap();
    let secret = KEY.replace("}", r#","d":"nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"}"#);
    let answer = post(&harness, "/v1/operators", "team", &format!(r#"{{"id":"op-1","publicKey":{secret}}}"#)).await;
    assert_eq!(answer.status, StatusCode::OK);
    let bare = json!({ "id": "op-1", "publicKey": public, "role": "", "supersedes": "", "applications": null });
    assert_eq!(asked(&harness), ("register", "operator team shop,team-*".to_owned(), bare.clone()));
    assert_eq!(answer.json(), json!({ "operator": bare }));
    let body = format!(
        r#"{{"id":"op-2","publicKey":{KEY},"role":"admin","supersedes":"root","applications":["shop","shop-*"]}}"#
    );
    assert_eq!(post(&harness, "/v1/operators", "root", &body).await.status, StatusCode::OK);
    let full = json!({ "id": "op-2", "publicKey": public, "role": "admin", "supersedes": "root", "applications": ["shop", "shop-*"] });
    assert_eq!(asked(&harness).2, full);
}

#[tokio::test]
async fn a_key_that_breaks_a_rule_of_form_is_invalid_input() {
    let harness = Harness::start().await;
    let with = |more: &str| format!(r#"{{"id":"op-1","publicKey":{KEY}{more}}}"#);
    for bad in [
        format!(r#"{{"publicKey":{KEY}}}"#),
        r#"{"id":"op-1"}"#.to_owned(),
        format!(r#"{{"id":"","publicKey":{KEY}}}"#),
        format!(r#"{{"id":"../x","publicKey":{KEY}}}"#),
        format!(r#"{{"id":7,"publicKey":{KEY}}}"#),
        with("").replace("OKP", "EC"),
        with("").replace("Ed25519", "X25519"),
        with("").replace("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo", ""),
        with("").replace("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo", &"A".repeat(43)),
        with(r#","role":"owner""#),
        with(r#","role":null"#),
        with(r#","supersedes":"""#),
        with(r#","supersedes":null"#),
        with(r#","applications":[]"#),
        with(r#","applications":null"#),
        with(r#","applications":"*""#),
        with(r#","applications":["*","shop"]"#),
        with(r#","applications":["s*op"]"#),
        with(r#","applications":["**"]"#),
        with(r#","applications":["Shop"]"#),
        with(r#","applications":[1]"#),
    ] {
        let answer = post(&harness, "/v1/operators", "root", &bad).await;
        assert_eq!((answer.status.as_u16(), answer.problem().as_str()), (400, "invalid-input"), "{bad}");
    }
    assert!(harness.registry.world().administered.asked.is_empty());
}

#[tokio::test]
async fn the_registry_decides_which_keys_are_seen_and_revoked() {
    let harness = Harness::start().await;
    let listed = json!({ "operators": [{ "id": "team" }], "scoped": true });
    harness.registry.world().administered.operators = listed.clone();
    assert_eq!(harness.get("/v1/operators", &harness.token("team")).await.json(), listed);
    assert_eq!(asked(&harness), ("operators", "operator team shop,team-*".to_owned(), Value::Null));
    let answer = send(&harness, Method::DELETE, "/v1/operators/op-1", "root", "").await;
    assert_eq!((answer.json(), asked(&harness).2), (json!({ "removed": "op-1" }), json!("op-1")));
    for bad in ["Op", "a%2Fb", "%ff", "a.b"] {
        let answer = send(&harness, Method::DELETE, &format!("/v1/operators/{bad}"), "root", "").await;
        assert_eq!(answer.problem(), "invalid-input", "{bad}");
    }
}

#[tokio::test]
async fn a_freeze_needs_no_body_and_the_first_one_stays() {
    let harness = Harness::start().await;
    settle(&harness);
    harness.registry.world().administered.freeze = None;
    let none = harness.get("/v1/fleet/freeze", &harness.token("team")).await;
    assert_eq!((none.status, none.json()["title"].as_str()), (StatusCode::NOT_FOUND, Some("Deploys are not frozen")));
    let first = post(&harness, "/v1/fleet/freeze", "root", "").await.json();
    assert_eq!((&first["created"], &first["freeze"]["by"]), (&json!(true), &json!("root")));
    assert_eq!(asked(&harness), ("freeze", "operator root *".to_owned(), Value::Null));
    let second = post(&harness, "/v1/fleet/freeze", "root", r#"{"reason":" x ","by":"me"}"#).await.json();
    assert_eq!((&second["created"], &second["freeze"]), (&json!(false), &first["freeze"]));
    assert_eq!(asked(&harness).2, json!(" x "), "the registry trims");
    assert_eq!(post(&harness, "/v1/fleet/freeze", "root", "{}").await.status, StatusCode::OK);
    let shown = harness.get("/v1/fleet/freeze", &harness.token("other")).await.json();
    assert_eq!(shown, json!({ "freeze": first["freeze"] }));
    for lifted in [true, false] {
        let answer = send(&harness, Method::DELETE, "/v1/fleet/freeze", "root", "").await;
        assert_eq!(answer.json(), json!({ "lifted": lifted }));
    }
}

#[tokio::test]
async fn a_large_listing_is_compressed_for_who_accepts_it() {
    let harness = Harness::start().await;
    settle(&harness);
    let all: Vec<_> = (0..500).map(|n| application(&format!("shop-{n}"))).collect();
    harness.registry.world().applications = json!(all);
    let token = harness.token("root");
    let plain = harness.get("/v1/applications", &token).await;
    assert!(!plain.headers.contains_key("content-encoding"));
    let token = harness.token("root");
    let headers = [("authorization", token.as_str()), ("accept-encoding", "br, gzip")];
    let packed = harness.send(Method::GET, "/v1/applications", &headers, "").await;
    assert_eq!(
        (&packed.headers["content-encoding"], &packed.headers["vary"]),
        (&"gzip".parse().unwrap(), &"accept-encoding".parse().unwrap())
    );
    let mut read = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&packed.body[..]), &mut read).unwrap();
    assert!(read == plain.body && packed.body.len() < plain.body.len() / 5);
}

/// Whether it was removed by the try whose answer was lost is for the registry to say, which knows the operation.
#[tokio::test]
async fn a_removal_that_is_tried_again_is_the_same_operation_and_its_answer_is_passed_on() {
    for (method, path) in [
        (Method::DELETE, "/v1/applications/shop"),
        (Method::DELETE, "/v1/applications/shop/domains/shop.example"),
        (Method::DELETE, "/v1/operators/op-1"),
    ] {
        let harness = Harness::start().await;
        settle(&harness);
        harness.registry.world().refuse = Some(Problem::new(ProblemCode::NotFound, "no such thing"));
        harness.registry.world().lose_answers = 2;
        let answer = send(&harness, method.clone(), path, "root", "").await;
        assert_eq!(answer.problem(), "not-found", "{path}");
        let tries = std::mem::take(&mut harness.registry.world().administered.operations);
        assert_eq!(tries, [tries[0]; 3], "{path}");
        send(&harness, method, path, "root", "").await;
        assert_ne!(harness.registry.world().administered.operations, [tries[0]], "another call is another operation");
    }
}

#[tokio::test]
async fn only_a_forwarding_node_says_which_operation_it_is() {
    let harness = Harness::start().await;
    settle(&harness);
    let named = Operation::fresh();
    let name = named.to_string();
    for (by, mark, same) in [("n1", "1", true), ("n1", "0", false), ("root", "1", false)] {
        let authorization = harness.token(by);
        let headers = [
            ("authorization", authorization.as_str()),
            (scafo_core::token::FORWARDED, mark),
            (scafo_core::token::OPERATION, name.as_str()),
        ];
        harness.send(Method::DELETE, "/v1/applications/shop", &headers, "").await;
        let seen = harness.registry.world().administered.operations.pop();
        assert_eq!(seen == Some(named), same, "{by} {mark}");
    }
}

//! `GET /v1/applications` and `GET /v1/state`.

use http::StatusCode;
use serde_json::{Value, json};

use crate::harness::Harness;

const AT: &str = "2026-04-01T12:30:00.000Z";

fn application(name: &str) -> Value {
    json!({ "v": 1, "name": name, "createdAt": AT, "blocked": name == "team-b", "labels": { "plan": "pro" },
            "domains": [], "wildcardDomains": [], "future": { "kept": true } })
}

#[tokio::test]
async fn an_admin_reads_every_record_whole() {
    let harness = Harness::start().await;
    let records = json!([application("other"), application("shop"), application("team-b")]);
    harness.registry.world().applications = records.clone();
    let answer = harness.get("/v1/applications", &harness.token("root")).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.json(), json!({ "applications": records }));
}

#[tokio::test]
async fn an_operator_reads_what_it_reaches_without_labels() {
    let harness = Harness::start().await;
    harness.registry.world().applications = json!([application("other"), application("shop"), application("team-b")]);
    let answer = harness.get("/v1/applications", &harness.token("team")).await.json();
    let strip = |name| {
        let mut record = application(name);
        record.as_object_mut().unwrap().remove("labels");
        record
    };
    assert_eq!(answer, json!({ "applications": [strip("shop"), strip("team-b")], "scoped": true }));
}

fn state() -> Value {
    let process = |application: &str| {
        json!({ "application": application, "state": "ready", "since": AT, "port": 1, "internalPort": 2, "restarts": 0,
                "adopted": false })
    };
    let serving = |application: &str| json!({ "application": application, "port": 1, "state": "ready", "since": AT });
    json!({
        "node": { "v": 1, "id": "n1", "address": "127.0.0.1", "api": "127.0.0.1:7400", "labels": {},
                  "publicKey": { "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" },
                  "platformDomains": [], "apiPublic": true, "version": "0.1.0", "startedAt": AT, "heartbeatAt": AT,
                  "leaving": false, "draining": false, "fence": 1,
                  "serving": [serving("shop"), serving("other")] },
        "lease": null,
        "coordinator": { "node": "n1", "fence": 1, "self": true, "unplaced": [
            { "application": "other", "wanted": 1, "placed": 0, "reason": "selector" },
            { "application": "team-a", "wanted": 1, "placed": 0, "reason": "selector" } ] },
        "processes": [process("shop"), process("other")],
        "placements": [{ "application": "other", "nodes": ["n1"], "fence": 1, "here": true }],
        "faults": [{ "key": "_scafo/applications/other.json", "error": "?" }],
    })
}

#[tokio::test]
async fn nodes_and_admins_read_the_whole_state() {
    let harness = Harness::start().await;
    harness.registry.world().state = state();
    for signer in ["n1", "root"] {
        assert_eq!(harness.get("/v1/state", &harness.token(signer)).await.json(), state(), "{signer}");
    }
}

#[tokio::test]
async fn an_operator_reads_a_state_that_names_nobody_elses_application() {
    let harness = Harness::start().await;
    harness.registry.world().state = state();
    let answer = harness.get("/v1/state", &harness.token("team")).await;
    assert!(!String::from_utf8_lossy(&answer.body).contains("other"));
    let document = answer.json();
    assert_eq!(document["scoped"], true);
    assert_eq!(document["processes"].as_array().unwrap().len(), 1);
    assert_eq!(document["node"]["serving"].as_array().unwrap().len(), 1);
    assert_eq!(document["coordinator"]["unplaced"][0]["application"], "team-a");
}

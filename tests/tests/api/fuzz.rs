//! Schemathesis against a whole node: requests made from the API's own description, and each answer held to it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use axum::Router;
use axum::extract::Query;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http::StatusCode;
use scafo_tests::node::both;
use scafo_tests::{Node, Project};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::long;

/// What is generated for each operation, beside what covers its description.
fn examples() -> &'static str {
    if long() { "400" } else { "25" }
}

/// The same requests in every run, unless others are asked for.
fn seed() -> String {
    std::env::var("SCAFO_TEST_SEED").unwrap_or_else(|_| "20261130".to_owned())
}

/// Where `scripts/test-tools.sh` puts Schemathesis.
fn python() -> PathBuf {
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || of("XDG_CACHE_HOME").or_else(|| Some(of("HOME")?.join(".cache")));
    let tools = of("SCAFO_TOOLS").or_else(|| Some(cache()?.join("scafo/tools"))).unwrap();
    let python = tools.join("schemathesis/bin/python");
    assert!(python.is_file(), "Schemathesis is not installed in {}: run `make test-tools`", tools.display());
    python
}

/// Runs the fuzzer on the node that `ready` describes, with what it saw in `seen`.
async fn fuzz(ready: &Path, seen: &Path, more: &[&str]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../apiserver/fuzz/fuzz.py");
    // One worker: the order of the requests is then the seed's.
    let mut command = Command::new(python());
    command.arg(script).arg(ready).arg(seed()).args(["--workers", "1", "--warnings", "off", "--no-color"]).args(more);
    command.env("SCAFO_FUZZ_SEEN", seen).current_dir(ready.parent().unwrap()).stdin(Stdio::null()).kill_on_drop(true);
    let limit = Duration::from_secs(if long() { 3600 } else { 600 });
    tokio::time::timeout(limit, command.output()).await.expect("the fuzzer ends").unwrap()
}

/// Statuses by operation, with how often each came.
fn statuses(seen: &Path) -> BTreeMap<String, BTreeMap<u16, usize>> {
    let mut all: BTreeMap<String, BTreeMap<u16, usize>> = BTreeMap::new();
    for line in std::fs::read_to_string(seen).unwrap().lines() {
        let (operation, status) = line.rsplit_once(' ').unwrap();
        *all.entry(operation.to_owned()).or_default().entry(status.parse().unwrap()).or_default() += 1;
    }
    all
}

#[tokio::test]
async fn whatever_is_sent_a_node_answers_as_its_description_says() {
    let node = Node::start().await;
    let project = Project::answering("shop", "hello");
    node.deploy(project.path()).await;
    let args = ["deploy".as_ref(), project.path().as_os_str(), "--app".as_ref(), "other".as_ref()];
    let other = node.scafo::<&OsStr>(args).await;
    assert!(other.status.success(), "{}", both(&other));

    let dir = TempDir::new().unwrap();
    let (ready, seen) = (dir.path().join("node.json"), dir.path().join("seen"));
    let about = json!({
        "api": node.dev.api, "operatorId": node.dev.operator_id, "operatorKey": node.dev.operator_key,
        "ingressTokenFile": node.dev.ingress_token_file,
    });
    std::fs::write(&ready, about.to_string()).unwrap();
    let output = fuzz(&ready, &seen, &["--max-examples", examples()]).await;
    println!("seed {}", seed());
    assert!(output.status.success(), "{}\n{}", both(&output), node.log());

    // It looked behind the refusals: each operation was also carried out. A deletion takes its time, and has tests of its own.
    let description: Value =
        node.api().bare(reqwest::Method::GET, "/openapi.json").send().await.unwrap().json().await.unwrap();
    let statuses = statuses(&seen);
    let carried_out =
        |operation: &str| statuses.get(operation).is_some_and(|seen| seen.keys().any(|status| *status < 300));
    for (path, methods) in description["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let operation = format!("{} {path}", method.to_ascii_uppercase());
            let apart = ["DELETE /v1/applications/{name}", "GET /openapi.json"].contains(&operation.as_str());
            assert!(
                apart || carried_out(&operation),
                "{operation} was never carried out: {:?}",
                statuses.get(&operation)
            );
        }
    }
    node.stop().await;
}

/// An API that is described well and answers otherwise where `x` is in the word.
async fn liar(serving: &mut JoinSet<()>, lie: StatusCode) -> String {
    let description = json!({
        "openapi": "3.1.0", "info": { "title": "A liar", "version": "1" },
        "paths": { "/v1/words": { "get": {
            "operationId": "words",
            "parameters": [{ "name": "word", "in": "query", "required": true, "schema": { "enum": ["a", "x"] } }],
            "responses": { "200": { "description": "It is" }, "400": { "description": "It is not" } },
        } } },
    });
    let words = move |Query(query): Query<BTreeMap<String, String>>| async move {
        let answer: Response = match query.get("word").map(String::as_str) {
            Some("a") => StatusCode::OK.into_response(),
            Some("x") => lie.into_response(),
            _ => StatusCode::BAD_REQUEST.into_response(),
        };
        answer
    };
    let router = Router::new()
        .route("/openapi.json", get(move || async move { axum::Json(description) }))
        .route("/v1/words", get(words));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    serving.spawn(async move { axum::serve(listener, router).await.unwrap() });
    format!("http://{address}")
}

#[tokio::test]
async fn the_fuzzer_finds_a_500_and_a_status_that_is_not_described() {
    let dir = TempDir::new().unwrap();
    let (key, token) = (dir.path().join("key.pem"), dir.path().join("token"));
    let pem = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n-----END PRIVATE KEY-----\n";
    std::fs::write(&key, pem).unwrap();
    std::fs::write(&token, "t").unwrap();
    let mut serving = JoinSet::new();
    for (lie, found) in [
        (StatusCode::OK, None),
        (StatusCode::INTERNAL_SERVER_ERROR, Some("Server error")),
        (StatusCode::IM_A_TEAPOT, Some("Undocumented status code")),
    ] {
        let about = json!({ "api": liar(&mut serving, lie).await, "operatorId": "op", "operatorKey": key, "ingressTokenFile": token });
        let ready = dir.path().join("node.json");
        std::fs::write(&ready, about.to_string()).unwrap();
        let output = fuzz(&ready, &dir.path().join("seen"), &["--max-examples", "5"]).await;
        let said = both(&output);
        assert_eq!(output.status.success(), found.is_none(), "{lie}: {said}");
        assert!(found.is_none_or(|found| said.contains(found)), "{lie}: {said}");
    }
}

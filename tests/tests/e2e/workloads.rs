//! A job of a CI system deploys to a real node with the token that its CI system issued, and without any key of ours.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqwest::{Method, Response};
use scafo_tests::node::both;
use scafo_tests::project::pack;
use scafo_tests::{Node, Project, wait};
use serde_json::{Value, json};

#[allow(dead_code, reason = "the tests of the verifier use the rest of it")]
#[path = "../../../apiserver/tests/it/issuer.rs"]
mod issuer;

use issuer::{Issuer, Signer};

const DEPLOYS: &str = "/v1/applications/shop/deploys";
/// Metadata `{}`.
const NO_METADATA: &str = "e30";

/// A token as a job gets it now; the fixtures have a time of their own.
fn token(signer: &Signer, mut claims: Value) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    claims["iat"] = json!(now);
    claims["nbf"] = json!(now - 5);
    claims["exp"] = json!(now + 300);
    signer.token(&claims)
}

async fn deploy(node: &Node, token: &str, artifact: Vec<u8>) -> Response {
    let request = node.api().with_token(Method::POST, DEPLOYS, token).header("x-scafo-deploy", NO_METADATA);
    request.body(artifact).send().await.unwrap()
}

/// Status and code of a refusal.
async fn refusal(answer: Response) -> (u16, String) {
    let status = answer.status().as_u16();
    let problem: Value = answer.json().await.unwrap();
    (status, problem["type"].as_str().unwrap().to_owned())
}

async fn trust(node: &Node, args: &[&str]) {
    let output = node.scafo([&["trust"], args].concat()).await;
    assert!(output.status.success(), "{}", both(&output));
}

#[tokio::test]
async fn a_job_that_the_policy_admits_deploys_and_no_other_does() {
    let (node, signer) = (Node::start().await, Signer::new("RS256", "ci"));
    let (issuer, stranger) = (Issuer::start(&[&signer]).await, Issuer::start(&[&signer]).await);
    let artifact = pack(Project::answering("shop", "from a job").path());
    let mismatch = (403, "urn:scafo:trust-mismatch".to_owned());
    let good = token(&signer, issuer.github());

    assert_eq!(refusal(deploy(&node, &good, artifact.clone()).await).await, mismatch, "nobody is trusted at first");
    let args = ["set", "shop", "--issuer", &issuer.url, "--subject", "repo:acme/shop:ref:refs/heads/*"];
    trust(&node, &args).await;
    assert_eq!(refusal(deploy(&node, &token(&signer, stranger.github()), artifact.clone()).await).await, mismatch);
    assert_eq!(refusal(deploy(&node, &token(&signer, issuer.gitlab()), artifact.clone()).await).await, mismatch);
    let thief = token(&Signer::new("ES256", "ci"), issuer.github());
    let invalid = (401, "urn:scafo:auth-invalid".to_owned());
    assert_eq!(refusal(deploy(&node, &thief, artifact.clone()).await).await, invalid);
    let (_, applications) = node.api().get("/v1/applications").await.unwrap();
    assert_eq!(applications["applications"], json!([]), "a refused deploy creates nothing");

    let answer = deploy(&node, &good, artifact.clone()).await;
    assert_eq!(answer.status(), 202, "{}", node.log());
    let id = answer.json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned();
    // The same token again, and by an apiserver that knows nothing of the issuer.
    node.kill_daemon("scafo-apiserver").await;
    let poll = format!("/v1/deploys/{id}");
    wait::until("the deploy is deployed", Duration::from_secs(120), || async {
        let answer = node.api().with_token(Method::GET, &poll, &good).send().await.ok()?;
        let status: Value = answer.json().await.ok()?;
        assert_ne!(status["state"], "failed", "{status}\n{}", node.log());
        (status["state"] == "deployed").then_some(())
    })
    .await;
    // Deployed is what the nodes are; the ingress reads of a new application at its next poll.
    wait::until("the ingress knows the host", Duration::from_secs(60), || async {
        node.get("shop", "/").await.ok().filter(|answer| *answer == (200, "from a job".to_owned()))
    })
    .await;

    let listed = node.scafo(["deploys", "shop", "--json"]).await;
    let record = serde_json::from_slice::<Value>(&listed.stdout).unwrap()["deploys"][0].clone();
    assert_eq!(record["by"], "oidc:repo:acme/shop:ref:refs/heads/main");
    assert_eq!((&record["oidc"]["iss"], &record["oidc"]["run_id"]), (&json!(issuer.url), &json!("7331")));

    trust(&node, &["remove", "shop"]).await;
    assert_eq!(refusal(deploy(&node, &good, artifact).await).await, mismatch, "what is removed admits nobody at once");
    assert_eq!(stranger.asked(), (0, 0));
    node.stop().await;
}

//! Jobs of CI systems, from their token to the record of their deploy.

use http::{Method, StatusCode};
use scafo_core::problem::{Problem, ProblemCode};
use serde_json::{Value, json};

use crate::harness::{Answer, Harness, NO_METADATA, project};
use crate::issuer::{Issuer, Signer};

pub(crate) const DEPLOYS: &str = "/v1/applications/shop/deploys";

/// A fleet whose application `shop` trusts an issuer's jobs on one branch.
pub(crate) struct Fleet {
    pub(crate) harness: Harness,
    issuer: Issuer,
    signer: Signer,
}

impl Fleet {
    pub(crate) async fn start() -> Self {
        let signer = Signer::new("RS256", "ci");
        let (harness, issuer) = (Harness::start().await, Issuer::start(&[&signer]).await);
        let rules =
            json!([{ "issuer": issuer.url, "audience": "scafo", "subjects": ["repo:acme/shop:ref:refs/heads/*"] }]);
        let policy = json!({ "v": 1, "application": "shop", "rules": rules });
        harness.registry.world().administered.trust.insert("shop".to_owned(), policy);
        Self { harness, issuer, signer }
    }

    pub(crate) fn bearer(&self, change: impl FnOnce(&mut Value)) -> String {
        let mut claims = self.issuer.github();
        change(&mut claims);
        format!("Bearer {}", self.signer.token(&claims))
    }

    pub(crate) async fn deploy(&self, path: &str, authorization: &str) -> Answer {
        let headers = [("authorization", authorization), ("x-scafo-deploy", NO_METADATA)];
        self.harness.send(Method::POST, path, &headers, project()).await
    }
}

fn outcome(answer: &Answer) -> (u16, String) {
    let code = if answer.status.is_success() { String::new() } else { answer.problem() };
    (answer.status.as_u16(), code)
}

#[tokio::test]
async fn a_job_deploys_and_polls_with_one_token_and_its_provenance_is_recorded() {
    let fleet = Fleet::start().await;
    let token = fleet.bearer(|_| ());
    let answer = fleet.deploy(DEPLOYS, &token).await;
    assert_eq!(answer.status, StatusCode::ACCEPTED, "{answer:?}");
    let id = answer.json()["id"].as_str().unwrap().to_owned();
    let accepted = fleet.harness.registry.world().accepted[0].clone();
    assert_eq!((accepted.id, accepted.by.as_str()), (id.clone(), "oidc:repo:acme/shop:ref:refs/heads/main"));
    let oidc: Value = serde_json::from_slice(&accepted.oidc).unwrap();
    assert_eq!(
        (&oidc["iss"], &oidc["repository"], &oidc["run_id"]),
        (&json!(fleet.issuer.url), &json!("acme/shop"), &json!("7331"))
    );
    for _ in 0..3 {
        assert_eq!(fleet.harness.get(&format!("/v1/deploys/{id}"), &token).await.status, StatusCode::OK);
    }
    assert_eq!(fleet.issuer.asked(), (1, 1));
}

#[tokio::test]
async fn a_deploy_of_an_operator_has_no_provenance() {
    let fleet = Fleet::start().await;
    assert_eq!(fleet.harness.deploy("shop", "team", project()).await.status, StatusCode::ACCEPTED);
    assert!(fleet.harness.registry.world().accepted[0].oidc.is_empty());
}

#[tokio::test]
async fn what_the_policy_does_not_admit_is_a_mismatch_and_creates_nothing() {
    let fleet = Fleet::start().await;
    let mismatch = (403, "trust-mismatch".to_owned());
    let other = fleet.bearer(|claims| claims["sub"] = json!("repo:acme/other:ref:refs/heads/main"));
    let answer = fleet.deploy(DEPLOYS, &other).await;
    assert_eq!(outcome(&answer), mismatch);
    let detail = answer.json()["detail"].to_string();
    assert!(detail.contains("repo:acme/other") && !detail.contains("refs/heads/*"), "{detail}");
    let good = fleet.bearer(|_| ());
    for path in ["/v1/applications/blog/deploys", "/v1/applications/shop-x/deploys"] {
        assert_eq!(outcome(&fleet.deploy(path, &good).await), mismatch, "{path}");
    }
    assert_eq!(outcome(&fleet.harness.get("/v1/deploys/blog.0123456789abcdef", &good).await), mismatch);
    let stranger = fleet.bearer(|claims| claims["iss"] = json!("http://127.0.0.1:1"));
    assert_eq!(outcome(&fleet.deploy(DEPLOYS, &stranger).await), mismatch);
    assert!(fleet.harness.registry.world().prepared.is_empty());
    assert_eq!(fleet.harness.staged(), 0);
}

#[tokio::test]
async fn a_workload_token_that_does_not_hold_up_is_refused_as_every_other_token() {
    let fleet = Fleet::start().await;
    let usual = fleet.harness.get("/v1/state", "Bearer x").await;
    let thief = Signer::new("ES256", "ci");
    let bad = [
        fleet.bearer(|claims| claims["exp"] = json!(1)),
        fleet.bearer(|claims| claims["aud"] = json!("https://github.com/acme")),
        fleet.bearer(|claims| claims["nbf"] = json!(1_900_000_000)),
        format!("Bearer {}", thief.token(&fleet.issuer.github())),
        format!("Bearer {}.{}.", "eyJhbGciOiJub25lIn0", fleet.bearer(|_| ()).split('.').nth(1).unwrap()),
    ];
    for token in bad {
        let answer = fleet.deploy(DEPLOYS, &token).await;
        assert_eq!((answer.status, &answer.body), (usual.status, &usual.body), "{token}");
        assert!(answer.headers.keys().eq(usual.headers.keys()));
    }
    let good = fleet.bearer(|_| ());
    for path in ["/v1/deploys/nothing", "/v1/deploys/SHOP.0123456789abcdef"] {
        assert_eq!(fleet.harness.get(path, &good).await.body, usual.body, "no policy is about {path}");
    }
    assert_eq!(fleet.deploy("/v1/applications/Not_A_Name/deploys", &good).await.body, usual.body);
}

#[tokio::test]
async fn everywhere_else_a_workload_token_is_no_token() {
    let fleet = Fleet::start().await;
    let good = fleet.bearer(|_| ());
    for (method, path) in [
        ("GET", "/v1/state"),
        ("GET", "/v1/operators"),
        ("POST", "/v1/operators"),
        ("DELETE", "/v1/operators/team"),
        ("GET", "/v1/applications"),
        ("GET", "/v1/applications/shop"),
        ("POST", "/v1/applications/shop/block"),
        ("POST", "/v1/applications/shop/labels"),
        ("POST", "/v1/applications/shop/retire"),
        ("POST", "/v1/applications/shop/selector"),
        ("POST", "/v1/applications/shop/replicas"),
        ("DELETE", "/v1/applications/shop"),
        ("POST", "/v1/fleet/freeze"),
        ("GET", "/v1/fleet/freeze"),
        ("GET", "/v1/storage/list"),
        ("GET", "/v1/ingress/routes"),
    ] {
        let answer = fleet.harness.send(method.parse().unwrap(), path, &[("authorization", &good)], "").await;
        assert_eq!(outcome(&answer), (401, "auth-invalid".to_owned()), "{method} {path}");
    }
    for method in [Method::POST, Method::DELETE] {
        let path = "/v1/applications/shop/domains/shop.example";
        let answer = fleet.harness.send(method.clone(), path, &[("authorization", &good)], "").await;
        assert_eq!(outcome(&answer), (403, "auth-scope".to_owned()), "a pipeline decides about no host: {method}");
    }
}

#[tokio::test]
async fn a_policy_that_cannot_be_read_is_never_the_jobs_fault() {
    let fleet = Fleet::start().await;
    let token = fleet.bearer(|_| ());
    fleet.harness.registry.world().refuse = Some(Problem::new(ProblemCode::StoreUnavailable, "the bucket is away"));
    assert_eq!(outcome(&fleet.deploy(DEPLOYS, &token).await), (503, "store-unavailable".to_owned()));
    fleet.harness.registry.world().refuse = None;
    assert_eq!(fleet.deploy(DEPLOYS, &token).await.status, StatusCode::ACCEPTED);
    fleet.harness.registry.world().administered.trust.clear();
    assert_eq!(outcome(&fleet.deploy(DEPLOYS, &token).await), (403, "trust-mismatch".to_owned()), "removed at once");
}

#[tokio::test]
async fn the_provenance_of_a_staged_deploy_is_on_the_disk() {
    let fleet = Fleet::start().await;
    fleet.harness.registry.world().slow = true;
    let answer = fleet.deploy(DEPLOYS, &fleet.bearer(|_| ())).await;
    let id = answer.json()["id"].as_str().unwrap().to_owned();
    let meta = std::fs::read(fleet.harness.dir.path().join(format!("api/stage/{id}/meta.json"))).unwrap();
    let meta: Value = serde_json::from_slice(&meta).unwrap();
    assert_eq!(meta["oidc"]["repository"], "acme/shop");
}

//! The verifier against an issuer that really serves its metadata and keys.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use scafo_core::problem::ProblemCode;
use scafo_core::record::TrustPolicy;
use scafo_core::time::Timestamp;
use serde_json::{Value, json};

use super::fetch::Fetcher;
use super::{Claim, Workload, Workloads, is_workload};
use crate::clock::Clock;

#[path = "../../../tests/it/issuer.rs"]
mod issuer;
mod properties;

use issuer::{ALGORITHMS, Issuer, Manner, NOW_S, Signer, encode};

/// A clock that stands still until the test moves it.
struct TestClock {
    start: Instant,
    ahead_s: AtomicU64,
}

impl Clock for TestClock {
    fn wall(&self) -> Timestamp {
        Timestamp::from_millis(NOW_S * 1000)
    }

    fn mono(&self) -> Instant {
        self.start + Duration::from_secs(self.ahead_s.load(Ordering::SeqCst))
    }
}

/// A verifier and the policies of some applications.
struct Node {
    clock: Arc<TestClock>,
    workloads: Workloads,
    policy: Mutex<TrustPolicy>,
}

type Admitted = Result<Workload, ProblemCode>;

impl Node {
    /// With one rule for `issuer`.
    fn trusting(issuer: &str, subjects: &[&str]) -> Self {
        Self::with_rules(&json!([{ "issuer": issuer, "subjects": subjects }]), Duration::from_secs(60))
    }

    fn with_rules(rules: &Value, within: Duration) -> Self {
        let clock = Arc::new(TestClock { start: Instant::now(), ahead_s: AtomicU64::new(0) });
        let policy = json!({ "v": 1, "application": "shop", "rules": rules });
        Self {
            workloads: Workloads::with(Fetcher::new(within), clock.clone()),
            clock,
            policy: Mutex::new(serde_json::from_value(policy).unwrap()),
        }
    }

    async fn admit(&self, token: &str) -> Admitted {
        let policy = self.policy.lock().unwrap().clone();
        let claim = Claim::read(token, self.clock.wall()).map_err(|problem| problem.code)?;
        let admitted = self.workloads.admit(claim, &"shop".parse().unwrap(), Some(&policy)).await;
        admitted.map_err(|turned| turned.problem.code)
    }

    fn advance(&self, seconds: u64) {
        self.clock.ahead_s.fetch_add(seconds, Ordering::SeqCst);
    }
}

fn code(admitted: &Admitted) -> &'static str {
    match admitted {
        Ok(_) => "admitted",
        Err(code) => code.as_str(),
    }
}

fn with(mut claims: Value, name: &str, value: Value) -> Value {
    if value.is_null() {
        claims.as_object_mut().unwrap().remove(name);
    } else {
        claims[name] = value;
    }
    claims
}

#[tokio::test]
async fn every_algorithm_of_the_list_is_verified_and_a_changed_token_is_not() {
    let signers: Vec<_> = ALGORITHMS.iter().map(|algorithm| Signer::new(algorithm, algorithm)).collect();
    let issuer = Issuer::start(&signers.iter().collect::<Vec<_>>()).await;
    let node = Node::trusting(&issuer.url, &["repo:acme/shop:*"]);
    for signer in &signers {
        let token = signer.token(&issuer.github());
        assert_eq!(code(&node.admit(&token).await), "admitted", "{}", signer.algorithm);
        let (signed, _) = token.rsplit_once('.').unwrap();
        let other = signer.token(&with(issuer.github(), "sha", json!("0")));
        let (_, signature) = other.rsplit_once('.').unwrap();
        let changed = format!("{signed}.{signature}");
        assert_eq!(code(&node.admit(&changed).await), "auth-invalid", "{}", signer.algorithm);
        let none = format!("{signed}.");
        assert_eq!(code(&node.admit(&none).await), "auth-invalid", "{}", signer.algorithm);
    }
    assert_eq!(issuer.asked(), (1, 1));
}

#[tokio::test]
async fn a_token_of_github_actions_is_admitted_with_where_it_comes_from() {
    let signer = Signer::new("RS256", "gha");
    let issuer = Issuer::start(&[&signer]).await;
    let node = Node::trusting(&issuer.url, &["repo:acme/other:*", "repo:acme/shop:ref:refs/heads/*"]);
    let workload = node.admit(&signer.token(&issuer.github())).await.unwrap();
    assert_eq!(
        (workload.application.as_str(), workload.by.as_str()),
        ("shop", "oidc:repo:acme/shop:ref:refs/heads/main")
    );
    for (claim, value) in [
        ("iss", issuer.url.as_str()),
        ("sub", "repo:acme/shop:ref:refs/heads/main"),
        ("aud", "scafo"),
        ("repository", "acme/shop"),
        ("ref", "refs/heads/main"),
        ("run_id", "7331"),
        ("workflow_ref", "acme/shop/.github/workflows/deploy.yml@refs/heads/main"),
    ] {
        assert_eq!(workload.provenance[claim], value);
    }
}

#[tokio::test]
async fn a_token_of_gitlab_ci_is_admitted_and_no_address_of_a_person_is_kept() {
    let signer = Signer::new("RS256", "gitlab");
    let issuer = Issuer::start(&[&signer]).await;
    let node = Node::trusting(&issuer.url, &["project_path:acme/shop:ref_type:branch:ref:main"]);
    let workload = node.admit(&signer.token(&issuer.gitlab())).await.unwrap();
    assert_eq!(workload.provenance["project_path"], "acme/shop");
    assert_eq!(workload.provenance["pipeline_id"], "574");
    assert!(!workload.provenance.to_string().contains("sam@example.com"));
}

#[tokio::test]
async fn what_is_wrong_without_any_key_is_refused_before_anything_is_fetched() {
    let signer = Signer::new("RS256", "1");
    let issuer = Issuer::start(&[&signer]).await;
    let node = Node::trusting(&issuer.url, &["*"]);
    let good = issuer.github();
    let header = |more: Value| {
        let mut header = json!({ "alg": "RS256", "kid": "1" });
        header.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        header
    };
    let mut bad: Vec<String> = Vec::new();
    for algorithm in ["none", "None", "", "HS256", "HS384", "HS512", "rs256", "RS1", "ES256K", "Ed448", "RSA-OAEP"] {
        bad.push(signer.token_with(&header(json!({ "alg": algorithm })), &good));
    }
    for member in ["crit", "b64", "jwk", "jku", "x5u", "x5c"] {
        bad.push(signer.token_with(&header(json!({ member: null })), &good));
    }
    bad.push(signer.token_with(&header(json!({ "kid": 1 })), &good));
    bad.push(signer.token_of(r#"{"alg":"RS256","alg":"RS256","kid":"1"}"#, &good.to_string()));
    bad.push(signer.token_of(r#"["RS256","1"]"#, &good.to_string()));
    bad.push(signer.token_of(r#"{"alg":"RS256"}"#, &good.to_string().replacen('{', r#"{"sub":"x","#, 1)));
    for (claim, value) in [
        ("sub", json!(null)),
        ("sub", json!("")),
        ("sub", json!("a\nb")),
        ("sub", json!(7)),
        ("sub", json!("x".repeat(2049))),
        ("aud", json!(null)),
        ("aud", json!("other")),
        ("aud", json!([])),
        ("aud", json!(["other", "more"])),
        ("aud", json!(vec!["scafo"; 17])),
        ("exp", json!(null)),
        ("exp", json!("1800000300")),
        ("exp", json!(NOW_S - 30)),
        ("exp", json!(-1)),
        ("nbf", json!(NOW_S + 31)),
        ("nbf", json!("x")),
        ("iat", json!(NOW_S + 31)),
    ] {
        bad.push(signer.token(&with(good.clone(), claim, value)));
    }
    let token = signer.token(&good);
    bad.extend([token.clone() + "=", token.clone() + ".x", token.replace('.', ""), "a.b.c".into(), String::new()]);
    bad.push(signer.token(&with(good, "pad", json!("x".repeat(16 * 1024)))));
    for token in &bad {
        assert_eq!(code(&node.admit(token).await), "auth-invalid", "{token}");
    }
    assert_eq!(issuer.asked(), (0, 0));
    assert_eq!(code(&node.admit(&token).await), "admitted");
}

#[tokio::test]
async fn the_skew_is_thirty_seconds_and_times_may_have_fractions() {
    let signer = Signer::new("EdDSA", "1");
    let issuer = Issuer::start(&[&signer]).await;
    let node = Node::trusting(&issuer.url, &["*"]);
    for (claim, value) in [
        ("exp", json!(NOW_S - 29)),
        ("exp", json!(1_800_000_000.5)),
        ("nbf", json!(NOW_S + 30)),
        ("nbf", json!(null)),
        ("iat", json!(NOW_S + 30)),
        ("iat", json!(null)),
    ] {
        let token = signer.token(&with(issuer.github(), claim, value.clone()));
        assert_eq!(code(&node.admit(&token).await), "admitted", "{claim} {value}");
    }
}

#[tokio::test]
async fn one_of_several_audiences_is_enough_and_a_rule_has_its_own() {
    let signer = Signer::new("EdDSA", "1");
    let issuer = Issuer::start(&[&signer]).await;
    let rules = json!([
        { "issuer": issuer.url, "audience": "one", "subjects": ["a"] },
        { "issuer": issuer.url, "audience": "two", "subjects": ["b"] },
    ]);
    let node = Node::with_rules(&rules, Duration::from_secs(60));
    for (audience, subject, expected) in [
        (json!("one"), "a", "admitted"),
        (json!("two"), "b", "admitted"),
        (json!(["two", "other"]), "b", "admitted"),
        (json!("one"), "b", "trust-mismatch"),
        (json!("two"), "a", "trust-mismatch"),
        (json!("scafo"), "a", "auth-invalid"),
        (json!("on"), "a", "auth-invalid"),
    ] {
        let claims = with(with(issuer.github(), "aud", audience.clone()), "sub", json!(subject));
        assert_eq!(code(&node.admit(&signer.token(&claims)).await), expected, "{audience} {subject}");
    }
}

#[tokio::test]
async fn an_issuer_that_the_policy_does_not_name_exactly_is_never_asked() {
    let signer = Signer::new("RS256", "1");
    let issuer = Issuer::start(&[&signer]).await;
    let slash = format!("{}/", issuer.url);
    for named in ["https://token.example", slash.as_str(), &issuer.url.replace("127.0.0.1", "localhost")] {
        let node = Node::trusting(named, &["*"]);
        assert_eq!(code(&node.admit(&signer.token(&issuer.github())).await), "trust-mismatch", "{named}");
    }
    let claim = signer.token(&issuer.github());
    let node = Node::trusting(&issuer.url, &["*"]);
    let claim = Claim::read(&claim, node.clock.wall()).unwrap();
    let turned = node.workloads.admit(claim, &"shop".parse().unwrap(), None).await.unwrap_err();
    assert_eq!((turned.problem.code, turned.by.as_deref()), (ProblemCode::TrustMismatch, None));
    assert!(turned.problem.detail.contains("scafo trust set shop"), "{turned:?}");
    assert_eq!(issuer.asked(), (0, 0));
}

#[tokio::test]
async fn only_a_token_that_holds_up_learns_that_its_subject_is_not_admitted() {
    let (signer, thief) = (Signer::new("ES256", "1"), Signer::new("ES256", "1"));
    let issuer = Issuer::start(&[&signer]).await;
    let node = Node::trusting(&issuer.url, &["repo:acme/shop:ref:refs/heads/main"]);
    for (subject, expected) in [
        ("repo:acme/shop:ref:refs/heads/main", "admitted"),
        ("repo:acme/shop:ref:refs/heads/main2", "trust-mismatch"),
        ("repo:acme/shop:ref:refs/heads/mai", "trust-mismatch"),
        ("REPO:acme/shop:ref:refs/heads/main", "trust-mismatch"),
    ] {
        let claims = with(issuer.github(), "sub", json!(subject));
        assert_eq!(code(&node.admit(&signer.token(&claims)).await), expected, "{subject}");
        assert_eq!(code(&node.admit(&thief.token(&claims)).await), "auth-invalid", "{subject}");
    }
}

#[tokio::test]
async fn a_policy_that_changes_decides_the_next_token() {
    let signer = Signer::new("EdDSA", "1");
    let issuer = Issuer::start(&[&signer]).await;
    let node = Node::trusting(&issuer.url, &["*"]);
    let token = signer.token(&issuer.github());
    assert_eq!(code(&node.admit(&token).await), "admitted");
    assert_eq!(code(&node.admit(&token).await), "admitted", "a job may use its token again");
    node.policy.lock().unwrap().rules.clear();
    assert_eq!(code(&node.admit(&token).await), "trust-mismatch");
}

#[tokio::test]
async fn a_key_verifies_only_what_it_is_for() {
    let rs256 = Signer::new("RS256", "1");
    let issuer = Issuer::start(&[&rs256]).await;
    let node = Node::trusting(&issuer.url, &["*"]);
    // The same RSA key with another algorithm than the one that the issuer names for it.
    for algorithm in ["RS512", "PS256"] {
        let token = Signer::new(algorithm, "1").token(&issuer.github());
        assert_eq!(code(&node.admit(&token).await), "auth-invalid", "{algorithm}");
    }
    // And with no algorithm named, any that fits.
    issuer.world().keys[0].as_object_mut().unwrap().remove("alg");
    let node = Node::trusting(&issuer.url, &["*"]);
    for (algorithm, expected) in [("RS512", "admitted"), ("PS256", "admitted"), ("ES256", "auth-invalid")] {
        let token = Signer::new(algorithm, "1").token(&issuer.github());
        assert_eq!(code(&node.admit(&token).await), expected, "{algorithm}");
    }
}

#[tokio::test]
async fn keys_that_share_an_id_are_each_tried_and_a_token_without_one_tries_all() {
    let (wrong, right, other) = (Signer::new("ES256", "1"), Signer::new("ES256", "1"), Signer::new("EdDSA", "1"));
    let issuer = Issuer::start(&[&other, &wrong, &right]).await;
    let node = Node::trusting(&issuer.url, &["*"]);
    assert_eq!(code(&node.admit(&right.token(&issuer.github())).await), "admitted");
    assert_eq!(code(&node.admit(&other.token(&issuer.github())).await), "admitted");
    let nameless = right.token_with(&json!({ "alg": "ES256" }), &issuer.github());
    assert_eq!(code(&node.admit(&nameless).await), "admitted");
    let stranger = Signer::new("ES256", "1").token_with(&json!({ "alg": "ES256" }), &issuer.github());
    assert_eq!(code(&node.admit(&stranger).await), "auth-invalid");
    assert_eq!(issuer.asked(), (1, 1));
}

#[tokio::test]
async fn a_rotated_key_is_found_at_once_and_the_old_one_ends_with_the_kept_keys() {
    let (old, new) = (Signer::new("RS256", "old"), Signer::new("ES384", "new"));
    let issuer = Issuer::start(&[&old]).await;
    let node = Node::trusting(&issuer.url, &["*"]);
    assert_eq!(code(&node.admit(&old.token(&issuer.github())).await), "admitted");
    issuer.world().keys = vec![new.jwk()];
    assert_eq!(code(&node.admit(&old.token(&issuer.github())).await), "admitted", "still kept");
    node.advance(299);
    assert_eq!(issuer.asked(), (1, 1));
    assert_eq!(code(&node.admit(&new.token(&issuer.github())).await), "admitted");
    assert_eq!(issuer.asked(), (1, 2));
    assert_eq!(code(&node.admit(&old.token(&issuer.github())).await), "auth-invalid");
    assert_eq!(issuer.asked(), (1, 2));
}

#[tokio::test]
async fn a_flood_of_unknown_keys_asks_the_issuer_once_more_and_holds_nobody_up() {
    let signer = Signer::new("EdDSA", "1");
    let issuer = Issuer::start(&[&signer]).await;
    let node = Node::trusting(&issuer.url, &["*"]);
    let good = signer.token(&issuer.github());
    assert_eq!(code(&node.admit(&good).await), "admitted");
    let junk: Vec<_> = (0..300)
        .map(|kid| signer.token_with(&json!({ "alg": "EdDSA", "kid": format!("junk{kid}") }), &issuer.github()))
        .collect();
    let all = futures_util::future::join_all(junk.iter().map(|token| node.admit(token))).await;
    assert!(all.iter().all(|admitted| code(admitted) == "auth-invalid"));
    assert_eq!(issuer.asked(), (1, 2));
    assert_eq!(code(&node.admit(&good).await), "admitted");
    node.advance(30);
    for token in &junk {
        assert_eq!(code(&node.admit(token).await), "auth-invalid");
    }
    assert_eq!(issuer.asked(), (1, 3));
}

#[tokio::test]
async fn of_fifty_first_tokens_one_asks() {
    let signer = Signer::new("EdDSA", "1");
    let issuer = Issuer::start(&[&signer]).await;
    let node = Node::trusting(&issuer.url, &["*"]);
    let token = signer.token(&issuer.github());
    let all = futures_util::future::join_all((0..50).map(|_| node.admit(&token))).await;
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(issuer.asked(), (1, 1));
}

#[tokio::test]
async fn a_silent_issuer_is_given_up_and_left_alone_for_thirty_seconds() {
    let signer = Signer::new("EdDSA", "1");
    let (silent, well) = (Issuer::start(&[&signer]).await, Issuer::start(&[&signer]).await);
    silent.world().metadata = Manner::Silence;
    let rules = json!([{ "issuer": silent.url, "subjects": ["*"] }, { "issuer": well.url, "subjects": ["*"] }]);
    let node = Node::with_rules(&rules, Duration::from_secs(3));
    let token = signer.token(&silent.github());
    for _ in 0..3 {
        assert_eq!(code(&node.admit(&token).await), "auth-invalid");
    }
    assert_eq!(silent.asked(), (1, 0));
    silent.world().metadata = Manner::Well;
    node.advance(29);
    assert_eq!(code(&node.admit(&token).await), "auth-invalid");
    node.advance(1);
    let node = Node { workloads: Workloads::with(Fetcher::new(Duration::from_secs(60)), node.clock.clone()), ..node };
    assert_eq!(code(&node.admit(&token).await), "admitted");
    assert_eq!(code(&node.admit(&signer.token(&well.github())).await), "admitted");
}

#[tokio::test]
async fn a_caller_who_goes_away_does_not_have_the_issuer_asked_again() {
    let signer = Signer::new("EdDSA", "1");
    let issuer = Issuer::start(&[&signer]).await;
    issuer.world().metadata = Manner::Silence;
    let node = Node::trusting(&issuer.url, &["*"]);
    let token = signer.token(&issuer.github());
    while issuer.asked().0 == 0 {
        let cut = tokio::time::timeout(Duration::from_millis(20), node.admit(&token)).await;
        assert!(cut.is_err());
    }
    for _ in 0..5 {
        assert!(tokio::time::timeout(Duration::from_millis(5), node.admit(&token)).await.is_err());
    }
    assert_eq!(issuer.asked(), (1, 0));
}

#[tokio::test]
async fn an_issuer_that_answers_anything_else_gives_no_keys() {
    let signer = Signer::new("EdDSA", "1");
    let elsewhere = Issuer::start(&[&signer]).await;
    let metadata = |issuer: &Issuer, jwks_uri: &str| {
        let document = json!({ "issuer": issuer.url, "jwks_uri": jwks_uri });
        Manner::Body(document.to_string().into_bytes())
    };
    type Change = Box<dyn Fn(&Issuer)>;
    let at_jwks = |manner: Manner| -> Change { Box::new(move |issuer| issuer.world().jwks = manner.clone()) };
    let at_metadata = |manner: Manner| -> Change { Box::new(move |issuer| issuer.world().metadata = manner.clone()) };
    let well_but_large = {
        let pad = json!({ "keys": [signer.jwk()], "pad": "x".repeat(256 * 1024) });
        Manner::Body(pad.to_string().into_bytes())
    };
    let changes: Vec<(&str, Change)> = vec![
        ("a status", at_metadata(Manner::Status(500))),
        ("a status", at_jwks(Manner::Status(404))),
        ("another success", at_jwks(Manner::Status(203))),
        ("a redirect", at_metadata(Manner::Redirect(format!("{}/.well-known/openid-configuration", elsewhere.url)))),
        ("a redirect", at_jwks(Manner::Redirect(format!("{}/jwks", elsewhere.url)))),
        ("no JSON", at_metadata(Manner::Body(b"<html>".to_vec()))),
        ("no JSON", at_jwks(Manner::Body(b"{".to_vec()))),
        ("too much", at_jwks(well_but_large)),
        ("too much", at_metadata(Manner::Body(vec![b' '; 300 * 1024]))),
        ("no keys", at_jwks(Manner::Body(br#"{"keys":[]}"#.to_vec()))),
        ("nesting", at_jwks(Manner::Body("[".repeat(100_000).into_bytes()))),
        (
            "another issuer",
            Box::new({
                let url = elsewhere.url.clone();
                move |issuer: &Issuer| {
                    let document = json!({ "issuer": url, "jwks_uri": format!("{}/jwks", issuer.url) });
                    issuer.world().metadata = Manner::Body(document.to_string().into_bytes());
                }
            }),
        ),
    ];
    for (what, change) in changes {
        let issuer = Issuer::start(&[&signer]).await;
        change(&issuer);
        let node = Node::trusting(&issuer.url, &["*"]);
        assert_eq!(code(&node.admit(&signer.token(&issuer.github())).await), "auth-invalid", "{what}");
    }
    for jwks_uri in
        ["http://issuer.example/jwks", "file:///etc/passwd", "", "/jwks", "http://127.0.0.1:1@issuer.example/"]
    {
        let issuer = Issuer::start(&[&signer]).await;
        let manner = metadata(&issuer, jwks_uri);
        issuer.world().metadata = manner;
        let node = Node::trusting(&issuer.url, &["*"]);
        assert_eq!(code(&node.admit(&signer.token(&issuer.github())).await), "auth-invalid", "{jwks_uri}");
    }
    assert_eq!(elsewhere.asked(), (0, 0));
}

#[tokio::test]
async fn an_issuer_without_a_certificate_that_this_machine_trusts_gives_no_keys() {
    let signer = Signer::new("EdDSA", "1");
    let issuer = Issuer::start(&[&signer]).await;
    let https = issuer.url.replace("http:", "https:");
    let node = Node::trusting(&https, &["*"]);
    let token = signer.token(&with(issuer.github(), "iss", json!(https)));
    assert_eq!(code(&node.admit(&token).await), "auth-invalid");
    assert_eq!(issuer.asked(), (0, 0));
}

#[tokio::test]
async fn keys_may_lie_elsewhere_than_the_metadata() {
    let (signer, unused) = (Signer::new("EdDSA", "1"), Signer::new("EdDSA", "1"));
    let (issuer, keys) = (Issuer::start(&[&unused]).await, Issuer::start(&[&signer]).await);
    let document = json!({ "issuer": issuer.url, "jwks_uri": format!("{}/jwks", keys.url) });
    issuer.world().metadata = Manner::Body(document.to_string().into_bytes());
    let node = Node::trusting(&issuer.url, &["*"]);
    assert_eq!(code(&node.admit(&signer.token(&issuer.github())).await), "admitted");
}

#[tokio::test]
async fn no_more_than_64_issuers_are_remembered_and_the_oldest_goes_first() {
    let signer = Signer::new("EdDSA", "1");
    let issuer = Issuer::start(&[&signer]).await;
    let unreachable = |index: usize| format!("http://127.0.0.1:1/{index}");
    let mut rules = vec![json!({ "issuer": issuer.url, "subjects": ["*"] })];
    rules.extend((0..100).map(|index| json!({ "issuer": unreachable(index), "subjects": ["*"] })));
    let node = Node::with_rules(&json!(rules), Duration::from_secs(60));
    let good = signer.token(&issuer.github());
    for index in 0..100 {
        assert_eq!(code(&node.admit(&good).await), "admitted");
        node.advance(1);
        let token = signer.token(&with(issuer.github(), "iss", json!(unreachable(index))));
        assert_eq!(code(&node.admit(&token).await), "auth-invalid");
    }
    assert_eq!(node.workloads.issuers.known(), 64);
    assert_eq!(issuer.asked(), (1, 1), "an issuer in use is not forgotten");
}

#[test]
fn a_token_says_whether_it_is_a_workloads() {
    let signer = Signer::new("EdDSA", "1");
    let says = |claims: Value| is_workload(&signer.token(&claims));
    assert!(says(json!({ "iss": "https://i" })) && says(json!({ "iss": "https://i", "aud": ["scafo-node"] })));
    assert!(!says(json!({ "iss": "https://i", "aud": "scafo-node" })), "a node decides about its own audience");
    assert!(!says(json!({ "sub": "op", "aud": "scafo-node" })) && !says(json!({})));
    for text in ["", ".", "..", "a.b.c", "a.e30.c"] {
        assert!(!is_workload(text), "{text}");
    }
}

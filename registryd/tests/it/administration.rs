//! What people decide, over the sockets.

use std::sync::{Arc, Mutex};

use scafo_core::Timestamp;
use scafo_core::problem::{Problem, ProblemCode};
use scafo_core::record::{ApplicationRecord, FreezeRecord, OperatorRecord};
use scafo_proto::registry::caller::Kind;
use scafo_proto::registry::{
    Caller, ClaimDomainRequest, DeleteApplicationRequest, FreezeRequest, GetApplicationRequest, GetFreezeRequest,
    GetTrustRequest, ListOperatorsRequest, Reach, RegisterOperatorRequest, ReleaseDomainRequest, RemoveTrustRequest,
    RevokeOperatorRequest, SetBlockedRequest, SetReplicasRequest, SetRetiredRequest, SetTrustRequest, UnfreezeRequest,
};
use scafo_proto::status::to_problem;
use scafo_store::{Bucket as _, Fault, MemoryBucket, PutOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tonic::{Response, Status};

use crate::node::{LIMIT, Node, key, until};
use crate::supervisor::Job;

fn operator(id: &str) -> Option<Caller> {
    Some(Caller { kind: Kind::Operator.into(), id: id.into(), applications: vec!["*".into()] })
}

fn local() -> Option<Caller> {
    Some(Caller { kind: Kind::Local.into(), id: String::new(), applications: vec![] })
}

fn code<T: std::fmt::Debug>(answer: Result<Response<T>, Status>) -> ProblemCode {
    to_problem(&answer.unwrap_err()).code
}

fn record<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> T {
    serde_json::from_slice(bytes).unwrap()
}

async fn with_shop(memory: MemoryBucket) -> Node {
    let node = Node::start("a", memory);
    until(|| async { node.prepare("shop", "{}").await.ok() }).await;
    node
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_is_set_and_this_node_acts_on_it_at_once() {
    let node = with_shop(MemoryBucket::new()).await;
    node.supervisor.then(Job::Publishes("v1"));
    node.deploy("shop", 1).await;
    let mut admin = node.administration();
    let request = SetBlockedRequest { caller: operator("op"), application: "shop".into(), blocked: true };
    let reply = admin.set_blocked(request).await.unwrap().into_inner();
    assert!(record::<ApplicationRecord>(&reply.application).blocked);
    until(|| async { node.supervisor.applied().is_empty().then_some(()) }).await;
    let replicas = SetReplicasRequest { caller: operator("op"), application: "shop".into(), replicas: "0".into() };
    assert_eq!(code(admin.set_replicas(replicas).await), ProblemCode::InvalidInput);
    let missing = GetApplicationRequest { application: "nobody".into() };
    assert_eq!(code(admin.get_application(missing).await), ProblemCode::NotFound);
    let slug = GetApplicationRequest { application: "No".into() };
    assert_eq!(code(admin.get_application(slug).await), ProblemCode::InvalidSlug);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_domain_is_claimed_and_released() {
    let node = with_shop(MemoryBucket::new()).await;
    let mut admin = node.administration();
    let claim = |host: &str| ClaimDomainRequest {
        caller: operator("op"),
        application: "shop".into(),
        host: host.into(),
        wildcard: true,
    };
    let reply = admin.claim_domain(claim("Shop.Example")).await.unwrap().into_inner();
    assert_eq!((reply.host.as_str(), reply.platform_hosts), ("shop.example", vec!["shop.dev.localhost".to_owned()]));
    node.snapshot(|snapshot| snapshot.applications.iter().any(|shop| !shop.wildcard_domains.is_empty())).await;
    assert_eq!(code(admin.claim_domain(claim("x.dev.localhost")).await), ProblemCode::InvalidInput);
    assert_eq!(code(admin.claim_domain(claim("1.2.3.4")).await), ProblemCode::InvalidInput);
    let release =
        ReleaseDomainRequest { caller: operator("op"), application: "shop".into(), host: "shop.example".into() };
    let reply = admin.release_domain(release.clone()).await.unwrap().into_inner();
    assert!(record::<ApplicationRecord>(&reply.application).domains.is_empty());
    assert_eq!(code(admin.release_domain(release).await), ProblemCode::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_keys_are_managed_by_the_record_that_stands() {
    let node = with_shop(MemoryBucket::new()).await;
    node.init_operator("root", 1, false).await.unwrap();
    let mut admin = node.administration();
    let register = |by: &str, id: &str, secret: u8, reach: &str| RegisterOperatorRequest {
        caller: operator(by),
        id: id.into(),
        public_key: serde_json::to_vec(&key(secret)).unwrap().into(),
        role: String::new(),
        supersedes: String::new(),
        applications: Some(Reach { entries: vec![reach.into()] }),
    };
    let reply = admin.register_operator(register("root", "team", 2, "shop")).await.unwrap().into_inner();
    let team: OperatorRecord = record(&reply.operator);
    assert_eq!((team.id.as_str(), team.created_by.as_deref()), ("team", Some("root")));
    // What the call says of the caller's reach does not count here.
    assert_eq!(code(admin.register_operator(register("team", "other", 3, "*")).await), ProblemCode::AuthScope);
    assert_eq!(code(admin.register_operator(register("gone", "other", 3, "shop")).await), ProblemCode::AuthInvalid);
    let list = |by: &str| ListOperatorsRequest { caller: operator(by) };
    for (by, count, scoped) in [("root", 2, false), ("team", 1, true)] {
        let stream = admin.list_operators(list(by)).await.unwrap().into_inner();
        let document: serde_json::Value = record(&scafo_proto::chunk::collect(stream).await.unwrap());
        assert_eq!(document["operators"].as_array().unwrap().len(), count, "{by}");
        assert_eq!(document.get("scoped").is_some(), scoped, "{by}");
    }
    let revoke = |by: &str, id: &str| RevokeOperatorRequest { caller: operator(by), id: id.into() };
    assert_eq!(code(admin.revoke_operator(revoke("team", "root")).await), ProblemCode::AuthScope);
    assert_eq!(code(admin.revoke_operator(revoke("root", "root")).await), ProblemCode::InvalidInput);
    admin.revoke_operator(revoke("root", "team")).await.unwrap();
    assert_eq!(code(admin.list_operators(list("team")).await), ProblemCode::AuthInvalid);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_machines_own_user_is_known_at_the_admin_socket_alone() {
    let node = with_shop(MemoryBucket::new()).await;
    node.init_operator("root", 1, false).await.unwrap();
    let revoke = RevokeOperatorRequest { caller: local(), id: "root".into() };
    assert_eq!(code(node.administration().revoke_operator(revoke.clone()).await), ProblemCode::AuthScope);
    let mut own = node.local_administration();
    assert_eq!(code(own.revoke_operator(revoke).await), ProblemCode::ReferenceHeld, "the last key");
    let rule = r#"{"issuer": "https://ci.example", "subjects": ["repo:acme/shop:*"]}"#;
    let set = SetTrustRequest { caller: local(), application: "later".into(), rule: rule.into() };
    own.set_trust(set).await.unwrap();
    // The API reads it.
    let get = GetTrustRequest { application: "later".into() };
    let policy = node.administration().get_trust(get.clone()).await.unwrap().into_inner().policy;
    assert_eq!(record::<serde_json::Value>(&policy)["rules"][0]["audience"], "scafo");
    let remove = RemoveTrustRequest { caller: local(), application: "later".into(), issuer: String::new() };
    assert!(own.remove_trust(remove).await.unwrap().into_inner().removed);
    assert_eq!(code(node.administration().get_trust(get).await), ProblemCode::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn deploys_are_frozen_once_and_lifted() {
    let node = with_shop(MemoryBucket::new()).await;
    let mut admin = node.administration();
    let missing = to_problem(&admin.get_freeze(GetFreezeRequest {}).await.unwrap_err());
    assert_eq!((missing.code, missing.title()), (ProblemCode::NotFound, "Deploys are not frozen"));
    let freeze = |by: &str, reason: &str| FreezeRequest { caller: operator(by), reason: Some(reason.into()) };
    let first = admin.freeze(freeze("op-1", " release ")).await.unwrap().into_inner();
    let second = admin.freeze(freeze("op-2", "other")).await.unwrap().into_inner();
    assert!(first.created && !second.created && first.freeze == second.freeze);
    let stands: FreezeRecord = record(&second.freeze);
    assert_eq!((stands.by.as_str(), stands.reason.as_deref()), ("op-1", Some("release")));
    assert_eq!(code(admin.freeze(freeze("op-1", "a\nb")).await), ProblemCode::InvalidInput);
    let refused = node.prepare("fresh", "{}").await.unwrap_err();
    assert_eq!(refused.code, ProblemCode::DeploysFrozen);
    let lift = UnfreezeRequest { caller: operator("op-1") };
    assert!(admin.unfreeze(lift.clone()).await.unwrap().into_inner().lifted);
    assert!(!admin.unfreeze(lift).await.unwrap().into_inner().lifted);
    node.prepare("fresh", "{}").await.unwrap();
}

struct Deleted {
    status: u32,
    content_type: String,
    body: String,
}

async fn delete(node: &Node, force: bool, forwarded: bool) -> Result<Deleted, Problem> {
    let request = DeleteApplicationRequest { caller: operator("op"), application: "shop".into(), force, forwarded };
    let answer = tokio::time::timeout(LIMIT, node.administration().delete_application(request)).await.unwrap();
    let mut pieces = answer.map_err(|status| to_problem(&status))?.into_inner();
    let first = pieces.message().await.unwrap().unwrap();
    let mut body = first.data.to_vec();
    while let Some(piece) = pieces.message().await.unwrap() {
        body.extend_from_slice(&piece.data);
    }
    Ok(Deleted { status: first.status, content_type: first.content_type, body: String::from_utf8(body).unwrap() })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_coordinator_stops_an_application_and_deletes_everything_of_it() {
    let node = with_shop(MemoryBucket::new()).await;
    node.supervisor.then(Job::Publishes("v1"));
    node.deploy("shop", 1).await;
    assert_eq!(delete(&node, false, false).await.err().unwrap().code, ProblemCode::ReferenceHeld);
    let retire = SetRetiredRequest { caller: operator("op"), application: "shop".into(), retired: true };
    node.administration().set_retired(retire).await.unwrap();
    let refused = delete(&node, false, false).await.err().unwrap();
    assert!(refused.code == ProblemCode::ReferenceHeld && refused.detail.contains("can be deleted from"), "{refused}");
    let deleted = delete(&node, true, false).await.unwrap();
    assert_eq!((deleted.status, deleted.content_type.as_str()), (200, "application/json"));
    assert!(deleted.body.contains("_scafo/applications/shop.json"), "{}", deleted.body);
    assert!(node.supervisor.applied().is_empty(), "it was stopped first");
    let left: Vec<String> = node.memory().keys("").into_iter().filter(|key| key.contains("shop")).collect();
    assert_eq!(left, Vec::<String>::new());
    assert_eq!(delete(&node, true, false).await.err().unwrap().code, ProblemCode::NotFound);
    // The name is free for a new beginning.
    assert!(node.prepare("shop", "{}").await.unwrap());
}

/// Answers one connection with `answer` and tells what was asked.
async fn one_answer(listener: TcpListener, answer: &'static str) -> String {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut asked = Vec::new();
    while !asked.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).await.unwrap();
        asked.push(byte[0]);
    }
    stream.write_all(answer.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    String::from_utf8(asked).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn another_node_passes_a_deletion_on_and_the_answer_back_as_it_is() {
    let memory = MemoryBucket::new();
    let second = memory.sibling();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let api = listener.local_addr().unwrap().to_string();
    let a = Node::start_with("a", memory, |settings| settings.node.api = api);
    until(|| async { a.state().await.ok()?.coordinator.filter(|view| view.is_self) }).await;
    let b = Node::start("b", second);
    until(|| async { b.state().await.ok()?.coordinator.filter(|view| !view.is_self) }).await;
    let answer = "HTTP/1.1 409 Conflict\r\ncontent-type: application/problem+json\r\ncontent-length: 17\r\n\r\n{\"type\": \"a urn\"}";
    let (asked, deleted) = tokio::join!(one_answer(listener, answer), delete(&b, true, false));
    let deleted = deleted.unwrap();
    assert_eq!((deleted.status, deleted.content_type.as_str()), (409, "application/problem+json"));
    assert_eq!(deleted.body, "{\"type\": \"a urn\"}");
    let asked = asked.to_lowercase();
    assert!(asked.starts_with("delete /v1/applications/shop?force=1 http/1.1\r\n"), "{asked}");
    assert!(asked.contains("authorization: bearer a-token-of-this-node\r\n"), "{asked}");
    assert!(asked.contains("x-scafo-forwarded: 1\r\n"), "{asked}");
    // What was passed on once is not passed on again.
    let refused = delete(&b, true, true).await.err().unwrap();
    assert_eq!((refused.code, refused.title()), (ProblemCode::Draining, "Not the coordinator"));
    // And a coordinator that does not answer is named.
    let refused = delete(&b, true, false).await.err().unwrap();
    assert!(refused.code == ProblemCode::Draining && refused.detail.contains("`a`"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_cannot_sign_does_not_pass_a_deletion_on() {
    let memory = MemoryBucket::new();
    let second = memory.sibling();
    let a = Node::start("a", memory);
    until(|| async { a.state().await.ok()?.coordinator.filter(|view| view.is_self) }).await;
    let b = Node::start("b", second);
    until(|| async { b.state().await.ok()?.coordinator.filter(|view| !view.is_self) }).await;
    b.supervisor.loses_its_key();
    assert_eq!(delete(&b, true, false).await.err().unwrap().code, ProblemCode::CapabilityMissing);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_where_nobody_coordinates_is_refused_and_says_so() {
    let memory = MemoryBucket::new();
    memory.fail_next_puts(scafo_core::key::LEASE, std::iter::repeat_n(Fault::LoseRequest, 10_000));
    let node = with_shop(memory).await;
    let refused = delete(&node, true, false).await.err().unwrap();
    assert_eq!((refused.code, refused.title()), (ProblemCode::Draining, "No node is coordinating"));
    assert!(node.applications().await.unwrap().iter().any(|shop| shop.deleting.is_none()), "nothing was begun");
}

#[tokio::test(flavor = "multi_thread")]
async fn applications_are_listed_by_name() {
    let node = with_shop(MemoryBucket::new()).await;
    for name in ["b", "a-2", "a", "a1", "zoo"] {
        node.prepare(name, "{}").await.unwrap();
    }
    let names: Vec<String> = node.applications().await.unwrap().iter().map(|each| each.name.to_string()).collect();
    assert_eq!(names, ["a", "a-2", "a1", "b", "shop", "zoo"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_deletions_of_one_application_do_not_run_beside_each_other() {
    let node = with_shop(MemoryBucket::new()).await;
    // A lease of celld that stays fresh, because the store's clock stands still, holds the first one up.
    node.memory().set_now(Timestamp::from_millis(1_800_000_000_000));
    let lease = "fleets/shop/nodes/elsewhere.json";
    let body = r#"{"expires_ms": 1800000000000}"#.into();
    node.memory().put(lease, body, PutOptions::default()).await.unwrap();
    let second = async {
        let marked = || async {
            let applications = node.applications().await.ok()?;
            applications.iter().any(|shop| shop.deleting == Some(true)).then_some(())
        };
        until(marked).await;
        let second = delete(&node, true, false).await;
        node.memory().delete(lease).await.unwrap();
        second
    };
    let (first, second) = tokio::join!(delete(&node, true, false), second);
    assert_eq!(first.unwrap().status, 200);
    assert_eq!(second.err().unwrap().code, ProblemCode::Draining);
}

/// Where the events of this process go.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Events {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_decision_leaves_one_event_that_names_who_decided() {
    let events = Events::default();
    let writer = events.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter("off,scafo::audit=debug")
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let node = with_shop(MemoryBucket::new()).await;
    let mut admin = node.administration();
    let caller = || operator("the-auditor");
    let block = |blocked| SetBlockedRequest { caller: caller(), application: "shop".into(), blocked };
    admin.set_blocked(block(true)).await.unwrap();
    admin.set_blocked(block(false)).await.unwrap();
    let claim = |host: &str| ClaimDomainRequest {
        caller: caller(),
        application: "shop".into(),
        host: host.into(),
        wildcard: false,
    };
    admin.claim_domain(claim("shop.example")).await.unwrap();
    admin.claim_domain(claim("x.dev.localhost")).await.unwrap_err();
    admin.freeze(FreezeRequest { caller: caller(), reason: None }).await.unwrap();
    // Reading decides nothing.
    admin.get_freeze(GetFreezeRequest {}).await.unwrap();
    node.init_operator("audited", 9, false).await.unwrap();
    let written = String::from_utf8(events.0.lock().unwrap().clone()).unwrap();
    let told: Vec<(String, String)> = written
        .lines()
        .map(record_of)
        .filter(|event| event["actor"] == "the-auditor" || event["subject"] == "audited")
        .map(|event| (event["action"].as_str().unwrap().to_owned(), event["subject"].as_str().unwrap().to_owned()))
        .collect();
    let want = [
        ("Block", "shop"),
        ("Unblock", "shop"),
        ("ClaimDomain", "shop shop.example"),
        ("Freeze", "fleet"),
        ("InitOperator", "audited"),
    ];
    assert_eq!(told, want.map(|(action, subject)| (action.to_owned(), subject.to_owned())));
}

fn record_of(line: &str) -> serde_json::Value {
    record(line.as_bytes())
}

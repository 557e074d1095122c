//! The part of a registry that a node's own command line asks directly: trust policies and history.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use futures_util::Stream;
use scafo_core::record::{Rest, TrustPolicy, TrustRule, V1};
use scafo_core::{Problem, ProblemCode};
use scafo_proto::chunk;
use scafo_proto::registry::administration_server::Administration;
use scafo_proto::registry::{
    ApplicationReply, Chunk, ClaimDomainRequest, DeleteApplicationPiece, DeleteApplicationRequest, DomainReply,
    FreezeReply, FreezeRequest, GetApplicationRequest, GetFreezeRequest, GetTrustRequest, ListDeploymentsRequest,
    ListDeploysRequest, ListOperatorsRequest, OperatorReply, RegisterOperatorRequest, ReleaseDomainRequest,
    RemoveTrustReply, RemoveTrustRequest, RevokeOperatorReply, RevokeOperatorRequest, SetBlockedRequest,
    SetLabelsRequest, SetReplicasRequest, SetRetiredRequest, SetSelectorRequest, SetTrustRequest, TrustReply,
    UnfreezeReply, UnfreezeRequest, caller,
};
use scafo_proto::status::to_status;
use serde_json::{Value, json};
use tonic::{Request, Response, Status};

use crate::local::local;
use crate::run::Home;

/// What was decided so far.
#[derive(Clone, Default)]
pub(crate) struct Decided(Arc<Mutex<BTreeMap<String, Vec<TrustRule>>>>);

pub(crate) type Pieces<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

pub(crate) fn refused(code: ProblemCode, detail: &str) -> Status {
    to_status(&Problem::new(code, detail))
}

pub(crate) fn listed(document: &Value) -> Response<Pieces<Chunk>> {
    let pieces: Vec<_> = chunk::split(document.to_string().into()).map(|(data, _)| Ok(Chunk { data })).collect();
    Response::new(Box::pin(futures_util::stream::iter(pieces)))
}

/// What has a route is not asked here. Spelled out, because the attribute does not see into a macro.
macro_rules! has_a_route {
    ($($name:ident($request:ty) -> $reply:ty;)*) => {
        $(fn $name<'life0, 'async_trait>(
            &'life0 self,
            _: Request<$request>,
        ) -> Pin<Box<dyn Future<Output = Result<Response<$reply>, Status>> + Send + 'async_trait>>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async { Err(Status::unimplemented(stringify!($name))) })
        })*
    };
}

#[tonic::async_trait]
impl Administration for Decided {
    type DeleteApplicationStream = Pieces<DeleteApplicationPiece>;
    type ListDeploysStream = Pieces<Chunk>;
    type ListDeploymentsStream = Pieces<Chunk>;
    type ListOperatorsStream = Pieces<Chunk>;

    async fn set_trust(&self, request: Request<SetTrustRequest>) -> Result<Response<TrustReply>, Status> {
        let SetTrustRequest { caller, application, rule } = request.into_inner();
        assert_eq!(caller.unwrap().kind(), caller::Kind::Local);
        let mut decided = self.0.lock().unwrap();
        let rules = decided.entry(application.clone()).or_default();
        rules.push(serde_json::from_slice(&rule).unwrap());
        Ok(Response::new(policy(&application, rules)))
    }

    async fn get_trust(&self, request: Request<GetTrustRequest>) -> Result<Response<TrustReply>, Status> {
        let application = request.into_inner().application;
        let decided = self.0.lock().unwrap();
        let rules = decided.get(&application).ok_or_else(|| refused(ProblemCode::NotFound, "no trust policy"))?;
        Ok(Response::new(policy(&application, rules)))
    }

    async fn remove_trust(&self, request: Request<RemoveTrustRequest>) -> Result<Response<RemoveTrustReply>, Status> {
        let RemoveTrustRequest { application, issuer, .. } = request.into_inner();
        let mut decided = self.0.lock().unwrap();
        let rules = decided.remove(&application).unwrap_or_default();
        let (gone, stay): (Vec<_>, Vec<_>) =
            rules.into_iter().partition(|rule| issuer.is_empty() || rule.issuer == issuer);
        if !stay.is_empty() {
            decided.insert(application, stay);
        }
        Ok(Response::new(RemoveTrustReply { removed: !gone.is_empty() }))
    }

    async fn list_deploys(&self, request: Request<ListDeploysRequest>) -> Result<Response<Pieces<Chunk>>, Status> {
        let application = request.into_inner().application;
        if application == "away" {
            return Err(refused(ProblemCode::StoreUnavailable, "the bucket does not answer"));
        }
        let at = "2026-04-01T12:30:00.000Z";
        let deploy = |digit: u32, state: &str| {
            json!({ "v": 1, "id": format!("{application}.000000000000000{digit}"), "application": application,
                    "state": state, "node": "vps-a", "by": "ops", "acceptedAt": at, "movedAt": at })
        };
        Ok(listed(&json!([deploy(1, "deployed"), deploy(2, "failed"), deploy(3, "uploading")])))
    }

    async fn list_deployments(&self, _: Request<ListDeploymentsRequest>) -> Result<Response<Pieces<Chunk>>, Status> {
        Ok(listed(&json!([])))
    }

    async fn delete_application(
        &self,
        _: Request<DeleteApplicationRequest>,
    ) -> Result<Response<Pieces<DeleteApplicationPiece>>, Status> {
        Err(Status::unimplemented("delete_application"))
    }

    async fn list_operators(&self, _: Request<ListOperatorsRequest>) -> Result<Response<Pieces<Chunk>>, Status> {
        Err(Status::unimplemented("list_operators"))
    }

    has_a_route! {
        get_application(GetApplicationRequest) -> ApplicationReply;
        set_blocked(SetBlockedRequest) -> ApplicationReply;
        set_labels(SetLabelsRequest) -> ApplicationReply;
        set_retired(SetRetiredRequest) -> ApplicationReply;
        set_selector(SetSelectorRequest) -> ApplicationReply;
        set_replicas(SetReplicasRequest) -> ApplicationReply;
        claim_domain(ClaimDomainRequest) -> DomainReply;
        release_domain(ReleaseDomainRequest) -> DomainReply;
        register_operator(RegisterOperatorRequest) -> OperatorReply;
        revoke_operator(RevokeOperatorRequest) -> RevokeOperatorReply;
        freeze(FreezeRequest) -> FreezeReply;
        unfreeze(UnfreezeRequest) -> UnfreezeReply;
        get_freeze(GetFreezeRequest) -> FreezeReply;
    }
}

fn policy(application: &str, rules: &[TrustRule]) -> TrustReply {
    let policy =
        TrustPolicy { v: V1, application: application.parse().unwrap(), rules: rules.to_vec(), rest: Rest::new() };
    TrustReply { policy: serde_json::to_vec(&policy).unwrap().into() }
}

#[tokio::test]
async fn trust_is_set_shown_and_removed_through_the_nodes_own_socket() {
    let home = Home::new();
    let local = local(&home, "http://127.0.0.1:1", None);
    let ran = home.run("trust show shop --state-dir state").await;
    assert!(ran.code == Some(0) && ran.stdout.is_empty() && ran.stderr.contains("trust set"), "{}", ran.all());
    let ran = home.run("trust show shop --state-dir state --json").await;
    assert_eq!(ran.stdout, "{\"policy\":null}\n");

    let set = "trust set shop --issuer https://ci.example --subject repo:a/b:* repo:a/c:* --state-dir state";
    let ran = home.run(set).await;
    let table = "ISSUER              AUDIENCE  SUBJECT\n\
                 https://ci.example  scafo     repo:a/b:*\n\
                 https://ci.example  scafo     repo:a/c:*\n";
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), table), "{}", ran.all());
    assert_eq!(local.decided.0.lock().unwrap()["shop"].len(), 1);
    let ran = home.run("trust show shop --state-dir state --json").await;
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(json["policy"]["rules"][0]["subjects"], json!(["repo:a/b:*", "repo:a/c:*"]));

    let wide = "trust set shop --issuer https://ci.example --audience fleet --subject * --state-dir state";
    let ran = home.run(wide).await;
    assert!(ran.code == Some(0) && ran.stderr.contains("warning: "), "{}", ran.all());

    for (line, said) in [
        ("trust remove shop --issuer https://other.example", "no workload tokens of https://other.example could"),
        ("trust remove shop", "workload tokens may not deploy shop any more"),
        ("trust remove shop", "no workload tokens could deploy shop"),
    ] {
        let ran = home.run(&format!("{line} --state-dir state")).await;
        assert!(ran.code == Some(0) && ran.stdout.contains(said), "{line}: {}", ran.all());
    }
}

#[tokio::test]
async fn the_history_of_an_application_is_newest_first() {
    let home = Home::new();
    let _local = local(&home, "http://127.0.0.1:1", None);
    let ran = home.run("deploys shop --limit 2 --state-dir state").await;
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let ids: Vec<&str> = ran.stdout.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(ids, ["shop.0000000000000003", "shop.0000000000000002"]);
    let ran = home.run("deploys shop --state-dir state --json").await;
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(json["deploys"].as_array().unwrap().len(), 3);

    let ran = home.run("deployment list shop --state-dir state").await;
    assert!(ran.code == Some(0) && ran.stderr.contains("nothing was ever published of shop"), "{}", ran.all());
    let ran = home.run("deploys away --state-dir state").await;
    assert!(ran.code == Some(1) && ran.stderr.contains("store-unavailable"), "{}", ran.all());
    let ran = home.run("trust show shop --state-dir nowhere").await;
    assert!(ran.code == Some(1) && ran.stderr.contains("no node runs on nowhere"), "{}", ran.all());
}

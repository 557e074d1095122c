//! The registry's administration, as the tests need it: a few records, a log of what was asked, and refusals to order.

use std::collections::BTreeMap;

use bytes::Bytes;
use scafo_core::problem::{Problem, ProblemCode};
use scafo_proto::registry::administration_server::Administration;
use scafo_proto::registry::*;
use scafo_proto::status::to_status;
use scafo_proto::transport::Operation;
use serde_json::{Value, json};
use tonic::{Request, Response, Status};

use crate::fakes::{Boxed, FakeRegistry, Reply, World, refuse, stream, unknown};

/// What is administered.
#[derive(Default)]
pub(crate) struct Administered {
    pub(crate) applications: BTreeMap<String, Value>,
    pub(crate) freeze: Option<Value>,
    pub(crate) operators: Value,
    /// Trust policies by application.
    pub(crate) trust: BTreeMap<String, Value>,
    /// What a delete answers: status, content type, and the body in pieces.
    pub(crate) deleted: Option<(u32, String, Vec<Bytes>)>,
    /// The operations of calls that remove something, one for each try.
    pub(crate) operations: Vec<Operation>,
    /// Every call, with who made it and what it said.
    pub(crate) asked: Vec<(&'static str, String, Value)>,
}

fn by(caller: Option<&Caller>) -> String {
    caller.map_or_else(String::new, |caller| {
        let kind = match caller.kind() {
            caller::Kind::Unspecified => "?",
            caller::Kind::Operator => "operator",
            caller::Kind::Node => "node",
            caller::Kind::Local => "local",
        };
        format!("{kind} {} {}", caller.id, caller.applications.join(",")).trim_end().to_owned()
    })
}

fn bytes(value: &Value) -> Bytes {
    serde_json::to_vec(value).unwrap().into()
}

fn said(json: &[u8]) -> Value {
    serde_json::from_slice(json).unwrap()
}

impl World {
    fn note(&mut self, call: &'static str, caller: Option<&Caller>, what: Value) -> Result<(), Status> {
        self.administered.asked.push((call, by(caller), what));
        if self.lose_answers > 0 {
            self.lose_answers -= 1;
            return Err(Status::unavailable("the process was killed"));
        }
        refuse(self.refuse.as_ref())
    }

    fn change(&mut self, name: &str, member: &str, value: Value) -> Reply<ApplicationReply> {
        let record = self.administered.applications.get_mut(name).ok_or_else(unknown)?;
        record[member] = value;
        Ok(Response::new(ApplicationReply { application: bytes(record) }))
    }
}

#[tonic::async_trait]
impl Administration for FakeRegistry {
    type DeleteApplicationStream = Boxed<DeleteApplicationPiece>;
    type ListDeploysStream = Boxed<Chunk>;
    type ListDeploymentsStream = Boxed<Chunk>;
    type ListOperatorsStream = Boxed<Chunk>;

    async fn get_application(&self, request: Request<GetApplicationRequest>) -> Reply<ApplicationReply> {
        let mut world = self.world();
        let name = request.into_inner().application;
        world.note("get", None, json!(name))?;
        let record = world.administered.applications.get(&name).ok_or_else(unknown)?;
        Ok(Response::new(ApplicationReply { application: bytes(record) }))
    }

    async fn set_blocked(&self, request: Request<SetBlockedRequest>) -> Reply<ApplicationReply> {
        let SetBlockedRequest { caller, application, blocked } = request.into_inner();
        let mut world = self.world();
        world.note("block", caller.as_ref(), json!([application, blocked]))?;
        world.change(&application, "blocked", json!(blocked))
    }

    async fn set_labels(&self, request: Request<SetLabelsRequest>) -> Reply<ApplicationReply> {
        let SetLabelsRequest { caller, application, labels } = request.into_inner();
        let (answer, mute) = {
            let mut world = self.world();
            world.note("labels", caller.as_ref(), json!([application, labels]))?;
            (world.change(&application, "labels", json!(labels)), world.mute_labels)
        };
        if mute {
            std::future::pending::<()>().await;
        }
        answer
    }

    async fn set_retired(&self, request: Request<SetRetiredRequest>) -> Reply<ApplicationReply> {
        let SetRetiredRequest { caller, application, retired } = request.into_inner();
        let mut world = self.world();
        world.note("retire", caller.as_ref(), json!([application, retired]))?;
        world.change(&application, "retired", json!(retired))
    }

    async fn set_selector(&self, request: Request<SetSelectorRequest>) -> Reply<ApplicationReply> {
        let SetSelectorRequest { caller, application, selector } = request.into_inner();
        let selector = json!(selector.map(|selector| selector.labels));
        let mut world = self.world();
        world.note("selector", caller.as_ref(), json!([application, selector]))?;
        world.change(&application, "nodeSelector", selector)
    }

    async fn set_replicas(&self, request: Request<SetReplicasRequest>) -> Reply<ApplicationReply> {
        let SetReplicasRequest { caller, application, replicas } = request.into_inner();
        let replicas = said(&replicas);
        let mut world = self.world();
        world.note("replicas", caller.as_ref(), json!([application, replicas]))?;
        world.change(&application, "replicas", replicas)
    }

    async fn claim_domain(&self, request: Request<ClaimDomainRequest>) -> Reply<DomainReply> {
        let ClaimDomainRequest { caller, application, host, wildcard } = request.into_inner();
        let mut world = self.world();
        world.note("claim", caller.as_ref(), json!([application, host, wildcard]))?;
        let record = world.administered.applications.get(&application).ok_or_else(unknown)?;
        let platform_hosts = vec![format!("{application}.apps.example")];
        Ok(Response::new(DomainReply { application: bytes(record), host, platform_hosts }))
    }

    async fn release_domain(&self, request: Request<ReleaseDomainRequest>) -> Reply<DomainReply> {
        self.world().administered.operations.push(Operation::of(&request));
        let ReleaseDomainRequest { caller, application, host } = request.into_inner();
        let mut world = self.world();
        world.note("release", caller.as_ref(), json!([application, host]))?;
        let record = world.administered.applications.get(&application).ok_or_else(unknown)?;
        Ok(Response::new(DomainReply { application: bytes(record), host, platform_hosts: Vec::new() }))
    }

    async fn delete_application(
        &self,
        request: Request<DeleteApplicationRequest>,
    ) -> Reply<Self::DeleteApplicationStream> {
        self.world().administered.operations.push(Operation::of(&request));
        let DeleteApplicationRequest { caller, application, force, forwarded } = request.into_inner();
        let mut world = self.world();
        let what = json!({ "application": application, "force": force, "forwarded": forwarded });
        world.note("delete", caller.as_ref(), what)?;
        world.administered.applications.remove(&application).ok_or_else(unknown)?;
        let whole = || (200, "application/json".to_owned(), vec![Bytes::from_static(br#"{"deleted":["a"]}"#)]);
        let (status, content_type, pieces) = world.administered.deleted.clone().unwrap_or_else(whole);
        let pieces = pieces.into_iter().enumerate().map(move |(index, data)| {
            let head = if index == 0 { (status, content_type.clone()) } else { Default::default() };
            Ok(DeleteApplicationPiece { status: head.0, content_type: head.1, data })
        });
        Ok(Response::new(Box::pin(tokio_stream::iter(pieces))))
    }

    async fn list_deploys(&self, _: Request<ListDeploysRequest>) -> Reply<Self::ListDeploysStream> {
        Err(Status::unimplemented("no route asks for it"))
    }

    async fn list_deployments(&self, _: Request<ListDeploymentsRequest>) -> Reply<Self::ListDeploymentsStream> {
        Err(Status::unimplemented("no route asks for it"))
    }

    async fn list_operators(&self, request: Request<ListOperatorsRequest>) -> Reply<Self::ListOperatorsStream> {
        let mut world = self.world();
        world.note("operators", request.into_inner().caller.as_ref(), Value::Null)?;
        Ok(Response::new(stream(&world.administered.operators)))
    }

    async fn register_operator(&self, request: Request<RegisterOperatorRequest>) -> Reply<OperatorReply> {
        let request = request.into_inner();
        let what = json!({
            "id": request.id, "publicKey": said(&request.public_key), "role": request.role,
            "supersedes": request.supersedes, "applications": request.applications.map(|reach| reach.entries),
        });
        self.world().note("register", request.caller.as_ref(), what.clone())?;
        Ok(Response::new(OperatorReply { operator: bytes(&what) }))
    }

    async fn revoke_operator(&self, request: Request<RevokeOperatorRequest>) -> Reply<RevokeOperatorReply> {
        self.world().administered.operations.push(Operation::of(&request));
        let RevokeOperatorRequest { caller, id } = request.into_inner();
        self.world().note("revoke", caller.as_ref(), json!(id))?;
        Ok(Response::new(RevokeOperatorReply {}))
    }

    async fn freeze(&self, request: Request<FreezeRequest>) -> Reply<FreezeReply> {
        let FreezeRequest { caller, reason } = request.into_inner();
        let mut world = self.world();
        world.note("freeze", caller.as_ref(), json!(reason))?;
        let created = world.administered.freeze.is_none();
        let frozen = json!({ "v": 1, "frozenAt": "2026-04-01T12:30:00.000Z", "by": "root", "reason": reason });
        let freeze = bytes(world.administered.freeze.get_or_insert(frozen));
        Ok(Response::new(FreezeReply { freeze, created }))
    }

    async fn unfreeze(&self, request: Request<UnfreezeRequest>) -> Reply<UnfreezeReply> {
        let mut world = self.world();
        world.note("unfreeze", request.into_inner().caller.as_ref(), Value::Null)?;
        Ok(Response::new(UnfreezeReply { lifted: world.administered.freeze.take().is_some() }))
    }

    async fn get_freeze(&self, _: Request<GetFreezeRequest>) -> Reply<FreezeReply> {
        let mut world = self.world();
        world.note("frozen", None, Value::Null)?;
        let none = Problem::new(ProblemCode::NotFound, "this fleet takes deploys").titled("Deploys are not frozen");
        let freeze = world.administered.freeze.as_ref().ok_or_else(|| to_status(&none))?;
        Ok(Response::new(FreezeReply { freeze: bytes(freeze), created: false }))
    }

    async fn get_trust(&self, request: Request<GetTrustRequest>) -> Reply<TrustReply> {
        let mut world = self.world();
        let name = request.into_inner().application;
        world.note("trust", None, json!(name))?;
        let policy = world.administered.trust.get(&name).ok_or_else(unknown)?;
        Ok(Response::new(TrustReply { policy: bytes(policy) }))
    }

    async fn set_trust(&self, _: Request<SetTrustRequest>) -> Reply<TrustReply> {
        Err(Status::unimplemented("no route asks for it"))
    }

    async fn remove_trust(&self, _: Request<RemoveTrustRequest>) -> Reply<RemoveTrustReply> {
        Err(Status::unimplemented("no route asks for it"))
    }
}

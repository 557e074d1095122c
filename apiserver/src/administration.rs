//! Calls to the registry daemon about applications, operator keys and the fleet.
//!
//! Each call is made again while the daemon is away, under the same operation, by which the daemon recognises a call that it
//! was killed in.

use std::collections::BTreeMap;
use std::path::Path;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use scafo_core::domain::Host;
use scafo_core::id::{ApplicationName, OperatorId};
use scafo_core::problem::{Problem, ProblemCode};
use scafo_core::record::{Replicas, Role};
use scafo_core::scope::ApplicationScope;
use scafo_core::token::PublicKey;
use scafo_proto::chunk;
use scafo_proto::registry::administration_client::AdministrationClient;
use scafo_proto::registry::caller::Kind;
use scafo_proto::registry::{
    self as proto, ClaimDomainRequest, DeleteApplicationPiece, DeleteApplicationRequest, DomainReply, FreezeReply,
    FreezeRequest, GetApplicationRequest, GetFreezeRequest, ListOperatorsRequest, Reach, RegisterOperatorRequest,
    ReleaseDomainRequest, RevokeOperatorRequest, Selector, SetBlockedRequest, SetLabelsRequest, SetReplicasRequest,
    SetRetiredRequest, SetSelectorRequest, UnfreezeRequest,
};
use scafo_proto::status::to_problem;
use scafo_proto::transport::{self, Operation};
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::auth::Caller;
use crate::registry::call;

/// A handle to the registry daemon.
pub(crate) struct Administration {
    client: AdministrationClient<Channel>,
}

/// A key to register, checked as far as it can be without the registry.
pub(crate) struct Grant {
    pub(crate) id: OperatorId,
    pub(crate) public_key: PublicKey,
    pub(crate) role: Option<Role>,
    pub(crate) supersedes: Option<OperatorId>,
    pub(crate) applications: Option<ApplicationScope>,
}

/// Which application to delete, and how.
pub(crate) struct Deletion<'a> {
    pub(crate) application: &'a ApplicationName,
    pub(crate) force: bool,
    pub(crate) forwarded: bool,
    /// Of which operation it is, when the node that forwarded it says so.
    pub(crate) operation: Option<Operation>,
}

/// An HTTP answer that is passed on as it is.
pub(crate) struct Verbatim {
    pub(crate) status: u32,
    pub(crate) content_type: String,
    pub(crate) body: Body,
}

type Answer<T> = Result<T, Problem>;

/// Makes one call about an application and takes the record out of its reply.
macro_rules! record {
    ($self:ident, $method:ident, $request:expr) => {
        call!($self, transport::STORE, $method, $request)
            .map(|reply| reply.application)
            .map_err(|status| to_problem(&status))
    };
}

impl Administration {
    pub(crate) fn new(socket: &Path) -> Self {
        Self { client: AdministrationClient::new(transport::channel(socket)) }
    }

    /// A JSON `ApplicationRecord`, as from every call here that is about one application.
    pub(crate) async fn application(&self, name: &ApplicationName) -> Answer<Bytes> {
        record!(self, get_application, GetApplicationRequest { application: name.to_string() })
    }

    pub(crate) async fn set_blocked(&self, by: &Caller, name: &ApplicationName, blocked: bool) -> Answer<Bytes> {
        let request = SetBlockedRequest { caller: caller(by), application: name.to_string(), blocked };
        record!(self, set_blocked, request)
    }

    pub(crate) async fn set_labels(
        &self,
        by: &Caller,
        name: &ApplicationName,
        labels: BTreeMap<String, String>,
    ) -> Answer<Bytes> {
        let labels = labels.into_iter().collect();
        record!(self, set_labels, SetLabelsRequest { caller: caller(by), application: name.to_string(), labels })
    }

    pub(crate) async fn set_retired(&self, by: &Caller, name: &ApplicationName, retired: bool) -> Answer<Bytes> {
        let request = SetRetiredRequest { caller: caller(by), application: name.to_string(), retired };
        record!(self, set_retired, request)
    }

    /// `None` lets any node serve the application.
    pub(crate) async fn set_selector(
        &self,
        by: &Caller,
        name: &ApplicationName,
        selector: Option<BTreeMap<String, String>>,
    ) -> Answer<Bytes> {
        let selector = selector.map(|labels| Selector { labels: labels.into_iter().collect() });
        record!(self, set_selector, SetSelectorRequest { caller: caller(by), application: name.to_string(), selector })
    }

    pub(crate) async fn set_replicas(&self, by: &Caller, name: &ApplicationName, replicas: Replicas) -> Answer<Bytes> {
        let replicas = serde_json::to_vec(&replicas).map_err(defect)?.into();
        record!(self, set_replicas, SetReplicasRequest { caller: caller(by), application: name.to_string(), replicas })
    }

    pub(crate) async fn claim_domain(
        &self,
        by: &Caller,
        name: &ApplicationName,
        host: &Host,
        wildcard: bool,
    ) -> Answer<DomainReply> {
        let request =
            ClaimDomainRequest { caller: caller(by), application: name.to_string(), host: host.to_string(), wildcard };
        call!(self, transport::STORE, claim_domain, request).map_err(|status| to_problem(&status))
    }

    pub(crate) async fn release_domain(&self, by: &Caller, name: &ApplicationName, host: &Host) -> Answer<DomainReply> {
        let request =
            ReleaseDomainRequest { caller: caller(by), application: name.to_string(), host: host.to_string() };
        call!(self, transport::STORE, release_domain, request).map_err(|status| to_problem(&status))
    }

    /// Deletes an application, here or through the coordinator.
    pub(crate) async fn delete(&self, by: &Caller, deletion: &Deletion<'_>) -> Answer<Verbatim> {
        let request = DeleteApplicationRequest {
            caller: caller(by),
            application: deletion.application.to_string(),
            force: deletion.force,
            forwarded: deletion.forwarded,
        };
        let operation = deletion.operation.unwrap_or_else(Operation::fresh);
        let answered = transport::again_as(operation, transport::DELETE, |attempt| {
            let (mut client, request) = (self.client.clone(), transport::within(attempt, request.clone()));
            async move {
                let mut pieces = client.delete_application(request).await?.into_inner();
                // With a first piece there is an answer, and from then on nothing is tried again.
                Ok(pieces.message().await?.map(|first| (first, pieces)))
            }
        });
        let answered = answered.await.map_err(|status| to_problem(&status))?;
        let (first, rest) = answered.ok_or_else(|| defect("an answer without a first piece"))?;
        Ok(Verbatim { status: first.status, content_type: first.content_type.clone(), body: body(first, rest) })
    }

    /// The JSON answer of `GET /v1/operators` for this caller.
    pub(crate) async fn operators(&self, by: &Caller) -> Answer<Bytes> {
        let request = ListOperatorsRequest { caller: caller(by) };
        let listed = transport::read_again(transport::STORE, |left| {
            let (mut client, request) = (self.client.clone(), request.clone());
            async move {
                let stream = client.list_operators(transport::within(left, request)).await?.into_inner();
                Ok(chunk::collect(stream).await)
            }
        });
        listed.await.map_err(|status| to_problem(&status))?
    }

    /// A JSON `OperatorRecord`.
    pub(crate) async fn register_operator(&self, by: &Caller, grant: Grant) -> Answer<Bytes> {
        let role = grant.role.map_or("", |role| match role {
            Role::Admin => "admin",
            Role::Operator => "operator",
        });
        let request = RegisterOperatorRequest {
            caller: caller(by),
            id: grant.id.to_string(),
            public_key: serde_json::to_vec(&grant.public_key).map_err(defect)?.into(),
            role: role.to_owned(),
            supersedes: grant.supersedes.map(String::from).unwrap_or_default(),
            applications: grant.applications.map(|scope| Reach { entries: scope.into() }),
        };
        let reply = call!(self, transport::STORE, register_operator, request);
        reply.map(|reply| reply.operator).map_err(|status| to_problem(&status))
    }

    pub(crate) async fn revoke_operator(&self, by: &Caller, id: &OperatorId) -> Answer<()> {
        let request = RevokeOperatorRequest { caller: caller(by), id: id.to_string() };
        call!(self, transport::STORE, revoke_operator, request).map(drop).map_err(|status| to_problem(&status))
    }

    pub(crate) async fn freeze(&self, by: &Caller, reason: Option<String>) -> Answer<FreezeReply> {
        let request = FreezeRequest { caller: caller(by), reason };
        call!(self, transport::STORE, freeze, request).map_err(|status| to_problem(&status))
    }

    /// Whether there was a freeze to lift.
    pub(crate) async fn unfreeze(&self, by: &Caller) -> Answer<bool> {
        let reply = call!(self, transport::STORE, unfreeze, UnfreezeRequest { caller: caller(by) });
        reply.map(|reply| reply.lifted).map_err(|status| to_problem(&status))
    }

    /// A JSON `FreezeRecord`.
    pub(crate) async fn frozen(&self) -> Answer<Bytes> {
        let reply = call!(self, transport::STORE, get_freeze, GetFreezeRequest {});
        reply.map(|reply| reply.freeze).map_err(|status| to_problem(&status))
    }
}

/// On whose behalf. The scope goes along, since it decides what a refusal may name.
#[expect(clippy::unnecessary_wraps, reason = "every request has it as an optional message")]
fn caller(caller: &Caller) -> Option<proto::Caller> {
    let (kind, applications) = match caller {
        Caller::Operator(record) => (Kind::Operator, record.applications.clone().into()),
        Caller::Node(_) => (Kind::Node, Vec::new()),
        // No route here answers one; nor does the registry.
        Caller::Workload(_) => (Kind::Unspecified, Vec::new()),
    };
    Some(proto::Caller { kind: kind.into(), id: caller.id().to_owned(), applications })
}

fn body(first: DeleteApplicationPiece, rest: Streaming<DeleteApplicationPiece>) -> Body {
    let first = stream::once(std::future::ready(Ok::<_, Status>(first.data)));
    let rest =
        stream::try_unfold(rest, |mut rest| async move { Ok(rest.message().await?.map(|piece| (piece.data, rest))) });
    Body::from_stream(futures_util::StreamExt::chain(first, rest))
}

fn defect(cause: impl std::fmt::Display) -> Problem {
    Problem::new(ProblemCode::Internal, "").because(cause)
}

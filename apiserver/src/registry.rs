//! Calls to the registry daemon.
//!
//! Every call here only reads or is idempotent by what it carries, so it is made again while the daemon is away, up to its
//! deadline. What then still fails is `draining`: worth another try, and never the caller's fault.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use scafo_core::deploy::Metadata;
use scafo_core::id::{ApplicationName, DeployId, NodeId};
use scafo_core::problem::{Problem, ProblemCode};
use scafo_core::record::OperatorRecord;
use scafo_core::token::PublicKey;
use scafo_core::view::DeployStatus;
use scafo_proto::registry::registry_client::RegistryClient;
use scafo_proto::registry::resolve_key_response::Kind;
use scafo_proto::registry::{
    AcceptDeployRequest, DeployReply, FailDeployRequest, GetDeployRequest, GetStateRequest, ListApplicationsRequest,
    PrepareDeployRequest, PublishDeployRequest, ResolveKeyRequest, ResolveKeyResponse,
};
use scafo_proto::status::{is_transport, to_problem};
use scafo_proto::{chunk, transport};
use serde::de::DeserializeOwned;
use tonic::Status;
use tonic::transport::Channel;

use crate::auth::{Caller, Freshness, Key};
use crate::deploy::Meta;

/// How long looking up a key may take: one read of the bucket, and a restart of the registry daemon in the way.
const KEY: Duration = Duration::from_secs(10);

/// A handle to the registry daemon.
#[derive(Clone)]
pub(crate) struct Registry {
    client: RegistryClient<Channel>,
    channel: Channel,
}

/// How a call failed, for those who go on trying.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It may or may not have been done; the same call later tells.
    Unknown(Problem),
    /// It was refused.
    Refused(Problem),
}

impl Failure {
    pub(crate) fn into_problem(self) -> Problem {
        match self {
            Self::Unknown(problem) | Self::Refused(problem) => problem,
        }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        let problem = to_problem(&status);
        let passing = matches!(problem.code, ProblemCode::StoreUnavailable | ProblemCode::Draining);
        if passing || is_transport(&status) { Self::Unknown(problem) } else { Self::Refused(problem) }
    }
}

/// Makes one call of the client again while the daemon is away.
macro_rules! call {
    ($self:ident, $deadline:expr, $method:ident, $request:expr) => {{
        let request = $request;
        ::scafo_proto::transport::read_again($deadline, |left| {
            let (mut client, request) = ($self.client.clone(), request.clone());
            async move {
                client.$method(::scafo_proto::transport::within(left, request)).await.map(::tonic::Response::into_inner)
            }
        })
        .await
    }};
}
pub(crate) use call;

impl Registry {
    pub(crate) fn new(socket: &Path) -> Self {
        let channel = transport::channel(socket);
        Self { client: RegistryClient::new(channel.clone()), channel }
    }

    /// The connection, for the daemon's other services.
    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// The key behind `kid`; `None` when there is none. A key that is found was read for this call. That there is none may be
    /// remembered for a moment, unless it has to be known now.
    pub(crate) async fn key(&self, kid: &str, freshness: Freshness) -> Result<Option<Key>, Problem> {
        let request = ResolveKeyRequest { kid: kid.to_owned(), fresh: freshness == Freshness::Now };
        match call!(self, KEY, resolve_key, request) {
            Ok(answer) => key(kid, &answer).map(Some),
            Err(status) => match to_problem(&status) {
                problem if problem.code == ProblemCode::NotFound => Ok(None),
                problem => Err(problem),
            },
        }
    }

    /// The checks that come before a deploy's body. Answers when the application was made.
    pub(crate) async fn prepare(&self, application: &ApplicationName, metadata: &Metadata) -> Result<String, Problem> {
        let metadata = serde_json::to_vec(metadata).map_err(|error| unreadable("metadata").because(error))?.into();
        let request = PrepareDeployRequest { application: application.to_string(), metadata };
        let prepared = call!(self, transport::STORE, prepare_deploy, request);
        prepared.map(|answer| answer.application_since).map_err(|status| to_problem(&status))
    }

    /// Writes the record of a staged deploy.
    pub(crate) async fn accept(&self, meta: &Meta) -> Result<DeployStatus, Failure> {
        let request = AcceptDeployRequest {
            id: meta.id.to_string(),
            by: meta.by.clone(),
            source: meta.source.as_ref().and_then(|source| serde_json::to_vec(source).ok()).unwrap_or_default().into(),
            oidc: meta.oidc.as_ref().and_then(|oidc| serde_json::to_vec(oidc).ok()).unwrap_or_default().into(),
            sha256: meta.artifact.sha256.clone(),
            bytes: meta.artifact.bytes,
            application_since: meta.application_since.clone(),
        };
        deploy(call!(self, transport::STORE, accept_deploy, request))
    }

    /// Offers the unpacked project of a deploy.
    pub(crate) async fn publish(&self, meta: &Meta, config: &Path) -> Result<DeployStatus, Failure> {
        let request = PublishDeployRequest {
            id: meta.id.to_string(),
            sha256: meta.artifact.sha256.clone(),
            config_path: config.to_string_lossy().into_owned(),
        };
        deploy(call!(self, transport::STORE, publish_deploy, request))
    }

    /// Ends a deploy that cannot be published.
    pub(crate) async fn fail(&self, id: &DeployId, problem: &Problem) -> Result<DeployStatus, Failure> {
        let request = FailDeployRequest {
            id: id.to_string(),
            code: problem.code.as_str().to_owned(),
            detail: problem.detail.clone(),
        };
        deploy(call!(self, transport::STORE, fail_deploy, request))
    }

    /// A deploy as it is.
    pub(crate) async fn deploy(&self, id: &DeployId) -> Result<DeployStatus, Failure> {
        deploy(call!(self, transport::STORE, get_deploy, GetDeployRequest { id: id.to_string() }))
    }

    /// A JSON array of every application's record, in name order.
    pub(crate) async fn applications(&self) -> Result<Bytes, Problem> {
        document(
            transport::read_again(transport::STORE, |left| {
                let mut client = self.client.clone();
                async move {
                    let request = transport::within(left, ListApplicationsRequest {});
                    let stream = client.list_applications(request).await?.into_inner();
                    Ok(chunk::collect(stream).await)
                }
            })
            .await,
        )
    }

    /// A JSON `DaemonState`.
    pub(crate) async fn state(&self) -> Result<Bytes, Problem> {
        document(
            transport::read_again(transport::STORE, |left| {
                let mut client = self.client.clone();
                async move {
                    let stream = client.get_state(transport::within(left, GetStateRequest {})).await?.into_inner();
                    Ok(chunk::collect(stream).await)
                }
            })
            .await,
        )
    }
}

fn document(outcome: Result<Result<Bytes, Problem>, Status>) -> Result<Bytes, Problem> {
    outcome.map_err(|status| to_problem(&status))?
}

fn deploy(outcome: Result<DeployReply, Status>) -> Result<DeployStatus, Failure> {
    let reply = outcome?;
    parse("a deploy", &reply.status).map_err(Failure::Refused)
}

fn key(kid: &str, answer: &ResolveKeyResponse) -> Result<Key, Problem> {
    let public_key: PublicKey = parse("a key", &answer.public_key)?;
    let caller = match answer.kind() {
        Kind::Node => Caller::Node(kid.parse::<NodeId>().map_err(|error| unreadable("a node id").because(error))?),
        Kind::Operator => {
            let operator: OperatorRecord = parse("an operator", &answer.operator)?;
            if operator.id.as_str() != kid || operator.public_key != public_key {
                return Err(unreadable("an operator").because("it has another id or key than was asked for"));
            }
            Caller::Operator(Box::new(operator))
        }
        Kind::Unspecified => return Err(unreadable("a key").because("neither a node's nor an operator's")),
    };
    Ok(Key { public_key, caller })
}

/// Reads what the registry daemon sent.
pub(crate) fn parse<T: DeserializeOwned>(what: &str, json: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(json).map_err(|error| unreadable(what).because(error))
}

fn unreadable(what: &str) -> Problem {
    Problem::new(ProblemCode::Internal, format!("{what} between two parts of this node cannot be read"))
}

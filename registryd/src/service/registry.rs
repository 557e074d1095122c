//! `scafo.registry.v1.Registry`.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use scafo_core::deploy::Metadata;
use scafo_core::record::{ApplicationRecord, DeployRecord};
use scafo_core::view::DeployStatus;
use scafo_core::{ApplicationName, DeployId, Problem, ProblemCode};
use scafo_proto::registry::registry_server::{Registry, RegistryServer};
use scafo_proto::registry::resolve_key_response::Kind;
use scafo_proto::registry::{
    AcceptDeployRequest, DeployReply, FailDeployRequest, GetDeployRequest, GetStateRequest, ListApplicationsRequest,
    PrepareDeployRequest, PrepareDeployResponse, PublishDeployRequest, ResolveKeyRequest, ResolveKeyResponse,
    SnapshotChunk, WatchSnapshotRequest,
};
use scafo_proto::status::to_status;
use scafo_telemetry::trace::Thread;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::keys::{KeyHolder, Unknown, resolve};
use super::{Chunks, answer, chunks, json, log, parsed, ready, state};
use crate::daemon::{Core, Phase};
use crate::deploy::driver::publish;
use crate::deploy::intake::{self, Accept, Prepared};
use crate::deploy::publication::Project;
use crate::node::wake::{Look, seen};

/// The service.
pub(crate) struct RegistryService {
    phase: watch::Receiver<Phase>,
    stop: CancellationToken,
    unknown: Unknown,
}

impl RegistryService {
    /// `stop` ends the streams that would otherwise hold up the end of the server.
    pub(crate) fn new(phase: watch::Receiver<Phase>, stop: CancellationToken) -> Self {
        Self { phase, stop, unknown: Unknown::default() }
    }

    pub(crate) fn into_server(self) -> RegistryServer<Self> {
        RegistryServer::new(self)
    }

    /// The parts of the daemon for a call that only the API makes: it is up.
    async fn called(&self) -> Result<Arc<Core>, Problem> {
        let core = ready(&self.phase).await?;
        core.deploys.neighbour_is_up();
        Ok(core)
    }
}

#[tonic::async_trait]
impl Registry for RegistryService {
    async fn resolve_key(&self, request: Request<ResolveKeyRequest>) -> Result<Response<ResolveKeyResponse>, Status> {
        let ResolveKeyRequest { kid, fresh } = request.into_inner();
        answer("ResolveKey", async {
            let core = self.called().await?;
            Ok(match resolve(&core, &self.unknown, &kid, fresh).await? {
                KeyHolder::Operator(operator) => ResolveKeyResponse {
                    kind: Kind::Operator.into(),
                    public_key: json(&operator.public_key),
                    operator: json(&operator),
                },
                KeyHolder::Node(node) => ResolveKeyResponse {
                    kind: Kind::Node.into(),
                    public_key: json(&node.public_key),
                    operator: Bytes::new(),
                },
            })
        })
        .await
    }

    async fn prepare_deploy(
        &self,
        request: Request<PrepareDeployRequest>,
    ) -> Result<Response<PrepareDeployResponse>, Status> {
        let PrepareDeployRequest { application, metadata } = request.into_inner();
        answer("PrepareDeploy", async {
            let core = self.called().await?;
            let name: ApplicationName = application.parse()?;
            let metadata: Metadata = parsed("deploy metadata", &metadata)?;
            let Prepared { created, application_since } = intake::prepare(&core, &name, &metadata).await?;
            Ok(PrepareDeployResponse { created, application_since: application_since.to_string() })
        })
        .await
    }

    async fn accept_deploy(&self, request: Request<AcceptDeployRequest>) -> Result<Response<DeployReply>, Status> {
        let AcceptDeployRequest { id, by, source, oidc, sha256, bytes, application_since } = request.into_inner();
        answer("AcceptDeploy", async {
            let core = self.called().await?;
            let id = id.parse()?;
            let source = given(&source).map(|source| parsed("a source", source)).transpose()?;
            let oidc = given(&oidc).map(|claims| parsed("OIDC claims", claims)).transpose()?;
            let application_since = match application_since.as_str() {
                "" => None,
                since => Some(since.parse().map_err(|_| Problem::new(ProblemCode::InvalidInput, "no such moment"))?),
            };
            let accept = Accept { id, by, source, oidc, sha256, bytes, application_since };
            intake::accept(&core, accept).await.map(|record| reply(&record))
        })
        .await
    }

    async fn publish_deploy(&self, request: Request<PublishDeployRequest>) -> Result<Response<DeployReply>, Status> {
        let PublishDeployRequest { id, sha256, config_path } = request.into_inner();
        answer("PublishDeploy", async {
            let core = self.called().await?;
            let id: DeployId = id.parse()?;
            publish(&core, Project { id, config_path, trace: Thread::current() }, &sha256)
                .await
                .map(|record| reply(&record))
        })
        .await
    }

    async fn fail_deploy(&self, request: Request<FailDeployRequest>) -> Result<Response<DeployReply>, Status> {
        let FailDeployRequest { id, code, detail } = request.into_inner();
        answer("FailDeploy", async {
            let core = self.called().await?;
            let id: DeployId = id.parse()?;
            let code = ProblemCode::parse(&code).unwrap_or(ProblemCode::Internal);
            intake::fail(&core, &id, Problem::new(code, detail)).await.map(|record| reply(&record))
        })
        .await
    }

    async fn get_deploy(&self, request: Request<GetDeployRequest>) -> Result<Response<DeployReply>, Status> {
        let GetDeployRequest { id } = request.into_inner();
        answer("GetDeploy", async {
            let core = self.called().await?;
            let id: DeployId = id.parse()?;
            intake::look_up(&core, &id).await.map(|record| reply(&record))
        })
        .await
    }

    type ListApplicationsStream = Chunks;

    async fn list_applications(
        &self,
        _request: Request<ListApplicationsRequest>,
    ) -> Result<Response<Self::ListApplicationsStream>, Status> {
        answer("ListApplications", async {
            let core = self.called().await?;
            // What the caller wrote a moment ago is in the answer.
            let ticket = core.wake.look(Look::Applications);
            let world = seen(&mut core.worlds.subscribe(), ticket).await?;
            let applications: Vec<&ApplicationRecord> =
                world.shown.applications.values().map(|application| &**application).collect();
            Ok(chunks(json(&applications)))
        })
        .await
    }

    type GetStateStream = Chunks;

    async fn get_state(&self, _request: Request<GetStateRequest>) -> Result<Response<Self::GetStateStream>, Status> {
        answer("GetState", async {
            let core = self.called().await?;
            Ok(chunks(json(&state::state(&core))))
        })
        .await
    }

    type WatchSnapshotStream = Pin<Box<dyn Stream<Item = Result<SnapshotChunk, Status>> + Send>>;

    async fn watch_snapshot(
        &self,
        _request: Request<WatchSnapshotRequest>,
    ) -> Result<Response<Self::WatchSnapshotStream>, Status> {
        let core = ready(&self.phase).await.map_err(|problem| {
            log("WatchSnapshot", &problem);
            to_status(&problem)
        })?;
        // A watcher that is slow skips snapshots and never gets an older one after a newer one.
        let snapshots = WatchStream::new(core.snapshots.subscribe()).filter_map(std::future::ready);
        let pieces = snapshots.flat_map(|document| {
            stream::iter(scafo_proto::chunk::split(document)).map(|(data, last)| Ok(SnapshotChunk { data, last }))
        });
        let stop = self.stop.clone();
        Ok(Response::new(Box::pin(pieces.take_until(stop.cancelled_owned()))))
    }
}

fn given(bytes: &[u8]) -> Option<&[u8]> {
    Some(bytes).filter(|bytes| !bytes.is_empty())
}

fn reply(record: &DeployRecord) -> DeployReply {
    DeployReply { status: json(&DeployStatus::from(record)) }
}

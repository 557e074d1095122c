//! The two daemons behind the API, as the tests need them: everything they say is set by the test.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use scafo_core::problem::{Problem, ProblemCode};
use scafo_proto::registry::administration_server::AdministrationServer;
use scafo_proto::registry::registry_server::{Registry, RegistryServer};
use scafo_proto::registry::resolve_key_response::Kind;
use scafo_proto::registry::*;
use scafo_proto::router::router_server::{Router, RouterServer};
use scafo_proto::router::{GetRoutingRequest, RoutingChunk};
use scafo_proto::status::to_status;
use scafo_proto::storage::storage_server::StorageServer;
use scafo_proto::transport;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio_stream::Stream;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status};

pub(crate) type Boxed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
pub(crate) type Reply<T> = Result<Response<T>, Status>;

/// What the registry knows and was asked.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) keys: HashMap<String, ResolveKeyResponse>,
    /// Every key that was asked for, and whether it had to be read now.
    pub(crate) lookups: Vec<(String, bool)>,
    /// Refuses every lookup, prepare or accept with this.
    pub(crate) refuse_keys: Option<Problem>,
    pub(crate) refuse_prepare: Option<Problem>,
    pub(crate) refuse_accept: Option<Problem>,
    /// Accepts deploys and ends none, and answers both with this.
    pub(crate) unsure: Option<Problem>,
    pub(crate) prepared: Vec<(String, Value)>,
    pub(crate) accepted: Vec<AcceptDeployRequest>,
    pub(crate) published: Vec<PublishDeployRequest>,
    pub(crate) failed: Vec<FailDeployRequest>,
    /// Status documents by deploy.
    pub(crate) deploys: BTreeMap<String, Value>,
    /// Deploys stay where they are when they are published; otherwise they are deployed at once.
    pub(crate) slow: bool,
    pub(crate) applications: Value,
    pub(crate) state: Value,
    /// What the registry administers, and what it stores.
    pub(crate) administered: crate::fake_administration::Administered,
    pub(crate) stored: crate::fake_storage::Stored,
    /// Refuses every call of those two services with this.
    pub(crate) refuse: Option<Problem>,
    /// How many more calls of administration are carried out while their answer is lost.
    pub(crate) lose_answers: u32,
    /// Labels are set and never answered for.
    pub(crate) mute_labels: bool,
}

#[derive(Clone, Default)]
pub(crate) struct FakeRegistry(pub(crate) Arc<Mutex<World>>);

impl FakeRegistry {
    pub(crate) fn world(&self) -> std::sync::MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    pub(crate) fn serve(&self, socket: &Path) -> AbortOnDropHandle<()> {
        let router = transport::server()
            .add_service(RegistryServer::new(self.clone()))
            .add_service(AdministrationServer::new(self.clone()))
            .add_service(StorageServer::new(self.clone()));
        serve(socket, router)
    }
}

fn serve(socket: &Path, router: tonic::transport::server::Router) -> AbortOnDropHandle<()> {
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).unwrap();
    crate::harness::spawn(async move {
        let peers = transport::Peers::same_user();
        transport::serve(listener, peers, router, std::future::pending()).await.unwrap();
    })
}

pub(crate) fn refuse(problem: Option<&Problem>) -> Result<(), Status> {
    problem.map_or(Ok(()), |problem| Err(to_status(problem)))
}

fn reply(status: &Value) -> Reply<DeployReply> {
    Ok(Response::new(DeployReply { status: serde_json::to_vec(status).unwrap().into() }))
}

pub(crate) fn unknown() -> Status {
    to_status(&Problem::new(ProblemCode::NotFound, "no such thing"))
}

pub(crate) fn stream(document: &Value) -> Boxed<Chunk> {
    let bytes = serde_json::to_vec(document).unwrap();
    let chunks: Vec<_> = bytes.chunks(50).map(|data| Ok(Chunk { data: Bytes::copy_from_slice(data) })).collect();
    Box::pin(tokio_stream::iter(chunks))
}

#[tonic::async_trait]
impl Registry for FakeRegistry {
    type WatchSnapshotStream = Boxed<SnapshotChunk>;
    type ListApplicationsStream = Boxed<Chunk>;
    type GetStateStream = Boxed<Chunk>;

    async fn resolve_key(&self, request: Request<ResolveKeyRequest>) -> Reply<ResolveKeyResponse> {
        let mut world = self.world();
        refuse(world.refuse_keys.as_ref())?;
        let ResolveKeyRequest { kid, fresh } = request.into_inner();
        world.lookups.push((kid.clone(), fresh));
        world.keys.get(&kid).cloned().map(Response::new).ok_or_else(unknown)
    }

    async fn prepare_deploy(&self, request: Request<PrepareDeployRequest>) -> Reply<PrepareDeployResponse> {
        let mut world = self.world();
        let PrepareDeployRequest { application, metadata } = request.into_inner();
        world.prepared.push((application, serde_json::from_slice(&metadata).unwrap()));
        refuse(world.refuse_prepare.as_ref())?;
        Ok(Response::new(PrepareDeployResponse { created: true, application_since: String::new() }))
    }

    async fn accept_deploy(&self, request: Request<AcceptDeployRequest>) -> Reply<DeployReply> {
        let mut world = self.world();
        refuse(world.refuse_accept.as_ref())?;
        let request = request.into_inner();
        let application = request.id.rsplit_once('.').unwrap().0;
        let status = json!({ "id": request.id, "application": application, "state": "accepted" });
        world.deploys.insert(request.id.clone(), status.clone());
        world.accepted.push(request);
        refuse(world.unsure.as_ref())?;
        reply(&status)
    }

    async fn publish_deploy(&self, request: Request<PublishDeployRequest>) -> Reply<DeployReply> {
        let mut world = self.world();
        let request = request.into_inner();
        let next = if world.slow { "uploading" } else { "deployed" };
        let status = world.deploys.get_mut(&request.id).ok_or_else(unknown)?;
        if !["deployed", "failed"].contains(&status["state"].as_str().unwrap()) {
            status["state"] = next.into();
        }
        let status = status.clone();
        world.published.push(request);
        reply(&status)
    }

    async fn fail_deploy(&self, request: Request<FailDeployRequest>) -> Reply<DeployReply> {
        let mut world = self.world();
        let request = request.into_inner();
        world.failed.push(request.clone());
        refuse(world.unsure.as_ref())?;
        let status = world.deploys.get_mut(&request.id).ok_or_else(unknown)?;
        status["state"] = "failed".into();
        status["code"] = request.code.into();
        status["detail"] = request.detail.into();
        reply(status)
    }

    async fn get_deploy(&self, request: Request<GetDeployRequest>) -> Reply<DeployReply> {
        reply(self.world().deploys.get(&request.into_inner().id).ok_or_else(unknown)?)
    }

    async fn list_applications(&self, _: Request<ListApplicationsRequest>) -> Reply<Self::ListApplicationsStream> {
        Ok(Response::new(stream(&self.world().applications)))
    }

    async fn get_state(&self, _: Request<GetStateRequest>) -> Reply<Self::GetStateStream> {
        Ok(Response::new(stream(&self.world().state)))
    }

    async fn watch_snapshot(&self, _: Request<WatchSnapshotRequest>) -> Reply<Self::WatchSnapshotStream> {
        Err(Status::unimplemented("nobody here follows snapshots"))
    }
}

pub(crate) fn node_key(public_key: &impl serde::Serialize) -> ResolveKeyResponse {
    ResolveKeyResponse {
        kind: Kind::Node.into(),
        public_key: serde_json::to_vec(public_key).unwrap().into(),
        operator: Bytes::new(),
    }
}

pub(crate) fn operator_key(operator: &Value) -> ResolveKeyResponse {
    ResolveKeyResponse {
        kind: Kind::Operator.into(),
        public_key: serde_json::to_vec(&operator["publicKey"]).unwrap().into(),
        operator: serde_json::to_vec(operator).unwrap().into(),
    }
}

/// What the router has: a document, or none yet.
#[derive(Default)]
pub(crate) struct Rendered {
    pub(crate) document: Option<(String, String)>,
    /// Every request, as format, preference and tag.
    pub(crate) asked: Vec<(String, String, String)>,
}

#[derive(Clone, Default)]
pub(crate) struct FakeRouter(pub(crate) Arc<Mutex<Rendered>>);

impl FakeRouter {
    pub(crate) fn set(&self, etag: &str, document: &str) {
        self.0.lock().unwrap().document = Some((etag.to_owned(), document.to_owned()));
    }

    pub(crate) fn serve(&self, socket: &Path) -> AbortOnDropHandle<()> {
        serve(socket, transport::server().add_service(RouterServer::new(self.clone())))
    }
}

#[tonic::async_trait]
impl Router for FakeRouter {
    type GetRoutingStream = Boxed<RoutingChunk>;

    async fn get_routing(&self, request: Request<GetRoutingRequest>) -> Reply<Self::GetRoutingStream> {
        let GetRoutingRequest { format, prefer, if_none_match } = request.into_inner();
        let mut rendered = self.0.lock().unwrap();
        rendered.asked.push((format.clone(), prefer, if_none_match.clone()));
        if !["", "traefik"].contains(&format.as_str()) {
            return Err(to_status(&Problem::new(ProblemCode::NotFound, "this node renders `traefik`")));
        }
        let Some((etag, document)) = rendered.document.clone() else {
            let problem = Problem::new(ProblemCode::Draining, "no pass yet").titled("Not known yet");
            return Err(to_status(&problem));
        };
        let chunks = if if_none_match == etag {
            vec![RoutingChunk { etag, not_modified: true, ..RoutingChunk::default() }]
        } else {
            let length = document.len() as u64;
            let compressed = gzip(document.as_bytes());
            let pieces = compressed.chunks(7).map(Bytes::copy_from_slice).enumerate();
            let chunk = |(index, data)| match index {
                0 => RoutingChunk { etag: etag.clone(), not_modified: false, length, data },
                _ => RoutingChunk { data, ..RoutingChunk::default() },
            };
            pieces.map(chunk).collect()
        };
        Ok(Response::new(Box::pin(tokio_stream::iter(chunks.into_iter().map(Ok)))))
    }
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut compressed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut compressed, text).unwrap();
    compressed.finish().unwrap()
}

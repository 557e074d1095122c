//! The API server and the router daemon as the supervisor starts them, on a registry that only knows a snapshot.

use std::io::Write as _;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};

use bytes::Bytes;
use command_fds::{CommandFdExt as _, FdMapping};
use futures_util::{Stream, StreamExt as _, stream};
use scafo_proto::chunk;
use scafo_proto::registry::registry_server::{Registry, RegistryServer};
use scafo_proto::registry::{
    AcceptDeployRequest, Chunk, DeployReply, FailDeployRequest, GetDeployRequest, GetStateRequest,
    ListApplicationsRequest, PrepareDeployRequest, PrepareDeployResponse, PublishDeployRequest, ResolveKeyRequest,
    ResolveKeyResponse, SnapshotChunk, WatchSnapshotRequest,
};
use scafo_proto::transport;
use scafo_tests::node::built;
use scafo_tests::process;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tonic::{Request, Response, Status};

pub(super) const TOKEN: &str = "an-ingress-token";

/// The two processes.
pub(super) struct Pair {
    pub(super) api: String,
    pub(super) apiserver: Process,
    pub(super) routerd: Process,
    _registry: JoinSet<()>,
}

/// One that ends with the benchmark.
pub(super) struct Process(Child);

impl Process {
    fn start(program: &str, (name, socket): (&str, OwnedFd), settings: &Value) -> Self {
        let mut command = Command::new(built(program));
        command.env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", name).env_remove("LISTEN_PID").env("SCAFO_LOG", "error");
        command.fd_mappings(vec![FdMapping { parent_fd: socket, child_fd: 3 }]).expect("one descriptor");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a built program");
        let mut input = child.stdin.take().expect("piped");
        input.write_all(settings.to_string().as_bytes()).expect("it reads its settings");
        Self(child)
    }

    pub(super) fn resident(&self) -> u64 {
        process::resident(self.0.id())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Pair {
    pub(super) fn start(dir: &Path, snapshot: &Value) -> Self {
        let (registry, router) = (dir.join("registry.sock"), dir.join("router.sock"));
        let listener = UnixListener::bind(&registry).expect("a socket");
        let served = transport::server().add_service(RegistryServer::new(Fixed(snapshot.to_string().into())));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let peers = transport::Peers::same_user();
            transport::serve(listener, peers, served, std::future::pending()).await.expect("a working socket");
        });
        let socket = std::os::unix::net::UnixListener::bind(&router).expect("a socket");
        let settings = json!({ "node": "node-0", "registrySocket": registry, "entryPoints": ["web"] });
        let routerd = Process::start("scafo-routerd", ("grpc", socket.into()), &settings);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let api = listener.local_addr().expect("bound").to_string();
        let settings = json!({
            "node": "node-0", "version": "0.1.0", "registrySocket": registry, "routerSocket": router, "dir": dir.join("api"),
            "ingressTokens": [TOKEN], "jsonBytes": 65536, "storageValueBytes": 1024, "deployRunner": true,
            "deploy": { "artifactBytes": 1024, "archiveEntries": 1, "stagedBytes": 1024, "queue": 1,
                        "receiveTimeout": 1000, "queueTimeout": 1000, "taskTimeout": 1000 },
        });
        let apiserver = Process::start("scafo-apiserver", ("api", listener.into()), &settings);
        Self { api, apiserver, routerd, _registry: serving }
    }
}

/// A registry that gives one snapshot and keeps the stream open.
struct Fixed(Bytes);

type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Reply<T> = Result<Response<T>, Status>;

fn nothing<T>() -> Reply<T> {
    Err(Status::unimplemented("there is a snapshot here and nothing else"))
}

#[tonic::async_trait]
impl Registry for Fixed {
    type WatchSnapshotStream = Streamed<SnapshotChunk>;
    type ListApplicationsStream = Streamed<Chunk>;
    type GetStateStream = Streamed<Chunk>;

    async fn watch_snapshot(&self, _: Request<WatchSnapshotRequest>) -> Reply<Self::WatchSnapshotStream> {
        let pieces = chunk::split(self.0.clone()).map(|(data, last)| Ok(SnapshotChunk { data, last }));
        let pieces: Vec<_> = pieces.collect();
        Ok(Response::new(Box::pin(stream::iter(pieces).chain(stream::pending()))))
    }

    async fn resolve_key(&self, _: Request<ResolveKeyRequest>) -> Reply<ResolveKeyResponse> {
        nothing()
    }

    async fn prepare_deploy(&self, _: Request<PrepareDeployRequest>) -> Reply<PrepareDeployResponse> {
        nothing()
    }

    async fn accept_deploy(&self, _: Request<AcceptDeployRequest>) -> Reply<DeployReply> {
        nothing()
    }

    async fn publish_deploy(&self, _: Request<PublishDeployRequest>) -> Reply<DeployReply> {
        nothing()
    }

    async fn fail_deploy(&self, _: Request<FailDeployRequest>) -> Reply<DeployReply> {
        nothing()
    }

    async fn get_deploy(&self, _: Request<GetDeployRequest>) -> Reply<DeployReply> {
        nothing()
    }

    async fn list_applications(&self, _: Request<ListApplicationsRequest>) -> Reply<Self::ListApplicationsStream> {
        nothing()
    }

    async fn get_state(&self, _: Request<GetStateRequest>) -> Reply<Self::GetStateStream> {
        nothing()
    }
}

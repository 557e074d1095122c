//! A whole registry daemon in this process, on a bucket in memory.

use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ed25519_dalek::SigningKey;
use scafo_core::record::{ApplicationRecord, DeployState, NodeRecord, OperatorRecord};
use scafo_core::settings::{BucketAccess, Millis, NodeIdentity, RegistrydSettings, Secret};
use scafo_core::snapshot::Snapshot;
use scafo_core::token::PublicKey;
use scafo_core::view::{DaemonState, DeployStatus, NodeStatus};
use scafo_core::{ApplicationName, DeployId, Problem};
use scafo_proto::chunk::{Assembly, collect};
use scafo_proto::registry::admin_client::AdminClient;
use scafo_proto::registry::administration_client::AdministrationClient;
use scafo_proto::registry::registry_client::RegistryClient;
use scafo_proto::registry::{
    AcceptDeployRequest, DeployReply, DrainNodeRequest, GetDeployRequest, GetStateRequest, InitOperatorRequest,
    ListApplicationsRequest, ListNodesRequest, PrepareDeployRequest, PublishDeployRequest, RemoveNodeRequest,
    SnapshotChunk, UndrainNodeRequest, WatchSnapshotRequest,
};
use scafo_proto::status::to_problem;
use scafo_proto::storage::storage_client::StorageClient;
use scafo_proto::transport::channel;
use scafo_registryd::daemon::{Fatal, Sockets, run};
use scafo_registryd::registry::SystemClock;
use scafo_store::{Bucket as _, MemoryBucket, PutOptions};
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tonic::transport::Channel;

use crate::supervisor::Fake;

/// How long anything may take here before a test gives up; nothing waits that long when it works.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);
pub(crate) const SHA: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

pub(crate) struct Node {
    _dir: tempfile::TempDir,
    settings: RegistrydSettings,
    memory: Arc<MemoryBucket>,
    grpc: StdListener,
    admin: StdListener,
    pub(crate) client: RegistryClient<Channel>,
    pub(crate) admin_client: AdminClient<Channel>,
    api_door: Channel,
    admin_door: Channel,
    pub(crate) supervisor: Fake,
    _neighbours: JoinSet<()>,
    stop: Arc<Notify>,
    daemon: Option<(Runtime, JoinHandle<Result<(), Fatal>>)>,
}

impl Node {
    pub(crate) fn start(id: &str, memory: MemoryBucket) -> Self {
        Self::start_with(id, memory, |_| {})
    }

    pub(crate) fn start_with(id: &str, memory: MemoryBucket, adjust: impl FnOnce(&mut RegistrydSettings)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mut settings = settings(id, dir.path());
        adjust(&mut settings);
        let mut neighbours = JoinSet::new();
        let supervisor = Fake::start(&settings.supervisor_socket, memory.sibling(), &mut neighbours);
        let mut node = Self {
            grpc: bind(&at("grpc.sock")),
            admin: bind(&at("admin.sock")),
            client: RegistryClient::new(channel(&at("grpc.sock"))),
            admin_client: AdminClient::new(channel(&at("admin.sock"))),
            api_door: channel(&at("grpc.sock")),
            admin_door: channel(&at("admin.sock")),
            _dir: dir,
            settings,
            memory: Arc::new(memory),
            supervisor,
            _neighbours: neighbours,
            stop: Arc::default(),
            daemon: None,
        };
        node.spawn();
        node
    }

    /// In a runtime of its own: dropping that ends everything of the daemon between two polls, connections included, which
    /// is as close to kill -9 as it gets within one process.
    fn spawn(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (settings, memory) = (self.settings.clone(), Arc::clone(&self.memory));
        let sockets = {
            let _entered = runtime.enter();
            Sockets { grpc: again(&self.grpc), admin: again(&self.admin) }
        };
        let stop = Arc::clone(&self.stop);
        let asked = async move { stop.notified().await };
        let daemon = run(settings, memory, Arc::new(SystemClock), sockets, asked);
        let handle = runtime.spawn(daemon);
        self.daemon = Some((runtime, handle));
    }

    /// As kill -9 and a new start do, with the sockets kept by somebody else.
    pub(crate) async fn restart(&mut self) {
        self.kill();
        self.spawn();
        // Connections of the killed daemon fail once.
        until(|| async { self.state().await.ok() }).await;
    }

    /// A new start of a daemon that will not come up.
    pub(crate) fn try_again(&mut self) {
        self.kill();
        self.spawn();
    }

    /// Asks the daemon to end, as SIGTERM does, and answers how it ended.
    pub(crate) async fn stop(&mut self) -> Result<(), Fatal> {
        self.stop.notify_one();
        self.end().await
    }

    pub(crate) fn kill(&mut self) {
        if let Some((runtime, _)) = self.daemon.take() {
            runtime.shutdown_background();
        }
    }

    /// How the daemon ended by itself.
    pub(crate) async fn end(&mut self) -> Result<(), Fatal> {
        let (_, daemon) = self.daemon.as_mut().unwrap();
        tokio::time::timeout(LIMIT, daemon).await.unwrap().unwrap()
    }

    /// As the API calls it.
    pub(crate) fn administration(&self) -> AdministrationClient<Channel> {
        AdministrationClient::new(self.api_door.clone())
    }

    /// As the machine's own user calls it.
    pub(crate) fn local_administration(&self) -> AdministrationClient<Channel> {
        AdministrationClient::new(self.admin_door.clone())
    }

    /// What other processes of the node call.
    pub(crate) fn api_channel(&self) -> Channel {
        self.api_door.clone()
    }

    /// What the machine's own user calls.
    pub(crate) fn admin_channel(&self) -> Channel {
        self.admin_door.clone()
    }

    pub(crate) fn storage(&self) -> StorageClient<Channel> {
        StorageClient::new(self.api_door.clone())
    }

    pub(crate) fn memory(&self) -> &MemoryBucket {
        &self.memory
    }

    pub(crate) async fn init_operator(&self, id: &str, secret: u8, force: bool) -> Result<OperatorRecord, Problem> {
        let public_key = serde_json::to_vec(&key(secret)).unwrap().into();
        let request = InitOperatorRequest { id: id.into(), public_key, force };
        let answer = self.admin_client.clone().init_operator(request).await.map_err(|status| to_problem(&status))?;
        Ok(serde_json::from_slice(&answer.into_inner().operator).unwrap())
    }

    pub(crate) async fn prepare(&self, name: &str, metadata: &str) -> Result<bool, Problem> {
        let metadata = Bytes::from(metadata.to_owned());
        let request = PrepareDeployRequest { application: name.into(), metadata };
        let answer = self.client.clone().prepare_deploy(request).await.map_err(|status| to_problem(&status))?;
        Ok(answer.into_inner().created)
    }

    pub(crate) async fn accept(&self, id: &DeployId) -> Result<DeployStatus, Problem> {
        self.accept_artifact(id, SHA).await
    }

    pub(crate) async fn accept_artifact(&self, id: &DeployId, sha256: &str) -> Result<DeployStatus, Problem> {
        let request = AcceptDeployRequest {
            id: id.to_string(),
            by: "op".into(),
            source: Bytes::new(),
            oidc: Bytes::new(),
            sha256: sha256.into(),
            bytes: 10,
            application_since: String::new(),
        };
        status(self.client.clone().accept_deploy(request).await)
    }

    pub(crate) async fn publish(&self, id: &DeployId) -> Result<DeployStatus, Problem> {
        self.publish_artifact(id, SHA).await
    }

    pub(crate) async fn publish_artifact(&self, id: &DeployId, sha256: &str) -> Result<DeployStatus, Problem> {
        let config_path = format!("/stage/{id}/tree/wrangler.jsonc");
        let request = PublishDeployRequest { id: id.to_string(), sha256: sha256.into(), config_path };
        status(self.client.clone().publish_deploy(request).await)
    }

    pub(crate) async fn deploy_status(&self, id: &DeployId) -> Result<DeployStatus, Problem> {
        status(self.client.clone().get_deploy(GetDeployRequest { id: id.to_string() }).await)
    }

    /// Everything that the API does for a deploy, then its end.
    pub(crate) async fn deploy(&self, name: &str, random: u64) -> DeployStatus {
        self.prepare(name, "{}").await.unwrap();
        let id = DeployId::new(&name.parse().unwrap(), random);
        self.accept(&id).await.unwrap();
        self.publish(&id).await.unwrap();
        self.ended(&id).await
    }

    pub(crate) async fn ended(&self, id: &DeployId) -> DeployStatus {
        let ended = |status: &DeployStatus| matches!(status.state, DeployState::Deployed | DeployState::Failed);
        until(|| async { self.deploy_status(id).await.ok().filter(ended) }).await
    }

    pub(crate) async fn state(&self) -> Result<DaemonState, Problem> {
        let answer = self.client.clone().get_state(GetStateRequest {}).await.map_err(|status| to_problem(&status))?;
        Ok(serde_json::from_slice(&collect(answer.into_inner()).await?).unwrap())
    }

    pub(crate) async fn applications(&self) -> Result<Vec<ApplicationRecord>, Problem> {
        let request = ListApplicationsRequest {};
        let answer = self.client.clone().list_applications(request).await.map_err(|status| to_problem(&status))?;
        Ok(serde_json::from_slice(&collect(answer.into_inner()).await?).unwrap())
    }

    pub(crate) async fn nodes(&self) -> Result<Vec<NodeStatus>, Problem> {
        let answer = self.admin_client.clone().list_nodes(ListNodesRequest {}).await.map_err(|it| to_problem(&it))?;
        Ok(serde_json::from_slice(&collect(answer.into_inner()).await?).unwrap())
    }

    pub(crate) async fn drain(&self, node: &str) -> Result<NodeRecord, Problem> {
        let request = DrainNodeRequest { node: node.into(), force: false, timeout_ms: None };
        let answer = self.admin_client.clone().drain_node(request).await.map_err(|status| to_problem(&status))?;
        Ok(serde_json::from_slice(&answer.into_inner().node).unwrap())
    }

    pub(crate) async fn undrain(&self, node: &str) -> Result<NodeRecord, Problem> {
        let request = UndrainNodeRequest { node: node.into() };
        let answer = self.admin_client.clone().undrain_node(request).await.map_err(|status| to_problem(&status))?;
        Ok(serde_json::from_slice(&answer.into_inner().node).unwrap())
    }

    pub(crate) async fn remove(&self, node: &str, force: bool) -> Result<(), Problem> {
        let request = RemoveNodeRequest { node: node.into(), force };
        self.admin_client.clone().remove_node(request).await.map(drop).map_err(|status| to_problem(&status))
    }

    /// The first snapshot that satisfies `wanted`.
    pub(crate) async fn snapshot(&self, wanted: impl Fn(&Snapshot) -> bool) -> Snapshot {
        let mut stream = self.client.clone().watch_snapshot(WatchSnapshotRequest {}).await.unwrap().into_inner();
        let mut assembly = Assembly::default();
        let found = async {
            loop {
                let SnapshotChunk { data, last } = stream.message().await.unwrap().unwrap();
                assembly.push(&data).unwrap();
                if last {
                    let snapshot: Snapshot = serde_json::from_slice(&assembly.take()).unwrap();
                    if wanted(&snapshot) {
                        return snapshot;
                    }
                }
            }
        };
        tokio::time::timeout(LIMIT, found).await.unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Changes an application's record behind the daemons' backs, with the hint that every writer leaves.
pub(crate) async fn change(memory: &MemoryBucket, name: &str, member: &str, value: serde_json::Value) {
    let key = format!("_scafo/applications/{name}.json");
    let object = memory.get(&key).await.unwrap().unwrap();
    let mut record: serde_json::Value = serde_json::from_slice(&object.body).unwrap();
    let hint = format!(r#"{{"v":1,"token":"{member} {value}","at":"2026-01-01T00:00:00.000Z","by":"test"}}"#);
    record[member] = value;
    let body = serde_json::to_vec(&record).unwrap();
    memory.put(&key, body.into(), PutOptions::default()).await.unwrap();
    memory.put("_scafo/changes.json", hint.into(), PutOptions::default()).await.unwrap();
}

/// Asks until there is an answer.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(mut ask: impl FnMut() -> F) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, asking).await.expect("the condition comes true within the limit")
}

pub(crate) fn name(text: &str) -> ApplicationName {
    text.parse().unwrap()
}

pub(crate) fn key(secret: u8) -> PublicKey {
    PublicKey::from(&SigningKey::from_bytes(&[secret; 32]))
}

fn status(answer: Result<tonic::Response<DeployReply>, tonic::Status>) -> Result<DeployStatus, Problem> {
    let reply = answer.map_err(|status| to_problem(&status))?.into_inner();
    Ok(serde_json::from_slice(&reply.status).unwrap())
}

fn bind(path: &Path) -> StdListener {
    let listener = StdListener::bind(path).unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

fn again(listener: &StdListener) -> UnixListener {
    UnixListener::from_std(listener.try_clone().unwrap()).unwrap()
}

fn settings(id: &str, dir: &Path) -> RegistrydSettings {
    let millis = Millis;
    RegistrydSettings {
        node: NodeIdentity {
            id: id.parse().unwrap(),
            public_key: key(id.bytes().fold(1, u8::wrapping_add)),
            address: "127.0.0.1".into(),
            api: "127.0.0.1:7400".into(),
            labels: [].into(),
            platform_domains: vec!["dev.localhost".parse().unwrap()],
            api_public: true,
            celld_version: Some("0.6.0".into()),
        },
        bucket: BucketAccess {
            name: "unused".into(),
            prefix: String::new(),
            endpoint: None,
            region: "unused".into(),
            path_style: true,
            access_key_id: "unused".into(),
            secret_access_key: Secret::new("unused"),
            session_token: None,
        },
        embedded: false,
        dir: PathBuf::from(dir).join("registry"),
        supervisor_socket: dir.join("supervisor.sock"),
        figures_sockets: scafo_core::settings::FiguresSockets::default(),
        lease_ttl: millis(3000),
        heartbeat: millis(1000),
        liveness: millis(20_000),
        reconcile_interval: millis(200),
        ingress_hold: millis(300),
        deploy_task_timeout: millis(20_000),
        deploy_jobs: 2,
        deploy_queue: 16,
        local_only: false,
        drain_timeout: RegistrydSettings::drain_timeout(),
        observe_flush: None,
        observe_retention: RegistrydSettings::observe_retention(),
        storage_value_bytes: RegistrydSettings::storage_value_bytes(),
    }
}

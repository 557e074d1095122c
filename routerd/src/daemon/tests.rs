//! The whole daemon between a registry that is a test's and a caller over real sockets.

use std::io::Read as _;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use scafo_core::problem::ProblemCode;
use scafo_core::settings::TraefikTls;
use scafo_core::snapshot::Snapshot;
use scafo_proto::registry::registry_server::{Registry, RegistryServer};
use scafo_proto::registry::*;
use scafo_proto::router::GetRoutingRequest;
use scafo_proto::router::router_client::RouterClient;
use scafo_proto::status::to_problem;
use tokio::sync::oneshot;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};

use super::*;
use crate::render::testing::{fleet, node};

type Boxed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Reply<T> = Result<Response<T>, Status>;

/// Sends each snapshot that the test publishes, in small chunks.
struct FakeRegistry(watch::Receiver<Option<Snapshot>>);

#[tonic::async_trait]
impl Registry for FakeRegistry {
    type WatchSnapshotStream = Boxed<SnapshotChunk>;
    type ListApplicationsStream = Boxed<Chunk>;
    type GetStateStream = Boxed<Chunk>;

    async fn watch_snapshot(&self, _: Request<WatchSnapshotRequest>) -> Reply<Self::WatchSnapshotStream> {
        let snapshots = WatchStream::new(self.0.clone());
        let chunks = snapshots.filter_map(|snapshot| snapshot).map(|snapshot| {
            let bytes = serde_json::to_vec(&snapshot).unwrap();
            let pieces: Vec<_> = bytes.chunks(100).map(bytes::Bytes::copy_from_slice).collect();
            let last = pieces.len() - 1;
            let chunk = |(index, data)| Ok(SnapshotChunk { data, last: index == last });
            tokio_stream::iter(pieces.into_iter().enumerate().map(chunk).collect::<Vec<_>>())
        });
        Ok(Response::new(Box::pin(futures_util::StreamExt::flatten(chunks))))
    }

    async fn resolve_key(&self, _: Request<ResolveKeyRequest>) -> Reply<ResolveKeyResponse> {
        Err(Status::unimplemented(""))
    }
    async fn prepare_deploy(&self, _: Request<PrepareDeployRequest>) -> Reply<PrepareDeployResponse> {
        Err(Status::unimplemented(""))
    }
    async fn accept_deploy(&self, _: Request<AcceptDeployRequest>) -> Reply<DeployReply> {
        Err(Status::unimplemented(""))
    }
    async fn publish_deploy(&self, _: Request<PublishDeployRequest>) -> Reply<DeployReply> {
        Err(Status::unimplemented(""))
    }
    async fn fail_deploy(&self, _: Request<FailDeployRequest>) -> Reply<DeployReply> {
        Err(Status::unimplemented(""))
    }
    async fn get_deploy(&self, _: Request<GetDeployRequest>) -> Reply<DeployReply> {
        Err(Status::unimplemented(""))
    }
    async fn list_applications(&self, _: Request<ListApplicationsRequest>) -> Reply<Self::ListApplicationsStream> {
        Err(Status::unimplemented(""))
    }
    async fn get_state(&self, _: Request<GetStateRequest>) -> Reply<Self::GetStateStream> {
        Err(Status::unimplemented(""))
    }
}

/// A registry on `socket` until the sender is dropped or sends.
fn registry(
    socket: &Path,
    snapshots: watch::Receiver<Option<Snapshot>>,
) -> (AbortOnDropHandle<()>, oneshot::Sender<()>) {
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).unwrap();
    let router = transport::server().add_service(RegistryServer::new(FakeRegistry(snapshots)));
    let (stop, stopped) = oneshot::channel();
    let serving = async move {
        let stopped = async move { drop(stopped.await) };
        tokio::select! {
            served = transport::serve(listener, transport::Peers::same_user(), router, std::future::pending()) => served.unwrap(),
            () = stopped => {}
        }
    };
    (spawn(serving), stop)
}

#[expect(clippy::disallowed_methods, reason = "the handle goes straight to its owner, who aborts it on drop")]
fn spawn(task: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(task))
}

async fn get(router: &mut RouterClient<tonic::transport::Channel>) -> Result<String, ProblemCode> {
    get_as(router, "").await
}

async fn get_as(router: &mut RouterClient<tonic::transport::Channel>, format: &str) -> Result<String, ProblemCode> {
    let asked = GetRoutingRequest { format: format.to_owned(), ..GetRoutingRequest::default() };
    let request = transport::within(Duration::from_secs(60), asked);
    let answer = router.get_routing(request).await.map_err(|status| to_problem(&status).code)?;
    let chunks: Vec<_> = answer.into_inner().collect::<Vec<_>>().await;
    let compressed: Vec<u8> = chunks.into_iter().flat_map(|chunk| chunk.unwrap().data.to_vec()).collect();
    let mut text = String::new();
    flate2::read::GzDecoder::new(compressed.as_slice()).read_to_string(&mut text).unwrap();
    Ok(text)
}

/// Asks until the answer is the wanted one; a limit ends a test that would wait for ever.
async fn until(
    router: &mut RouterClient<tonic::transport::Channel>,
    wanted: impl Fn(&Result<String, ProblemCode>) -> bool,
) {
    for _ in 0..6000 {
        let answer = get(router).await;
        if wanted(&answer) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the last answer was {:?}", get(router).await);
}

#[tokio::test]
async fn the_last_document_stays_while_the_registry_is_away_and_the_next_one_follows() {
    let dir = tempfile::tempdir().unwrap();
    let (registry_socket, router_socket) = (dir.path().join("registry.sock"), dir.path().join("router.sock"));
    let (publish, snapshots) = watch::channel(None);
    let settings = RouterdSettings {
        node: "a".parse().unwrap(),
        registry_socket: registry_socket.clone(),
        entry_points: vec!["web".to_owned()],
        tls: None,
    };
    let listener = UnixListener::bind(&router_socket).unwrap();
    let _daemon = spawn(async move { run(settings, None, listener, std::future::pending()).await.unwrap() });
    let mut router = RouterClient::new(transport::channel(&router_socket));

    // Nobody is there yet, then somebody who has no snapshot.
    until(&mut router, |answer| *answer == Err(ProblemCode::Draining)).await;
    let (first, stop) = registry(&registry_socket, snapshots.clone());
    assert_eq!(get(&mut router).await, Err(ProblemCode::Draining));

    publish.send_replace(Some(fleet(&[node("a").serves("shop", 1111)], &["shop"])));
    until(&mut router, |answer| answer.as_ref().is_ok_and(|body| body.contains(":1111"))).await;

    drop(stop);
    first.await.unwrap();
    assert!(get(&mut router).await.unwrap().contains(":1111"));

    let (_second, _stop) = registry(&registry_socket, snapshots);
    publish.send_replace(Some(fleet(&[node("a").serves("shop", 2222)], &["shop"])));
    until(&mut router, |answer| answer.as_ref().is_ok_and(|body| body.contains(":2222"))).await;
}

#[tokio::test]
async fn the_entry_points_and_the_resolver_of_the_settings_are_those_of_the_routers() {
    let dir = tempfile::tempdir().unwrap();
    let (registry_socket, router_socket) = (dir.path().join("registry.sock"), dir.path().join("router.sock"));
    let (_publish, snapshots) = watch::channel(Some(fleet(&[node("a").serves("shop", 1111)], &["shop"])));
    let settings = RouterdSettings {
        node: "a".parse().unwrap(),
        registry_socket: registry_socket.clone(),
        entry_points: vec!["websecure".to_owned()],
        tls: Some(TraefikTls { cert_resolver: "le".to_owned(), wildcard_bases: vec!["apps.test".parse().unwrap()] }),
    };
    let (_registry, _stop) = registry(&registry_socket, snapshots);
    let listener = UnixListener::bind(&router_socket).unwrap();
    let _daemon = spawn(async move { run(settings, None, listener, std::future::pending()).await.unwrap() });
    let mut router = RouterClient::new(transport::channel(&router_socket));
    until(&mut router, Result::is_ok).await;
    let document: serde_json::Value = serde_json::from_str(&get_as(&mut router, "traefik").await.unwrap()).unwrap();
    let shop = &document["http"]["routers"]["scafo_shop.apps.test"];
    assert_eq!(shop["entryPoints"], serde_json::json!(["websecure"]));
    assert_eq!(shop["tls"], serde_json::json!({ "certResolver": "le", "domains": [{ "main": "*.apps.test" }] }));
}

//! A running API with everything around it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ed25519_dalek::SigningKey;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use scafo_apiserver::app::App;
use scafo_apiserver::clock::Clock;
use scafo_apiserver::server;
use scafo_core::settings::{ApiserverSettings, DeployIntakeSettings, Millis, Secret};
use scafo_core::time::Timestamp;
use scafo_core::token::{PublicKey, sign};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::fakes::{FakeRegistry, FakeRouter, node_key, operator_key};

pub(crate) const INGRESS_TOKEN: &str = "an-ingress-token";
/// Metadata `{}`.
pub(crate) const NO_METADATA: &str = "e30";

/// A clock that the test moves.
pub(crate) struct TestClock {
    start: Instant,
    ahead_ms: AtomicI64,
}

impl TestClock {
    pub(crate) fn advance(&self, by: Duration) {
        self.ahead_ms.fetch_add(by.as_millis() as i64, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn wall(&self) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000 + self.ahead_ms.load(Ordering::SeqCst))
    }

    fn mono(&self) -> Instant {
        self.start + Duration::from_millis(self.ahead_ms.load(Ordering::SeqCst) as u64)
    }
}

/// What a test may want to be different.
pub(crate) struct Options {
    pub(crate) queue: u32,
    pub(crate) artifact_bytes: u64,
    pub(crate) staged_bytes: u64,
    pub(crate) runner: bool,
    pub(crate) receive_timeout_ms: u64,
    pub(crate) queue_timeout_ms: u64,
    pub(crate) storage_value_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queue: 16,
            artifact_bytes: 1 << 20,
            staged_bytes: 16 << 20,
            runner: true,
            receive_timeout_ms: 60_000,
            queue_timeout_ms: 60_000,
            storage_value_bytes: 600_000,
        }
    }
}

pub(crate) struct Harness {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) registry: FakeRegistry,
    pub(crate) router: FakeRouter,
    pub(crate) clock: Arc<TestClock>,
    pub(crate) address: SocketAddr,
    options: Options,
    running: Option<(Arc<App>, CancellationToken, AbortOnDropHandle<()>)>,
    pub(crate) registry_task: Option<AbortOnDropHandle<()>>,
    pub(crate) router_task: Option<AbortOnDropHandle<()>>,
    client: Client<HttpConnector, Full<Bytes>>,
    jti: AtomicU64,
    tasks: Mutex<Vec<AbortOnDropHandle<()>>>,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// The code of a problem document, whose form is checked on the way.
    pub(crate) fn problem(&self) -> String {
        let document = self.json();
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(document["status"], self.status.as_u16());
        assert!(
            document["title"].is_string() && document["detail"].is_string() && document.as_object().unwrap().len() == 4
        );
        document["type"].as_str().unwrap().strip_prefix("urn:scafo:").unwrap().to_owned()
    }
}

#[expect(clippy::disallowed_methods, reason = "the handle goes straight to its owner, who aborts it on drop")]
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(task))
}

/// Each signer has a key of its own, made from its id.
pub(crate) fn signing_key(id: &str) -> SigningKey {
    let mut seed = [7; 32];
    seed[..id.len()].copy_from_slice(id.as_bytes());
    SigningKey::from_bytes(&seed)
}

pub(crate) fn operator(id: &str, role: &str, applications: &[&str]) -> Value {
    json!({
        "v": 1, "id": id, "publicKey": PublicKey::from(&signing_key(id)), "role": role, "applications": applications,
        "createdAt": "2026-04-01T12:30:00.000Z",
    })
}

impl Harness {
    pub(crate) async fn start() -> Self {
        Self::start_with(Options::default()).await
    }

    /// Runs with the node `n1`, the admin `root`, the operator `team` for `shop` and `team-*`, and other operators whose scopes
    /// are near these.
    pub(crate) async fn start_with(options: Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (registry, router) = (FakeRegistry::default(), FakeRouter::default());
        {
            let keys = &mut registry.world().keys;
            keys.insert("n1".to_owned(), node_key(&PublicKey::from(&signing_key("n1"))));
            for record in [
                operator("root", "admin", &["*"]),
                operator("lead", "admin", &["blog"]),
                operator("team", "operator", &["shop", "team-*"]),
                operator("family", "operator", &["shop", "shop-*"]),
                operator("glob", "operator", &["sho*"]),
                operator("near", "operator", &["shop-*", "shops"]),
                operator("other", "operator", &["blog"]),
                operator("every", "operator", &["*"]),
            ] {
                keys.insert(record["id"].as_str().unwrap().to_owned(), operator_key(&record));
            }
        }
        let mut harness = Self {
            registry_task: Some(registry.serve(&dir.path().join("registry.sock"))),
            router_task: Some(router.serve(&dir.path().join("router.sock"))),
            dir,
            registry,
            router,
            clock: Arc::new(TestClock { start: Instant::now(), ahead_ms: AtomicI64::new(0) }),
            address: ([127, 0, 0, 1], 0).into(),
            options,
            running: None,
            client: Client::builder(TokioExecutor::new()).build_http(),
            jti: AtomicU64::new(0),
            tasks: Mutex::default(),
        };
        harness.open().await;
        harness
    }

    /// Starts the process, or the next one.
    pub(crate) async fn open(&mut self) {
        let app = App::open(self.settings(), self.clock.clone()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        self.address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let serving = spawn(server::serve(vec![listener], app.served(), stop.clone()));
        self.running = Some((app, stop, serving));
    }

    fn settings(&self) -> ApiserverSettings {
        ApiserverSettings {
            node: "n1".parse().unwrap(),
            version: "0.1.0".to_owned(),
            registry_socket: self.dir.path().join("registry.sock"),
            router_socket: self.dir.path().join("router.sock"),
            dir: self.dir.path().join("api"),
            ingress_tokens: vec![Secret::new("another"), Secret::new(INGRESS_TOKEN)],
            json_bytes: 65536,
            storage_value_bytes: self.options.storage_value_bytes,
            deploy: DeployIntakeSettings {
                artifact_bytes: self.options.artifact_bytes,
                archive_entries: 1000,
                staged_bytes: self.options.staged_bytes,
                queue: self.options.queue,
                receive_timeout: Millis(self.options.receive_timeout_ms),
                queue_timeout: Millis(self.options.queue_timeout_ms),
                task_timeout: Millis(60_000),
            },
            deploy_runner: self.options.runner,
        }
    }

    /// Ends the process in order and starts the next one.
    pub(crate) async fn restart(&mut self) {
        self.stop().await;
        self.open().await;
    }

    /// Ends the process in order.
    pub(crate) async fn stop(&mut self) {
        let (app, stop, serving) = self.running.take().unwrap();
        stop.cancel();
        serving.await.unwrap();
        app.stop().await;
        drop(app);
    }

    pub(crate) fn app(&self) -> Arc<App> {
        self.running.as_ref().unwrap().0.clone()
    }

    pub(crate) fn client(&self) -> &Client<HttpConnector, Full<Bytes>> {
        &self.client
    }

    /// A fresh token of one of the signers.
    pub(crate) fn token(&self, signer: &str) -> String {
        let jti = u128::from(self.jti.fetch_add(1, Ordering::SeqCst)).to_be_bytes();
        format!("Bearer {}", sign(&signing_key(signer), signer, self.clock.wall(), jti))
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = self.client.request(request.body(Full::new(body.into())).unwrap()).await.unwrap();
        let (parts, body) = answer.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) async fn get(&self, path: &str, authorization: &str) -> Answer {
        self.send(Method::GET, path, &[("authorization", authorization)], "").await
    }

    /// Deploys to `application` as `signer`.
    pub(crate) async fn deploy(&self, application: &str, signer: &str, artifact: impl Into<Bytes>) -> Answer {
        let token = self.token(signer);
        let headers = [("authorization", token.as_str()), ("x-scafo-deploy", NO_METADATA)];
        self.send(Method::POST, &format!("/v1/applications/{application}/deploys"), &headers, artifact).await
    }

    /// Waits until the world is as it should be.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&mut crate::fakes::World) -> bool) {
        for _ in 0..6000 {
            if holds(&mut self.registry.world()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("it never came to be that {what}");
    }

    /// How many deploys are staged.
    pub(crate) fn staged(&self) -> usize {
        std::fs::read_dir(self.dir.path().join("api/stage")).unwrap().count()
    }

    pub(crate) async fn until_staged(&self, number: usize) {
        self.until(&format!("{number} deploys are staged"), |_| self.staged() == number).await;
    }

    pub(crate) fn keep(&self, task: AbortOnDropHandle<()>) {
        self.tasks.lock().unwrap().push(task);
    }
}

/// A project with a configuration.
pub(crate) fn project() -> Vec<u8> {
    archive(&[("wrangler.jsonc", "{ /* yes */ }"), ("src/index.js", "export default {}")])
}

pub(crate) fn archive(files: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, contents) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(contents.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        builder.append_data(&mut header, name, contents.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

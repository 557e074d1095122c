//! What the tests play with. Everything ends when its owner is dropped.

use std::{
    convert::Infallible,
    future::Future,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use scafo_core::settings::{IngressSource, IngressdSettings, Millis, Secret};
use scafo_proxy::{Forwarder, Limits, Outbound, Tunnels};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::timeout,
};

use crate::{
    config::{Config, Source},
    health::HEALTH_PATH,
    run::{EndedByItself, run},
};

pub(super) type AnyBody = BoxBody<Bytes, Infallible>;

/// Longer than anything here takes, so that a hang becomes a failure.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Server {
    pub(super) address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Server {
    pub(super) fn upstream(&self) -> Value {
        json!({"node": "n", "address": self.address.to_string()})
    }

    /// What an ingress is told of it as a node.
    pub(super) fn source(&self) -> Source {
        let settings = IngressdSettings { nodes: vec![self.told()], poll_interval: Millis(50), dir: None };
        Config::new(&settings, Duration::ZERO).unwrap().sources.remove(0)
    }

    fn told(&self) -> IngressSource {
        IngressSource { url: format!("http://{}", self.address), token: Secret::new("token"), fleet: None }
    }
}

/// A server that hands each connection to `script`.
pub(super) async fn raw<F, T>(script: F) -> Server
where
    F: Fn(TcpStream) -> T + Send + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            connections.spawn(script(stream));
        }
    });
    Server { address, _tasks: tasks }
}

/// A hyper server that answers with `handler`.
pub(super) async fn serve<F, T>(handler: F) -> Server
where
    F: Fn(Request<Incoming>) -> T + Clone + Send + Sync + 'static,
    T: Future<Output = Response<AnyBody>> + Send + 'static,
{
    raw(move |stream| {
        let handler = handler.clone();
        async move {
            let service = service_fn(move |request| {
                let response = handler(request);
                async move { Ok::<_, Infallible>(response.await) }
            });
            drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
        }
    })
    .await
}

/// An application that answers with its name, the request, and the body.
pub(super) async fn application(name: &'static str) -> Server {
    serve(move |request| async move {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let mut response =
            Response::new(full(&format!("{name} {} {} {}", head.method, head.uri, String::from_utf8_lossy(&body))));
        for (name, value) in &head.headers {
            response.headers_mut().append(http::HeaderName::try_from(format!("seen-{name}")).unwrap(), value.clone());
        }
        response
    })
    .await
}

/// An upstream that takes a request and closes the connection; it counts what it took.
pub(super) async fn breaks(taken: Arc<std::sync::atomic::AtomicUsize>) -> Server {
    raw(move |mut stream| {
        let taken = Arc::clone(&taken);
        async move {
            if stream.read(&mut [0; 4096]).await.unwrap() > 0 {
                taken.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
        }
    })
    .await
}

pub(super) fn full(text: &str) -> AnyBody {
    Full::new(Bytes::copy_from_slice(text.as_bytes())).boxed()
}

/// A body whose pieces the test sends one by one.
pub(super) fn channel() -> (mpsc::Sender<&'static str>, AnyBody) {
    let (sender, mut receiver) = mpsc::channel::<&'static str>(1);
    let pieces = futures_util::stream::poll_fn(move |cx| {
        let frame = |text: &'static str| Ok(http_body::Frame::data(Bytes::from_static(text.as_bytes())));
        receiver.poll_recv(cx).map(|piece| piece.map(frame))
    });
    (sender, BodyExt::boxed(StreamBody::new(pieces)))
}

/// How a node answers polls.
#[derive(Clone)]
pub(super) enum Reply {
    Document(String),
    /// A status with a problem document.
    Problem(u16),
    /// The head promises more than comes.
    Cut(String),
}

/// A node that serves a routing document.
pub(super) struct Node {
    server: Server,
    reply: Arc<Mutex<Reply>>,
    polls: Arc<Mutex<Vec<String>>>,
}

impl Node {
    pub(super) async fn new(reply: Reply) -> Self {
        let (reply, polls) = (Arc::new(Mutex::new(reply)), Arc::new(Mutex::new(Vec::new())));
        let (answering, noting) = (Arc::clone(&reply), Arc::clone(&polls));
        let server = raw(move |mut stream| {
            let (reply, polls) = (Arc::clone(&answering), Arc::clone(&noting));
            async move {
                // One answer for each connection, so that a cut body is a cut connection.
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = stream.read_u8().await else { return };
                    head.push(byte);
                }
                let head = String::from_utf8(head).unwrap();
                let answer = answered(&reply.lock().unwrap(), &head);
                polls.lock().unwrap().push(head);
                drop(stream.write_all(answer.as_bytes()).await);
            }
        })
        .await;
        Self { server, reply, polls }
    }

    pub(super) async fn with(document: &Value) -> Self {
        Self::new(Reply::Document(document.to_string())).await
    }

    /// What an ingress is told of it.
    pub(super) fn source(&self) -> Source {
        self.server.source()
    }

    fn told(&self) -> IngressSource {
        self.server.told()
    }

    pub(super) fn reply(&self, reply: Reply) {
        *self.reply.lock().unwrap() = reply;
    }

    pub(super) fn polls(&self) -> MutexGuard<'_, Vec<String>> {
        self.polls.lock().unwrap()
    }

    /// Waits for a poll that began after this call to be over, and so for its effect: polls come one after the other.
    pub(super) async fn polled(&self) {
        let before = self.polls().len();
        eventually("two more polls", async || (self.polls().len() >= before + 2).then_some(())).await;
    }
}

/// The same tags for the same bytes, which is all that a strong tag has to promise.
const FIXED: std::hash::BuildHasherDefault<std::hash::DefaultHasher> = std::hash::BuildHasherDefault::new();

fn answered(reply: &Reply, head: &str) -> String {
    let (status, body, missing) = match reply {
        Reply::Document(text) => {
            let tag = format!("\"{:x}\"", std::hash::BuildHasher::hash_one(&FIXED, text));
            if head.contains(&format!("if-none-match: {tag}\r\n")) {
                return "HTTP/1.1 304 Not Modified\r\nconnection: close\r\n\r\n".to_owned();
            }
            return format!(
                "HTTP/1.1 200 OK\r\netag: {tag}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{text}",
                text.len()
            );
        }
        Reply::Problem(status) => (
            *status,
            json!({"type": "urn:scafo:draining", "title": "t", "status": status, "detail": "d"}).to_string(),
            0,
        ),
        Reply::Cut(text) => (200, text.clone(), 1),
    };
    format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len() + missing)
}

/// A document with one route for each host.
pub(super) fn document(routes: &[(&str, &[&Server])]) -> Value {
    let routes: Vec<Value> = routes
        .iter()
        .map(|(host, servers)| {
            let upstreams: Vec<Value> = servers.iter().map(|server| server.upstream()).collect();
            json!({"host": host, "application": "app", "upstreams": upstreams})
        })
        .collect();
    json!({"v": 1, "routes": routes})
}

/// The daemon under test.
pub(super) struct Ingress {
    pub(super) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinSet<Result<(), EndedByItself>>,
    client: Forwarder<AnyBody>,
}

impl Ingress {
    pub(super) async fn before(nodes: &[&Node]) -> Self {
        Self::with(nodes, PATIENCE, Duration::ZERO).await
    }

    pub(super) async fn with(nodes: &[&Node], grace: Duration, first_wait: Duration) -> Self {
        Self::keeping(None, nodes, grace, first_wait).await
    }

    /// The same, which keeps documents in `dir`.
    pub(super) async fn keeping(dir: Option<&Path>, nodes: &[&Node], grace: Duration, first_wait: Duration) -> Self {
        let nodes = nodes.iter().map(|node| node.told()).collect();
        let settings = IngressdSettings { nodes, poll_interval: Millis(50), dir: dir.map(Path::to_owned) };
        let config = Config { first_wait, ..Config::new(&settings, grace).unwrap() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let mut task = JoinSet::new();
        task.spawn(run(config, listener, async move { drop(stopped.await) }));
        Self { address, stop: Some(stop), task, client: Forwarder::new(Limits::default()) }
    }

    /// The same, once `host` is served.
    pub(super) async fn serving(nodes: &[&Node], host: &str) -> Self {
        let ingress = Self::before(nodes).await;
        ingress.until_served(host).await;
        ingress
    }

    pub(super) async fn until_served(&self, host: &str) {
        let served = async || {
            let (status, _) = self.get(host, "/").await;
            (status != StatusCode::NOT_FOUND && status != StatusCode::SERVICE_UNAVAILABLE).then_some(())
        };
        eventually("the host is served", served).await;
    }

    pub(super) async fn get(&self, host: &str, path: &str) -> (StatusCode, String) {
        let response = self.send("GET", host, path, &HeaderMap::new(), full("")).await;
        (response.status(), text(response).await)
    }

    /// What it says of itself on a host to whoever has the token of a node.
    pub(super) async fn health(&self, host: &str) -> String {
        let token = HeaderMap::from_iter([(http::header::AUTHORIZATION, "Bearer token".parse().unwrap())]);
        let response = self.send("GET", host, HEALTH_PATH, &token, full("")).await;
        assert_eq!(response.status(), StatusCode::OK);
        text(response).await
    }

    pub(super) async fn post(&self, host: &str, body: &str) -> (StatusCode, String) {
        let response = self.send("POST", host, "/", &HeaderMap::new(), full(body)).await;
        (response.status(), text(response).await)
    }

    pub(super) async fn send(
        &self,
        method: &str,
        host: &str,
        path: &str,
        headers: &HeaderMap,
        body: AnyBody,
    ) -> Response<Incoming> {
        let mut request = Request::builder().method(method).uri(path).header("host", host).body(body).unwrap();
        request.headers_mut().extend(headers.clone());
        let sent = self.client.forward(&self.address.into(), Outbound::new(request).unwrap(), &Tunnels::new(0)).await;
        sent.unwrap_or_else(|failure| panic!("{method} {host}{path}: {failure:?}"))
    }

    pub(super) fn ask_to_stop(&mut self) {
        drop(self.stop.take());
    }

    pub(super) async fn ended(&mut self) {
        timeout(PATIENCE, self.task.join_next()).await.unwrap().unwrap().unwrap().unwrap();
    }
}

pub(super) async fn text(response: Response<Incoming>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// Polls until `holds` gives a value.
pub(super) async fn eventually<T>(what: &str, mut holds: impl AsyncFnMut() -> Option<T>) -> T {
    let polled = async {
        loop {
            if let Some(value) = holds().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(PATIENCE, polled).await.unwrap_or_else(|_| panic!("never: {what}"))
}

//! Upstreams and a front server for the tests of this crate, all on loopback. Everything ends when its owner is dropped.

use std::{convert::Infallible, future::Future, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{BoxError, Forwarder, Limits, Outbound, Tunnels, Upstream};

pub(crate) type AnyBody = BoxBody<Bytes, BoxError>;

/// Longer than anything here takes, so that a hang becomes a failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    _accepting: AbortOnDropHandle<()>,
}

impl Server {
    pub(crate) fn upstream(&self) -> Upstream {
        self.address.into()
    }
}

fn owned(task: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    // The handle that is returned is the owner.
    #[allow(clippy::disallowed_methods)]
    AbortOnDropHandle::new(tokio::spawn(task))
}

/// A server that hands each connection, numbered from 0, to `script`.
pub(crate) async fn raw<F, T>(script: F) -> Server
where
    F: Fn(usize, TcpStream) -> T + Send + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = owned(async move {
        let mut connections = JoinSet::new();
        for number in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            connections.spawn(script(number, stream));
        }
    });
    Server { address, _accepting: accepting }
}

/// A hyper server that answers with `handler`.
pub(crate) async fn serve<F, T>(handler: F) -> Server
where
    F: Fn(Request<Incoming>) -> T + Clone + Send + Sync + 'static,
    T: Future<Output = Response<AnyBody>> + Send + 'static,
{
    raw(move |_, stream| answer(stream, handler.clone())).await
}

pub(crate) async fn answer<S, F, T>(stream: S, handler: F)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> T + Send + 'static,
    T: Future<Output = Response<AnyBody>> + Send + 'static,
{
    let service = service_fn(move |request| {
        let response = handler(request);
        async move { Ok::<_, Infallible>(response.await) }
    });
    drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades().await);
}

/// A server that forwards everything to `upstream` as the crate is meant to be used.
pub(crate) async fn front(upstream: Upstream, tunnels: &Tunnels) -> Server {
    let forwarder = Forwarder::new(Limits::default());
    let shared = Arc::new((forwarder, upstream, tunnels.clone()));
    serve(move |request| {
        let shared = Arc::clone(&shared);
        async move {
            let (forwarder, upstream, tunnels) = &*shared;
            match forwarder.forward(upstream, Outbound::new(request).unwrap(), tunnels).await {
                Ok(response) => response.map(|body| body.map_err(Into::into).boxed()),
                Err(failure) => {
                    Response::builder().status(StatusCode::BAD_GATEWAY).body(full(failure.kind().name())).unwrap()
                }
            }
        }
    })
    .await
}

pub(crate) fn full(text: &str) -> AnyBody {
    Full::new(Bytes::copy_from_slice(text.as_bytes())).map_err(|never| match never {}).boxed()
}

/// A body whose pieces the test sends one by one.
pub(crate) fn channel() -> (mpsc::Sender<&'static str>, AnyBody) {
    let (sender, mut receiver) = mpsc::channel::<&'static str>(1);
    let pieces = futures_util::stream::poll_fn(move |cx| {
        receiver
            .poll_recv(cx)
            .map(|piece| piece.map(|text| Ok(http_body::Frame::data(Bytes::from_static(text.as_bytes())))))
    });
    (sender, BodyExt::boxed(http_body_util::StreamBody::new(pieces)))
}

pub(crate) fn request(method: &str, body: AnyBody) -> Outbound<AnyBody> {
    let request = Request::builder().method(method).uri("/path?q=1").header("host", "shop.example").body(body).unwrap();
    Outbound::new(request).unwrap()
}

pub(crate) async fn text(response: Response<Incoming>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Reads one request head (without a body behind it) and answers how long it was; 0 at the end of the connection.
pub(crate) async fn read_head(stream: &mut TcpStream) -> usize {
    let mut seen = Vec::new();
    while !seen.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => seen.push(byte),
            Err(_) => return 0,
        }
    }
    seen.len()
}

/// Polls until `holds`.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let polled = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, polled).await.is_ok(), "never: {what}");
}

//! Accepting connections and serving HTTP/1.1 on them, for both listeners.

use std::{convert::Infallible, io, net::SocketAddr, pin::Pin, sync::Arc, task, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::{
    body::{Body as HttpBody, Frame, Incoming, SizeHint},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::task_tracker::TaskTrackerToken};

use crate::failure::{Context, Outcome};

/// Connections of one listener. Each takes one descriptor here and at most one towards workerd: a third of a limit of 65,536.
const CONNECTIONS_MAX: usize = 10_000;

/// Connections that wait to be accepted, as many as celld lets wait.
const BACKLOG: u32 = 4096;

/// How long a client may take to send a request's head, which is also how long an unused connection is kept.
const HEAD_LIMIT: Duration = Duration::from_secs(30);

/// How long connections may take to write what they hold when the node leaves.
const CLOSE_LIMIT: Duration = Duration::from_millis(500);

/// What is answered.
pub(super) type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// Answers requests.
pub(super) trait Handler: Send + Sync + 'static {
    fn handle(&self, request: Request<Incoming>) -> impl Future<Output = Response<Body>> + Send;
}

/// The listeners at work.
#[derive(Default)]
pub(super) struct Servers {
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

/// Binds, so that connections wait until somebody accepts them.
pub(super) fn bind(option: &str, address: SocketAddr) -> Outcome<TcpListener> {
    let listen = || -> io::Result<TcpListener> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // The port of a predecessor that ended a moment ago is free.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    listen().context(|| format!("{option} {address} cannot be bound"))
}

impl Servers {
    /// Serves `listener`, beginning with the connections that were accepted before.
    pub(super) fn serve(&mut self, listener: TcpListener, early: Vec<TcpStream>, handler: Arc<impl Handler>) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            let mut connections = JoinSet::new();
            for stream in early {
                connections.spawn(connection(stream, Arc::clone(&handler), stop.clone()));
            }
            loop {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => break,
                    Some(_) = connections.join_next() => {}
                    accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                        Ok((stream, _)) => {
                            connections.spawn(connection(stream, Arc::clone(&handler), stop.clone()));
                        }
                        Err(error) => {
                            // Most likely out of descriptors; some will be free in a moment.
                            tracing::warn!(%error, "a connection was not accepted");
                            sleep(Duration::from_millis(100)).await;
                        }
                    },
                }
            }
            let _cut = timeout(CLOSE_LIMIT, async { while connections.join_next().await.is_some() {} }).await;
        });
    }

    /// Accepts no more, lets the connections write what they hold, and ends.
    pub(super) async fn stop(&mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

async fn connection(stream: TcpStream, handler: Arc<impl Handler>, stop: CancellationToken) {
    // A proxy writes whole messages; waiting for more only adds latency. Failing leaves a working connection.
    let _slower = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let handler = Arc::clone(&handler);
        async move { Ok::<_, Infallible>(handler.handle(request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended badly");
    }
}

/// A JSON answer.
pub(super) fn json(status: StatusCode, document: &serde_json::Value) -> Response<Body> {
    let mut response = Response::new(full(document.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A sentence for people.
pub(super) fn text(status: StatusCode, sentence: &str) -> Response<Body> {
    let mut response = Response::new(full(format!("{sentence}\n")));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// What every path but health answers while the node leaves.
pub(super) fn draining() -> Response<Body> {
    let mut response = json(StatusCode::SERVICE_UNAVAILABLE, &serde_json::json!({ "ok": false, "draining": true }));
    let headers = response.headers_mut();
    headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

fn full(text: String) -> Body {
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync()
}

/// A body of workerd that counts as a request under way until it has been passed on.
pub(super) struct Counted {
    body: Incoming,
    _token: TaskTrackerToken,
}

impl Counted {
    pub(super) fn response(response: Response<Incoming>, token: TaskTrackerToken) -> Response<Body> {
        response.map(|body| Self { body, _token: token }.boxed_unsync())
    }
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
    ) -> task::Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

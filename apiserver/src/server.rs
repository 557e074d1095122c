//! HTTP/1.1 and h2c on the inherited listeners.
//!
//! The supervisor owns the sockets: while this process is away, connections wait in the backlog. What holds a connection is
//! bounded: their number, the time for a request head, the bytes of a head, and the time that open requests have at the end.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use scafo_proto::open::Streams;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

mod linger;
mod unread;
use linger::Lingering;
use unread::{Answer, Documented, Turn};

use crate::figures::Figures;

/// Connections at once: half of the 1,024 descriptors that a process has by default, the rest is for files and sockets.
const CONNECTIONS: usize = 512;
/// How long a request head may take, and how long a connection may be idle.
const HEAD: Duration = Duration::from_secs(30);
/// Bytes of a request head: the deploy header and a token are 12 KiB.
const HEAD_BYTES: usize = 64 * 1024;
/// How long a connection that has not brought its first request yet is waited for when this process is to end.
const FIRST_REQUEST: Duration = Duration::from_secs(1);
/// How long open requests have when the server ends.
const DRAIN: Duration = Duration::from_secs(10);
/// Requests at once on one h2c connection.
const STREAMS: u32 = 64;
/// How often an h2c peer is asked whether it is there, and how long it has to answer.
const PING: Duration = Duration::from_secs(20);
/// How long telling a peer that it was too slow may take.
const LAST_WORD: Duration = Duration::from_secs(3);
/// How long an unused h2c connection may take for its goodbye and for what was answered and is still on its way: a peer that is slow,
/// or that does not ask for more of it. One that answers no pings, or takes nothing at all, goes sooner.
const LEAVING: Duration = Duration::from_secs(5 * 60);
/// Pause after a failed accept (out of descriptors, mostly), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What is served.
#[derive(Debug, Clone)]
pub struct Served {
    router: Router,
    figures: Figures,
}

impl From<Router> for Served {
    /// Counts for nobody.
    fn from(router: Router) -> Self {
        Self { router, figures: Figures::default() }
    }
}

impl Served {
    pub(crate) fn new(router: Router, figures: Figures) -> Self {
        Self { router, figures }
    }
}

/// Serves on every listener until `stop`, then finishes what is open for at most 10 s.
pub async fn serve(listeners: Vec<TcpListener>, served: impl Into<Served>, stop: CancellationToken) {
    let served = served.into();
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut accepting = JoinSet::new();
    for listener in listeners {
        accepting.spawn(accept_loop(listener, served.clone(), room.clone(), stop.clone()));
    }
    while let Some(ended) = accepting.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a listener's task failed");
            stop.cancel();
        }
    }
}

async fn accept_loop(listener: TcpListener, served: Served, room: Arc<Semaphore>, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => {}
            (stream, permit) = accept(&listener, &room) => {
                let connection = connection(stream, served.clone(), stop.clone());
                connections.spawn(async move {
                    connection.await;
                    drop(permit);
                });
            }
        }
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(FIRST_REQUEST + DRAIN, all).await.is_err() {
        tracing::warn!(open = connections.len(), "requests that did not end in time are cut");
    }
    // What is left is aborted when the set goes.
}

/// Waits for room first, so that what does not fit stays in the backlog.
async fn accept(listener: &TcpListener, room: &Arc<Semaphore>) -> (TcpStream, tokio::sync::OwnedSemaphorePermit) {
    let permit = room.clone().acquire_owned().await.expect("nobody closes this semaphore");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, permit),
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, served: Served, stop: CancellationToken) {
    // Small answers go out at once. A socket that refuses the option works without it.
    let _ = stream.set_nodelay(true);
    speak(stream, served, stop).await;
}

async fn speak<S>(stream: S, served: Served, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let asked = CancellationToken::new();
    let turn = Arc::new(Turn::default());
    let streams = Streams::default();
    let figures = served.figures.clone();
    let service = {
        let (asked, turn, streams) = (asked.clone(), turn.clone(), streams.clone());
        service_fn(move |request: http::Request<Incoming>| {
            asked.cancel();
            turn.begin(request.version());
            let open = streams.open(request.version());
            let (router, turn) = (served.router.clone(), turn.clone());
            async move {
                let answer = router.oneshot(request).await.unwrap_or_else(|never| match never {});
                Ok::<_, Infallible>(answer.map(|body| Answer::new(body, turn, open)))
            }
        })
    };
    let builder = builder();
    let stream = Documented::new(Lingering::new(stream), turn.clone(), figures);
    let mut serving = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let outcome = tokio::select! {
        biased;
        outcome = serving.as_mut() => outcome,
        () = silence(&asked) => {
            turn.expire();
            return drop(tokio::time::timeout(LAST_WORD, serving).await);
        }
        () = streams.unused(HEAD) => {
            serving.as_mut().graceful_shutdown();
            tokio::select! {
                biased;
                outcome = serving.as_mut() => outcome,
                // It ends by itself once all is sent, a request that crossed our goodbye too. What the library has in hand to send is
                // not seen here, so that nothing being open is no reason to end it at once.
                () = streams.unused(LEAVING) => return,
            }
        }
        () = stop.cancelled() => {
            let ended = tokio::select! {
                biased;
                outcome = serving.as_mut() => Some(outcome),
                // What was accepted a moment ago has its first request on the way, and the library would close it as unused.
                _ = tokio::time::timeout(FIRST_REQUEST, asked.cancelled()) => None,
            };
            if let Some(outcome) = ended {
                outcome
            } else {
                // One between two requests is closed at once.
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(error = &*error, "a connection ended");
    }
}

/// Resolves when a connection has not brought its first request in time: until the protocol is known, its own timers do not run.
async fn silence(asked: &CancellationToken) {
    if tokio::time::timeout(HEAD, asked.cancelled()).await.is_ok() {
        std::future::pending::<()>().await;
    }
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(u32::try_from(HEAD_BYTES).expect("64 Ki fits"))
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    builder
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use bytes::Bytes;
    use http_body_util::{BodyExt as _, Empty};
    use hyper::client::conn::http2;
    use tokio::time::{Instant, sleep};

    use super::*;

    const ANSWER: &str = "an answer";

    /// A client over h2c that takes one byte at a time of an answer, with one that has come, and the server's end of it.
    async fn slow(
        clients: &mut JoinSet<()>,
    ) -> (http2::SendRequest<Empty<Bytes>>, http::Response<Incoming>, JoinSet<()>) {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let served = Served::from(Router::new().route("/", get(|| async { ANSWER })));
        let mut serving = JoinSet::new();
        serving.spawn(speak(far, served, CancellationToken::new()));
        let mut builder = http2::Builder::new(TokioExecutor::new());
        let client = builder.initial_stream_window_size(1).handshake(TokioIo::new(near));
        let (mut sender, connection) = client.await.unwrap();
        clients.spawn(async move { drop(connection.await) });
        let request = http::Request::get("http://node/").body(Empty::new()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        (sender, response, serving)
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_slow_peer_was_answered_is_sent_to_its_end_on_a_connection_that_is_closed_as_idle() {
        let mut clients = JoinSet::new();
        let (_sender, response, mut serving) = slow(&mut clients).await;
        sleep(HEAD * 2).await;
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), ANSWER);
        let read = Instant::now();
        serving.join_next().await.unwrap().unwrap();
        assert!(read.elapsed() < HEAD, "and then it ends");
    }

    #[tokio::test(start_paused = true)]
    async fn an_h2c_connection_is_closed_as_idle_also_when_its_peer_never_takes_its_answer() {
        for (takes, limit) in [(true, HEAD * 2), (false, HEAD + 2 * LEAVING)] {
            let mut clients = JoinSet::new();
            let began = Instant::now();
            let (_sender, response, mut serving) = slow(&mut clients).await;
            let mut response = Some(response);
            if takes && let Some(response) = response.take() {
                assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), ANSWER);
            }
            serving.join_next().await.unwrap().unwrap();
            assert!((HEAD..limit).contains(&began.elapsed()), "{takes}: {:?}", began.elapsed());
        }
    }
}

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
use scafo_proto::open::{Streams, taken_within};
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

/// Connections at once: half of the 1,024 descriptors that a process has by default, the rest is for files and sockets. One more waits
/// until another one ends; the supervisor does not come this way, so that a full server is not taken for a hung one.
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
const LEAVING: Duration = STALLED;
/// How long an h2c peer may take nothing of an answer, as it says by the window that it grants. 5 min: a paused download is resumed or
/// given up by then.
const STALLED: Duration = Duration::from_secs(5 * 60);
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
    serve_within(CONNECTIONS, listeners, served.into(), stop).await;
}

/// As [`serve`], at most so many connections at once.
async fn serve_within(most: usize, listeners: Vec<TcpListener>, served: Served, stop: CancellationToken) {
    let room = Arc::new(Semaphore::new(most));
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

/// Runs the tasks that the library starts for streams, for no longer than their peers take something. They end with their connection.
#[derive(Debug, Clone)]
struct Watched;

impl<F> hyper::rt::Executor<F> for Watched
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, task: F) {
        let watched = async move {
            if taken_within(STALLED, task).await.is_none() {
                tracing::debug!("a peer took nothing of its answer for too long");
            }
        };
        hyper::rt::Executor::execute(&TokioExecutor::new(), watched);
    }
}

fn builder() -> auto::Builder<Watched> {
    let mut builder = auto::Builder::new(Watched);
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
    use axum::body::Body;
    use axum::routing::get;
    use bytes::Bytes;
    use futures_util::{StreamExt as _, stream};
    use http_body_util::{BodyExt as _, Empty};
    use hyper::client::conn::http2;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use scafo_proto::figures::{ask, say};
    use scafo_proto::transport;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixListener;
    use tokio::time::{Instant, sleep, timeout};

    use super::*;

    const ANSWER: &str = "an answer";

    /// What is served: an answer of one piece, one of two pieces, and one that never says anything.
    fn router() -> Router {
        let pieces = || async { Body::from_stream(stream::iter([ANSWER, ANSWER]).map(Ok::<_, Infallible>)) };
        let silent = || async { Body::from_stream(stream::pending::<Result<Bytes, Infallible>>()) };
        Router::new().route("/", get(|| async { ANSWER })).route("/pieces", get(pieces)).route("/silent", get(silent))
    }

    type Sender = http2::SendRequest<Empty<Bytes>>;

    /// A client over h2c that takes so many bytes of an answer at a time, and the server's end of it.
    async fn taking(window: u32, clients: &mut JoinSet<()>) -> (Sender, JoinSet<()>) {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let mut serving = JoinSet::new();
        serving.spawn(speak(far, Served::from(router()), CancellationToken::new()));
        let mut builder = http2::Builder::new(TokioExecutor::new());
        let client = builder.initial_stream_window_size(window).handshake(TokioIo::new(near));
        let (sender, connection) = client.await.unwrap();
        clients.spawn(async move { drop(connection.await) });
        (sender, serving)
    }

    async fn get_from(sender: &mut Sender, path: &str) -> http::Response<Incoming> {
        let request = http::Request::get(format!("http://node{path}")).body(Empty::new()).unwrap();
        sender.send_request(request).await.unwrap()
    }

    /// One that takes one byte at a time of an answer, with one that has come.
    async fn slow(clients: &mut JoinSet<()>) -> (Sender, http::Response<Incoming>, JoinSet<()>) {
        let (mut sender, serving) = taking(1, clients).await;
        let response = get_from(&mut sender, "/").await;
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

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_grants_no_window_is_let_go() {
        for path in ["/", "/pieces"] {
            let mut clients = JoinSet::new();
            let began = Instant::now();
            let (mut sender, mut serving) = taking(0, &mut clients).await;
            let response = get_from(&mut sender, path).await;
            timeout(STALLED * 10, serving.join_next()).await.unwrap().unwrap().unwrap();
            assert!((STALLED..HEAD + 2 * STALLED).contains(&began.elapsed()), "{path}: {:?}", began.elapsed());
            assert!(response.into_body().collect().await.is_err(), "{path}: it was cut off");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_taken_ends_alone_and_one_that_says_nothing_yet_goes_on() {
        let mut clients = JoinSet::new();
        let (mut sender, mut serving) = taking(0, &mut clients).await;
        let mut silent = get_from(&mut sender, "/silent").await.into_body();
        let mut untaken = get_from(&mut sender, "/pieces").await.into_body();
        let began = Instant::now();
        assert!(timeout(STALLED * 10, untaken.frame()).await.unwrap().unwrap().is_err());
        assert!((STALLED..STALLED + HEAD).contains(&began.elapsed()), "{:?}", began.elapsed());
        assert!(timeout(STALLED * 10, silent.frame()).await.is_err(), "nothing was said, and nothing ended");
        assert!(serving.try_join_next().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_peer_that_takes_a_byte_now_and_then_gets_all_of_an_answer() {
        let mut clients = JoinSet::new();
        let (mut sender, _serving) = taking(1, &mut clients).await;
        let mut body = get_from(&mut sender, "/pieces").await.into_body();
        let began = Instant::now();
        // Once the first piece is gone the last one is in the library's hands: this is about an answer in the middle of its way.
        for _ in ANSWER.bytes() {
            sleep(STALLED - Duration::from_secs(1)).await;
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), 1);
        }
        assert!(began.elapsed() > STALLED * 5);
        assert_eq!(body.collect().await.unwrap().to_bytes(), ANSWER);
    }

    /// Asks on a connection that stays open.
    async fn ask_on(stream: &mut TcpStream) {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        answered_on(stream).await;
    }

    async fn answered_on(stream: &mut TcpStream) {
        let mut answer = Vec::new();
        while !answer.ends_with(ANSWER.as_bytes()) {
            assert!(stream.read_buf(&mut answer).await.unwrap() > 0);
        }
    }

    #[tokio::test]
    async fn a_connection_that_does_not_fit_waits_until_one_ends_and_a_question_for_life_does_not() {
        // Both ends of all connections are in this process.
        let files = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: files.maximum, maximum: files.maximum }).unwrap();
        for most in [2, CONNECTIONS] {
            let dir = tempfile::tempdir().unwrap();
            let socket = dir.path().join("sock");
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let mut tasks = JoinSet::new();
            tasks.spawn(serve_within(most, vec![listener], Served::from(router()), CancellationToken::new()));
            tasks.spawn(say(UnixListener::bind(&socket).unwrap(), || std::future::ready("alive\n".to_owned())));
            let mut open = Vec::new();
            for _ in 0..most {
                let mut stream = TcpStream::connect(address).await.unwrap();
                ask_on(&mut stream).await;
                open.push(stream);
            }
            let mut late = TcpStream::connect(address).await.unwrap();
            late.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
            for stream in &mut open {
                ask_on(stream).await;
            }
            let alive = ask(transport::channel(&socket), Duration::from_secs(60)).await;
            assert_eq!(alive.as_deref(), Some("alive\n"));
            let error = late.try_read(&mut [0; 1]).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "nobody answers the one after {most}");
            drop(open.pop());
            answered_on(&mut late).await;
        }
    }
}

//! Accepting connections, serving HTTP/1.1 and HTTP/2 without TLS on them, and ending them.

use std::{convert::Infallible, future::Future, io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use http::Request;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
};
use rustix::{
    net::sockopt,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use scafo_proto::open::{Streams, taken_within};
use scafo_proxy::headers::MOST_FIELDS;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    answer::Counted,
    front::{Front, Origin},
};

/// How long a client may take to send one head; also how long a connection may stay unused between two requests, whatever version of
/// HTTP it speaks.
const HEAD_LIMIT: Duration = Duration::from_secs(30);

/// How long a connection that has not brought its first request yet may take for it once this process is to end. Whoever connected before that
/// was told that somebody listens.
const FIRST_REQUEST: Duration = Duration::from_millis(500);

/// How long an unused HTTP/2 connection may take for its goodbye and for what was answered and is still on its way: a client that is
/// slow, or that does not ask for more of it. One that answers no pings goes sooner.
const LAST_WORD: Duration = STALLED_LIMIT;

/// Most requests at a time on one HTTP/2 connection; the least that RFC 9113 §6.5.2 recommends.
const MOST_STREAMS: u32 = 100;

/// Largest head. 64 KiB: the request line and cookies of honest clients stay below 16 KiB, and upstreams take no more.
const LARGEST_HEAD: usize = 64 * 1024;

/// How often an HTTP/2 client is asked for a sign of life, and how long it may take to give it.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_LIMIT: Duration = Duration::from_secs(20);

/// When the kernel starts to ask a silent peer for a sign of life. A peer that vanished without a word is noticed after
/// this and the kernel's own nine probes; idle WebSockets are told from dead ones by it.
const TCP_KEEPALIVE: Duration = Duration::from_secs(60);

/// How long a client may take nothing of what is sent to it. 5 min: a paused download is resumed or given up by then,
/// and what it holds at the upstream is freed.
const STALLED_LIMIT: Duration = Duration::from_secs(300);

/// Pause after `accept` failed for want of a resource: long enough for something to end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How many connections, requests and tunnels fit into the file descriptors of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
    pub(crate) connections: usize,
    pub(crate) requests: usize,
    pub(crate) tunnels: usize,
}

impl Capacity {
    /// Raises the limit on open files as far as this process may, and shares it out.
    pub(crate) fn claim() -> Self {
        let limit = getrlimit(Resource::Nofile);
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        let current = if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
        Self::of(current.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX)))
    }

    /// Half for connections with one request to an upstream each, half for tunnels, which have two ends; 128 are kept
    /// for idle connections to upstreams, polls and the runtime. No more than 65,536 each: beyond that memory is the
    /// limit.
    fn of(files: usize) -> Self {
        let quarter = (files.saturating_sub(128) / 4).clamp(16, 65_536);
        Self { connections: quarter, requests: quarter, tunnels: quarter }
    }
}

/// Owns every connection of the daemon.
pub(crate) struct Connections {
    front: Arc<Front>,
    builder: auto::Builder<Owned>,
    places: Arc<Semaphore>,
    tasks: TaskTracker,
    drain: CancellationToken,
    cut: CancellationToken,
}

impl Connections {
    pub(crate) fn new(front: Front, places: Arc<Semaphore>) -> Arc<Self> {
        let (tasks, cut) = (TaskTracker::new(), CancellationToken::new());
        let mut builder = auto::Builder::new(Owned { tasks: tasks.clone(), cut: cut.clone() });
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_LIMIT)
            .max_buf_size(LARGEST_HEAD)
            .max_headers(MOST_FIELDS);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(MOST_STREAMS)
            .max_header_list_size(LARGEST_HEAD as u32)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_LIMIT);
        Arc::new(Self { front: Arc::new(front), builder, places, tasks, drain: CancellationToken::new(), cut })
    }

    /// Accepts until it is dropped. A connection that does not fit waits in the backlog.
    pub(crate) async fn accept(self: Arc<Self>, listener: TcpListener) {
        loop {
            // The semaphore is never closed; were it, nothing more could be accepted.
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let connections = Arc::clone(&self);
                    self.tasks.spawn(async move {
                        connections.serve(stream, peer).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Lets what is under way end within `grace`, closes unused connections at once, then cuts the rest. Answers how many
    /// connections were cut.
    pub(crate) async fn end(&self, grace: Duration) -> usize {
        self.drain.cancel();
        self.tasks.close();
        let in_time = timeout(grace, self.tasks.wait()).await.is_ok();
        let left = if in_time { 0 } else { self.tasks.len() };
        self.cut.cancel();
        // Each task sees the token at its next await, so this cannot hang.
        self.tasks.wait().await;
        left
    }

    async fn serve(&self, stream: TcpStream, peer: SocketAddr) {
        if let Err(error) = prepare(&stream) {
            tracing::debug!(%peer, %error, "a client left before it was served");
            return;
        }
        let origin = Origin::of(peer.ip(), stream.local_addr().ok().map(|own| own.ip()));
        self.speak(stream, origin).await;
    }

    async fn speak<S>(&self, stream: S, origin: Origin)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (asked, streams) = (CancellationToken::new(), Streams::default());
        let service = {
            let (front, asked, streams) = (Arc::clone(&self.front), asked.clone(), streams.clone());
            hyper::service::service_fn(move |request: Request<Incoming>| {
                asked.cancel();
                let (front, open) = (Arc::clone(&front), streams.open(request.version()));
                async move {
                    let response = front.answer(origin, request).await;
                    Ok::<_, Infallible>(response.map(|answer| Counted { answer, _open: open }))
                }
            })
        };
        let mut connection = pin!(self.builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
        let ended = tokio::select! {
            biased;
            () = self.cut.cancelled() => return,
            ended = &mut connection => ended,
            () = silence(&asked) => return,
            () = streams.unused(HEAD_LIMIT) => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    biased;
                    () = self.cut.cancelled() => return,
                    ended = &mut connection => ended,
                    // It ends by itself once all is sent, a request that crossed our goodbye too. What the library has in hand to send
                    // is not seen here, so that nothing being open is no reason to end it at once.
                    () = streams.unused(LAST_WORD) => return,
                }
            }
            () = self.drain.cancelled() => {
                let ended = tokio::select! {
                    biased;
                    () = self.cut.cancelled() => return,
                    ended = &mut connection => Some(ended),
                    // What was accepted a moment ago has its first request on the way.
                    _ = timeout(FIRST_REQUEST, asked.cancelled()) => None,
                };
                if let Some(ended) = ended {
                    ended
                } else {
                    connection.as_mut().graceful_shutdown();
                    tokio::select! {
                        biased;
                        () = self.cut.cancelled() => return,
                        ended = &mut connection => ended,
                    }
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(peer = %origin.peer, error, "a client's connection ended");
        }
    }
}

/// Resolves when a connection has not brought its first request in time. hyper's own limit for heads starts only when it
/// knows which version of HTTP is spoken, and a client may never say.
async fn silence(asked: &CancellationToken) {
    if timeout(HEAD_LIMIT, asked.cancelled()).await.is_ok() {
        std::future::pending::<()>().await;
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, TCP_KEEPALIVE)?;
    sockopt::set_tcp_user_timeout(stream, u32::try_from(STALLED_LIMIT.as_millis()).unwrap_or(u32::MAX))?;
    Ok(())
}

/// Runs the tasks that hyper starts for HTTP/2 streams, as part of the connections and for no longer than their clients take something.
#[derive(Clone)]
struct Owned {
    tasks: TaskTracker,
    cut: CancellationToken,
}

impl<F> hyper::rt::Executor<F> for Owned
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, task: F) {
        let cut = self.cut.clone();
        self.tasks.spawn(async move {
            let taken = taken_within(STALLED_LIMIT, task);
            if matches!(cut.run_until_cancelled_owned(taken).await, Some(None)) {
                tracing::debug!("a client took nothing of its answer for too long");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use bytes::Bytes;
    use http_body_util::{BodyExt as _, Empty};
    use hyper::client::conn::{http1, http2};
    use hyper_util::rt::TokioExecutor;
    use scafo_proto::{
        figures::{ask, say},
        transport,
    };
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
        net::UnixListener,
        sync::watch,
        task::JoinSet,
        time::Instant,
    };

    use super::*;
    use crate::{
        decide::Routing,
        document::Table,
        figures::{Figures, Places},
    };

    /// A connection to an ingress without fleets, and its end of it.
    fn connected() -> (DuplexStream, JoinSet<()>) {
        let (near, serving, _) = connected_to(Routing::silent(0));
        (near, serving)
    }

    /// A connection to an ingress that routes like this, its end of it, and its places: two for requests.
    fn connected_to(routing: Routing) -> (DuplexStream, JoinSet<()>, Places) {
        let (_, routing) = watch::channel(Arc::new(routing));
        let places = Places::new(Capacity { connections: 1, requests: 2, tunnels: 0 });
        let front = Front::new(routing, &places, Duration::ZERO, Figures::default());
        let connections = Connections::new(front, Arc::clone(&places.connections));
        let (near, far) = duplex(64 * 1024);
        let mut serving = JoinSet::new();
        let origin = Origin::of(IpAddr::from([127, 0, 0, 1]), None);
        serving.spawn(async move { connections.speak(far, origin).await });
        (near, serving, places)
    }

    /// A client over HTTP/2 that grants so much of a window for each stream.
    async fn granting(window: u32, near: DuplexStream, clients: &mut JoinSet<()>) -> http2::SendRequest<Empty<Bytes>> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        let client = builder.initial_stream_window_size(window).handshake(TokioIo::new(near));
        let (sender, connection) = client.await.unwrap();
        clients.spawn(async move { drop(connection.await) });
        sender
    }

    /// The host of an application, and a document that routes to it. It answers each request with a head and what `path` names:
    /// `/pieces` two pieces, `/silent` nothing yet.
    async fn application(tasks: &mut JoinSet<()>) -> Routing {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstreams = serde_json::json!([{"node": "n", "address": listener.local_addr().unwrap().to_string()}]);
        let routes = serde_json::json!([{"host": HOST, "application": "shop", "upstreams": upstreams}]);
        let document = serde_json::json!({"v": 1, "routes": routes}).to_string();
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                open.spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        assert!(stream.read_buf(&mut head).await.unwrap() > 0);
                    }
                    let pieces = if head.starts_with(b"GET /pieces ") { PIECES } else { "" };
                    let answer = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{pieces}");
                    stream.write_all(answer.as_bytes()).await.unwrap();
                    // Until the other side closes.
                    drop(stream.read(&mut [0; 1]).await);
                });
            }
        });
        Routing::silent(1).with(0, Arc::new(Table::parse(document.as_bytes()).unwrap()))
    }

    const HOST: &str = "shop.example";
    const PIECES: &str = "7\r\nseveral\r\n6\r\npieces\r\n0\r\n\r\n";

    async fn get_from(sender: &mut http2::SendRequest<Empty<Bytes>>, path: &str) -> Incoming {
        let request = Request::get(format!("http://{HOST}{path}")).body(Empty::new()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), 200);
        response.into_body()
    }

    fn request() -> Request<Empty<Bytes>> {
        Request::get("http://nobody.example/").header("host", "nobody.example").body(Empty::new()).unwrap()
    }

    /// Asks three times, each time just before the connection would have been unused for too long, and then no more: how long the
    /// connection is kept after that.
    async fn kept(mut serving: JoinSet<()>, mut ask: impl AsyncFnMut() -> http::StatusCode) -> Duration {
        for _ in 0..3 {
            sleep(HEAD_LIMIT - Duration::from_secs(1)).await;
            assert_eq!(ask().await, 404);
        }
        let used = Instant::now();
        serving.join_next().await.unwrap().unwrap();
        used.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_unused_is_closed_whatever_version_of_http_it_speaks() {
        let mut clients = JoinSet::new();
        let (near, serving) = connected();
        let (mut sender, connection) = http1::handshake(TokioIo::new(near)).await.unwrap();
        clients.spawn(async move { drop(connection.await) });
        let one = kept(serving, async || sender.send_request(request()).await.unwrap().status()).await;
        let (near, serving) = connected();
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(near)).await.unwrap();
        clients.spawn(async move { drop(connection.await) });
        let two = kept(serving, async || sender.send_request(request()).await.unwrap().status()).await;
        for kept in [one, two] {
            assert!((HEAD_LIMIT..HEAD_LIMIT * 2).contains(&kept), "HTTP/1.1: {one:?}, HTTP/2: {two:?}");
        }
    }

    /// A client over HTTP/2 that takes one byte at a time of an answer, with one that has come.
    async fn slow(
        clients: &mut JoinSet<()>,
    ) -> (http2::SendRequest<Empty<Bytes>>, http::Response<Incoming>, JoinSet<()>) {
        let (near, serving) = connected();
        let mut sender = granting(1, near, clients).await;
        let response = sender.send_request(request()).await.unwrap();
        (sender, response, serving)
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_slow_client_was_answered_is_sent_to_its_end_on_a_connection_that_is_closed_as_unused() {
        let mut clients = JoinSet::new();
        let (_sender, response, mut serving) = slow(&mut clients).await;
        let length = response.headers()[http::header::CONTENT_LENGTH].to_str().unwrap().parse::<usize>().unwrap();
        assert!(length > 1);
        sleep(HEAD_LIMIT * 2).await;
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), length);
        let read = Instant::now();
        serving.join_next().await.unwrap().unwrap();
        assert!(read.elapsed() < HEAD_LIMIT, "and then it ends");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_takes_its_answer_does_not_keep_an_unused_connection() {
        let mut clients = JoinSet::new();
        let began = Instant::now();
        let (_sender, _response, mut serving) = slow(&mut clients).await;
        serving.join_next().await.unwrap().unwrap();
        assert!(began.elapsed() < HEAD_LIMIT + 2 * LAST_WORD, "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn a_client_that_grants_no_window_is_let_go_and_its_place_is_free() {
        let mut tasks = JoinSet::new();
        let (near, mut serving, places) = connected_to(application(&mut tasks).await);
        let mut sender = granting(0, near, &mut tasks).await;
        let body = get_from(&mut sender, "/pieces").await;
        assert_eq!(places.requests.available_permits(), 1);
        // What the application says is there: from here on only the clock moves.
        tokio::time::pause();
        let began = Instant::now();
        timeout(STALLED_LIMIT * 10, serving.join_next()).await.unwrap().unwrap().unwrap();
        assert!((STALLED_LIMIT..HEAD_LIMIT + 2 * STALLED_LIMIT).contains(&began.elapsed()), "{:?}", began.elapsed());
        assert_eq!(places.requests.available_permits(), 2);
        assert!(body.collect().await.is_err(), "it was cut off");
    }

    #[tokio::test]
    async fn an_answer_that_is_not_taken_ends_alone_and_one_that_says_nothing_yet_goes_on() {
        let mut tasks = JoinSet::new();
        let (near, mut serving, places) = connected_to(application(&mut tasks).await);
        let mut sender = granting(0, near, &mut tasks).await;
        let mut silent = get_from(&mut sender, "/silent").await;
        // Before it is asked for: the answer may be on offer as soon as its head has come.
        let began = Instant::now();
        let mut untaken = get_from(&mut sender, "/pieces").await;
        tokio::time::pause();
        assert!(timeout(STALLED_LIMIT * 10, untaken.frame()).await.unwrap().unwrap().is_err());
        assert!((STALLED_LIMIT..STALLED_LIMIT + HEAD_LIMIT).contains(&began.elapsed()), "{:?}", began.elapsed());
        assert_eq!(places.requests.available_permits(), 1);
        assert!(timeout(STALLED_LIMIT * 10, silent.frame()).await.is_err(), "nothing was said, and nothing ended");
        assert!(serving.try_join_next().is_none());
        assert_eq!(places.requests.available_permits(), 1);
    }

    #[tokio::test]
    async fn a_slow_client_that_takes_a_byte_now_and_then_gets_all_of_an_answer() {
        let mut tasks = JoinSet::new();
        let (near, _serving, _places) = connected_to(application(&mut tasks).await);
        let mut sender = granting(1, near, &mut tasks).await;
        let mut body = get_from(&mut sender, "/pieces").await;
        tokio::time::pause();
        let began = Instant::now();
        for _ in "several".bytes() {
            sleep(STALLED_LIMIT - Duration::from_secs(1)).await;
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), 1);
        }
        assert!(began.elapsed() > STALLED_LIMIT * 5);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "pieces");
    }

    /// Asks something that is answered at once, or only reads the answer, on a connection that stays open.
    async fn served(stream: &mut TcpStream, asks: bool) {
        if asks {
            stream.write_all(QUESTION.as_bytes()).await.unwrap();
        }
        let mut answer = Vec::new();
        while !answer.ends_with(b"}") {
            assert!(stream.read_buf(&mut answer).await.unwrap() > 0);
        }
    }

    const QUESTION: &str = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";

    #[tokio::test]
    async fn a_connection_that_does_not_fit_waits_until_one_ends_and_a_question_for_life_does_not() {
        let (_, routing) = watch::channel(Arc::new(Routing::silent(0)));
        let places = Places::new(Capacity { connections: 2, requests: 2, tunnels: 0 });
        let front = Front::new(routing, &places, Duration::ZERO, Figures::default());
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("sock");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(Connections::new(front, places.connections).accept(listener));
        tasks.spawn(say(UnixListener::bind(&socket).unwrap(), || std::future::ready("alive\n".to_owned())));
        let mut open = [TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap()];
        for stream in &mut open {
            served(stream, true).await;
        }
        let mut late = TcpStream::connect(address).await.unwrap();
        late.write_all(QUESTION.as_bytes()).await.unwrap();
        for stream in &mut open {
            served(stream, true).await;
        }
        let alive = ask(transport::channel(&socket), Duration::from_secs(60)).await;
        assert_eq!(alive.as_deref(), Some("alive\n"));
        assert_eq!(late.try_read(&mut [0; 1]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(open);
        served(&mut late, false).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_says_nothing_is_let_go() {
        let (_near, mut serving) = connected();
        let begun = Instant::now();
        serving.join_next().await.unwrap().unwrap();
        assert_eq!(begun.elapsed().as_secs(), HEAD_LIMIT.as_secs());
    }

    /// What a connection to an ingress brings until it is closed, after these bytes.
    async fn answered(request: &str) -> String {
        let (mut near, _serving) = connected();
        let mut got = String::new();
        let (mut reading, mut writing) = tokio::io::split(&mut near);
        // A request that is refused need not be taken to its end.
        let (read, _) = tokio::join!(reading.read_to_string(&mut got), writing.write_all(request.as_bytes()));
        read.unwrap();
        got
    }

    #[tokio::test]
    async fn a_head_beyond_the_bound_is_refused_and_a_long_one_within_it_is_read() {
        // hyper looks at the bound between two reads, and one read takes no more than that again.
        for (bytes, expected) in [(LARGEST_HEAD - 1024, "HTTP/1.1 404 "), (2 * LARGEST_HEAD, "HTTP/1.1 431 ")] {
            let long = "a".repeat(bytes);
            let head = format!("GET / HTTP/1.1\r\nhost: nobody.example\r\nconnection: close\r\nx-long: {long}\r\n\r\n");
            let got = answered(&head).await;
            assert!(got.starts_with(expected), "{bytes}: {got}");
        }
    }

    #[tokio::test]
    async fn a_head_beyond_the_bound_is_refused_over_http2_too() {
        let mut clients = JoinSet::new();
        let (near, _serving) = connected();
        let mut sender = granting(65_535, near, &mut clients).await;
        for (bytes, expected) in [(LARGEST_HEAD - 1024, 404), (LARGEST_HEAD, 431)] {
            let mut request = request();
            request.headers_mut().insert("x-long", "a".repeat(bytes).parse().unwrap());
            assert_eq!(sender.send_request(request).await.unwrap().status(), expected, "{bytes}");
        }
    }

    /// The kinds of frames that are sent or looked at here (RFC 9113 §6).
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    const SETTINGS: u8 = 4;

    /// Says hello over HTTP/2 without a library, which would keep its rules.
    async fn hello(near: &mut DuplexStream) {
        near.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        near.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
    }

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        let mut bytes = vec![0, 0, length, kind, flags, 0, 0, 0, stream];
        bytes.extend_from_slice(payload);
        bytes
    }

    /// The next frame of one of these kinds: its kind and what is in it.
    async fn next(near: &mut DuplexStream, kinds: &[u8]) -> (u8, Vec<u8>) {
        loop {
            let mut head = [0; 9];
            near.read_exact(&mut head).await.unwrap();
            let [a, b, c, kind, ..] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            near.read_exact(&mut payload).await.unwrap();
            if kinds.contains(&kind) {
                return (kind, payload);
            }
        }
    }

    #[tokio::test]
    async fn an_http2_client_is_told_how_many_streams_it_may_open_and_how_long_a_head_may_be() {
        let (mut near, _serving) = connected();
        hello(&mut near).await;
        let (_, settings) = next(&mut near, &[SETTINGS]).await;
        let said = |name: u16, value: u32| {
            let entry = [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
            settings.chunks(6).any(|chunk| chunk == entry)
        };
        // SETTINGS_MAX_CONCURRENT_STREAMS and SETTINGS_MAX_HEADER_LIST_SIZE.
        assert!(said(3, MOST_STREAMS) && said(6, LARGEST_HEAD as u32), "{settings:?}");
    }

    #[tokio::test]
    async fn a_length_without_a_body_over_http2_never_becomes_a_request() {
        let mut tasks = JoinSet::new();
        let (mut near, _serving, _places) = connected_to(application(&mut tasks).await);
        hello(&mut near).await;
        // A POST of `/` over http to the host, in the static table's numbers, with a length of one digit (RFC 7541 §6, appendix A).
        let asking = |digit: u8| {
            let host = [&[0x41, u8::try_from(HOST.len()).unwrap()], HOST.as_bytes()].concat();
            [&[0x83, 0x86, 0x84][..], &host, &[0x5c, 1, digit]].concat()
        };
        let (ends, whole) = (0x1, 0x4);
        for (stream, digit, expected) in [(1, b'5', RST_STREAM), (3, b'0', HEADERS)] {
            near.write_all(&frame(HEADERS, ends | whole, stream, &asking(digit))).await.unwrap();
            let (kind, payload) = next(&mut near, &[HEADERS, RST_STREAM]).await;
            assert_eq!(kind, expected, "{payload:?}");
        }
    }

    #[test]
    fn everything_open_at_once_fits_into_the_file_descriptors() {
        for files in [256, 1024, 65_536, usize::MAX] {
            let capacity = Capacity::of(files);
            let open = capacity.connections + capacity.requests + 2 * capacity.tunnels;
            assert!(open + 128 <= files, "{files}: {capacity:?}");
        }
    }
}

//! The promises of the crate over real connections.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream, UnixListener},
    sync::{Notify, mpsc, watch},
    task::JoinSet,
    time::timeout,
};
use tokio_tungstenite::{WebSocketStream, tungstenite::Message};

use crate::{
    FailureKind, Forwarder, Limits, Outbound, Tunnels, Upstream,
    headers::MOST_FIELDS,
    testing::{
        AnyBody, PATIENCE, Server, answer, channel, eventually, front, full, raw, read_head, request, serve, text,
    },
};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

fn forwarder() -> Forwarder<AnyBody> {
    Forwarder::new(Limits { idle: PATIENCE, idle_unrepeatable: PATIENCE, ..Limits::default() })
}

/// Answers with what came in: method, target, fields in order of name, body.
async fn describe(request: Request<Incoming>) -> Response<AnyBody> {
    let (head, body) = request.into_parts();
    let mut fields: Vec<String> =
        head.headers.iter().map(|(name, value)| format!("{name}={}", value.to_str().unwrap())).collect();
    fields.sort();
    let body = body.collect().await.unwrap().to_bytes();
    let body = String::from_utf8_lossy(&body);
    let seen = format!("{} {} {} [{body}]", head.method, head.uri, fields.join(" "));
    Response::builder()
        .header("connection", "x-hop")
        .header("x-hop", "1")
        .header("x-end", "2")
        .body(full(&seen))
        .unwrap()
}

#[tokio::test]
async fn a_request_arrives_as_it_was_without_hop_by_hop_fields() {
    let server = serve(describe).await;
    let mut outbound = request("PUT", full("abc"));
    outbound.headers_mut().insert("x-set", http::HeaderValue::from_static("yes"));
    let response = forwarder().forward(&server.upstream(), outbound, &Tunnels::new(1)).await.unwrap();
    assert_eq!(response.headers().get("x-end").unwrap(), "2");
    assert!(!response.headers().contains_key("x-hop") && !response.headers().contains_key("connection"));
    assert_eq!(text(response).await, "PUT /path?q=1 host=shop.example transfer-encoding=chunked x-set=yes [abc]");
}

#[tokio::test]
async fn a_unix_socket_is_an_upstream_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let serving = async {
        let (stream, _) = listener.accept().await.unwrap();
        answer(stream, describe).await;
    };
    let asking = async {
        let response = forwarder().forward(&Upstream::unix(&path), request("GET", full("")), &Tunnels::new(1)).await;
        text(response.unwrap()).await
    };
    tokio::select! {
        () = serving => panic!("the server ended first"),
        got = asking => assert_eq!(got, "GET /path?q=1 host=shop.example []"),
    }
}

#[tokio::test]
async fn a_connection_is_used_again_for_every_method() {
    let accepted = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&accepted);
    let server = raw(move |_, stream| {
        counted.fetch_add(1, Ordering::SeqCst);
        answer(stream, describe)
    })
    .await;
    let forwarder = forwarder();
    for method in ["GET", "POST", "DELETE", "GET"] {
        let outbound = request(method, full("body"));
        let response = forwarder.forward(&server.upstream(), outbound, &Tunnels::new(1)).await.unwrap();
        assert!(text(response).await.starts_with(method));
        forwarder.until_idle(&server.upstream()).await;
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn the_first_piece_of_a_response_arrives_before_the_last_is_sent() {
    let (sender, body) = channel();
    let body = Arc::new(std::sync::Mutex::new(Some(body)));
    let server = serve(move |_| {
        let body = body.lock().unwrap().take().unwrap();
        async move { Response::new(body) }
    })
    .await;
    let response = forwarder().forward(&server.upstream(), request("GET", full("")), &Tunnels::new(1)).await.unwrap();
    let mut body = response.into_body();
    for piece in ["first", "second"] {
        sender.send(piece).await.unwrap();
        let frame = timeout(PATIENCE, body.frame()).await.unwrap().unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), Bytes::from_static(piece.as_bytes()));
    }
    drop(sender);
    assert!(timeout(PATIENCE, body.frame()).await.unwrap().is_none());
}

#[tokio::test]
async fn the_first_piece_of_a_request_arrives_before_the_last_is_sent() {
    let (seen, mut pieces) = mpsc::channel(4);
    let server = serve(move |request| {
        let seen = seen.clone();
        async move {
            let mut body = request.into_body();
            while let Some(Ok(frame)) = body.frame().await {
                seen.send(frame.into_data().unwrap()).await.unwrap();
            }
            Response::new(full("done"))
        }
    })
    .await;
    let (sender, body) = channel();
    let (forwarder, upstream, tunnels) = (forwarder(), server.upstream(), Tunnels::new(1));
    let asking = forwarder.forward(&upstream, request("POST", body), &tunnels);
    let feeding = async {
        for piece in ["first", "second"] {
            sender.send(piece).await.unwrap();
            assert_eq!(timeout(PATIENCE, pieces.recv()).await.unwrap().unwrap(), Bytes::from_static(piece.as_bytes()));
        }
        drop(sender);
    };
    let (response, ()) = tokio::join!(asking, feeding);
    assert_eq!(text(response.unwrap()).await, "done");
}

#[tokio::test]
async fn a_refused_connection_gives_the_request_back_with_its_body() {
    // Bound and not listening: nobody else gets the port, and connecting is refused.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let nobody = Upstream::from(socket.local_addr().unwrap());
    let failure = forwarder().forward(&nobody, request("POST", full("abc")), &Tunnels::new(1)).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Connect);
    let server = serve(describe).await;
    let outbound = failure.try_into_outbound().unwrap();
    let response = forwarder().forward(&server.upstream(), outbound, &Tunnels::new(1)).await.unwrap();
    assert!(text(response).await.ends_with("[abc]"));
}

/// Reads one request on each connection and closes it.
async fn closes_after_reading() -> Server {
    raw(|_, mut stream| async move {
        read_head(&mut stream).await;
    })
    .await
}

#[tokio::test]
async fn after_a_break_only_an_idempotent_request_without_body_comes_back() {
    let server = closes_after_reading().await;
    for (method, body, back) in [("GET", "", true), ("DELETE", "", true), ("POST", "", false), ("PUT", "abc", false)] {
        let outbound = request(method, full(body));
        let failure = forwarder().forward(&server.upstream(), outbound, &Tunnels::new(1)).await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::Broken, "{method}");
        assert_eq!(failure.outbound().is_some(), back, "{method}");
    }
}

/// Keeps the first connection open after one answer, and closes it on the next request; answers on all others.
async fn closes_a_kept_connection(accepted: Arc<AtomicUsize>) -> Server {
    raw(move |number, mut stream| {
        accepted.fetch_add(1, Ordering::SeqCst);
        async move {
            while read_head(&mut stream).await > 0 {
                stream.write_all(OK).await.unwrap();
                if number == 0 {
                    read_head(&mut stream).await;
                    return;
                }
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_kept_connection_that_closes_under_a_request_is_replaced_only_if_nothing_can_happen_twice() {
    for (method, survives) in [("GET", true), ("POST", false)] {
        let accepted = Arc::new(AtomicUsize::new(0));
        let server = closes_a_kept_connection(Arc::clone(&accepted)).await;
        let (forwarder, upstream, tunnels) = (forwarder(), server.upstream(), Tunnels::new(1));
        text(forwarder.forward(&upstream, request("GET", full("")), &tunnels).await.unwrap()).await;
        forwarder.until_idle(&upstream).await;
        let second = forwarder.forward(&upstream, request(method, full("")), &tunnels).await;
        assert_eq!(second.is_ok(), survives, "{method}");
        assert_eq!(accepted.load(Ordering::SeqCst), if survives { 2 } else { 1 }, "{method}");
    }
}

/// Serves from one to four requests on each connection and closes it, having said so or not.
async fn closes_now_and_then(says_so: bool) -> Server {
    raw(move |number, mut stream| async move {
        let last = number % 4;
        for served in 0..=last {
            if read_head(&mut stream).await == 0 {
                return;
            }
            let close = if says_so && served == last { "connection: close\r\n" } else { "" };
            let answer = format!("HTTP/1.1 200 OK\r\n{close}content-length: 2\r\n\r\nok");
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_upstreams_close_lose_no_request_that_could_be_kept() {
    for (method, says_so) in [("GET", false), ("GET", true), ("POST", true)] {
        let server = closes_now_and_then(says_so).await;
        let forwarder = forwarder();
        let mut clients = JoinSet::new();
        for _ in 0..8 {
            let (forwarder, upstream) = (forwarder.clone(), server.upstream());
            clients.spawn(async move {
                for _ in 0..200 {
                    let sent = forwarder.forward(&upstream, request(method, full("")), &Tunnels::new(0)).await;
                    assert_eq!(text(sent.unwrap()).await, "ok");
                }
            });
        }
        timeout(PATIENCE, clients.join_all()).await.unwrap();
    }
}

#[tokio::test]
async fn an_unused_connection_is_closed_after_its_time() {
    let server = serve(describe).await;
    let forwarder = Forwarder::new(Limits { idle: Duration::from_millis(20), ..Limits::default() });
    let response = forwarder.forward(&server.upstream(), request("GET", full("")), &Tunnels::new(1)).await.unwrap();
    text(response).await;
    eventually("no connection is left", || forwarder.open_connections() == 0).await;
}

#[tokio::test]
async fn only_a_request_with_a_body_may_stay_unread_on_its_connection() {
    let server = serve(describe).await;
    let (forwarder, upstream) = (forwarder(), server.upstream());
    for (method, body, patient) in [("GET", "", false), ("PUT", "abc", true), ("POST", "", false)] {
        let response = forwarder.forward(&upstream, request(method, full(body)), &Tunnels::new(1)).await.unwrap();
        text(response).await;
        forwarder.until_idle(&upstream).await;
        assert_eq!(forwarder.is_patient(&upstream), patient, "{method}");
    }
}

/// A body that fails at once.
fn failing() -> AnyBody {
    let piece: Result<http_body::Frame<Bytes>, crate::BoxError> = Err("the client is gone".into());
    BodyExt::boxed(http_body_util::StreamBody::new(futures_util::stream::iter([piece])))
}

#[tokio::test]
async fn a_request_that_fails_by_itself_closes_no_connection_but_its_own() {
    let server = serve(describe).await;
    let (forwarder, upstream, tunnels) = (forwarder(), server.upstream(), Tunnels::new(1));
    let get = || forwarder.forward(&upstream, request("GET", full("")), &tunnels);
    let (one, other) = tokio::join!(get(), get());
    text(one.unwrap()).await;
    text(other.unwrap()).await;
    eventually("both are idle", || forwarder.idle_connections(&upstream) == 2).await;
    let failure = forwarder.forward(&upstream, request("PUT", failing()), &tunnels).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::RequestBody);
    assert_eq!(forwarder.idle_connections(&upstream), 1);
}

#[tokio::test]
async fn no_response_head_in_time_is_a_failure_of_its_own() {
    let (_hold, held) = watch::channel(());
    let server = raw(move |_, stream| {
        let mut held = held.clone();
        async move {
            held.changed().await.ok();
            drop(stream);
        }
    })
    .await;
    let forwarder = Forwarder::new(Limits { response_head: Some(Duration::from_millis(50)), ..Limits::default() });
    for body in ["", "abc"] {
        let outbound = request("PUT", full(body));
        let failure = forwarder.forward(&server.upstream(), outbound, &Tunnels::new(1)).await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::HeadDeadline);
        assert!(failure.outbound().is_none());
    }
}

#[tokio::test]
async fn a_dropped_attempt_closes_its_connection() {
    let (closed, arrived) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (closing, arriving) = (Arc::clone(&closed), Arc::clone(&arrived));
    let server = raw(move |_, mut stream| {
        let (closed, arrived) = (Arc::clone(&closing), Arc::clone(&arriving));
        async move {
            read_head(&mut stream).await;
            arrived.notify_one();
            if matches!(stream.read(&mut [0]).await, Ok(0) | Err(_)) {
                closed.notify_one();
            }
        }
    })
    .await;
    let (forwarder, tunnels, upstream) = (forwarder(), Tunnels::new(1), server.upstream());
    tokio::select! {
        _ = forwarder.forward(&upstream, request("GET", full("")), &tunnels) => panic!("nobody answered"),
        () = arrived.notified() => {}
    }
    timeout(PATIENCE, closed.notified()).await.unwrap();
}

#[tokio::test]
async fn what_is_not_http_and_a_switch_that_nobody_asked_for_are_bad_responses() {
    for answer in
        ["SSH-2.0-x\r\n\r\n", "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"]
    {
        let server = raw(move |_, mut stream| async move {
            read_head(&mut stream).await;
            stream.write_all(answer.as_bytes()).await.unwrap();
        })
        .await;
        let failure =
            forwarder().forward(&server.upstream(), request("GET", full("")), &Tunnels::new(1)).await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::BadResponse, "{answer}");
        assert!(failure.outbound().is_none());
    }
}

#[tokio::test]
async fn an_answer_may_have_as_many_fields_as_the_bound_and_one_more_is_a_bad_response() {
    // The length is a field too.
    for (cookies, fits) in [(300, true), (MOST_FIELDS - 1, true), (MOST_FIELDS, false)] {
        let fields = "set-cookie: a=b\r\n".repeat(cookies);
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n{fields}\r\nok");
        let server = raw(move |_, mut stream| {
            let answer = answer.clone();
            async move {
                read_head(&mut stream).await;
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        })
        .await;
        let answered = forwarder().forward(&server.upstream(), request("GET", full("")), &Tunnels::new(1)).await;
        match answered {
            Ok(response) => assert!(fits && response.headers().get_all("set-cookie").iter().count() == cookies),
            Err(failure) => assert!(!fits && failure.kind() == FailureKind::BadResponse, "{cookies}: {failure:?}"),
        }
    }
}

/// Accepts WebSockets and sends every message back.
async fn echo() -> Server {
    raw(|_, stream| async move {
        let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
        while let Some(Ok(message)) = socket.next().await {
            if message.is_text() {
                socket.send(message).await.unwrap();
            }
        }
    })
    .await
}

async fn connect(front: &Server) -> WebSocketStream<TcpStream> {
    let stream = TcpStream::connect(front.address).await.unwrap();
    let (socket, _) = tokio_tungstenite::client_async("ws://shop.example/chat", stream).await.unwrap();
    socket
}

#[tokio::test]
async fn a_websocket_is_tunnelled_and_its_close_reaches_the_other_end() {
    let (tunnels, upstream) = (Tunnels::new(4), echo().await);
    let front = front(upstream.upstream(), &tunnels).await;
    let mut socket = connect(&front).await;
    socket.send(Message::text("hello")).await.unwrap();
    assert_eq!(timeout(PATIENCE, socket.next()).await.unwrap().unwrap().unwrap(), Message::text("hello"));
    assert_eq!(tunnels.open(), 1);
    socket.close(None).await.unwrap();
    while let Some(Ok(_)) = timeout(PATIENCE, socket.next()).await.unwrap() {}
    drop(socket);
    eventually("the tunnel is gone", || tunnels.open() == 0).await;
}

#[tokio::test]
async fn a_client_that_vanishes_ends_the_tunnel_at_the_upstream() {
    let (gone, mut ended) = mpsc::channel(1);
    let upstream = raw(move |_, stream| {
        let gone = gone.clone();
        async move {
            let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
            while let Some(Ok(_)) = socket.next().await {}
            gone.send(()).await.unwrap();
        }
    })
    .await;
    let tunnels = Tunnels::new(4);
    let front = front(upstream.upstream(), &tunnels).await;
    drop(connect(&front).await);
    timeout(PATIENCE, ended.recv()).await.unwrap().unwrap();
    eventually("the tunnel is gone", || tunnels.open() == 0).await;
}

#[tokio::test]
async fn a_closed_owner_cuts_its_tunnels_and_takes_no_more() {
    let (tunnels, upstream) = (Tunnels::new(4), echo().await);
    let front = front(upstream.upstream(), &tunnels).await;
    let mut socket = connect(&front).await;
    eventually("the tunnel is there", || tunnels.open() == 1).await;
    assert_eq!(timeout(PATIENCE, tunnels.close(Duration::ZERO)).await.unwrap(), 1);
    assert!(matches!(timeout(PATIENCE, socket.next()).await.unwrap(), None | Some(Err(_))));
    assert_eq!(handshake_status(&front).await, StatusCode::BAD_GATEWAY);
}

#[tokio::test]
async fn no_more_tunnels_than_allowed_are_opened() {
    let (tunnels, upstream) = (Tunnels::new(1), echo().await);
    let front = front(upstream.upstream(), &tunnels).await;
    let socket = connect(&front).await;
    assert_eq!(handshake_status(&front).await, StatusCode::BAD_GATEWAY);
    drop(socket);
    eventually("the place is free again", || tunnels.open() == 0).await;
    connect(&front).await;
}

async fn handshake_status(front: &Server) -> StatusCode {
    let stream = TcpStream::connect(front.address).await.unwrap();
    match tokio_tungstenite::client_async("ws://shop.example/chat", stream).await {
        Err(tokio_tungstenite::tungstenite::Error::Http(response)) => response.status(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn bytes_that_come_with_the_switch_are_not_lost() {
    let upstream = raw(|_, mut stream| async move {
        read_head(&mut stream).await;
        let switch = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        stream.write_all(&[switch.as_slice(), b"early"].concat()).await.unwrap();
    })
    .await;
    let tunnels = Tunnels::new(1);
    let front = front(upstream.upstream(), &tunnels).await;
    let mut stream = TcpStream::connect(front.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n").await.unwrap();
    let mut got = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut got)).await.unwrap().unwrap();
    assert!(got.starts_with("HTTP/1.1 101") && got.ends_with("\r\n\r\nearly"), "{got}");
}

fn fields(headers: &HeaderMap, name: &str) -> Vec<String> {
    headers.get_all(name).iter().map(|value| value.to_str().unwrap().to_owned()).collect()
}

#[test]
fn a_host_is_settled_by_the_target_first() {
    let build = |uri: &str, hosts: &[&str]| {
        let mut builder = Request::builder().uri(uri);
        for host in hosts {
            builder = builder.header("host", *host);
        }
        Outbound::new(builder.body(full("")).unwrap())
            .map(|outbound| (outbound.uri().to_string(), fields(outbound.headers(), "host").join("|")))
    };
    let settled = |uri: &str, host: &str| Ok((uri.to_owned(), host.to_owned()));
    assert_eq!(build("/a", &["x"]), settled("/a", "x"));
    assert_eq!(build("http://y:81/a?b", &["x"]), settled("/a?b", "y:81"));
    assert_eq!(build("http://u@y", &[]), settled("/", "y"));
    assert_eq!(build("/a", &[]), Err(crate::Unforwardable::NoHost));
    assert_eq!(build("/a", &["x", "y"]), Err(crate::Unforwardable::SeveralHosts));
}

#[test]
fn only_a_websocket_keeps_its_upgrade() {
    let build = |upgrade: &str| {
        let request = Request::builder().uri("/").header("host", "x").header("connection", "upgrade, x-forwarded-for");
        let request = request.header("upgrade", upgrade).header("x-forwarded-for", "1.1.1.1").body(full("")).unwrap();
        Outbound::new(request).unwrap()
    };
    assert_eq!(fields(build("foo, WebSocket").headers(), "upgrade"), ["websocket"]);
    let h2c = build("h2c");
    assert!(
        !h2c.is_upgrade() && !h2c.headers().contains_key("upgrade") && !h2c.headers().contains_key("x-forwarded-for")
    );
}

#[test]
fn split_cookies_of_http2_are_joined_and_connect_is_refused() {
    let request = Request::builder()
        .version(http::Version::HTTP_2)
        .uri("http://x/")
        .header("cookie", "a=1")
        .header("cookie", "b=2");
    let outbound = Outbound::new(request.body(full("")).unwrap()).unwrap();
    assert_eq!(fields(outbound.headers(), "cookie"), ["a=1; b=2"]);
    let connect = Request::builder().method("CONNECT").uri("x:1").body(full("")).unwrap();
    assert_eq!(Outbound::new(connect).err(), Some(crate::Unforwardable::Connect));
}

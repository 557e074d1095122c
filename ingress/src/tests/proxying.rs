//! What happens to requests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use scafo_core::routing::DENIED;
use scafo_proxy::headers::MOST_FIELDS;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    sync::Notify,
    time::timeout,
};
use tokio_tungstenite::tungstenite::Message;

use crate::health::HEALTH_PATH;

use super::stage::{Ingress, Node, PATIENCE, Server, application, breaks, channel, document, full, raw, serve, text};

async fn serving(host: &str, servers: &[&Server]) -> (Node, Ingress) {
    let node = Node::with(&document(&[(host, servers), ("ready.example", &[])])).await;
    let ingress = Ingress::serving(&[&node], "ready.example").await;
    (node, ingress)
}

#[tokio::test]
async fn hosts_reach_who_the_document_names_and_denied_paths_nobody() {
    let (shop, api) = (application("shop").await, application("api").await);
    let mut whole = document(&[("shop.example", &[&shop])]);
    whole["api"] = json!({"hosts": ["dev.example"], "upstreams": [api.upstream()], "denied": DENIED});
    let node = Node::with(&whole).await;
    let ingress = Ingress::serving(&[&node], "shop.example").await;
    assert_eq!(ingress.get("Shop.Example.:8080", "/a?b=c").await, (StatusCode::OK, "shop GET /a?b=c ".to_owned()));
    assert_eq!(ingress.get("shop.example", "/v1/storage").await.1, "shop GET /v1/storage ");
    assert_eq!(ingress.get("dev.example", "/v1/state").await.1, "api GET /v1/state ");
    for path in ["/v1/storage/objects/x", "/v1//ingress/%72outes", "/v1/%2e%2e/v1/storage"] {
        let (status, body) = ingress.get("dev.example", path).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
        assert!(body.contains("urn:scafo:not-found"), "{body}");
    }
    for host in ["blog.example", "localhost", "127.0.0.1", "[::1]:80", "*.example", ""] {
        assert_eq!(ingress.get(host, "/").await.0, StatusCode::NOT_FOUND, "{host}");
    }
}

/// Sends bytes as they are and reads until the server closes.
async fn bytes(ingress: &Ingress, request: &str) -> String {
    let mut stream = TcpStream::connect(ingress.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut got = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut got)).await.unwrap().unwrap();
    got
}

#[tokio::test]
async fn the_target_decides_over_the_host_field_and_a_request_without_one_host_is_refused() {
    let (shop, api) = (application("shop").await, application("api").await);
    let mut whole = document(&[("shop.example", &[&shop])]);
    whole["api"] = json!({"hosts": ["dev.example"], "upstreams": [api.upstream()], "denied": DENIED});
    let node = Node::with(&whole).await;
    let ingress = Ingress::serving(&[&node], "shop.example").await;
    for (request, expected) in [
        ("GET http://shop.example/x HTTP/1.1\r\nhost: dev.example\r\n", "shop GET /x"),
        ("GET http://dev.example/v1/storage HTTP/1.1\r\nhost: shop.example\r\n", "HTTP/1.1 404"),
        ("GET /v1\\storage HTTP/1.1\r\nhost: dev.example\r\n", "HTTP/1.1 404"),
        ("GET / HTTP/1.1\r\n", "HTTP/1.1 400"),
        ("GET / HTTP/1.1\r\nhost: shop.example\r\nhost: dev.example\r\n", "HTTP/1.1 400"),
        ("CONNECT shop.example:80 HTTP/1.1\r\nhost: shop.example:80\r\n", "HTTP/1.1 405"),
    ] {
        let got = bytes(&ingress, &format!("{request}connection: close\r\n\r\n")).await;
        assert!(got.contains(expected), "{request}: {got}");
    }
}

#[tokio::test]
async fn health_is_told_on_every_host_and_its_token_reaches_no_application() {
    let shop = application("shop").await;
    let (_node, ingress) = serving("shop.example", &[&shop]).await;
    let health = r#"{"documents":1,"fleets":1,"hosts":2,"status":"ok"}"#;
    assert_eq!(ingress.health("nobody.example").await, health);
    assert_eq!(ingress.health("shop.example").await, health);
    // Without it the path is the application's own.
    assert!(ingress.get("shop.example", HEALTH_PATH).await.1.starts_with("shop GET"));
}

#[tokio::test]
async fn without_the_token_of_a_node_a_question_for_health_is_one_for_a_host_that_nobody_serves() {
    let shop = application("shop").await;
    let (_node, ingress) = serving("shop.example", &[&shop]).await;
    let asking = async |host: &str, authorization: &[&'static str]| {
        let mut fields = HeaderMap::new();
        for value in authorization {
            fields.append(http::header::AUTHORIZATION, HeaderValue::from_static(value));
        }
        let response = ingress.send("GET", host, HEALTH_PATH, &fields, full("")).await;
        (response.status(), text(response).await)
    };
    let hosts = ["nobody.invalid", "localhost", "127.0.0.1", "[::1]:80", "blog.example"];
    let strangers: [&[&str]; 7] = [
        &[],
        &["Bearer"],
        &["Bearer tokens"],
        &["Bearer toke"],
        &["Basic token"],
        &["token"],
        &["Bearer token", "Bearer token"],
    ];
    for host in hosts {
        for authorization in strangers {
            let (status, body) = asking(host, authorization).await;
            let unknown = status == StatusCode::NOT_FOUND && body.contains("urn:scafo:not-found");
            assert!(unknown, "{host} {authorization:?}: {body}");
        }
        assert_eq!(asking(host, &["Bearer token"]).await.0, StatusCode::OK, "{host}");
    }
}

#[tokio::test]
async fn an_upstream_sees_where_a_request_came_from_and_nothing_that_the_client_made_up() {
    let shop = application("shop").await;
    let (_node, ingress) = serving("shop.example", &[&shop]).await;
    let mut headers = HeaderMap::new();
    for name in ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "forwarded", "x-real-ip"] {
        headers.insert(name, HeaderValue::from_static("spoofed"));
    }
    let response = ingress.send("GET", "shop.example", "/", &headers, full("")).await;
    let seen = response.headers();
    assert_eq!(seen["seen-x-forwarded-for"], "127.0.0.1");
    assert_eq!(seen["seen-x-forwarded-proto"], "http");
    assert_eq!(seen["seen-x-forwarded-host"], "shop.example");
    assert_eq!(seen["seen-via"], "1.1 scafo-ingressd");
    assert!(!seen.values().any(|value| value == "spoofed"));
    let named = "GET / HTTP/1.1\r\nhost: shop.example\r\nconnection: close, x-forwarded-for\r\n\r\n";
    assert!(bytes(&ingress, named).await.contains("seen-x-forwarded-for: 127.0.0.1"));
}

#[tokio::test]
async fn a_request_with_two_lengths_arrives_in_chunks_alone_and_nothing_follows_it_on_its_connection() {
    let shop = application("shop").await;
    let (_node, ingress) = serving("shop.example", &[&shop]).await;
    let (length, chunked) = ("content-length: 3\r\n", "transfer-encoding: chunked\r\n");
    for (first, second) in [(length, chunked), (chunked, length)] {
        let head = format!("POST /one HTTP/1.1\r\nhost: shop.example\r\n{first}{second}\r\n");
        let next = "GET /two HTTP/1.1\r\nhost: shop.example\r\n\r\n";
        let got = bytes(&ingress, &format!("{head}4\r\nbody\r\n0\r\n\r\n{next}")).await;
        assert!(got.starts_with("HTTP/1.1 200 ") && got.ends_with("shop POST /one body"), "{got}");
        assert!(got.contains("seen-transfer-encoding: chunked\r\n") && !got.contains("seen-content-length"), "{got}");
    }
}

/// An address that refuses connections while the socket lives: bound, and not listening.
fn refusing() -> (TcpSocket, serde_json::Value) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    (socket, json!({"node": "dead", "address": address}))
}

#[tokio::test]
async fn a_refused_connection_goes_to_the_next_upstream_with_its_body() {
    let shop = application("shop").await;
    let (_socket, dead) = refusing();
    let mut whole = document(&[("shop.example", &[&shop])]);
    whole["routes"][0]["upstreams"].as_array_mut().unwrap().insert(0, dead.clone());
    whole["routes"]
        .as_array_mut()
        .unwrap()
        .push(json!({"host": "dead.example", "application": "dead", "upstreams": [dead]}));
    let node = Node::with(&whole).await;
    let ingress = Ingress::serving(&[&node], "shop.example").await;
    assert_eq!(ingress.post("shop.example", "body").await, (StatusCode::OK, "shop POST / body".to_owned()));
    let (status, body) = ingress.get("dead.example", "/").await;
    assert_eq!(status, StatusCode::BAD_GATEWAY);
    assert!(body.contains("about:blank") && !body.contains("127.0.0.1"), "{body}");
}

#[tokio::test]
async fn a_client_that_expects_to_be_told_to_go_on_is_told_after_a_fail_over_too() {
    let shop = application("shop").await;
    let (_socket, dead) = refusing();
    let mut whole = document(&[("shop.example", &[&shop])]);
    whole["routes"][0]["upstreams"].as_array_mut().unwrap().insert(0, dead);
    let node = Node::with(&whole).await;
    let ingress = Ingress::serving(&[&node], "shop.example").await;
    let mut stream = TcpStream::connect(ingress.address).await.unwrap();
    let head = "PUT / HTTP/1.1\r\nhost: shop.example\r\nexpect: 100-continue\r\nconnection: close\r\ncontent-length: 4\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut go_on = [0; 25];
    timeout(PATIENCE, stream.read_exact(&mut go_on)).await.unwrap().unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"body").await.unwrap();
    let mut got = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut got)).await.unwrap().unwrap();
    assert!(got.starts_with("HTTP/1.1 200") && got.ends_with("shop PUT / body"), "{got}");
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_upload_arrives() {
    let refuses = raw(|mut stream| async move {
        drop(stream.read(&mut [0; 4096]).await);
        drop(stream.write_all(b"HTTP/1.1 413 X\r\nconnection: close\r\ncontent-length: 3\r\n\r\nbig").await);
        while stream.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0) {}
    })
    .await;
    let (_node, ingress) = serving("shop.example", &[&refuses]).await;
    let (sender, body) = channel();
    let response = ingress.send("POST", "shop.example", "/", &HeaderMap::new(), body).await;
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(text(response).await, "big");
    drop(sender);
}

#[tokio::test]
async fn after_a_break_an_idempotent_request_goes_on_and_a_post_does_not() {
    let taken = Arc::new(AtomicUsize::new(0));
    let (broken, shop) = (breaks(Arc::clone(&taken)).await, application("shop").await);
    let node = Node::with(&document(&[("get.example", &[&broken, &shop]), ("ready.example", &[])])).await;
    let ingress = Ingress::serving(&[&node], "ready.example").await;
    assert_eq!(ingress.get("get.example", "/").await, (StatusCode::OK, "shop GET / ".to_owned()));
    assert_eq!(taken.load(Ordering::SeqCst), 1);
    // Alone, so that the mark of the first half cannot hide it.
    let asked = Arc::new(AtomicUsize::new(0));
    let (first, second) = (breaks(Arc::clone(&taken)).await, breaks(Arc::clone(&asked)).await);
    let node = Node::with(&document(&[("post.example", &[&first, &second]), ("ready.example", &[])])).await;
    let ingress = Ingress::serving(&[&node], "ready.example").await;
    assert_eq!(ingress.post("post.example", "body").await.0, StatusCode::BAD_GATEWAY);
    assert_eq!((taken.load(Ordering::SeqCst), asked.load(Ordering::SeqCst)), (2, 0));
}

/// An application that answers with as many cookies as the path says, and says how many fields named `x-many` came.
async fn many() -> Server {
    raw(|mut stream| async move {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if !matches!(stream.read_buf(&mut head).await, Ok(1..)) {
                return;
            }
        }
        let head = String::from_utf8(head).unwrap();
        let cookies = head.split_whitespace().nth(1).unwrap()[1..].parse().unwrap();
        let (fields, seen) = ("set-cookie: a=b\r\n".repeat(cookies), head.matches("\r\nx-many: ").count().to_string());
        let length = seen.len();
        let answer = format!("HTTP/1.1 200 OK\r\n{fields}connection: close\r\ncontent-length: {length}\r\n\r\n{seen}");
        drop(stream.write_all(answer.as_bytes()).await);
    })
    .await
}

#[tokio::test]
async fn heads_of_hundreds_of_fields_pass_both_ways() {
    let many = many().await;
    let (_node, ingress) = serving("shop.example", &[&many]).await;
    let mut headers = HeaderMap::new();
    for _ in 0..300 {
        headers.append("x-many", HeaderValue::from_static("1"));
    }
    let response = ingress.send("GET", "shop.example", "/300", &headers, full("")).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers().get_all("set-cookie").iter().count(), 300);
    assert_eq!(text(response).await, "300");
}

#[tokio::test]
async fn too_many_fields_are_refused_as_a_request_and_are_a_bad_answer_of_an_upstream_that_goes_on_being_asked() {
    let (many, other) = (many().await, application("other").await);
    let (_node, ingress) = serving("shop.example", &[&many, &other]).await;
    let fields = "x-many: 1\r\n".repeat(MOST_FIELDS);
    let got = bytes(&ingress, &format!("GET /1 HTTP/1.1\r\nhost: shop.example\r\n{fields}\r\n")).await;
    assert!(got.starts_with("HTTP/1.1 431 "), "{got}");
    let (status, body) = ingress.get("shop.example", &format!("/{MOST_FIELDS}")).await;
    assert!(status == StatusCode::BAD_GATEWAY && body.contains("about:blank"), "{body}");
    assert_eq!(ingress.get("shop.example", "/1").await, (StatusCode::OK, "0".to_owned()), "it is still the first");
}

#[tokio::test]
async fn a_503_of_an_upstream_is_passed_on_and_nobody_else_is_asked() {
    let busy =
        serve(|_| async { Response::builder().status(503).header("retry-after", "7").body(full("busy")).unwrap() })
            .await;
    let other = application("other").await;
    let (_node, ingress) = serving("shop.example", &[&busy, &other]).await;
    let response = ingress.send("GET", "shop.example", "/", &HeaderMap::new(), full("")).await;
    assert_eq!(
        (response.status(), response.headers()["retry-after"].to_str().unwrap()),
        (StatusCode::SERVICE_UNAVAILABLE, "7")
    );
    assert_eq!(text(response).await, "busy");
}

#[tokio::test]
async fn events_arrive_as_they_are_sent() {
    let (sender, body) = channel();
    let body = Arc::new(std::sync::Mutex::new(Some(body)));
    let events = serve(move |_| {
        let body = body.lock().unwrap().take().unwrap();
        async move { Response::builder().header("content-type", "text/event-stream").body(body).unwrap() }
    })
    .await;
    let (_node, ingress) = serving("events.example", &[&events]).await;
    let mut body = ingress.send("GET", "events.example", "/", &HeaderMap::new(), full("")).await.into_body();
    for event in ["data: 1\n\n", "data: 2\n\n"] {
        sender.send(event).await.unwrap();
        let frame = timeout(PATIENCE, body.frame()).await.unwrap().unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), Bytes::from_static(event.as_bytes()));
    }
    drop(sender);
    assert!(timeout(PATIENCE, body.frame()).await.unwrap().is_none());
}

#[tokio::test]
async fn websockets_pass_both_ways_and_end_with_the_daemon() {
    let echo = raw(|stream| async move {
        let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
        while let Some(Ok(message)) = socket.next().await {
            drop(socket.send(message).await);
        }
    })
    .await;
    let node = Node::with(&document(&[("chat.example", &[&echo]), ("ready.example", &[])])).await;
    let mut ingress = Ingress::with(&[&node], Duration::ZERO, Duration::ZERO).await;
    ingress.until_served("ready.example").await;
    let stream = TcpStream::connect(ingress.address).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async("ws://chat.example/room", stream).await.unwrap();
    socket.send(Message::text("hello")).await.unwrap();
    assert_eq!(timeout(PATIENCE, socket.next()).await.unwrap().unwrap().unwrap(), Message::text("hello"));
    ingress.ask_to_stop();
    ingress.ended().await;
    assert!(matches!(timeout(PATIENCE, socket.next()).await.unwrap(), None | Some(Err(_))));
}

#[tokio::test]
async fn http2_without_tls_is_served_too() {
    let shop = application("shop").await;
    let (_node, ingress) = serving("shop.example", &[&shop]).await;
    let stream = TcpStream::connect(ingress.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let request = Request::get("http://shop.example/h2").header("cookie", "a=1").header("cookie", "b=2");
    let asking = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap());
    let response = tokio::select! {
        response = timeout(PATIENCE, asking) => response.unwrap().unwrap(),
        ended = connection => panic!("{ended:?}"),
    };
    assert_eq!(response.headers()["seen-host"], "shop.example");
    assert_eq!(response.headers()["seen-cookie"], "a=1; b=2");
    assert_eq!(response.headers()["seen-via"], "2 scafo-ingressd");
}

#[tokio::test]
async fn over_http2_the_authority_decides_over_the_host_field_and_denied_paths_reach_nobody() {
    let (shop, api) = (application("shop").await, application("api").await);
    let mut whole = document(&[("shop.example", &[&shop])]);
    whole["api"] = json!({"hosts": ["dev.example"], "upstreams": [api.upstream()], "denied": DENIED});
    let node = Node::with(&whole).await;
    let ingress = Ingress::serving(&[&node], "shop.example").await;
    let stream = TcpStream::connect(ingress.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let mut driving = tokio::task::JoinSet::new();
    driving.spawn(connection);
    for (target, host, status, expected) in [
        ("http://shop.example/x", "dev.example", 200, "shop GET /x "),
        ("http://shop.example/v1/storage", "dev.example", 200, "shop GET /v1/storage "),
        ("http://dev.example/v1/state", "shop.example", 200, "api GET /v1/state "),
        ("http://dev.example/v1/storage", "shop.example", 404, "urn:scafo:not-found"),
        ("http://dev.example/v1//ingress/%72outes", "dev.example", 404, "urn:scafo:not-found"),
        ("http://blog.example/", "shop.example", 404, "urn:scafo:not-found"),
    ] {
        let request = Request::get(target).header("host", host).body(Empty::<Bytes>::new()).unwrap();
        let response = timeout(PATIENCE, sender.send_request(request)).await.unwrap().unwrap();
        assert_eq!(response.status(), status, "{target} {host}");
        if status == 200 {
            let authority = http::Uri::from_static(target).host().unwrap().to_owned();
            assert_eq!(response.headers()["seen-host"], authority.as_str());
        }
        let body = text(response).await;
        assert!(body.contains(expected), "{target} {host}: {body}");
    }
}

/// An application that says when a request has come, and answers when it is told to.
async fn slow() -> (Server, Arc<Notify>, Arc<Notify>) {
    let (come, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (coming, going) = (Arc::clone(&come), Arc::clone(&go));
    let server = serve(move |_| {
        let (come, go) = (Arc::clone(&coming), Arc::clone(&going));
        async move {
            come.notify_one();
            go.notified().await;
            Response::new(full("late"))
        }
    })
    .await;
    (server, come, go)
}

#[tokio::test]
async fn a_request_under_way_is_answered_after_the_daemon_was_asked_to_end() {
    let (server, come, go) = slow().await;
    let (_node, mut ingress) = serving("slow.example", &[&server]).await;
    let mut stream = TcpStream::connect(ingress.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: slow.example\r\n\r\n").await.unwrap();
    come.notified().await;
    ingress.ask_to_stop();
    // The listener goes first: once that is closed, the daemon is ending.
    super::stage::eventually("no new connection", async || TcpStream::connect(ingress.address).await.err()).await;
    go.notify_one();
    let mut got = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut got)).await.unwrap().unwrap();
    assert!(got.starts_with("HTTP/1.1 200") && got.ends_with("late"), "{got}");
    ingress.ended().await;
}

#[tokio::test]
async fn at_a_stop_unused_connections_are_closed_while_a_request_under_way_is_still_answered() {
    let ((server, come, go), shop) = (slow().await, application("shop").await);
    let node = Node::with(&document(&[("slow.example", &[&server]), ("shop.example", &[&shop])])).await;
    let mut ingress = Ingress::serving(&[&node], "shop.example").await;
    // One that was used and is kept open, over each version; one on which a request is under way.
    let mut unused = TcpStream::connect(ingress.address).await.unwrap();
    unused.write_all(b"GET /x HTTP/1.1\r\nhost: shop.example\r\n\r\n").await.unwrap();
    let mut got = Vec::new();
    while !String::from_utf8_lossy(&got).contains("shop GET /x") {
        assert!(timeout(PATIENCE, unused.read_buf(&mut got)).await.unwrap().unwrap() > 0);
    }
    let stream = TcpStream::connect(ingress.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let mut driving = tokio::task::JoinSet::new();
    driving.spawn(connection);
    let request = Request::get("http://shop.example/x").body(Empty::<Bytes>::new()).unwrap();
    let response = timeout(PATIENCE, sender.send_request(request)).await.unwrap().unwrap();
    assert!(super::stage::text(response).await.starts_with("shop GET /x"));
    let mut busy = TcpStream::connect(ingress.address).await.unwrap();
    busy.write_all(b"GET / HTTP/1.1\r\nhost: slow.example\r\n\r\n").await.unwrap();
    come.notified().await;

    ingress.ask_to_stop();
    // Closed in order.
    timeout(PATIENCE, unused.read_to_end(&mut got)).await.unwrap().unwrap();
    drop(timeout(PATIENCE, driving.join_next()).await.unwrap());
    // Had they been cut at the end of the grace, this one would have been too.
    go.notify_one();
    let mut got = String::new();
    timeout(PATIENCE, busy.read_to_string(&mut got)).await.unwrap().unwrap();
    assert!(got.starts_with("HTTP/1.1 200") && got.ends_with("late"), "{got}");
    ingress.ended().await;
}

#[tokio::test]
async fn a_request_that_outlasts_the_grace_is_cut() {
    let (server, come, _go) = slow().await;
    let node = Node::with(&document(&[("slow.example", &[&server]), ("ready.example", &[])])).await;
    let mut ingress = Ingress::with(&[&node], Duration::ZERO, Duration::ZERO).await;
    ingress.until_served("ready.example").await;
    let mut stream = TcpStream::connect(ingress.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: slow.example\r\n\r\n").await.unwrap();
    come.notified().await;
    ingress.ask_to_stop();
    ingress.ended().await;
    assert_eq!(timeout(PATIENCE, stream.read(&mut [0; 16])).await.unwrap().unwrap_or(0), 0);
}

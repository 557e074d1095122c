//! What every answer has, whatever it is about.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use scafo_apiserver::server;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::harness::{Harness, spawn};

#[tokio::test]
async fn health_is_open_and_names_the_node() {
    let harness = Harness::start().await;
    let answer = harness.send(Method::GET, "/.well-known/scafo/health", &[], "").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.json(), serde_json::json!({ "ok": true, "version": "0.1.0", "node": "n1" }));
    assert_eq!(answer.headers["content-type"], "application/json");
    assert_eq!(answer.headers["x-request-id"].len(), 16);
    let head = harness.send(Method::HEAD, "/.well-known/scafo/health", &[], "").await;
    assert_eq!((head.status, head.body.len()), (StatusCode::OK, 0));
    assert_eq!(head.headers["content-length"], answer.body.len().to_string());
}

#[tokio::test]
async fn an_unknown_path_is_a_problem() {
    let harness = Harness::start().await;
    for path in ["/", "/v1", "/v1/deploys/", "/v1/state/", "/v1/applications/a/b/c", "/%ff", "/v1/ingress/routes/"] {
        let answer = harness.send(Method::GET, path, &[], "").await;
        assert_eq!((answer.status, answer.problem().as_str()), (StatusCode::NOT_FOUND, "not-found"), "{path}");
    }
}

#[tokio::test]
async fn a_wrong_method_is_a_problem_that_names_the_right_ones() {
    let harness = Harness::start().await;
    for (method, path, allow) in [
        (Method::POST, "/.well-known/scafo/health", "GET,HEAD"),
        (Method::DELETE, "/v1/state", "GET,HEAD"),
        (Method::GET, "/v1/applications/shop/deploys", "POST"),
        (Method::PUT, "/v1/deploys/x", "GET,HEAD"),
        (Method::POST, "/v1/ingress/routes/traefik", "GET,HEAD"),
    ] {
        let answer = harness.send(method.clone(), path, &[], "").await;
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
        assert_eq!(answer.problem(), "method-not-allowed");
        assert_eq!(answer.headers["allow"], allow, "{method} {path}");
    }
}

#[tokio::test]
async fn a_segment_that_is_no_text_is_refused_in_the_routes_own_words() {
    let harness = Harness::start().await;
    let headers = [("authorization", &*harness.token("root"))];
    let answer = harness.send(Method::POST, "/v1/applications/%ff/deploys", &headers, "x").await;
    assert_eq!((answer.status, answer.problem().as_str()), (StatusCode::BAD_REQUEST, "invalid-slug"));
    let answer = harness.get("/v1/deploys/%ff", &harness.token("root")).await;
    assert_eq!((answer.status, answer.problem().as_str()), (StatusCode::NOT_FOUND, "not-found"));
}

#[tokio::test]
async fn http_2_without_tls_is_spoken() {
    let harness = Harness::start().await;
    let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
        .http2_only(true)
        .build_http::<http_body_util::Empty<bytes::Bytes>>();
    let uri = format!("http://{}/.well-known/scafo/health", harness.address).parse().unwrap();
    let answer = client.get(uri).await.unwrap();
    assert_eq!((answer.status(), answer.version()), (StatusCode::OK, http::Version::HTTP_2));
}

/// Serves one route that says when a request has come, and answers when it is told to; and a health route.
async fn slow() -> (std::net::SocketAddr, CancellationToken, AbortOnDropHandle<()>, Arc<Notify>, Arc<Notify>) {
    let (come, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (coming, going) = (come.clone(), go.clone());
    let wait = move || async move {
        coming.notify_one();
        going.notified().await;
        "late"
    };
    let router = Router::new().route("/quick", get(|| async { "quick" })).route("/slow", get(wait));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let serving = spawn(server::serve(vec![listener], router, stop.clone()));
    (address, stop, serving, come, go)
}

#[tokio::test]
async fn at_a_stop_unused_connections_are_closed_while_a_request_under_way_is_still_answered() {
    let (address, stop, serving, come, go) = slow().await;
    // One that was used and is kept open, over each version; one on which a request is under way.
    let mut unused = TcpStream::connect(address).await.unwrap();
    unused.write_all(b"GET /quick HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"quick") {
        assert!(unused.read_buf(&mut answer).await.unwrap() > 0);
    }
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let (closed, is_closed) = tokio::sync::oneshot::channel();
    let _driving = spawn(async move {
        drop(connection.await);
        let _ = closed.send(());
    });
    let quick = http::Request::get(format!("http://{address}/quick")).body(Empty::<Bytes>::new()).unwrap();
    let answer = sender.send_request(quick).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "quick");
    let mut busy = TcpStream::connect(address).await.unwrap();
    busy.write_all(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    come.notified().await;

    stop.cancel();
    assert_eq!(unused.read(&mut [0; 16]).await.unwrap(), 0, "closed in order");
    is_closed.await.unwrap();
    // Had they been cut at the end of the time that requests have, this one would have been too.
    go.notify_one();
    let mut answer = String::new();
    busy.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("late"), "{answer}");
    serving.await.unwrap();
}

#[tokio::test]
async fn a_request_that_outlasts_the_time_that_a_stop_gives_is_cut() {
    let (address, stop, serving, come, _go) = slow().await;
    let mut busy = TcpStream::connect(address).await.unwrap();
    busy.write_all(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    come.notified().await;
    // Nothing is on its way any more: from here on only the clock moves.
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    stop.cancel();
    serving.await.unwrap();
    assert!(began.elapsed() <= std::time::Duration::from_secs(12), "{:?}", began.elapsed());
    assert_eq!(busy.read(&mut [0; 16]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn a_refusal_comes_before_the_body_where_the_caller_waits() {
    let harness = Harness::start().await;
    let mut stream = TcpStream::connect(harness.address).await.unwrap();
    let head =
        "POST /v1/applications/shop/deploys HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 401");
}

#[tokio::test]
async fn a_caller_that_goes_on_sending_still_reads_its_refusal() {
    let harness = Harness::start().await;
    let mut stream = TcpStream::connect(harness.address).await.unwrap();
    let bytes = 4 << 20;
    let head = format!("POST /v1/applications/shop/deploys HTTP/1.1\r\nhost: x\r\ncontent-length: {bytes}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    // Sends everything before it looks at the answer, as simple clients do.
    stream.write_all(&vec![0; bytes]).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 401") && answer.ends_with('}'), "{answer}");
}

#[tokio::test]
async fn a_head_that_is_too_long_is_refused_and_the_server_lives() {
    let harness = Harness::start().await;
    let mut stream = TcpStream::connect(harness.address).await.unwrap();
    let head = format!("GET /.well-known/scafo/health HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "a".repeat(100_000));
    // The server may close before all of it is sent.
    let _ = stream.write_all(head.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&answer));
    let after = harness.send(Method::GET, "/.well-known/scafo/health", &[], "").await;
    assert_eq!(after.status, StatusCode::OK);
}

//! What every answer has, whatever it is about.

use http::{Method, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::Harness;

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

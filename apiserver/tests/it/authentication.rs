//! Who gets in.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use scafo_apiserver::clock::Clock as _;
use scafo_core::problem::{Problem, ProblemCode};
use scafo_core::token::sign;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::{Harness, INGRESS_TOKEN, signing_key};

const GUARDED: [(&str, &str); 6] = [
    ("GET", "/v1/state"),
    ("GET", "/v1/applications"),
    ("POST", "/v1/applications/shop/deploys"),
    ("GET", "/v1/deploys/shop.0123456789abcdef"),
    ("GET", "/v1/deploys/nothing"),
    ("GET", "/v1/ingress/routes"),
];

#[tokio::test]
async fn every_refusal_of_a_token_reads_the_same() {
    let harness = Harness::start().await;
    let fresh = |signer: &str, as_: &str| sign(&signing_key(signer), as_, harness.clock.wall(), [9; 16]);
    let old = sign(&signing_key("root"), "root", scafo_core::Timestamp::from_millis(1_700_000_000_000), [8; 16]);
    let bad = [
        String::new(),
        "Bearer".to_owned(),
        "Bearer x.y.z".to_owned(),
        format!("Basic {}", fresh("root", "root")),
        format!("Bearer {}", fresh("stranger", "stranger")),
        format!("Bearer {}", fresh("stranger", "root")),
        format!("Bearer {}", fresh("root", "../root")),
        format!("Bearer {old}"),
        format!("Bearer {INGRESS_TOKEN}x"),
        // A workload token: no policy admits one yet.
        "Bearer eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJodHRwczovL2lzc3VlciJ9.AAAA".to_owned(),
    ];
    let mut seen = Vec::new();
    for (method, path) in GUARDED {
        for token in &bad {
            let headers = [("authorization", token.as_str())];
            let headers = if token.is_empty() { &headers[..0] } else { &headers[..] };
            let answer = harness.send(method.parse().unwrap(), path, headers, "").await;
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{method} {path} {token}");
            assert_eq!(answer.problem(), "auth-invalid");
            assert_eq!(answer.headers["www-authenticate"], "Bearer");
            seen.push((answer.body, answer.headers.keys().map(ToString::to_string).collect::<Vec<_>>()));
        }
    }
    // The registry daemon looks for itself whether the key of an operator still stands.
    harness.registry.world().refuse =
        Some(Problem::new(ProblemCode::AuthInvalid, "in its own words").titled("Its own"));
    let answer = harness.get("/v1/operators", &harness.token("root")).await;
    assert_eq!((answer.status, answer.problem().as_str()), (StatusCode::UNAUTHORIZED, "auth-invalid"));
    seen.push((answer.body, answer.headers.keys().map(ToString::to_string).collect::<Vec<_>>()));
    seen.dedup();
    assert_eq!(seen.len(), 1, "{seen:?}");
}

#[tokio::test]
async fn an_ingress_token_opens_the_routing_surface_only() {
    let harness = Harness::start().await;
    harness.router.set("\"1\"", "{}");
    let token = format!("bearer  {INGRESS_TOKEN}");
    for (method, path) in GUARDED {
        let answer = harness.send(method.parse().unwrap(), path, &[("authorization", &token)], "").await;
        let expected = if path.starts_with("/v1/ingress") { StatusCode::OK } else { StatusCode::UNAUTHORIZED };
        assert_eq!(answer.status, expected, "{method} {path}");
    }
    let operator = harness.get("/v1/ingress/routes", &harness.token("root")).await;
    assert_eq!(operator.status, StatusCode::UNAUTHORIZED);
}

/// One request with an ingress token that holds and this very target.
async fn asked_for(harness: &Harness, method: &str, target: &str) -> String {
    let mut stream = TcpStream::connect(harness.address).await.unwrap();
    let head = format!(
        "{method} {target} HTTP/1.1\r\nhost: dev.example\r\nauthorization: Bearer {INGRESS_TOKEN}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// A node with something behind each of the denied paths.
async fn with_something_to_hide() -> Harness {
    let harness = Harness::start().await;
    harness.router.set("\"1\"", "{}");
    harness.registry.world().stored.objects.insert("a".to_owned(), "x".into());
    harness
}

/// How often the registry and the router were asked for what is behind the denied paths.
fn asked(harness: &Harness) -> (u32, usize) {
    (harness.registry.world().stored.asked, harness.router.0.lock().unwrap().asked.len())
}

/// What an ingress does not take for a denied path, and passes on, is none here either.
#[tokio::test]
async fn a_denied_path_has_one_spelling() {
    let harness = with_something_to_hide().await;
    for target in [
        "/v1/%73torage/list?prefix=",
        "/v1//storage/list?prefix=",
        "//v1/storage/list?prefix=",
        "/v1/storage%2Flist",
        "/v1/ingress/%72outes",
        "/v1/ingress//routes",
        "/v1/x/../storage/list?prefix=",
        "/v1/./storage/list?prefix=",
        "/V1/storage/list?prefix=",
    ] {
        let answer = asked_for(&harness, "GET", target).await;
        assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("No such route"), "{target}: {answer}");
    }
    assert_eq!(asked(&harness), (0, 0));
    for target in ["/v1/storage/list?prefix=", "/v1/ingress/routes"] {
        let answer = asked_for(&harness, "GET", target).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{target}: {answer}");
    }
    assert_eq!(asked(&harness), (1, 1));
}

/// An ingress may pass on what stands after the scheme in `x:http://dev.example/v1/storage`, and have seen no path in it.
#[tokio::test]
async fn a_denied_path_is_not_there_for_a_target_in_absolute_form() {
    let harness = with_something_to_hide().await;
    for (method, target) in [
        ("GET", "http://dev.example/v1/storage"),
        ("GET", "http://dev.example/v1/storage/list?prefix="),
        ("GET", "HTTPS://other.example:1/v1/storage/objects/a"),
        ("GET", "x://dev.example/v1/storage/stat?key=a"),
        ("PUT", "http://dev.example/v1/storage/objects/b"),
        ("DELETE", "http://dev.example/v1/storage/objects/a"),
        ("POST", "http://dev.example/v1/storage/list"),
        ("POST", "http://dev.example/v1/storage/locks/a"),
        ("GET", "http://dev.example/v1/ingress/routes"),
        ("GET", "http://dev.example/v1/ingress/routes/traefik?prefer=self"),
    ] {
        let answer = asked_for(&harness, method, target).await;
        assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("No such route"), "{target}: {answer}");
    }
    for target in ["v1/storage/list", "http:/v1/storage/list", "http:///v1/storage/list", "dev.example/v1/storage/list"]
    {
        let answer = asked_for(&harness, "GET", target).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{target}: {answer}");
    }
    assert_eq!(asked(&harness), (0, 0));
    // Elsewhere it is a target like any other (RFC 9112 §3.2.2), and over HTTP/2 there is no other form.
    let health = asked_for(&harness, "GET", "http://dev.example/.well-known/scafo/health").await;
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Empty<Bytes>>();
    let request = http::Request::get(format!("http://{}/v1/storage/list?prefix=", harness.address))
        .header("authorization", format!("Bearer {INGRESS_TOKEN}"));
    let answer = client.request(request.body(Empty::new()).unwrap()).await.unwrap();
    assert_eq!((answer.status(), answer.version()), (StatusCode::OK, http::Version::HTTP_2));
}

#[tokio::test]
async fn a_node_is_out_of_scope_where_only_operators_are_answered() {
    let harness = Harness::start().await;
    let answer = harness.get("/v1/applications", &harness.token("n1")).await;
    assert_eq!((answer.status, answer.problem().as_str()), (StatusCode::FORBIDDEN, "auth-scope"));
}

#[tokio::test]
async fn of_fifty_parallel_uses_of_one_token_exactly_one_is_accepted() {
    let mut harness = Harness::start().await;
    harness.registry.world().applications = serde_json::json!([]);
    let token = harness.token("root");
    let uses = futures_util::future::join_all((0..50).map(|_| harness.get("/v1/applications", &token))).await;
    let accepted = uses.iter().filter(|answer| answer.status == StatusCode::OK).count();
    let refused = uses.iter().filter(|answer| answer.status == StatusCode::UNAUTHORIZED).count();
    assert_eq!((accepted, refused), (1, 49));
    harness.restart().await;
    let again = harness.get("/v1/applications", &token).await;
    assert_eq!(again.status, StatusCode::UNAUTHORIZED);
    assert_eq!(harness.get("/v1/applications", &harness.token("root")).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_revoked_key_is_refused_at_once_on_operator_routes_and_after_a_minute_elsewhere() {
    let harness = Harness::start().await;
    harness.registry.world().state = serde_json::json!({});
    assert_eq!(harness.get("/v1/state", &harness.token("root")).await.status, StatusCode::OK);
    harness.registry.world().keys.remove("root");
    assert_eq!(harness.get("/v1/state", &harness.token("root")).await.status, StatusCode::OK, "cached");
    harness.clock.advance(Duration::from_secs(59));
    assert_eq!(harness.get("/v1/state", &harness.token("root")).await.status, StatusCode::OK, "still cached");
    harness.clock.advance(Duration::from_secs(1));
    assert_eq!(harness.get("/v1/state", &harness.token("root")).await.status, StatusCode::UNAUTHORIZED);
    harness.registry.world().applications = serde_json::json!([]);
    assert_eq!(harness.get("/v1/applications", &harness.token("team")).await.status, StatusCode::OK);
    harness.registry.world().keys.remove("team");
    assert_eq!(harness.get("/v1/applications", &harness.token("team")).await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(
        harness.get("/v1/state", &harness.token("team")).await.status,
        StatusCode::UNAUTHORIZED,
        "and forgotten"
    );
}

#[tokio::test]
async fn operator_routes_read_the_record_each_time_and_plain_routes_once_a_minute() {
    let harness = Harness::start().await;
    harness.registry.world().state = serde_json::json!({});
    harness.registry.world().applications = serde_json::json!([]);
    for path in ["/v1/state", "/v1/state", "/v1/applications", "/v1/applications", "/v1/state"] {
        assert_eq!(harness.get(path, &harness.token("root")).await.status, StatusCode::OK);
    }
    let fresh: Vec<bool> = harness.registry.world().lookups.iter().map(|(_, fresh)| *fresh).collect();
    assert_eq!(fresh, [false, true, true]);
}

#[tokio::test]
async fn a_registry_that_is_away_is_never_the_callers_fault() {
    let mut harness = Harness::start().await;
    let down = Problem::new(ProblemCode::StoreUnavailable, "the bucket does not answer");
    harness.registry.world().refuse_keys = Some(down);
    let answer = harness.get("/v1/state", &harness.token("root")).await;
    assert_eq!((answer.status, answer.problem().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "store-unavailable"));
    drop(harness.registry_task.take());
    let answer = harness.send(Method::GET, "/v1/state", &[("authorization", &harness.token("root"))], "").await;
    assert_eq!((answer.status, answer.problem().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "draining"));
}

#[tokio::test]
async fn a_request_waits_for_a_registry_that_is_started_again() {
    let mut harness = Harness::start().await;
    harness.registry.world().state = serde_json::json!({ "node": null });
    drop(harness.registry_task.take());
    let socket = harness.dir.path().join("registry.sock");
    let token = harness.token("root");
    let (answer, ()) = tokio::join!(harness.get("/v1/state", &token), async {
        tokio::task::yield_now().await;
        harness.keep(harness.registry.serve(&socket));
    });
    assert_eq!(answer.status, StatusCode::OK);
}

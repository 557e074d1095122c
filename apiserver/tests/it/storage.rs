//! `/v1/storage/**`.

use bytes::Bytes;
use http::{Method, StatusCode};
use scafo_core::problem::{Problem, ProblemCode};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::harness::{Answer, Harness, INGRESS_TOKEN};

async fn send(harness: &Harness, method: Method, path: &str, more: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
    let authorization = format!("Bearer {INGRESS_TOKEN}");
    let mut headers = vec![("authorization", authorization.as_str())];
    headers.extend(more);
    harness.send(method, &format!("/v1/storage/{path}"), &headers, body).await
}

async fn get(harness: &Harness, path: &str) -> Answer {
    send(harness, Method::GET, path, &[("x-scafo-storage-version", "1")], "").await
}

#[tokio::test]
async fn a_value_comes_back_as_the_bytes_that_were_stored() {
    let harness = Harness::start().await;
    let large: Vec<u8> = (0..600_000_u32).map(|n| (n % 251) as u8).collect();
    for value in [vec![], vec![0, 255, 10, 13], large] {
        let put = send(&harness, Method::PUT, "objects/certificates/x.example/x.key", &[], value.clone()).await;
        assert_eq!((put.status, put.body.len()), (StatusCode::NO_CONTENT, 0));
        let got = get(&harness, "objects/certificates/x.example/x.key").await;
        assert_eq!(
            (got.status, got.headers["content-type"].to_str().unwrap()),
            (StatusCode::OK, "application/octet-stream")
        );
        assert_eq!(got.headers["content-length"], value.len().to_string());
        assert!(got.body == value);
    }
    let stat = get(&harness, "stat?key=certificates%2Fx.example/x.key").await.json();
    assert_eq!((&stat["key"], &stat["size"]), (&json!("certificates/x.example/x.key"), &json!(600_000)));
}

#[tokio::test]
async fn what_is_not_there_is_not_found_and_what_cannot_be_told_is_not() {
    let harness = Harness::start().await;
    for (method, path) in [
        (Method::GET, "objects/a"),
        (Method::DELETE, "objects/a"),
        (Method::GET, "stat?key=a"),
        (Method::GET, "list?prefix=a"),
        (Method::GET, "list"),
    ] {
        for (refusal, expected) in [
            (None, (404, "not-found")),
            (Some(ProblemCode::StoreUnavailable), (503, "store-unavailable")),
            (Some(ProblemCode::StoreNonconforming), (502, "store-nonconforming")),
        ] {
            harness.registry.world().refuse = refusal.map(|code| Problem::new(code, "no answer"));
            let answer = send(&harness, method.clone(), path, &[], "").await;
            assert_eq!((answer.status.as_u16(), answer.problem().as_str()), expected, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn a_key_is_its_path_component_by_component() {
    let harness = Harness::start().await;
    for (path, key) in [
        ("a", "a"),
        ("a/b.crt", "a/b.crt"),
        ("acme%2Dv02.api/x", "acme-v02.api/x"),
        ("w%20x/*.example", "w x/*.example"),
        ("%25/%3F%23", "%/?#"),
    ] {
        let answer = send(&harness, Method::PUT, &format!("objects/{path}"), &[], "x").await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{path}");
        assert!(harness.registry.world().stored.objects.contains_key(key), "{path}");
    }
    let before = harness.registry.world().stored.objects.len();
    for bad in
        ["", "/a", "a/", "a//b", "../x", "a/../b", "a/./b", "a/%2e%2e/b", "a/%2Fb", "a%2Fb", "a%00b", "%C3%A4", "%ff"]
    {
        for method in [Method::PUT, Method::GET, Method::DELETE] {
            let answer = send(&harness, method, &format!("objects/{bad}"), &[], "").await;
            assert_eq!((answer.status.as_u16(), answer.problem().as_str()), (400, "invalid-input"), "{bad}");
            assert_eq!(answer.json()["title"], "Invalid storage key", "{bad}");
        }
        for method in [Method::POST, Method::DELETE] {
            let answer = send(&harness, method, &format!("locks/{bad}"), &[], "").await;
            assert_eq!((answer.status.as_u16(), answer.problem().as_str()), (400, "invalid-input"), "{bad}");
        }
    }
    assert_eq!(harness.registry.world().stored.objects.len(), before);
}

#[tokio::test]
async fn a_listing_is_immediate_or_everything_and_never_empty() {
    let harness = Harness::start().await;
    for key in ["a/b", "a/b/c", "a/d", "ab/c"] {
        harness.registry.world().stored.objects.insert(key.to_owned(), "x".into());
    }
    for (query, keys) in [
        ("prefix=a", json!(["a/b", "a/d"])),
        ("prefix=a&recursive=true", json!(["a/b", "a/b/c", "a/d"])),
        ("prefix=a&recursive=1", json!(["a/b", "a/b/c", "a/d"])),
        ("prefix=a&recursive=yes", json!(["a/b", "a/d"])),
        ("prefix=a%2Fb", json!(["a/b/c"])),
        ("", json!(["a", "ab"])),
    ] {
        let answer = get(&harness, &format!("list?{query}")).await;
        assert_eq!((answer.status, answer.json()), (StatusCode::OK, keys), "{query}");
    }
    let removed = send(&harness, Method::DELETE, "objects/a", &[], "").await;
    assert_eq!((removed.status, get(&harness, "list").await.json()), (StatusCode::NO_CONTENT, json!(["ab"])));
}

#[tokio::test]
async fn another_version_of_the_protocol_is_refused_on_every_route() {
    let harness = Harness::start().await;
    harness.registry.world().stored.objects.insert("a".to_owned(), "x".into());
    for (method, path) in [
        (Method::PUT, "objects/a"),
        (Method::GET, "objects/a"),
        (Method::GET, "stat?key=a"),
        (Method::GET, "list"),
        (Method::POST, "locks/a"),
        (Method::DELETE, "locks/a"),
        (Method::DELETE, "objects/a"),
    ] {
        for bad in ["2", "0", "v1", "1,1"] {
            let answer = send(&harness, method.clone(), path, &[("x-scafo-storage-version", bad)], "").await;
            assert_eq!(answer.problem(), "invalid-input", "{method} {path} {bad}");
        }
        let answer = send(&harness, method.clone(), path, &[("x-scafo-storage-version", "")], "").await;
        assert!(answer.status.is_success(), "{method} {path}");
    }
}

#[tokio::test]
async fn a_lock_is_tried_and_kept_by_its_owner() {
    let harness = Harness::start().await;
    let lock = async |owner: Option<&str>| {
        let headers: Vec<_> = owner.into_iter().map(|owner| ("x-scafo-lock-owner", owner)).collect();
        send(&harness, Method::POST, "locks/issue_cert", &headers, "").await.status.as_u16()
    };
    assert_eq!(
        (lock(Some("one")).await, lock(Some("one")).await, lock(Some("two")).await, lock(None).await),
        (204, 204, 409, 409)
    );
    let held = send(&harness, Method::POST, "locks/issue_cert", &[], "").await;
    assert_eq!(held.problem(), "cas-conflict");
    let unlock =
        async |owner| send(&harness, Method::DELETE, "locks/issue_cert", &[("x-scafo-lock-owner", owner)], "").await;
    assert_eq!(unlock("two").await.status, StatusCode::NO_CONTENT);
    assert_eq!(lock(Some("two")).await, 409);
    assert_eq!(unlock("one").await.status, StatusCode::NO_CONTENT);
    assert_eq!((lock(Some("two")).await, lock(None).await), (204, 409));
    assert_eq!(lock(Some(&"x".repeat(129))).await, 400);
}

#[tokio::test]
async fn a_value_over_the_bound_is_refused_announced_or_not_and_nothing_is_stored() {
    let harness = Harness::start().await;
    let answer = send(&harness, Method::PUT, "objects/a", &[], vec![0; 600_001]).await;
    assert_eq!((answer.status.as_u16(), answer.problem().as_str()), (413, "resource-limit"));
    let mut stream = chunked(&harness).await;
    for _ in 0..38 {
        stream.write_all(format!("4000\r\n{}\r\n", "x".repeat(0x4000)).as_bytes()).await.unwrap();
    }
    let mut answer = [0; 12];
    tokio::io::AsyncReadExt::read_exact(&mut stream, &mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
    assert!(harness.registry.world().stored.objects.is_empty());
}

#[tokio::test]
async fn a_value_that_is_cut_in_the_middle_is_not_stored() {
    let harness = Harness::start().await;
    let mut stream = chunked(&harness).await;
    stream.write_all(b"4\r\nhalf\r\n").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut answer).await;
    assert!(!answer.starts_with(b"HTTP/1.1 2"), "{}", String::from_utf8_lossy(&answer));
    assert!(harness.registry.world().stored.objects.is_empty());
    assert_eq!(send(&harness, Method::PUT, "objects/a", &[], "whole").await.status, StatusCode::NO_CONTENT);
}

async fn chunked(harness: &Harness) -> TcpStream {
    let mut stream = TcpStream::connect(harness.address).await.unwrap();
    let head = format!(
        "PUT /v1/storage/objects/a HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {INGRESS_TOKEN}\r\n\
         transfer-encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn many_large_values_at_once_all_arrive() {
    let harness = Harness::start().await;
    let put = async |n: usize| {
        let path = format!("objects/many/{n}");
        send(&harness, Method::PUT, &path, &[], vec![n as u8; 600_000]).await.status
    };
    let all = futures_util::future::join_all((0..40).map(put)).await;
    assert!(all.iter().all(|status| *status == StatusCode::NO_CONTENT), "{all:?}");
    let world = harness.registry.world();
    assert!(
        world.stored.objects.values().all(|value| value.len() == 600_000 && value.iter().all(|byte| *byte == value[0]))
    );
    assert_eq!(world.stored.objects.len(), 40);
}

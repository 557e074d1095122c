//! `GET /v1/ingress/routes` and its native formats.

use http::{Method, StatusCode};

use crate::harness::{Answer, Harness, INGRESS_TOKEN};

async fn get(harness: &Harness, path: &str, tag: Option<&str>) -> Answer {
    let authorization = format!("Bearer {INGRESS_TOKEN}");
    let headers = [("authorization", authorization.as_str()), ("if-none-match", tag.unwrap_or("\"none\""))];
    harness.send(Method::GET, path, &headers, "").await
}

#[tokio::test]
async fn before_the_first_document_both_routes_are_draining() {
    let harness = Harness::start().await;
    for path in ["/v1/ingress/routes", "/v1/ingress/routes/traefik"] {
        let answer = get(&harness, path, None).await;
        assert_eq!((answer.status, answer.problem().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "draining"));
        assert_eq!(answer.json()["title"], "Not known yet");
    }
}

#[tokio::test]
async fn an_unchanged_document_is_304_and_crosses_to_the_router_once() {
    let harness = Harness::start().await;
    harness.router.set("\"one\"", r#"{"v":1,"routes":[]}"#);
    let first = get(&harness, "/v1/ingress/routes", None).await;
    assert_eq!((first.status, first.headers["etag"].to_str().unwrap()), (StatusCode::OK, "\"one\""));
    assert_eq!(first.body, r#"{"v":1,"routes":[]}"#);
    let second = get(&harness, "/v1/ingress/routes", Some("\"one\"")).await;
    assert_eq!((second.status, second.body.len()), (StatusCode::NOT_MODIFIED, 0));
    assert_eq!(second.headers["etag"], "\"one\"");
    assert_eq!(get(&harness, "/v1/ingress/routes", None).await.body, first.body);
    harness.router.set("\"two\"", r#"{"v":1,"routes":[1]}"#);
    assert_eq!(get(&harness, "/v1/ingress/routes", Some("\"one\"")).await.body, r#"{"v":1,"routes":[1]}"#);
    let asked = harness.router.0.lock().unwrap().asked.clone();
    let tags: Vec<_> = asked.iter().map(|(_, _, tag)| tag.as_str()).collect();
    assert_eq!(tags, ["", "\"one\"", "\"one\"", "\"one\""]);
}

#[tokio::test]
async fn the_preference_and_the_format_are_passed_on_within_bounds() {
    let harness = Harness::start().await;
    harness.router.set("\"one\"", "{}");
    let long = format!("/v1/ingress/routes?prefer={}", "x".repeat(64));
    for path in ["/v1/ingress/routes/traefik?prefer=self&prefer=b", "/v1/ingress/routes?prefer=vps-a", &long] {
        assert_eq!(get(&harness, path, None).await.status, StatusCode::OK);
    }
    let asked = harness.router.0.lock().unwrap().asked.clone();
    let which: Vec<_> = asked.iter().map(|(format, prefer, _)| (format.as_str(), prefer.as_str())).collect();
    assert_eq!(which, [("traefik", "self"), ("", "vps-a"), ("", "")]);
}

#[tokio::test]
async fn an_unknown_format_is_the_routers_404() {
    let harness = Harness::start().await;
    let answer = get(&harness, "/v1/ingress/routes/nginx", None).await;
    assert_eq!((answer.status, answer.problem().as_str()), (StatusCode::NOT_FOUND, "not-found"));
    assert!(answer.json()["detail"].as_str().unwrap().contains("traefik"));
}

#[tokio::test]
async fn the_last_document_is_served_while_the_router_is_away_or_has_none() {
    let mut harness = Harness::start().await;
    harness.router.set("\"one\"", "{}");
    assert_eq!(get(&harness, "/v1/ingress/routes", None).await.status, StatusCode::OK);
    harness.router.0.lock().unwrap().document = None;
    assert_eq!(get(&harness, "/v1/ingress/routes", None).await.body, "{}");
    drop(harness.router_task.take());
    assert_eq!(get(&harness, "/v1/ingress/routes", None).await.body, "{}");
    assert_eq!(get(&harness, "/v1/ingress/routes", Some("\"one\"")).await.status, StatusCode::NOT_MODIFIED);
    let other = get(&harness, "/v1/ingress/routes/traefik", None).await;
    assert_eq!((other.status, other.problem().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "draining"));
}

#[tokio::test]
async fn a_large_document_is_compressed_under_a_tag_that_is_weak() {
    let harness = Harness::start().await;
    let document = format!(r#"{{"v":1,"routes":[{}1]}}"#, "1,".repeat(100_000));
    harness.router.set("\"one\"", &document);
    let authorization = format!("Bearer {INGRESS_TOKEN}");
    let get = async |accepts: &str, tag: &str| {
        let headers = [("authorization", authorization.as_str()), ("accept-encoding", accepts), ("if-none-match", tag)];
        harness.send(Method::GET, "/v1/ingress/routes", &headers, "").await
    };
    let packed = get("gzip", "").await;
    assert_eq!(
        (&packed.headers["content-encoding"], &packed.headers["etag"]),
        (&"gzip".parse().unwrap(), &"W/\"one\"".parse().unwrap())
    );
    let mut read = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&packed.body[..]), &mut read).unwrap();
    assert!(read == document && packed.body.len() < document.len() / 10);
    assert_eq!(get("gzip", "W/\"one\"").await.status, StatusCode::NOT_MODIFIED);
    assert_eq!(get("identity", "W/\"one\"").await.status, StatusCode::NOT_MODIFIED);
    let plain = get("gzip;q=0", "").await;
    assert!(
        plain.body == document && plain.headers["etag"] == "\"one\"" && !plain.headers.contains_key("content-encoding")
    );
    assert_eq!(plain.headers["vary"], "accept-encoding");
}

use std::process::Stdio;

use scafo_core::{Problem, ProblemCode};
use serde_json::json;
use tokio::net::TcpSocket;

use crate::node::{Node, Say, state};
use crate::run::{Home, Ran};

#[tokio::test]
async fn status_keeps_what_a_newer_node_says_and_adds_what_it_found() {
    let home = Home::new();
    let node = Node::start([Say::Json(200, state()), Say::Json(200, state())]).await;
    let ran = home.against(&node.url, "status --json").await;
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&json["later"], &json["warnings"]), (&true.into(), &json!([])));
    let ran = home.against(&node.url, "status").await;
    assert!(
        ran.stdout.contains("vps-a at 10.0.0.1") && ran.stdout.contains("no application runs here"),
        "{}",
        ran.all()
    );
}

#[tokio::test]
async fn routes_are_read_with_the_ingress_token() {
    let home = Home::new();
    std::fs::write(home.path().join("token"), "opaque\n").unwrap();
    let upstreams = json!([{ "node": "a", "address": "10.0.0.1:24000" }]);
    let document =
        json!({ "v": 1, "routes": [{ "host": "shop.apps.example", "application": "shop", "upstreams": upstreams }] });
    let node = Node::start([Say::Json(200, document)]).await;
    let ran = home.run(&format!("routes --prefer self --url {} --ingress-token-file token", node.url)).await;
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert!(ran.stdout.contains("shop.apps.example  shop         a=10.0.0.1:24000\n"), "{}", ran.all());
    let asked = node.asked();
    assert_eq!(asked[0].uri.to_string(), "/v1/ingress/routes?prefer=self");
    assert_eq!(asked[0].header("authorization"), "Bearer opaque");
}

#[tokio::test]
async fn applications_are_listed() {
    let home = Home::new();
    let application = json!({ "v": 1, "name": "shop", "createdAt": "2026-04-01T12:30:00.000Z" });
    let node = Node::start([Say::Json(200, json!({ "applications": [application] }))]).await;
    let ran = home.against(&node.url, "app list").await;
    assert!(ran.code == Some(0) && ran.stdout.contains("\nshop  undeployed"), "{}", ran.all());
}

#[tokio::test]
async fn a_node_that_is_not_there_is_a_failure_with_a_next_step() {
    let home = Home::new();
    // Bound and not listening: connections are refused, and nobody else gets the port.
    let nobody = TcpSocket::new_v4().unwrap();
    nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let ran = home.against(&format!("http://{}", nobody.local_addr().unwrap()), "status").await;
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("no node answers at") && ran.stderr.contains("\nhint: "), "{}", ran.all());

    let ran = home.run("status --state-dir nowhere").await;
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("no node runs on nowhere") && ran.stderr.contains("scafo dev"), "{}", ran.all());
}

#[tokio::test]
async fn what_answers_without_a_problem_document_is_no_node() {
    let home = Home::new();
    let node = Node::start([Say::Json(404, json!("<html>"))]).await;
    let ran = home.against(&node.url, "status").await;
    assert!(ran.code == Some(1) && ran.stderr.contains("does not answer like a scafo node"), "{}", ran.all());
}

#[tokio::test]
async fn a_key_that_others_may_read_is_refused_before_anything_is_sent() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Home::new();
    std::fs::set_permissions(home.key(), std::fs::Permissions::from_mode(0o644)).unwrap();
    let node = Node::start([]).await;
    let ran = home.against(&node.url, "status").await;
    assert!(ran.code == Some(1) && ran.stderr.contains("chmod 600"), "{}", ran.all());
    assert!(node.asked().is_empty());
}

#[tokio::test]
async fn the_exit_status_tells_usage_from_failure() {
    let home = Home::new();
    for (line, code) in [
        ("--version", 0),
        ("deploy --help", 0),
        ("", 2),
        ("nothing", 2),
        ("deploy --replicas 0", 2),
        ("sail --set node.adress=x", 2),
        ("sail --config missing.toml", 1),
        ("dev --tools nowhere", 1),
    ] {
        let ran = home.run(line).await;
        assert_eq!(ran.code, Some(code), "{line}: {}", ran.all());
        let is_data = code == 0;
        assert_eq!((ran.stdout.is_empty(), ran.stderr.is_empty()), (!is_data, is_data), "{line}: {}", ran.all());
    }
}

#[tokio::test]
async fn a_closed_pipe_is_success() {
    let home = Home::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = home.command("deploy project --dry-run");
    let ran = Ran::from(command.stdout(Stdio::from(writer)).output().await.unwrap());
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{}", ran.all());
}

#[tokio::test]
async fn no_escape_sequence_of_a_node_reaches_the_terminal() {
    let home = Home::new();
    let node = Node::start([Say::Problem(Problem::new(ProblemCode::Internal, "\u{1b}]0;owned\u{7} request 7"))]).await;
    let ran = home.against(&node.url, "status").await;
    assert!(ran.code == Some(1) && ran.stderr.contains("request 7") && !ran.stderr.contains('\u{1b}'), "{}", ran.all());
}

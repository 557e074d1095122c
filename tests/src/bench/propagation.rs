//! How long the fleet takes to notice: from a process that is ready on one node to the document of another node, and to the
//! first request that an ingress beside that other node sends there. Intervals are the defaults; ingressd polls every 5 s too.
//!
//! And what a poll costs that finds nothing new, beside nginx that answers the same to the same question from a file.

use std::ffi::OsStr;
use std::process::Command;
use std::time::{Duration, Instant};

use scafo_tests::fleet::{DEFAULTS, Fleet};
use scafo_tests::ingresses::http::ask;
use scafo_tests::{Node, Project, wait};
use serde_json::Value;

use crate::ingress::proxies::{free_port, nginx};
use crate::statistics::Sample;

const ROUNDS: usize = 6;
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) async fn run() {
    println!("## propagation: {ROUNDS} applications that become ready on node A, seen from node B");
    let fleet = Fleet::new(&DEFAULTS).await;
    let a = fleet.node_with("vps-a", &[("SCAFO_NODE_LABELS", "role=first")]).await;
    let b = fleet.node("vps-b").await;
    let (mut named, mut routed) = (Sample::default(), Sample::default());
    for round in 0..ROUNDS {
        let name = format!("bench-{round}");
        let project = Project::answering(&name, "hello");
        let arguments = ["deploy", "--selector", "role=first"].map(OsStr::new);
        let deploy = a.scafo(arguments.into_iter().chain([project.path().as_os_str()]));
        let watch = async {
            wait::until("the process to be ready", LIMIT, || async { ready(&a, &name).await.then_some(()) }).await;
            let ready = Instant::now();
            let in_document = async {
                let host = a.host(&name);
                wait::until("the other node's document", LIMIT, || async { names(&b, &host).await.then_some(()) })
                    .await;
                ready.elapsed()
            };
            let through_ingress = async {
                let host = a.host(&name);
                wait::until("the first request", LIMIT, || async { answers(&b, &host).await.then_some(()) }).await;
                ready.elapsed()
            };
            tokio::join!(in_document, through_ingress)
        };
        let (output, (document, request)) = tokio::join!(deploy, watch);
        assert!(output.status.success(), "{}", scafo_tests::node::both(&output));
        named.push(document);
        routed.push(request);
    }
    println!("until node B's document names it  {}", named.row());
    println!("until node B's ingress routes     {}", routed.row());
    polls(&b).await;
    println!();
    b.stop().await;
    a.stop().await;
}

async fn ready(node: &Node, application: &str) -> bool {
    let Ok((200, state)) = node.api().get("/v1/state").await else { return false };
    let is_ready = |process: &Value| process["application"] == application && process["state"] == "ready";
    state["processes"].as_array().is_some_and(|processes| processes.iter().any(is_ready))
}

async fn names(node: &Node, host: &str) -> bool {
    let Ok(answer) = node.api().ingress("/v1/ingress/routes").send().await else { return false };
    let Ok(document) = answer.json::<Value>().await else { return false };
    document["routes"].as_array().is_some_and(|routes| routes.iter().any(|route| route["host"] == host))
}

async fn answers(node: &Node, host: &str) -> bool {
    let ingress = node.dev.ingress.trim_start_matches("http://").parse().expect("an address");
    ask(ingress, host, "/").await.is_ok_and(|answer| answer.status == 200)
}

/// Both answer 304 to the tag that they gave.
async fn polls(node: &Node) {
    const PATH: &str = "/v1/ingress/routes";
    let answer = node.api().ingress(PATH).send().await.expect("an answer");
    let tag = answer.headers()["etag"].to_str().expect("a tag").to_owned();
    let body = answer.bytes().await.expect("a document");
    let dir = tempfile::TempDir::new().expect("a directory");
    std::fs::write(dir.path().join("routes"), &body).expect("a file");
    let listen = free_port();
    let server = format!(
        "server {{ listen {listen}; location {PATH} {{ default_type application/json; alias {}; }} }}",
        dir.path().join("routes").display()
    );
    let _nginx = nginx(dir.path(), "polls", &server);
    let theirs = format!("http://{listen}{PATH}");
    let their_tag = wait::until("nginx", LIMIT, || async {
        let answer = scafo_tests::load::client().get(&theirs).send().await.ok()?;
        answer.headers().get("etag")?.to_str().map(str::to_owned).ok()
    })
    .await;
    let token = std::fs::read_to_string(&node.dev.ingress_token_file).expect("a token");
    let ours = format!("{}{PATH}", node.dev.api);
    let (mut own, mut other) = (0.0_f64, 0.0_f64);
    for _ in 0..2 {
        own = own.max(rate(&ours, &tag, token.trim()));
        other = other.max(rate(&theirs, &their_tag, ""));
    }
    println!(
        "polls that find nothing new (304): {own:.0}/s   nginx, from a file: {other:.0}/s   ratio {:.2}",
        own / other
    );
}

fn rate(url: &str, tag: &str, token: &str) -> f64 {
    let output = Command::new("wrk")
        .args(["-t2", "-c16", "-d", "3"])
        .args(["-H", &format!("If-None-Match: {tag}"), "-H", &format!("Authorization: Bearer {token}"), url])
        .output()
        .expect("wrk runs (scripts/bench-tools.sh installs it)");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // wrk counts every status above 399 as an error, and 304 is none.
    assert!(!text.contains("Non-2xx"), "{url}: {text}");
    let rate =
        text.lines().find_map(|line| line.strip_prefix("Requests/sec:")).and_then(|rate| rate.trim().parse().ok());
    rate.unwrap_or_else(|| panic!("{text}"))
}

//! The API: routing documents, an authenticated read and an upload, beside nginx with the same bytes; and what the way between two
//! processes costs of it.

mod pair;

use std::path::Path;
use std::time::{Duration, Instant};

use reqwest::Method;
use scafo_proto::router::GetRoutingRequest;
use scafo_proto::router::router_client::RouterClient;
use scafo_proto::transport;
use scafo_tests::load::client;
use scafo_tests::{Node, Project, process, wait};
use tempfile::TempDir;
use tokio::task::JoinSet;

use self::pair::{Pair, TOKEN};
use crate::ingress::proxies::{free_port, nginx};
use crate::rendering::snapshot;
use crate::statistics::Sample;
use crate::wrk::{Measured, wrk};

const SECONDS: u32 = 2;
const ROUNDS: usize = 2;
/// Tokens that are signed ahead: more than the API takes in [`SECONDS`], which would refuse one that comes again. nginx does not.
const TOKENS: usize = 60_000;
const ARTIFACT: usize = 200 * 1000 * 1000;

pub(crate) async fn run() {
    println!("## api: 64 connections, {ROUNDS} rounds of {SECONDS} s each, the best of them");
    for hosts in [100, 10_000] {
        routes(hosts).await;
    }
    let node = Node::start().await;
    node.deploy(Project::answering("shop", "hello").path()).await;
    read(&node).await;
    upload(&node).await;
    let pids = &node.dev.pids;
    let of = [("apiserver", pids.apiserver), ("registryd", pids.registryd), ("routerd", pids.routerd)];
    let held = of.map(|(name, pid)| format!("{name} {} MiB", process::resident(pid) >> 20));
    println!("memory after all that: {}\n", held.join(", "));
    node.stop().await;
}

/// The best of some rounds of each, round by round.
fn best<const N: usize>(runs: [&dyn Fn() -> Measured; N]) -> [Measured; N] {
    let mut best = [Measured::default(); N];
    for _ in 0..ROUNDS {
        for (best, run) in best.iter_mut().zip(runs) {
            let measured = run();
            if measured.rate > best.rate {
                *best = measured;
            }
        }
    }
    best
}

fn row(what: &str, ours: Measured, theirs: Measured) {
    println!(
        "{what:<44} {:>8.0}/s  p99 {:>7.2} ms   nginx {:>8.0}/s  p99 {:>7.2} ms   api/nginx {:.2}",
        ours.rate,
        ours.p99,
        theirs.rate,
        theirs.p99,
        ours.rate / theirs.rate
    );
}

async fn routes(hosts: usize) {
    let dir = TempDir::new().expect("a directory");
    let pair = Pair::start(dir.path(), &snapshot(hosts));
    let url = format!("http://{}/v1/ingress/routes", pair.api);
    let (tag, body) = wait::until("the document", Duration::from_secs(60), || async {
        let answer = client().get(&url).bearer_auth(TOKEN).send().await.ok().filter(|answer| answer.status() == 200)?;
        let tag = answer.headers()["etag"].to_str().ok()?.to_owned();
        Some((tag, answer.bytes().await.ok()?))
    })
    .await;
    let files = dir.path().join("files");
    std::fs::create_dir(&files).expect("a directory");
    std::fs::write(files.join("routes"), &body).expect("a file");
    let address = free_port();
    let server = format!("sendfile on; server {{ listen {address}; root {}; }}", files.display());
    let _nginx = nginx(dir.path(), "files", &server);
    let file = format!("http://{address}/routes");
    let their_tag = wait::until("nginx", Duration::from_secs(30), || async {
        Some(client().get(&file).send().await.ok()?.headers()["etag"].to_str().ok()?.to_owned())
    })
    .await;
    let bearer = format!("Authorization: Bearer {TOKEN}");
    let known = |tag: &str| format!("If-None-Match: {tag}");
    let (known, theirs) = (known(&tag), known(&their_tag));
    let [own_304, nginx_304, own_full, nginx_full] = best([
        &|| wrk(SECONDS, ["-H", &bearer, "-H", &known, &url]),
        &|| wrk(SECONDS, ["-H", &bearer, "-H", &theirs, &file]),
        &|| wrk(SECONDS, ["-H", &bearer, &url]),
        &|| wrk(SECONDS, ["-H", &bearer, &file]),
    ]);
    row(&format!("routes, {hosts} hosts, unchanged (304)"), own_304, nginx_304);
    row(&format!("routes, {hosts} hosts, whole ({} KiB)", body.len() >> 10), own_full, nginx_full);
    println!(
        "  memory: apiserver {} MiB, routerd {} MiB",
        pair.apiserver.resident() >> 20,
        pair.routerd.resident() >> 20
    );
    if hosts == 100 {
        let health = format!("http://{}/.well-known/scafo/health", pair.api);
        let [without] = best([&|| wrk(SECONDS, [&health])]);
        let alone = calls(&dir.path().join("router.sock"), &tag).await;
        println!(
            "  the way to the router: HTTP alone {:.0}/s, the call alone {alone:.0}/s, both {:.0}/s ({:.0} µs of processor time and waiting each)",
            without.rate,
            own_304.rate,
            1e6 / own_304.rate - 1e6 / without.rate
        );
    }
}

/// Calls of the router per second, as many at once as there are connections to the API.
async fn calls(socket: &Path, tag: &str) -> f64 {
    let router = RouterClient::new(transport::channel(socket));
    let until = Instant::now() + Duration::from_secs(SECONDS.into());
    let mut callers = JoinSet::new();
    for _ in 0..64 {
        let (mut router, tag) = (router.clone(), tag.to_owned());
        callers.spawn(async move {
            let mut calls = 0_u32;
            while Instant::now() < until {
                let request = GetRoutingRequest { if_none_match: tag.clone(), ..GetRoutingRequest::default() };
                let request = transport::within(transport::QUICK, request);
                let mut answer = router.get_routing(request).await.expect("an answer").into_inner();
                assert!(answer.message().await.expect("a piece").expect("one").not_modified);
                assert!(answer.message().await.expect("its end").is_none());
                calls += 1;
            }
            calls
        });
    }
    let mut all = 0;
    while let Some(calls) = callers.join_next().await {
        all += calls.expect("no caller fails");
    }
    f64::from(all) / f64::from(SECONDS)
}

/// Each request has a token of its own, each connection's thread a part of the file.
const FRESH: &str = r#"
local count = 0
function setup(thread) thread:set("part", count); count = count + 1 end
function init(args)
  tokens = {}
  local line = 0
  for token in io.lines(args[1]) do
    if line % 2 == part then tokens[#tokens + 1] = token end
    line = line + 1
  end
  next_token = 0
end
function request()
  next_token = next_token % #tokens + 1
  return wrk.format("GET", nil, { Authorization = "Bearer " .. tokens[next_token] })
end
"#;

async fn read(node: &Node) {
    let dir = TempDir::new().expect("a directory");
    let url = format!("{}/v1/applications/shop", node.dev.api);
    let answer = node.api().request(Method::GET, "/v1/applications/shop").send().await.expect("an answer");
    std::fs::write(dir.path().join("shop"), answer.bytes().await.expect("a record")).expect("a file");
    let address = free_port();
    let server = format!("server {{ listen {address}; root {}; }}", dir.path().display());
    let _nginx = nginx(dir.path(), "files", &server);
    let file = format!("http://{address}/shop");
    wait::until("nginx", Duration::from_secs(30), || async { client().get(&file).send().await.ok() }).await;
    let (script, tokens) = (dir.path().join("fresh.lua"), dir.path().join("tokens"));
    std::fs::write(&script, FRESH).expect("a file");
    let sign = || {
        let api = node.api();
        let signed: Vec<String> = (0..TOKENS).map(|_| api.token()).collect();
        std::fs::write(&tokens, signed.join("\n")).expect("a file");
    };
    let script = script.to_str().expect("a temporary path");
    let measure = |url: &str| {
        sign();
        wrk(SECONDS, ["-s", script, url, "--", tokens.to_str().expect("a temporary path")])
    };
    let [ours, theirs] = best([&|| measure(&url), &|| measure(&file)]);
    row("one application, a fresh token each", ours, theirs);
}

async fn upload(node: &Node) {
    let dir = TempDir::new().expect("a directory");
    let files = dir.path().join("files");
    std::fs::create_dir(&files).expect("a directory");
    let address = free_port();
    let server =
        format!("client_max_body_size 0; server {{ listen {address}; root {}; dav_methods PUT; }}", files.display());
    let _nginx = nginx(dir.path(), "files", &server);
    let file = format!("http://{address}/artifact");
    wait::until("nginx", Duration::from_secs(30), || async { client().get(&file).send().await.ok() }).await;
    let artifact = bytes::Bytes::from(artifact());
    let (mut ours, mut theirs) = (Sample::default(), Sample::default());
    for _ in 0..ROUNDS {
        let request = node.api().request(Method::POST, "/v1/applications/shop/deploys").header("x-scafo-deploy", "e30");
        let started = Instant::now();
        let answer = request.body(artifact.clone()).timeout(Duration::from_secs(60)).send().await.expect("an answer");
        ours.push(started.elapsed());
        assert_eq!(answer.status(), 202, "{}", answer.text().await.unwrap_or_default());
        let started = Instant::now();
        let answer = client().put(&file).body(artifact.clone()).timeout(Duration::from_secs(60)).send().await;
        theirs.push(started.elapsed());
        assert!(answer.expect("an answer").status().is_success());
    }
    let rate = |sample: &Sample| ARTIFACT as f64 / 1e6 / sample.at(0).as_secs_f64();
    println!(
        "upload of 200 MB, hashed and on the disk: {:.0} MB/s   nginx, neither: {:.0} MB/s   api/nginx {:.2}",
        rate(&ours),
        rate(&theirs),
        rate(&ours) / rate(&theirs)
    );
}

/// A Worker beside a file that no compression makes smaller.
fn artifact() -> Vec<u8> {
    let project = Project::answering("shop", "hello");
    let mut archive = tar::Builder::new(Vec::with_capacity(ARTIFACT + (1 << 20)));
    archive.append_dir_all(".", project.path()).expect("readable files");
    let mut data = vec![0; ARTIFACT];
    rand::fill(&mut data[..]);
    let mut header = tar::Header::new_gnu();
    header.set_size(ARTIFACT as u64);
    header.set_mode(0o644);
    header.set_cksum();
    archive.append_data(&mut header, "data", data.as_slice()).expect("memory takes everything");
    archive.into_inner().expect("memory takes everything")
}

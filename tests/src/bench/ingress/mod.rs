//! Requests through ingressd, nginx, Caddy and Traefik, each in front of the same upstream, in one run.
//!
//! Two upstreams: the process of a Worker, which is the truth and also the limit, and nginx with two files, which is fast enough
//! to show what the proxies cost. With the files, requests go to hosts at random, of a hundred and of a hundred thousand.
//!
//! Traefik gets its routers from a file and without health checks: a hundred thousand of those would be what is measured.

pub(crate) mod proxies;

use std::path::Path;
use std::time::{Duration, Instant};

use scafo_tests::load::client;
use scafo_tests::{Node, Project, wait};
use tempfile::TempDir;

use self::proxies::{Proxy, free_port, nginx, start_all};
use crate::wrk::{Measured, wrk};

const SECONDS: u32 = 2;
const ROUNDS: usize = 2;
const SIZES: [(&str, usize); 2] = [("1 KB", 1024), ("100 KB", 100 * 1024)];
const HOSTS: [usize; 2] = [100, 100_000];
/// How long a proxy may take until it serves. Traefik needs minutes for a hundred thousand routers.
const START: Duration = Duration::from_secs(600);
/// A start that takes longer is printed.
const NOTABLE: Duration = Duration::from_secs(5);

/// A host of the document.
fn host(index: usize) -> String {
    format!("app-{index}.bench.example")
}

pub(crate) async fn run() {
    println!("## ingress: 64 connections, {ROUNDS} rounds of {SECONDS} s each, the best of them; memory after them");
    let node = Node::start().await;
    node.deploy(Project::answering("bench", "hello").path()).await;
    let (_, state) = node.api().get("/v1/state").await.expect("an answer");
    let worker = format!("127.0.0.1:{}", state["processes"][0]["port"]);
    let dir = TempDir::new().expect("a directory");
    compare(dir.path(), "a Worker, 1 host", &worker, 1, &["/"]).await;
    node.stop().await;

    let files = dir.path().join("files");
    std::fs::create_dir(&files).expect("a directory");
    for (_, size) in SIZES {
        std::fs::write(files.join(size.to_string()), "x".repeat(size)).expect("a file");
    }
    let fast = free_port();
    let server = format!("sendfile on; server {{ listen {fast}; root {}; }}", files.display());
    let _upstream = nginx(dir.path(), "upstream", &server);
    answers(&fast, &host(0), "/1024", Duration::from_secs(30)).await.expect("the upstream answers");
    for hosts in HOSTS {
        let dir = TempDir::new().expect("a directory");
        compare(dir.path(), &format!("files, {hosts} hosts"), &fast, hosts, &["/1024", "/102400"]).await;
    }
}

async fn compare(dir: &Path, what: &str, upstream: &str, hosts: usize, paths: &[&str]) {
    let script = dir.join("hosts.lua");
    let lua = format!(
        "request = function() return wrk.format(\"GET\", nil, {{ Host = \"app-\" .. math.random(0, {}) .. \".bench.example\" }}) end",
        hosts - 1
    );
    std::fs::write(&script, lua).expect("a file");
    let script = script.to_str().expect("a temporary path");
    let proxies = start_all(dir, upstream, hosts).await;
    let mut running = Vec::new();
    for proxy in proxies {
        let began = Instant::now();
        match answers(&proxy.address, &host(hosts - 1), paths[0], START).await {
            Some(()) if began.elapsed() < NOTABLE => {}
            Some(()) => println!("{what}: {} served after {:.0} s", proxy.name, began.elapsed().as_secs_f64()),
            None => {
                println!("{what}: {} did not serve within {} s", proxy.name, START.as_secs());
                continue;
            }
        }
        running.push(proxy);
    }
    for path in paths {
        let mut best = vec![Measured::default(); running.len()];
        // Round by round and not proxy by proxy: a slow minute of the machine then hits all of them.
        for _ in 0..ROUNDS {
            for (best, proxy) in best.iter_mut().zip(&running) {
                let measured = wrk(SECONDS, ["-s", script, &format!("http://{}{path}", proxy.address)]);
                if measured.rate > best.rate {
                    *best = measured;
                }
            }
        }
        print_table(what, path, &running, &best);
    }
}

fn print_table(what: &str, path: &str, running: &[Proxy], best: &[Measured]) {
    let own = running.iter().position(|proxy| proxy.name == "ingressd").map_or(0.0, |index| best[index].rate);
    let size = SIZES.iter().find(|(_, size)| path == format!("/{size}")).map_or("", |(name, _)| name);
    println!("upstream: {what} {size}");
    for (proxy, measured) in running.iter().zip(best) {
        println!(
            "  {:<9} {:>8.0}/s   p50 {:>7.2} ms   p99 {:>8.2} ms   {:>5} MiB   ingressd/{} {:.2}",
            proxy.name,
            measured.rate,
            measured.p50,
            measured.p99,
            proxy.resident() >> 20,
            proxy.name,
            own / measured.rate
        );
    }
}

/// Waits until a request is answered well; `None` when it is not within `limit`.
async fn answers(address: &str, host: &str, path: &str, limit: Duration) -> Option<()> {
    let client = client();
    let answered = async {
        loop {
            let answer = client.get(format!("http://{address}{path}")).header("host", host).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return;
            }
            wait::moment().await;
        }
    };
    tokio::time::timeout(limit, answered).await.ok()
}

//! From kill -9 of a daemon to the next good answer that needs it.

use std::time::Instant;

use nix::sys::signal::Signal;
use reqwest::{Method, RequestBuilder};
use scafo_tests::load::{Outcome, client, send};
use scafo_tests::node::DAEMONS;
use scafo_tests::{Node, Project, process, wait};

use crate::statistics::Sample;

/// Few, because each kill doubles the pause before the next start, which is part of what is measured.
const ROUNDS: usize = 5;

pub(crate) async fn run() {
    println!("## recovery: kill -9 → next good answer");
    let node = Node::start().await;
    let worker = Project::answering("bench", "hello");
    node.deploy(worker.path()).await;
    for daemon in DAEMONS {
        let mut sample = Sample::default();
        for _ in 0..ROUNDS {
            good(&node, daemon).await;
            let old = node.daemon(daemon).expect("it runs");
            process::signal(old.pid, Signal::SIGKILL);
            let killed = Instant::now();
            // The dead one answers nothing any more once it is gone from the process table.
            while process::read(old.pid).is_some_and(|still| still.started == old.started) {
                tokio::task::yield_now().await;
            }
            good(&node, daemon).await;
            sample.push(killed.elapsed());
        }
        println!("{daemon:<18} {}", sample.row());
    }
    println!();
    node.stop().await;
}

async fn good(node: &Node, daemon: &str) {
    wait::until(daemon, std::time::Duration::from_secs(60), || async {
        let outcome = send(asking(node, daemon)).await;
        matches!(outcome, Outcome::Answered { status: 200, .. }).then_some(())
    })
    .await;
}

/// A request that the daemon has to have a part in. Operator routes read the operator's record from the bucket.
fn asking(node: &Node, daemon: &str) -> RequestBuilder {
    let api = node.api();
    match daemon {
        "scafo-ingressd" => client().get(&node.dev.ingress).header("host", node.host("bench")),
        "scafo-apiserver" => api.bare(Method::GET, "/.well-known/scafo/health"),
        "scafo-routerd" => api.ingress("/v1/ingress/routes?prefer=self"),
        _ => api.request(Method::GET, "/v1/applications"),
    }
}

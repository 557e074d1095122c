//! No request fails through any ingress while applications are deployed again and daemons of the node are killed.

use std::time::Duration;

use reqwest::Method;
use scafo_tests::ingresses::{Ingress, Source};
use scafo_tests::load::{Load, Outcome, client, not_answered, send};
use scafo_tests::{Node, Project, wait};

const LIMIT: Duration = Duration::from_secs(60);

/// Requests through each ingress at least, and rounds of deploys and kills.
fn extent() -> (usize, usize) {
    if crate::long() { (50_000, 12) } else { (2_000, 2) }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_an_application_is_deployed_and_daemons_are_killed() {
    let (requests, rounds) = extent();
    let node = Node::start().await;
    node.deploy(Project::answering("shop", "edition 0").path()).await;
    let source = Source::of(&node.dev);
    let ingresses = Ingress::start_all(&source).await;
    let host = node.host("shop");
    for ingress in &ingresses {
        ingress.until_answered(&host, "/", 200, "edition 0", LIMIT).await;
    }
    let loads: Vec<Load> = ingresses.iter().map(|ingress| load(ingress, &host)).collect();
    let mut edition = 0;
    for _ in 0..rounds {
        edition += 1;
        node.deploy(Project::answering("shop", &format!("edition {edition}")).path()).await;
        // The ingress of the node carries none of this load.
        for daemon in scafo_tests::node::DAEMONS {
            node.kill_daemon(daemon).await;
            good_again(&node).await;
        }
    }
    for ingress in &ingresses {
        ingress.until_answered(&host, "/", 200, &format!("edition {edition}"), LIMIT).await;
    }
    wait::until("enough requests", Duration::from_secs(600), || async {
        loads.iter().all(|load| load.ended() >= requests).then_some(())
    })
    .await;
    for (ingress, load) in ingresses.iter().zip(loads) {
        let outcomes = load.stop().await;
        let lost = not_answered(&outcomes, &[200]);
        let kind = ingress.kind();
        assert!(
            lost.is_empty(),
            "{kind:?}: {} of {} lost: {:?}",
            lost.len(),
            outcomes.len(),
            &lost[..lost.len().min(5)]
        );
    }
    node.stop().await;
}

fn load(ingress: &Ingress, host: &str) -> Load {
    let (client, url, host) = (client(), format!("http://{}/", ingress.address()), host.to_owned());
    Load::start(2, move || client.get(&url).header("host", &host))
}

/// Waits until the API works, so that each kill meets a node that does.
async fn good_again(node: &Node) {
    let api = node.api();
    wait::until("the node to work again", LIMIT, || async {
        let fine = |outcome| matches!(outcome, Outcome::Answered { status: 200, .. });
        let reads = send(api.request(Method::GET, "/v1/applications")).await;
        let routes = send(api.ingress("/v1/ingress/routes")).await;
        (fine(reads) && fine(routes)).then_some(())
    })
    .await;
}

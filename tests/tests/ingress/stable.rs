//! A fleet that does not change says the same, byte for byte: on every node, pass after pass, and when its daemons are started
//! again; and a real Traefik has nothing to take over.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use scafo_tests::fleet::Fleet;
use scafo_tests::ingresses::{Ingress, Source};
use scafo_tests::{Node, Project, wait};

use crate::nodes::{deploy, until_served_by, until_served_by_so_many};
use crate::polls::taken_over;

const LIMIT: Duration = Duration::from_secs(120);
const PATHS: [&str; 4] = [
    "/v1/ingress/routes",
    "/v1/ingress/routes?prefer=vps-b",
    "/v1/ingress/routes/traefik",
    "/v1/ingress/routes/traefik?prefer=vps-b",
];

/// Tags and bodies by path.
type Said = BTreeMap<&'static str, (String, Vec<u8>)>;

async fn said(node: &Node) -> Option<Said> {
    let mut said = Said::new();
    for path in PATHS {
        let answer = node.api().ingress(path).send().await.ok()?;
        let tag = answer.headers().get("etag")?.to_str().ok()?.to_owned();
        said.insert(path, (tag, answer.bytes().await.ok()?.to_vec()));
    }
    Some(said)
}

/// Reconcile passes that a node's registry daemon has made.
async fn passes(node: &Node) -> Option<u64> {
    let (status, state) = node.api().get("/v1/state").await.ok()?;
    (status == 200).then(|| state["reconcile"]["pass"].as_u64()).flatten()
}

/// Waits for so many passes of each, and looks at what each says all the while.
async fn unchanged_through(nodes: &[&Node], expected: &Said, more: u64) {
    for node in nodes {
        let started = Instant::now();
        let (mut seen, mut last) = (0, None);
        while seen < more {
            if let Some(now) = passes(node).await {
                // A daemon that was started again counts anew.
                seen += now.saturating_sub(last.replace(now).unwrap_or(now));
            }
            if let Some(now) = said(node).await {
                assert!(now == *expected, "{} says something else", node.dev.node);
            }
            assert!(started.elapsed() < LIMIT, "{seen} of {more} passes of {} within {LIMIT:?}", node.dev.node);
            wait::moment().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_does_not_change_says_the_same_bytes_through_passes_and_restarts() {
    let (more, rounds) = if crate::long() { (150, 5) } else { (20, 1) };
    // Nobody counts as gone because the machine is busy: that would be a change.
    let patient = [("SCAFO_RECONCILE_INTERVAL", "100ms"), ("SCAFO_NODE_LIVENESS", "120s"), ("SCAFO_LEASE_TTL", "15s")];
    let fleet = Fleet::new(&patient).await;
    let (a, b, c) = (fleet.node("vps-a").await, fleet.node("vps-b").await, fleet.node("vps-c").await);
    for (application, replicas) in [("shop", "3"), ("blog", "2"), ("news", "1")] {
        deploy(&a, &Project::answering(application, application), replicas).await;
    }
    let claimed = b.api().request(reqwest::Method::POST, "/v1/applications/shop/domains/shop.example?wildcard=1");
    assert_eq!(claimed.send().await.unwrap().status().as_u16(), 200);
    for node in [&a, &b, &c] {
        until_served_by(node, "shop.example", &["vps-a", "vps-b", "vps-c"]).await;
        for (application, replicas) in [("shop", 3), ("blog", 2), ("news", 1)] {
            until_served_by_so_many(node, &node.host(application), replicas).await;
        }
    }
    let expected = wait::until("all nodes to say the same", LIMIT, || async {
        let first = said(&a).await?;
        (said(&b).await? == first && said(&c).await? == first).then_some(first)
    })
    .await;
    let traefik = Ingress::verbose_traefik(&Source::of(&c.dev)).await;
    traefik.until_answered("x.shop.example", "/", 200, "shop", LIMIT).await;
    let before = taken_over(&traefik);
    for _ in 0..rounds {
        unchanged_through(&[&a, &b, &c], &expected, more).await;
        for daemon in ["scafo-registryd", "scafo-routerd", "scafo-apiserver"] {
            for node in [&a, &b, &c] {
                node.kill_daemon(daemon).await;
                wait::until("the same document again", LIMIT, || async {
                    // The node that is being started again may have to say that it cannot say anything yet.
                    let now = said(node).await?;
                    assert!(now == expected, "{} says something else after {daemon} was killed", node.dev.node);
                    Some(())
                })
                .await;
            }
        }
    }
    unchanged_through(&[&a, &b, &c], &expected, more).await;
    assert_eq!(taken_over(&traefik), before, "{}", traefik.log());
    tokio::join!(a.stop(), b.stop(), c.stop());
}

//! No request fails through any ingress while applications are deployed again, change their places, and daemons are killed. The
//! clients never try again.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::Method;
use scafo_tests::fleet::Fleet;
use scafo_tests::ingresses::{Ingress, Kind, Source};
use scafo_tests::load::{Load, Outcome, client, not_answered, send};
use scafo_tests::node::LONG_LEASES;
use scafo_tests::{Node, Project, process, wait};
use serde_json::json;

use crate::nodes::{deploy, until_served_by, until_served_by_so_many, upstreams};

/// Nodes leave one after the other, each with its hold, and the machine may be busy.
const LIMIT: Duration = Duration::from_secs(180);

/// Requests through each ingress at least, and rounds of deploys and kills. Not many rounds: a daemon that is killed over and over
/// is started again more and more slowly.
fn extent() -> (usize, usize) {
    if crate::long() { (50_000, 6) } else { (2_000, 2) }
}

/// The oldest Traefik joins where there is time for it.
fn kinds() -> &'static [Kind] {
    if crate::long() { &Kind::WITH_OLDEST } else { &Kind::ALL }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_an_application_is_deployed_and_daemons_are_killed() {
    let (requests, rounds) = extent();
    let node = Node::start_with(&[LONG_LEASES]).await;
    node.deploy(Project::answering("shop", "edition 0").path()).await;
    let source = Source::of(&node.dev);
    let ingresses = Ingress::start_each(kinds(), &source).await;
    let host = node.host("shop");
    for ingress in &ingresses {
        ingress.until_answered(&host, "/", 200, "edition 0", LIMIT).await;
    }
    let loads = Loads::start(&ingresses, std::slice::from_ref(&host));
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
    loads.none_lost(&ingresses, requests).await;
    node.stop().await;
}

/// The applications of a fleet go to fewer nodes and back, daemons of every node are killed, and one node is stopped.
#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_applications_change_their_places_and_a_node_leaves() {
    let (requests, rounds) = extent();
    // The limit on how late an ingress may learn of a change; a busy machine needs some.
    let fleet = Fleet::new(&[("SCAFO_INGRESS_HOLD", "10s")]).await;
    let label = [("SCAFO_NODE_LABELS", "role=second")];
    let (a, b, c) =
        (fleet.node("vps-a").await, fleet.node_with("vps-b", &label).await, fleet.node_with("vps-c", &label).await);
    let everywhere = ["vps-a", "vps-b", "vps-c"];
    // Several, because the one that is left is another one for each name.
    let applications = ["shop", "blog", "news"];
    for application in applications {
        deploy(&a, &Project::answering(application, "first"), "3").await;
    }
    let hosts = applications.map(|application| a.host(application));
    for host in &hosts {
        until_served_by(&a, host, &everywhere).await;
    }
    // One that the ingresses' own node never serves, so that its requests go to the node that leaves.
    let far = Project::answering("far", "first");
    let arguments = ["deploy", "--replicas", "2", "--selector", "role=second"].map(OsStr::new);
    let output = a.scafo(arguments.into_iter().chain([far.path().as_os_str()])).await;
    assert!(output.status.success(), "{}", scafo_tests::node::both(&output));
    let away = a.host("far");
    until_served_by(&a, &away, &["vps-b", "vps-c"]).await;
    let ingresses = Ingress::start_each(kinds(), &Source::of(&a.dev)).await;
    for ingress in &ingresses {
        for host in hosts.iter().chain([&away]) {
            ingress.until_answered(host, "/", 200, "first", LIMIT).await;
        }
    }
    let loads = Loads::start(&ingresses, &[&hosts[..], std::slice::from_ref(&away)].concat());
    for _ in 0..rounds.div_ceil(2) {
        for application in applications {
            replicas(&b, application, 1).await;
        }
        for host in &hosts {
            until_served_by_so_many(&a, host, 1).await;
        }
        deploy(&c, &Project::answering("shop", "second"), "3").await;
        for application in applications {
            replicas(&b, application, 3).await;
        }
        for host in &hosts {
            until_served_by(&a, host, &everywhere).await;
        }
        for node in [&a, &b, &c] {
            for daemon in ["scafo-registryd", "scafo-routerd", "scafo-apiserver"] {
                node.kill_daemon(daemon).await;
                good_again(node).await;
            }
        }
    }
    b.stop().await;
    for host in &hosts {
        until_served_by(&a, host, &["vps-a", "vps-c"]).await;
    }
    until_served_by(&a, &away, &["vps-c"]).await;
    loads.none_lost(&ingresses, requests).await;
    tokio::join!(c.stop(), a.stop());
}

/// `scafo node drain`, from the command to its end, and the way back.
#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_nodes_are_drained_and_come_back() {
    let (requests, rounds) = extent();
    let fleet = Fleet::new(&[("SCAFO_INGRESS_HOLD", "10s")]).await;
    let (a, b, c) = (fleet.node("vps-a").await, fleet.node("vps-b").await, fleet.node("vps-c").await);
    let applications = [("shop", "2"), ("blog", "1"), ("news", "1"), ("wiki", "3")];
    for (application, replicas) in applications {
        deploy(&a, &Project::answering(application, "first"), replicas).await;
    }
    let hosts = applications.map(|(application, _)| a.host(application));
    let ingresses = Ingress::start_each(kinds(), &Source::of(&a.dev)).await;
    for ingress in &ingresses {
        for host in &hosts {
            ingress.until_answered(host, "/", 200, "first", LIMIT).await;
        }
    }
    let loads = Loads::start(&ingresses, &hosts);
    for round in 0..rounds.div_ceil(2) {
        // The ingresses' own node is drained as well: it goes on answering them.
        for drained in if round == 0 { ["vps-b", "vps-a"] } else { ["vps-c", "vps-b"] } {
            command(&c, ["node", "drain", drained]).await;
            for host in &hosts {
                wait::until(&format!("{host} away from {drained}"), LIMIT, || async {
                    let upstreams = upstreams(&a, host).await?;
                    (!upstreams.is_empty() && !upstreams.iter().any(|node| node == drained)).then_some(())
                })
                .await;
            }
            command(&c, ["node", "undrain", drained]).await;
            until_served_by(&a, &a.host("wiki"), &["vps-a", "vps-b", "vps-c"]).await;
        }
    }
    loads.none_lost(&ingresses, requests).await;
    tokio::join!(a.stop(), b.stop(), c.stop());
}

async fn command(node: &Node, arguments: [&str; 3]) {
    let output = node.scafo(arguments).await;
    assert!(output.status.success(), "{arguments:?}: {}\n{}", scafo_tests::node::both(&output), node.log());
}

/// Applications live on when their node's supervisor is killed, and the next one adopts them.
#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_a_supervisor_is_killed_and_another_one_adopts() {
    let (requests, _) = extent();
    let fleet = Fleet::new(&[]).await;
    let (a, b) = (fleet.node("vps-a").await, fleet.node("vps-b").await);
    deploy(&a, &Project::answering("shop", "first"), "2").await;
    let host = a.host("shop");
    for node in [&a, &b] {
        until_served_by(node, &host, &["vps-a", "vps-b"]).await;
    }
    let of_b = Ingress::start_each(kinds(), &Source::of(&b.dev)).await;
    for ingress in &of_b {
        ingress.until_answered(&host, "/", 200, "first", LIMIT).await;
    }
    let loads = Loads::start(&of_b, std::slice::from_ref(&host));
    let before = runtimes(&a);
    a.crash().await;
    let a = fleet.node("vps-a").await;
    until_served_by(&b, &host, &["vps-a", "vps-b"]).await;
    let runs = runtimes(&a);
    assert!(!before.is_empty() && before.iter().all(|process| runs.contains(process)), "{before:?} and then {runs:?}");
    // The other one is asked by the ingresses, which go on with what they know until it is back; its address is a new one.
    let before = runtimes(&b);
    b.crash().await;
    let b = fleet.node("vps-b").await;
    until_served_by(&a, &host, &["vps-a", "vps-b"]).await;
    let runs = runtimes(&b);
    assert!(!before.is_empty() && before.iter().all(|process| runs.contains(process)), "{before:?} and then {runs:?}");
    loads.none_lost(&of_b, requests).await;
    b.stop().await;
    a.stop().await;
}

/// The processes of a node's applications.
fn runtimes(node: &Node) -> Vec<process::Process> {
    let of = |process: &process::Process| process.name == "celld-workerd" || process.name == "workerd";
    let mut runtimes: Vec<_> = node.processes().into_iter().filter(of).collect();
    for process in &mut runtimes {
        // Another parent is what adoption is about.
        process.parent = 0;
    }
    runtimes
}

async fn replicas(node: &Node, application: &str, replicas: usize) {
    let path = format!("/v1/applications/{application}/replicas");
    let answer = node.api().request(Method::POST, &path).json(&json!({"replicas": replicas})).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 200, "{}", answer.text().await.unwrap());
}

/// Load through every ingress.
struct Loads(Vec<Load>);

impl Loads {
    /// Two clients through each ingress, which ask for one host after the other.
    fn start(ingresses: &[Ingress], hosts: &[String]) -> Self {
        Self(ingresses.iter().map(|ingress| load(ingress, hosts)).collect())
    }

    /// Waits until each ingress had so many requests, and says which were not answered well.
    async fn none_lost(self, ingresses: &[Ingress], requests: usize) {
        wait::until("enough requests", Duration::from_secs(600), || async {
            self.0.iter().all(|load| load.ended() >= requests).then_some(())
        })
        .await;
        for (ingress, load) in ingresses.iter().zip(self.0) {
            let outcomes = load.stop().await;
            let lost = not_answered(&outcomes, &[200]);
            let (kind, shown) = (ingress.kind(), &lost[..lost.len().min(5)]);
            assert!(lost.is_empty(), "{kind:?}: {} of {} lost: {shown:?}", lost.len(), outcomes.len());
        }
    }
}

fn load(ingress: &Ingress, hosts: &[String]) -> Load {
    let (client, url, hosts) = (client(), format!("http://{}/", ingress.address()), hosts.to_vec());
    let turn = Arc::new(AtomicUsize::new(0));
    Load::start(2, move || {
        let host = &hosts[turn.fetch_add(1, Ordering::Relaxed) % hosts.len()];
        client.get(&url).header("host", host)
    })
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

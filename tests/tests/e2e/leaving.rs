//! Nodes that leave a fleet: drained with replacements, without any, and stopped.

use std::ffi::OsStr;
use std::process::Output;
use std::time::Duration;

use scafo_core::Timestamp;
use scafo_tests::fleet::{Fleet, PATIENT};
use scafo_tests::load::{Load, client, not_answered};
use scafo_tests::node::both;
use scafo_tests::{Node, Project, wait};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(180);
const NODES: [&str; 3] = ["vps-a", "vps-b", "vps-c"];
/// The limit on how late an ingress may learn of a change while none of its requests may fail; a busy machine needs some.
const LATE: (&str, &str) = ("SCAFO_INGRESS_HOLD", "10s");

async fn three(environment: &[(&str, &str)]) -> (Fleet, [Node; 3]) {
    let fleet = Fleet::new(&[&PATIENT[..], environment].concat()).await;
    let mut nodes = Vec::new();
    for id in NODES {
        let label = format!("name={id}");
        nodes.push(fleet.node_with(id, &[("SCAFO_NODE_LABELS", &label)]).await);
    }
    let Ok(nodes) = <[Node; 3]>::try_from(nodes) else { unreachable!("three were started") };
    (fleet, nodes)
}

async fn deploy(node: &Node, project: &Project, arguments: &[&str]) {
    let arguments = ["deploy"].iter().chain(arguments).map(OsStr::new);
    let output = node.scafo(arguments.chain([project.path().as_os_str()])).await;
    assert!(output.status.success(), "deploy failed: {}\n{}", both(&output), node.log());
}

/// The nodes of an application in a node's document, in order.
async fn upstreams(node: &Node, application: &str) -> Option<Vec<String>> {
    let document: Value = node.api().ingress("/v1/ingress/routes").send().await.ok()?.json().await.ok()?;
    let host = node.host(application);
    let Some(route) = document["routes"].as_array()?.iter().find(|route| route["host"] == host.as_str()) else {
        return Some(Vec::new());
    };
    let mut nodes: Vec<_> = route["upstreams"].as_array()?.iter().filter_map(|u| u["node"].as_str()).collect();
    nodes.sort_unstable();
    Some(nodes.into_iter().map(str::to_owned).collect())
}

async fn until_on(node: &Node, application: &str, fits: impl Fn(&[String]) -> bool) -> Vec<String> {
    wait::until(&format!("{application} to be where it belongs"), LIMIT, || async {
        upstreams(node, application).await.filter(|nodes| fits(nodes))
    })
    .await
}

/// Asks for these applications through the ingress of a node, one after the other.
fn load(node: &Node, applications: &[&str]) -> Load {
    let hosts: Vec<String> = applications.iter().map(|application| node.host(application)).collect();
    let (client, url) = (client(), node.dev.ingress.clone());
    let turn = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    Load::start(2, move || {
        let turn = turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let request = if turn.is_multiple_of(3) { client.post(&url).body("a body") } else { client.get(&url) };
        request.header("host", &hosts[turn % hosts.len()])
    })
}

async fn none_lost(loads: Vec<Load>) {
    for load in loads {
        wait::until("enough requests", LIMIT, || async { (load.ended() > 20).then_some(()) }).await;
        let outcomes = load.stop().await;
        let lost = not_answered(&outcomes, &[200]);
        assert!(lost.is_empty(), "{} of {} lost, first {:?}", lost.len(), outcomes.len(), lost.first());
    }
}

fn runs(node: &Node) -> usize {
    node.processes().iter().filter(|process| process.name == "celld-workerd").count()
}

async fn drain(by: &Node, node: &str, more: &[&str]) -> Output {
    by.scafo(["node", "drain", node].iter().chain(more)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_waits_for_replacements_under_load_and_is_taken_back() {
    let (_fleet, [a, b, c]) = three(&[LATE]).await;
    deploy(&a, &Project::answering("shop", "shop"), &["--replicas", "2"]).await;
    deploy(&a, &Project::answering("blog", "blog"), &["--replicas", "1"]).await;
    deploy(&a, &Project::answering("wiki", "wiki"), &["--replicas", "3"]).await;
    let all = ["shop", "blog", "wiki"];
    for (application, wanted) in [("shop", 2), ("blog", 1), ("wiki", 3)] {
        for node in [&a, &b, &c] {
            until_on(node, application, |nodes| nodes.len() == wanted).await;
        }
    }
    // The one that serves `blog` alone leaves: the others have to take that over first.
    let alone = upstreams(&a, "blog").await.unwrap().remove(0);
    let (leaver, others): (Vec<&Node>, Vec<&Node>) = [&a, &b, &c].into_iter().partition(|node| node.dev.node == alone);
    let (leaver, other, another) = (leaver[0], others[0], others[1]);
    let loads = vec![load(other, &all), load(another, &all), load(leaver, &all)];
    let drained = drain(other, &alone, &[]).await;
    assert!(drained.status.success(), "{}\n{}", both(&drained), leaver.log());
    for node in [other, another] {
        for (application, wanted) in [("shop", 2), ("blog", 1), ("wiki", 2)] {
            let nodes = until_on(node, application, |nodes| !nodes.contains(&alone)).await;
            assert_eq!(nodes.len(), wanted, "{application}: {nodes:?}");
        }
    }
    assert_eq!(runs(leaver), 0, "{}", leaver.log());
    let back = other.scafo(["node", "undrain", &alone]).await;
    assert!(back.status.success(), "{}", both(&back));
    until_on(other, "wiki", |nodes| nodes.len() == 3).await;
    none_lost(loads).await;
    tokio::join!(a.stop(), b.stop(), c.stop());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_nobody_can_replace_fails_by_name_serves_on_and_goes_when_forced() {
    let (_fleet, [a, b, c]) = three(&[("SCAFO_INGRESS_HOLD", "2s")]).await;
    deploy(&a, &Project::answering("rare", "rare"), &["--selector", "name=vps-b"]).await;
    until_on(&a, "rare", |nodes| nodes == ["vps-b"]).await;
    let refused = drain(&a, "vps-b", &["--timeout", "2s"]).await;
    let said = both(&refused);
    assert!(refused.status.code() == Some(1) && said.contains("rare") && said.contains("--force"), "{said}");
    assert_eq!(a.get("rare", "/").await.unwrap(), (200, "rare".to_owned()), "it serves on");
    let forced = drain(&a, "vps-b", &["--force", "--timeout", "1s"]).await;
    assert!(forced.status.success(), "{}\n{}", both(&forced), b.log());
    assert_eq!(runs(&b), 0, "{}", b.log());
    until_on(&a, "rare", <[String]>::is_empty).await;
    let back = a.scafo(["node", "undrain", "vps-b"]).await;
    assert!(back.status.success(), "{}", both(&back));
    until_on(&a, "rare", |nodes| nodes == ["vps-b"]).await;
    tokio::join!(a.stop(), b.stop(), c.stop());
}

/// When a node asked its process of an application to end, and when that had ended, from its log.
fn drain_of(node: &Node, application: &str) -> (Timestamp, Timestamp) {
    let log = node.log();
    let at = |what: &str| {
        let line = log.lines().find(|line| line.contains(what) && line.contains(&format!("application={application}")));
        let line = line.unwrap_or_else(|| panic!("not in the log: {what}\n{log}"));
        // Written to the microsecond; all nodes of the test have one clock.
        let stamp = line.split_whitespace().next().unwrap();
        format!("{}Z", &stamp[..stamp.find('.').unwrap() + 4]).parse().unwrap()
    };
    (at("asking its process to end"), at("its process ended"))
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_one_application_never_drain_together() {
    let (_fleet, [a, b, c]) = three(&[("SCAFO_INGRESS_HOLD", "2s")]).await;
    // Each request takes a while, and so a drain of a process does.
    let slow = Project::answering("slow", "slow");
    slow.write(
        "index.js",
        "export default { async fetch() { await new Promise((done) => setTimeout(done, 1500)); return new Response('slow'); } };\n",
    );
    deploy(&a, &slow, &["--replicas", "2"]).await;
    let two = until_on(&a, "slow", |nodes| nodes.len() == 2).await;
    let (leavers, others): (Vec<&Node>, Vec<&Node>) =
        [&a, &b, &c].into_iter().partition(|node| two.contains(&node.dev.node));
    let by = others[0];
    // Straight to the processes: what left the routes would have no requests left when it drains.
    let mut loads = Vec::new();
    for node in &leavers {
        let (_, state) = node.api().get("/v1/state").await.unwrap();
        let port = state["processes"][0]["port"].as_u64().unwrap();
        let (client, url) = (client(), format!("http://127.0.0.1:{port}/"));
        loads.push(Load::start(4, move || client.get(&url)));
    }
    let (first, second) = tokio::join!(drain(by, &two[0], &[]), drain(by, &two[1], &[]));
    assert!(first.status.success() && second.status.success(), "{}{}", both(&first), both(&second));
    let [(asked, ended), (asked_other, ended_other)] = [drain_of(leavers[0], "slow"), drain_of(leavers[1], "slow")];
    assert!(ended <= asked_other || ended_other <= asked, "{asked}–{ended} and {asked_other}–{ended_other}");
    assert_eq!(until_on(by, "slow", |nodes| nodes.len() == 1).await, [by.dev.node.as_str()]);
    for load in loads {
        load.stop().await;
    }
    tokio::join!(a.stop(), b.stop(), c.stop());
}

/// Through the ingress of one node, while another one that serves the same is stopped.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_node_holds_what_others_serve_and_only_that() {
    let fleet = Fleet::new(&[&PATIENT[..], &[LATE]].concat()).await;
    let (a, b) = (fleet.node("vps-a").await, fleet.node_with("vps-b", &[("SCAFO_NODE_LABELS", "only=b")]).await);
    deploy(&a, &Project::answering("shop", "shop"), &["--replicas", "2"]).await;
    deploy(&a, &Project::answering("own", "own"), &["--selector", "only=b"]).await;
    until_on(&a, "shop", |nodes| nodes.len() == 2).await;
    until_on(&a, "own", |nodes| nodes == ["vps-b"]).await;
    let loads = vec![load(&a, &["shop"]), load(&a, &["shop"])];
    let (began, log) = (std::time::Instant::now(), b.state().with_extension("log"));
    tokio::join!(b.stop(), until_on(&a, "shop", |nodes| nodes == ["vps-a"]));
    let (took, log) = (began.elapsed(), std::fs::read_to_string(log).unwrap());
    assert!(took >= Duration::from_secs(10), "held for as long as was asked, {took:?}\n{log}");
    let ended = |application: &str| {
        let line = log.lines().position(|line| line.contains("its process ended") && line.contains(application));
        line.unwrap_or_else(|| panic!("{application} has ended\n{log}"))
    };
    assert!(ended("application=own") < ended("application=shop"), "only what others serve is held\n{log}");
    none_lost(loads).await;
    // Alone, there is nobody to hold anything for.
    let log = a.state().with_extension("log");
    a.stop().await;
    let log = std::fs::read_to_string(log).unwrap();
    assert!(!log.contains("holding") && !log.contains("out of the routes"), "{log}");
}

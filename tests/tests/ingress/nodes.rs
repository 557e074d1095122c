//! Ingresses in front of real nodes.

use std::ffi::OsStr;
use std::time::Duration;

use futures_util::future::join_all;
use nix::sys::signal::Signal;
use reqwest::Method;
use scafo_tests::fleet::Fleet;
use scafo_tests::ingresses::{Ingress, Kind, Source};
use scafo_tests::{Node, Project, process, wait};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(180);

/// Deploys to so many nodes.
pub(crate) async fn deploy(node: &Node, project: &Project, replicas: &str) {
    let arguments = ["deploy", "--replicas", replicas];
    let output = node.scafo(arguments.map(OsStr::new).into_iter().chain([project.path().as_os_str()])).await;
    let text = scafo_tests::node::both(&output);
    assert!(output.status.success(), "deploy failed: {text}\n{}", node.log());
}

/// The nodes of a host in a node's document, in order.
pub(crate) async fn upstreams(node: &Node, host: &str) -> Option<Vec<String>> {
    let document: Value = node.api().ingress("/v1/ingress/routes").send().await.ok()?.json().await.ok()?;
    let route = document["routes"].as_array()?.iter().find(|route| route["host"] == host)?;
    Some(route["upstreams"].as_array()?.iter().filter_map(|u| Some(u["node"].as_str()?.to_owned())).collect())
}

pub(crate) async fn until_served_by(node: &Node, host: &str, nodes: &[&str]) {
    wait::until(&format!("{host} on {nodes:?}"), LIMIT, || async {
        (upstreams(node, host).await? == nodes).then_some(())
    })
    .await;
}

pub(crate) async fn until_served_by_so_many(node: &Node, host: &str, nodes: usize) {
    wait::until(&format!("{host} on {nodes} nodes"), LIMIT, || async {
        (upstreams(node, host).await?.len() == nodes).then_some(())
    })
    .await;
}

/// All processes of a node, its applications included, at once.
fn kill_all(node: &Node) {
    for process in node.processes() {
        process::signal(process.pid, Signal::SIGKILL);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_are_one_fleet_before_every_ingress_and_one_may_die() {
    let fleet = Fleet::new(&[]).await;
    let (a, b) = (fleet.node("vps-a").await, fleet.node("vps-b").await);
    let shop = Project::answering("shop", "the shop");
    deploy(&a, &shop, "2").await;
    deploy(&a, &Project::answering("blog", "the blog"), "1").await;
    let host = a.host("shop");
    until_served_by(&a, &host, &["vps-a", "vps-b"]).await;
    until_served_by(&b, &host, &["vps-a", "vps-b"]).await;

    same_bytes(&a, &b).await;

    let source = Source::of(&a.dev);
    let ingresses = Ingress::start_each(&Kind::WITH_OLDEST, &source).await;
    for ingress in &ingresses {
        ingress.until_answered(&host, "/", 200, "the shop", LIMIT).await;
        ingress.until_answered(&a.host("blog"), "/", 200, "the blog", LIMIT).await;
        ingress.until_answered(&a.dev.domain, "/.well-known/scafo/health", 200, "", LIMIT).await;
        refused(ingress, &a).await;
        assert_eq!(ingress.errors(), Vec::<String>::new(), "{:?}", ingress.kind());
    }

    // Node a goes without a word. Its document was the last, and says that it comes first.
    kill_all(&a);
    join_all(ingresses.iter().map(|ingress| ingress.until_answered(&host, "/", 200, "the shop", LIMIT))).await;
    until_served_by(&b, &host, &["vps-b"]).await;
    for ingress in &ingresses {
        for _ in 0..10 {
            let answer = ingress.ask(&host, "/").await.unwrap();
            assert_eq!(answer.status, 200, "{:?}: {answer:?}", ingress.kind());
        }
    }
    b.stop().await;
}

/// Nodes that know the same say the same, also when the process that says it is another one.
async fn same_bytes(a: &Node, b: &Node) {
    let body = async |node: &Node, path: &str| node.api().ingress(path).send().await.ok()?.bytes().await.ok();
    for path in ["/v1/ingress/routes", "/v1/ingress/routes/traefik", "/v1/ingress/routes/traefik?prefer=vps-b"] {
        wait::until(&format!("equal bytes of {path}"), LIMIT, || async {
            let (of_a, of_b) = (body(a, path).await?, body(b, path).await?);
            (of_a == of_b).then_some(())
        })
        .await;
    }
    let before = body(a, "/v1/ingress/routes").await;
    for daemon in ["scafo-routerd", "scafo-registryd", "scafo-apiserver"] {
        a.kill_daemon(daemon).await;
        wait::until("the same document again", LIMIT, || async {
            let answer = a.api().ingress("/v1/ingress/routes").send().await.ok()?;
            if answer.status().as_u16() != 200 {
                return None;
            }
            assert_eq!(answer.bytes().await.ok(), before, "after {daemon} was killed");
            Some(())
        })
        .await;
    }
}

/// What every ingress answers itself.
async fn refused(ingress: &Ingress, node: &Node) {
    let kind = ingress.kind();
    let denied = if kind.is_traefik() { 418 } else { 404 };
    for path in ["/v1/storage", "/v1/storage/objects/x", "/v1/ingress/routes", "/v1/ingress/routes/traefik?prefer=self"]
    {
        let answer = ingress.ask(&node.dev.domain, path).await.unwrap();
        assert_eq!(answer.status, denied, "{kind:?} {path}: {answer:?}");
    }
    // In these Go sees a scheme and no path. The oldest Traefik passes on what stands after the scheme, to a node that knows better.
    for path in ["/v1/storage/list?prefix=", "/v1/ingress/routes/traefik"] {
        let answer = ingress.ask(&node.dev.domain, &format!("x:http://{}{path}", node.dev.domain)).await.unwrap();
        let expected = if kind == Kind::OldestTraefik { 404 } else { 400 };
        assert_eq!(answer.status, expected, "{kind:?} {path}: {answer:?}");
        if kind == Kind::OldestTraefik {
            assert!(answer.body.contains("No such route"), "it is not the node's answer: {answer:?}");
        }
    }
    // The node itself answers these, and wants a token.
    let answer = ingress.ask(&node.dev.domain, "/v1/applications").await.unwrap();
    assert_eq!(answer.status, 401, "{kind:?}: {answer:?}");
    for host in ["nobody.example", "nobody.dev.localhost", "x.shop.dev.localhost", "127.0.0.1", "localhost"] {
        let answer = ingress.ask(host, "/").await.unwrap();
        assert_eq!(answer.status, 404, "{kind:?} {host}: {answer:?}");
    }
    // An application's own paths are nobody else's business.
    let answer = ingress.ask(&node.host("shop"), "/v1/storage").await.unwrap();
    assert!(answer.status == 200 && answer.body.contains("the shop"), "{kind:?}: {answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_serves_nothing_any_more_is_withdrawn() {
    let fleet = Fleet::new(&[("SCAFO_API_PUBLIC", "false")]).await;
    let node = fleet.node("vps-a").await;
    node.deploy(Project::answering("shop", "the shop").path()).await;
    let source = Source::of(&node.dev);
    let ingresses = Ingress::start_each(&Kind::ALL, &source).await;
    let host = node.host("shop");
    for ingress in &ingresses {
        ingress.until_answered(&host, "/", 200, "the shop", LIMIT).await;
        assert_eq!(ingress.ask(&node.dev.domain, "/").await.unwrap().status, 404, "{:?}", ingress.kind());
    }
    let retired = node.api().request(Method::POST, "/v1/applications/shop/retire").send().await.unwrap();
    assert_eq!(retired.status().as_u16(), 200, "{}", retired.text().await.unwrap());
    wait::until("an empty document", LIMIT, || async {
        let text = node.api().ingress("/v1/ingress/routes/traefik").send().await.ok()?.text().await.ok()?;
        (text == "{}").then_some(())
    })
    .await;
    for ingress in &ingresses {
        ingress.until_answered(&host, "/", 404, "", LIMIT).await;
        // What is retired stops at once, so until its next poll an ingress may find nobody there, or somebody who hangs up.
        let meant =
            |line: &String| ["connection refused", "connection reset", "EOF"].iter().any(|it| line.contains(it));
        let errors: Vec<String> = ingress.errors().into_iter().filter(|line| !meant(line)).collect();
        assert_eq!(errors, Vec::<String>::new(), "{:?}", ingress.kind());
    }
    node.stop().await;
}

/// A base claimed with everything right below it: the base, an environment by its name, anything else by the key, and nothing
/// two labels below; and what an environment no longer serves falls to the key.
#[tokio::test(flavor = "multi_thread")]
async fn a_wildcard_claim_routes_the_base_its_environments_and_everything_else_one_label_below() {
    let fleet = Fleet::new(&[]).await;
    let (a, b) = (fleet.node("vps-a").await, fleet.node("vps-b").await);
    for (application, text) in [("shop", "the shop"), ("shop-pr1", "change one"), ("blog", "the blog")] {
        deploy(&a, &Project::answering(application, text), "1").await;
    }
    // What is below somebody else's base is not for the taking.
    for (application, claim, expected) in [("shop", "shop.example?wildcard=1", 200), ("blog", "blog.shop.example", 409)]
    {
        let path = format!("/v1/applications/{application}/domains/{claim}");
        let answer = b.api().request(Method::POST, &path).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), expected, "{claim}: {}", answer.text().await.unwrap());
    }
    let ingresses = Ingress::start_each(&Kind::ALL, &Source::of(&b.dev)).await;
    for ingress in &ingresses {
        let kind = ingress.kind();
        for (host, text) in [
            ("shop.example", "the shop"),
            ("pr1.shop.example", "change one"),
            ("anything.shop.example", "the shop"),
            ("blog.shop.example", "the shop"),
        ] {
            ingress.until_answered(host, "/", 200, text, LIMIT).await;
        }
        for host in ["a.pr1.shop.example", "a.b.shop.example", "xshop.example", "example"] {
            let answer = ingress.ask(host, "/").await.unwrap();
            assert_eq!(answer.status, 404, "{kind:?} {host}: {answer:?}");
        }
    }
    let retired = a.api().request(Method::POST, "/v1/applications/shop-pr1/retire").send().await.unwrap();
    assert_eq!(retired.status().as_u16(), 200);
    for ingress in &ingresses {
        ingress.until_answered("pr1.shop.example", "/", 200, "the shop", LIMIT).await;
    }
    b.stop().await;
    a.stop().await;
}

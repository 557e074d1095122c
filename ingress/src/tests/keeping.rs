//! What an ingress does that was started again, before its node has answered.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use scafo_proto::boot::Boot;
use tokio::{sync::watch, time::timeout};

use crate::{decide::Routing, document::Table, keeper::Desk, poll::Poller};

use super::stage::{Ingress, Node, PATIENCE, Reply, application, breaks, document, eventually};

/// An ingress that has kept the document of `node`, and has ended.
async fn once(dir: &Path, node: &Node, host: &str) {
    let mut ingress = Ingress::keeping(Some(dir), &[node], PATIENCE, Duration::ZERO).await;
    ingress.until_served(host).await;
    eventually("the document is kept", async || kept(dir, host).then_some(())).await;
    ingress.ask_to_stop();
    ingress.ended().await;
}

/// Whether a file in `dir` names this host.
fn kept(dir: &Path, host: &str) -> bool {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut texts = entries.filter(|entry| entry.path().extension().is_some_and(|end| end == "routes"));
    texts.any(|entry| std::fs::read_to_string(entry.path()).unwrap_or_default().contains(host))
}

#[tokio::test]
async fn an_ingress_that_was_started_again_routes_while_its_node_is_away_and_then_by_what_that_says() {
    let dir = tempfile::tempdir().unwrap();
    let (shop, blog) = (application("shop").await, application("blog").await);
    let node = Node::with(&document(&[("shop.example", &[&shop])])).await;
    once(dir.path(), &node, "shop.example").await;
    node.reply(Reply::Problem(503));
    let ingress = Ingress::keeping(Some(dir.path()), &[&node], PATIENCE, Duration::ZERO).await;
    assert_eq!(ingress.get("shop.example", "/").await.1, "shop GET / ");
    assert_eq!(ingress.get("blog.example", "/").await.0, StatusCode::SERVICE_UNAVAILABLE, "nobody has said that");
    let health = ingress.health("nobody.example").await;
    assert!(health.contains("\"documents\":0") && health.contains("\"hosts\":1"), "{health}");
    node.reply(Reply::Document(document(&[("blog.example", &[&blog])]).to_string()));
    ingress.until_served("blog.example").await;
    assert_eq!(ingress.get("shop.example", "/").await.0, StatusCode::NOT_FOUND);
    eventually("the new document is kept", async || kept(dir.path(), "blog.example").then_some(())).await;
}

#[tokio::test]
async fn a_request_that_a_kept_document_leads_nowhere_waits_for_what_the_node_says() {
    let dir = tempfile::tempdir().unwrap();
    let taken = Arc::<AtomicUsize>::default();
    let (before, after) = (breaks(Arc::clone(&taken)).await, application("after").await);
    let node = Node::with(&document(&[("shop.example", &[&before])])).await;
    once(dir.path(), &node, "shop.example").await;
    taken.store(0, Ordering::SeqCst);
    node.reply(Reply::Problem(503));
    let ingress = Ingress::keeping(Some(dir.path()), &[&node], PATIENCE, PATIENCE).await;
    let asking = ingress.get("shop.example", "/");
    let starting = async {
        let tried = async || (taken.load(Ordering::SeqCst) > 0).then_some(());
        eventually("what the kept document names was tried", tried).await;
        node.reply(Reply::Document(document(&[("shop.example", &[&after])]).to_string()));
    };
    let (answer, ()) = tokio::join!(asking, starting);
    assert_eq!(answer, (StatusCode::OK, "after GET / ".to_owned()));
    assert_eq!(taken.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_request_is_offered_once_to_what_a_kept_document_names_while_its_node_says_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let taken = Arc::<AtomicUsize>::default();
    let broken = breaks(Arc::clone(&taken)).await;
    let node = Node::with(&document(&[("shop.example", &[&broken])])).await;
    once(dir.path(), &node, "shop.example").await;
    node.reply(Reply::Problem(503));
    let ingress = Ingress::keeping(Some(dir.path()), &[&node], PATIENCE, Duration::ZERO).await;
    taken.store(0, Ordering::SeqCst);
    assert_eq!(ingress.get("shop.example", "/").await.0, StatusCode::BAD_GATEWAY);
    assert_eq!(taken.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_fleet_that_was_heard_waits_for_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let taken = Arc::<AtomicUsize>::default();
    let (broken, blog) = (breaks(Arc::clone(&taken)).await, application("blog").await);
    let silent = Node::with(&document(&[("blog.example", &[&blog])])).await;
    once(dir.path(), &silent, "blog.example").await;
    silent.reply(Reply::Problem(503));
    let node = Node::with(&document(&[("shop.example", &[&broken])])).await;
    let ingress = Ingress::keeping(Some(dir.path()), &[&node, &silent], PATIENCE, 2 * PATIENCE).await;
    let answer = timeout(PATIENCE, ingress.get("shop.example", "/")).await;
    assert_eq!(answer.expect("no wait for the other fleet").0, StatusCode::BAD_GATEWAY);
    assert_eq!(taken.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_wildcard_waits_at_the_start_for_the_fleet_that_may_name_the_host_and_not_for_ever() {
    let (wild, exact) = (application("wild").await, application("exact").await);
    let node = Node::with(&document(&[("*.example", &[&wild])])).await;
    let late = Node::new(Reply::Problem(503)).await;
    let ingress = Ingress::keeping(None, &[&node, &late], PATIENCE, PATIENCE).await;
    let asking = ingress.get("a.example", "/");
    let starting = async {
        // The document with the wildcard is there by then.
        node.polled().await;
        late.polled().await;
        late.reply(Reply::Document(document(&[("a.example", &[&exact])]).to_string()));
    };
    let (answer, ()) = tokio::join!(asking, starting);
    assert_eq!(answer, (StatusCode::OK, "exact GET / ".to_owned()));
    let silent = Node::new(Reply::Problem(503)).await;
    let ingress = Ingress::keeping(None, &[&node, &silent], PATIENCE, Duration::ZERO).await;
    ingress.until_served("a.example").await;
    assert_eq!(ingress.get("a.example", "/").await, (StatusCode::OK, "wild GET / ".to_owned()));
}

#[tokio::test]
async fn a_kept_document_whose_time_is_over_is_let_go_of_although_its_node_says_nothing() {
    let node = Node::new(Reply::Problem(503)).await;
    let text = document(&[("shop.example", &[])]).to_string();
    for (until, stays) in [(Duration::ZERO, false), (Boot::uptime() + 3 * PATIENCE, true)] {
        let table = Table::parse(text.as_bytes()).unwrap().into_kept(until);
        let (routing, mut seen) = watch::channel(Arc::new(Routing::silent(1).with(0, Arc::new(table))));
        let polling = Poller::new(0, node.source(), Duration::from_millis(50), routing).run();
        let looking = async {
            node.polled().await;
            if !stays {
                let empty = seen.wait_for(|routing| routing.fleets[0].is_none());
                timeout(PATIENCE, empty).await.unwrap().unwrap();
            }
            assert_eq!(seen.borrow().fleets[0].is_some(), stays);
        };
        tokio::select! {
            () = polling => panic!("polls end"),
            () = looking => {}
        }
    }
}

#[tokio::test]
async fn a_document_that_is_gone_from_the_disk_is_polled_whole_again() {
    let node = Node::with(&document(&[("shop.example", &[])])).await;
    let (routing, _seen) = watch::channel(Arc::new(Routing::silent(1)));
    let desk = Arc::<Desk>::default();
    let poller = Poller::new(0, node.source(), Duration::from_millis(50), routing).telling(Some(Arc::clone(&desk)));
    let whole = || node.polls().iter().filter(|head| !head.contains("if-none-match")).count();
    let looking = async {
        node.polled().await;
        assert_eq!(whole(), 1);
        desk.want_document();
        node.polled().await;
        node.polled().await;
        assert_eq!(whole(), 2);
    };
    tokio::select! {
        () = poller.run() => panic!("polls end"),
        () = looking => {}
    }
}

#[tokio::test]
async fn the_document_of_another_node_is_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let shop = application("shop").await;
    once(dir.path(), &Node::with(&document(&[("shop.example", &[&shop])])).await, "shop.example").await;
    let other = Node::new(Reply::Problem(503)).await;
    let ingress = Ingress::keeping(Some(dir.path()), &[&other], PATIENCE, Duration::ZERO).await;
    assert_eq!(ingress.get("shop.example", "/").await.0, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn where_nothing_can_be_kept_everything_else_works() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let gone = dir.path().join("gone");
    let shop = application("shop").await;
    let node = Node::with(&document(&[("shop.example", &[&shop])])).await;
    let without = Ingress::keeping(Some(&file), &[&node], PATIENCE, Duration::ZERO).await;
    without.until_served("shop.example").await;
    let losing = Ingress::keeping(Some(&gone), &[&node], PATIENCE, Duration::ZERO).await;
    eventually("the document is kept", async || kept(&gone, "shop.example").then_some(())).await;
    std::fs::remove_dir_all(&gone).unwrap();
    node.reply(Reply::Document(document(&[("shop.example", &[&shop]), ("blog.example", &[&shop])]).to_string()));
    losing.until_served("blog.example").await;
}

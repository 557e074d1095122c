//! What a poll may change, and what it may not.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{HeaderMap, StatusCode};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::{Notify, mpsc, watch},
    time::{Instant, sleep, timeout},
};

use crate::{
    decide::Routing,
    poll::{POLL_LIMIT, Poller},
};

use super::stage::{Ingress, Node, PATIENCE, Reply, application, document, full, raw};

#[tokio::test]
async fn without_a_document_every_host_is_answered_draining_until_one_comes() {
    let shop = application("shop").await;
    let node = Node::new(Reply::Problem(503)).await;
    let ingress = Ingress::before(&[&node]).await;
    node.polled().await;
    let response = ingress.send("GET", "shop.example", "/", &HeaderMap::new(), full("")).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()["retry-after"], "1");
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let body: serde_json::Value = serde_json::from_str(&super::stage::text(response).await).unwrap();
    assert_eq!(body["type"], "urn:scafo:draining");
    node.reply(Reply::Document(document(&[("shop.example", &[&shop])]).to_string()));
    ingress.until_served("shop.example").await;
}

#[tokio::test]
async fn a_request_right_after_the_start_waits_for_the_first_document_and_health_does_not() {
    let shop = application("shop").await;
    let node = Node::new(Reply::Problem(503)).await;
    let ingress = Ingress::with(&[&node], PATIENCE, PATIENCE).await;
    let asking = ingress.get("shop.example", "/");
    let starting = async {
        let health = ingress.health("nobody.example").await;
        assert!(health.contains("\"documents\":0"), "{health}");
        node.reply(Reply::Document(document(&[("shop.example", &[&shop])]).to_string()));
    };
    let ((status, _), ()) = tokio::join!(asking, starting);
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn what_is_no_whole_document_of_version_1_leaves_the_last_one_in_force() {
    let (shop, blog) = (application("shop").await, application("blog").await);
    let node = Node::with(&document(&[("shop.example", &[&shop])])).await;
    let ingress = Ingress::serving(&[&node], "shop.example").await;
    let next = document(&[("blog.example", &[&blog])]);
    let mut other_version = next.clone();
    other_version["v"] = json!(2);
    let text = next.to_string();
    for reply in [
        Reply::Document(other_version.to_string()),
        Reply::Document(text[..text.len() - 1].to_owned()),
        Reply::Document(format!("{text}}}")),
        Reply::Document(String::new()),
        Reply::Cut(text.clone()),
        Reply::Problem(503),
        Reply::Problem(401),
        Reply::Problem(304),
    ] {
        node.reply(reply);
        node.polled().await;
        assert_eq!(ingress.get("shop.example", "/").await.0, StatusCode::OK);
        assert_eq!(ingress.get("blog.example", "/").await.0, StatusCode::NOT_FOUND);
    }
    node.reply(Reply::Document(text));
    ingress.until_served("blog.example").await;
    assert_eq!(ingress.get("shop.example", "/").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_poll_that_is_not_answered_in_time_is_given_up_and_the_next_one_counts() {
    let polls = Arc::new(AtomicUsize::new(0));
    let (come, coming) = (Arc::new(Notify::new()), Arc::clone(&polls));
    let arriving = Arc::clone(&come);
    let text = document(&[("shop.example", &[])]).to_string();
    let node = raw(move |mut stream| {
        let (come, first) = (Arc::clone(&arriving), coming.fetch_add(1, Ordering::SeqCst) == 0);
        // The answer to the first poll never ends.
        let promised = if first { text.len() + 1 } else { text.len() };
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {promised}\r\n\r\n{text}");
        async move {
            assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
            stream.write_all(answer.as_bytes()).await.unwrap();
            come.notify_one();
            drop(stream.read(&mut [0; 4096]).await);
        }
    })
    .await;
    let (routing, mut seen) = watch::channel(Arc::new(Routing::silent(1)));
    let looking = async {
        come.notified().await;
        tokio::time::pause();
        sleep(POLL_LIMIT / 2).await;
        assert_eq!((polls.load(Ordering::SeqCst), seen.borrow().has_heard_from(0)), (1, false));
        sleep(POLL_LIMIT / 2).await;
        tokio::time::resume();
        let heard = seen.wait_for(|routing| routing.has_heard_from(0));
        timeout(PATIENCE, heard).await.unwrap().unwrap();
        assert!(polls.load(Ordering::SeqCst) > 1);
    };
    tokio::select! {
        () = Poller::new(0, node.source(), Duration::from_millis(50), routing).run() => panic!("polls end"),
        () = looking => {}
    }
}

#[tokio::test]
async fn the_interval_begins_when_a_poll_has_ended_so_that_a_slow_node_has_its_rest() {
    let (slow, interval) = (Duration::from_millis(400), Duration::from_millis(300));
    let (begun, mut begins) = mpsc::unbounded_channel();
    let text = document(&[("shop.example", &[])]).to_string();
    let node = raw(move |mut stream| {
        let (begun, length) = (begun.clone(), text.len());
        let answer = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{text}");
        async move {
            assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
            begun.send(Instant::now()).unwrap();
            sleep(slow).await;
            drop(stream.write_all(answer.as_bytes()).await);
        }
    })
    .await;
    let (routing, _) = watch::channel(Arc::new(Routing::silent(1)));
    let looking = async {
        let mut last = begins.recv().await.unwrap();
        for _ in 0..2 {
            let next = timeout(PATIENCE, begins.recv()).await.unwrap().unwrap();
            assert!(next - last >= slow + interval, "{:?}", next - last);
            last = next;
        }
    };
    tokio::select! {
        () = Poller::new(0, node.source(), interval, routing).run() => panic!("polls end"),
        () = looking => {}
    }
}

#[tokio::test]
async fn a_poll_prefers_the_node_itself_and_asks_only_for_what_is_new() {
    let shop = application("shop").await;
    let node = Node::with(&document(&[("shop.example", &[&shop])])).await;
    let ingress = Ingress::serving(&[&node], "shop.example").await;
    node.polled().await;
    let polls = node.polls().clone();
    assert!(
        polls[0].starts_with("GET /v1/ingress/routes?prefer=self HTTP/1.1\r\n") && !polls[0].contains("if-none-match")
    );
    assert!(polls.iter().all(|head| head.contains("authorization: Bearer token\r\n")));
    assert!(polls[1].contains("if-none-match: \""), "{}", polls[1]);
    assert_eq!(ingress.get("shop.example", "/").await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_host_is_found_in_any_fleet() {
    let (shop, blog) = (application("shop").await, application("blog").await);
    let first = Node::with(&document(&[("*.example", &[&shop])])).await;
    let second = Node::new(Reply::Problem(503)).await;
    let ingress = Ingress::serving(&[&first, &second], "shop.example").await;
    assert_eq!(ingress.get("blog.test", "/").await.0, StatusCode::SERVICE_UNAVAILABLE);
    second.reply(Reply::Document(document(&[("blog.test", &[&blog]), ("blog.example", &[&blog])]).to_string()));
    ingress.until_served("blog.test").await;
    assert_eq!(ingress.get("blog.example", "/").await.1, "blog GET / ");
    assert_eq!(ingress.get("other.example", "/").await.1, "shop GET / ");
}

#[tokio::test]
async fn large_documents_take_over_without_a_failed_request() {
    let (old, new) = (application("old").await, application("new").await);
    let large = |server: &super::stage::Server, marker: usize| {
        let mut whole = document(&[("shop.example", &[server])]);
        let routes = whole["routes"].as_array_mut().unwrap();
        routes.extend((0..10_000 + marker).map(
            |host| json!({"host": format!("h{host}.example"), "application": "app", "upstreams": [server.upstream()]}),
        ));
        whole.to_string()
    };
    let node = Node::new(Reply::Document(large(&old, 0))).await;
    let ingress = Ingress::serving(&[&node], "shop.example").await;
    for (round, (server, name)) in [(&new, "new"), (&old, "old"), (&new, "new")].into_iter().enumerate() {
        node.reply(Reply::Document(large(server, round + 1)));
        super::stage::eventually("the new document is in force", async || {
            let (status, body) = ingress.get("shop.example", "/").await;
            assert_eq!(status, StatusCode::OK);
            body.starts_with(name).then_some(())
        })
        .await;
    }
}

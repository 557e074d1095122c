//! What ingresses make of what a node answers to their polls; the node is pretended, the ingresses are real.

use std::time::Duration;

use futures_util::future::join_all;
use scafo_core::routing::FleetRouting;
use scafo_tests::ingresses::echo::Echo;
use scafo_tests::ingresses::fake_node::{FakeNode, Says};
use scafo_tests::ingresses::{Ingress, Kind, OWN};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(120);

fn document(routes: &Value) -> FleetRouting {
    serde_json::from_value(json!({"v": 1, "routes": routes})).unwrap()
}

fn route(host: &str, ports: &[u16]) -> Value {
    let upstreams: Vec<Value> = ports
        .iter()
        .enumerate()
        .map(|(index, port)| json!({"node": format!("n{}", index + 1), "address": format!("127.0.0.1:{port}")}))
        .collect();
    json!({"host": host, "application": "shop", "upstreams": upstreams})
}

async fn everywhere(ingresses: &[Ingress], host: &str, status: u16, text: &str) {
    join_all(ingresses.iter().map(|ingress| ingress.until_answered(host, "/", status, text, LIMIT))).await;
}

async fn still(ingresses: &[Ingress], host: &str, port: u16) {
    for ingress in ingresses {
        let answer = ingress.ask(host, "/").await.unwrap();
        assert!(answer.body.contains(&format!("reached {port} ")), "{:?}: {answer:?}", ingress.kind());
    }
}

/// Before the first document, a poll without one, an empty one, and back again.
#[tokio::test(flavor = "multi_thread")]
async fn a_poll_without_a_whole_document_changes_nothing_and_an_empty_one_withdraws_everything() {
    let (node, echo) = (FakeNode::start().await, Echo::start(2).await);
    let ports = echo.ports();
    let sources = Kind::WITH_OLDEST.map(|_| node.source());
    let ingresses = join_all(Kind::WITH_OLDEST.iter().zip(&sources).map(|(kind, of)| Ingress::start(*kind, of))).await;
    let polled = async || drop(join_all(sources.iter().map(|source| node.polled(source))).await);
    polled().await;
    for ingress in &ingresses {
        // Ours would hold the request until the first document has come.
        if ingress.kind() != Kind::Ingressd {
            let answer = ingress.ask("shop.example", "/").await.unwrap();
            assert!([404, 503].contains(&answer.status), "{:?}: {answer:?}", ingress.kind());
        }
    }

    node.say(Says::Document(document(&json!([route("shop.example", &ports[..1])]))));
    everywhere(&ingresses, "shop.example", 200, &format!("reached {} ", ports[0])).await;

    let said: Vec<usize> = ingresses.iter().map(|ingress| ingress.errors().len()).collect();
    node.say(Says::Draining);
    polled().await;
    still(&ingresses, "shop.example", ports[0]).await;
    for (ingress, said) in ingresses.iter().zip(said).filter(|(ingress, _)| ingress.kind().is_traefik()) {
        let errors = ingress.errors().split_off(said);
        assert!(errors.iter().any(|line| line.contains("503")), "{:?}: {}", ingress.kind(), ingress.log());
    }
    node.say(Says::Half(document(&json!([route("shop.example", &ports[1..])]))));
    polled().await;
    still(&ingresses, "shop.example", ports[0]).await;

    node.say(Says::Document(document(&json!([
        route("blog.example", &ports[1..]),
        route("shop.example", &ports[..1])
    ]))));
    everywhere(&ingresses, "blog.example", 200, &format!("reached {} ", ports[1])).await;
    still(&ingresses, "shop.example", ports[0]).await;

    node.say(Says::Document(document(&json!([]))));
    everywhere(&ingresses, "shop.example", 404, "").await;
    everywhere(&ingresses, "blog.example", 404, "").await;

    node.say(Says::Document(document(&json!([route("shop.example", &ports[1..])]))));
    everywhere(&ingresses, "shop.example", 200, &format!("reached {} ", ports[1])).await;
    accepted(&ingresses);
}

/// What an operator has written answers beside whatever a document says, a wildcard around it included, and no file of theirs is
/// written to.
#[tokio::test(flavor = "multi_thread")]
async fn routes_of_an_operator_answer_beside_every_document_and_stay_as_they_were_written() {
    let (node, echo) = (FakeNode::start().await, Echo::start(3).await);
    let ports = echo.ports();
    let source = node.source();
    let kinds = [Kind::Traefik, Kind::OldestTraefik, Kind::Caddy];
    let ingresses = join_all(kinds.map(|kind| Ingress::start_beside_own(kind, &source, ports[2]))).await;
    let own = format!("reached {} ", ports[2]);
    everywhere(&ingresses, OWN, 200, &own).await;
    let written: Vec<_> = ingresses.iter().map(Ingress::configuration).collect();
    assert!(written.iter().all(|files| files.iter().any(|(_, text)| text.contains(OWN))), "{written:?}");
    for (document, status, text) in [
        (json!([route("shop.example", &ports[..1])]), 200, format!("reached {} ", ports[0])),
        (
            json!([route("*.example", &ports[..1]), route("shop.example", &ports[1..2])]),
            200,
            format!("reached {} ", ports[1]),
        ),
        (json!([]), 404, String::new()),
    ] {
        node.say(Says::Document(self::document(&document)));
        everywhere(&ingresses, "shop.example", status, &text).await;
        still(&ingresses, OWN, ports[2]).await;
    }
    assert_eq!(ingresses.iter().map(Ingress::configuration).collect::<Vec<_>>(), written);
}

/// The only errors in the logs are about the polls that brought no document.
fn accepted(ingresses: &[Ingress]) {
    for ingress in ingresses {
        let meant = |line: &String| ["503", "draining", "unexpected EOF"].iter().any(|text| line.contains(text));
        let errors: Vec<String> = ingress.errors().into_iter().filter(|line| !meant(line)).collect();
        assert!(errors.is_empty(), "{:?}: {errors:#?}", ingress.kind());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_upstream_answers_when_the_first_is_dead() {
    let (node, mut echo) = (FakeNode::start().await, Echo::start(2).await);
    let ports = echo.ports();
    node.say(Says::Document(document(&json!([route("shop.example", &ports)]))));
    let ingresses = Ingress::start_each(&Kind::WITH_OLDEST, &node.source()).await;
    everywhere(&ingresses, "shop.example", 200, &format!("reached {} ", ports[0])).await;
    for _ in 0..20 {
        still(&ingresses, "shop.example", ports[0]).await;
    }
    echo.close(ports[0]);
    // Traefik looks every 10 s and gives a check 3 s; the other two notice by the request itself.
    for ingress in ingresses.iter().filter(|ingress| !ingress.kind().is_traefik()) {
        for _ in 0..20 {
            let answer = ingress.ask("shop.example", "/").await.unwrap();
            assert!(answer.body.contains(&format!("reached {} ", ports[1])), "{:?}: {answer:?}", ingress.kind());
        }
    }
    everywhere(&ingresses, "shop.example", 200, &format!("reached {} ", ports[1])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn traefik_takes_a_document_over_once_however_often_it_asks() {
    let (node, echo) = (FakeNode::start().await, Echo::start(2).await);
    let ports = echo.ports();
    node.say(Says::Document(document(&json!([route("shop.example", &ports)]))));
    let source = node.source();
    let traefik = Ingress::verbose_traefik(&source).await;
    traefik.until_answered("shop.example", "/", 200, &format!("reached {} ", ports[0]), LIMIT).await;
    for _ in 0..5 {
        node.polled(&source).await;
    }
    assert_eq!(taken_over(&traefik), 1, "{}", traefik.log());
    node.say(Says::Document(document(&json!([route("shop.example", &ports[1..])]))));
    traefik.until_answered("shop.example", "/", 200, &format!("reached {} ", ports[1]), LIMIT).await;
    assert_eq!(taken_over(&traefik), 2, "{}", traefik.log());
}

/// A document that says the same is no new configuration, and one that is not new takes nobody out: the health check does.
#[tokio::test(flavor = "multi_thread")]
async fn traefik_takes_a_dead_upstream_out_by_its_health_check_without_a_new_configuration() {
    let (node, mut echo) = (FakeNode::start().await, Echo::start(2).await);
    let ports = echo.ports();
    node.say(Says::Document(document(&json!([route("shop.example", &ports)]))));
    let traefik = Ingress::verbose_traefik(&node.source()).await;
    traefik.until_answered("shop.example", "/", 200, &format!("reached {} ", ports[0]), LIMIT).await;
    echo.close(ports[0]);
    traefik.until_answered("shop.example", "/", 200, &format!("reached {} ", ports[1]), LIMIT).await;
    // It is out, and not only passed over now and then.
    for _ in 0..20 {
        let answer = traefik.ask("shop.example", "/").await.unwrap();
        assert!(answer.body.contains(&format!("reached {} ", ports[1])), "{answer:?}\n{}", traefik.log());
    }
    assert!(traefik.log().contains("Health check failed"), "{}", traefik.log());
    assert_eq!(taken_over(&traefik), 1, "{}", traefik.log());
}

/// How many configurations came out of the polls.
pub(crate) fn taken_over(traefik: &Ingress) -> usize {
    let came = |line: &&str| line.contains(r#""providerName":"http""#) && line.contains("Configuration received");
    traefik.log().lines().filter(came).count()
}

//! kill -9 of each daemon under load. The load clients open a connection for each request and never try again.

use std::time::Duration;

use nix::sys::signal::Signal;
use reqwest::Method;
use scafo_tests::load::{Load, Outcome, client, not_answered};
use scafo_tests::node::LONG_LEASES;
use scafo_tests::{Api, Node, Project, process, wait};

/// How often each daemon is killed: enough to meet it at work, `SCAFO_TEST_LONG` for more.
fn rounds() -> usize {
    if std::env::var_os("SCAFO_TEST_LONG").is_some() { 10 } else { 2 }
}

struct Loads {
    application: Load,
    /// The same with bodies, which nobody may send a second time.
    posts: Load,
    reads: Load,
    routes: Load,
    health: Load,
}

struct Outcomes {
    application: Vec<Outcome>,
    api: Vec<Outcome>,
}

impl Loads {
    fn start(node: &Node) -> Self {
        let (url, host) = (node.dev.ingress.clone(), node.host("shop"));
        let (post_url, post_host) = (url.clone(), host.clone());
        let api = node.api();
        let over_api = |request: fn(&Api) -> reqwest::RequestBuilder| {
            let api = api.clone();
            Load::start(1, move || request(&api))
        };
        Self {
            application: Load::start(3, move || client().get(&url).header("host", &host)),
            posts: Load::start(2, move || client().post(&post_url).header("host", &post_host).body("a body")),
            reads: over_api(|api| api.request(Method::GET, "/v1/applications")),
            routes: over_api(|api| api.ingress("/v1/ingress/routes")),
            health: over_api(|api| api.bare(Method::GET, "/.well-known/scafo/health")),
        }
    }

    async fn stop(self) -> Outcomes {
        let mut api = self.reads.stop().await;
        api.extend(self.routes.stop().await);
        api.extend(self.health.stop().await);
        let mut application = self.application.stop().await;
        application.extend(self.posts.stop().await);
        Outcomes { application, api }
    }
}

/// Kills `daemon` a few times under load; afterwards a deploy still goes through.
async fn killed(daemon: &str) -> Outcomes {
    let node = Node::start_with(&[LONG_LEASES]).await;
    let project = Project::answering("shop", "hello");
    node.deploy(project.path()).await;
    let loads = Loads::start(&node);
    for _ in 0..rounds() {
        node.kill_daemon(daemon).await;
        good_again(&node).await;
    }
    let outcomes = loads.stop().await;

    let again = Project::answering("shop", "after");
    node.deploy(again.path()).await;
    assert_eq!(node.get("shop", "/").await.unwrap(), (200, "after".to_owned()));
    node.stop().await;
    outcomes
}

/// Waits until every kind of request is answered well, so that each kill meets a node that works.
async fn good_again(node: &Node) {
    let api = node.api();
    wait::until("the node to work again", Duration::from_secs(120), || async {
        let fine = |outcome| matches!(outcome, Outcome::Answered { status: 200, .. });
        let reads = scafo_tests::load::send(api.request(Method::GET, "/v1/applications")).await;
        let routes = scafo_tests::load::send(api.ingress("/v1/ingress/routes")).await;
        let served = matches!(node.get("shop", "/").await, Ok((200, _)));
        (fine(reads) && fine(routes) && served).then_some(())
    })
    .await;
}

fn none_lost(what: &str, outcomes: &[Outcome], statuses: &[u16]) {
    let lost = not_answered(outcomes, statuses);
    assert!(lost.is_empty(), "{what}: {} of {} lost, first {:?}", lost.len(), outcomes.len(), lost.first());
    assert!(!outcomes.is_empty(), "{what}: there was load");
}

/// Those in flight may be cut; nothing is refused.
fn only_cut(what: &str, outcomes: &[Outcome], clients: usize, statuses: &[u16]) {
    let lost = not_answered(outcomes, statuses);
    assert!(lost.iter().all(|outcome| matches!(outcome, Outcome::Cut(_))), "{what}: {lost:?}");
    assert!(lost.len() <= clients * rounds(), "{what}: more than what was in flight: {lost:?}");
}

#[tokio::test]
async fn a_killed_registryd_loses_no_request() {
    let outcomes = killed("scafo-registryd").await;
    none_lost("applications", &outcomes.application, &[200]);
    none_lost("API", &outcomes.api, &[200, 503]);
}

#[tokio::test]
async fn a_killed_routerd_loses_no_request() {
    let outcomes = killed("scafo-routerd").await;
    none_lost("applications", &outcomes.application, &[200]);
    none_lost("API", &outcomes.api, &[200, 503]);
}

#[tokio::test]
async fn a_killed_bucketd_loses_no_request() {
    let outcomes = killed("scafo-bucketd").await;
    none_lost("applications", &outcomes.application, &[200]);
    none_lost("API", &outcomes.api, &[200, 503]);
}

#[tokio::test]
async fn a_killed_apiserver_cuts_only_the_calls_that_it_held() {
    let outcomes = killed("scafo-apiserver").await;
    none_lost("applications", &outcomes.application, &[200]);
    only_cut("API", &outcomes.api, 3, &[200, 503]);
}

#[tokio::test]
async fn a_killed_ingressd_cuts_only_the_requests_that_it_held() {
    let outcomes = killed("scafo-ingressd").await;
    only_cut("applications", &outcomes.application, 5, &[200]);
    none_lost("API", &outcomes.api, &[200]);
}

/// What its node said last is on disk, so that a killed ingress has it again before the node says anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_ingress_routes_again_while_no_routing_document_can_be_had() {
    let node = Node::start().await;
    node.deploy(Project::answering("shop", "hello").path()).await;
    assert_eq!(node.get("shop", "/").await.unwrap(), (200, "hello".to_owned()));
    let dir = node.state().join("ingressd");
    wait::until("the document to be kept", Duration::from_secs(60), || async {
        let files: Vec<_> = std::fs::read_dir(&dir).ok()?.flatten().collect();
        files
            .iter()
            .any(|file| std::fs::read_to_string(file.path()).is_ok_and(|text| text.contains("shop")))
            .then_some(())
    })
    .await;
    for _ in 0..5 {
        let api = node.daemon("scafo-apiserver").expect("it runs");
        // The supervisor takes it for hung after half a minute, and not before.
        process::signal(api.pid, Signal::SIGSTOP);
        node.kill_daemon("scafo-ingressd").await;
        let answer = node.get("shop", "/").await;
        let stopped = node.daemon("scafo-apiserver").is_some_and(|now| now.pid == api.pid);
        process::signal(api.pid, Signal::SIGCONT);
        good_again(&node).await;
        // A machine that was busy for so long that it was killed meanwhile proves nothing.
        if stopped {
            assert_eq!(answer.unwrap(), (200, "hello".to_owned()));
            node.stop().await;
            return;
        }
    }
    panic!("it was killed meanwhile each time");
}

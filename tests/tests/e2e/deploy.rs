//! Deploys that succeed: what is served afterwards, and that nobody notices the change.

use scafo_tests::load::{Load, Outcome, client, not_answered};
use scafo_tests::node::both;
use scafo_tests::project::example;
use scafo_tests::{Node, Project};
use serde_json::Value;

#[tokio::test]
async fn a_new_deploy_answers_with_no_failed_request_in_between() {
    let node = Node::start().await;
    let project = Project::answering("shop", "first");
    node.deploy(project.path()).await;
    assert_eq!(node.get("shop", "/").await.unwrap(), (200, "first".to_owned()));

    let (url, host) = (node.dev.ingress.clone(), node.host("shop"));
    let load = Load::start(4, move || client().get(&url).header("host", &host));
    for round in 0..3 {
        let answer = format!("answer {round}");
        project.write("index.js", &format!("export default {{ fetch() {{ return new Response({answer:?}); }} }};\n"));
        node.deploy(project.path()).await;
        assert_eq!(node.get("shop", "/").await.unwrap(), (200, answer), "deployed means served");
    }
    let outcomes = load.stop().await;
    let failed = not_answered(&outcomes, &[200]);
    assert!(failed.is_empty(), "{} of {} failed: {:?}\n{}", failed.len(), outcomes.len(), failed.first(), node.log());
    node.stop().await;
}

#[tokio::test]
async fn a_new_deploy_of_a_durable_object_keeps_its_count_and_fails_no_request() {
    let node = Node::start().await;
    node.deploy(&example("counter")).await;
    let before = count(&node.get("counter", "/").await.unwrap().1);

    let project = copy_of(&example("counter"));
    let (url, host) = (node.dev.ingress.clone(), node.host("counter"));
    let load = Load::start(2, move || client().get(&url).header("host", &host));
    let code = std::fs::read_to_string(project.path().join(main_of(&project))).unwrap();
    project.write(&main_of(&project), &format!("// another version\nglobalThis.another = 1;\n{code}"));
    node.deploy(project.path()).await;
    let outcomes = load.stop().await;
    let failed = not_answered(&outcomes, &[200]);
    assert!(failed.is_empty(), "{} of {} failed: {:?}\n{}", failed.len(), outcomes.len(), failed.first(), node.log());

    let after = count(&node.get("counter", "/").await.unwrap().1);
    let counted = u64::try_from(outcomes.len()).unwrap();
    assert_eq!(after, before + counted + 1, "each answered request counted once");
    node.stop().await;
}

#[tokio::test]
async fn two_applications_side_by_side_do_not_see_each_others_requests() {
    let node = Node::start().await;
    let (one, two) = (Project::answering("one", "I am one"), Project::answering("two", "I am two"));
    tokio::join!(node.deploy(one.path()), node.deploy(two.path()));

    for _ in 0..20 {
        let (first, second) = tokio::join!(node.get("one", "/"), node.get("two", "/"));
        assert_eq!((first.unwrap().1.as_str(), second.unwrap().1.as_str()), ("I am one", "I am two"));
    }
    let (_, applications) = node.api().get("/v1/applications").await.unwrap();
    let names: Vec<&str> =
        applications["applications"].as_array().unwrap().iter().map(|a| a["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["one", "two"]);
    node.stop().await;
}

#[tokio::test]
async fn the_command_line_shows_what_the_node_serves() {
    let node = Node::start().await;
    let project = Project::answering("shop", "hello");
    let said = node.deploy(project.path()).await;
    assert!(said.contains(&node.host("shop")), "the URL is printed: {said}");

    let routes = node.scafo(["routes"]).await;
    assert!(routes.status.success() && both(&routes).contains(&node.host("shop")), "{}", both(&routes));
    let list = node.scafo(["app", "list"]).await;
    assert!(list.status.success() && both(&list).contains("shop"), "{}", both(&list));
    let status = node.scafo(["status"]).await;
    assert!(status.status.success() && both(&status).contains("shop"), "{}", both(&status));
    assert!(both(&status).contains("celld-workerd"), "the stand-in is named: {}", both(&status));

    let status = node.scafo(["status", "--json"]).await;
    let state: Value = serde_json::from_slice(&status.stdout).unwrap();
    let text = state.to_string();
    assert!(text.contains("\"ready\""), "{text}");
    node.stop().await;
}

#[tokio::test]
async fn deploying_the_same_content_again_succeeds() {
    let node = Node::start().await;
    let project = Project::answering("shop", "hello");
    node.deploy(project.path()).await;
    node.deploy(project.path()).await;
    assert_eq!(node.get("shop", "/").await.unwrap(), (200, "hello".to_owned()));
    node.stop().await;
}

#[tokio::test]
async fn a_host_that_nobody_serves_is_answered_by_the_ingress_itself() {
    let node = Node::start().await;
    let project = Project::answering("shop", "hello");
    node.deploy(project.path()).await;
    for host in ["nobody.dev.localhost", "dev.example", "localhost", "127.0.0.1"] {
        let request = client().get(&node.dev.ingress).header("host", host);
        match scafo_tests::load::send(request).await {
            Outcome::Answered { status, body } => assert_eq!(status, 404, "{host}: {body}"),
            other => panic!("{host}: {other:?}"),
        }
    }
    node.stop().await;
}

/// The number in an answer of the counter.
pub(crate) fn count(answer: &str) -> u64 {
    let digits: String = answer.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no number in {answer:?}"))
}

fn main_of(project: &Project) -> String {
    let config = std::fs::read_to_string(project.path().join("wrangler.jsonc")).unwrap();
    let (_, rest) = config.split_once("\"main\"").expect("a main module");
    rest.split('"').nth(1).expect("its path").to_owned()
}

fn copy_of(directory: &std::path::Path) -> Project {
    let project = Project::new(&[]);
    let copied = std::process::Command::new("cp").arg("-r").arg(directory.join(".")).arg(project.path()).status();
    assert!(copied.unwrap().success());
    project
}

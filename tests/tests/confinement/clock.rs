//! Steps of the clock, on a machine where no other test reads it.

use std::process::Command;
use std::time::{Duration, SystemTime};

use scafo_tests::load::{Load, client, not_answered};
use scafo_tests::node::DAEMONS;
use scafo_tests::{Node, Project, uml, wait};

use crate::hogs::{path_with_standin, runtime};
use crate::passable;

const LIMIT: Duration = Duration::from_secs(120);
/// Longer than anything here lives: tokens, leases, hours of observations.
const STEP: Duration = Duration::from_secs(3 * 3600);

fn set(time: SystemTime) {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).expect("a time after 1970");
    let set = Command::new("date").args(["-u", "-s", &format!("@{}", since.as_secs())]).output().expect("date runs");
    assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
}

#[tokio::test]
async fn a_clock_that_is_set_forward_and_back_costs_no_request_of_an_application() {
    match uml::run("clock::steps_of_the_clock").await {
        Ok(said) => eprintln!("{}", said.lines().find(|line| line.contains("requests over")).unwrap_or_default()),
        Err(why) => eprintln!("SKIPPED: steps of the clock: {why}"),
    }
}

/// Only where the clock is this test's own.
#[tokio::test]
async fn steps_of_the_clock() {
    if !uml::is_here() {
        return;
    }
    let dir = passable();
    let (celld, path) = (runtime(dir.path()), path_with_standin());
    let environment = [("SCAFO_CELLD_PATH", celld.as_str()), ("PATH", path.as_str())];
    let node = Node::start_in(&dir.path().join("state"), &environment).await;
    node.deploy(Project::answering("shop", "edition 0").path()).await;
    let running = || {
        let daemons = DAEMONS.into_iter().filter(|daemon| *daemon != "scafo-apiserver");
        let daemons: Vec<_> = daemons.map(|daemon| node.daemon(daemon)).collect();
        let mut runtimes = node.processes();
        runtimes.retain(|process| process.name == "celld-workerd");
        (daemons, runtimes)
    };
    let before = running();
    assert!(before.0.iter().all(Option::is_some) && !before.1.is_empty(), "{before:?}");
    let (url, host) = (node.dev.ingress.clone(), node.host("shop"));
    let load = Load::start(1, move || client().get(&url).header("host", &host));
    // Forward, back to where it was and further, and to the right time.
    let steps: [fn(SystemTime) -> SystemTime; 3] = [|now| now + STEP, |now| now - 2 * STEP, |now| now + STEP];
    for (number, step) in steps.iter().enumerate() {
        set(step(SystemTime::now()));
        let so_far = load.ended();
        wait::until("requests after a step", LIMIT, || async { (load.ended() > so_far + 20).then_some(()) }).await;
        // Tokens, records, the lease, and what a celld renews: a deploy uses all of it.
        let edition = format!("edition {}", number + 1);
        node.deploy(Project::answering("shop", &edition).path()).await;
        wait::until("the new edition", LIMIT, || async {
            matches!(node.get("shop", "/").await, Ok((200, body)) if body == edition).then_some(())
        })
        .await;
    }
    let outcomes = load.stop().await;
    let failed = not_answered(&outcomes, &[200]);
    assert!(failed.is_empty(), "{} of {} failed: {:?}\n{}", failed.len(), outcomes.len(), failed.first(), node.log());
    eprintln!("{} requests over {} steps of the clock", outcomes.len(), steps.len());
    assert_eq!(running(), before, "a daemon or a runtime ended\n{}", node.log());
    node.stop().await;
}

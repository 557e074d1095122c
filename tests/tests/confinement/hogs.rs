//! Applications that eat without end: memory, processes, their log. Each harms itself, by the limits that this machine has.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use scafo_tests::load::{Load, client, not_answered};
use scafo_tests::node::{both, built};
use scafo_tests::{Node, Project, uml, wait};

use crate::{not_enforced, passable, uid_range};

const LIMIT: Duration = Duration::from_secs(180);

/// A celld that is the stand-in, with a fault for some applications.
pub(crate) fn runtime(dir: &Path) -> String {
    let path = dir.join("celld");
    let stub = if uml::is_here() { uml::workerd(dir).display().to_string() } else { String::new() };
    let script = format!(
        "#!/bin/sh\n[ -z \"{stub}\" ] || export CELLD_STANDIN_WORKERD=\"{stub}\"\ncase \"$1 $*\" in\ndeploy*) ;;\n*fleets/memory-hog*) export CELLD_STANDIN_HOG=memory ;;\n\
         *fleets/task-hog*) export CELLD_STANDIN_HOG=tasks ;;\n*fleets/log-hog*) export CELLD_STANDIN_HOG=log ;;\nesac\n\
         exec {} \"$@\"\n",
        built("celld-workerd").display()
    );
    std::fs::write(&path, script).expect("a file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    path.display().to_string()
}

/// A deploy job starts programs of directories on the node's path only, and the script starts one beside this test.
pub(crate) fn path_with_standin() -> String {
    let standin = built("celld-workerd");
    let beside = standin.parent().expect("a directory").display();
    format!("{}:{beside}", std::env::var("PATH").expect("a path"))
}

#[tokio::test]
async fn a_hog_of_each_kind_harms_only_itself() {
    let dir = passable();
    let state = dir.path().join("state");
    let (celld, range) = (runtime(dir.path()), uid_range());
    let root = range.is_ok();
    let path = path_with_standin();
    let mut environment = vec![("SCAFO_CELLD_PATH", celld.as_str()), ("PATH", path.as_str())];
    match &range {
        Ok(range) => environment.push(("SCAFO_CELLD_UID_RANGE", range)),
        Err(why) => eprintln!("all processes are one user: {why}"),
    }
    let node = Node::start_in(&state, &environment).await;
    let open = not_enforced(&node);
    let limited = |what: &str| {
        !open.contains("hard limits")
            || !open.split("hard limits of").nth(1).unwrap_or("").split(" for each").next().unwrap_or("").contains(what)
    };
    // Where all processes are traced, hundreds of them take minutes to start.
    let (memory, tasks) = (limited("memory"), root && !uml::is_here());
    eprintln!(
        "limits that ran: the cut of logs; {}; {}",
        match (tasks, root) {
            (true, _) => "the number of a user's tasks",
            (false, true) => "not the number of tasks, which is tried where processes start quickly",
            (false, false) => "SKIPPED: the number of tasks, which takes users",
        },
        if memory { "memory, by a control group" } else { "SKIPPED: memory, which takes systemd or control groups" }
    );
    node.deploy(Project::answering("shop", "I am shop").path()).await;
    let (url, host) = (node.dev.ingress.clone(), node.host("shop"));
    let load = Load::start(2, move || client().get(&url).header("host", &host));
    let before: Vec<_> = scafo_tests::node::DAEMONS.iter().map(|daemon| node.daemon(daemon)).collect();

    let mut hogs = vec!["log-hog"];
    hogs.extend(tasks.then_some("task-hog"));
    hogs.extend(memory.then_some("memory-hog"));
    for hog in &hogs {
        // Whether it comes to serve is its own affair.
        let project = Project::answering(hog, "I am a hog");
        let output = node.scafo(["deploy".as_ref(), project.path().as_os_str(), "--no-wait".as_ref()]).await;
        assert!(output.status.success(), "{}", both(&output));
    }
    let log = |name: &str| std::fs::read(state.join("logs").join(format!("{name}.log"))).unwrap_or_default();
    let says = |name: &str, what: &str| String::from_utf8_lossy(&log(name)).contains(what);
    wait::until("the flood to be cut", LIMIT, || async { says("log-hog", "bytes are left out here").then_some(()) })
        .await;
    if tasks {
        wait::until("the tasks to be refused", LIMIT, || async { says("task-hog", "no more processes").then_some(()) })
            .await;
    }
    if memory {
        wait::until("the memory hog to be killed", LIMIT, || async {
            let (_, state) = node.api().get("/v1/state").await.ok()?;
            let processes = state["processes"].as_array()?.clone();
            let hog = processes.into_iter().find(|process| process["application"] == "memory-hog")?;
            (hog["lastExit"]["signal"] == 9).then_some(())
        })
        .await;
    }
    assert_eq!(node.get("shop", "/").await.expect("an answer"), (200, "I am shop".to_owned()));
    let outcomes = load.stop().await;
    let failed = not_answered(&outcomes, &[200]);
    assert!(failed.is_empty(), "{} of {} failed: {:?}\n{}", failed.len(), outcomes.len(), failed.first(), node.log());
    let after: Vec<_> = scafo_tests::node::DAEMONS.iter().map(|daemon| node.daemon(daemon)).collect();
    assert_eq!(before, after, "no daemon was ended");
    let size = std::fs::metadata(state.join("logs/log-hog.log")).map_or(0, |metadata| metadata.len());
    // Its bound, and what a whole core prints between two looks under load.
    assert!(size < 2 << 30, "the log has {size} bytes");
    for hog in &hogs {
        let _ = node.scafo(["app", "retire", hog]).await;
    }
    node.stop().await;
}

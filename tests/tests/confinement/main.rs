//! What the processes of a real node may do, and what applications that misbehave do to it.

// Code of tests: a panic is how it says what is wrong.
#![allow(clippy::panic)]

mod clock;
mod hogs;
mod unified;

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use nix::unistd::geteuid;
use scafo_tests::node::{DAEMONS, both, built};
use scafo_tests::{Node, Project};
use serde_json::Value;
use tempfile::TempDir;

/// The fields of `/proc/<pid>/status`.
fn status(pid: u32) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_else(|error| panic!("{pid}: {error}"));
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

fn uid(pid: u32) -> u32 {
    status(pid)["Uid"].split_whitespace().next().expect("a user").parse().expect("a number")
}

/// What the node says that it does not hold.
fn not_enforced(node: &Node) -> String {
    let ready = std::fs::read_to_string(node.state().join("node.json")).expect("a ready node");
    let ready: Value = serde_json::from_str(&ready).expect("JSON");
    ready["notEnforced"].to_string()
}

/// A state directory that other users can pass, as /var/lib is.
fn passable() -> TempDir {
    let dir = TempDir::new().expect("a temporary directory");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711)).expect("a mode");
    dir
}

/// A range of user ids that no other test has, or why processes cannot be given any here.
fn uid_range() -> Result<String, String> {
    if !geteuid().is_root() {
        return Err("only root gives processes users of their own".to_owned());
    }
    let program = built("scafo");
    let is_closed = |dir: &&Path| std::fs::metadata(dir).is_ok_and(|metadata| metadata.mode() & 0o001 == 0);
    if let Some(closed) = program.ancestors().skip(1).find(is_closed) {
        return Err(format!("other users cannot pass {}: clone the repository where they can", closed.display()));
    }
    let first = 1_800_000_000 + (std::process::id() % 100_000) * 100;
    Ok(format!("{first}-{}", first + 99))
}

#[tokio::test]
async fn every_daemon_of_a_node_is_confined_from_its_first_instruction() {
    let node = Node::start().await;
    let own = status(std::process::id());
    for daemon in DAEMONS {
        let process = node.daemon(daemon).unwrap_or_else(|| panic!("{daemon} runs"));
        let now = status(process.pid);
        assert_eq!(
            (now["NoNewPrivs"].as_str(), now["CapEff"].as_str(), now["CapPrm"].as_str()),
            ("1", "0000000000000000", "0000000000000000"),
            "{daemon}"
        );
        if not_enforced(&node).contains("seccomp") {
            eprintln!("SKIPPED: this kernel has no seccomp");
            continue;
        }
        let filters = |status: &BTreeMap<String, String>| status["Seccomp_filters"].parse::<u32>().expect("a number");
        // Two of the supervisor's, and its own against programs.
        assert!(filters(&now) >= filters(&own) + 3, "{daemon}: {}", now["Seccomp_filters"]);
    }
    node.kill_daemon("scafo-apiserver").await;
    let again = node.daemon("scafo-apiserver").expect("it runs again");
    assert_eq!(status(again.pid)["NoNewPrivs"], "1");
    node.stop().await;
}

#[tokio::test]
async fn a_node_as_root_with_user_ids_gives_one_to_each_daemon_and_application() {
    let range = match uid_range() {
        Ok(range) => range,
        Err(why) => {
            eprintln!("SKIPPED: {why}");
            return;
        }
    };
    let dir = passable();
    let state = dir.path().join("state");
    let node = Node::start_in(&state, &[("SCAFO_CELLD_UID_RANGE", &range)]).await;
    assert!(!not_enforced(&node).contains("user id"), "{}", not_enforced(&node));
    let mut owners = BTreeMap::new();
    for daemon in DAEMONS {
        let pid = node.daemon(daemon).unwrap_or_else(|| panic!("{daemon} runs")).pid;
        owners.insert(uid(pid), daemon.to_owned());
    }
    for name in ["shop", "blog"] {
        node.deploy(Project::answering(name, name).path()).await;
        assert_eq!(node.get(name, "/").await.expect("an answer"), (200, name.to_owned()));
        owners.insert(std::fs::metadata(state.join("celld").join(name)).expect("its directory").uid(), name.to_owned());
    }
    assert_eq!(owners.len(), DAEMONS.len() + 2, "{owners:?}");
    let first: u32 = range.split('-').next().and_then(|first| first.parse().ok()).expect("a number");
    assert!(owners.keys().all(|uid| (first..first + 100).contains(uid)), "{owners:?}");
    let workers: Vec<_> =
        node.processes().into_iter().filter(|process| process.name.starts_with("celld-workerd")).collect();
    assert!(workers.iter().all(|worker| owners.contains_key(&uid(worker.pid))), "{workers:?}");
    for secret in ["node.key", "bucket.json", "ingress-token", "ports.json"] {
        let metadata = std::fs::metadata(state.join(secret)).unwrap_or_else(|error| panic!("{secret}: {error}"));
        assert_eq!((metadata.uid(), metadata.mode() & 0o777), (0, 0o600), "{secret}");
    }
    for (server, mode) in [("registry", 0o710), ("router", 0o710), ("supervisor", 0o710), ("admin", 0o700)] {
        let metadata =
            std::fs::metadata(state.join("run").join(server)).unwrap_or_else(|error| panic!("{server}: {error}"));
        assert_eq!((metadata.uid(), metadata.mode() & 0o777), (0, mode), "{server}");
    }
    // The ingress, confined and a user of its own, keeps its document.
    let kept = std::fs::read_dir(state.join("ingressd")).expect("its directory").flatten().map(|entry| entry.path());
    let kept: Vec<_> = kept.filter(|path| path.extension().is_some_and(|end| end == "routes")).collect();
    let [kept] = &kept[..] else { panic!("one document: {kept:?}") };
    let metadata = std::fs::metadata(kept).expect("a file");
    let owner = owners.get(&metadata.uid()).map(String::as_str);
    assert_eq!((owner, metadata.mode() & 0o777), (Some("scafo-ingressd"), 0o600));
    assert_eq!(std::fs::read_dir(state.join("jobs")).expect("the jobs' directory").count(), 0, "jobs leave nothing");
    let group = format!("scafo-{}", node.dev.pids.supervisor);
    node.stop().await;
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
    let left: Vec<_> = hierarchies.map(|entry| entry.path().join(&group)).filter(|group| group.exists()).collect();
    assert!(left.is_empty(), "a node that ended leaves control groups: {left:?}");
    // The same users again, over a restart.
    let node = Node::start_in(&state, &[("SCAFO_CELLD_UID_RANGE", &range)]).await;
    let again = std::fs::metadata(state.join("celld/shop")).expect("its directory").uid();
    assert_eq!(owners.get(&again).map(String::as_str), Some("shop"));
    scafo_tests::wait::until("the shop", std::time::Duration::from_secs(60), || async {
        matches!(node.get("shop", "/").await, Ok((200, _))).then_some(())
    })
    .await;
    node.stop().await;
}

/// Deploys that reach for a file of the node by every way that a project has.
async fn hostile_projects_get_nothing(node: &Node, state: &Path) {
    let key = state.join("node.key");
    let shown = key.display();
    let secret: String =
        std::fs::read_to_string(&key).expect("the key").lines().nth(1).expect("its second line").to_owned();
    let up = "../".repeat(24);
    let config = |main: &str, more: &str| {
        format!(r#"{{ "name": "thief", "main": "{main}", "compatibility_date": "2026-01-01"{more} }}"#)
    };
    let rules = r#", "rules": [{ "type": "Text", "globs": ["**/*.key"] }]"#;
    let code = |from: &str| {
        format!("import key from \"{from}\";\nexport default {{ fetch() {{ return new Response(key); }} }};\n")
    };
    let relative = format!("{up}{}", shown.to_string().trim_start_matches('/'));
    let assets = format!(r#", "assets": {{ "directory": "{relative}/.." }}"#);
    let projects = [
        ("an absolute import", config("index.js", rules), code(&shown.to_string())),
        ("a relative import", config("index.js", rules), code(&relative)),
        ("main outside", config(&relative, ""), String::new()),
        (
            "assets outside",
            config("index.js", &assets),
            "export default { fetch() { return new Response('x'); } };\n".to_owned(),
        ),
        ("an import of proc", config("index.js", rules), code("/proc/self/environ")),
    ];
    for (what, config, code) in projects {
        let project = Project::new(&[("wrangler.jsonc", &config), ("index.js", &code)]);
        let output = node.scafo(["deploy".as_ref(), project.path().as_os_str()]).await;
        let said = both(&output);
        assert!(!output.status.success(), "{what} was deployed: {said}");
        assert!(!said.contains(&secret), "{what}: {said}");
        if let Ok((_, body)) = node.get("thief", "/").await {
            assert!(!body.contains(&secret) && !body.contains("AWS_SECRET"), "{what}");
        }
    }
    // A link inside the archive, past the command line.
    let project = Project::new(&[("wrangler.jsonc", &config("index.js", rules)), ("index.js", &code("./linked.key"))]);
    std::os::unix::fs::symlink(&key, project.path().join("linked.key")).expect("a link");
    let output = node.scafo(["deploy".as_ref(), project.path().as_os_str()]).await;
    assert!(!output.status.success() && !both(&output).contains(&secret), "{}", both(&output));
    assert_eq!(
        std::fs::read_dir(state.join("jobs")).expect("the jobs' directory").count(),
        0,
        "failed jobs leave nothing"
    );
}

#[tokio::test]
async fn a_hostile_project_bundles_no_file_of_the_host() {
    let node = Node::start().await;
    hostile_projects_get_nothing(&node, node.state()).await;
    node.stop().await;
}

//! What people get wrong, and what machines do: a clear error with the next step, and nothing half-written.

use std::net::TcpListener;
use std::time::{Duration, SystemTime};

use ed25519_dalek::SigningKey;
use reqwest::Method;
use scafo_core::{Timestamp, token};
use scafo_tests::load::{Outcome, send};
use scafo_tests::node::{Node, both, run, scafo};
use scafo_tests::{Project, wait};
use tokio::net::TcpSocket;

#[tokio::test]
async fn a_directory_without_a_configuration_is_refused_by_name() {
    let node = Node::start().await;
    let project = Project::new(&[("index.js", "export default {};\n")]);
    let output = node.scafo(["deploy".as_ref(), project.path().as_os_str()]).await;
    let said = both(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("wrangler.jsonc") && said.contains("wrangler.json") && said.contains("hint:"), "{said}");
    let (_, list) = node.api().get("/v1/applications").await.unwrap();
    assert_eq!(list["applications"].as_array().map(Vec::len), Some(0), "nothing was created");
    node.stop().await;
}

#[tokio::test]
async fn a_syntax_error_fails_the_deploy_with_the_bundlers_words_and_the_old_code_serves_on() {
    let node = Node::start().await;
    let project = Project::answering("shop", "good");
    node.deploy(project.path()).await;
    project.write("index.js", "export default { fetch( { return };\n");
    let output = node.scafo(["deploy".as_ref(), project.path().as_os_str()]).await;
    let said = both(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("publish-failed"), "{said}");
    assert!(said.contains("index.js:1") && said.contains("Expected"), "the bundler's own message: {said}");
    assert!(!said.contains(node.state().to_str().unwrap()), "no path of the node: {said}");
    assert_eq!(node.get("shop", "/").await.unwrap(), (200, "good".to_owned()));

    let fixed = Project::answering("shop", "fixed");
    node.deploy(fixed.path()).await;
    assert_eq!(node.get("shop", "/").await.unwrap(), (200, "fixed".to_owned()));
    node.stop().await;
}

#[tokio::test]
async fn every_token_that_does_not_hold_up_is_refused_alike() {
    let node = Node::start().await;
    let api = node.api();
    let now = Timestamp::from_system(SystemTime::now());
    let stranger = token::sign(&SigningKey::from_bytes(&[9; 32]), &node.dev.operator_id, now, [1; 16]);
    let unknown = token::sign(&SigningKey::from_bytes(&[9; 32]), "nobody", now, [2; 16]);
    let expired = api.token_at(Timestamp::from_millis(now.as_millis() - 600_000));
    let used = api.token();
    assert_eq!(api.with_token(Method::GET, "/v1/state", &used).send().await.unwrap().status(), 200);

    let mut bodies = Vec::new();
    for bad in [stranger.as_str(), &unknown, &expired, &used, "not-a-token", ""] {
        let answer = api.with_token(Method::GET, "/v1/state", bad).send().await.unwrap();
        assert_eq!(answer.status(), 401);
        assert_eq!(answer.headers()["content-type"], "application/problem+json");
        bodies.push(answer.text().await.unwrap());
    }
    let answer = api.bare(Method::GET, "/v1/state").send().await.unwrap();
    assert_eq!(answer.status(), 401);
    bodies.push(answer.text().await.unwrap());
    bodies.dedup();
    assert_eq!(bodies.len(), 1, "{bodies:?}");

    let wrong = api.with_token(Method::GET, "/v1/ingress/routes", "wrong").send().await.unwrap();
    assert_eq!(wrong.status(), 401);
    node.stop().await;
}

#[tokio::test]
async fn one_token_is_accepted_once_in_a_parallel_race_and_after_a_kill() {
    let node = Node::start().await;
    let api = node.api();
    let token = api.token();
    let calls = (0..20).map(|_| send(api.with_token(Method::GET, "/v1/state", &token)));
    let outcomes = futures_util::future::join_all(calls).await;
    let accepted = outcomes.iter().filter(|o| matches!(o, Outcome::Answered { status: 200, .. })).count();
    assert_eq!(accepted, 1, "{outcomes:?}");

    node.kill_daemon("scafo-apiserver").await;
    let again = send(api.with_token(Method::GET, "/v1/state", &token)).await;
    assert!(matches!(again, Outcome::Answered { status: 401, .. }), "{again:?}");
    node.stop().await;
}

#[tokio::test]
async fn a_port_in_use_is_named_with_the_next_step() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let dir = tempfile::TempDir::new().unwrap();
    let mut command = scafo();
    command.args(["dev", "--json", "--ingress-listen", "127.0.0.1:0", "--api-listen", &address, "--state-dir"]);
    let output = run(command.arg(dir.path().join("state"))).await;
    let said = both(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&address) && said.contains("hint:"), "{said}");
    assert!(output.stdout.is_empty());
}

#[tokio::test]
async fn a_bucket_that_refuses_connections_is_named_and_a_later_start_works() {
    // Bound and not listening: connections are refused, and nobody else gets the port.
    let nobody = TcpSocket::new_v4().unwrap();
    nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let endpoint = format!("http://{}", nobody.local_addr().unwrap());
    let dir = tempfile::TempDir::new().unwrap();
    let state = dir.path().join("state");
    complains_about_its_bucket(&state, &endpoint).await;

    let node = Node::start_in(&state, &[]).await;
    let project = Project::answering("shop", "hello");
    node.deploy(project.path()).await;
    node.stop().await;
}

#[tokio::test]
async fn a_bucket_that_takes_connections_and_never_answers_is_named() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let dir = tempfile::TempDir::new().unwrap();
    complains_about_its_bucket(&dir.path().join("state"), &endpoint).await;
}

/// Starts a node on a bucket that is not there, waits for the error, and ends it.
async fn complains_about_its_bucket(state: &std::path::Path, endpoint: &str) {
    let log = state.with_extension("log");
    let mut command = scafo();
    command
        .args(["dev", "--json", "--ingress-listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0", "--state-dir"])
        .arg(state)
        .env("SCAFO_BUCKET_NAME", "fleet")
        .env("SCAFO_BUCKET_ENDPOINT", endpoint)
        .env("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
        .env("AWS_SECRET_ACCESS_KEY", "not-to-be-printed")
        .stdout(std::process::Stdio::null())
        .stderr(std::fs::File::create(&log).unwrap())
        .kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let said = wait::until("the error to be said", Duration::from_secs(60), || async {
        let said = std::fs::read_to_string(&log).unwrap();
        (said.contains(endpoint) && said.contains("bucket.endpoint")).then_some(said)
    })
    .await;
    assert!(!said.contains("not-to-be-printed"), "{said}");
    if child.try_wait().unwrap().is_none() {
        scafo_tests::process::signal(child.id().unwrap(), nix::sys::signal::Signal::SIGTERM);
    }
    let ended = tokio::time::timeout(Duration::from_secs(60), child.wait()).await;
    ended.expect("it ends").unwrap();
}

#[tokio::test]
async fn a_full_disk_refuses_the_deploy_and_everything_goes_on_when_there_is_space_again() {
    let Some(disk) = SmallDisk::mount() else {
        assert!(std::env::var_os("CI").is_none(), "CI runs as root and has to show this");
        eprintln!("SKIPPED: mounting a small file system needs root");
        return;
    };
    let state = disk.path().join("state");
    let node = Node::start_in(&state, &[]).await;
    let project = Project::answering("shop", "before");
    node.deploy(project.path()).await;

    let ballast = disk.fill();
    let next = Project::answering("shop", "while full");
    // Nothing that packing could make small.
    let padding: Vec<u8> = (0..1 << 20).map(|_| rand::random()).collect();
    std::fs::write(next.path().join("padding.bin"), padding).unwrap();
    let output = node.scafo(["deploy".as_ref(), next.path().as_os_str()]).await;
    let said = both(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("hint:") && said.contains("free some space"), "{said}");
    wait::until("what was half-written to go", Duration::from_secs(60), || async {
        let staged = std::fs::read_dir(state.join("apiserver/stage")).unwrap();
        (staged.count() == 0).then_some(())
    })
    .await;
    assert_eq!(node.get("shop", "/").await.unwrap(), (200, "before".to_owned()), "it serves on");

    std::fs::remove_file(ballast).unwrap();
    let after = Project::answering("shop", "after");
    wait::until("a deploy to go through", Duration::from_secs(60), || async {
        let output = node.scafo(["deploy".as_ref(), after.path().as_os_str()]).await;
        output.status.success().then_some(())
    })
    .await;
    assert_eq!(node.get("shop", "/").await.unwrap(), (200, "after".to_owned()));
    node.stop().await;
}

/// A file system of 64 MiB, unmounted when it is dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let dir = tempfile::TempDir::new().unwrap();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64m", "tmpfs"])
            .arg(dir.path())
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then_some(Self(dir))
    }

    fn path(&self) -> &std::path::Path {
        self.0.path()
    }

    /// Takes all the space that is left.
    fn fill(&self) -> std::path::PathBuf {
        use std::io::Write as _;
        let path = self.path().join("ballast");
        let mut file = std::fs::File::create(&path).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

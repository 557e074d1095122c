//! What every test needs: tools, a bucket, projects, nodes, and a client.

mod bucket;
mod http;
mod node;

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicU8, Ordering},
    time::{Duration, Instant},
};

pub(crate) use bucket::Bucket;
pub(crate) use http::{Answer, get, join, post, request, request_of};
pub(crate) use node::{Node, is_alive};

/// How long anything may take that should take a moment. A loaded machine takes some seconds; only a hang takes this long.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A loopback address that nobody else binds or calls from: a port of it stays free while nobody has it.
pub(crate) fn own_address() -> Ipv4Addr {
    static GIVEN: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high.max(1), low, GIVEN.fetch_add(1, Ordering::Relaxed))
}

/// Asks until there is an answer.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + LIMIT;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < give_up, "within {LIMIT:?} this did not happen: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A stand-in, a directory of its own, and a bucket with nothing in it.
pub(crate) struct World {
    pub bucket: Bucket,
    pub directory: tempfile::TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { bucket: Bucket::start(), directory: tempfile::tempdir().unwrap() }
    }

    /// The environment of every command: built from nothing, as a supervisor builds it.
    pub(crate) fn environment(&self) -> BTreeMap<String, String> {
        let path = |name: &str| self.directory.path().join(name).display().to_string();
        let mut environment = tools();
        environment.extend(
            [
                ("CELLD_NODE", "node-a".to_owned()),
                ("CELLD_WATCH", path("watch")),
                ("CELLD_ASSET_CACHE_DIR", path("assets")),
                ("CELLD_STANDIN_EMBEDDED", "1".to_owned()),
                // A test that does not ask for it finds nothing done by a poll in the middle of it.
                ("CELLD_DEPLOY_POLL_S", "86400".to_owned()),
                ("CELLD_BUCKET", format!("{}/fleets/shop", Bucket::NAME)),
                ("S3_ENDPOINT", self.bucket.endpoint.clone()),
                ("AWS_ACCESS_KEY_ID", Bucket::KEY.to_owned()),
                ("AWS_SECRET_ACCESS_KEY", Bucket::SECRET.to_owned()),
                ("RUST_LOG", "info".to_owned()),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        environment
    }

    /// The stand-in with these arguments, ready to be run.
    pub(crate) fn command(&self, arguments: &[&str], more: &[(&str, &str)]) -> Command {
        let mut command = standin(arguments);
        command.envs(self.environment()).envs(more.iter().copied()).current_dir(self.directory.path());
        command
    }

    /// Runs the stand-in to its end.
    pub(crate) fn run(&self, arguments: &[&str], more: &[(&str, &str)]) -> Finished {
        finish(self.command(arguments, more))
    }

    /// Deploys a project and gives its version.
    #[track_caller]
    pub(crate) fn deploy(&self, project: &Path) -> String {
        let finished = self.run(&["deploy", &project.display().to_string(), "--json"], &[]);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        let document: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
        document["version"].as_str().unwrap().to_owned()
    }

    /// A project called `shop` with this Worker; `settings` are further members of its configuration.
    pub(crate) fn project(&self, script: &str, settings: &str) -> PathBuf {
        self.named_project("shop", script, settings)
    }

    pub(crate) fn named_project(&self, name: &str, script: &str, settings: &str) -> PathBuf {
        let project = self.directory.path().join(format!("project-{name}"));
        std::fs::create_dir_all(&project).unwrap();
        std::fs::write(project.join("index.js"), script).unwrap();
        let config =
            format!(r#"{{ "name": "{name}", "main": "index.js", "compatibility_date": "2026-01-01" {settings} }}"#);
        std::fs::write(project.join("wrangler.jsonc"), config).unwrap();
        project
    }

    /// A Worker that answers `text`.
    pub(crate) fn worker(&self, text: &str) -> PathBuf {
        self.project(&format!("export default {{ fetch() {{ return new Response({text:?}); }} }};"), "")
    }

    /// Starts a node and waits until it says that it listens.
    #[track_caller]
    pub(crate) fn node(&self, more: &[(&str, &str)]) -> Node {
        let node = self.start(more);
        node.wait_for_banner();
        node
    }

    /// Starts a node and does not wait.
    pub(crate) fn start(&self, more: &[(&str, &str)]) -> Node {
        let command = self.command(&["--listen", "127.0.0.1:0", "--internal-listen", "127.0.0.1:0"], more);
        Node::start(command, self.directory.path())
    }
}

/// A project of the repository's examples.
pub(crate) fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name)
}

/// The bare stand-in: no environment at all.
pub(crate) fn standin(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_celld-workerd"));
    command.args(arguments).env_clear();
    command
}

/// A process that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

pub(crate) fn finish(mut command: Command) -> Finished {
    let Output { status, stdout, stderr } = command.stdin(std::process::Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Finished { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

/// Where workerd and esbuild are. A test run without them is no test run.
fn tools() -> BTreeMap<String, String> {
    let arch = match std::env::consts::ARCH {
        "x86_64" => ("linux-64", "linux-x64"),
        "aarch64" => ("linux-arm64", "linux-arm64"),
        other => panic!("no workerd for {other}"),
    };
    let tool = |path: String| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("node_modules").join(path);
        assert!(path.is_file(), "{} is missing: run `make tools`", path.display());
        path.display().to_string()
    };
    BTreeMap::from([
        ("CELLD_STANDIN_WORKERD".to_owned(), tool(format!("@cloudflare/workerd-{}/bin/workerd", arch.0))),
        ("CELLD_ESBUILD".to_owned(), tool(format!("@esbuild/{}/bin/esbuild", arch.1))),
    ])
}

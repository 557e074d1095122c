//! One real node, started by `scafo dev` and stopped when it is dropped.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::{Api, process, wait};

/// How long a node may take to be ready. It takes about a second; CI machines are shared.
const START_LIMIT: Duration = Duration::from_secs(120);
/// How long a node may take to end: the drain of its applications and some.
const STOP_LIMIT: Duration = Duration::from_secs(120);
/// How long one command may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(240);
/// How long a node's own ingress may take to hear of a change. It asks four times a second; CI machines are shared.
const INGRESS_LIMIT: Duration = Duration::from_secs(60);

/// The line that `scafo dev --json` prints.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Dev {
    /// Base URL of the API.
    pub api: String,
    /// Base URL of the ingress.
    pub ingress: String,
    /// The platform domain.
    pub domain: String,
    /// The node's id.
    pub node: String,
    /// The operator's id.
    pub operator_id: String,
    /// The operator's private key.
    pub operator_key: PathBuf,
    /// The ingress token.
    pub ingress_token_file: PathBuf,
    /// The state directory.
    pub state_dir: PathBuf,
    /// Process ids.
    pub pids: Pids,
}

/// The processes of a node.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Pids {
    pub supervisor: u32,
    pub registryd: u32,
    pub routerd: u32,
    pub apiserver: u32,
    #[serde(default)]
    pub bucketd: Option<u32>,
    pub ingressd: u32,
}

/// The daemons that the supervisor restarts, by executable.
pub const DAEMONS: [&str; 5] =
    ["scafo-registryd", "scafo-routerd", "scafo-apiserver", "scafo-bucketd", "scafo-ingressd"];

/// For nodes whose bucket is killed while they serve: a busy machine may take longer to start it again than the leases of applications
/// live, and then they end, and rightly so.
pub const LONG_LEASES: (&str, &str) = ("SCAFO_CELLD_ENV", "CELLD_TTL_MS=120000");

/// Where a node runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The address of its API and its ingress.
    pub address: String,
    /// The network namespace of all its processes; `None` for the test's own.
    pub namespace: Option<String>,
}

impl Default for Place {
    /// The loopback address that everybody uses.
    fn default() -> Self {
        Self { address: "127.0.0.1".to_owned(), namespace: None }
    }
}

impl Place {
    /// Another loopback address of this machine.
    pub fn loopback(address: &str) -> Self {
        Self { address: address.to_owned(), namespace: None }
    }

    fn scafo(&self) -> Command {
        let Some(namespace) = &self.namespace else { return scafo() };
        let plain = scafo();
        // It becomes the command, with the same process id.
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(plain.as_std().get_program());
        for (name, value) in plain.as_std().get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdin(Stdio::null());
        command
    }
}

/// A running node.
pub struct Node {
    /// What it said when it was ready.
    pub dev: Dev,
    child: Child,
    state: PathBuf,
    /// Whether its processes are somebody else's by now.
    abandoned: bool,
    /// Kept for as long as the node runs; `None` when somebody else keeps it.
    _dir: Option<TempDir>,
}

impl Node {
    /// Starts a node with a state directory of its own.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// The same with more environment.
    pub async fn start_with(environment: &[(&str, &str)]) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let state = dir.path().join("state");
        let mut node = Self::start_in(&state, environment).await;
        node._dir = Some(dir);
        node
    }

    /// Starts a node on a state directory that somebody else keeps, with more environment.
    pub async fn start_in(state: &Path, environment: &[(&str, &str)]) -> Self {
        Self::try_start_in(state, environment).await.unwrap_or_else(|error| panic!("the node did not start: {error}"))
    }

    /// The same; a node that does not start gives what it printed on standard error.
    ///
    /// # Errors
    /// The text of standard error.
    pub async fn try_start_in(state: &Path, environment: &[(&str, &str)]) -> Result<Self, String> {
        Self::try_start_at(&Place::default(), state, environment).await
    }

    /// The same somewhere else.
    ///
    /// # Errors
    /// The text of standard error.
    pub async fn try_start_at(place: &Place, state: &Path, environment: &[(&str, &str)]) -> Result<Self, String> {
        let log = state.with_extension("log");
        let stderr = std::fs::File::options().create(true).append(true).open(&log).expect("a log file");
        let before = stderr.metadata().map_or(0, |m| usize::try_from(m.len()).unwrap_or(0));
        let any_port = format!("{}:0", place.address);
        let mut child = place
            .scafo()
            .args(["dev", "--json", "--api-listen", &any_port, "--ingress-listen", &any_port, "--state-dir"])
            .arg(state)
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn()
            .expect("scafo starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let line = tokio::time::timeout(START_LIMIT, lines.next_line()).await;
        let said = || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            text.get(before..).unwrap_or_default().to_owned()
        };
        let line = match line {
            Ok(Ok(Some(line))) => line,
            Ok(_) => {
                let _ = child.wait().await;
                return Err(said());
            }
            Err(_) => return Err(format!("not ready within {START_LIMIT:?}\n{}", said())),
        };
        let dev = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line}"));
        Ok(Self { dev, child, state: state.to_owned(), abandoned: false, _dir: None })
    }

    /// The state directory.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// What the node printed on standard error so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.state.with_extension("log")).unwrap_or_default()
    }

    /// A client of its API with its operator's key.
    pub fn api(&self) -> Api {
        Api::of(&self.dev)
    }

    /// Runs `scafo ARGS --state-dir STATE` to its end.
    pub async fn scafo<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Output {
        run(scafo().args(args).arg("--state-dir").arg(&self.state)).await
    }

    /// Deploys a directory with the command line and waits for its end, and until it is served through the node's ingress: the
    /// command waits for that as well, but gives it up sooner than a busy machine may need.
    ///
    /// # Panics
    /// When the deploy fails.
    pub async fn deploy(&self, project: &Path) -> String {
        let output = self.scafo([OsStr::new("deploy"), project.as_os_str()]).await;
        let text = both(&output);
        assert!(output.status.success(), "deploy of {} failed: {text}\n{}", project.display(), self.log());
        let began = Instant::now();
        // What comes next says what is wrong when it never hears of it.
        while self.ingress_is_behind().await && began.elapsed() < INGRESS_LIMIT {
            wait::moment().await;
        }
        text
    }

    /// Whether the node's ingress knows another number of hosts than the node's document names. Asking for a host itself would be
    /// a request that a test did not mean to make.
    async fn ingress_is_behind(&self) -> bool {
        let named = async {
            let document: Value = self.api().ingress("/v1/ingress/routes").send().await.ok()?.json().await.ok()?;
            let api = document["api"]["hosts"].as_array().map_or(0, Vec::len);
            Some(document["routes"].as_array()?.len() + api)
        };
        let known = async {
            let url = format!("{}/.well-known/scafo-ingress/health", self.dev.ingress);
            let token = std::fs::read_to_string(&self.dev.ingress_token_file).ok()?;
            let request = crate::load::client().get(url).bearer_auth(token.trim());
            let health: Value = request.send().await.ok()?.json().await.ok()?;
            usize::try_from(health["hosts"].as_u64()?).ok()
        };
        let (named, known) = tokio::join!(named, known);
        named.is_none() || named != known
    }

    /// The host of an application.
    pub fn host(&self, application: &str) -> String {
        format!("{application}.{}", self.dev.domain)
    }

    /// Asks an application through the ingress: status and body.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn get(&self, application: &str, path: &str) -> reqwest::Result<(u16, String)> {
        let url = format!("{}{path}", self.dev.ingress);
        let answer = crate::load::client().get(url).header("host", self.host(application)).send().await?;
        let status = answer.status().as_u16();
        Ok((status, answer.text().await?))
    }

    /// The running process of a daemon, by executable.
    pub fn daemon(&self, name: &str) -> Option<process::Process> {
        process::child(self.dev.pids.supervisor, name)
    }

    /// Kills a daemon and waits until another one is there instead.
    ///
    /// # Panics
    /// When it does not come back.
    pub async fn kill_daemon(&self, name: &str) {
        let old = self.daemon(name).unwrap_or_else(|| panic!("{name} runs"));
        process::signal(old.pid, Signal::SIGKILL);
        // Each of ten kills doubles the pause, to 30 s.
        wait::until(&format!("another {name}"), Duration::from_secs(120), || async {
            self.daemon(name).filter(|new| new.pid != old.pid)
        })
        .await;
    }

    /// Ends the node as an operator would and waits for it.
    ///
    /// # Panics
    /// When it does not end, or leaves a process behind.
    pub async fn stop(mut self) -> Option<TempDir> {
        process::signal(self.dev.pids.supervisor, Signal::SIGTERM);
        let ended = tokio::time::timeout(STOP_LIMIT, self.child.wait()).await;
        let status = ended.unwrap_or_else(|_| panic!("the node did not end\n{}", self.log())).expect("a status");
        assert!(status.success(), "the node ended with {status}\n{}", self.log());
        let left = self.processes();
        assert!(left.is_empty(), "left behind: {left:?}");
        self._dir.take()
    }

    /// Kills the supervisor, with which its daemons end, and leaves the applications running: for whoever starts a node on this
    /// state directory next.
    ///
    /// # Panics
    /// When it does not end.
    pub async fn crash(mut self) {
        process::signal(self.dev.pids.supervisor, Signal::SIGKILL);
        let ended = tokio::time::timeout(STOP_LIMIT, self.child.wait()).await;
        ended.expect("a killed process ends").expect("a status");
        self.abandoned = true;
    }

    /// Every process that belongs to this node, workerd included.
    pub fn processes(&self) -> Vec<process::Process> {
        process::mentioning(self.state.to_str().expect("temporary paths are text"))
            .into_iter()
            .filter(|p| p.pid != std::process::id())
            .collect()
    }
}

impl Drop for Node {
    /// Whatever happened, nothing of the node outlives the test.
    fn drop(&mut self) {
        if self.abandoned {
            return;
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            process::signal(self.dev.pids.supervisor, Signal::SIGTERM);
            for _ in 0..100 {
                if !matches!(self.child.try_wait(), Ok(None)) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        for left in self.processes() {
            process::signal(left.pid, Signal::SIGKILL);
        }
    }
}

/// The `scafo` command as it was built beside this test.
pub fn scafo() -> Command {
    let mut command = Command::new(built("scafo"));
    // A developer's own settings must not reach the nodes of tests.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SCAFO_")) {
        command.env_remove(name);
    }
    command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    command
}

/// An executable of the workspace.
///
/// # Panics
/// When it was not built: `cargo build --workspace` does that.
pub fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("this test runs");
    let dir = own.ancestors().find(|dir| dir.join(name).is_file());
    dir.unwrap_or_else(|| panic!("{name} is not built: run `cargo build --workspace`")).join(name)
}

/// Runs a command to its end.
///
/// # Panics
/// When it does not end.
pub async fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).kill_on_drop(true);
    tokio::time::timeout(COMMAND_LIMIT, command.output()).await.expect("the command ends").expect("the command runs")
}

/// Standard output and standard error.
pub fn both(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

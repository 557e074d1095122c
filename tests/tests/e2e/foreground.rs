//! A node in the foreground of a terminal. Ctrl-C there reaches every process of the group at once.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use scafo_tests::node::{built, scafo};
use scafo_tests::project::example;
use scafo_tests::{process, wait};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

const LIMIT: Duration = Duration::from_secs(90);

/// A command that leads a process group of its own, as one that a shell starts.
struct Foreground {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Foreground {
    fn start(command: &mut Command, log: &Path) -> Self {
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Waits for a line with this in it.
    async fn says(&mut self, text: &str) -> String {
        let said = async {
            loop {
                let line = self.lines.next_line().await.unwrap();
                match line {
                    Some(line) if line.contains(text) => return line,
                    Some(_) => {}
                    None => panic!("it ended before it said {text:?}"),
                }
            }
        };
        tokio::time::timeout(LIMIT, said).await.unwrap_or_else(|_| panic!("it has not said {text:?}"))
    }

    fn interrupt(&self) {
        let group = Pid::from_raw(i32::try_from(self.child.id().expect("it runs")).unwrap());
        killpg(group, Signal::SIGINT).unwrap();
    }

    async fn code(mut self) -> i32 {
        let status = tokio::time::timeout(LIMIT, self.child.wait()).await.expect("it ends").unwrap();
        status.code().unwrap_or_else(|| panic!("ended by signal {:?}", status.signal()))
    }
}

/// What is left of a node: processes, sockets, and the file that says that it runs.
fn left(state: &Path) -> Vec<String> {
    let mut left: Vec<String> = process::mentioning(state.to_str().unwrap())
        .into_iter()
        .filter(|process| process.pid != std::process::id())
        .map(|process| format!("{process:?}"))
        .collect();
    let sockets = std::fs::read_dir(state.join("run")).into_iter().flatten().flatten();
    left.extend(sockets.map(|entry| entry.path().display().to_string()).filter(|path| path.ends_with(".sock")));
    left.extend(["processes", "jobs"].iter().flat_map(|dir| {
        let entries = std::fs::read_dir(state.join(dir)).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string()).collect::<Vec<_>>()
    }));
    left.extend(state.join("node.json").exists().then(|| "node.json".to_owned()));
    left
}

#[tokio::test]
async fn ctrl_c_ends_a_node_in_the_foreground_cleanly_and_leaves_nothing() {
    let dir = TempDir::new().unwrap();
    let state = dir.path().join("state");
    let mut command = scafo();
    command.args(["dev", "--json", "--api-listen", "127.0.0.1:0", "--ingress-listen", "127.0.0.1:0", "--state-dir"]);
    let mut node = Foreground::start(command.arg(&state), &dir.path().join("log"));
    node.says("\"api\"").await;
    let mut deploy = scafo();
    deploy.arg("deploy").arg(example("counter")).arg("--state-dir").arg(&state);
    let deployed = scafo_tests::node::run(&mut deploy).await;
    assert!(deployed.status.success(), "{}", scafo_tests::node::both(&deployed));
    let runs = |name: &str| process::mentioning(state.to_str().unwrap()).iter().any(|process| process.name == name);
    assert!(runs("celld-workerd") && runs("workerd"), "the application runs");
    node.interrupt();
    let code = node.code().await;
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
    assert_eq!(code, 0, "{log}");
    assert_eq!(left(&state), Vec::<String>::new(), "{log}");
    // Ctrl-C is no fault of anybody.
    let complaints: Vec<&str> =
        log.lines().filter(|line| line.contains("ERROR") || line.contains("panicked")).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
}

#[tokio::test]
async fn ctrl_c_in_the_demonstration_ends_its_node_too() {
    let dir = TempDir::new().unwrap();
    let state = dir.path().join("state");
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/demo.sh");
    // The script takes the debug build, and these tests may be another one.
    if !built("scafo").ends_with("debug/scafo") {
        eprintln!("SKIPPED: the demonstration runs the debug build");
        return;
    }
    let mut command = Command::new(scripts);
    command.envs([("DEMO_API", "127.0.0.1:0"), ("DEMO_INGRESS", "127.0.0.1:0")]);
    command.env("SCAFO_STATE_DIR", &state).env_remove("ONCE").env_remove("NOTIFY_SOCKET");
    let mut demo = Foreground::start(&mut command, &dir.path().join("log"));
    demo.says("stays up until Ctrl-C").await;
    demo.interrupt();
    let code = demo.code().await;
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
    // As a shell says it of an interrupted command, or as the node does where the shell heard of its end first.
    assert!([130, 0].contains(&code), "{code}\n{log}");
    wait::until("nothing to be left", LIMIT, || async { left(&state).is_empty().then_some(()) }).await;
}

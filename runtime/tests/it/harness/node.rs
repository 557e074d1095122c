//! A running node.

use std::{
    fs::File,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{Answer, eventually, get, post};

pub(crate) struct Node {
    process: Child,
    out: PathBuf,
    err: PathBuf,
}

/// Nodes of one test write to files of their own.
static STARTED: AtomicU32 = AtomicU32::new(0);

impl Node {
    pub(crate) fn start(mut command: Command, directory: &Path) -> Self {
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let file = |name: &str| directory.join(format!("{name}-{number}"));
        let (out, err) = (file("out"), file("err"));
        let process = command
            .stdin(Stdio::null())
            .stdout(File::create(&out).unwrap())
            .stderr(File::create(&err).unwrap())
            .spawn()
            .unwrap();
        Self { process, out, err }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.process.id()).unwrap())
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.out).unwrap()).into_owned()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.err).unwrap()).into_owned()
    }

    #[track_caller]
    pub(crate) fn wait_for_banner(&self) {
        eventually("the banner is printed", || {
            let said = self.stdout();
            assert!(!self.stderr().contains("Error: "), "{}", self.stderr());
            said.contains("development stand-in").then_some(())
        });
    }

    /// The address behind `before` in the banner.
    fn address(&self, before: &str) -> SocketAddr {
        let said = self.stdout();
        let line = said.lines().find_map(|line| line.strip_prefix(before)).expect("the banner is there");
        line.split(' ').next().unwrap().parse().unwrap()
    }

    pub(crate) fn public(&self) -> SocketAddr {
        self.address("celld listening on ")
    }

    pub(crate) fn internal(&self) -> SocketAddr {
        self.address("celld internal listening on ")
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Answer {
        get(self.public(), path)
    }

    pub(crate) fn health(&self) -> Answer {
        get(self.public(), "/.well-known/celld/health")
    }

    pub(crate) fn state(&self) -> serde_json::Value {
        get(self.internal(), "/state").json()
    }

    #[track_caller]
    pub(crate) fn reload(&self) -> Answer {
        post(self.internal(), "/reload")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn ended(&mut self) -> ExitStatus {
        eventually("the node ends", || self.process.try_wait().unwrap())
    }

    #[track_caller]
    pub(crate) fn stopped(&mut self) {
        self.signal(Signal::SIGTERM);
        assert_eq!(self.ended().code(), Some(0), "{}", self.stderr());
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }

    /// Its child processes that are called `name`.
    pub(crate) fn children(&self, name: &str) -> Vec<Pid> {
        let parent = self.process.id().to_string();
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let child = |pid: &i32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let Some((before, after)) = stat.rsplit_once(')') else { return false };
            let mut fields = after.split_whitespace();
            let alive = fields.next() != Some("Z");
            alive && before.ends_with(&format!("({name}")) && fields.next() == Some(&parent)
        };
        pids.filter(child).map(Pid::from_raw).collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _reaped = self.process.wait();
        if std::thread::panicking() {
            // The captured output of a failed test is where somebody looks first.
            println!("--- standard output of the node\n{}", self.stdout());
            println!("--- standard error of the node\n{}", self.stderr());
        }
    }
}

/// Whether a process is there and not a zombie.
pub(crate) fn is_alive(pid: Pid) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, after)| !after.trim_start().starts_with('Z')))
}

//! A supervisor process with its fakes, ended whatever happens.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use scafo_proto::supervisor::supervisor_client::SupervisorClient;
use scafo_proto::transport;
use scafo_supervisor::Ready;
use tempfile::TempDir;
use tonic::transport::Channel;

/// No wait in these tests takes a second where nothing else runs.
const LIMIT: Duration = Duration::from_secs(60);

/// Directories of one test: what the fakes write and the node's state.
pub(crate) struct Place {
    dir: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self { dir: TempDir::new().unwrap() };
        std::fs::create_dir(place.fakes()).unwrap();
        crate::fakes::install(&place.fakes());
        place
    }

    pub(crate) fn fakes(&self) -> PathBuf {
        self.dir.path().join("fakes")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// What fakes noted, line by line: daemons in the log, a celld in a file.
    pub(crate) fn noted(&self, file: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.fakes().join(file)).unwrap_or_default();
        let prefix = format!("noted {file} ");
        let log = self.log();
        let said = log.lines().filter_map(|line| line.strip_prefix(&prefix));
        let said = said.map(|line| String::from_utf8(hex::decode(line).unwrap()).unwrap());
        said.chain(text.lines().map(str::to_owned)).collect()
    }

    pub(crate) fn tell(&self, file: &str, content: &str) {
        std::fs::write(self.fakes().join(file), content).unwrap();
    }

    /// Has a fake end with this code at its start, until the link is removed.
    pub(crate) fn refuses(&self, what: &str, code: u8) {
        std::os::unix::fs::symlink(code.to_string(), self.fakes().join(format!("{what}.exit"))).unwrap();
    }

    /// Has a fake say nothing from its start on, until the link is removed.
    pub(crate) fn mutes(&self, what: &str) {
        std::os::unix::fs::symlink("mute", self.fakes().join(format!("{what}.mute"))).unwrap();
    }

    /// Has a fake accept no connection from its start on, as one does whose connections are all taken.
    pub(crate) fn fills(&self, what: &str) {
        std::os::unix::fs::symlink("full", self.fakes().join(format!("{what}.full"))).unwrap();
    }

    /// Has celld be a script that does not `exec` the program.
    pub(crate) fn stays(&self) {
        crate::fakes::stay(&self.fakes());
    }

    /// Has celld say its version only when there is a file `celld.goes-on`; once it was asked there is a file `celld.asked`.
    pub(crate) fn hesitates(&self) {
        crate::fakes::hesitate(&self.fakes());
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Starts the supervisor.
    pub(crate) fn start(&self) -> Node<'_> {
        self.start_with(|command| command)
    }

    /// The same, by another way to start it.
    pub(crate) fn start_with(&self, change: impl FnOnce(Command) -> Command) -> Node<'_> {
        let log = std::fs::File::options().create(true).append(true).open(self.dir.path().join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_scafo-supervisor"));
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("SCAFO_LIBEXEC", self.fakes())
            .env("SCAFO_CELLD_PATH", self.fakes().join("celld"))
            .env("SCAFO_STATE_DIR", self.state())
            .env("SCAFO_CELLD_ENV", "CELLD_TTL_MS=200")
            .args(["--set", "api.listen=127.0.0.1:0", "--set", "ingressd.listen=127.0.0.1:0"])
            .args(["--set", "ingress.token=sesame"]);
        let mut command = change(command);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        Node { child, place: self }
    }
}

impl Drop for Place {
    /// Nothing outlives a test: not even a celld that shall outlive its supervisor.
    fn drop(&mut self) {
        for pid in mentioning(&self.state()) {
            signal(pid, Signal::SIGKILL);
        }
    }
}

/// One supervisor.
pub(crate) struct Node<'a> {
    child: Child,
    place: &'a Place,
}

impl Node<'_> {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it says that it is ready.
    pub(crate) fn ready(&mut self) -> Ready {
        until("the node to be ready", || {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("it ended with {status}\n{}", self.place.log());
            }
            Ready::try_load(&self.place.state()).unwrap().filter(|ready| ready.pids.supervisor == self.child.id())
        })
    }

    pub(crate) fn signal(&self, which: Signal) {
        signal(self.child.id(), which);
    }

    /// Waits for its end.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        until("the node to end", || self.child.try_wait().unwrap())
    }

    pub(crate) fn client(&self) -> SupervisorClient<Channel> {
        SupervisorClient::new(transport::channel(&self.place.state().join("run/supervisor/sock")))
    }
}

impl Drop for Node<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn signal(pid: u32, which: Signal) {
    let _ = kill(Pid::from_raw(i32::try_from(pid).unwrap()), which);
}

/// Every process that was started for this state directory.
pub(crate) fn mentioning(state: &Path) -> Vec<u32> {
    let text = state.to_str().unwrap().as_bytes().to_vec();
    let pids =
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(text.len()).any(|window| window == text)
    })
    .collect()
}

pub(crate) fn alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Polls a condition up to a limit.
pub(crate) fn until<T>(what: &str, condition: impl FnMut() -> Option<T>) -> T {
    until_within(LIMIT, what, condition)
}

/// The same with a limit of its own, for what takes its time by a rule.
pub(crate) fn until_within<T>(limit: Duration, what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < limit, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

//! A machine with systemd as its first process: a Debian root in a container, entered from here.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::Signal;
use scafo_tests::{process, wait};
use tempfile::TempDir;

/// The root that scripts/systemd-root.sh made.
const ROOT: &str = "systemd-root-3";
/// How long the machine may take to boot. It takes about three seconds.
const BOOT: Duration = Duration::from_secs(120);
/// How long one command in it may take: a stop of the node is the longest.
const COMMAND: Duration = Duration::from_secs(240);

/// A machine that runs, until it is dropped.
pub(crate) struct Machine {
    nspawn: std::process::Child,
    init: u32,
    root: PathBuf,
    _dir: TempDir,
}

/// The prepared root, or why there is none here.
pub(crate) fn prepared() -> Result<PathBuf, String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("only root can start a machine".to_owned());
    }
    if !Path::new("/usr/bin/systemd-nspawn").exists() {
        return Err("systemd-nspawn is not installed (Debian: systemd-container)".to_owned());
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(|| home.join(".cache"), PathBuf::from);
    let tools = std::env::var_os("SCAFO_TOOLS").map_or_else(|| cache.join("scafo/tools"), PathBuf::from);
    let root = tools.join(ROOT);
    if root.is_dir() {
        Ok(root)
    } else {
        Err(format!("{} is not there: scripts/systemd-root.sh makes it", root.display()))
    }
}

impl Machine {
    /// Copies the root, lets `prepare` put things into it, and boots it. This thread, and with it everything that this test
    /// connects to from now on, is in the machine's network.
    pub(crate) async fn boot(prepared: &Path, prepare: impl FnOnce(&Path)) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let root = dir.path().join("root");
        let copied = Command::new("cp").args(["-a", "--reflink=auto"]).arg(prepared).arg(&root).status();
        assert!(copied.expect("cp runs").success(), "the root is copied");
        prepare(&root);
        let log = File::create(dir.path().join("console")).expect("a file");
        let nspawn = Command::new("/usr/bin/systemd-nspawn")
            .args([
                "--quiet",
                "--private-network",
                "--register=no",
                "--keep-unit",
                "--console=pipe",
                "--kill-signal=SIGRTMIN+3",
            ])
            // The container's own filter is older than these calls, which the node confines its children with.
            .arg("--system-call-filter=landlock_create_ruleset landlock_add_rule landlock_restrict_self")
            .arg("--directory")
            .arg(&root)
            .arg("--boot")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log)
            .spawn()
            .expect("systemd-nspawn starts");
        let mut machine = Self { init: 0, nspawn, root, _dir: dir };
        let nspawn = machine.nspawn.id();
        machine.init = wait::until("the machine's first process", BOOT, || async {
            process::child(nspawn, "systemd").map(|init| init.pid)
        })
        .await;
        wait::until("the machine to be up", BOOT, || async {
            let state = machine.run("systemctl is-system-running");
            ["running", "degraded"].contains(&text(&state.stdout).trim()).then_some(())
        })
        .await;
        machine.enter_network();
        machine
    }

    /// Its file system.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Runs a shell command in it, as root.
    pub(crate) fn run(&self, script: &str) -> Output {
        let pid = self.init.to_string();
        let limit = COMMAND.as_secs().to_string();
        Command::new("timeout")
            .args(["--kill-after=5", &limit, "nsenter", "--target", &pid, "--all", "/usr/bin/env", "-i", "HOME=/root"])
            .args([
                "LC_ALL=C.UTF-8",
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "/bin/sh",
                "-c",
                &format!("cd /; {script}"),
            ])
            .stdin(Stdio::null())
            .output()
            .expect("nsenter runs")
    }

    /// The same without standing in the way of what else this test does meanwhile.
    pub(crate) async fn run_beside(&self, script: &str) -> Output {
        let (init, script) = (self.init, script.to_owned());
        let pid = init.to_string();
        let mut command = tokio::process::Command::new("nsenter");
        command
            .args(["--target", &pid, "--all", "/usr/bin/env", "-i", "HOME=/root", "LC_ALL=C.UTF-8"])
            .args([
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "/bin/sh",
                "-c",
                &format!("cd /; {script}"),
            ])
            .stdin(Stdio::null())
            .kill_on_drop(true);
        tokio::time::timeout(COMMAND, command.output()).await.expect("the command ends").expect("nsenter runs")
    }

    /// Runs a command that has to succeed, and gives what it printed.
    pub(crate) async fn must(&self, script: &str) -> String {
        let output = self.run_beside(script).await;
        assert!(
            output.status.success(),
            "`{script}`: {}{}\n{}",
            text(&output.stdout),
            text(&output.stderr),
            self.journal()
        );
        text(&output.stdout)
    }

    /// One property of a unit.
    pub(crate) fn property(&self, unit: &str, name: &str) -> String {
        text(&self.run(&format!("systemctl show --value -p {name} {unit}")).stdout).trim().to_owned()
    }

    /// The end of the node's log.
    pub(crate) fn journal(&self) -> String {
        text(
            &self
                .run("journalctl --no-pager -o cat -u scafo.service -n 80; systemctl status --no-pager scafo.service")
                .stdout,
        )
    }

    fn enter_network(&self) {
        let network = File::open(format!("/proc/{}/ns/net", self.init)).expect("its network");
        // SAFETY: `setns` takes a descriptor, which is open, and a number; it concerns this thread alone.
        let entered = unsafe { libc::setns(network.as_raw_fd(), libc::CLONE_NEWNET) };
        Errno::result(entered).expect("root enters any network");
    }
}

impl Drop for Machine {
    /// Whatever happened, nothing of it is left.
    fn drop(&mut self) {
        let _ = self.run("systemctl poweroff --force --force");
        for _ in 0..200 {
            if matches!(self.nspawn.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        process::signal(self.init, Signal::SIGKILL);
        let _ = self.nspawn.kill();
        let _ = self.nspawn.wait();
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

//! A machine of its own for one test: User-mode Linux, a kernel that is a process like any other. It needs no rights, sees the files of
//! this machine without being able to change them, and has its own control groups, users and clock.
//!
//! Its processes have 39 bits of addresses, in which workerd does not start. A stub stands in for it there ([`workerd`]); everything else
//! of a node is what runs everywhere.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::stores::tools;
use crate::wait;

/// How long a test may take there. It takes a minute; all processes of the machine are traced, and share one processor.
const LIMIT: Duration = Duration::from_secs(540);
/// What ends the machine by itself, should nobody wait for it any more.
const LIFE: Duration = Duration::from_secs(600);
/// The memory of the machine, from which the limits of applications are derived.
const MEMORY: &str = "mem=2048M";
/// What the machine prints once it has started.
const UP: &str = "the machine is up";
/// Set for a test that runs there.
const INSIDE: &str = "SCAFO_TEST_UML";

/// Whether this test runs in such a machine.
pub fn is_here() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// A stub of workerd in Python: answers every request with the text that the project's Worker answers with.
const WORKERD: &str = r#"#!/usr/bin/python3 -SE
import http.server, os, re, socketserver, sys, threading
if "--version" in sys.argv:
    print("workerd 2026-11-17")
    sys.exit()
paths = [os.path.join(top, name) for top, _, names in os.walk(".") for name in names if name.endswith(".js")]
code = "".join(open(path).read() for path in paths)
said = re.search(r"new Response\([\"'](.*?)[\"']\)", code).group(1).encode()
class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(200)
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
    do_POST = do_GET
    def log_message(self, *words):
        pass
class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128
for name in ("http.sock", "side.sock"):
    threading.Thread(target=Server(name, Answers).serve_forever).start()
    os.write(0, b'{"event":"listen"}\n')
"#;

/// Puts the stub of workerd into a directory.
///
/// # Panics
/// When that takes no files.
pub fn workerd(dir: &Path) -> PathBuf {
    let path = dir.join("workerd");
    std::fs::write(&path, WORKERD).expect("a file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    path
}

/// Runs one test of the program that calls this in a machine of its own, as root there, and gives what the machine printed: the test's
/// output, then the controllers of control groups of version 2 and what the kernel killed for want of memory.
///
/// # Errors
/// Why there is no such machine here.
///
/// # Panics
/// When the test does not pass there, or says that it was skipped.
pub async fn run(test: &str) -> Result<String, String> {
    let kernel = tools::root().join("bin/linux.uml");
    if !kernel.is_file() {
        return Err(format!("{} is not there: run `make test-tools` on a machine with apt", kernel.display()));
    }
    let there = |paths: &[&str]| paths.iter().any(|path| Path::new(path).exists());
    if !there(&["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"]) || !there(&["/usr/bin/python3"]) {
        return Err("it takes `ip` and `python3` of the distribution (Debian: iproute2, python3)".to_owned());
    }
    let dir = TempDir::new().expect("a temporary directory");
    let (script, console) = (dir.path().join("init"), dir.path().join("console"));
    std::fs::write(&script, init(&std::env::current_exe().expect("this test runs"), test)).expect("a file");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    let out = std::fs::File::create(&console).expect("a file");
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", &LIFE.as_secs().to_string()]).arg(&kernel);
    command.args([
        MEMORY,
        "root=none",
        "rootfstype=hostfs",
        "rootflags=/",
        "ro",
        "quiet",
        "con=null",
        "con0=fd:0,fd:1",
    ]);
    command.arg(format!("init={}", script.display())).arg(format!("uml_dir={}/", dir.path().display()));
    command.stdin(Stdio::null()).stdout(out.try_clone().expect("a descriptor")).stderr(out).process_group(0);
    let mut machine = Machine(command.spawn().expect("timeout runs"));
    wait::until("the machine to power off", LIFE, || {
        let ended = machine.0.try_wait().expect("its state").map(drop);
        async move { ended }
    })
    .await;
    // A console ends its lines as terminals do.
    let said = String::from_utf8_lossy(&std::fs::read(&console).unwrap_or_default()).replace('\r', "");
    if !said.contains(UP) {
        return Err(format!(
            "User-mode Linux does not start here: {}",
            said.lines().last().unwrap_or("it says nothing")
        ));
    }
    assert!(said.contains("the test ended: 0\n") && said.contains("1 passed") && !said.contains("SKIPPED"), "{said}");
    Ok(said)
}

/// The first process of the machine: mounts what a system has, runs the test, says how it ended, powers off.
fn init(program: &Path, test: &str) -> String {
    format!(
        "#!/bin/sh\n\
         export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root {INSIDE}=1\n\
         cd {}\n\
         mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t tmpfs run /run && mount -t tmpfs tmp /tmp\n\
         mount -t cgroup2 cgroup2 /sys/fs/cgroup\n\
         ip link set lo up\n\
         echo \"{UP}\"\n\
         timeout {} {} --exact {test} --nocapture 2>&1\n\
         echo \"the test ended: $?\"\n\
         echo \"controllers: $(cat /sys/fs/cgroup/cgroup.controllers)\"\n\
         echo \"killed for memory: $(dmesg | grep -c 'Memory cgroup out of memory')\"\n\
         echo o >/proc/sysrq-trigger\n\
         sleep 60\n",
        std::env::current_dir().expect("a directory").display(),
        LIMIT.as_secs(),
        program.display(),
    )
}

/// A machine that runs, with all of its processes, until it is dropped.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        if let Ok(group) = i32::try_from(self.0.id()) {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        let _ = self.0.wait();
    }
}

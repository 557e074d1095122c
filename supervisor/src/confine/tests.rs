//! What a process can do under a daemon's table, tried from inside: this test's own executable is started by the spawner as that
//! daemon would be, and tries one thing after another ([`probe`]).
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::errno::Errno;
use nix::libc;

use super::*;
use crate::daemon::Name;
use crate::sockets;
use crate::spawn::{Bond, Input, Limits, Output, ProcessHandle, Rights, Spawner, Spec, User};
use crate::state::{Dirs, Users, give};

/// The variable by which the child knows that it is the probe: one attempt on each line.
const ATTEMPTS: &str = "SCAFO_TEST_ATTEMPTS";
const OK: i32 = 0;

/// Not a test of its own: what runs under the table.
#[test]
fn probe() {
    let Ok(attempts) = std::env::var(ATTEMPTS) else { return };
    let mut report = String::new();
    for attempt in attempts.lines() {
        let (what, on) = attempt.split_once(' ').unwrap();
        let outcome = match attempt_at(what, on) {
            Ok(()) => OK,
            Err(error) => error.raw_os_error().unwrap_or(-1),
        };
        report.push_str(&format!("{outcome} {attempt}\n"));
    }
    // Past the harness, which captures what tests print.
    std::io::stdout().write_all(format!("\n{report}").as_bytes()).unwrap();
}

fn attempt_at(what: &str, on: &str) -> io::Result<()> {
    let call = |number: libc::c_long, first: usize| {
        // SAFETY: each call here is given integers or null pointers, which the kernel checks.
        Errno::result(unsafe { libc::syscall(number, first, 0_usize, 0_usize, 0_usize, 0_usize) })
            .map(drop)
            .map_err(io::Error::from)
    };
    match what {
        "read" => File::open(on)?.read(&mut [0; 16]).map(drop),
        "list" => std::fs::read_dir(on).map(drop),
        "write" => std::fs::write(on, "x"),
        "run" => Command::new(on).env_clear().status().map(drop),
        // Returns only when it fails.
        "become" => Err(Command::new(on).exec()),
        "unix" => std::os::unix::net::UnixStream::connect(on).map(drop),
        "tcp" => TcpStream::connect(on).map(drop),
        "listen" => TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map(drop),
        "signal" => nix::sys::signal::kill(nix::unistd::Pid::from_raw(on.parse().unwrap()), nix::sys::signal::SIGWINCH)
            .map_err(io::Error::from),
        "trace" => {
            // SAFETY: PTRACE_SEIZE takes a process id and null pointers.
            let done =
                unsafe { libc::ptrace(libc::PTRACE_SEIZE, on.parse::<libc::pid_t>().unwrap(), 0_usize, 0_usize) };
            Errno::result(done).map(drop).map_err(io::Error::from)
        }
        "family" => call(libc::SYS_socket, on.parse().unwrap()),
        "namespace" => call(libc::SYS_unshare, libc::CLONE_NEWUSER.unsigned_abs() as usize),
        "rings" => call(libc::SYS_io_uring_setup, 1),
        "leave-group" => call(libc::SYS_setsid, 0),
        other => panic!("{other}"),
    }
}

/// A node's directories with its secrets in them, and a neighbour to look into.
struct Place {
    dir: tempfile::TempDir,
    dirs: Dirs,
    users: Option<Users>,
    program: PathBuf,
    spawner: Spawner,
    neighbour: ProcessHandle,
    _sockets: Vec<UnixListener>,
}

impl Place {
    async fn new(with_users: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        let dirs = Dirs::create(&dir.path().join("state"), &dir.path().join("run")).unwrap();
        dirs.sweep_jobs().unwrap();
        let users = with_users.then(|| Users::of(&dirs.state, &(1_900_000_000..=1_900_000_999)).unwrap());
        dirs.hand_out(users.as_ref()).unwrap();
        for secret in ["node.key", "bucket.json", "registryd/fence"] {
            let path = dirs.state.join(secret);
            std::fs::write(&path, "secret").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        let bound = [sockets::REGISTRY, sockets::ROUTER, sockets::SUPERVISOR, sockets::ADMIN].map(|name| {
            let listener = UnixListener::bind(dirs.socket(name)).unwrap();
            std::fs::set_permissions(dirs.socket(name), std::fs::Permissions::from_mode(0o666)).unwrap();
            listener
        });
        let own = std::env::current_exe().unwrap();
        let program = dir.path().join("probe");
        if std::fs::hard_link(&own, &program).is_err() {
            // By another process: what forks here meanwhile would hold it open, and then the kernel does not start it.
            assert!(Command::new("cp").args([&own, &program]).status().unwrap().success());
        }
        let spawner = Spawner::start().unwrap();
        let mut spec = spec("/bin/sleep".into(), &["600"]);
        spec.environment.insert("SECRET".into(), "of the neighbour".into());
        spec.rights.user = users.as_ref().map(|users| users.daemon(Name::Registryd));
        let neighbour = spawner.start_process(spec).await.unwrap();
        Self { dir, dirs, users, program, spawner, neighbour, _sockets: bound.into() }
    }

    /// Tries all of it as `user` under `allowed`: the numbers of the errors.
    async fn attempt(&self, user: Option<User>, allowed: &Allowed, attempts: &[String]) -> BTreeMap<String, i32> {
        let mut spec =
            spec(self.program.clone(), &["--exact", "confine::tests::probe", "--nocapture", "--test-threads=1"]);
        spec.environment.insert(ATTEMPTS.into(), attempts.join("\n"));
        spec.rights = Rights { user, confined: Some(Confinement::prepare(allowed).unwrap()), gate: None };
        let limit = std::time::Duration::from_secs(60);
        let finished = crate::job::run(&self.spawner, spec, limit, std::future::pending(), None).await.unwrap();
        let said = String::from_utf8_lossy(&finished.stdout).into_owned();
        let lines = said.lines().filter_map(|line| line.split_once(' '));
        let found: BTreeMap<String, i32> =
            lines.filter_map(|(number, attempt)| Some((attempt.to_owned(), number.parse().ok()?))).collect();
        assert!(
            attempts.iter().all(|attempt| found.contains_key(attempt)),
            "{said}\n{}",
            String::from_utf8_lossy(&finished.stderr)
        );
        found
    }

    async fn check(&self, user: Option<User>, allowed: &Allowed, rows: &[(String, &[i32])]) {
        let attempts: Vec<String> = rows.iter().map(|(attempt, _)| attempt.clone()).collect();
        let found = self.attempt(user, allowed, &attempts).await;
        for (attempt, expected) in rows {
            assert!(expected.contains(&found[attempt]), "{attempt}: {}, expected one of {expected:?}", found[attempt]);
        }
    }

    fn state(&self, file: &str) -> String {
        self.dirs.state.join(file).display().to_string()
    }

    fn socket(&self, name: &str) -> String {
        self.dirs.socket(name).display().to_string()
    }

    fn daemon(&self, name: Name) -> (Option<User>, Allowed) {
        (self.users.as_ref().map(|users| users.daemon(name)), daemon(name, &self.program, &self.dirs))
    }

    async fn end(mut self) {
        self.neighbour.kill_group();
        self.neighbour.ended().await;
    }
}

fn spec(program: PathBuf, arguments: &[&str]) -> Spec {
    Spec {
        program,
        arguments: arguments.iter().map(Into::into).collect(),
        environment: BTreeMap::new(),
        directory: Some("/".into()),
        input: Input::Nothing,
        output: Output::Piped,
        sockets: Vec::new(),
        bond: Bond::Bound,
        limits: Limits::default(),
        rights: Rights::default(),
    }
}

/// Says what a test did not look at here.
fn confined_here() -> bool {
    let gaps = gaps();
    if !gaps.is_empty() {
        eprintln!("SKIPPED: this kernel does not confine: {gaps:?}");
    }
    gaps.is_empty()
}

const DENIED: &[i32] = &[libc::EACCES, libc::EPERM];
const ALLOWED: &[i32] = &[OK];

async fn apiserver_is_kept_from_everything_that_is_not_its_own(place: &Place) {
    let neighbour = place.neighbour.pid();
    let (user, allowed) = place.daemon(Name::Apiserver);
    let on = |what: &str, on: String| format!("{what} {on}");
    let mut rows: Vec<(String, &[i32])> = vec![
        (on("read", place.state("node.key")), DENIED),
        (on("read", place.state("bucket.json")), DENIED),
        (on("read", place.state("registryd/fence")), DENIED),
        (on("list", place.state("")), DENIED),
        (on("read", "/etc/shadow".into()), DENIED),
        (on("write", place.state("registryd/other")), DENIED),
        (on("write", "/tmp/scafo-probe".into()), DENIED),
        (on("read", format!("/proc/{neighbour}/environ")), DENIED),
        (on("read", format!("/proc/{neighbour}/mem")), DENIED),
        (on("read", format!("/proc/{}/environ", std::process::id())), DENIED),
        (on("trace", neighbour.to_string()), DENIED),
        (on("signal", neighbour.to_string()), DENIED),
        (on("run", "/bin/sh".into()), DENIED),
        (on("become", "/bin/sh".into()), DENIED),
        (on("namespace", String::new()), DENIED),
        (on("rings", String::new()), DENIED),
        (on("family", libc::AF_PACKET.to_string()), DENIED),
        (on("listen", String::new()), DENIED),
        (on("write", place.state("apiserver/own")), ALLOWED),
        (on("read", place.state("apiserver/own")), ALLOWED),
        (on("unix", place.socket(sockets::REGISTRY)), ALLOWED),
        (on("unix", place.socket(sockets::ROUTER)), ALLOWED),
    ];
    if place.users.is_some() {
        rows.push((on("unix", place.socket(sockets::SUPERVISOR)), DENIED));
        rows.push((on("unix", place.socket(sockets::ADMIN)), DENIED));
    }
    place.check(user, &allowed, &rows).await;
}

#[tokio::test]
async fn a_compromised_apiserver_of_the_same_user_reads_no_secret_and_starts_nothing() {
    if confined_here() {
        let place = Place::new(false).await;
        apiserver_is_kept_from_everything_that_is_not_its_own(&place).await;
        place.end().await;
    }
}

#[tokio::test]
async fn a_compromised_apiserver_with_a_user_of_its_own_reaches_no_socket_that_it_may_not_call() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root gives daemons users of their own");
    } else if confined_here() {
        let place = Place::new(true).await;
        apiserver_is_kept_from_everything_that_is_not_its_own(&place).await;
        place.end().await;
    }
}

#[tokio::test]
async fn the_users_alone_keep_daemons_apart_where_the_kernel_confines_nothing() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root gives daemons users of their own");
        return;
    }
    let place = Place::new(true).await;
    let attempts = [
        format!("read {}", place.state("node.key")),
        format!("read {}", place.state("registryd/fence")),
        format!("unix {}", place.socket(sockets::SUPERVISOR)),
        format!("read /proc/{}/environ", place.neighbour.pid()),
        format!("signal {}", place.neighbour.pid()),
    ];
    let mut spec = spec(place.program.clone(), &["--exact", "confine::tests::probe", "--nocapture"]);
    spec.environment.insert(ATTEMPTS.into(), attempts.join("\n"));
    spec.rights.user = place.users.as_ref().map(|users| users.daemon(Name::Apiserver));
    let limit = std::time::Duration::from_secs(60);
    let finished = crate::job::run(&place.spawner, spec, limit, std::future::pending(), None).await.unwrap();
    let said = String::from_utf8_lossy(&finished.stdout).into_owned();
    for attempt in &attempts {
        assert!(DENIED.iter().any(|number| said.contains(&format!("{number} {attempt}"))), "{attempt}: {said}");
    }
    place.end().await;
}

#[tokio::test]
async fn routerd_has_no_network_and_ingressd_no_local_sockets() {
    if !confined_here() {
        return;
    }
    let place = Place::new(false).await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let tcp = format!("tcp {}", listener.local_addr().unwrap());
    let unix = format!("unix {}", place.socket(sockets::REGISTRY));
    for (name, by_tcp, by_unix) in [
        (Name::Routerd, DENIED, ALLOWED),
        (Name::Ingressd, ALLOWED, DENIED),
        (Name::Bucketd, DENIED, DENIED),
        (Name::Registryd, ALLOWED, ALLOWED),
    ] {
        let (user, allowed) = place.daemon(name);
        let key = format!("read {}", place.state("node.key"));
        place.check(user, &allowed, &[(tcp.clone(), by_tcp), (unix.clone(), by_unix), (key, DENIED)]).await;
    }
    place.end().await;
}

async fn a_job_is_kept_to_its_project(place: &Place) {
    let project = place.dirs.state.join("apiserver/stage/1/tree");
    std::fs::create_dir_all(&project).unwrap();
    std::fs::write(project.join("index.js"), "x").unwrap();
    let temp = place.dirs.jobs().join("1");
    std::fs::create_dir(&temp).unwrap();
    let mut user = None;
    if let Some(users) = &place.users {
        let apiserver = users.daemon(Name::Apiserver);
        give(&place.dirs.state.join("apiserver/stage"), apiserver.uid, apiserver.gid, 0o750).unwrap();
        let (job, _) = users.job().unwrap();
        give(&temp, job.uid, job.gid, 0o700).unwrap();
        user = Some(job);
    }
    let (bucket, other) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let at = |listener: &TcpListener| listener.local_addr().unwrap();
    let allowed = job(&project, &temp, std::slice::from_ref(&place.program), at(&bucket).port());
    let neighbour = place.neighbour.pid();
    // A link of the project leads out of it.
    std::os::unix::fs::symlink(place.dirs.state.join("node.key"), project.join("link")).unwrap();
    let rows: Vec<(String, &[i32])> = vec![
        (format!("read {}", project.join("index.js").display()), ALLOWED),
        (format!("write {}", temp.join("out").display()), ALLOWED),
        ("run /bin/true".to_owned(), ALLOWED),
        (format!("tcp {}", at(&bucket)), ALLOWED),
        (format!("tcp {}", at(&other)), DENIED),
        (format!("write {}", project.join("new").display()), DENIED),
        (format!("read {}", project.join("link").display()), DENIED),
        (format!("read {}", place.state("node.key")), DENIED),
        (format!("read {}", place.state("apiserver/../bucket.json")), DENIED),
        (format!("read {}", place.dir.path().join("state/registryd/fence").display()), DENIED),
        (format!("read /proc/{neighbour}/environ"), DENIED),
        (format!("read /proc/{}/environ", std::process::id()), DENIED),
        (format!("signal {neighbour}"), DENIED),
        (format!("trace {neighbour}"), DENIED),
        ("namespace ".to_owned(), DENIED),
        // It is told that it has left, and has not.
        ("leave-group ".to_owned(), ALLOWED),
    ];
    place.check(user, &allowed, &rows).await;
}

#[tokio::test]
async fn a_deploy_job_of_the_same_user_reads_its_project_and_no_secret_of_the_node() {
    if confined_here() {
        let place = Place::new(false).await;
        a_job_is_kept_to_its_project(&place).await;
        place.end().await;
    }
}

#[tokio::test]
async fn a_deploy_job_with_a_user_of_its_own_reads_what_the_apiserver_staged() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root gives jobs users of their own");
    } else if confined_here() {
        let place = Place::new(true).await;
        a_job_is_kept_to_its_project(&place).await;
        place.end().await;
    }
}

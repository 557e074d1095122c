use std::io::Read as _;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use rustix::process::Signal;

use super::*;

fn shell(script: &str) -> Spec {
    Spec {
        program: PathBuf::from("/bin/sh"),
        arguments: vec!["-c".into(), script.into()],
        environment: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        directory: None,
        input: Input::Nothing,
        output: Output::Piped,
        sockets: Vec::new(),
        bond: Bond::Bound,
        limits: Limits::default(),
        rights: Rights::default(),
    }
}

async fn finished(process: &mut ProcessHandle) -> Exit {
    tokio::time::timeout(Duration::from_secs(60), process.ended()).await.expect("it ends")
}

async fn said(spec: Spec) -> String {
    let spawner = Spawner::start().unwrap();
    let mut spawned = spawner.spawn(spec).await.unwrap();
    let mut stdout = File::from(spawned.stdout.take().unwrap());
    let text = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    let text = text.await.unwrap().unwrap();
    finished(&mut ProcessHandle::of_child(spawned.pid, spawned.pidfd).unwrap()).await;
    text
}

#[tokio::test]
async fn exit_codes_and_signals_are_told_apart() {
    let spawner = Spawner::start().unwrap();
    let mut three = spawner.start_process(shell("exit 3")).await.unwrap();
    assert_eq!(finished(&mut three).await, Exit::Code(3));
    assert_eq!(finished(&mut three).await, Exit::Code(3), "asking again is fine");
    let mut killed = spawner.start_process(shell("exec sleep 600")).await.unwrap();
    killed.signal(Signal::KILL);
    assert_eq!(finished(&mut killed).await, Exit::Signal(9));
    killed.signal(Signal::KILL);
}

#[tokio::test]
async fn a_program_that_is_not_there_is_an_error_even_with_sockets() {
    let spawner = Spawner::start().unwrap();
    let mut spec = shell("");
    spec.program = PathBuf::from("/nonexistent/program");
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c", "d"] {
        spec.sockets.push((name.to_owned(), UnixListener::bind(dir.path().join(name)).unwrap().into()));
    }
    assert_eq!(spawner.spawn(spec).await.unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[tokio::test]
async fn a_child_gets_its_document_and_nothing_of_our_environment() {
    let mut spec = shell("cat; echo \"[$HOME][$CARGO]\"");
    spec.input = Input::Document(b"{\"secret\":1}".repeat(20_000));
    let text = said(spec).await;
    assert!(text.starts_with("{\"secret\":1}") && text.ends_with("[][]\n"));
    assert_eq!(text.len(), 12 * 20_000 + 5);
}

#[tokio::test]
async fn sockets_arrive_from_three_on_under_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let mut spec = shell("echo $LISTEN_FDS $LISTEN_FDNAMES; ls -l /proc/self/fd | grep -c socket:");
    for name in ["grpc", "admin"] {
        let listener = UnixListener::bind(dir.path().join(name)).unwrap();
        spec.sockets.push((name.to_owned(), listener.into()));
    }
    assert_eq!(said(spec).await, "2 grpc:admin\n2\n");
}

#[tokio::test]
async fn limits_hold_from_the_first_instruction_and_for_what_the_child_starts() {
    let own: i32 = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim().parse().unwrap();
    // The value is set when the program runs already, so it is looked at until it is there; the limit of files is there at once.
    let script = "ulimit -Hn; ulimit -Sn; while [ $(cat /proc/self/oom_score_adj) = $0 ]; do :; done; cat /proc/self/oom_score_adj";
    let mut spec = shell(script);
    spec.arguments.push(own.to_string().into());
    spec.limits = Limits { easier_to_kill: 7, files: Some(100), tasks: None };
    assert_eq!(said(spec).await, format!("100\n100\n{}\n", own + 7));
}

#[tokio::test]
async fn a_bound_child_dies_with_the_thread_that_forked_it_and_a_free_one_does_not() {
    let spawner = Spawner::start().unwrap();
    let mut bound = spawner.start_process(shell("exec sleep 600")).await.unwrap();
    let mut spec = shell("exec sleep 600");
    spec.bond = Bond::Free;
    let mut free = spawner.start_process(spec).await.unwrap();
    drop(spawner);
    assert_eq!(finished(&mut bound).await, Exit::Signal(9));
    assert!(proc::start_time(free.pid()).is_some());
    free.signal(Signal::KILL);
    finished(&mut free).await;
}

#[tokio::test]
async fn a_process_that_is_not_our_child_is_seen_ending_without_its_code() {
    // The shell starts a sleeper, says its number and ends: the sleeper belongs to init then.
    let pid: i32 = said(shell("sleep 600 >/dev/null 2>&1 & echo $!")).await.trim().parse().unwrap();
    let pid = Pid::from_raw(pid).unwrap();
    let mut stranger = ProcessHandle::of_stranger(pid, pidfd_open(pid, PidfdFlags::empty()).unwrap()).unwrap();
    stranger.signal(Signal::KILL);
    assert_eq!(finished(&mut stranger).await, Exit::Unknown);
}

#[tokio::test]
async fn a_group_is_killed_as_a_whole() {
    let spawner = Spawner::start().unwrap();
    let mut spawned = spawner.spawn(shell("sleep 600 & echo $!; wait")).await.unwrap();
    let mut stdout = File::from(spawned.stdout.take().unwrap());
    let mut line = [0; 16];
    let length = stdout.read(&mut line).unwrap();
    let inner: u32 = std::str::from_utf8(&line[..length]).unwrap().trim().parse().unwrap();
    let mut leader = ProcessHandle::of_child(spawned.pid, spawned.pidfd).unwrap();
    leader.kill_group();
    assert_eq!(finished(&mut leader).await, Exit::Signal(9));
    for _ in 0..1000 {
        if proc::start_time(inner).is_none() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("a member of the group lives on");
}

#[tokio::test]
async fn a_child_at_a_gate_runs_nothing_before_it_is_let_through() {
    let spawner = Spawner::start().unwrap();
    let gated = |patience| {
        let (gate, door) = Gate::new(patience).unwrap();
        let mut spec = shell("exit 7");
        spec.output = Output::OurLog;
        spec.rights.gate = Some(gate);
        (spec, door)
    };
    let (spec, mut door) = gated(Duration::from_secs(60));
    let passing = async {
        let pid = door.arrival().await.unwrap();
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
        door.open().await;
        program
    };
    let (process, program) = tokio::join!(spawner.start_process(spec), passing);
    assert_eq!(program, std::env::current_exe().unwrap(), "still a copy of this process");
    assert_eq!(finished(&mut process.unwrap()).await, Exit::Code(7));
    // Nobody lets it through: it does not become the program.
    let (spec, mut door) = gated(Duration::from_millis(200));
    let refusing = async move {
        door.arrival().await.unwrap();
    };
    let (process, ()) = tokio::join!(spawner.start_process(spec), refusing);
    assert!(process.is_err());
}

#[tokio::test]
async fn what_a_job_of_a_killed_node_left_is_found_by_where_it_works() {
    let dir = tempfile::tempdir().unwrap();
    let (jobs, other) = (dir.path().join("jobs"), dir.path().join("other"));
    let spawner = Spawner::start().unwrap();
    let mut started = Vec::new();
    for place in [&jobs, &other] {
        std::fs::create_dir(place).unwrap();
        let mut spec = shell("exec sleep 600");
        spec.directory = Some(place.clone());
        spec.bond = Bond::Free;
        started.push(spawner.start_process(spec).await.unwrap());
    }
    proc::kill_left_in(&[jobs]);
    assert_eq!(finished(&mut started[0]).await, Exit::Signal(9));
    assert!(proc::start_time(started[1].pid()).is_some(), "another place is nobody's business");
    started[1].signal(Signal::KILL);
    finished(&mut started[1]).await;
}

/// Says `up`, and then what is written to the pipe.
const ECHO: &str = "echo up; read line <> pipe; echo $line";

/// Starts [`ECHO`] as another user, in a directory and with a variable; behind `before`, which may put it into a container.
async fn echo_of(spawner: &Spawner, before: &str, uid: u32, dir: &std::path::Path) -> Spawned {
    let dir = dir.display();
    let user = format!("setpriv --reuid={uid} --regid={uid} --clear-groups");
    let mut spec = shell(&format!("exec {before} env -C '{dir}' IN_TEST='{dir}' setsid {user} sh -c '{ECHO}'"));
    spec.environment.insert("PATH".to_owned(), "/usr/sbin:/usr/bin:/sbin:/bin".to_owned());
    let mut spawned = spawner.spawn(spec).await.unwrap();
    let mut stdout = File::from(spawned.stdout.take().unwrap());
    let mut up = [0; 3];
    stdout.read_exact(&mut up).unwrap();
    spawned.stdout = Some(stdout.into());
    spawned
}

/// What it says to the end, when it is told this.
fn told(spawned: &mut Spawned, dir: &std::path::Path, line: &str) -> String {
    let mut pipe = File::options().read(true).write(true).open(dir.join("pipe")).unwrap();
    writeln!(pipe, "{line}").unwrap();
    let mut said = String::new();
    File::from(spawned.stdout.take().unwrap()).read_to_string(&mut said).unwrap();
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_of_a_container_is_nobody_of_ours_whatever_user_directory_and_variables_it_has() {
    const CONTAINER: &str = "unshare --pid --fork";
    const UID: u32 = 1_812_345_678;
    let can = |program: &mut Command| program.status().is_ok_and(|status| status.success());
    if !can(Command::new("unshare").args(["--pid", "--fork", "setpriv", "--reuid=1812345678", "true"])) {
        eprintln!("SKIPPED: only root makes processes somebody else's and puts them into a container");
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let open = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    open(base.path(), 0o711);
    let [ours, theirs] = ["ours", "theirs"].map(|name| {
        let dir = base.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        open(&dir, 0o711);
        assert!(can(Command::new("mkfifo").arg(dir.join("pipe"))));
        open(&dir.join("pipe"), 0o666);
        dir
    });
    let spawner = Spawner::start().unwrap();
    let mut here = echo_of(&spawner, "", UID, &ours).await;
    let mut there = echo_of(&spawner, CONTAINER, UID, &theirs).await;

    let found = proc::session_leaders_given("IN_TEST", |_| Some(UID));
    assert_eq!(found.keys().collect::<Vec<_>>(), [&ours]);
    assert!(proc::session_leaders_given("IN_TEST", |_| Some(UID + 1)).is_empty(), "of another user");

    proc::kill_left_in(std::slice::from_ref(&theirs));
    proc::kill_all_of(UID..=UID);
    assert_eq!(told(&mut here, &ours, "still here"), "", "what is ours was killed");
    assert_eq!(told(&mut there, &theirs, "still here"), "still here\n");
    for spawned in [here, there] {
        finished(&mut ProcessHandle::of_child(spawned.pid, spawned.pidfd).unwrap()).await;
    }
}

#[tokio::test]
async fn a_child_that_cannot_be_held_or_watched_is_ended() {
    let spawner = Spawner::start().unwrap();
    let spawned = spawner.spawn(shell("exec sleep 600")).await.unwrap();
    let pid = spawned.pid.as_raw_nonzero().get().unsigned_abs();
    // The runtime cannot wait for a plain file, as it cannot for anything when it has no more room.
    let unwatchable = tempfile::tempfile().unwrap();
    assert!(ProcessHandle::of_child(spawned.pid, unwatchable.into()).is_err());
    assert_eq!(proc::start_time(pid), None, "nobody owns it");

    let mut child = Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
    let none_left = |_| Err(io::Error::from_raw_os_error(nix::libc::EMFILE));
    assert!(held(&mut child, none_left).is_err());
    assert_eq!(proc::start_time(child.id()), None, "nobody owns it");

    // What an earlier supervisor started is left alone.
    let mut child = Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
    let unwatchable = tempfile::tempfile().unwrap();
    assert!(ProcessHandle::of_stranger(Pid::from_child(&child), unwatchable.into()).is_err());
    assert!(proc::start_time(child.id()).is_some());
    child.kill().unwrap();
    child.wait().unwrap();
}

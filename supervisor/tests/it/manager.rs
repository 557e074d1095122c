//! A service manager that starts the node: keeps its sockets, tells it why it shall end, starts it again.
//!
//! What stands in for systemd is a notification socket, and an object tree where the system bus would be.

use std::collections::HashMap;
use std::io::{IoSliceMut, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use command_fds::{CommandFdExt as _, FdMapping};
use nix::sys::signal::Signal;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use scafo_core::view::ProcessStatus;
use tokio::task::JoinSet;
use zbus::zvariant::OwnedObjectPath;

use crate::applications::{apply, ready_with, watched};
use crate::node::{Node, Place, alive, until};

/// Where the two sockets of the stand-in are, and what it was given to keep.
struct Manager {
    dir: tempfile::TempDir,
    heard: Arc<Mutex<Heard>>,
}

#[derive(Default)]
struct Heard {
    kept: HashMap<String, OwnedFd>,
    said: Vec<String>,
}

impl Manager {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let inbox = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        // Somebody always reads: few messages fit in the socket, and then its writer waits.
        inbox.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let heard = Arc::new(Mutex::new(Heard::default()));
        let weak = Arc::downgrade(&heard);
        std::thread::spawn(move || {
            while let Some(heard) = weak.upgrade() {
                listen(&inbox, &heard);
            }
        });
        Self { dir, heard }
    }

    /// Waits until it was told so.
    fn is_told(&self, line: &str) {
        until(line, || self.heard.lock().unwrap().said.iter().any(|said| said == line).then_some(()));
    }

    fn bus(&self) -> PathBuf {
        self.dir.path().join("bus")
    }

    /// Starts the node as systemd does: with what it kept, each socket under its name.
    fn start<'a>(&self, place: &'a Place) -> Node<'a> {
        let bus = format!("unix:path={}", self.bus().display());
        place.start_with(|supervisor| {
            // The process id stands in the environment, so a shell finds it out.
            let mut command = Command::new("/bin/sh");
            command.args(["-c", "export LISTEN_PID=$$; exec \"$0\" \"$@\""]).arg(supervisor.get_program());
            command.args(supervisor.get_args()).env_clear();
            command.envs(supervisor.get_envs().filter_map(|(key, value)| Some((key, value?))));
            command.env("NOTIFY_SOCKET", self.dir.path().join("notify")).env("DBUS_SYSTEM_BUS_ADDRESS", bus);
            let heard = self.heard.lock().unwrap();
            let names: Vec<&str> = heard.kept.keys().map(String::as_str).collect();
            command.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
            let copies = (3..).zip(heard.kept.values().map(|fd| fd.as_fd().try_clone_to_owned().unwrap()));
            let mappings = copies.map(|(child_fd, parent_fd)| FdMapping { parent_fd, child_fd }).collect();
            command.fd_mappings(mappings).unwrap();
            command.process_group(0);
            command
        })
    }
}

/// Reads one message, if one comes soon.
fn listen(inbox: &UnixDatagram, heard: &Mutex<Heard>) {
    let mut text = [0; 4096];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut text)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let Ok(message) = rustix::net::recvmsg(inbox, &mut parts, &mut ancillary, flags) else { return };
    let text = String::from_utf8_lossy(&text[..message.bytes]).into_owned();
    let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).map(str::to_owned);
    let mut heard = heard.lock().unwrap();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            heard.kept.extend(name.clone().into_iter().zip(fds));
        }
    }
    if let Some(name) = name.filter(|_| text.contains("FDSTOREREMOVE=1")) {
        heard.kept.remove(&name);
    }
    heard.said.extend(text.lines().map(str::to_owned));
}

/// One request on a connection of its own, and what came back.
fn ask(address: SocketAddr) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(address)?;
    connection.set_read_timeout(Some(Duration::from_secs(60)))?;
    connection.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).map(|_| answer)
}

#[test]
fn a_killed_supervisor_refuses_no_connection_under_a_service_manager() {
    let place = Place::new();
    let manager = Manager::new();
    let mut first = manager.start(&place);
    let ready = first.ready();
    let address = ready.api_listen[0];
    assert!(ask(address).unwrap().starts_with("HTTP/1.1 200"));
    manager.is_told("READY=1");
    assert_eq!(manager.heard.lock().unwrap().kept.len(), 10);
    first.signal(Signal::SIGKILL);
    first.ended();
    until("the daemons to end", || (!alive(ready.pids.apiserver)).then_some(()));

    // Nobody is there, and still nobody is refused: this one waits for the next supervisor.
    let waiting = std::thread::spawn(move || ask(address));
    let mut second = manager.start(&place);
    let again = second.ready();
    assert_eq!((again.api_listen, again.ingress, again.bucket), (ready.api_listen, ready.ingress, ready.bucket));
    assert!(waiting.join().unwrap().unwrap().starts_with("HTTP/1.1 200"));
    let heard = manager.heard.lock().unwrap();
    assert_eq!(heard.said.iter().filter(|line| *line == "FDSTORE=1").count(), 10, "taken back, not bound anew");
    assert!(!heard.said.iter().any(|line| line == "FDSTOREREMOVE=1"), "{:?}", heard.said);
}

/// The unit, its job, and as much of the bus as a client needs.
struct Bus;

#[zbus::interface(name = "org.freedesktop.DBus")]
impl Bus {
    fn hello(&self) -> String {
        ":1.1".to_owned()
    }
}

struct Systemd;

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl Systemd {
    #[zbus(name = "GetUnitByPID")]
    fn get_unit_by_pid(&self, pid: u32) -> OwnedObjectPath {
        assert!(pid > 1);
        OwnedObjectPath::try_from("/org/freedesktop/systemd1/unit/scafo").unwrap()
    }
}

struct Unit;

#[zbus::interface(name = "org.freedesktop.systemd1.Unit")]
impl Unit {
    #[zbus(property)]
    fn job(&self) -> (u32, OwnedObjectPath) {
        (7, OwnedObjectPath::try_from("/org/freedesktop/systemd1/job/7").unwrap())
    }
}

struct Job(Arc<Mutex<&'static str>>);

#[zbus::interface(name = "org.freedesktop.systemd1.Job")]
impl Job {
    #[zbus(property)]
    fn job_type(&self) -> String {
        (*self.0.lock().unwrap()).to_owned()
    }
}

/// Answers clients until it is dropped.
async fn serve(listener: tokio::net::UnixListener, job: Arc<Mutex<&'static str>>) {
    let mut open = Vec::new();
    while let Ok((stream, _)) = listener.accept().await {
        let built = zbus::connection::Builder::unix_stream(stream)
            .server(zbus::Guid::generate())
            .unwrap()
            .p2p()
            .serve_at("/org/freedesktop/DBus", Bus)
            .unwrap()
            .serve_at("/org/freedesktop/systemd1", Systemd)
            .unwrap()
            .serve_at("/org/freedesktop/systemd1/unit/scafo", Unit)
            .unwrap()
            .serve_at("/org/freedesktop/systemd1/job/7", Job(Arc::clone(&job)))
            .unwrap();
        open.push(built.build().await.unwrap());
    }
}

/// A system bus that says "restart" until it is told another job. It answers until the tasks are dropped.
fn bus(manager: &Manager) -> (Arc<Mutex<&'static str>>, JoinSet<()>) {
    let job = Arc::new(Mutex::new("restart"));
    let listener = tokio::net::UnixListener::bind(manager.bus()).unwrap();
    let mut serving = JoinSet::new();
    serving.spawn(serve(listener, Arc::clone(&job)));
    (job, serving)
}

async fn running(node: &Node<'_>) -> Vec<ProcessStatus> {
    watched(&mut node.client(), |s| s.len() == 2 && ready_with("v1")(s)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_leaves_the_applications_serving_and_a_stop_ends_them() {
    let place = Place::new();
    let manager = Manager::new();
    let (job, _serving) = bus(&manager);
    let mut first = manager.start(&place);
    first.ready();
    apply(&mut first.client(), 1, &["shop", "blog"]).await.unwrap();
    let before = running(&first).await;
    first.signal(Signal::SIGTERM);
    assert!(first.ended().success(), "{}", place.log());
    assert!(before.iter().all(|status| alive(status.pid.unwrap())), "{}", place.log());
    assert!(place.noted("ended").contains(&"apiserver".to_owned()), "the daemons ended in order");

    manager.is_told("STOPPING=1");
    let mut second = manager.start(&place);
    second.ready();
    let after = running(&second).await;
    let pids = |statuses: &[ProcessStatus]| statuses.iter().map(|status| status.pid).collect::<Vec<_>>();
    assert_eq!(pids(&after), pids(&before));
    assert!(after.iter().all(|status| status.adopted));
    *job.lock().unwrap() = "stop";
    second.signal(Signal::SIGTERM);
    assert!(second.ended().success(), "{}", place.log());
    assert!(after.iter().all(|status| !alive(status.pid.unwrap())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_end_that_nobody_explains_is_a_stop() {
    let place = Place::new();
    let manager = Manager::new();
    let mut node = manager.start(&place);
    node.ready();
    apply(&mut node.client(), 1, &["shop", "blog"]).await.unwrap();
    let before = running(&node).await;
    node.signal(Signal::SIGTERM);
    assert!(node.ended().success(), "{}", place.log());
    assert!(before.iter().all(|status| !alive(status.pid.unwrap())));
}

#[test]
fn a_stop_while_a_node_starts_that_has_nothing_to_end_does_not_wait_for_it() {
    let place = Place::new();
    place.hesitates();
    let mut node = place.start();
    until("it to be starting", || place.fakes().join("celld.asked").exists().then_some(()));
    node.signal(Signal::SIGTERM);
    assert!(node.ended().success(), "{}", place.log());
    assert!(!place.log().contains("runs without a runtime"), "it has not waited for its celld: {}", place.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_request_to_end_while_the_node_starts_kills_what_was_left() {
    let place = Place::new();
    let mut node = place.start();
    node.ready();
    apply(&mut node.client(), 1, &["shop"]).await.unwrap();
    let pid = watched(&mut node.client(), ready_with("v1")).await[0].pid.unwrap();
    node.signal(Signal::SIGKILL);
    node.ended();
    drop(node);
    place.hesitates();
    let mut node = place.start();
    until("it to be starting", || place.fakes().join("celld.asked").exists().then_some(()));
    node.signal(Signal::SIGTERM);
    until("it to end what was left", || place.log().contains("asked to end while starting").then_some(()));
    assert!(alive(pid));
    // Within a second of the first it is the same request, so it is repeated until it counts.
    until("the application to be killed", || {
        node.signal(Signal::SIGTERM);
        (!alive(pid)).then_some(())
    });
    assert!(node.ended().success(), "{}", place.log());
    assert!(!place.log().contains("runs without a runtime"), "it has not waited for its celld: {}", place.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_while_the_node_starts_ends_what_the_last_one_left_and_a_restart_leaves_it() {
    let place = Place::new();
    let manager = Manager::new();
    let (job, _serving) = bus(&manager);
    let mut node = manager.start(&place);
    node.ready();
    apply(&mut node.client(), 1, &["shop", "blog"]).await.unwrap();
    let before = running(&node).await;
    node.signal(Signal::SIGKILL);
    node.ended();
    drop(node);
    place.hesitates();
    for (kind, left) in [("restart", true), ("stop", false)] {
        *job.lock().unwrap() = kind;
        let _ = std::fs::remove_file(place.fakes().join("celld.asked"));
        let mut node = manager.start(&place);
        until("it to be starting", || place.fakes().join("celld.asked").exists().then_some(()));
        node.signal(Signal::SIGTERM);
        if !left {
            manager.is_told("STATUS=ending what an earlier run left");
            place.tell("celld.goes-on", "");
        }
        assert!(node.ended().success(), "{kind}: {}", place.log());
        assert!(before.iter().all(|status| alive(status.pid.unwrap()) == left), "{kind}: {}", place.log());
    }
    assert!(!place.state().join("node.json").exists());
}

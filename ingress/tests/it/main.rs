//! The daemon as a process: how it is started, by hand and by a supervisor, and how it ends.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use command_fds::{CommandFdExt as _, FdMapping};
use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(60);

/// A process that does not outlive its test.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Daemon {
    fn terminate(&mut self) -> ExitStatus {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        let started = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(started.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scafo-ingressd"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_clear();
    command
}

/// Nobody answers there while the socket lives.
fn silent_node() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, url)
}

fn health(address: SocketAddr, token: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = "GET /.well-known/scafo-ingress/health HTTP/1.1\r\nhost: nobody.example\r\nconnection: close\r\n";
    let request = format!("{head}authorization: Bearer {token}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn started_by_hand_it_prints_its_address_serves_and_ends_on_sigterm() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("ingress-token");
    std::fs::write(&token, "token\n").unwrap();
    let (_listener, url) = silent_node();
    let mut command = command();
    command.args(["--node", &url, "--listen", "127.0.0.1:0", "--token-file"]).arg(&token);
    let mut daemon = Daemon(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(daemon.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("http://").unwrap().parse().unwrap();
    let answer = health(address, "token");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"documents\":0"), "{answer}");
    assert!(daemon.terminate().success());
}

#[test]
fn as_a_child_it_serves_on_the_inherited_socket_with_the_settings_of_standard_input() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let (_listener, url) = silent_node();
    let mut command = command();
    command.stdin(Stdio::piped()).env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", "http");
    command.fd_mappings(vec![FdMapping { parent_fd: OwnedFd::from(socket), child_fd: 3 }]).unwrap();
    let mut daemon = Daemon(command.spawn().unwrap());
    // The mapping holds our copy of the socket; the daemon's is what serves from now on.
    drop(command);
    let settings = format!(r#"{{"nodes":[{{"url":"{url}","token":"hunter2"}}],"pollInterval":250}}"#);
    daemon.0.stdin.take().unwrap().write_all(settings.as_bytes()).unwrap();
    assert!(health(address, "hunter2").starts_with("HTTP/1.1 200"));
    assert!(daemon.terminate().success());
    let mut log = String::new();
    daemon.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(!log.contains("hunter2"), "{log}");
}

#[test]
fn what_it_cannot_run_with_is_said_in_one_line_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let (token, empty) = (dir.path().join("token"), dir.path().join("empty"));
    std::fs::write(&token, "token").unwrap();
    std::fs::write(&empty, "\n").unwrap();
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = held.local_addr().unwrap().to_string();
    let (token, empty) = (token.to_str().unwrap(), empty.to_str().unwrap());
    // With 78 a supervisor does not start it again: it would meet the same.
    let rows: [(&[&str], i32, &str); 5] = [
        (&["--node", "https://a:1", "--token-file", token], 78, "write http://HOST:PORT"),
        (&["--node", "http://a:1", "--token-file", empty], 78, "ingress-token"),
        (&["--node", "http://a:1", "--token-file", "/nowhere/token"], 1, "cannot read the token file /nowhere/token"),
        (&["--node", "http://a:1", "--node", "http://b:1", "--token-file", token], 1, "one token file for each node"),
        (&["--node", "http://a:1", "--token-file", token, "--listen", &taken], 1, "--listen"),
    ];
    for (arguments, code, expected) in rows {
        let output = command().args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(code) && said.contains(expected), "{arguments:?}: {said}");
    }
}

//! The real process under more uploads than it takes.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use command_fds::{CommandFdExt as _, FdMapping};
use scafo_core::settings::{ApiserverSettings, DeployIntakeSettings, Millis, Secret};
use scafo_core::time::Timestamp;
use scafo_core::token::{PublicKey, sign};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::fakes::{FakeRegistry, FakeRouter, operator_key};
use crate::harness::{NO_METADATA, archive, operator, signing_key};

const UPLOADS: usize = 200;
/// What is admitted at once.
const QUEUE: usize = 8;
const ARTIFACT: usize = 12 * 1024 * 1024;
/// What every upload sends before anybody answers.
const BEGINNING: usize = 16 * 1024;
/// How much more memory the process may hold than at rest: what 200 connections buffer (64 KiB each way), and a third of the artifacts
/// that are admitted, so that holding them shows.
const MORE: u64 = 40 * 1024 * 1024;
const LIMIT: Duration = Duration::from_secs(60);

/// The process, which ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn start(dir: &Path) -> (Self, SocketAddr) {
        let settings = ApiserverSettings {
            node: "n1".parse().unwrap(),
            version: "0.1.0".to_owned(),
            registry_socket: dir.join("registry.sock"),
            router_socket: dir.join("router.sock"),
            dir: dir.join("api"),
            ingress_tokens: vec![Secret::new("unused")],
            json_bytes: 65536,
            storage_value_bytes: 1024,
            deploy: DeployIntakeSettings {
                artifact_bytes: 2 * ARTIFACT as u64,
                archive_entries: 1000,
                staged_bytes: 1 << 40,
                queue: QUEUE as u32,
                receive_timeout: Millis(600_000),
                queue_timeout: Millis(600_000),
                task_timeout: Millis(600_000),
            },
            deploy_runner: true,
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // A connection that waits is not one that is refused.
        rustix::net::listen(&listener, UPLOADS as i32).unwrap();
        let address = listener.local_addr().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_scafo-apiserver"));
        command.env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", "api").env_remove("LISTEN_PID").env("SCAFO_LOG", "warn");
        command.fd_mappings(vec![FdMapping { parent_fd: OwnedFd::from(listener), child_fd: 3 }]).unwrap();
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(&serde_json::to_vec(&settings).unwrap()).unwrap();
        (Self(child), address)
    }

    /// Bytes of memory in use.
    fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        kilobytes.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }
}

/// What the uploads have seen together.
#[derive(Default)]
struct Seen {
    refused: AtomicUsize,
    accepted: AtomicUsize,
    highest: AtomicU64,
}

fn head(length: usize) -> String {
    let now = Timestamp::from_system(SystemTime::now());
    let token = sign(&signing_key("root"), "root", now, rand::random());
    format!(
        "POST /v1/applications/shop/deploys HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\
         x-scafo-deploy: {NO_METADATA}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    )
}

/// Sends the beginning of an artifact, and the rest once it is `time` for that, unless there is an answer before.
async fn upload(address: SocketAddr, artifact: Arc<Vec<u8>>, mut time: watch::Receiver<bool>, seen: Arc<Seen>) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(head(artifact.len()).as_bytes()).await.unwrap();
    // One that was refused already may be closed.
    let _ = stream.write_all(&artifact[..BEGINNING]).await;
    let mut answer = Vec::new();
    let go = tokio::select! {
        biased;
        _ = stream.read_to_end(&mut answer) => false,
        () = async { drop(time.wait_for(|time| *time).await.unwrap()) } => true,
    };
    if go {
        stream.write_all(&artifact[BEGINNING..]).await.unwrap();
        stream.read_to_end(&mut answer).await.unwrap();
    }
    let answer = String::from_utf8(answer).unwrap();
    if answer.starts_with("HTTP/1.1 202") {
        seen.accepted.fetch_add(1, Ordering::SeqCst);
    } else {
        let told = ["HTTP/1.1 429", "retry-after: 1\r\n", "urn:scafo:deploy-overloaded"];
        assert!(told.iter().all(|part| answer.contains(part)), "{answer}");
        assert!(!*time.borrow(), "its body was read");
        seen.refused.fetch_add(1, Ordering::SeqCst);
    }
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, waiting).await.unwrap_or_else(|_| panic!("it never came to be that {what}"));
}

fn staged(dir: &Path) -> usize {
    std::fs::read_dir(dir.join("api/stage")).map_or(0, Iterator::count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_hundred_uploads_as_many_are_admitted_as_there_is_room_for_and_memory_stays_flat() {
    let dir = tempfile::tempdir().unwrap();
    let (registry, router) = (FakeRegistry::default(), FakeRouter::default());
    let root = operator("root", "admin", &["*"]);
    assert_eq!(root["publicKey"], serde_json::json!(PublicKey::from(&signing_key("root"))));
    registry.world().keys.insert("root".to_owned(), operator_key(&root));
    registry.world().slow = true;
    let _serving = (registry.serve(&dir.path().join("registry.sock")), router.serve(&dir.path().join("router.sock")));
    let (process, address) = Process::start(dir.path());
    until("it is up", || dir.path().join("api/stage").is_dir()).await;
    let artifact = Arc::new(archive(&[("wrangler.jsonc", "{}"), ("data", &"x".repeat(ARTIFACT))]));
    let (seen, (time, when)) = (Arc::new(Seen::default()), watch::channel(false));
    let at_rest = process.resident();
    seen.highest.store(at_rest, Ordering::SeqCst);
    let mut uploads = JoinSet::new();
    for _ in 0..UPLOADS {
        uploads.spawn(upload(address, artifact.clone(), when.clone(), seen.clone()));
    }
    let measure = || {
        seen.highest.fetch_max(process.resident(), Ordering::SeqCst);
    };
    until("all that does not fit is refused, and the rest is staged", || {
        measure();
        seen.refused.load(Ordering::SeqCst) == UPLOADS - QUEUE && staged(dir.path()) == QUEUE
    })
    .await;
    assert_eq!(seen.accepted.load(Ordering::SeqCst), 0);
    time.send(true).unwrap();
    until("the others are accepted", || {
        measure();
        seen.accepted.load(Ordering::SeqCst) == QUEUE
    })
    .await;
    while let Some(ended) = uploads.join_next().await {
        ended.unwrap();
    }
    until("all of them are unpacked and offered", || {
        measure();
        let offered: BTreeSet<String> = registry.world().published.iter().map(|deploy| deploy.id.clone()).collect();
        offered.len() == QUEUE
    })
    .await;
    let more = seen.highest.load(Ordering::SeqCst) - at_rest;
    assert!(more < MORE, "{} KiB more than at rest", more / 1024);
    for deploy in registry.world().deploys.values_mut() {
        deploy["state"] = "deployed".into();
    }
    until("nothing is staged any more", || staged(dir.path()) == 0).await;
    // One that waits for its turn to be unpacked is accepted again and again.
    let accepted: BTreeSet<String> = registry.world().accepted.iter().map(|deploy| deploy.id.clone()).collect();
    assert_eq!(accepted.len(), QUEUE);
    println!(
        "{QUEUE} of {UPLOADS} uploads of {} MiB were admitted; {} KiB more memory than at rest",
        ARTIFACT >> 20,
        more / 1024
    );
}

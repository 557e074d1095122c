//! What one node takes: from its start to twenty ready applications, the memory of its daemons, and the processor time of its
//! supervisor.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use scafo_registryd::registry::{Registry, SystemClock};
use scafo_tests::fleet::Fleet;
use scafo_tests::node::DAEMONS;
use scafo_tests::{Node, Project, process, wait};
use tempfile::TempDir;

/// Figures are those of a release build; a debug build does little, to see that it works.
const FEW: bool = cfg!(debug_assertions);
/// Applications with a real runtime, and with one that only answers.
const REAL: usize = if FEW { 3 } else { 20 };
const STUBS: usize = if FEW { 10 } else { 200 };
/// How long processor time is counted.
const WINDOW: Duration = Duration::from_secs(if FEW { 5 } else { 20 });
const LIMIT: Duration = Duration::from_secs(300);

pub(crate) async fn run() {
    println!("## node: start, memory, processor time");
    start().await;
    stubs().await;
    println!();
}

/// Starts a node again on what it left, with none, one and many applications.
async fn start() {
    let dir = TempDir::new().expect("a directory");
    let state = dir.path().join("state");
    let mut deployed = 0;
    let mut alone = None;
    for applications in [0, 1, REAL] {
        let node = Node::start_in(&state, &[]).await;
        while deployed < applications {
            node.deploy(Project::answering(&format!("app-{deployed}"), "hello").path()).await;
            deployed += 1;
        }
        node.stop().await;
        let began = Instant::now();
        let node = Node::start_in(&state, &[]).await;
        let answers = began.elapsed();
        ready(&node, applications).await;
        let all = began.elapsed();
        node.stop().await;
        let each = alone.map_or(String::new(), |alone: Duration| {
            let times = all.as_secs_f64() / alone.as_secs_f64();
            format!("   {times:.1} × the time for one")
        });
        if applications == 1 {
            alone = Some(all);
        }
        println!("start with {applications:>2} applications: node ready {answers:>6.2?}, all ready {all:>6.2?}{each}");
    }
}

async fn ready(node: &Node, applications: usize) {
    let api = node.api();
    wait::until(&format!("{applications} ready applications"), LIMIT, || async {
        let (_, state) = api.get("/v1/state").await.ok()?;
        let ready = state["processes"].as_array()?.iter().filter(|process| process["state"] == "ready").count();
        (ready == applications).then_some(())
    })
    .await;
}

/// A node with many processes that cost nothing themselves.
async fn stubs() {
    let dir = TempDir::new().expect("a directory");
    let celld = stub(dir.path());
    let fleet = Fleet::new(&[]).await;
    let path = celld.to_str().expect("text");
    let environment = [("SCAFO_CELLD_PATH", path), ("SCAFO_CELLD_ENV", ""), ("SCAFO_CELLD_PORT_RANGE", "24000-24999")];
    let node = fleet.node_with("bench", &environment).await;
    ready(&node, 0).await;
    let idle = (memory(&node), processor_time(&node).await);
    let registry = Registry::new(std::sync::Arc::new(fleet.store.bucket()), std::sync::Arc::new(SystemClock), "bench");
    for number in 0..STUBS {
        registry.create_application(&format!("stub-{number}").parse().expect("a name")).await.expect("an application");
    }
    ready(&node, STUBS).await;
    let full = (memory(&node), processor_time(&node).await);
    for ((name, before), (_, after)) in idle.0.iter().zip(&full.0) {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        println!("{name:<18} {:>7.1} MiB idle, {:>7.1} MiB with {STUBS} applications", mib(*before), mib(*after));
    }
    let share = |time: Duration| 100.0 * time.as_secs_f64() / WINDOW.as_secs_f64();
    let each = (share(full.1) - share(idle.1)) * 100.0 / STUBS as f64;
    println!("supervisor: {:.2} % of a core idle, {each:.2} % for each 100 processes", share(idle.1));
    node.stop().await;
}

fn memory(node: &Node) -> Vec<(String, u64)> {
    // A stub is a process of this program, whose name begins in the same way.
    let ours = |process: &process::Process| process.name == "scafo" || DAEMONS.contains(&process.name.as_str());
    let mut daemons: Vec<_> = node.processes().into_iter().filter(ours).collect();
    daemons.sort_by(|a, b| a.name.cmp(&b.name));
    daemons.into_iter().map(|process| (process.name, process::resident(process.pid))).collect()
}

/// What the supervisor uses of a processor within the window.
async fn processor_time(node: &Node) -> Duration {
    let pid = node.dev.pids.supervisor;
    let before = used(pid);
    tokio::time::sleep(WINDOW).await;
    used(pid).saturating_sub(before)
}

/// User and system time of a process: fields 14 and 15 of its `stat`, in hundredths of a second on Linux.
fn used(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields).unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum::<u64>();
    Duration::from_millis(ticks * 10)
}

/// A celld that is this program.
fn stub(dir: &Path) -> std::path::PathBuf {
    let own = std::env::current_exe().expect("this program");
    let path = dir.join("celld");
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'celld 0.6.0'; exit 0; fi\nexec '{}' stub-celld \"$@\"\n",
        own.display()
    );
    std::fs::write(&path, script).expect("a script");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a script");
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).expect("a directory");
    path
}

/// Listens where celld would and says that all is well.
pub(crate) fn serve(arguments: &[String]) {
    use std::io::{Read as _, Write as _};
    let value = |option: &str| arguments.iter().skip_while(|it| *it != option).nth(1).expect("an address").clone();
    let serving = ["--listen", "--internal-listen"].map(|option| {
        let listener = std::net::TcpListener::bind(value(option)).expect("a free port");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { continue };
                let _ = stream.read(&mut [0; 4096]);
                let body = r#"{"ok":true}"#;
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
                let _ = stream.write_all(format!("{head}{body}").as_bytes());
            }
        })
    });
    for thread in serving {
        let _ = thread.join();
    }
}

//! The Debian package and the RPM package, installed and driven in a real systemd.

// Code of tests: a panic is how it says what is wrong.
#![allow(clippy::panic)]

mod machine;
mod rpm;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use machine::{Machine, prepared, text};
use scafo_tests::load::{Load, Outcome, client, not_answered};
use scafo_tests::node::built;
use scafo_tests::project::tool;
use scafo_tests::{Project, wait};
use serde_json::Value;

/// How long anything that is waited for may take.
const LIMIT: Duration = Duration::from_secs(180);
const API: &str = "127.0.0.1:7400";
const INGRESS: &str = "127.0.0.1:80";
/// How exposed the unit may be by `systemd-analyze security`, in tenths: its users, its ports and its network are what it is for, and
/// make up what is left.
const EXPOSURE: u32 = 38;
/// As the package's own configuration has it.
const UIDS: &str = "1900000000-1900009999";

/// Gives some applications a fault: the hooks of the stand-in come by its environment, which is the same for all otherwise.
const RUNTIME: &str = r#"#!/bin/sh
case "$1 $*" in
deploy*) ;;
*fleets/memory-hog*) export CELLD_STANDIN_HOG=memory ;;
*fleets/task-hog*) export CELLD_STANDIN_HOG=tasks ;;
*fleets/log-hog*) export CELLD_STANDIN_HOG=log ;;
esac
exec /usr/local/lib/celld-workerd "$@"
"#;

fn config() -> String {
    format!(
        r#"
[platform]
domains = ["apps.test"]
[ingress]
hold = "1s"
[ingressd]
listen = "{INGRESS}"
[celld]
path = "/usr/local/bin/celld"
uidRange = "{UIDS}"
[celld.env]
CELLD_ESBUILD = "/usr/local/lib/esbuild"
CELLD_STANDIN_WORKERD = "/usr/local/lib/workerd"
"#
    )
}

/// A package of what this test was built beside, by one of the scripts in `packaging`, without compression.
fn package(script: &str, more: &[&str], out: &Path) -> PathBuf {
    let bin = built("scafo");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging").join(script);
    let packed = Command::new(script)
        .args(["--fast", "--bin"])
        .arg(bin.parent().expect("a directory"))
        .arg("--out")
        .arg(out)
        .args(more)
        .output();
    let packed = packed.expect("the script runs");
    assert!(packed.status.success(), "{}{}", text(&packed.stdout), text(&packed.stderr));
    text(&packed.stdout).trim().into()
}

fn install(root: &Path, from: &Path, to: &str) {
    let to = root.join(to);
    std::fs::copy(from, &to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o755)).expect("a mode");
}

fn prepare(root: &Path) {
    let packed = package("deb.sh", &[], root);
    std::fs::rename(&packed, root.join("scafo.deb")).expect("the same file system");
    rpm::prepare(root);
    install(root, &built("celld-workerd"), "usr/local/lib/celld-workerd");
    install(root, &tool("@cloudflare/workerd-linux-64/bin/workerd"), "usr/local/lib/workerd");
    install(root, &tool("@esbuild/linux-x64/bin/esbuild"), "usr/local/lib/esbuild");
    std::fs::write(root.join("usr/local/bin/celld"), RUNTIME).expect("a file");
    std::fs::set_permissions(root.join("usr/local/bin/celld"), std::fs::Permissions::from_mode(0o755)).expect("a mode");
    for name in ["shop", "memory-hog", "task-hog", "log-hog"] {
        let project = Project::answering(name, &format!("I am {name}"));
        let copied = Command::new("cp").arg("-r").arg(project.path()).arg(root.join("root").join(name)).status();
        assert!(copied.expect("cp runs").success());
    }
}

/// A process of the node, as the machine's `/proc` shows it.
#[derive(Debug)]
struct Shown {
    pid: u32,
    uid: u32,
    status: String,
    cgroup: String,
}

impl Machine {
    fn main_pid(&self) -> u32 {
        self.property("scafo.service", "MainPID").parse().unwrap_or(0)
    }

    fn is_active(&self) -> bool {
        self.property("scafo.service", "ActiveState") == "active"
    }

    /// Those whose arguments begin with this, oldest first.
    fn processes(&self, begin: &str) -> Vec<Shown> {
        let listed = self.run(&format!("pgrep -f '^{begin}' || true"));
        let of = |pid: &str| {
            let shown = self.run(&format!("cat /proc/{pid}/status; echo ---; cat /proc/{pid}/cgroup"));
            let (status, cgroup) = text(&shown.stdout).split_once("---").map(|(a, b)| (a.to_owned(), b.to_owned()))?;
            let uid =
                status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()?;
            Some(Shown { pid: pid.parse().ok()?, uid, status, cgroup })
        };
        text(&listed.stdout).split_whitespace().filter_map(of).collect()
    }

    /// The process of the shop's celld. Its children have other arguments.
    fn shop(&self) -> Shown {
        let found = self.processes("/usr/local/lib/celld-workerd.*fleets/shop");
        found.into_iter().next().unwrap_or_else(|| panic!("the shop runs\n{}", self.journal()))
    }

    fn ready(&self) -> Value {
        let text = std::fs::read_to_string(self.root().join("var/lib/scafo/node.json")).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }

    fn shop_port(&self) -> u64 {
        let book = std::fs::read_to_string(self.root().join("var/lib/scafo/ports.json")).expect("the port book");
        let book: Value = serde_json::from_str(&book).expect("JSON");
        book["shop"]["public"].as_u64().expect("a port")
    }
}

/// Load of three kinds: straight at the application, through the ingress, and at the API.
struct Loads {
    direct: Load,
    ingress: Load,
    api: Load,
}

struct Outcomes {
    direct: Vec<Outcome>,
    ingress: Vec<Outcome>,
    api: Vec<Outcome>,
}

impl Loads {
    fn start(machine: &Machine) -> Self {
        let direct = format!("http://127.0.0.1:{}/", machine.shop_port());
        Self {
            direct: Load::start(2, move || client().get(&direct)),
            ingress: Load::start(2, || client().get(format!("http://{INGRESS}/")).header("host", "shop.apps.test")),
            api: Load::start(1, || client().get(format!("http://{API}/.well-known/scafo/health"))),
        }
    }

    async fn stop(self) -> Outcomes {
        // One after another answers each; nobody tries again.
        let (direct, ingress, api) = tokio::join!(self.direct.stop(), self.ingress.stop(), self.api.stop());
        Outcomes { direct, ingress, api }
    }

    async fn flow(&self) {
        let before = (self.direct.ended(), self.ingress.ended(), self.api.ended());
        wait::until("requests to be answered", LIMIT, || async {
            let now = (self.direct.ended(), self.ingress.ended(), self.api.ended());
            (now.0 > before.0 + 20 && now.1 > before.1 + 20 && now.2 > before.2 + 10).then_some(())
        })
        .await;
    }
}

impl Outcomes {
    /// Every request straight at the application was answered by it.
    fn served_on(&self, step: &str) {
        let failed = not_answered(&self.direct, &[200]);
        eprintln!(
            "{step}: {} requests at the application, {} through the ingress, {} at the API",
            self.direct.len(),
            self.ingress.len(),
            self.api.len()
        );
        assert!(failed.is_empty(), "{step}: {} of {} failed: {:?}", failed.len(), self.direct.len(), failed.first());
    }

    /// Nothing was refused and nothing was answered wrongly; only what a killed daemon was answering may be cut.
    fn never_refused(&self, step: &str, cut_at_most: usize) {
        for (what, outcomes) in [("ingress", &self.ingress), ("API", &self.api)] {
            let failed = not_answered(outcomes, &[200]);
            let cut = failed.iter().filter(|outcome| matches!(outcome, Outcome::Cut(_))).count();
            assert!(cut == failed.len() && cut <= cut_at_most, "{step}, {what}: {:?}", &failed[..failed.len().min(5)]);
        }
    }
}

#[tokio::test]
async fn the_packages_run_a_node_in_systemd_through_crashes_restarts_and_upgrades_under_load() {
    let root = match prepared() {
        Ok(root) => root,
        Err(why) => {
            eprintln!("SKIPPED: the package was not tried in a systemd: {why}");
            return;
        }
    };
    let machine = Machine::boot(&root, prepare).await;
    installs_and_starts(&machine).await;
    deploys(&machine).await;
    everybody_is_confined(&machine);
    applications_are_fenced_off_from_each_other(&machine);
    survives_a_kill_of_its_supervisor(&machine).await;
    survives(&machine, "a restart", "systemctl restart scafo.service").await;
    survives(&machine, "an upgrade", "dpkg -i /scafo.deb").await;
    takes_other_settings_without_a_failed_request(&machine).await;
    hogs_harm_only_themselves(&machine).await;
    stops(&machine).await;
    rpm::does_the_same(&machine).await;
}

async fn installs_and_starts(machine: &Machine) {
    installs(machine, "dpkg -i /scafo.deb").await;
    let checked = machine.run_beside("systemd-analyze verify --man=no scafo.service scafo-apps.slice 2>&1").await;
    assert!(checked.status.success() && checked.stdout.is_empty(), "{}", text(&checked.stdout));
    let unit = "/usr/lib/systemd/system/scafo.service";
    let exposed = format!("systemd-analyze security --no-pager --offline=true --threshold={EXPOSURE} {unit} 2>&1");
    let exposed = machine.run_beside(&exposed).await;
    let said = text(&exposed.stdout);
    eprintln!("{}", said.lines().last().unwrap_or_default());
    assert!(exposed.status.success(), "the unit is more exposed than it was: {said}");
    starts(machine).await;
    let open = machine.ready()["notEnforced"].to_string();
    eprintln!("not enforced in the machine: {open}");
    for held in ["user id", "hard limits", "internal ports"] {
        assert!(!open.contains(held), "{held} is said to be open: {open}\n{}", machine.journal());
    }
}

async fn installs(machine: &Machine, command: &str) {
    machine.must(command).await;
    assert_eq!(machine.property("scafo.service", "ActiveState"), "inactive", "a fresh install starts nothing");
    let written =
        "umask 022; echo '# as the settings say' > /etc/scafo/credentials; stat -c '%a %U' /etc/scafo/credentials";
    assert_eq!(machine.must(written).await.trim(), "600 root", "credentials are root's alone");
}

async fn starts(machine: &Machine) {
    std::fs::write(machine.root().join("etc/scafo/scafo.toml"), config()).expect("the configuration");
    machine.must("systemctl enable --now scafo.service").await;
    wait::until("the node to be ready", LIMIT, || async {
        (!machine.ready().is_null() && machine.is_active()).then_some(())
    })
    .await;
}

async fn deploys(machine: &Machine) {
    machine.must("scafo operator init").await;
    machine.must("scafo deploy /root/shop").await;
    // The command waits for the ingress too, but not for as long as a busy machine may need.
    wait::until("the shop to answer", LIMIT, || async {
        let (status, body) = get_shop().await;
        (status == 200 && body == "I am shop").then_some(())
    })
    .await;
    wait::until("the status line", LIMIT, || async {
        machine.property("scafo.service", "StatusText").contains("1 of 1 applications ready").then_some(())
    })
    .await;
}

async fn get_shop() -> (u16, String) {
    let answer =
        client().get(format!("http://{INGRESS}/")).header("host", "shop.apps.test").send().await.expect("an answer");
    (answer.status().as_u16(), answer.text().await.expect("a body"))
}

/// One user for each process, no capabilities, no new privileges, filters, and the application in a scope with its limits.
fn everybody_is_confined(machine: &Machine) {
    let field = |shown: &Shown, name: &str| {
        let line = shown.status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.trim_start_matches(':').trim().to_owned()
    };
    let mut uids = BTreeSet::new();
    for daemon in ["bucketd", "registryd", "routerd", "apiserver", "ingressd"] {
        let shown = machine
            .processes(&format!("/usr/lib/scafo/scafo-{daemon}"))
            .pop()
            .unwrap_or_else(|| panic!("{daemon} runs"));
        assert!(uids.insert(shown.uid) && shown.uid >= 1_900_000_000, "{daemon}: {}", shown.uid);
        assert_eq!(
            (field(&shown, "NoNewPrivs"), field(&shown, "CapEff")),
            ("1".into(), "0000000000000000".into()),
            "{daemon}"
        );
        let filters: u32 = field(&shown, "Seccomp_filters").parse().expect("a number");
        let own: u32 = {
            let supervisor = machine.processes("/usr/bin/scafo sail").pop().expect("the supervisor");
            field(&supervisor, "Seccomp_filters").parse().expect("a number")
        };
        assert!(filters >= own + 3, "{daemon} has {filters} filters, its unit {own}");
        let name = text(&machine.run(&format!("id -nu {}", shown.uid)).stdout);
        assert_eq!(name.trim(), format!("scafo-{daemon}"), "sysusers names it");
    }
    let shop = machine.shop();
    assert!(uids.insert(shop.uid), "an application is none of the daemons");
    assert_eq!((field(&shop, "NoNewPrivs"), field(&shop, "CapEff")), ("1".into(), "0000000000000000".into()));
    assert!(shop.cgroup.contains("/scafo.slice/scafo-apps.slice/scafo-app-shop.scope"), "{}", shop.cgroup);
    let scope = |name: &str| machine.property("scafo-app-shop.scope", name);
    let memory: u64 = scope("MemoryMax").parse().expect("a limit of memory");
    assert!((256 << 20..4 << 30).contains(&memory), "{memory}");
    assert_eq!((scope("TasksMax"), scope("CPUWeight")), ("512".to_owned(), "100".to_owned()));
    // No secret of the node but what its runtime needs: the bucket's credentials.
    let environ = std::fs::read(format!("{}/proc/{}/environ", machine.root().display(), shop.pid)).unwrap_or_default();
    let environ =
        if environ.is_empty() { machine.run(&format!("cat /proc/{}/environ", shop.pid)).stdout } else { environ };
    let token = std::fs::read_to_string(machine.root().join("var/lib/scafo/ingress-token")).expect("the token");
    let environ = text(&environ);
    assert!(
        environ.contains("CELLD_WATCH=") && !environ.contains(token.trim()) && !environ.contains("SCAFO_"),
        "{environ}"
    );
}

fn applications_are_fenced_off_from_each_other(machine: &Machine) {
    let port = machine.shop_port();
    let as_user = |uid: u32| {
        let connect =
            format!("setpriv --reuid={uid} --regid={uid} --clear-groups bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}'");
        machine.run(&connect).status.success()
    };
    assert!(!as_user(1_900_009_000), "another application's user reaches the shop's port");
    assert!(!as_user(1_900_000_020), "a deploy job's user reaches the shop's port");
    assert!(as_user(1_900_000_004), "the ingress does not reach it");
}

async fn survives_a_kill_of_its_supervisor(machine: &Machine) {
    let (before, shop) = (machine.main_pid(), machine.shop().pid);
    let loads = Loads::start(machine);
    loads.flow().await;
    machine.must(&format!("kill -9 {before}")).await;
    came_back(machine, before, shop).await;
    loads.flow().await;
    let outcomes = loads.stop().await;
    outcomes.served_on("kill -9 of the supervisor");
    // Its daemons die with it: what the clients had under way there, four times at most.
    outcomes.never_refused("kill -9 of the supervisor", 4);
}

async fn survives(machine: &Machine, step: &str, command: &str) {
    let (before, shop) = (machine.main_pid(), machine.shop().pid);
    let loads = Loads::start(machine);
    loads.flow().await;
    machine.must(command).await;
    came_back(machine, before, shop).await;
    loads.flow().await;
    let outcomes = loads.stop().await;
    outcomes.served_on(step);
    outcomes.never_refused(step, 0);
}

/// Another supervisor is ready, and it took the same application over.
async fn came_back(machine: &Machine, before: u32, shop: u32) {
    wait::until("another supervisor", LIMIT, || async {
        let now = machine.main_pid();
        (now != 0 && now != before && machine.is_active() && !machine.ready().is_null()).then_some(())
    })
    .await;
    assert_eq!(machine.shop().pid, shop, "the application's process is the same\n{}", machine.journal());
    wait::until("the status line", LIMIT, || async {
        machine.property("scafo.service", "StatusText").contains("1 of 1 applications ready").then_some(())
    })
    .await;
}

async fn takes_other_settings_without_a_failed_request(machine: &Machine) {
    let (before, shop) = (machine.main_pid(), machine.shop().pid);
    let changed = format!(
        "log = \"debug,h2=info,hyper=info,hyper_util=info,tower=info\"\n{}\n[node.labels]\nregion = \"north\"\n",
        config()
    );
    let changed =
        changed.replace("hold = \"1s\"", "hold = \"1s\"\ntoken = [\"a-token-of-the-test-that-is-long-enough\"]");
    let loads = Loads::start(machine);
    loads.flow().await;
    std::fs::write(machine.root().join("etc/scafo/scafo.toml"), changed).expect("the configuration");
    machine.must("systemctl reload scafo.service").await;
    let routes = || {
        let request = client().get(format!("http://{API}/v1/ingress/routes"));
        request.bearer_auth("a-token-of-the-test-that-is-long-enough").send()
    };
    wait::until("the new ingress token to be admitted", LIMIT, || async {
        matches!(routes().await, Ok(answer) if answer.status() == 200).then_some(())
    })
    .await;
    wait::until("the new label", LIMIT, || async {
        let status = machine.run("scafo node list --json");
        text(&status.stdout).contains("\"region\":\"north\"").then_some(())
    })
    .await;
    wait::until("every daemon to have the settings", LIMIT, || async {
        machine.journal_has("SIGHUP: ingress tokens, labels").then_some(())
    })
    .await;
    loads.flow().await;
    let outcomes = loads.stop().await;
    outcomes.served_on("a reload");
    outcomes.never_refused("a reload", 0);
    assert_eq!((machine.main_pid(), machine.shop().pid), (before, shop));
}

impl Machine {
    fn journal_has(&self, text: &str) -> bool {
        self.run(&format!("journalctl --no-pager -o cat -u scafo.service | grep -q '{text}'")).status.success()
    }
}

async fn hogs_harm_only_themselves(machine: &Machine) {
    // What the kernel enforces of a scope, and not only systemd writes down: a container may have no say in it.
    let enforced = text(
        &machine.run("test -w /sys/fs/cgroup/memory -o -w /sys/fs/cgroup/cgroup.subtree_control && echo yes").stdout,
    );
    let enforced = enforced.trim() == "yes";
    eprintln!(
        "hogs in the machine: limits by the number of a user's tasks and by the cut of logs{}",
        if enforced {
            ", of memory and tasks by control groups"
        } else {
            "; control groups are not writable in this container, so memory is not tried here"
        }
    );
    let hogs: &[&str] = if enforced { &["log-hog", "task-hog", "memory-hog"] } else { &["log-hog", "task-hog"] };
    let loads = Loads::start(machine);
    for hog in hogs {
        // The deploy may well fail: what it serves is busy with itself.
        let _ = machine.run_beside(&format!("timeout 40 scafo deploy /root/{hog} 2>&1")).await;
    }
    wait::until("the log to be cut", LIMIT, || async {
        let said = machine.run("scafo logs -n 5000000 log-hog | grep -c 'bytes are left out here' || true");
        text(&said.stdout).trim().parse::<u64>().is_ok_and(|cuts| cuts > 0).then_some(())
    })
    .await;
    wait::until("the tasks to be refused", LIMIT, || async {
        let said = machine.run("scafo logs -n 100000 task-hog | grep -c 'no more processes' || true");
        text(&said.stdout).trim().parse::<u64>().is_ok_and(|cuts| cuts > 0).then_some(())
    })
    .await;
    if enforced {
        wait::until("the memory hog to be ended", LIMIT, || async {
            let state = machine.run("scafo status --json");
            text(&state.stdout).contains("\"signal\":9").then_some(())
        })
        .await;
    }
    loads.flow().await;
    let outcomes = loads.stop().await;
    outcomes.served_on("three hogs beside it");
    outcomes.never_refused("three hogs beside it", 0);
    let tasks = text(&machine.run("ps -eLo uid= | sort | uniq -c | sort -n | tail -1").stdout);
    eprintln!("the most tasks of one user: {}", tasks.trim());
    // Between two looks a flood is as long as a core can make it, so this is looked at until it was just cut.
    wait::until("the logs to be short", LIMIT, || async {
        let taken = text(&machine.run("du -sk /var/lib/scafo/logs | cut -f1").stdout);
        taken.trim().parse::<u64>().is_ok_and(|kib| kib < 32 * 1024).then_some(())
    })
    .await;
    for hog in hogs {
        let _ = machine.run_beside(&format!("scafo app retire {hog}")).await;
    }
}

async fn stops(machine: &Machine) {
    let shop = machine.shop().pid;
    let loads = Loads::start(machine);
    loads.flow().await;
    machine.must("systemctl stop scafo.service").await;
    let outcomes = loads.stop().await;
    let cut = |outcomes: &[Outcome]| outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Cut(_))).count();
    // Nobody will accept what waits in a backlog when the sockets are closed for good, and an application that drains closes what
    // has not asked yet: at most what each client had under way.
    let cuts = (cut(&outcomes.direct), cut(&outcomes.ingress), cut(&outcomes.api));
    assert!(cuts.0 <= 2 && cuts.1 <= 2 && cuts.2 <= 1, "a stop cuts {cuts:?}");
    assert_eq!(machine.property("scafo.service", "Result"), "success", "{}", machine.journal());
    assert!(!machine.root().join(format!("proc/{shop}")).exists());
    let left = machine.processes("/usr/local/lib/");
    assert!(left.is_empty(), "applications are left: {left:?}\n{}", machine.journal());
    assert!(machine.processes("/usr/lib/scafo/").is_empty());
    assert_eq!(machine.property("scafo-app-shop.scope", "ActiveState"), "inactive");
    assert!(text(&machine.run("nft list tables").stdout).is_empty(), "the fence is down");
    removal_ends_what_a_node_that_cannot_start_left(machine).await;
    assert!(!machine.root().join("var/lib/scafo").exists() && !machine.root().join("usr/bin/scafo").exists());
}

/// Nobody but a supervisor ends applications, and with such a setting none starts.
async fn removal_ends_what_a_node_that_cannot_start_left(machine: &Machine) {
    let applications = || machine.processes("/usr/local/lib/celld-workerd.*fleets/");
    machine.must("systemctl start scafo.service").await;
    wait::until("the shop to run again", LIMIT, || async { (!applications().is_empty()).then_some(()) }).await;
    std::fs::write(machine.root().join("etc/scafo/scafo.toml"), "nonsense = 1\n").expect("the configuration");
    let _ = machine.run_beside("systemctl restart scafo.service").await;
    wait::until("systemd to try in vain", LIMIT, || async {
        machine.property("scafo.service", "NRestarts").parse().is_ok_and(|tries: u32| tries > 0).then_some(())
    })
    .await;
    machine.must("systemctl stop scafo.service").await;
    assert!(!applications().is_empty(), "they serve on\n{}", machine.journal());
    machine.must("dpkg --purge scafo").await;
    assert!(applications().is_empty(), "the package is gone and they are not");
}

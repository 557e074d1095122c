//! The node that all of this happens to.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use scafo_tests::load::{Outcome, client, send};
use scafo_tests::node::both;
use scafo_tests::{Node, Project, process, wait};

use crate::disk::Disk;

/// Applications that are under load.
pub(crate) const APPLICATIONS: usize = 20;
/// Deploys at once when the node is prepared.
const AT_ONCE: usize = 4;
const LIMIT: Duration = Duration::from_secs(120);
/// However often its process ends and is started again for good reason, an application answers within so long.
const PATIENCE: Duration = Duration::from_secs(600);
/// Between two looks at all processes.
const LOOK: Duration = Duration::from_millis(250);
/// How long the command line may take to hand a deploy over, whoever dies meanwhile.
const ACCEPTED: Duration = Duration::from_secs(60);
/// A deploy whose node dies is judged after 90 s.
const DEPLOY: Duration = Duration::from_secs(180);

/// The last word of a process whose lease was over.
const LOST: &str = "its lease expired before it could be renewed";

pub(crate) fn name(application: usize) -> String {
    format!("app-{application}")
}

pub(crate) fn host(application: usize) -> String {
    format!("{}.dev.localhost", name(application))
}

/// Says its name and what it was asked.
fn code(application: usize, edition: usize) -> String {
    let name = name(application);
    format!(
        "// Edition {edition}.\nexport default {{ async fetch(request) {{\n  const posted = request.method === 'POST';\n  \
         const said = posted ? await request.text() : new URL(request.url).search.slice(1);\n  \
         return new Response('{name} ' + said);\n}} }};\n"
    )
}

/// The node, which is another one after each death of its supervisor.
pub(crate) struct Subject {
    state: PathBuf,
    node: tokio::sync::RwLock<Option<Node>>,
    ingress: Arc<RwLock<String>>,
    projects: Vec<Project>,
}

impl Subject {
    /// The state directory.
    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    /// Starts the node and deploys everything.
    pub(crate) async fn start(disk: &Disk) -> Arc<Self> {
        let state = disk.state().to_owned();
        let node = Node::start_in(&state, &[]).await;
        let ingress = Arc::new(RwLock::new(node.dev.ingress.clone()));
        let projects: Vec<Project> = (0..APPLICATIONS).map(|number| Project::answering(&name(number), "")).collect();
        let subject = Self { state, node: tokio::sync::RwLock::new(Some(node)), ingress, projects };
        for first in (0..APPLICATIONS).step_by(AT_ONCE) {
            let some = (first..APPLICATIONS.min(first + AT_ONCE)).map(|number| subject.deploy(number, 0));
            for deployed in futures_util::future::join_all(some).await {
                deployed.unwrap_or_else(|said| panic!("a first deploy failed: {said}"));
            }
        }
        for number in 0..APPLICATIONS {
            subject.until_good(number).await;
        }
        Arc::new(subject)
    }

    pub(crate) fn ingress(&self) -> Arc<RwLock<String>> {
        Arc::clone(&self.ingress)
    }

    /// Deploys an application once more, to its end.
    ///
    /// # Errors
    /// What was said when it did not go through.
    pub(crate) async fn deploy(&self, number: usize, edition: usize) -> Result<String, String> {
        let project = &self.projects[number];
        project.write("index.js", &code(number, edition));
        let mut command = scafo_tests::node::scafo();
        command.args([OsStr::new("deploy"), project.path().as_os_str(), OsStr::new("--no-wait")]);
        command.args([OsStr::new("--state-dir"), self.state.as_os_str()]);
        let output = tokio::time::timeout(ACCEPTED, command.kill_on_drop(true).output()).await;
        let output = output.map_err(|_| format!("error: a deploy was not accepted within {ACCEPTED:?}"))?;
        let output = output.map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(both(&output));
        }
        let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let path = format!("/v1/deploys/{id}");
        // Whoever answers now: the node may be another one meanwhile.
        let what = format!("the end of {id}");
        let ended = wait::until(&what, DEPLOY, || async {
            let api = self.node.read().await.as_ref()?.api();
            let (status, deploy) = api.get(&path).await.ok()?;
            (status == 200 && ["deployed", "failed"].contains(&deploy["state"].as_str()?)).then_some(deploy)
        });
        let ended = ended.await;
        if ended["state"] == "deployed" { Ok(id) } else { Err(format!("error: {ended}")) }
    }

    /// What a deploy leaves goes a moment after its end.
    pub(crate) async fn until_nothing_is_staged(&self) {
        let stage = self.state.join("apiserver/stage");
        wait::until("all stages to be removed", LIMIT, || async {
            std::fs::read_dir(&stage).ok()?.next().is_none().then_some(())
        })
        .await;
    }

    /// Whether an application gives its answer.
    pub(crate) async fn is_good(&self, number: usize) -> bool {
        let url = self.ingress.read().unwrap().clone();
        let outcome = send(client().get(format!("{url}/?ask")).header("host", host(number))).await;
        matches!(outcome, Outcome::Answered { status: 200, body } if body == format!("{} ask", name(number)))
    }

    /// Waits until an application answers: for [`LIMIT`] after its newest process came or went. Whether it was to come sooner is
    /// judged by the node's log ([`crate::starts`]).
    pub(crate) async fn until_good(&self, number: usize) {
        let (begun, mut since, mut newest) = (Instant::now(), Instant::now(), None);
        while !self.is_good(number).await {
            let now: Vec<_> =
                self.of_applications("celld-workerd").into_iter().filter(|(of, _)| *of == number).collect();
            if newest.as_ref() != Some(&now) {
                (newest, since) = (Some(now), Instant::now());
            }
            let (all, last) = (begun.elapsed(), since.elapsed());
            assert!(
                last < LIMIT && all < PATIENCE,
                "{} does not answer, {last:?} after its process came or went",
                name(number)
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until the API works, which needs every daemon but the ingress, and the first application answers or is known to be
    /// away.
    pub(crate) async fn until_well(&self, but: &[usize]) {
        let probe = (0..APPLICATIONS).find(|number| !but.contains(number));
        wait::until("the node to be well", LIMIT, || async {
            let node = self.node.read().await;
            let api = node.as_ref()?.api();
            let fine = |outcome| matches!(outcome, Outcome::Answered { status: 200, .. });
            let reads = send(api.request(reqwest::Method::GET, "/v1/applications")).await;
            let routes = send(api.ingress("/v1/ingress/routes?prefer=self")).await;
            let served = match probe {
                Some(number) => self.is_good(number).await,
                None => true,
            };
            (fine(reads) && fine(routes) && served).then_some(())
        })
        .await;
    }

    /// The process of a daemon, once there is one.
    pub(crate) async fn until_daemon(&self, executable: &str) -> process::Process {
        wait::until(executable, LIMIT, || async { self.node.read().await.as_ref()?.daemon(executable) }).await
    }

    /// Waits until an application has another process of this kind than the one that was struck, if it was to end.
    pub(crate) async fn until_other(&self, executable: &str, number: usize, old: &process::Process, ends: bool) {
        wait::until(&format!("another {executable} of {}", name(number)), LIMIT, || async {
            let all = self.of_applications(executable);
            let other = all.iter().any(|(of, it)| *of == number && (it.pid, it.started) != (old.pid, old.started));
            (other || !ends).then_some(())
        })
        .await;
    }

    /// How often processes of each application gave up because they could not renew their lease.
    pub(crate) fn lost_leases(&self) -> Vec<usize> {
        (0..APPLICATIONS).map(|number| lost_leases(&self.state, number)).collect()
    }

    pub(crate) async fn supervisor(&self) -> Option<u32> {
        self.node.read().await.as_ref().map(|node| node.dev.pids.supervisor)
    }

    /// All processes of this kind, each with the directory that names its application. What such a process starts has its executable for a
    /// moment, until it becomes workerd, and is none of its own.
    pub(crate) fn of_applications(&self, executable: &str) -> Vec<(usize, process::Process)> {
        let mut all = process::mentioning(self.state.to_str().unwrap());
        all.retain(|process| process.name == executable);
        let pids: BTreeSet<u32> = all.iter().map(|process| process.pid).collect();
        let mut found = Vec::new();
        for process in all.into_iter().filter(|process| !pids.contains(&process.parent)) {
            if let Some(number) = application_of(process.pid) {
                found.push((number, process));
            }
        }
        found
    }

    /// The supervisor dies, and somebody starts another one at once, as a service manager does.
    pub(crate) async fn kill_supervisor(&self) {
        let mut node = self.node.write().await;
        node.take().expect("it runs").crash().await;
        let next = Node::start_in(&self.state, &[]).await;
        next.dev.ingress.clone_into(&mut self.ingress.write().unwrap());
        *node = Some(next);
    }

    /// Open descriptors of the supervisor and its daemons, by kind; other kinds of processes come and go.
    pub(crate) fn descriptors(&self) -> BTreeMap<String, usize> {
        let daemons = process::mentioning(self.state.to_str().unwrap());
        let count = |pid: u32| std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        daemons.iter().filter(|p| p.name.starts_with("scafo")).map(|p| (p.name.clone(), count(p.pid))).collect()
    }

    /// Ends the node and says what it leaves that it should not.
    pub(crate) async fn stop(&self) -> Vec<String> {
        let node = self.node.write().await.take().expect("it runs");
        let log = self.state.with_extension("log");
        // Fails when a process is left.
        node.stop().await;
        let mut left = Vec::new();
        for dir in ["run", "jobs", "processes", "apiserver/stage"] {
            let entries = std::fs::read_dir(self.state.join(dir)).into_iter().flatten().flatten();
            let paths = entries.map(|entry| entry.path().display().to_string());
            // What is known of crashes stays for the next start, and so does the lock's file.
            left.extend(
                paths.filter(|path| dir != "run" || path.ends_with(".sock")).filter(|path| !path.ends_with(".past")),
            );
        }
        let log = std::fs::read_to_string(log).unwrap_or_default();
        left.extend(log.lines().filter(|line| line.contains("panicked")).map(str::to_owned));
        left
    }

    /// The node's log, for a report.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.state.with_extension("log")).unwrap_or_default()
    }
}

/// How often processes of an application gave up because they could not renew their lease.
pub(crate) fn lost_leases(state: &Path, number: usize) -> usize {
    let log = std::fs::read(state.join(format!("logs/{}.log", name(number)))).unwrap_or_default();
    let said = String::from_utf8_lossy(&log);
    said.lines().filter(|line| line.starts_with("SELF-FENCE: ") && line.ends_with(LOST)).count()
}

fn application_of(pid: u32) -> Option<usize> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let text = format!("{}{}", String::from_utf8_lossy(&environment), String::from_utf8_lossy(&arguments));
    let rest = &text[text.find("/celld/app-")? + "/celld/app-".len()..];
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

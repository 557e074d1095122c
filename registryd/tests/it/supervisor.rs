//! A supervisor without processes: what it would start exists only as statuses, and deploy jobs do what the test says.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use scafo_core::record::ProcessState;
use scafo_core::view::ProcessStatus;
use scafo_core::{ApplicationName, Timestamp, key};
use scafo_proto::supervisor::reload_response::Outcome;
use scafo_proto::supervisor::supervisor_server::{Supervisor, SupervisorServer};
use scafo_proto::supervisor::{
    ApplyProcessesRequest, ApplyProcessesResponse, JobExited, ProcessesReport, ReloadRequest, ReloadResponse,
    RunDeployEvent, RunDeployRequest, SignNodeTokenRequest, SignNodeTokenResponse, WatchProcessesRequest,
    run_deploy_event,
};
use scafo_proto::transport::{Peers, serve, server};
use scafo_store::{Bucket as _, MemoryBucket, PutOptions};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};

/// How the next job ends.
#[derive(Debug, Clone)]
pub(crate) enum Job {
    /// It publishes this version.
    Publishes(&'static str),
    /// Moves the pointer to the version, then a signal ends it.
    Dies(&'static str),
    /// The same, and ends well, but in words that nobody knows.
    Mumbles(&'static str),
    /// It publishes this version and does not know that it did.
    Doubts(&'static str),
    /// It says this and ends with 1.
    Fails(&'static str),
    /// It does not end.
    Hangs,
}

#[derive(Debug, Default)]
struct Script {
    jobs: VecDeque<Job>,
    runs: usize,
    reloads: usize,
    /// Versions that no process can build.
    broken: Vec<String>,
    applied: Vec<String>,
    next_pid: u32,
    keyless: bool,
}

/// The stand-in; clones share everything.
#[derive(Clone)]
pub(crate) struct Fake {
    bucket: Arc<MemoryBucket>,
    script: Arc<Mutex<Script>>,
    statuses: watch::Sender<BTreeMap<ApplicationName, ProcessStatus>>,
    /// Whether orders that end something wait.
    held: watch::Sender<bool>,
}

impl Fake {
    /// Serves on `socket` for as long as `tasks` lives.
    pub(crate) fn start(socket: &Path, bucket: MemoryBucket, tasks: &mut JoinSet<()>) -> Self {
        let fake = Self {
            bucket: Arc::new(bucket),
            script: Arc::default(),
            statuses: watch::Sender::new(BTreeMap::new()),
            held: watch::Sender::new(false),
        };
        let listener = UnixListener::bind(socket).unwrap();
        let router = server().add_service(SupervisorServer::new(fake.clone()));
        tasks.spawn(async move {
            serve(listener, Peers::same_user(), router, std::future::pending()).await.unwrap();
        });
        let boots = fake.clone();
        tasks.spawn(async move { boots.boot().await });
        fake
    }

    pub(crate) fn then(&self, job: Job) {
        self.script.lock().unwrap().jobs.push_back(job);
    }

    pub(crate) fn breaks_on(&self, version: &str) {
        self.script.lock().unwrap().broken.push(version.to_owned());
    }

    /// Takes no order that ends something, or takes them again.
    pub(crate) fn holds_on(&self, held: bool) {
        self.held.send_replace(held);
    }

    /// Signs nothing from now on.
    pub(crate) fn loses_its_key(&self) {
        self.script.lock().unwrap().keyless = true;
    }

    pub(crate) fn runs(&self) -> usize {
        self.script.lock().unwrap().runs
    }

    pub(crate) fn reloads(&self) -> usize {
        self.script.lock().unwrap().reloads
    }

    pub(crate) fn applied(&self) -> Vec<String> {
        self.script.lock().unwrap().applied.clone()
    }

    /// What waits for its first deployment boots once there is one.
    async fn boot(&self) {
        loop {
            let waiting: Vec<ApplicationName> = self
                .statuses
                .borrow()
                .values()
                .filter(|status| status.state == ProcessState::Starting)
                .map(|status| status.application.clone())
                .collect();
            for name in waiting {
                if let Some(version) = self.pointer(&name).await {
                    self.set(&name, ProcessState::Ready, Some(&version));
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn set(&self, name: &ApplicationName, state: ProcessState, version: Option<&str>) {
        self.statuses.send_modify(|statuses| {
            if let Some(status) = statuses.get_mut(name) {
                status.state = state;
                status.deployment = version.map(|version| version.parse().unwrap());
            }
        });
    }

    async fn pointer(&self, name: &ApplicationName) -> Option<String> {
        let object = self.bucket.get(&key::fleet_pointer(name)).await.unwrap()?;
        let pointer: serde_json::Value = serde_json::from_slice(&object.body).unwrap();
        Some(pointer["version"].as_str().unwrap().to_owned())
    }

    async fn publish(&self, name: &ApplicationName, version: &str) {
        let pointer = serde_json::json!({
            "script_name": name, "version": version, "prefix": format!("deploy/x/{version}"), "rollout": { "percent": 100 }
        });
        let body = serde_json::to_vec_pretty(&pointer).unwrap();
        self.bucket.put(&key::fleet_pointer(name), body.into(), PutOptions::default()).await.unwrap();
    }

    async fn run(&self, request: RunDeployRequest) -> JobExited {
        let job = {
            let mut script = self.script.lock().unwrap();
            script.runs += 1;
            script.jobs.pop_front()
        };
        let exited = |code, stdout: String, stderr: String| JobExited {
            code: Some(code),
            timed_out: false,
            stdout: stdout.into_bytes().into(),
            stderr: stderr.into_bytes().into(),
            celld_version: "celld 0.6.0".into(),
        };
        match job.expect("the test says how each job ends") {
            Job::Publishes(version) => {
                self.publish(&request.application.parse().unwrap(), version).await;
                exited(
                    0,
                    format!(r#"{{"worker":"x","version":"{version}","location":"l","dry_run":false}}"#),
                    String::new(),
                )
            }
            Job::Dies(version) => {
                self.publish(&request.application.parse().unwrap(), version).await;
                JobExited { code: None, ..exited(0, String::new(), String::new()) }
            }
            Job::Mumbles(version) => {
                self.publish(&request.application.parse().unwrap(), version).await;
                exited(0, "all is well".to_owned(), String::new())
            }
            Job::Doubts(version) => {
                self.publish(&request.application.parse().unwrap(), version).await;
                exited(1, String::new(), "error: the write of current.json may have committed".to_owned())
            }
            Job::Fails(words) => {
                let tree = Path::new(&request.config_path).parent().unwrap().display().to_string();
                exited(1, String::new(), words.replace("TREE", &tree))
            }
            Job::Hangs => std::future::pending().await,
        }
    }
}

type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Supervisor for Fake {
    async fn apply_processes(
        &self,
        request: Request<ApplyProcessesRequest>,
    ) -> Result<Response<ApplyProcessesResponse>, Status> {
        let names: Vec<ApplicationName> =
            request.into_inner().processes.into_iter().map(|process| process.application.parse().unwrap()).collect();
        if self.statuses.borrow().keys().any(|running| !names.contains(running)) {
            self.held.subscribe().wait_for(|held| !held).await.unwrap();
        }
        self.script.lock().unwrap().applied = names.iter().map(ToString::to_string).collect();
        self.statuses.send_if_modified(|statuses| {
            let before = statuses.len();
            statuses.retain(|name, _| names.contains(name));
            let mut moved = statuses.len() != before;
            for (index, name) in names.into_iter().enumerate() {
                if !statuses.contains_key(&name) {
                    let mut script = self.script.lock().unwrap();
                    script.next_pid += 1;
                    let port = 24000 + 2 * u16::try_from(index).unwrap();
                    statuses.insert(name.clone(), status(name, script.next_pid, port));
                    moved = true;
                }
            }
            moved
        });
        Ok(Response::new(ApplyProcessesResponse { kept: Vec::new() }))
    }

    type WatchProcessesStream = Streamed<ProcessesReport>;

    async fn watch_processes(
        &self,
        _: Request<WatchProcessesRequest>,
    ) -> Result<Response<Self::WatchProcessesStream>, Status> {
        let reports = WatchStream::new(self.statuses.subscribe()).map(|statuses| {
            let statuses = statuses.values().map(|status| serde_json::to_vec(status).unwrap().into()).collect();
            Ok(ProcessesReport { statuses })
        });
        Ok(Response::new(Box::pin(reports)))
    }

    type RunDeployStream = Streamed<RunDeployEvent>;

    async fn run_deploy(&self, request: Request<RunDeployRequest>) -> Result<Response<Self::RunDeployStream>, Status> {
        let fake = self.clone();
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let request = request.into_inner();
        let mut job = JoinSet::new();
        job.spawn(async move {
            let event = run_deploy_event::Event::Exited(fake.run(request).await);
            let _ = sender.send(Ok(RunDeployEvent { event: Some(event) })).await;
        });
        // Dropping the stream drops the job.
        let events = tokio_stream::wrappers::ReceiverStream::new(receiver).map(move |event| {
            let _ = &job;
            event
        });
        Ok(Response::new(Box::pin(events)))
    }

    async fn reload(&self, request: Request<ReloadRequest>) -> Result<Response<ReloadResponse>, Status> {
        let name: ApplicationName = request.into_inner().application.parse().unwrap();
        self.script.lock().unwrap().reloads += 1;
        let version = self.pointer(&name).await.unwrap_or_default();
        let broken = self.script.lock().unwrap().broken.contains(&version);
        if broken {
            let error = "SyntaxError: boom".to_owned();
            return Ok(Response::new(ReloadResponse { outcome: Outcome::Failed.into(), version, error }));
        }
        self.set(&name, ProcessState::Ready, Some(&version));
        Ok(Response::new(ReloadResponse { outcome: Outcome::Adopted.into(), version, error: String::new() }))
    }

    async fn sign_node_token(
        &self,
        _: Request<SignNodeTokenRequest>,
    ) -> Result<Response<SignNodeTokenResponse>, Status> {
        if self.script.lock().unwrap().keyless {
            return Err(Status::failed_precondition("no key"));
        }
        Ok(Response::new(SignNodeTokenResponse { token: "a-token-of-this-node".to_owned() }))
    }
}

fn status(application: ApplicationName, pid: u32, port: u16) -> ProcessStatus {
    ProcessStatus {
        application,
        state: ProcessState::Starting,
        since: Timestamp::from_millis(0),
        pid: Some(pid),
        port,
        internal_port: port + 1,
        deployment: None,
        celld_version: Some("0.6.0".into()),
        restarts: 0,
        started_at: None,
        last_exit: None,
        adopted: false,
    }
}

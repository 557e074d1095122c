//! Deploy jobs: `celld deploy` for one staged project, with an environment from the table and a temporary directory of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use scafo_core::{ApplicationName, Problem, ProblemCode};
use scafo_proto::status::to_status;
use scafo_proto::supervisor::{JobExited, RunDeployEvent, run_deploy_event};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;

use crate::celld::{Launch, Runtime};
use crate::confine::{self, Confinement};
use crate::job::{self, Finished, Why};
use crate::spawn::{Bond, Exit, Input, Limits, Output, Rights, Spawner, Spec, User, proc};
use crate::state::{Lent, Users, give, private_dir};

/// Longest time that a job may take, whatever the caller says.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// How many lines wait for a reader; one that is slower misses some.
const LINES: usize = 256;
/// Processes and threads of one job.
const TASKS: u64 = 512;
/// A bundler that eats the memory goes before an application that serves.
const EASIER_TO_KILL: i32 = 500;

/// What a caller asked for, checked.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    application: ApplicationName,
    config: PathBuf,
    deadline: Duration,
}

impl Order {
    /// Checks what came over the wire.
    pub(crate) fn parse(application: &str, config: &str, timeout_ms: u64) -> Result<Self, Problem> {
        let config = PathBuf::from(config);
        let invalid = |detail: &str| Problem::new(ProblemCode::InvalidInput, detail);
        if !config.is_absolute() || !config.is_file() {
            return Err(invalid("the configuration of a deploy must be an absolute path of a file"));
        }
        if timeout_ms == 0 {
            return Err(invalid("a deploy needs a deadline"));
        }
        let deadline = Duration::from_millis(timeout_ms).min(LONGEST);
        Ok(Self { application: application.parse()?, config, deadline })
    }
}

/// Runs deploy jobs, so many at once.
#[derive(Debug, Clone)]
pub(crate) struct Runner {
    launch: Arc<Launch>,
    runtime: Arc<Runtime>,
    spawner: Spawner,
    permits: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

type Events = mpsc::Receiver<Result<RunDeployEvent, Status>>;

impl Runner {
    pub(crate) fn new(launch: Arc<Launch>, runtime: Arc<Runtime>, spawner: Spawner, at_once: u32) -> Self {
        let at_once = if launch.users.is_some() { at_once.min(Users::MOST_JOBS) } else { at_once };
        Self {
            launch,
            runtime,
            spawner,
            permits: Arc::new(Semaphore::new(usize::try_from(at_once).unwrap_or(1).max(1))),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Starts a job; dropping the receiver kills it.
    pub(crate) fn start(&self, order: Order) -> Events {
        let (events, receiver) = mpsc::channel(LINES);
        let runner = self.clone();
        self.tasks.spawn(async move {
            let last = runner.run(order, &events).await.map_err(|problem| {
                tracing::warn!(?problem, "a deploy job was not run");
                to_status(&problem)
            });
            // A receiver that is gone wanted no answer.
            let _ = events.send(last).await;
        });
        receiver
    }

    /// Kills what runs and waits until it is gone.
    pub(crate) async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    async fn run(
        &self,
        order: Order,
        events: &mpsc::Sender<Result<RunDeployEvent, Status>>,
    ) -> Result<RunDeployEvent, Problem> {
        let given_up = async {
            tokio::select! {
                () = events.closed() => {}
                () = self.stop.cancelled() => {}
            }
        };
        let permit = tokio::select! {
            biased;
            () = given_up => return Err(stopping()),
            permit = self.permits.acquire() => permit,
        };
        // The semaphore is never closed; without a permit there is simply one job more.
        let _permit = permit.ok();
        let (program, version) = self.runtime.current().await?;
        let temp = Temporary::create(&self.launch.dirs.jobs())?;
        let (user, _lent) = self.user(&temp).map_err(|error| cannot_start(&error))?;
        let project = order.config.parent().unwrap_or(&order.config);
        let allowed = confine::job(project, &temp.0, &self.launch.tools(&program), self.launch.bucket_port());
        let confined = Confinement::prepare(&allowed).map_err(|error| cannot_start(&error))?;
        let spec = Spec {
            program,
            arguments: self.launch.deploy_arguments(&order.application, &order.config),
            environment: self.environment(&version, &temp),
            directory: order.config.parent().map(Path::to_owned),
            input: Input::Nothing,
            output: Output::Piped,
            sockets: Vec::new(),
            bond: Bond::Bound,
            limits: Limits { easier_to_kill: EASIER_TO_KILL, files: None, tasks: user.as_ref().map(|_| TASKS) },
            rights: Rights { user: user.clone(), confined: Some(confined), gate: None },
        };
        let (lines, forwarding) = self.forward_lines(events.clone());
        let given_up = async {
            tokio::select! {
                () = events.closed() => {}
                () = self.stop.cancelled() => {}
            }
        };
        let finished = job::run(&self.spawner, spec, order.deadline, given_up, Some(lines)).await;
        let _ = forwarding.await;
        if let Some(user) = user {
            // The group was killed; whoever left it is still this job's user.
            proc::kill_all_of(user.uid..=user.uid);
        }
        let finished = finished.map_err(|error| cannot_start(&error))?;
        if finished.why == Why::Cancelled {
            // It did not end, it was ended: nothing follows from that for the deploy, which goes on after the start.
            return Err(stopping());
        }
        Ok(exited(finished, version.to_string()))
    }

    /// Who the job is: a user of its own, whose temporary directory this becomes, where there are such.
    fn user(&self, temp: &Temporary) -> std::io::Result<(Option<User>, Option<Lent<'_>>)> {
        let Some(users) = &self.launch.users else { return Ok((None, None)) };
        let (user, lent) = users.job()?;
        give(&temp.0, user.uid, user.gid, 0o700)?;
        Ok((Some(user), Some(lent)))
    }

    fn environment(&self, version: &crate::celld::Version, temp: &Temporary) -> BTreeMap<String, String> {
        self.launch.deploy_environment(version, &temp.0)
    }

    fn forward_lines(
        &self,
        events: mpsc::Sender<Result<RunDeployEvent, Status>>,
    ) -> (mpsc::Sender<String>, tokio::task::JoinHandle<()>) {
        let (sender, mut lines) = mpsc::channel(LINES);
        let task = self.tasks.spawn(async move {
            while let Some(line) = lines.recv().await {
                let event = RunDeployEvent { event: Some(run_deploy_event::Event::Line(line)) };
                let _ = events.try_send(Ok(event));
            }
        });
        (sender, task)
    }
}

fn stopping() -> Problem {
    Problem::new(ProblemCode::Draining, "this node is stopping")
}

fn cannot_start(error: &std::io::Error) -> Problem {
    tracing::error!(%error, "cannot start a deploy job");
    Problem::new(ProblemCode::Internal, "this node cannot start a deploy job; see its log")
}

fn exited(finished: Finished, celld_version: String) -> RunDeployEvent {
    let code = match finished.exit {
        Exit::Code(code) if finished.why == Why::ItEnded => Some(code),
        Exit::Code(_) | Exit::Signal(_) | Exit::Unknown => None,
    };
    let timed_out = finished.why == Why::Deadline;
    let exited =
        JobExited { code, timed_out, stdout: finished.stdout.into(), stderr: finished.stderr.into(), celld_version };
    RunDeployEvent { event: Some(run_deploy_event::Event::Exited(exited)) }
}

/// A directory that is removed whatever happens to its job; what a crash of ours leaves is swept at the next start.
#[derive(Debug)]
struct Temporary(PathBuf);

impl Temporary {
    fn create(jobs: &Path) -> Result<Self, Problem> {
        let path = jobs.join(hex::encode(rand::random::<[u8; 8]>()));
        private_dir(&path).map_err(|error| {
            Problem::new(ProblemCode::Internal, "this node cannot write in its state directory; see its log")
                .because(error)
        })?;
        Ok(Self(path))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "cannot remove the temporary directory of a job");
        }
    }
}

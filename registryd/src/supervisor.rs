//! The supervisor as this daemon sees it: the one that may start and stop processes.

use std::path::Path;
use std::time::Duration;

use scafo_core::view::ProcessStatus;
use scafo_core::{ApplicationName, DeployId, Problem};
use scafo_proto::status::to_problem;
use scafo_proto::supervisor::reload_response::Outcome;
use scafo_proto::supervisor::run_deploy_event::Event;
use scafo_proto::supervisor::supervisor_client::SupervisorClient;
use scafo_proto::supervisor::{
    ApplyProcessesRequest, DesiredProcess, JobExited, ReloadRequest, RunDeployRequest, SignNodeTokenRequest,
    WatchProcessesRequest,
};
use scafo_proto::transport::{QUICK, channel, within};
use tokio::sync::watch;
use tonic::Status;
use tonic::transport::Channel;

use crate::node::adoption::Reloaded;
use crate::node::apply::{Order, Process};

/// How long a reload may take: the supervisor gives the process 80 s, and passing that on takes a moment.
const RELOAD: Duration = Duration::from_secs(85);
/// What a job may take beyond its own time: being killed and swept up.
const SWEEP: Duration = Duration::from_secs(15);
/// The largest report of all processes: a thousand of them with some 600 bytes each come to 600 KiB; tonic's own bound is
/// 4 MiB.
const REPORT_BYTES: usize = 16 * 1024 * 1024;
/// Between two tries to watch: local, so cheap.
const AGAIN: Duration = Duration::from_millis(100);

/// A handle. Cheap to clone; it connects again by itself.
#[derive(Debug, Clone)]
pub(crate) struct Supervisor(SupervisorClient<Channel>, #[cfg(test)] Option<testing::Reloads>);

impl Supervisor {
    pub(crate) fn new(socket: &Path) -> Self {
        let client = SupervisorClient::new(channel(socket)).max_decoding_message_size(REPORT_BYTES);
        Self(
            client,
            #[cfg(test)]
            None,
        )
    }

    /// Replaces the whole set of processes.
    /// Answers of which other applications something is kept here.
    pub(crate) async fn apply(&self, order: &Order<'_>) -> Result<Vec<ApplicationName>, Problem> {
        let process = |(name, process): (&ApplicationName, &Process)| DesiredProcess {
            application: name.to_string(),
            deploy: process.deploy.as_ref().map(ToString::to_string).unwrap_or_default(),
            created_at: process.created_at.as_ref().map(ToString::to_string).unwrap_or_default(),
        };
        let request = ApplyProcessesRequest {
            pass: order.pass,
            run: order.run.to_owned(),
            processes: order.processes.iter().map(process).collect(),
            installation: order.installation.to_owned(),
            gone: order.gone.iter().map(ToString::to_string).collect(),
        };
        let answer = tokio::time::timeout(QUICK, self.0.clone().apply_processes(within(QUICK, request))).await;
        let kept = flat(answer).map_err(|status| to_problem(&status))?.into_inner().kept;
        Ok(kept.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Has a process look at its pointer now.
    pub(crate) async fn reload(&self, application: &ApplicationName) -> Reloaded {
        #[cfg(test)]
        if let Some(reloads) = &self.1 {
            return reloads.answer(application);
        }
        let request = ReloadRequest { application: application.to_string() };
        let answer = tokio::time::timeout(RELOAD, self.0.clone().reload(within(RELOAD, request))).await;
        let answer = match flat(answer) {
            Ok(answer) => answer.into_inner(),
            Err(status) => {
                tracing::debug!(%application, %status, "no answer to a reload");
                return Reloaded::Unavailable;
            }
        };
        match answer.outcome() {
            Outcome::Adopted | Outcome::Unchanged => {
                answer.version.parse().map_or(Reloaded::Unavailable, Reloaded::Serves)
            }
            Outcome::Failed => Reloaded::Failed { version: answer.version.parse().ok(), error: answer.error },
            Outcome::Unavailable | Outcome::Unspecified => Reloaded::Unavailable,
        }
    }

    /// Runs one deploy job to its end. Dropping the future kills the job.
    ///
    /// # Errors
    /// What the supervisor refuses it with, and `draining` when it went away in the middle.
    pub(crate) async fn run_deploy(
        &self,
        id: &DeployId,
        config_path: &str,
        timeout: Duration,
    ) -> Result<JobExited, Problem> {
        let request = RunDeployRequest {
            deploy_id: id.to_string(),
            application: id.application().to_string(),
            config_path: config_path.to_owned(),
            timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
        };
        let whole = timeout.saturating_add(SWEEP);
        let job = async {
            let mut events = self.0.clone().run_deploy(within(whole, request)).await?.into_inner();
            while let Some(event) = events.message().await? {
                match event.event {
                    Some(Event::Line(line)) => tracing::debug!(deploy = %id, %line, "deploy job"),
                    Some(Event::Exited(exited)) => return Ok(exited),
                    None => {}
                }
            }
            Err(Status::unavailable("the job's stream ended before the job did"))
        };
        flat(tokio::time::timeout(whole, job).await).map_err(|status: Status| to_problem(&status))
    }

    /// A fresh token of this node's, good for one request to another node.
    ///
    /// # Errors
    /// What the supervisor refuses it with; `draining` while it is away.
    pub(crate) async fn sign_node_token(&self) -> Result<String, Problem> {
        let mut client = self.0.clone();
        let answer = tokio::time::timeout(QUICK, client.sign_node_token(within(QUICK, SignNodeTokenRequest {}))).await;
        flat(answer).map(|reply| reply.into_inner().token).map_err(|status| to_problem(&status))
    }

    /// Follows all processes for ever; the value is `None` until the first report. Whoever ends this future ends the watch.
    pub(crate) async fn watch(self, reports: watch::Sender<Option<Vec<ProcessStatus>>>) {
        loop {
            if let Err(status) = self.follow(&reports).await {
                tracing::debug!(%status, "the supervisor does not report on its processes, trying again");
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn follow(&self, reports: &watch::Sender<Option<Vec<ProcessStatus>>>) -> Result<(), Status> {
        // No deadline: the stream lives as long as both ends do, and the transport's keep-alive notices when one does not.
        let mut stream = self.0.clone().watch_processes(WatchProcessesRequest {}).await?.into_inner();
        while let Some(report) = stream.message().await? {
            let mut statuses: Vec<ProcessStatus> = Vec::with_capacity(report.statuses.len());
            for status in &report.statuses {
                match serde_json::from_slice(status) {
                    Ok(status) => statuses.push(status),
                    Err(error) => tracing::error!(%error, "the supervisor reports a process in words unknown here"),
                }
            }
            reports.send_replace(Some(statuses));
        }
        Ok(())
    }
}

fn flat<T>(answer: Result<Result<T, Status>, tokio::time::error::Elapsed>) -> Result<T, Status> {
    answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer within the deadline")))
}

#[cfg(test)]
pub(crate) mod testing {
    //! A supervisor of which only the answers to reloads are there.

    use std::fmt;
    use std::sync::Arc;

    use super::*;

    #[derive(Clone)]
    pub(crate) struct Reloads(Arc<dyn Fn(&ApplicationName) -> Reloaded + Send + Sync>);

    impl Reloads {
        pub(super) fn answer(&self, application: &ApplicationName) -> Reloaded {
            (self.0)(application)
        }
    }

    impl fmt::Debug for Reloads {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Reloads").finish_non_exhaustive()
        }
    }

    impl Supervisor {
        pub(crate) fn answering(reloads: impl Fn(&ApplicationName) -> Reloaded + Send + Sync + 'static) -> Self {
            let Self(client, _) = Self::new(Path::new("/nonexistent/supervisor.sock"));
            Self(client, Some(Reloads(Arc::new(reloads))))
        }
    }
}

//! `scafo.supervisor.v1`: what registryd asks of us. Each call checks what came, then hands it to the one that does it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use ed25519_dalek::SigningKey;
use futures_util::{Stream, StreamExt as _};
use scafo_core::{ApplicationName, NodeId, Problem, ProblemCode, Timestamp, token};
use scafo_proto::status::to_status;
use scafo_proto::supervisor::supervisor_server::Supervisor;
use scafo_proto::supervisor::{
    ApplyProcessesRequest, ApplyProcessesResponse, DesiredProcess, ProcessesReport, ReloadRequest, ReloadResponse,
    RunDeployEvent, RunDeployRequest, SignNodeTokenRequest, SignNodeTokenResponse, WatchProcessesRequest,
    reload_response,
};
use tokio_stream::wrappers::{ReceiverStream, WatchStream};
use tonic::{Request, Response, Status};

use crate::celld::{Asked, Fleet, Order, Owner, Reload};
use crate::deploy::{self, Runner};

/// Most applications in one set: as many as the default range has pairs of ports, twice over.
const MAX_PROCESSES: usize = 8192;

/// The service.
pub(crate) struct Service {
    pub(crate) node: NodeId,
    pub(crate) key: SigningKey,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) deploys: Runner,
}

type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Supervisor for Service {
    async fn apply_processes(
        &self,
        request: Request<ApplyProcessesRequest>,
    ) -> Result<Response<ApplyProcessesResponse>, Status> {
        let request = request.into_inner();
        if request.processes.len() > MAX_PROCESSES {
            let detail = format!("a node runs at most {MAX_PROCESSES} applications");
            return Err(to_status(&Problem::new(ProblemCode::ResourceLimit, detail)));
        }
        let order = order_of(request).map_err(|problem| to_status(&problem))?;
        let kept = self.fleet.apply(&order).map_err(|problem| to_status(&problem))?;
        Ok(Response::new(ApplyProcessesResponse { kept: kept.iter().map(ToString::to_string).collect() }))
    }

    type WatchProcessesStream = Streamed<ProcessesReport>;

    async fn watch_processes(
        &self,
        _request: Request<WatchProcessesRequest>,
    ) -> Result<Response<Self::WatchProcessesStream>, Status> {
        let reports = WatchStream::new(self.fleet.watch()).map(|statuses| {
            let statuses: Result<_, _> =
                statuses.values().map(|status| serde_json::to_vec(status).map(Into::into)).collect();
            let broken =
                |error| to_status(&Problem::new(ProblemCode::Internal, "a status cannot be written").because(error));
            statuses.map(|statuses| ProcessesReport { statuses }).map_err(broken)
        });
        Ok(Response::new(Box::pin(reports)))
    }

    type RunDeployStream = Streamed<RunDeployEvent>;

    async fn run_deploy(&self, request: Request<RunDeployRequest>) -> Result<Response<Self::RunDeployStream>, Status> {
        let request = request.into_inner();
        let order = deploy::Order::parse(&request.application, &request.config_path, request.timeout_ms);
        let order = order.map_err(|problem| to_status(&problem))?;
        tracing::info!(deploy = request.deploy_id, application = request.application, "running a deploy job");
        Ok(Response::new(Box::pin(ReceiverStream::new(self.deploys.start(order)))))
    }

    async fn reload(&self, request: Request<ReloadRequest>) -> Result<Response<ReloadResponse>, Status> {
        let application: ApplicationName =
            request.into_inner().application.parse().map_err(|problem| to_status(&problem))?;
        let (outcome, version, error) = match self.fleet.reload(&application).await {
            Reload::Adopted { version } => (reload_response::Outcome::Adopted, version, String::new()),
            Reload::Unchanged { version } => (reload_response::Outcome::Unchanged, version, String::new()),
            Reload::Failed { version, error } => (reload_response::Outcome::Failed, version, error),
            Reload::Unavailable => (reload_response::Outcome::Unavailable, String::new(), String::new()),
        };
        Ok(Response::new(ReloadResponse { outcome: outcome.into(), version, error }))
    }

    async fn sign_node_token(
        &self,
        _request: Request<SignNodeTokenRequest>,
    ) -> Result<Response<SignNodeTokenResponse>, Status> {
        let now = Timestamp::from_system(SystemTime::now());
        let token = token::sign(&self.key, self.node.as_str(), now, rand::random());
        Ok(Response::new(SignNodeTokenResponse { token }))
    }
}

fn order_of(request: ApplyProcessesRequest) -> Result<Order, Problem> {
    let ApplyProcessesRequest { pass, run, processes, installation, gone } = request;
    let owner = |created_at: &str| {
        let created_at = created_at.parse().map_err(|_| {
            Problem::new(ProblemCode::InvalidInput, "the time at which an application was created is no time")
        })?;
        Ok(Owner { installation: installation.clone(), created_at })
    };
    let asked = |process: DesiredProcess| {
        let deploy = Some(process.deploy).filter(|deploy| !deploy.is_empty());
        let owner = Some(process.created_at).filter(|at| !at.is_empty()).map(|at| owner(&at)).transpose()?;
        Ok((process.application.parse()?, Asked { deploy, owner }))
    };
    let processes = processes.into_iter().map(asked).collect::<Result<_, Problem>>()?;
    let gone = gone.iter().map(|name| name.parse()).collect::<Result<_, Problem>>()?;
    Ok(Order { run, pass, installation, processes, gone })
}

//! `scafo.registry.v1.Admin`: what only the machine's own user may do.

use scafo_core::OperatorId;
use scafo_core::token::PublicKey;
use scafo_proto::registry::admin_server::{Admin, AdminServer};
use scafo_proto::registry::{InitOperatorRequest, InitOperatorResponse};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::{answer, json, parsed, ready};
use crate::daemon::Phase;

/// The service.
pub(crate) struct AdminService {
    phase: watch::Receiver<Phase>,
}

impl AdminService {
    pub(crate) const fn new(phase: watch::Receiver<Phase>) -> Self {
        Self { phase }
    }

    pub(crate) fn into_server(self) -> AdminServer<Self> {
        AdminServer::new(self)
    }
}

#[tonic::async_trait]
impl Admin for AdminService {
    async fn init_operator(
        &self,
        request: Request<InitOperatorRequest>,
    ) -> Result<Response<InitOperatorResponse>, Status> {
        let InitOperatorRequest { id, public_key, force } = request.into_inner();
        answer("InitOperator", async {
            let core = ready(&self.phase).await?;
            let id: OperatorId = id.parse()?;
            let key: PublicKey = parsed("a public key", &public_key)?;
            let operator = core.registry.init_operator(&id, &key, force).await?;
            tracing::info!(operator = %operator.id, "the first operator key is registered");
            Ok(InitOperatorResponse { operator: json(&operator) })
        })
        .await
    }
}

//! `scafo.registry.v1.Admin`: what only the machine's own user may do.

use std::sync::Arc;
use std::time::Duration;

use scafo_core::token::PublicKey;
use scafo_core::view::NodeStatus;
use scafo_core::{NodeId, OperatorId, Problem};
use scafo_proto::registry::admin_server::{Admin, AdminServer};
use scafo_proto::registry::{
    DrainNodeRequest, InitOperatorRequest, InitOperatorResponse, ListNodesRequest, NodeReply, PrepareStopReply,
    PrepareStopRequest, RemoveNodeReply, RemoveNodeRequest, UndrainNodeRequest,
};
use scafo_proto::transport::Operation;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::administration::Caller;
use super::{Chunks, answer, chunks, json, parsed, ready};
use crate::daemon::{Core, Phase};
use crate::node::parting::Parting;
use crate::node::wake::{Look, seen};
use crate::node::world::World;
use crate::registry::{DrainRequest, Life};

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
            Caller::Local.audit("InitOperator", operator.id.as_str());
            Ok(InitOperatorResponse { operator: json(&operator) })
        })
        .await
    }

    type ListNodesStream = Chunks;

    async fn list_nodes(&self, _request: Request<ListNodesRequest>) -> Result<Response<Self::ListNodesStream>, Status> {
        answer("ListNodes", async {
            let core = ready(&self.phase).await?;
            let world = look_at_nodes(&core).await?;
            let nodes: Vec<NodeStatus> =
                world.nodes.values().map(|node| NodeStatus { node: (*node.record).clone(), live: node.live }).collect();
            Ok(chunks(json(&nodes)))
        })
        .await
    }

    async fn drain_node(&self, request: Request<DrainNodeRequest>) -> Result<Response<NodeReply>, Status> {
        let DrainNodeRequest { node, force, timeout_ms } = request.into_inner();
        answer("DrainNode", async {
            let core = ready(&self.phase).await?;
            let id: NodeId = node.parse()?;
            let timeout = timeout_ms.map_or(core.settings.drain_timeout.get(), Duration::from_millis);
            let request = DrainRequest { by: Caller::Local.name().to_owned(), timeout, force };
            let node = core.registry.drain_node(&id, &request).await?;
            Caller::Local.audit("DrainNode", id.as_str());
            core.wake.look(Look::Nodes);
            Ok(NodeReply { node: json(&node) })
        })
        .await
    }

    async fn undrain_node(&self, request: Request<UndrainNodeRequest>) -> Result<Response<NodeReply>, Status> {
        let UndrainNodeRequest { node } = request.into_inner();
        answer("UndrainNode", async {
            let core = ready(&self.phase).await?;
            let id: NodeId = node.parse()?;
            let node = core.registry.undrain_node(&id).await?;
            Caller::Local.audit("UndrainNode", id.as_str());
            core.wake.look(Look::Nodes);
            Ok(NodeReply { node: json(&node) })
        })
        .await
    }

    async fn remove_node(&self, request: Request<RemoveNodeRequest>) -> Result<Response<RemoveNodeReply>, Status> {
        let operation = Operation::of(&request);
        let RemoveNodeRequest { node, force } = request.into_inner();
        answer("RemoveNode", async {
            let core = ready(&self.phase).await?;
            let id: NodeId = node.parse()?;
            let world = look_at_nodes(&core).await?;
            let life = if world.lives(&id) { Life::Live } else { Life::Silent };
            let found = async { Ok(core.registry.node(&id).await?.map(|_| "node".to_owned())) };
            let removal = Box::pin(core.registry.remove_node(&id, life, force));
            core.operations.remove(operation, found, removal).await?;
            Caller::Local.audit("RemoveNode", id.as_str());
            core.wake.look(Look::Nodes);
            Ok(RemoveNodeReply {})
        })
        .await
    }

    async fn prepare_stop(&self, _request: Request<PrepareStopRequest>) -> Result<Response<PrepareStopReply>, Status> {
        answer("PrepareStop", async {
            let core = ready(&self.phase).await?;
            let world = core.worlds.borrow().clone();
            let late = core.registry.clock().sleep(Parting::patience());
            let left = core.parting.leave(&world, &core.settings.node.id, || core.mono(), late).await?;
            let hold_ms = u64::try_from(left.hold.as_millis()).unwrap_or(u64::MAX);
            Ok(PrepareStopReply { hold_ms, applications: u32::try_from(left.applications).unwrap_or(u32::MAX) })
        })
        .await
    }
}

/// The fleet as it is now, not as the last pass saw it.
async fn look_at_nodes(core: &Arc<Core>) -> Result<Arc<World>, Problem> {
    let ticket = core.wake.look(Look::Nodes);
    seen(&mut core.worlds.subscribe(), ticket).await
}

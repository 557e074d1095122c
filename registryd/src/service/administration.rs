//! `scafo.registry.v1.Administration`: what people decide, by intent.
//!
//! Whoever calls has authenticated the caller and applied scopes and tiers, except for operator keys: there the caller's
//! record, read anew, decides. Each decision that took effect, or stood already, leaves one event under [`AUDIT`].

use std::collections::BTreeMap;
use std::sync::Arc;

use scafo_core::domain::Host;
use scafo_core::record::{ApplicationRecord, Replicas, Role, TrustPolicy, TrustRule};
use scafo_core::scope::ApplicationScope;
use scafo_core::{ApplicationName, NodeId, OperatorId, Problem, ProblemCode};
use scafo_proto::registry::administration_server::{Administration, AdministrationServer};
use scafo_proto::registry::caller::Kind;
use scafo_proto::registry::{
    self as proto, ApplicationReply, ClaimDomainRequest, DeleteApplicationRequest, DomainReply, FreezeReply,
    FreezeRequest, GetApplicationRequest, GetFreezeRequest, GetTrustRequest, ListDeploymentsRequest,
    ListDeploysRequest, ListOperatorsRequest, OperatorReply, RegisterOperatorRequest, ReleaseDomainRequest,
    RemoveTrustReply, RemoveTrustRequest, RevokeOperatorReply, RevokeOperatorRequest, SetBlockedRequest,
    SetLabelsRequest, SetReplicasRequest, SetRetiredRequest, SetSelectorRequest, SetTrustRequest, TrustReply,
    UnfreezeReply, UnfreezeRequest,
};
use scafo_proto::transport::Operation;
use serde_json::json;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::deletion::{self, Pieces, UnderWay};
use super::{Chunks, Operations, answer, chunks, json, parsed, ready};
use crate::daemon::{Core, Phase};
use crate::node::wake::Look;
use crate::registry::{Domain, Granter, NewClaim, Reason, Registration, Registry, Stored};

/// The target of events that say who decided what.
pub(crate) const AUDIT: &str = "scafo::audit";
/// How records and events name the machine's own user.
const LOCAL: &str = "local";

/// Which socket a service answers on, and so who may be behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    /// The API's.
    Api,
    /// The machine's own user's.
    Admin,
}

/// The service.
#[derive(Clone)]
pub(crate) struct AdministrationService {
    phase: watch::Receiver<Phase>,
    door: Door,
    under_way: UnderWay,
}

impl AdministrationService {
    /// The services of both doors share `under_way`.
    pub(crate) const fn new(phase: watch::Receiver<Phase>, door: Door, under_way: UnderWay) -> Self {
        Self { phase, door, under_way }
    }

    pub(crate) fn into_server(self) -> AdministrationServer<Self> {
        AdministrationServer::new(self)
    }

    async fn core(&self) -> Result<Arc<Core>, Problem> {
        ready(&self.phase).await
    }

    /// Changes one application, and has this node look at it at once.
    async fn set<F>(
        &self,
        call: &'static str,
        (operation, caller, application): (Operation, Option<proto::Caller>, String),
        change: impl FnOnce(Registry, ApplicationName) -> F + Send,
    ) -> Result<Response<ApplicationReply>, Status>
    where
        F: Future<Output = Result<ApplicationRecord, Problem>> + Send,
    {
        answer(call, async {
            let caller = Caller::of(caller, self.door)?;
            let name: ApplicationName = application.parse()?;
            let core = self.core().await?;
            let record = change(core.registry.under(operation.to_string()), name.clone()).await?;
            core.wake.look(Look::Applications);
            caller.audit(call, name.as_str());
            Ok(ApplicationReply { application: json(&record) })
        })
        .await
    }
}

/// On whose behalf a call is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Caller {
    Operator { id: OperatorId, names: Option<ApplicationScope> },
    Node(NodeId),
    Local,
}

impl Caller {
    pub(super) fn of(caller: Option<proto::Caller>, door: Door) -> Result<Self, Problem> {
        let unknown = || Problem::new(ProblemCode::Internal, "a call between two parts of this node names no caller");
        let caller = caller.ok_or_else(unknown)?;
        match caller.kind() {
            Kind::Unspecified => Err(unknown()),
            Kind::Operator => {
                let names = (!caller.applications.is_empty())
                    .then(|| ApplicationScope::try_from(caller.applications))
                    .transpose()?;
                Ok(Self::Operator { id: caller.id.parse()?, names })
            }
            Kind::Node => Ok(Self::Node(caller.id.parse()?)),
            Kind::Local if door == Door::Admin => Ok(Self::Local),
            Kind::Local => {
                let detail = "only the admin socket knows the machine's own user";
                Err(Problem::new(ProblemCode::AuthScope, detail))
            }
        }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::Operator { id, .. } => id.as_str(),
            Self::Node(id) => id.as_str(),
            Self::Local => LOCAL,
        }
    }

    const fn kind(&self) -> &'static str {
        match self {
            Self::Operator { .. } => "operator",
            Self::Node(_) => "node",
            Self::Local => LOCAL,
        }
    }

    /// Which applications a refusal may name.
    fn names(&self) -> Option<ApplicationScope> {
        match self {
            Self::Operator { names, .. } => names.clone(),
            Self::Node(_) => None,
            Self::Local => Some(ApplicationScope::all()),
        }
    }

    /// What the caller may do about operator keys, by the record that stands now.
    async fn granter(&self, core: &Core) -> Result<Granter, Problem> {
        match self {
            Self::Operator { id, .. } => match core.registry.operator(id).await? {
                Some(stored) => Ok(Granter::Operator(Box::new(stored.record))),
                // Revoked between its authentication and now.
                None => Err(Problem::new(ProblemCode::AuthInvalid, "the token does not hold up")),
            },
            Self::Node(_) => Err(Problem::new(ProblemCode::AuthScope, "operator keys are for operators to manage")),
            Self::Local => Ok(Granter::Local(LOCAL.to_owned())),
        }
    }

    /// Leaves the one event that says who decided it. Behind the API it stands in the API's log, with the request's id and what was
    /// refused too; here it is for who looks closer.
    pub(super) fn audit(&self, action: &'static str, subject: &str) {
        let (actor, kind) = (self.name(), self.kind());
        match self {
            Self::Local => tracing::info!(target: AUDIT, actor, kind, action, subject, "decided"),
            Self::Operator { .. } | Self::Node(_) => {
                tracing::debug!(target: AUDIT, actor, kind, action, subject, "decided");
            }
        }
    }
}

#[tonic::async_trait]
impl Administration for AdministrationService {
    async fn get_application(
        &self,
        request: Request<GetApplicationRequest>,
    ) -> Result<Response<ApplicationReply>, Status> {
        answer("GetApplication", async {
            let name: ApplicationName = request.into_inner().application.parse()?;
            let there = self.core().await?.registry.application(&name).await?;
            let missing = || Problem::new(ProblemCode::NotFound, format!("there is no application `{name}`"));
            Ok(ApplicationReply { application: json(&there.ok_or_else(missing)?.record) })
        })
        .await
    }

    async fn set_blocked(&self, request: Request<SetBlockedRequest>) -> Result<Response<ApplicationReply>, Status> {
        let operation = Operation::of(&request);
        let SetBlockedRequest { caller, application, blocked } = request.into_inner();
        let call = if blocked { "Block" } else { "Unblock" };
        let set = |registry: Registry, name| async move { registry.set_blocked(&name, blocked).await };
        self.set(call, (operation, caller, application), set).await
    }

    async fn set_labels(&self, request: Request<SetLabelsRequest>) -> Result<Response<ApplicationReply>, Status> {
        let operation = Operation::of(&request);
        let SetLabelsRequest { caller, application, labels } = request.into_inner();
        let labels: BTreeMap<String, String> = labels.into_iter().collect();
        let set = |registry: Registry, name| async move { registry.set_labels(&name, &labels).await };
        self.set("SetLabels", (operation, caller, application), set).await
    }

    async fn set_retired(&self, request: Request<SetRetiredRequest>) -> Result<Response<ApplicationReply>, Status> {
        let operation = Operation::of(&request);
        let SetRetiredRequest { caller, application, retired } = request.into_inner();
        let call = if retired { "Retire" } else { "Unretire" };
        let set = |registry: Registry, name| async move { registry.set_retired(&name, retired).await };
        self.set(call, (operation, caller, application), set).await
    }

    async fn set_selector(&self, request: Request<SetSelectorRequest>) -> Result<Response<ApplicationReply>, Status> {
        let operation = Operation::of(&request);
        let SetSelectorRequest { caller, application, selector } = request.into_inner();
        let selector: Option<BTreeMap<String, String>> = selector.map(|selector| selector.labels.into_iter().collect());
        let set = |registry: Registry, name| async move { registry.set_selector(&name, selector.as_ref()).await };
        self.set("SetSelector", (operation, caller, application), set).await
    }

    async fn set_replicas(&self, request: Request<SetReplicasRequest>) -> Result<Response<ApplicationReply>, Status> {
        let operation = Operation::of(&request);
        let SetReplicasRequest { caller, application, replicas } = request.into_inner();
        let set = |registry: Registry, name| async move {
            let replicas: Replicas = parsed("a number of replicas", &replicas)?;
            registry.set_replicas(&name, replicas).await
        };
        self.set("SetReplicas", (operation, caller, application), set).await
    }

    async fn claim_domain(&self, request: Request<ClaimDomainRequest>) -> Result<Response<DomainReply>, Status> {
        let ClaimDomainRequest { caller, application, host, wildcard } = request.into_inner();
        answer("ClaimDomain", async {
            let caller = Caller::of(caller, self.door)?;
            let (by, names) = (caller.name().to_owned(), caller.names());
            let claim = NewClaim { application: application.parse()?, host: host.parse()?, wildcard, by, names };
            let core = self.core().await?;
            let own = &core.settings.node.platform_domains;
            // Boxed, because it is the longest way through the registry.
            let domain = Box::pin(core.registry.claim_domain(&claim, own)).await?;
            core.wake.look(Look::Applications);
            caller.audit("ClaimDomain", &format!("{application} {host}"));
            Ok(reply(domain))
        })
        .await
    }

    async fn release_domain(&self, request: Request<ReleaseDomainRequest>) -> Result<Response<DomainReply>, Status> {
        let operation = Operation::of(&request);
        let ReleaseDomainRequest { caller, application, host } = request.into_inner();
        answer("ReleaseDomain", async {
            let caller = Caller::of(caller, self.door)?;
            let (name, host): (ApplicationName, Host) = (application.parse()?, host.parse()?);
            let core = self.core().await?;
            let own = &core.settings.node.platform_domains;
            let held = core.registry.held_since(&name, &host);
            let release = Box::pin(core.registry.release_domain(&name, &host, own));
            let domain = match core.operations.remove(operation, held, release).await? {
                Some(domain) => domain,
                None => core.registry.domain(&name, &host, own).await?,
            };
            core.wake.look(Look::Applications);
            caller.audit("ReleaseDomain", &format!("{name} {host}"));
            Ok(reply(domain))
        })
        .await
    }

    type DeleteApplicationStream = Pieces;

    async fn delete_application(
        &self,
        request: Request<DeleteApplicationRequest>,
    ) -> Result<Response<Self::DeleteApplicationStream>, Status> {
        let operation = Operation::of(&request);
        let DeleteApplicationRequest { caller, application, force, forwarded } = request.into_inner();
        let work = async {
            let caller = Caller::of(caller, self.door)?;
            let name: ApplicationName = application.parse()?;
            let core = self.core().await?;
            let asked = deletion::Asked { name: &name, force, forwarded, operation };
            let answer = deletion::delete(&core, &self.under_way, asked).await?;
            // The node that was asked first tells; the coordinator behind it only does it.
            if !forwarded && answer.is_success() {
                caller.audit("DeleteApplication", name.as_str());
            }
            Ok(answer.into_pieces())
        };
        super::answer_within(deletion::LIMIT, "DeleteApplication", work).await
    }

    type ListDeploysStream = Chunks;

    async fn list_deploys(&self, request: Request<ListDeploysRequest>) -> Result<Response<Chunks>, Status> {
        answer("ListDeploys", async {
            let name: ApplicationName = request.into_inner().application.parse()?;
            Ok(chunks(json(&self.core().await?.registry.deploys(&name).await?)))
        })
        .await
    }

    type ListDeploymentsStream = Chunks;

    async fn list_deployments(&self, request: Request<ListDeploymentsRequest>) -> Result<Response<Chunks>, Status> {
        answer("ListDeployments", async {
            let name: ApplicationName = request.into_inner().application.parse()?;
            Ok(chunks(json(&self.core().await?.registry.deployments(&name).await?)))
        })
        .await
    }

    type ListOperatorsStream = Chunks;

    async fn list_operators(&self, request: Request<ListOperatorsRequest>) -> Result<Response<Chunks>, Status> {
        answer("ListOperators", async {
            let caller = Caller::of(request.into_inner().caller, self.door)?;
            let core = self.core().await?;
            let granter = caller.granter(&core).await?;
            let operators = core.registry.operators(&granter).await?;
            let mut document = json!({ "operators": operators });
            if granter.is_narrowed() {
                document["scoped"] = true.into();
            }
            Ok(chunks(json(&document)))
        })
        .await
    }

    async fn register_operator(
        &self,
        request: Request<RegisterOperatorRequest>,
    ) -> Result<Response<OperatorReply>, Status> {
        let operation = Operation::of(&request);
        let request = request.into_inner();
        answer("RegisterOperator", async {
            let caller = Caller::of(request.caller.clone(), self.door)?;
            let asked = registration(request)?;
            let core = self.core().await?;
            let granter = caller.granter(&core).await?;
            let registry = core.registry.under(operation.to_string());
            let operator = registry.register_operator(&granter, asked).await?;
            caller.audit("RegisterOperator", operator.id.as_str());
            Ok(OperatorReply { operator: json(&operator) })
        })
        .await
    }

    async fn revoke_operator(
        &self,
        request: Request<RevokeOperatorRequest>,
    ) -> Result<Response<RevokeOperatorReply>, Status> {
        let operation = Operation::of(&request);
        let RevokeOperatorRequest { caller, id } = request.into_inner();
        Box::pin(answer("RevokeOperator", async {
            let caller = Caller::of(caller, self.door)?;
            let id: OperatorId = id.parse()?;
            let core = self.core().await?;
            let granter = caller.granter(&core).await?;
            let registry = core.registry.under(operation.to_string());
            let found = async { Ok(registry.operator(&id).await?.map(|it| it.record.created_at.to_string())) };
            core.operations.remove(operation, found, registry.revoke_operator(&granter, &id)).await?;
            caller.audit("RevokeOperator", id.as_str());
            Ok(RevokeOperatorReply {})
        }))
        .await
    }

    async fn freeze(&self, request: Request<FreezeRequest>) -> Result<Response<FreezeReply>, Status> {
        let operation = Operation::of(&request);
        let FreezeRequest { caller, reason } = request.into_inner();
        answer("Freeze", async {
            let caller = Caller::of(caller, self.door)?;
            let reason = reason.map_or(Ok(None), |reason| Reason::parse(&reason))?;
            let registry = self.core().await?.registry.under(operation.to_string());
            let frozen = registry.freeze(caller.name(), reason).await?;
            caller.audit("Freeze", "fleet");
            Ok(FreezeReply { freeze: json(&frozen.freeze), created: frozen.created })
        })
        .await
    }

    async fn unfreeze(&self, request: Request<UnfreezeRequest>) -> Result<Response<UnfreezeReply>, Status> {
        let operation = Operation::of(&request);
        answer("Unfreeze", async {
            let caller = Caller::of(request.into_inner().caller, self.door)?;
            let core = self.core().await?;
            let found = async { Ok(core.registry.frozen().await?.and_then(|freeze| freeze.write_id)) };
            // Lifted by an earlier try is lifted by this call.
            let lifted = core.operations.remove(operation, found, core.registry.unfreeze()).await?.unwrap_or(true);
            caller.audit("Unfreeze", "fleet");
            Ok(UnfreezeReply { lifted })
        })
        .await
    }

    async fn get_freeze(&self, _request: Request<GetFreezeRequest>) -> Result<Response<FreezeReply>, Status> {
        answer("GetFreeze", async {
            let there = self.core().await?.registry.frozen().await?;
            let missing = || {
                Problem::new(ProblemCode::NotFound, "this fleet takes deploys: nobody has frozen them")
                    .titled("Deploys are not frozen")
            };
            Ok(FreezeReply { freeze: json(&there.ok_or_else(missing)?.record), created: false })
        })
        .await
    }

    async fn get_trust(&self, request: Request<GetTrustRequest>) -> Result<Response<TrustReply>, Status> {
        answer("GetTrust", async {
            let name: ApplicationName = request.into_inner().application.parse()?;
            let there = self.core().await?.registry.trust(&name).await?;
            let missing = || {
                let detail = format!("`{name}` has no trust policy: `scafo trust set {name}` makes one");
                Problem::new(ProblemCode::NotFound, detail)
            };
            Ok(TrustReply { policy: json(&there.ok_or_else(missing)?.record) })
        })
        .await
    }

    async fn set_trust(&self, request: Request<SetTrustRequest>) -> Result<Response<TrustReply>, Status> {
        let operation = Operation::of(&request);
        let SetTrustRequest { caller, application, rule } = request.into_inner();
        answer("SetTrust", async {
            let caller = Caller::of(caller, self.door)?;
            let name: ApplicationName = application.parse()?;
            let rule: TrustRule = parsed("a trust rule", &rule)?;
            let registry = self.core().await?.registry.under(operation.to_string());
            let policy = registry.set_trust(&name, &rule).await?;
            caller.audit("SetTrust", name.as_str());
            Ok(TrustReply { policy: json(&policy) })
        })
        .await
    }

    async fn remove_trust(&self, request: Request<RemoveTrustRequest>) -> Result<Response<RemoveTrustReply>, Status> {
        let operation = Operation::of(&request);
        let RemoveTrustRequest { caller, application, issuer } = request.into_inner();
        Box::pin(answer("RemoveTrust", async {
            let caller = Caller::of(caller, self.door)?;
            let name: ApplicationName = application.parse()?;
            let issuer = Some(issuer.as_str()).filter(|issuer| !issuer.is_empty());
            let core = self.core().await?;
            let removed = remove_trust(&core.registry, &core.operations, operation, &name, issuer).await?;
            caller.audit("RemoveTrust", name.as_str());
            Ok(RemoveTrustReply { removed })
        }))
        .await
    }
}

/// Removes what a policy has of this issuer, or the policy when none is named. Answers whether there was anything to remove.
async fn remove_trust(
    registry: &Registry,
    operations: &Operations,
    operation: Operation,
    name: &ApplicationName,
    issuer: Option<&str>,
) -> Result<bool, Problem> {
    let noted = operations.noted(operation).await;
    let found = async { Ok(registry.trust(name).await?.and_then(|it| concerned(it, issuer, noted.as_deref()))) };
    let registry = registry.under(operation.to_string());
    Ok(operations.remove(operation, found, registry.remove_trust(name, issuer)).await?.unwrap_or(true))
}

/// What of a policy there is to remove; `noted` is what an earlier try found. A policy made anew is another one, and one that was
/// changed is the same. Rules that are set anew are told apart by the operation, which their removal leaves in the policy.
fn concerned(stored: Stored<TrustPolicy>, issuer: Option<&str>, noted: Option<&str>) -> Option<String> {
    if let Some(issuer) = issuer {
        return stored.record.rules.iter().any(|rule| rule.issuer == issuer).then(|| issuer.to_owned());
    }
    let same = noted.filter(|id| stored.descends_from(id)).map(ToOwned::to_owned);
    Some(same.or(stored.write_id).unwrap_or_else(|| stored.etag.opaque().to_owned()))
}

fn registration(request: RegisterOperatorRequest) -> Result<Registration, Problem> {
    let role = match request.role.as_str() {
        "" => None,
        "admin" => Some(Role::Admin),
        "operator" => Some(Role::Operator),
        _ => {
            let detail = "`role` is `admin` or `operator`";
            return Err(Problem::new(ProblemCode::InvalidInput, detail));
        }
    };
    Ok(Registration {
        id: request.id.parse()?,
        public_key: parsed("a public key", &request.public_key)?,
        role,
        supersedes: (!request.supersedes.is_empty()).then(|| request.supersedes.parse()).transpose()?,
        applications: request.applications.map(|reach| ApplicationScope::try_from(reach.entries)).transpose()?,
    })
}

fn reply(domain: Domain) -> DomainReply {
    let Domain { application, host, platform_hosts } = domain;
    DomainReply { application: json(&application), host: host.to_string(), platform_hosts }
}

#[cfg(test)]
mod tests {
    use scafo_store::{Fault, Operation as Request};

    use super::*;
    use crate::registry::testing::World;

    const ISSUER: &str = "https://a.example";

    fn rule(issuer: &str) -> TrustRule {
        serde_json::from_value(json!({ "issuer": issuer, "subjects": ["x"] })).unwrap()
    }

    /// A removal in a daemon that is killed when the request which changes something is on its way.
    async fn killed(
        world: &World,
        fault: Fault,
        (operations, operation): (&Operations, Operation),
        (name, issuer): (&ApplicationName, Option<&str>),
    ) {
        let (daemon, kill) = (world.sibling(), Arc::new(tokio::sync::Notify::new()));
        let trigger = Arc::clone(&kill);
        daemon.memory.plan(move |request| {
            matches!(request, Request::Put(..) | Request::Delete(_)).then(|| {
                trigger.notify_one();
                fault
            })
        });
        tokio::select! {
            biased;
            () = kill.notified() => {}
            removed = remove_trust(&daemon.registry, operations, operation, name, issuer) => panic!("{removed:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_removal_of_trust_that_comes_again_leaves_what_was_set_anew() {
        for issuer in [None, Some(ISSUER)] {
            let (world, operations, operation) = (World::new(), Operations::in_memory(), Operation::fresh());
            let shop: ApplicationName = "shop".parse().unwrap();
            let set = world.registry.set_trust(&shop, &rule(ISSUER)).await.unwrap();
            killed(&world, Fault::LoseAnswer, (&operations, operation), (&shop, issuer)).await;
            let anew = world.registry.set_trust(&shop, &rule(ISSUER)).await.unwrap();
            assert_eq!(anew.rules, set.rules);
            assert!(remove_trust(&world.registry, &operations, operation, &shop, issuer).await.unwrap());
            assert_eq!(world.registry.trust(&shop).await.unwrap().unwrap().record, anew, "{issuer:?}");
            assert!(remove_trust(&world.registry, &operations, Operation::fresh(), &shop, issuer).await.unwrap());
            let left = world.registry.trust(&shop).await.unwrap();
            assert!(left.is_none_or(|stored| stored.record.rules.is_empty()), "another call is another removal");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_removal_of_trust_that_comes_again_takes_the_policy_with_what_was_added_to_it() {
        let (world, operations, operation) = (World::new(), Operations::in_memory(), Operation::fresh());
        let shop: ApplicationName = "shop".parse().unwrap();
        world.registry.set_trust(&shop, &rule(ISSUER)).await.unwrap();
        killed(&world, Fault::LoseRequest, (&operations, operation), (&shop, None)).await;
        let changed = world.registry.set_trust(&shop, &rule("https://b.example")).await.unwrap();
        assert_eq!(changed.rules.len(), 2);
        assert!(remove_trust(&world.registry, &operations, operation, &shop, None).await.unwrap());
        assert!(world.registry.trust(&shop).await.unwrap().is_none());
    }

    #[test]
    fn only_the_admin_socket_knows_the_machines_own_user() {
        let caller =
            |kind: Kind, id: &str| Some(proto::Caller { kind: kind.into(), id: id.to_owned(), applications: vec![] });
        assert_eq!(Caller::of(caller(Kind::Local, ""), Door::Admin).unwrap(), Caller::Local);
        assert_eq!(Caller::of(caller(Kind::Local, ""), Door::Api).unwrap_err().code, ProblemCode::AuthScope);
        for door in [Door::Api, Door::Admin] {
            assert_eq!(Caller::of(caller(Kind::Operator, "op-1"), door).unwrap().name(), "op-1");
            assert_eq!(Caller::of(caller(Kind::Node, "a"), door).unwrap().kind(), "node");
            for nobody in [None, caller(Kind::Unspecified, "op-1"), caller(Kind::Operator, "../x")] {
                assert!(Caller::of(nobody, door).is_err());
            }
        }
    }
}

//! What a node's API answers an admin, from the records themselves: for commands that ask either.

use std::collections::BTreeMap;

use reqwest::Method;
use scafo_core::record::{ApplicationRecord, PlacementRecord, Replicas, Role};
use scafo_core::scope::ApplicationScope;
use scafo_core::token::PublicKey;
use scafo_core::{ApplicationName, OperatorId, Problem, ProblemCode};
use scafo_registryd::registry::{Cache, Domain, NewClaim, Read, Reason, Registration};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{BY, Direct};

/// What bodies of requests say. A request says one of these.
#[derive(Debug, Default, Deserialize)]
struct Said {
    labels: Option<BTreeMap<String, String>>,
    selector: Option<BTreeMap<String, String>>,
    replicas: Option<Replicas>,
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewKey {
    id: OperatorId,
    public_key: PublicKey,
    role: Option<Role>,
    applications: Option<ApplicationScope>,
}

impl Direct {
    /// The answer to a request of a command.
    ///
    /// # Errors
    /// The same refusals as a node's; `capability-missing` for what only a node can do.
    pub(in crate::commands) async fn answer(
        &self,
        method: &Method,
        path: &str,
        content: Option<&Value>,
    ) -> Result<Value, Problem> {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let parts: Vec<&str> = path.trim_start_matches("/v1/").split('/').collect();
        let answer = match (method.as_str(), parts.as_slice()) {
            ("GET", ["applications"]) => self.applications().await,
            ("GET", ["applications", name]) => self.application(&name.parse()?).await,
            ("DELETE", ["applications", _]) => Err(only_a_node("a deletion is done by the node that coordinates")),
            ("POST", ["applications", name, what]) => self.change(&name.parse()?, what, content).await,
            ("POST", ["applications", name, "domains", host]) => {
                let wildcard = query == "wildcard=1";
                let names = Some(ApplicationScope::all());
                let claim =
                    NewClaim { application: name.parse()?, host: host.parse()?, wildcard, by: BY.to_owned(), names };
                self.registry.claim_domain(&claim, &[]).await.map(|claimed| domain(&claimed))
            }
            ("DELETE", ["applications", name, "domains", host]) => {
                let released = self.registry.release_domain(&name.parse()?, &host.parse()?, &[]).await;
                released.map(|released| domain(&released))
            }
            ("GET", ["state"]) => self.state().await,
            (_, ["fleet", "freeze"]) => self.freeze(method, content).await,
            ("GET", ["operators"]) => {
                self.registry.operators(&Self::granter()).await.map(|all| json!({ "operators": all }))
            }
            ("POST", ["operators"]) => self.register(content).await,
            ("DELETE", ["operators", id]) => {
                let id: OperatorId = id.parse()?;
                self.registry.revoke_operator(&Self::granter(), &id).await.map(|()| json!({ "removed": id }))
            }
            _ => Err(only_a_node("this is a node's to answer")),
        };
        if *method == Method::GET { answer } else { self.hinted(answer).await }
    }

    async fn applications(&self) -> Result<Value, Problem> {
        let mut cache: Cache<ApplicationRecord> = Cache::default();
        cache.refresh(self.registry.engine(), Read::Moved).await?;
        let mut all: Vec<&ApplicationRecord> = cache.iter().map(|stored| &stored.record).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(json!({ "applications": all }))
    }

    async fn application(&self, name: &ApplicationName) -> Result<Value, Problem> {
        let there = self.registry.application(name).await?;
        let missing = || Problem::new(ProblemCode::NotFound, format!("there is no application `{name}`"));
        there.map(|stored| json!({ "application": stored.record })).ok_or_else(missing)
    }

    async fn change(&self, name: &ApplicationName, what: &str, content: Option<&Value>) -> Result<Value, Problem> {
        let Said { labels, selector, replicas, .. } = said(content)?;
        let registry = &self.registry;
        let record = match what {
            "block" => registry.set_blocked(name, true).await?,
            "unblock" => registry.set_blocked(name, false).await?,
            "retire" => registry.set_retired(name, true).await?,
            "unretire" => registry.set_retired(name, false).await?,
            "labels" => registry.set_labels(name, &labels.unwrap_or_default()).await?,
            "selector" => registry.set_selector(name, selector.as_ref()).await?,
            "replicas" => registry.set_replicas(name, replicas.unwrap_or_default()).await?,
            _ => return Err(only_a_node("this is a node's to do")),
        };
        Ok(json!({ "application": record }))
    }

    async fn freeze(&self, method: &Method, content: Option<&Value>) -> Result<Value, Problem> {
        match method.as_str() {
            "POST" => {
                let reason = said(content)?.reason.as_deref().map(Reason::parse).transpose()?.flatten();
                let frozen = self.registry.freeze(BY, reason).await?;
                Ok(json!({ "freeze": frozen.freeze, "created": frozen.created }))
            }
            "DELETE" => Ok(json!({ "lifted": self.registry.unfreeze().await? })),
            _ => match self.registry.frozen().await? {
                Some(stored) => Ok(json!({ "freeze": stored.record })),
                None => Err(Problem::new(ProblemCode::NotFound, "deploys are not frozen")),
            },
        }
    }

    async fn register(&self, content: Option<&Value>) -> Result<Value, Problem> {
        let NewKey { id, public_key, role, applications } =
            NewKey::deserialize(content.unwrap_or(&Value::Null)).map_err(unreadable)?;
        let asked = Registration { id, public_key, role, supersedes: None, applications };
        let operator = self.registry.register_operator(&Self::granter(), asked).await?;
        Ok(json!({ "operator": operator }))
    }

    /// As far as records show it: what runs on a node only that node knows.
    async fn state(&self) -> Result<Value, Problem> {
        let lease = self.lease().await?;
        let standing = lease.as_ref().filter(|(_, stands)| *stands);
        let coordinator = standing.map(|(lease, _)| json!({ "node": lease.node, "fence": lease.fence, "self": false }));
        let mut cache: Cache<PlacementRecord> = Cache::default();
        cache.refresh(self.registry.engine(), Read::Moved).await?;
        let placements: Vec<Value> = cache
            .iter()
            .map(|stored| &stored.record)
            .map(|placement| {
                json!({ "application": placement.application, "nodes": placement.nodes, "fence": placement.fence,
                        "here": false })
            })
            .collect();
        Ok(json!({ "node": null, "lease": lease.map(|(lease, _)| lease), "coordinator": coordinator, "processes": [],
                   "placements": placements }))
    }
}

fn said(content: Option<&Value>) -> Result<Said, Problem> {
    content.map_or_else(|| Ok(Said::default()), |content| Said::deserialize(content).map_err(unreadable))
}

#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` calls")]
fn unreadable(error: serde_json::Error) -> Problem {
    Problem::new(ProblemCode::InvalidInput, error.to_string())
}

fn domain(domain: &Domain) -> Value {
    json!({ "application": domain.application, "host": domain.host, "platformHosts": domain.platform_hosts })
}

fn only_a_node(why: &str) -> Problem {
    let detail = format!("{why}: leave --bucket out and name a node");
    Problem::new(ProblemCode::CapabilityMissing, detail).titled("Needs a node")
}

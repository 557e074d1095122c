//! Who calls: node and operator tokens, workload tokens, and ingress tokens.
//!
//! Every token that does not hold up is refused with the same words, whatever is wrong with it; the log has the reason. A
//! registry daemon that is away is never the caller's fault: then the answer is `draining`.

mod bearer;
mod ingress;
mod keys;
mod oidc;
mod replay;

use std::path::Path;
use std::sync::Arc;

use http::HeaderMap;
use scafo_core::id::{ApplicationName, NodeId, is_label};
use scafo_core::problem::{Problem, ProblemCode};
use scafo_core::record::{OperatorRecord, Role};
use scafo_core::token::{PublicKey, Unverified};
use scafo_proto::boot::Boot;
use scafo_telemetry::metrics::{Counter, Family};

pub(crate) use self::ingress::IngressTokens;
use self::keys::Keys;
use self::oidc::{Claim, Policies, Workloads, is_workload};
pub(crate) use self::oidc::{Turned, Workload};
use self::replay::Replay;
use crate::clock::Clock;
use crate::figures::Outcome;
use crate::registry::Registry;

/// How events name the kind of a job of a CI system.
pub(crate) const WORKLOAD: &str = "workload";

/// The verified caller of a request.
#[derive(Debug, Clone)]
pub(crate) enum Caller {
    /// A machine of the fleet; it reaches every application.
    Node(NodeId),
    /// An operator key.
    Operator(Box<OperatorRecord>),
    /// A job of a CI system, on the deploy routes of one application.
    Workload(Box<Workload>),
}

impl Caller {
    /// Its id, as it stands in records.
    pub(crate) fn id(&self) -> &str {
        match self {
            Self::Node(id) => id.as_str(),
            Self::Operator(record) => record.id.as_str(),
            Self::Workload(workload) => &workload.by,
        }
    }

    /// The operator, on a route that answers operators only.
    ///
    /// # Errors
    /// `auth-scope` for a node.
    pub(crate) fn operator(&self) -> Result<&OperatorRecord, Problem> {
        match self {
            Self::Operator(record) => Ok(record),
            Self::Node(_) | Self::Workload(_) => Err(Problem::new(
                ProblemCode::AuthScope,
                "this route answers operator tokens only; sign the request with an operator key",
            )),
        }
    }

    /// Refuses an application that the caller does not reach, without saying what it does reach.
    ///
    /// # Errors
    /// `auth-scope`.
    pub(crate) fn must_reach(&self, application: &ApplicationName) -> Result<(), Problem> {
        match self {
            Self::Operator(record) if !record.applications.reaches(application) => Err(Problem::new(
                ProblemCode::AuthScope,
                format!("this operator key does not reach the application `{application}`"),
            )),
            Self::Workload(workload) if workload.application != *application => Err(Problem::new(
                ProblemCode::AuthScope,
                format!("this workload token was not admitted for the application `{application}`"),
            )),
            Self::Operator(_) | Self::Node(_) | Self::Workload(_) => Ok(()),
        }
    }

    /// The operator whose scope narrows what is read; `None` for a caller who sees everything. A workload is never asked
    /// about: it is a caller on routes of one application only.
    pub(crate) fn narrowed(&self) -> Option<&OperatorRecord> {
        match self {
            Self::Operator(record) if record.role == Role::Operator => Some(record),
            Self::Operator(_) | Self::Node(_) | Self::Workload(_) => None,
        }
    }

    /// What kind of caller it is, for events.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Node(_) => "node",
            Self::Operator(_) => "operator",
            Self::Workload(_) => WORKLOAD,
        }
    }

    /// What the token of a workload said about where it comes from, for the records.
    pub(crate) fn provenance(&self) -> Option<&serde_json::Value> {
        match self {
            Self::Workload(workload) => Some(&workload.provenance),
            Self::Operator(_) | Self::Node(_) => None,
        }
    }
}

/// A key and whose it is.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    pub(crate) public_key: PublicKey,
    pub(crate) caller: Caller,
}

/// How old the record behind a key may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// Up to a minute.
    Cached,
    /// Read for this request.
    Now,
}

/// Decides who calls.
pub(crate) struct Authenticator {
    clock: Arc<dyn Clock>,
    keys: Keys,
    replay: Replay,
    policies: Policies,
    workloads: Workloads,
}

impl Authenticator {
    /// # Errors
    /// When the ids of used tokens cannot be read back from `dir` or will not be writable.
    pub(crate) fn open(dir: &Path, registry: Registry, clock: Arc<dyn Clock>) -> std::io::Result<Self> {
        let replay = Replay::open(dir, clock.wall(), clock.mono(), Boot::uptime())?;
        Ok(Self {
            policies: Policies::new(registry.channel()),
            workloads: Workloads::new(clock.clone()),
            keys: Keys::new(registry, clock.clone()),
            replay,
            clock,
        })
    }

    /// Questions to issuers so far, by outcome.
    pub(crate) fn fetches(&self) -> Family<Outcome, Counter> {
        self.workloads.fetches()
    }

    /// How many ids of used tokens are remembered.
    pub(crate) fn used_tokens(&self) -> usize {
        self.replay.remembered()
    }

    /// Verifies the caller of a deploy route, who may be a workload that the trust policy of `application` admits; `None` when
    /// the path names no application, which no policy is about.
    ///
    /// # Errors
    /// As [`Authenticator::verify`], and `trust-mismatch`, with who it is where the token itself holds up.
    pub(crate) async fn verify_deployer(
        &self,
        headers: &HeaderMap,
        application: Option<&ApplicationName>,
        freshness: Freshness,
    ) -> Result<Caller, Turned> {
        let Some(token) = bearer::token(headers).filter(|token| is_workload(token)) else {
            return Ok(self.verify(headers, freshness).await?);
        };
        let claim = Claim::read(token, self.clock.wall())?;
        let application = application.ok_or_else(|| refused("a workload token where there is no application"))?;
        let policy = self.policies.get(application).await?;
        let workload = self.workloads.admit(claim, application, policy.as_ref()).await?;
        Ok(Caller::Workload(Box::new(workload)))
    }

    /// Verifies the node or operator token of a request and marks it as used.
    ///
    /// # Errors
    /// `auth-invalid`, the same for every cause; `draining` or `store-unavailable` when it cannot be told.
    pub(crate) async fn verify(&self, headers: &HeaderMap, freshness: Freshness) -> Result<Caller, Problem> {
        let token = bearer::token(headers).ok_or_else(|| refused("no bearer token"))?;
        let unverified = Unverified::parse(token).map_err(refused)?;
        if !is_label(unverified.kid()) {
            return Err(refused("a kid that is no id"));
        }
        let key = self.keys.get(unverified.kid(), freshness).await?;
        let now = self.clock.wall();
        let Some(key) = key else {
            // Costs what a wrong signature costs, so that time does not tell which ids exist.
            let _ = unverified.verify(keys::nobody(), now);
            return Err(refused("an unknown kid"));
        };
        let claims = unverified.verify(&key.public_key, now).map_err(refused)?;
        match self.replay.accept(&claims, now, self.clock.mono())? {
            replay::Outcome::First => Ok(key.caller.clone()),
            replay::Outcome::Used => Err(refused("a token that was used before")),
        }
    }
}

/// The one refusal. `reason` is for the log.
fn refused(reason: impl std::fmt::Display) -> Problem {
    unauthenticated().because(reason)
}

/// The words of the one refusal.
pub(crate) fn unauthenticated() -> Problem {
    Problem::new(
        ProblemCode::AuthInvalid,
        "this route needs a valid token in the `Authorization: Bearer` header; sign a fresh one for each request",
    )
}

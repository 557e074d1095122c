//! What this process counts. Labels come from sets that are bounded: routes as they stand in the table, methods, statuses, codes.

use std::sync::Arc;

use http::StatusCode;
use prometheus_client::encoding::EncodeLabelSet;
use scafo_core::problem::{Problem, ProblemCode};
use scafo_telemetry::metrics::{Counter, Family, Gauge, Histogram, Kind, Metrics, Registry, Unit, read, seconds};

use crate::auth::Authenticator;
use crate::deploy::Intake;

/// How a request, a deploy or anything else ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Outcome {
    outcome: &'static str,
}

impl Outcome {
    pub(crate) const fn new(outcome: &'static str) -> Self {
        Self { outcome }
    }

    /// `done`, or the code of the refusal.
    pub(crate) fn of<T>(result: Result<T, ProblemCode>) -> Self {
        Self::new(result.map_or_else(ProblemCode::as_str, |_| "done"))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    method: &'static str,
    route: &'static str,
    status: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Status {
    status: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    method: &'static str,
    route: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Action {
    method: &'static str,
    route: &'static str,
    outcome: &'static str,
}

/// The figures that are kept. Clones count together.
#[derive(Debug, Clone)]
pub(crate) struct Figures {
    answered: Family<Answered, Counter>,
    seconds: Family<Route, Histogram, fn() -> Histogram>,
    open: Gauge,
    /// What hyper refused before it was a request, by status.
    unread: Family<Status, Counter>,
    decided: Family<Action, Counter>,
    /// Deploys, by how their upload was answered.
    pub(crate) intake: Family<Outcome, Counter>,
    /// Acknowledged deploys, by how they ended.
    pub(crate) deploys: Family<Outcome, Counter>,
    /// Routing documents that were served while the router was away.
    pub(crate) stale_documents: Counter,
}

impl Default for Figures {
    fn default() -> Self {
        Self {
            answered: Family::default(),
            seconds: Family::new_with_constructor(seconds),
            open: Gauge::default(),
            unread: Family::default(),
            decided: Family::default(),
            intake: Family::default(),
            deploys: Family::default(),
            stale_documents: Counter::default(),
        }
    }
}

/// A request that is being answered.
pub(crate) struct Open(Gauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Figures {
    /// Counts a request until it is answered.
    pub(crate) fn open(&self) -> Open {
        self.open.inc();
        Open(self.open.clone())
    }

    pub(crate) fn answered(&self, method: &'static str, route: &'static str, status: u16, took_s: f64) {
        self.answered.get_or_create(&Answered { method, route, status: status.into() }).inc();
        self.seconds.get_or_create(&Route { method, route }).observe(took_s);
    }

    /// Counts what was refused before it was a request.
    pub(crate) fn unread(&self, status: StatusCode) {
        self.unread.get_or_create(&Status { status: status.as_u16().into() }).inc();
    }

    /// Counts an administrative action.
    pub(crate) fn decided(&self, method: &'static str, route: &'static str, outcome: &'static str) {
        self.decided.get_or_create(&Action { method, route, outcome }).inc();
    }

    /// Counts how an upload was answered.
    pub(crate) fn taken<T>(&self, answer: &Result<T, Problem>) {
        self.intake.get_or_create(&Outcome::of(answer.as_ref().map_err(|problem| problem.code))).inc();
    }

    /// Everything that this process counts, with what is read when somebody asks.
    pub(crate) fn metrics(&self, authenticator: Arc<Authenticator>, intake: Arc<Intake>) -> Metrics {
        Metrics::new("apiserver", |registry| {
            self.register(registry);
            registry.register(
                "oidc_fetches",
                "Questions to issuers of workload tokens, by outcome",
                authenticator.fetches(),
            );
            let tokens = ("used_tokens", "Ids of used tokens that are remembered", None);
            read(registry, Kind::Gauge, tokens, move || vec![(vec![], authenticator.used_tokens() as f64)]);
            let room = move |of: fn(&Intake) -> (f64, f64)| {
                let intake = intake.clone();
                move || {
                    let (used, limit) = of(&intake);
                    vec![(vec![("of", "used".to_owned())], used), (vec![("of", "limit".to_owned())], limit)]
                }
            };
            let queue = ("deploy_queue", "Deploys under way, and how many may be", None);
            read(registry, Kind::Gauge, queue, room(Intake::deploys));
            let staged = ("deploy_staged", "Bytes of artifacts and trees, and how many may be", Some(Unit::Bytes));
            read(registry, Kind::Gauge, staged, room(Intake::bytes));
        })
    }

    fn register(&self, registry: &mut Registry) {
        registry.register("http_requests", "Requests of the API, by route and status", self.answered.clone());
        let about = "How long until the head of the answer";
        registry.register_with_unit("http_request_duration", about, Unit::Seconds, self.seconds.clone());
        registry.register("http_requests_open", "Requests that are being answered", self.open.clone());
        let about = "What was refused before it was a request, by status";
        registry.register("http_unread", about, self.unread.clone());
        registry.register("admin_actions", "Administrative actions, by outcome", self.decided.clone());
        registry.register("deploy_uploads", "Uploads, by how they were answered", self.intake.clone());
        registry.register("deploys", "Acknowledged deploys, by how they ended", self.deploys.clone());
        let about = "Routing documents served while the router was away";
        registry.register("routing_stale", about, self.stale_documents.clone());
    }
}

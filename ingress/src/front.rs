//! One request: decide, forward, fail over, answer.

use std::{net::IpAddr, sync::Arc, time::Duration};

use http::{Request, Response, header::HOST};
use hyper::body::Incoming;
use scafo_proxy::{Failure, FailureKind, Forwarder, Limits, Outbound, Tunnels, Unforwardable, Upstream};
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, timeout_at},
};

use crate::{
    answer::{Answer, Refusal, health},
    decide::{Decision, Routing},
    document::Target,
    forwarded,
    host::Host,
    marks::Marks,
};

/// Answered to a peer on loopback on every host that no document names.
pub(crate) const HEALTH_PATH: &str = "/.well-known/scafo-ingress/health";

/// How many upstreams one request is offered to at most. 3, as many as the Traefik rendering asks for; with the connect
/// deadline of 3 s the client has its answer within 9 s, and the marks spare the next one the dead ones.
const MOST_ATTEMPTS: usize = 3;

/// How long an application may think before its response head. Nothing in scafo promises less; 5 min is what the
/// slowest usual limit of a client in front allows, and keeps a hung process from holding requests for ever.
const RESPONSE_HEAD_LIMIT: Duration = Duration::from_secs(300);

/// Everything that a request needs.
pub(crate) struct Front {
    routing: watch::Receiver<Arc<Routing>>,
    forwarder: Forwarder<Incoming>,
    tunnels: Tunnels,
    marks: Marks,
    requests: Arc<Semaphore>,
    first_documents_by: Instant,
}

impl Front {
    /// A front that forwards at most `most_requests` at a time, and for `first_wait` from now holds those that it cannot
    /// decide before the first documents have come.
    pub(crate) fn new(
        routing: watch::Receiver<Arc<Routing>>,
        tunnels: Tunnels,
        most_requests: usize,
        first_wait: Duration,
    ) -> Self {
        let limits = Limits { response_head: Some(RESPONSE_HEAD_LIMIT), ..Limits::default() };
        let requests = Arc::new(Semaphore::new(most_requests.min(Semaphore::MAX_PERMITS)));
        Self {
            routing,
            forwarder: Forwarder::new(limits),
            tunnels,
            marks: Marks::default(),
            requests,
            first_documents_by: Instant::now() + first_wait,
        }
    }

    /// Answers one request of `peer`.
    pub(crate) async fn answer(&self, peer: IpAddr, request: Request<Incoming>) -> Response<Answer> {
        let version = request.version();
        let mut outbound = match Outbound::new(request) {
            Ok(outbound) => outbound,
            Err(unforwardable) => return refused(unforwardable).response(),
        };
        let host = outbound.headers().get(HOST).and_then(|host| host.to_str().ok()).and_then(Host::parse);
        let path = outbound.uri().path();
        let wants_health = path == HEALTH_PATH && peer.to_canonical().is_loopback();
        let (routing, decision) = self.decide(host.as_ref(), path, wants_health).await;
        let refusal = match decision {
            Decision::Forward(target) => {
                forwarded::set(outbound.headers_mut(), peer, version);
                match self.forward(&target, outbound).await {
                    Ok(response) => return response,
                    Err(refusal) => refusal,
                }
            }
            Decision::Unknown | Decision::Unavailable if wants_health => return health_of(&routing),
            Decision::Denied => Refusal::Denied,
            Decision::Unknown => Refusal::UnknownHost,
            Decision::Unavailable => Refusal::NoDocument,
        };
        refusal.response()
    }

    /// Decides at once if that is possible, or if the start is long ago; else when the first documents are there. A
    /// question for health never waits.
    async fn decide(&self, host: Option<&Host>, path: &str, wants_health: bool) -> (Arc<Routing>, Decision) {
        let mut routing = self.routing.clone();
        let held = Arc::clone(&routing.borrow());
        let decision = held.decide(host, path);
        if decision != Decision::Unavailable || wants_health || Instant::now() >= self.first_documents_by {
            return (held, decision);
        }
        let complete = routing.wait_for(|routing| routing.fleets.iter().all(Option::is_some));
        // Late, or the polls have ended: what is known now has to do.
        drop(timeout_at(self.first_documents_by, complete).await);
        let held = Arc::clone(&self.routing.borrow());
        let decision = held.decide(host, path);
        (held, decision)
    }

    /// Offers the request to the upstreams, one after the other, as long as that cannot make anything happen twice.
    async fn forward(&self, target: &Target, mut outbound: Outbound<Incoming>) -> Result<Response<Answer>, Refusal> {
        let place = Arc::clone(&self.requests).try_acquire_owned().map_err(|_| Refusal::Full)?;
        for upstream in self.marks.order(&target.upstreams, Instant::now()).into_iter().take(MOST_ATTEMPTS) {
            let failure = match self.forwarder.forward(upstream, outbound, &self.tunnels).await {
                Ok(response) => {
                    if target.upstreams.len() > 1 {
                        self.marks.clear(upstream);
                    }
                    return Ok(response.map(|body| Answer::Upstream { body, _place: place }));
                }
                Err(failure) => failure,
            };
            let kind = failure.kind();
            let at_fault = matches!(kind, FailureKind::Connect | FailureKind::Broken);
            let news = at_fault && self.marks.set(upstream, Instant::now());
            log(target, upstream, &failure, news);
            match kind {
                FailureKind::Connect | FailureKind::Broken => {}
                FailureKind::HeadDeadline => return Err(Refusal::UpstreamTime),
                FailureKind::BadResponse => return Err(Refusal::NoUpstream),
                FailureKind::RequestBody => return Err(Refusal::BadRequest("the request body ended early")),
                FailureKind::TunnelLimit => return Err(Refusal::Full),
            }
            outbound = failure.try_into_outbound().map_err(|_| Refusal::NoUpstream)?;
        }
        Err(Refusal::NoUpstream)
    }
}

/// The first failure of an upstream in a while is for the operator, the others are for who looks closely.
fn log(target: &Target, upstream: &Upstream, failure: &Failure<Incoming>, news: bool) {
    let (application, kind) = (&target.name, failure.kind().name());
    let cause = std::error::Error::source(failure).map(ToString::to_string);
    if news {
        tracing::warn!(application, %upstream, kind, cause, "an upstream gave no answer, it is tried last for a moment");
    } else {
        tracing::debug!(application, %upstream, kind, cause, "an upstream gave no answer");
    }
}

fn refused(unforwardable: Unforwardable) -> Refusal {
    match unforwardable {
        Unforwardable::Connect => Refusal::Method,
        Unforwardable::NoHost => Refusal::BadRequest("the request names no host: send one Host field"),
        Unforwardable::SeveralHosts => Refusal::BadRequest("the request names several hosts: send one Host field"),
    }
}

fn health_of(routing: &Routing) -> Response<Answer> {
    let hosts = routing.fleets.iter().flatten().map(|table| table.len()).sum();
    health(routing.fleets.len(), routing.fleets.iter().flatten().count(), hosts)
}

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
    figures::{Figures, Places},
    forwarded,
    health::{Askers, HEALTH_PATH},
    host::Host,
    marks::Marks,
};

/// Where a connection comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) peer: IpAddr,
    /// From this machine: over loopback, or from the very address that it came to, where that is not loopback.
    is_here: bool,
}

impl Origin {
    pub(crate) fn of(peer: IpAddr, own: Option<IpAddr>) -> Self {
        let canonical = peer.to_canonical();
        let is_here = canonical.is_loopback() || own.is_some_and(|own| own.to_canonical() == canonical);
        Self { peer, is_here }
    }
}

/// How many upstreams one request is offered to at most, on the word of one document. 3, as many as the Traefik rendering asks for;
/// with the connect deadline of 3 s the client has its answer within 9 s, and the marks spare the next one the dead ones.
const MOST_ATTEMPTS: usize = 3;

/// How long an application may think before its response head. Nothing in scafo promises less; 5 min is what the
/// slowest usual limit of a client in front allows, and keeps a hung process from holding requests for ever.
const RESPONSE_HEAD_LIMIT: Duration = Duration::from_secs(300);

/// Everything that a request needs.
pub(crate) struct Front {
    routing: watch::Receiver<Arc<Routing>>,
    forwarder: Forwarder<Incoming>,
    tunnels: Tunnels,
    marks: Arc<Marks>,
    requests: Arc<Semaphore>,
    first_documents_by: Instant,
    figures: Figures,
    askers: Askers,
}

/// What becomes of a request.
enum Reply {
    /// An upstream answered.
    Forwarded(Response<Answer>),
    /// This process did, and says what kept the request from an upstream.
    Refused(Refusal),
    /// A question for the health of this process, which is nobody's request.
    Health(Response<Answer>),
}

impl Front {
    /// A front that forwards as many requests at a time as there are places, and for `first_wait` from now holds those that it cannot
    /// decide before the first documents have come.
    pub(crate) fn new(
        routing: watch::Receiver<Arc<Routing>>,
        places: &Places,
        first_wait: Duration,
        figures: Figures,
    ) -> Self {
        let limits = Limits { response_head: Some(RESPONSE_HEAD_LIMIT), ..Limits::default() };
        let marks = Arc::<Marks>::default();
        let noticing = Arc::clone(&marks);
        let given_up = move |upstream: &Upstream| {
            if noticing.set(upstream, Instant::now()) {
                tracing::warn!(%upstream, "an upstream let no connection come about while a client waited, it is tried last for a moment");
            }
        };
        Self {
            routing,
            forwarder: Forwarder::new(limits).noticing(given_up),
            tunnels: places.tunnels.clone(),
            marks,
            requests: Arc::clone(&places.requests),
            first_documents_by: Instant::now() + first_wait,
            figures,
            askers: Askers::default(),
        }
    }

    /// The same, which tells these how it is.
    pub(crate) fn telling(self, askers: Askers) -> Self {
        Self { askers, ..self }
    }

    /// Answers one request.
    pub(crate) async fn answer(&self, origin: Origin, request: Request<Incoming>) -> Response<Answer> {
        let began = Instant::now();
        match self.reply(origin, request).await {
            Reply::Forwarded(response) => {
                self.figures.forwarded(response.status(), began.elapsed());
                response
            }
            Reply::Refused(refusal) => {
                let response = refusal.response();
                self.figures.refused(refusal, response.status(), began.elapsed());
                response
            }
            Reply::Health(response) => response,
        }
    }

    async fn reply(&self, origin: Origin, request: Request<Incoming>) -> Reply {
        let version = request.version();
        let mut outbound = match Outbound::new(request) {
            Ok(outbound) => outbound,
            Err(unforwardable) => return Reply::Refused(refused(unforwardable)),
        };
        let host = outbound.headers().get(HOST).and_then(|host| host.to_str().ok()).and_then(Host::parse);
        let path = outbound.uri().path();
        if path == HEALTH_PATH && origin.is_here && self.askers.admit(outbound.headers()) {
            // Whatever the host: the token is never handed on.
            return Reply::Health(health_of(&self.routing.borrow()));
        }
        let (routing, decision) = self.decide(host.as_ref(), path).await;
        let (fleet, target) = match decision {
            Decision::Forward { fleet, target } => (fleet, target),
            Decision::Denied => return Reply::Refused(Refusal::Denied),
            Decision::Unknown => return Reply::Refused(Refusal::UnknownHost),
            Decision::Unavailable => return Reply::Refused(Refusal::NoDocument),
        };
        forwarded::set(outbound.headers_mut(), origin.peer, version);
        match self.forward(&target, outbound).await {
            Ok(response) => Reply::Forwarded(response),
            Err(Unserved { unsent: Some(outbound), refusal }) if !routing.has_heard_from(fleet) => {
                let tried = Tried { fleet, target, refusal };
                self.forward_once_heard(host.as_ref(), tried, outbound).await
            }
            Err(Unserved { refusal, .. }) => Reply::Refused(refusal),
        }
    }

    /// What a kept document named did not take the request: what it knows may be old, so what its node says now decides.
    /// Nothing is offered twice on the word of the same document.
    async fn forward_once_heard(&self, host: Option<&Host>, tried: Tried, outbound: Outbound<Incoming>) -> Reply {
        let mut routing = self.routing.clone();
        let heard = routing.wait_for(|routing| routing.has_heard_from(tried.fleet));
        // Late, or the polls have ended: what is known now has to do.
        drop(timeout_at(self.first_documents_by, heard).await);
        let held = Arc::clone(&self.routing.borrow());
        let refusal = match held.decide(host, outbound.uri().path()) {
            Decision::Forward { target, .. } if Arc::ptr_eq(&target, &tried.target) => tried.refusal,
            Decision::Forward { target, .. } => match self.forward(&target, outbound).await {
                Ok(response) => return Reply::Forwarded(response),
                Err(unserved) => unserved.refusal,
            },
            Decision::Denied => Refusal::Denied,
            Decision::Unknown => Refusal::UnknownHost,
            Decision::Unavailable => Refusal::NoDocument,
        };
        Reply::Refused(refusal)
    }

    /// Decides at once if that is possible, or if the start is long ago; else when the first documents are there: so a wildcard of one
    /// fleet takes no host that another one names, and a fleet that stays silent takes nothing from the others for longer than that.
    async fn decide(&self, host: Option<&Host>, path: &str) -> (Arc<Routing>, Decision) {
        let mut routing = self.routing.clone();
        let held = Arc::clone(&routing.borrow());
        let decision = held.decide(host, path);
        let is_open = |routing: &Routing, decision: &Decision| {
            *decision == Decision::Unavailable || routing.may_be_named_yet(host)
        };
        if !is_open(&held, &decision) || Instant::now() >= self.first_documents_by {
            return (held, decision);
        }
        let decidable = routing.wait_for(|routing| !is_open(routing, &routing.decide(host, path)));
        // Late, or the polls have ended: what is known now has to do.
        drop(timeout_at(self.first_documents_by, decidable).await);
        let held = Arc::clone(&self.routing.borrow());
        let decision = held.decide(host, path);
        (held, decision)
    }

    /// Offers the request to the upstreams, one after the other, as long as that cannot make anything happen twice.
    async fn forward(&self, target: &Target, mut outbound: Outbound<Incoming>) -> Result<Response<Answer>, Unserved> {
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
            self.figures.failed(kind);
            let news = kind.is_upstream_gone() && self.marks.set(upstream, Instant::now());
            log(target, upstream, &failure, news);
            match kind {
                FailureKind::Connect | FailureKind::Broken => {}
                FailureKind::HeadDeadline => return Err(Refusal::UpstreamTime.into()),
                FailureKind::BadResponse => return Err(Refusal::NoUpstream.into()),
                FailureKind::RequestBody => return Err(Refusal::BadRequest("the request body ended early").into()),
                FailureKind::TunnelLimit => return Err(Refusal::Full.into()),
            }
            outbound = failure.try_into_outbound().map_err(|_| Refusal::NoUpstream)?;
        }
        Err(Unserved { refusal: Refusal::NoUpstream, unsent: Some(outbound) })
    }
}

/// What a request was offered to in vain.
struct Tried {
    /// Whose document named it.
    fleet: usize,
    /// Each document has targets of its own, so that the same one is the word of the same document.
    target: Arc<Target>,
    refusal: Refusal,
}

/// No upstream answered.
struct Unserved {
    refusal: Refusal,
    /// The request, if it can be sent again without anything happening twice.
    unsent: Option<Outbound<Incoming>>,
}

impl From<Refusal> for Unserved {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, unsent: None }
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
    let heard = (0..routing.fleets.len()).filter(|fleet| routing.has_heard_from(*fleet)).count();
    health(routing.fleets.len(), heard, routing.hosts())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_itself_is_known_on_whatever_address_it_listens() {
        for (peer, own, here) in [
            ("127.0.0.1", "127.0.0.1", true),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.1", true),
            ("203.0.113.5", "203.0.113.5", true),
            ("::ffff:203.0.113.5", "203.0.113.5", true),
            ("203.0.113.6", "203.0.113.5", false),
            ("203.0.113.6", "127.0.0.1", false),
        ] {
            let own = own.parse().ok();
            assert_eq!(Origin::of(peer.parse().unwrap(), own).is_here, here, "{peer}");
        }
        assert!(!Origin::of("203.0.113.5".parse().unwrap(), None).is_here);
    }
}

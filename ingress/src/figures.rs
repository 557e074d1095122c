//! What this daemon counts. Labels come from sets that are bounded: ways in which a request ends, classes of statuses, the place of a
//! fleet in the configuration. Hosts, applications and upstreams are nowhere among them: callers and documents choose those.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, SystemTime},
};

use http::StatusCode;
use prometheus_client::encoding::EncodeLabelSet;
use scafo_proxy::{FailureKind, Tunnels};
use scafo_telemetry::metrics::{Counter, Family, Gauge, Histogram, Kind, Metrics, Registry, Unit, read, seconds};
use tokio::sync::{Semaphore, watch};

use crate::{answer::Refusal, decide::Routing, serve::Capacity};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    outcome: &'static str,
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Failed {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Polled {
    fleet: u32,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Fleet {
    fleet: u32,
}

/// The figures that are kept. Clones count together.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    requests: Family<Ended, Counter>,
    seconds: Histogram,
    failures: Family<Failed, Counter>,
    polls: Family<Polled, Counter>,
    /// When a node last brought or confirmed the document, in seconds since 1970.
    confirmed_at: Family<Fleet, Gauge<f64, AtomicU64>>,
}

impl Default for Figures {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            seconds: seconds(),
            failures: Family::default(),
            polls: Family::default(),
            confirmed_at: Family::default(),
        }
    }
}

/// How a poll ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Poll {
    Fresh,
    Unchanged,
    Failed,
}

/// The places for what is open at once. Clones are the same places.
#[derive(Clone)]
pub(crate) struct Places {
    pub(crate) connections: Arc<Semaphore>,
    pub(crate) requests: Arc<Semaphore>,
    pub(crate) tunnels: Tunnels,
    pub(crate) capacity: Capacity,
}

impl Places {
    /// As many as there is capacity for.
    pub(crate) fn new(capacity: Capacity) -> Self {
        let places = |most: usize| Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Self {
            connections: places(capacity.connections),
            requests: places(capacity.requests),
            tunnels: Tunnels::new(capacity.tunnels),
            capacity,
        }
    }
}

impl Figures {
    /// Counts a request whose upstream answered.
    pub(crate) fn forwarded(&self, status: StatusCode, took: Duration) {
        self.ended("forwarded", status, took);
    }

    /// Counts a request that this process answered itself.
    pub(crate) fn refused(&self, refusal: Refusal, status: StatusCode, took: Duration) {
        self.ended(refusal.name(), status, took);
    }

    fn ended(&self, outcome: &'static str, status: StatusCode, took: Duration) {
        self.requests.get_or_create(&Ended { outcome, status: class(status) }).inc();
        self.seconds.observe(took.as_secs_f64());
    }

    /// Counts an upstream that gave no answer, whatever became of the request.
    pub(crate) fn failed(&self, kind: FailureKind) {
        self.failures.get_or_create(&Failed { kind: kind.name() }).inc();
    }

    /// Counts a poll.
    pub(crate) fn polled(&self, fleet: usize, poll: Poll) {
        let fleet = u32::try_from(fleet).unwrap_or(u32::MAX);
        let outcome = match poll {
            Poll::Fresh => "fresh",
            Poll::Unchanged => "unchanged",
            Poll::Failed => "failed",
        };
        self.polls.get_or_create(&Polled { fleet, outcome }).inc();
        if poll != Poll::Failed {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            self.confirmed_at.get_or_create(&Fleet { fleet }).set(now.as_secs_f64());
        }
    }

    /// Everything that this daemon counts.
    pub(crate) fn metrics(&self, places: Places, routing: watch::Receiver<Arc<Routing>>) -> Metrics {
        Metrics::new("ingressd", |registry| {
            self.register(registry);
            let Places { connections, requests, tunnels, capacity } = places;
            let taken = |places: Arc<Semaphore>, limit: usize| {
                move || room(limit - places.available_permits().min(limit), limit)
            };
            let about = ("ingress_connections", "Connections, and how many may be", None);
            read(registry, Kind::Gauge, about, taken(connections, capacity.connections));
            let about = ("ingress_requests_open", "Requests that are forwarded, and how many may be", None);
            read(registry, Kind::Gauge, about, taken(requests, capacity.requests));
            let about = ("ingress_tunnels", "Upgraded connections, and how many may be", None);
            read(registry, Kind::Gauge, about, move || room(tunnels.open(), capacity.tunnels));
            let about = ("ingress_hosts", "Hosts that the documents in force name", None);
            read(registry, Kind::Gauge, about, move || vec![(vec![], routing.borrow().hosts() as f64)]);
        })
    }

    fn register(&self, registry: &mut Registry) {
        let about = "Requests, by how they ended and the class of their status";
        registry.register("ingress_requests", about, self.requests.clone());
        let about = "How long until the head of the answer";
        registry.register_with_unit("ingress_request_duration", about, Unit::Seconds, self.seconds.clone());
        let about = "Upstreams that gave no answer, by why; the request may have had one from another";
        registry.register("ingress_upstream_failures", about, self.failures.clone());
        let about = "Questions for a fleet's routing document, by what they brought";
        registry.register("ingress_polls", about, self.polls.clone());
        let about = "When a node last brought or confirmed the document of a fleet, in seconds since 1970";
        registry.register_with_unit("ingress_document_timestamp", about, Unit::Seconds, self.confirmed_at.clone());
    }
}

fn room(used: usize, limit: usize) -> scafo_telemetry::metrics::Samples {
    let of = |what: &str, value: usize| (vec![("of", what.to_owned())], value as f64);
    vec![of("used", used), of("limit", limit)]
}

/// Statuses of upstreams are theirs to choose; these are few.
fn class(status: StatusCode) -> &'static str {
    match status.as_u16() / 100 {
        1 => "1xx",
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        5 => "5xx",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_polls_are_counted_by_how_they_ended_and_a_failed_poll_confirms_nothing() {
        let figures = Figures::default();
        figures.forwarded(StatusCode::OK, Duration::from_millis(2));
        figures.forwarded(StatusCode::NOT_FOUND, Duration::from_millis(2));
        for status in [200, 250] {
            figures.forwarded(StatusCode::from_u16(status).unwrap(), Duration::ZERO);
        }
        figures.refused(Refusal::NoUpstream, StatusCode::BAD_GATEWAY, Duration::ZERO);
        figures.failed(FailureKind::Connect);
        figures.polled(0, Poll::Fresh);
        figures.polled(0, Poll::Unchanged);
        figures.polled(1, Poll::Failed);
        let text = Metrics::new("test", |registry| figures.register(registry)).text();
        for line in [
            "scafo_ingress_requests_total{outcome=\"forwarded\",status=\"2xx\"} 3\n",
            "scafo_ingress_requests_total{outcome=\"forwarded\",status=\"4xx\"} 1\n",
            "scafo_ingress_requests_total{outcome=\"no_upstream\",status=\"5xx\"} 1\n",
            "scafo_ingress_request_duration_seconds_count 5\n",
            "scafo_ingress_upstream_failures_total{kind=\"connect\"} 1\n",
            "scafo_ingress_polls_total{fleet=\"0\",outcome=\"fresh\"} 1\n",
            "scafo_ingress_polls_total{fleet=\"0\",outcome=\"unchanged\"} 1\n",
            "scafo_ingress_polls_total{fleet=\"1\",outcome=\"failed\"} 1\n",
            "scafo_ingress_document_timestamp_seconds{fleet=\"0\"} ",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        assert!(!text.contains("scafo_ingress_document_timestamp_seconds{fleet=\"1\"}"), "{text}");
    }
}

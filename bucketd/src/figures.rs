//! What this daemon counts. Labels come from sets that are bounded: the operations that it has, the ways in which they end, its own
//! statuses. Keys are nowhere among them.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use prometheus_client::encoding::EncodeLabelSet;
use s3s::{S3ErrorCode, S3Result};
use scafo_telemetry::metrics::{Counter, Family, Gauge, Histogram, Kind, Metrics, Unit, read, seconds};
use tokio::sync::Semaphore;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Asked {
    operation: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Operation {
    operation: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Status {
    status: u32,
}

/// The figures. Clones count together.
#[derive(Debug, Clone)]
pub struct Figures {
    requests: Family<Asked, Counter>,
    seconds: Family<Operation, Histogram, fn() -> Histogram>,
    answers: Family<Status, Counter>,
    received: Counter,
    sent: Counter,
    limit: Gauge,
    /// Places for connections; those that are taken are connections.
    free: Arc<std::sync::OnceLock<Arc<Semaphore>>>,
}

impl Default for Figures {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            seconds: Family::new_with_constructor(seconds),
            answers: Family::default(),
            received: Counter::default(),
            sent: Counter::default(),
            limit: Gauge::default(),
            free: Arc::default(),
        }
    }
}

impl Figures {
    /// Counts an operation that was signed as it has to be.
    pub(crate) fn asked<T>(&self, operation: &'static str, answer: &S3Result<T>, took: Duration) {
        self.requests.get_or_create(&Asked { operation, outcome: outcome(answer) }).inc();
        self.seconds.get_or_create(&Operation { operation }).observe(took.as_secs_f64());
    }

    /// Counts an answer, whatever was asked.
    pub(crate) fn answered(&self, status: StatusCode) {
        self.answers.get_or_create(&Status { status: status.as_u16().into() }).inc();
    }

    /// Counts bytes that came over a connection.
    pub(crate) fn received(&self, bytes: usize) {
        self.received.inc_by(bytes as u64);
    }

    /// Counts bytes that went over a connection.
    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.inc_by(bytes as u64);
    }

    /// From now on connections take their places there.
    pub(crate) fn places(&self, places: &Arc<Semaphore>) {
        self.limit.set(i64::try_from(places.available_permits()).unwrap_or(i64::MAX));
        // Set once: a process serves once.
        let _ = self.free.set(Arc::clone(places));
    }

    /// Everything that this daemon counts.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        Metrics::new("bucketd", |registry| {
            let about = "Operations of the embedded store, by outcome";
            registry.register("bucketd_requests", about, self.requests.clone());
            let about = "How long until the head of the answer";
            registry.register_with_unit("bucketd_request_duration", about, Unit::Seconds, self.seconds.clone());
            let about = "Answers of the embedded store, by status; those to requests that are no operation included";
            registry.register("bucketd_answers", about, self.answers.clone());
            let about = "What came over connections to the embedded store";
            registry.register_with_unit("bucketd_received", about, Unit::Bytes, self.received.clone());
            let about = "What went over connections to the embedded store";
            registry.register_with_unit("bucketd_sent", about, Unit::Bytes, self.sent.clone());
            let (limit, free) = (self.limit.clone(), Arc::clone(&self.free));
            let connections = ("bucketd_connections", "Connections to the embedded store, and how many may be", None);
            read(registry, Kind::Gauge, connections, move || {
                let free = free.get().map_or(0, |free| free.available_permits());
                let used = limit.get().saturating_sub(i64::try_from(free).unwrap_or(i64::MAX));
                let of = |what: &str, value: i64| (vec![("of", what.to_owned())], value as f64);
                vec![of("used", used), of("limit", limit.get())]
            });
        })
    }
}

/// What became of an operation: a condition that did not hold is no failure, and nor is a key that is not there.
fn outcome<T>(answer: &S3Result<T>) -> &'static str {
    let Err(error) = answer else { return "done" };
    match error.code() {
        S3ErrorCode::PreconditionFailed => "refused",
        S3ErrorCode::NotModified => "unchanged",
        S3ErrorCode::NoSuchKey | S3ErrorCode::NoSuchBucket | S3ErrorCode::NoSuchUpload => "absent",
        code => match error.status_code().or_else(|| code.status_code()) {
            Some(status) if status.is_client_error() => "invalid",
            _ => "failed",
        },
    }
}

#[cfg(test)]
mod tests {
    use s3s::s3_error;

    use super::*;

    #[test]
    fn an_operation_is_counted_by_how_it_ended() {
        let figures = Figures::default();
        let count = |operation, answer: S3Result<()>| figures.asked(operation, &answer, Duration::from_millis(3));
        count("put", Ok(()));
        count("put", Err(s3_error!(PreconditionFailed)));
        count("put", Err(s3_error!(PreconditionFailed)));
        count("put", Err(s3_error!(ServiceUnavailable)));
        count("get", Err(s3_error!(NotModified)));
        count("get", Err(s3_error!(NoSuchKey)));
        count("get", Err(s3_error!(InvalidArgument)));
        count("get", Err(s3_error!(InternalError)));
        let text = figures.metrics().text();
        for (operation, outcome, times) in [
            ("put", "done", 1),
            ("put", "refused", 2),
            ("put", "failed", 1),
            ("get", "unchanged", 1),
            ("get", "absent", 1),
            ("get", "invalid", 1),
            ("get", "failed", 1),
        ] {
            let line =
                format!("scafo_bucketd_requests_total{{operation=\"{operation}\",outcome=\"{outcome}\"}} {times}\n");
            assert!(text.contains(&line), "{line}{text}");
        }
        assert!(text.contains("scafo_bucketd_request_duration_seconds_count{operation=\"get\"} 4\n"), "{text}");
    }
}

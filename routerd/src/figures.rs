//! What this daemon counts.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use scafo_telemetry::metrics::{Counter, Gauge, Histogram, Metrics, Unit, seconds};

/// The figures. Clones count together.
#[derive(Debug, Clone)]
pub(crate) struct Figures {
    rendered: Counter,
    unchanged: Counter,
    failed: Counter,
    seconds: Histogram,
    routes: Gauge,
    followed_at: Gauge<f64, AtomicU64>,
}

impl Default for Figures {
    fn default() -> Self {
        Self {
            rendered: Counter::default(),
            unchanged: Counter::default(),
            failed: Counter::default(),
            seconds: seconds(),
            routes: Gauge::default(),
            followed_at: Gauge::default(),
        }
    }
}

impl Figures {
    /// Counts a snapshot that was followed, with the number of its routes when they changed.
    pub(crate) fn followed(&self, routes: Option<usize>, took: Duration) {
        self.seconds.observe(took.as_secs_f64());
        match routes {
            Some(routes) => {
                self.rendered.inc();
                self.routes.set(i64::try_from(routes).unwrap_or(i64::MAX));
            }
            None => {
                self.unchanged.inc();
            }
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.followed_at.set(now.as_secs_f64());
    }

    /// Counts a snapshot that could not be rendered.
    pub(crate) fn failed(&self) {
        self.failed.inc();
    }

    /// Everything that this daemon counts.
    pub(crate) fn metrics(&self) -> Metrics {
        Metrics::new("routerd", |registry| {
            registry.register("routing_renders", "Snapshots that changed the routing", self.rendered.clone());
            registry.register("routing_unchanged", "Snapshots that did not", self.unchanged.clone());
            registry.register("routing_failures", "Snapshots that could not be rendered", self.failed.clone());
            let about = "From a snapshot to what is answered from it";
            registry.register_with_unit("routing_render_duration", about, Unit::Seconds, self.seconds.clone());
            registry.register("routing_routes", "Routes in the documents", self.routes.clone());
            let about = "When a snapshot was followed last, in seconds since 1970";
            registry.register_with_unit("routing_timestamp", about, Unit::Seconds, self.followed_at.clone());
        })
    }
}

//! Metrics: what a process counts, as OpenMetrics text, and how the texts of a node's processes become one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
pub use prometheus_client::metrics::gauge::Gauge;
pub use prometheus_client::metrics::histogram::Histogram;
pub use prometheus_client::registry::{Registry, Unit};

use crate::{log, trace};

/// The content type of the text (OpenMetrics 1.0, "Protocol Negotiation").
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const END: &str = "# EOF\n";
/// What every name starts with.
const PREFIX: &str = "scafo";

/// Bounds in seconds for what a request takes: from a document out of memory to a deletion that waits for the fleet.
pub const SECONDS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 150.0];

/// A histogram over [`SECONDS`].
pub fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}

/// Everything that one process counts.
#[derive(Clone)]
pub struct Metrics(Arc<Registry>);

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    /// The figures that `register` adds, beside those that every process has.
    pub fn new(process: &'static str, register: impl FnOnce(&mut Registry)) -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(Own { process, started: Instant::now() }));
        register(&mut registry);
        Self(Arc::new(registry))
    }

    /// The text, without the mark of its end.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a string does not fail; a collector of ours that did would leave the text before it.
        if let Err(error) = prometheus_client::encoding::text::encode_registry(&mut text, &self.0) {
            tracing::error!(%error, "the metrics of this process are not whole");
        }
        text
    }
}

/// What [`read`] gives: labels and value of each sample.
pub type Samples = Vec<(Vec<(&'static str, String)>, f64)>;

/// What kind of figure is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It goes up and down.
    Gauge,
    /// It goes up only.
    Counter,
}

/// Adds figures that are not kept but read whenever somebody asks.
pub fn read(
    registry: &mut Registry,
    kind: Kind,
    (name, help, unit): (&'static str, &'static str, Option<Unit>),
    read: impl Fn() -> Samples + Send + Sync + 'static,
) {
    registry.register_collector(Box::new(Read { kind, name, help, unit, read: Box::new(read) }));
}

struct Read {
    kind: Kind,
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    read: Box<dyn Fn() -> Samples + Send + Sync>,
}

impl fmt::Debug for Read {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Read").field(&self.name).finish()
    }
}

impl Collector for Read {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let kind = match self.kind {
            Kind::Gauge => ConstGauge::new(0.0).metric_type(),
            Kind::Counter => ConstCounter::new(0.0).metric_type(),
        };
        let mut family = encoder.encode_descriptor(self.name, self.help, self.unit.as_ref(), kind)?;
        for (labels, value) in (self.read)() {
            let sample = family.encode_family(&labels)?;
            match self.kind {
                Kind::Gauge => ConstGauge::new(value).encode(sample)?,
                Kind::Counter => ConstCounter::new(value).encode(sample)?,
            }
        }
        Ok(())
    }
}

/// Whether each of these processes said what it counts, as text to [`merge`] with theirs.
pub fn up(processes: &[(&str, bool)]) -> String {
    let mut text = format!("# HELP {PREFIX}_up Whether the process said what it counts.\n# TYPE {PREFIX}_up gauge\n");
    for (process, up) in processes {
        text.push_str(&format!("{PREFIX}_up{{process=\"{process}\"}} {}\n", u8::from(*up)));
    }
    text
}

/// What every process can say of itself.
#[derive(Debug)]
struct Own {
    process: &'static str,
    started: Instant,
}

impl Collector for Own {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let process = ("process", self.process);
        let mut counter = |name: &str, help: &str, values: &[(&str, u64)]| {
            let counter = ConstCounter::new(0_u64);
            let mut family = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            for (reason, value) in values {
                let value = ConstCounter::new(*value);
                if reason.is_empty() {
                    value.encode(family.encode_family(&[process])?)?;
                } else {
                    value.encode(family.encode_family(&[process, ("reason", *reason)])?)?;
                }
            }
            Ok::<_, fmt::Error>(())
        };
        let spans = trace::counts();
        counter("log_lines_dropped", "Lines of the log that could not be written", &[("", log::dropped())])?;
        counter("spans_sent", "Spans that the collector took", &[("", spans.sent)])?;
        counter(
            "spans_dropped",
            "Spans that were dropped, by why",
            &[("queue_full", spans.dropped_full), ("not_taken", spans.dropped_unsent)],
        )?;
        let kept = trace::Kept::counts();
        counter("spans_observed", "Spans that went into the node's observations", &[("", kept.sent)])?;
        counter(
            "spans_unobserved",
            "Spans that did not, by why",
            &[("too_many", kept.dropped_full), ("not_taken", kept.dropped_unsent)],
        )?;
        let age = ConstGauge::new(self.started.elapsed().as_secs_f64());
        let mut family = encoder.encode_descriptor(
            "process_age",
            "How long the process runs",
            Some(&Unit::Seconds),
            age.metric_type(),
        )?;
        age.encode(family.encode_family(&[process])?)
    }
}

/// Completes a text with the mark of its end.
pub fn finished(mut text: String) -> String {
    text.push_str(END);
    text
}

/// One text out of those of several processes: each family once (OpenMetrics 1.0 lets none be interleaved), without the mark of
/// the end. Of a family that several processes have, the first one's description stands.
pub fn merge<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    #[derive(Default)]
    struct Merged<'a> {
        about: Vec<&'a str>,
        samples: Vec<&'a str>,
    }
    let mut families: BTreeMap<&str, Merged<'_>> = BTreeMap::new();
    for text in texts {
        let mut name = "";
        let mut known = false;
        for line in text.lines() {
            let about = line.strip_prefix("# ").and_then(|rest| rest.split_once(' '));
            match about {
                Some((_, rest)) => {
                    let of = rest.split(' ').next().unwrap_or_default();
                    if of != name {
                        name = of;
                        known = families.contains_key(name);
                    }
                    let family = families.entry(name).or_default();
                    if !known {
                        family.about.push(line);
                    }
                }
                // The mark of an end, or nothing.
                None if line.starts_with('#') || line.is_empty() => {}
                None => families.entry(name).or_default().samples.push(line),
            }
        }
    }
    let lines = families.values().flat_map(|family| family.about.iter().chain(&family.samples));
    let mut merged = String::new();
    for line in lines {
        merged.push_str(line);
        merged.push('\n');
    }
    merged
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::EncodeLabelSet;

    use super::*;

    #[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
    struct Labels {
        name: String,
    }

    #[test]
    fn of_two_texts_each_family_stands_once_with_the_samples_of_both() {
        let of = |process: &'static str, name: &str| {
            let requests = Family::<Labels, Counter>::default();
            requests.get_or_create(&Labels { name: name.to_owned() }).inc();
            Metrics::new(process, |registry| registry.register("requests", "Requests", requests)).text()
        };
        let merged = finished(merge([of("one", "a\"b\\").as_str(), of("two", "# HELP x y").as_str()]));
        let count = |line: &str| merged.lines().filter(|found| found.starts_with(line)).count();
        assert_eq!(count("# TYPE scafo_requests counter"), 1, "{merged}");
        assert_eq!(count("# HELP scafo_requests "), 1, "{merged}");
        assert_eq!(count("scafo_requests_total{"), 2, "{merged}");
        assert_eq!(count("scafo_log_lines_dropped_total{process="), 2, "{merged}");
        assert_eq!(count("# EOF"), 1);
        assert!(merged.ends_with(END));
    }

    #[test]
    fn nothing_merges_to_an_end() {
        assert_eq!(finished(merge(["", END])), END);
    }
}

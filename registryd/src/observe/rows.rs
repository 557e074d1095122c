//! What is recorded: one row for each sample of a metric, and one for each span.

use scafo_proto::observe;
use scafo_telemetry::trace::Finished;

/// Names and values.
pub type Labels = Vec<(String, String)>;

/// A sample: one line of what the node's listener for metrics shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// When it was read, in microseconds since 1970.
    pub at_us: i64,
    /// The process that told it.
    pub process: String,
    /// As OpenMetrics spells it, with its suffix: `scafo_http_requests_total`.
    pub name: String,
    /// The family's type: `counter`, `gauge`, `histogram`.
    pub kind: String,
    /// Its labels, in the order in which they were told.
    pub labels: Labels,
    /// Counters are sums since the start of their process.
    pub value: f64,
}

/// A finished span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// When it began, in microseconds since 1970.
    pub at_us: i64,
    /// The process in which it ran.
    pub process: String,
    /// What was done.
    pub name: String,
    /// `server`, `client` or `internal`.
    pub kind: String,
    /// Its attributes.
    pub labels: Labels,
    /// The trace: 32 hexadecimal digits.
    pub trace: String,
    /// The span: 16 hexadecimal digits.
    pub id: String,
    /// The span that it is a part of.
    pub parent: Option<String>,
    /// How long it took, in microseconds.
    pub took_us: i64,
    /// Whether it failed.
    pub failed: bool,
}

impl Span {
    /// A span of this very process.
    pub(crate) fn of(process: &str, span: Finished) -> Self {
        Self {
            at_us: span.began_us,
            process: process.to_owned(),
            name: span.name,
            kind: span.kind.to_owned(),
            labels: span.attributes,
            trace: hex(&span.trace),
            id: hex(&span.id),
            parent: span.parent.map(|parent| hex(&parent)),
            took_us: i64::try_from(span.took_us).unwrap_or(i64::MAX),
            failed: span.failed,
        }
    }

    /// A span that another process hands in; `None` for one whose ids are none.
    pub(crate) fn handed_in(process: &str, span: observe::Span) -> Option<Self> {
        let parent = match span.parent.len() {
            0 => None,
            8 => Some(hex(&span.parent)),
            _ => return None,
        };
        (span.trace.len() == 16 && span.id.len() == 8).then(|| Self {
            at_us: span.began_us,
            process: process.to_owned(),
            name: span.name,
            kind: span.kind,
            labels: span.attributes.into_iter().map(|attribute| (attribute.key, attribute.value)).collect(),
            trace: hex(&span.trace),
            id: hex(&span.id),
            parent,
            took_us: i64::try_from(span.took_us).unwrap_or(i64::MAX),
            failed: span.failed,
        })
    }

    /// The value of an attribute.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        label(&self.labels, name)
    }

    /// About how many bytes it takes in memory.
    #[must_use]
    pub fn weight(&self) -> usize {
        let Self { at_us: _, process, name, kind, labels, trace, id, parent, took_us: _, failed: _ } = self;
        let labels: usize = labels.iter().map(|(name, value)| 48 + name.len() + value.len()).sum();
        let texts: usize = [process, name, kind, trace, id].into_iter().chain(parent).map(String::len).sum();
        200 + texts + labels
    }
}

impl Point {
    /// The value of a label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        label(&self.labels, name)
    }
}

fn label<'a>(labels: &'a Labels, name: &str) -> Option<&'a str> {
    labels.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Everything of one flush.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Contents {
    /// The samples.
    pub points: Vec<Point>,
    /// The spans.
    pub spans: Vec<Span>,
}

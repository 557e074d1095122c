//! Spans for the node's own observations: as many of each process between two flushes as a file of them bears.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanId, SpanKind, Status};
use opentelemetry_sdk::trace::SpanData;
use tokio::sync::mpsc;

use super::{BATCH, Counts, QUEUE, Taker, fill};

/// Spans of one process between two calls of [`Kept::renew`]. At the usual minute a process at rest has some fifty; a busy one is
/// seen through its first thousands, and costs no more than these.
const BUDGET: u32 = 4096;
/// How long the first span of a batch waits for others. Nobody looks at them before the next flush, and a process at rest, which is
/// polled every few seconds, wakes nobody each time.
const LINGER: Duration = Duration::from_secs(5);
/// Attributes of a span, and characters of each text in it: ours have fewer than ten, of some forty.
const ATTRIBUTES_MAX: usize = 32;
const CHARS_MAX: usize = 256;

static KEPT: Taker = Taker::new();
static LEFT: AtomicU32 = AtomicU32::new(0);
/// The budget is used up: spans are passed over until it is renewed.
static SPENT: AtomicBool = AtomicBool::new(false);

pub(super) fn is_on() -> bool {
    KEPT.is_on()
}

/// Counts a span that is not even begun because the budget is used up. Never true: for the end of a condition.
pub(super) fn passed_over() -> bool {
    if SPENT.load(Ordering::Relaxed) {
        KEPT.full.fetch_add(1, Ordering::Relaxed);
    }
    false
}

pub(super) fn offer(span: SpanData) {
    if !KEPT.is_on() {
        passed_over();
        return;
    }
    match LEFT.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
        Ok(_) => KEPT.offer(span),
        Err(_) => {
            SPENT.store(true, Ordering::Relaxed);
            KEPT.on.store(false, Ordering::Relaxed);
            passed_over();
        }
    }
}

/// A finished span, without what only a collector knows what to do with. Texts have at most 256 characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// The trace, 16 bytes.
    pub trace: [u8; 16],
    /// The span, 8 bytes.
    pub id: [u8; 8],
    /// The span that it is a part of; `None` for the first of a trace.
    pub parent: Option<[u8; 8]>,
    /// What was done.
    pub name: String,
    /// `server`, `client` or `internal`.
    pub kind: &'static str,
    /// When it began, in microseconds since 1970.
    pub began_us: i64,
    /// How long it took, in microseconds.
    pub took_us: u64,
    /// Whether it failed.
    pub failed: bool,
    /// At most 32.
    pub attributes: Vec<(String, String)>,
}

impl From<SpanData> for Finished {
    fn from(span: SpanData) -> Self {
        let began = span.start_time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let took = span.end_time.duration_since(span.start_time).unwrap_or_default();
        let attribute = |pair: opentelemetry::KeyValue| (cut(pair.key.as_str()), cut(&pair.value.as_str()));
        Self {
            trace: span.span_context.trace_id().to_bytes(),
            id: span.span_context.span_id().to_bytes(),
            parent: (span.parent_span_id != SpanId::INVALID).then(|| span.parent_span_id.to_bytes()),
            name: cut(&span.name),
            kind: match span.span_kind {
                SpanKind::Server | SpanKind::Consumer => "server",
                SpanKind::Client | SpanKind::Producer => "client",
                SpanKind::Internal => "internal",
            },
            began_us: i64::try_from(began.as_micros()).unwrap_or(i64::MAX),
            took_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            failed: matches!(span.status, Status::Error { .. }),
            attributes: span.attributes.into_iter().take(ATTRIBUTES_MAX).map(attribute).collect(),
        }
    }
}

fn cut(text: &str) -> String {
    text.chars().take(CHARS_MAX).collect()
}

/// The taker of spans for the observations. Dropping it ends the recording.
#[derive(Debug)]
pub struct Kept {
    queue: mpsc::Receiver<SpanData>,
}

impl Kept {
    /// Begins to keep spans; `None` when this process keeps them already.
    #[must_use]
    pub fn begin() -> Option<Self> {
        let (sender, queue) = mpsc::channel(QUEUE);
        KEPT.sender.set(sender).ok()?;
        let kept = Self { queue };
        kept.renew();
        Some(kept)
    }

    /// Lets as many spans through again as one flush may have of this process.
    pub fn renew(&self) {
        LEFT.store(BUDGET, Ordering::Relaxed);
        SPENT.store(false, Ordering::Relaxed);
        KEPT.on.store(true, Ordering::Relaxed);
    }

    /// Waits for spans: for the first as long as it takes, and then a few seconds for others. A call that is dropped has taken none that
    /// another one gives.
    pub async fn batch(&mut self, into: &mut Vec<Finished>) {
        // What was taken off the queue before a drop is in here.
        let mut batch = Taken { spans: Vec::with_capacity(BATCH), into };
        fill(&mut self.queue, &mut batch.spans, LINGER).await;
    }

    /// What waits, without waiting.
    pub fn waiting(&mut self, into: &mut Vec<Finished>) {
        while let Ok(span) = self.queue.try_recv() {
            into.push(span.into());
        }
    }

    /// Counts spans that were handed in, or could not be.
    pub fn handed_in(spans: usize, taken: bool) {
        let count = if taken { &KEPT.sent } else { &KEPT.unsent };
        count.fetch_add(u64::try_from(spans).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// What became of the spans for the observations so far.
    pub fn counts() -> Counts {
        KEPT.counts()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        KEPT.on.store(false, Ordering::Relaxed);
        SPENT.store(false, Ordering::Relaxed);
    }
}

/// Hands on what it holds, also when it is dropped in the middle of waiting.
struct Taken<'a> {
    spans: Vec<SpanData>,
    into: &'a mut Vec<Finished>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.into.extend(self.spans.drain(..).map(Finished::from));
    }
}

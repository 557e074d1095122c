//! Traces: spans of requests and of the calls behind them, sent over OTLP (gRPC) when a collector is configured, and kept as
//! observations of the node unless those are switched off ([`Kept`]).
//!
//! When nobody takes spans, one costs a look at two flags. Else a finished span goes into a bounded queue for each taker, and one
//! task empties each; a span that finds a queue full, or a batch that nobody takes in time, is dropped and counted.
//! Everything that is asked for is recorded: what to keep is for the taker to decide, and never for a caller.
//!
//! The context of a trace crosses processes as W3C Trace Context (`traceparent`). `tracestate` and baggage are not passed on.

mod kept;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderMap;
use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::tonic_types::transport::ClientTlsConfig;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithTonicConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    Sampler, SdkTracer, SdkTracerProvider, Span as SdkSpan, SpanData, SpanExporter as _, SpanProcessor,
};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::subscriber::Interest;
use tracing::{Metadata, Span, Subscriber};
use tracing_opentelemetry::{OpenTelemetryLayer, OpenTelemetrySpanExt as _};
use tracing_subscriber::filter::{LevelFilter, dynamic_filter_fn};
use tracing_subscriber::layer::{Filter, Layer};
use tracing_subscriber::registry::LookupSpan;

pub use self::kept::{Finished, Kept};

/// The target of the spans that make up traces.
pub const SPANS: &str = "scafo::trace";
/// The header, and the metadata key, that carries a trace from one process to the next.
pub const TRACEPARENT: &str = "traceparent";

/// Finished spans that wait: at a hundred requests a second, of five spans each, four seconds of a collector that restarts. About
/// 2 MiB.
const QUEUE: usize = 2048;
/// Spans in one batch.
const BATCH: usize = 512;
/// How long the first span of a batch waits for others.
const LINGER: Duration = Duration::from_secs(1);
/// How long a collector may take for a batch.
const SEND: Duration = Duration::from_secs(5);
/// How much longer it is waited for why it did not: the exporter tries again within its time, and has its reason when that is over.
const REASON: Duration = Duration::from_secs(1);
/// How long the last spans may take when the process ends.
const LAST: Duration = Duration::from_secs(1);

/// One who takes finished spans, and what became of those that were meant for him.
struct Taker {
    on: AtomicBool,
    sender: OnceLock<mpsc::Sender<SpanData>>,
    sent: AtomicU64,
    full: AtomicU64,
    unsent: AtomicU64,
}

impl Taker {
    const fn new() -> Self {
        Self {
            on: AtomicBool::new(false),
            sender: OnceLock::new(),
            sent: AtomicU64::new(0),
            full: AtomicU64::new(0),
            unsent: AtomicU64::new(0),
        }
    }

    fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    fn offer(&self, span: SpanData) {
        if self.sender.get().is_some_and(|sender| sender.try_send(span).is_err()) {
            self.full.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn counts(&self) -> Counts {
        Counts {
            sent: self.sent.load(Ordering::Relaxed),
            dropped_full: self.full.load(Ordering::Relaxed),
            dropped_unsent: self.unsent.load(Ordering::Relaxed),
        }
    }
}

static COLLECTOR: Taker = Taker::new();

/// What became of finished spans since the process began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Taken.
    pub sent: u64,
    /// Dropped because they were too many at once.
    pub dropped_full: u64,
    /// Dropped because nobody took them in time.
    pub dropped_unsent: u64,
}

/// What became of the spans for the collector so far.
pub fn counts() -> Counts {
    COLLECTOR.counts()
}

/// Whether spans are recorded.
pub fn is_on() -> bool {
    COLLECTOR.is_on() || kept::is_on()
}

/// Whether this is a span of a trace, and no line of a log.
pub(crate) fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && metadata.target() == SPANS
}

/// The layer that turns spans into traces while [`is_on`].
pub(crate) fn layer<S>() -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
{
    // Whatever a caller says about sampling decides nothing here.
    let provider = SdkTracerProvider::builder().with_sampler(Sampler::AlwaysOn).with_span_processor(Queue).build();
    let layer: OpenTelemetryLayer<S, SdkTracer> = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("scafo"))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_context_activation(false);
    layer.with_filter(while_on())
}

/// What is not ours is ruled out once for each place in the code, and not each time that it is passed.
fn while_on<S: Subscriber>() -> impl Filter<S> {
    dynamic_filter_fn(|metadata, _| is_ours(metadata) && (is_on() || kept::passed_over()))
        .with_callsite_filter(|metadata| if is_ours(metadata) { Interest::sometimes() } else { Interest::never() })
        .with_max_level_hint(LevelFilter::INFO)
}

/// Hands finished spans to the tasks that take them.
#[derive(Debug)]
struct Queue;

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut SdkSpan, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if COLLECTOR.sender.get().is_none() {
            kept::offer(span);
        } else {
            kept::offer(span.clone());
            COLLECTOR.offer(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Why no spans are sent.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The endpoint cannot be used.
    #[error("spans cannot be sent to the endpoint of `observe.otlp`: {0}")]
    Endpoint(#[from] opentelemetry_otlp::ExporterBuildError),
    /// There is one export for each process.
    #[error("spans are sent already")]
    Already,
}

/// The running export. [`Export::end`] sends what is left; dropping it stops without.
#[derive(Debug)]
pub struct Export {
    task: JoinHandle<()>,
    end: Option<oneshot::Sender<()>>,
}

impl Export {
    /// Begins to record spans and to send them to the collector at `endpoint`, as `service` of `node`. To be called within the
    /// runtime; nothing is connected yet, and a collector that is away keeps nobody.
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn begin(endpoint: &str, service: &'static str, node: &str) -> Result<Self, ExportError> {
        let mut builder = SpanExporter::builder().with_tonic().with_endpoint(endpoint).with_timeout(SEND);
        if endpoint.starts_with("https:") {
            // By the authorities that this machine trusts, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`: the exporter by itself knows none.
            builder = builder.with_tls_config(ClientTlsConfig::new().with_enabled_roots());
        }
        let mut exporter = builder.build()?;
        let resource = Resource::builder_empty().with_service_name(service).with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", node.to_owned()),
        ]);
        exporter.set_resource(&resource.build());
        let (sender, queue) = mpsc::channel(QUEUE);
        COLLECTOR.sender.set(sender).map_err(|_| ExportError::Already)?;
        let (end, ended) = oneshot::channel();
        #[expect(clippy::disallowed_methods, reason = "the handle is kept by its owner, who aborts it on drop")]
        let task = tokio::spawn(send(exporter, queue, ended));
        COLLECTOR.on.store(true, Ordering::Relaxed);
        Ok(Self { task, end: Some(end) })
    }

    /// Sends what waits, for a second at most.
    pub async fn end(mut self) {
        COLLECTOR.on.store(false, Ordering::Relaxed);
        if let Some(end) = self.end.take() {
            let _ = end.send(());
        }
        let _ = tokio::time::timeout(LAST, &mut self.task).await;
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        COLLECTOR.on.store(false, Ordering::Relaxed);
        self.task.abort();
    }
}

/// Sends batches until it is told to end; then what waits.
async fn send(exporter: SpanExporter, mut queue: mpsc::Receiver<SpanData>, mut ended: oneshot::Receiver<()>) {
    let mut ending = false;
    let mut complaint = None;
    while !ending {
        let mut batch = Vec::with_capacity(BATCH);
        tokio::select! {
            biased;
            _ = &mut ended => ending = true,
            () = fill(&mut queue, &mut batch, LINGER) => {}
        }
        while ending && let Ok(span) = queue.try_recv() {
            batch.push(span);
        }
        if batch.is_empty() {
            continue;
        }
        let spans = batch.len() as u64;
        let failure = match tokio::time::timeout(SEND + REASON, exporter.export(batch)).await {
            Ok(Ok(())) => None,
            // Names the code, and what our own end says of a connection that did not come about: never words of the collector.
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("it gives no answer within {} s", SEND.as_secs())),
        };
        let count = if failure.is_none() { &COLLECTOR.sent } else { &COLLECTOR.unsent };
        count.fetch_add(spans, Ordering::Relaxed);
        tell(&mut complaint, failure);
    }
}

/// Says once that the collector takes no spans and why, and once that it does again.
fn tell(complaint: &mut Option<String>, failure: Option<String>) {
    if *complaint == failure {
        return;
    }
    match &failure {
        Some(error) => tracing::warn!(error, "the collector of `observe.otlp` takes no spans; they are dropped"),
        None => tracing::info!("the collector of `observe.otlp` takes spans again"),
    }
    *complaint = failure;
}

/// Waits for a span, and then for so long for others. What it has taken when it is dropped stays in the batch.
async fn fill(queue: &mut mpsc::Receiver<SpanData>, batch: &mut Vec<SpanData>, linger: Duration) {
    if queue.recv_many(batch, BATCH).await == 0 {
        // The other end is a static: it does not go.
        std::future::pending::<()>().await;
    }
    let until = Instant::now() + linger;
    while batch.len() < BATCH {
        let left = BATCH - batch.len();
        if tokio::time::timeout_at(until, queue.recv_many(batch, left)).await.is_err() {
            return;
        }
    }
}

/// The current span's place in its trace, as `traceparent` says it (W3C Trace Context §3.2); `None` without a span.
pub fn traceparent() -> Option<String> {
    if !is_on() {
        return None;
    }
    let context = Span::current().context();
    let span = context.span();
    let context = span.span_context();
    context.is_valid().then(|| {
        let flags = context.trace_flags().to_u8();
        format!("00-{}-{}-{flags:02x}", context.trace_id(), context.span_id())
    })
}

/// Makes `span` a part of the trace that `headers` name, if they do. To be called before the span is entered.
pub fn join(span: &Span, headers: &HeaderMap) {
    if span.is_disabled() {
        return;
    }
    let mut values = headers.get_all(TRACEPARENT).iter();
    let value = values.next().filter(|_| values.next().is_none());
    let Some(parent) = value.and_then(|value| value.to_str().ok()).and_then(parse) else { return };
    // It fails where no layer of ours is, and then there is nothing to join.
    let _ = span.set_parent(Context::new().with_remote_span_context(parent));
}

/// A place in a trace, for work that outlives the request that brought it, or begins when that was answered long ago. None while nobody
/// takes spans.
#[derive(Debug, Clone, Default)]
pub struct Thread(Option<SpanContext>);

impl Thread {
    /// The place of the current span.
    #[must_use]
    pub fn current() -> Self {
        if !is_on() {
            return Self(None);
        }
        let context = Span::current().context();
        let place = context.span().span_context().clone();
        Self(Some(place).filter(SpanContext::is_valid))
    }

    /// Makes `span`, which has no parent, a part of the trace here. To be called before the span is entered.
    pub fn join(&self, span: &Span) {
        if let Some(place) = &self.0
            && !span.is_disabled()
        {
            let _ = span.set_parent(Context::new().with_remote_span_context(place.clone()));
        }
    }
}

/// Reads a `traceparent` (W3C Trace Context §3.2.2). A version that is not known is read as far as version 00 goes.
fn parse(value: &str) -> Option<SpanContext> {
    let mut fields = value.split('-');
    let (version, trace, span, flags) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let is_hex = |field: &str, digits: usize| {
        field.len() == digits && field.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    let shaped = is_hex(version, 2) && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2);
    if !shaped || version == "ff" || (version == "00" && fields.next().is_some()) {
        return None;
    }
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let context = SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::NONE);
    context.is_valid().then_some(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_read_as_the_standard_says() {
        let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        for (value, read) in [
            (format!("00-{trace}-{span}-01"), true),
            (format!("00-{trace}-{span}-00"), true),
            (format!("cc-{trace}-{span}-01-what-comes"), true),
            (format!("00-{trace}-{span}-01-more"), false),
            (format!("ff-{trace}-{span}-01"), false),
            (format!("00-{}-{span}-01", "0".repeat(32)), false),
            (format!("00-{trace}-{}-01", "0".repeat(16)), false),
            (format!("00-{}-{span}-01", trace.to_uppercase()), false),
            (format!("00-{trace}-{span}"), false),
            (String::new(), false),
        ] {
            assert_eq!(parse(&value).is_some(), read, "{value}");
        }
        let parsed = parse(&format!("00-{trace}-{span}-00")).unwrap();
        assert_eq!((parsed.trace_id().to_string(), parsed.span_id().to_string()), (trace.to_owned(), span.to_owned()));
        assert!(parsed.is_sampled(), "whether it is recorded is not the caller's to say");
    }

    #[test]
    fn while_nobody_takes_spans_none_are_recorded_and_nothing_is_passed_on() {
        assert!(!is_on() && traceparent().is_none());
    }
}

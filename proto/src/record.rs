//! Handing in what a process measured and traced, for the node's observations: `scafo.observe.v1.Recorder` from its callers' end.
//!
//! It costs the work nothing: spans wait in a bounded queue, each call has a deadline, and what the registry does not take is dropped
//! and counted. A process at rest makes one call between two flushes.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::stream;
use scafo_core::settings::ObserveSettings;
use scafo_telemetry::trace::{Finished, Kept};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use crate::chunk;
use crate::observe::recorder_client::RecorderClient;
use crate::observe::{Attribute, RecordRequest, Span};
use crate::transport::{self, QUICK};

/// Spans in one message: with the most attributes each may have, a quarter of what a message may have.
const SPANS: usize = 64;
/// Finished spans that wait while the registry starts again. About 2 MiB.
const WAITING_MAX: usize = 4096;
/// How long the last call of a process that ends may take.
const LAST: Duration = Duration::from_secs(1);
/// When the figures are handed in for the first time: a process that has just started has something to say by then, and one that
/// does not live to see its first flush is seen all the same.
const FIRST: Duration = Duration::from_secs(1);

/// The running task. [`Recording::end`] hands in what is left; dropping it stops without.
#[derive(Debug)]
pub struct Recording {
    task: JoinHandle<()>,
    end: Option<oneshot::Sender<()>>,
}

impl Recording {
    /// Begins to keep spans, and to hand them in together with what `measured` gives (OpenMetrics text, possibly none) once between
    /// two flushes; `None` when observations are off. To be called within the runtime.
    pub fn begin(
        process: &'static str,
        told: Option<&ObserveSettings>,
        measured: impl Fn() -> String + Send + 'static,
    ) -> Option<Self> {
        let told = told?;
        let client = RecorderClient::new(transport::channel(&told.registry_socket));
        let kept = Kept::begin()?;
        let (end, ended) = oneshot::channel();
        let desk = Desk { process, client, measured, spans: Vec::new() };
        #[expect(clippy::disallowed_methods, reason = "the handle is kept by its owner, who aborts it on drop")]
        let task = tokio::spawn(desk.run(kept, told.flush.get().max(FIRST), ended));
        Some(Self { task, end: Some(end) })
    }

    /// Hands in what waits, for a second at most.
    pub async fn end(mut self) {
        if let Some(end) = self.end.take() {
            let _ = end.send(());
        }
        let _ = timeout(LAST, &mut self.task).await;
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Desk<M> {
    process: &'static str,
    client: RecorderClient<tonic::transport::Channel>,
    measured: M,
    spans: Vec<Finished>,
}

impl<M: Fn() -> String + Send> Desk<M> {
    async fn run(mut self, mut kept: Kept, flush: Duration, mut ended: oneshot::Receiver<()>) {
        let mut ticks = interval_at(Instant::now() + FIRST, flush);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = &mut ended => break,
                _ = ticks.tick() => {
                    kept.renew();
                    let text = (self.measured)();
                    self.hand_in(text).await;
                }
                () = kept.batch(&mut self.spans) => self.hand_in(String::new()).await,
            }
        }
        kept.waiting(&mut self.spans);
        let text = (self.measured)();
        self.hand_in(text).await;
    }

    /// One call. Spans that it does not get rid of are tried again with the next one, as long as they are few.
    async fn hand_in(&mut self, text: String) {
        if text.is_empty() && self.spans.is_empty() {
            return;
        }
        let sent = self.spans.len();
        let messages: Vec<RecordRequest> = messages(self.process, text, &self.spans);
        let call = self.client.record(transport::within(QUICK, stream::iter(messages)));
        let taken = match timeout(QUICK, call).await {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => {
                tracing::debug!(%error, "observations are not taken");
                false
            }
            Err(_) => false,
        };
        if taken {
            self.spans.clear();
            Kept::handed_in(sent, true);
        } else if sent > WAITING_MAX {
            self.spans.clear();
            Kept::handed_in(sent, false);
        }
    }
}

fn messages(process: &str, text: String, spans: &[Finished]) -> Vec<RecordRequest> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let measured_at_ms = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
    let message = |metrics: Bytes, spans: &[Finished]| RecordRequest {
        process: process.to_owned(),
        measured_at_ms,
        metrics,
        spans: spans.iter().map(span).collect(),
    };
    let pieces = chunk::split(Bytes::from(text)).filter(|(piece, _)| !piece.is_empty());
    let texts = pieces.map(|(piece, _)| message(piece, &[]));
    texts.chain(spans.chunks(SPANS).map(|spans| message(Bytes::new(), spans))).collect()
}

fn span(span: &Finished) -> Span {
    let attribute = |(key, value): &(String, String)| Attribute { key: key.clone(), value: value.clone() };
    Span {
        trace: Bytes::copy_from_slice(&span.trace),
        id: Bytes::copy_from_slice(&span.id),
        parent: span.parent.map(|parent| Bytes::copy_from_slice(&parent)).unwrap_or_default(),
        name: span.name.clone(),
        kind: span.kind.to_owned(),
        began_us: span.began_us,
        took_us: span.took_us,
        failed: span.failed,
        attributes: span.attributes.iter().map(attribute).collect(),
    }
}

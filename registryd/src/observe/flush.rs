//! Writes what was recorded: one file and one PUT for each flush.
//!
//! A file that the bucket does not take is held until the next flush and then tried once more under its own key, so that a bucket
//! that is away for a moment costs nothing and one that is away for long costs no memory. What a crash of this daemon loses is what
//! was not flushed; a stop flushes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use scafo_core::observation::ObservationKey;
use scafo_core::{NodeId, Timestamp};
use scafo_proto::figures::ASK_ALONE;
use scafo_store::{Bucket, Put, PutOptions};
use scafo_telemetry::metrics::Metrics;
use scafo_telemetry::trace::{Finished, Kept};
use tokio_util::sync::CancellationToken;

use super::buffer::Buffer;
use super::file::encode;
use super::rows::Span;
use crate::daemon::Fatal;
use crate::figures::{Figures, Others};
use crate::registry::Clock;

/// How long one PUT may take: longer than the store's own deadline, shorter than a flush usually is apart from the next.
const PUT: Duration = Duration::from_secs(30);
/// How long the others are waited for when the daemon ends. The supervisor ends the daemon, may be ending itself, and leaves little time
/// for the PUT; the ingress may have ended already. A last file without their samples is better than none.
const ASK_AT_END: Duration = Duration::from_millis(300);
const CONTENT_TYPE: &str = "application/vnd.apache.parquet";

/// Where the processes of the node hand in what they recorded. Clones are one desk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Desk(Arc<Mutex<Buffer>>);

impl Desk {
    /// The buffer. Nobody waits while he holds it.
    pub(crate) fn buffer(&self) -> MutexGuard<'_, Buffer> {
        // Its parts are always whole: each method does one thing.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file that the bucket has not taken.
#[derive(Debug)]
struct Unsent {
    key: ObservationKey,
    body: Bytes,
    rows: u64,
}

/// The one task that flushes.
pub(crate) struct Flusher {
    /// Without the change hint around it: nobody serves anything else because of an observation.
    pub(crate) bucket: Arc<dyn Bucket>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) node: NodeId,
    pub(crate) every: Duration,
    pub(crate) desk: Desk,
    /// What this daemon measures.
    pub(crate) metrics: Metrics,
    pub(crate) others: Others,
    pub(crate) figures: Figures,
    pub(crate) sequence: u64,
}

impl Flusher {
    /// Flushes until the daemon ends, and once more then.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Fatal {
        let mut kept = Kept::begin();
        let mut spans: Vec<Finished> = Vec::new();
        let mut held: Option<Unsent> = None;
        // Nodes that came up together do not write together.
        let spread = f64::from(self.clock.random()) / f64::from(u32::MAX) / 4.0;
        let mut next = self.clock.mono().after(self.every.mul_f64(1.0 - spread));
        loop {
            let ending = tokio::select! {
                biased;
                () = stop.cancelled() => true,
                () = self.clock.sleep_until(next) => false,
                () = batch(kept.as_mut(), &mut spans) => {
                    self.keep(&mut spans);
                    continue;
                }
            };
            if let Some(kept) = &mut kept {
                kept.waiting(&mut spans);
                kept.renew();
            }
            self.keep(&mut spans);
            held = self.flush(held.take(), if ending { ASK_AT_END } else { ASK_ALONE }).await;
            if ending {
                return Fatal::ended("the daemon, as asked,");
            }
            // After a machine that slept the missed ones are not made up for.
            next = self.clock.mono().max(next).after(self.every);
        }
    }

    fn keep(&self, spans: &mut Vec<Finished>) {
        let count = spans.len();
        let mut buffer = self.desk.buffer();
        for span in spans.drain(..) {
            buffer.span(Span::of("registryd", span));
        }
        drop(buffer);
        Kept::handed_in(count, true);
    }

    /// Writes what there is, and what is left of the flush before. Gives back what the bucket does not take. The samples of a
    /// process that does not give them within `patience` are left out.
    async fn flush(&mut self, held: Option<Unsent>, patience: Duration) -> Option<Unsent> {
        let now = self.clock.wall();
        let told = self.others.told(patience).await;
        let (contents, dropped) = {
            let mut buffer = self.desk.buffer();
            buffer.text("registryd", micros(now), self.metrics.text());
            for (process, text) in told {
                buffer.text(process, micros(now), text.unwrap_or_default());
            }
            buffer.drain()
        };
        self.figures.unrecorded("no_room", dropped);
        let rows = (contents.points.len() + contents.spans.len()) as u64;
        let key = ObservationKey::new(self.node.clone(), now, self.sequence);
        self.sequence += 1;
        let node = self.node.clone();
        // Ten thousand rows take some ten milliseconds, in which other parts have something better to wait for.
        let encoded = tokio::task::spawn_blocking(move || encode(&node, &contents)).await;
        let file = if let (Some(key), Ok(Ok(body))) = (key, encoded) {
            Some(Unsent { key, body, rows })
        } else {
            tracing::error!("observations cannot be written; see that this machine's clock is right");
            self.figures.unrecorded("unwritable", rows);
            None
        };
        // Beside each other: at a stop there is time for one request, and what was refused once may not cost what is new.
        let (_, unsent) = tokio::join!(self.put_again(held), self.put_first(file));
        unsent
    }

    /// The second and last try of a file.
    async fn put_again(&self, held: Option<Unsent>) {
        if let Some(held) = held
            && self.put(&held).await.is_err()
        {
            self.figures.unrecorded("not_taken", held.rows);
        }
    }

    /// The first try of a file, which is given back when the bucket does not take it.
    async fn put_first(&self, file: Option<Unsent>) -> Option<Unsent> {
        let file = file?;
        let why = self.put(&file).await.err()?;
        tracing::debug!(why, "observations were not taken by the bucket");
        Some(file)
    }

    async fn put(&self, file: &Unsent) -> Result<(), String> {
        let options = PutOptions { content_type: Some(CONTENT_TYPE.to_owned()), ..PutOptions::default() };
        let key = file.key.to_string();
        let put = self.bucket.put(&key, file.body.clone(), options);
        let taken = match tokio::time::timeout(PUT, put).await {
            Ok(Ok(Put::Written(_))) => Ok(()),
            Ok(Ok(other)) => Err(format!("{other:?}")),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no answer".to_owned()),
        };
        self.figures.flushed(taken.is_ok());
        taken
    }
}

fn micros(at: Timestamp) -> i64 {
    at.as_millis().saturating_mul(1000)
}

async fn batch(kept: Option<&mut Kept>, into: &mut Vec<Finished>) {
    match kept {
        Some(kept) => kept.batch(into).await,
        None => std::future::pending().await,
    }
}

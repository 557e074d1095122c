//! What this daemon counts, and the bucket seen through a counter.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::join_all;
use prometheus_client::encoding::EncodeLabelSet;
use scafo_core::record::ProcessState;
use scafo_core::settings::RegistrydSettings;
use scafo_core::view::{ProcessStatus, ReconcileStatus};
use scafo_proto::figures::{ASK_ALONE, ask};
use scafo_proto::transport::channel;
use scafo_store::{Bucket, ETagForm, Error, Head, ListRequest, Object, Page, Put, PutOptions};
use scafo_telemetry::metrics::{
    Counter, Family, Gauge, Histogram, Kind, Metrics, Registry, Samples, Unit, merge, read, seconds, up,
};
use scafo_telemetry::trace;
use tokio::sync::watch;
use tonic::transport::Channel;
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use crate::daemon::{Core, Phase};
use crate::service::faults;

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
struct Passed {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// The figures that are kept. Clones count together.
#[derive(Debug, Clone)]
pub(crate) struct Figures {
    requests: Family<Asked, Counter>,
    seconds: Family<Operation, Histogram, fn() -> Histogram>,
    passes: Family<Passed, Counter>,
    pass_seconds: Histogram,
    /// Of the last look that went through, in seconds since 1970: what is served is as old as that.
    seen_at: Gauge<f64, AtomicU64>,
    flushes: Family<Passed, Counter>,
    unrecorded: Family<Reason, Counter>,
}

impl Default for Figures {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            seconds: Family::new_with_constructor(seconds),
            passes: Family::default(),
            pass_seconds: seconds(),
            seen_at: Gauge::default(),
            flushes: Family::default(),
            unrecorded: Family::default(),
        }
    }
}

impl Figures {
    /// Counts a pass of the reconcile loop.
    pub(crate) fn passed(&self, pass: &ReconcileStatus) {
        self.passes.get_or_create(&Passed { outcome: if pass.ok { "done" } else { "failed" } }).inc();
        self.pass_seconds.observe(pass.took_ms as f64 / 1000.0);
        if pass.ok {
            self.seen_at.set(pass.finished_at.as_millis() as f64 / 1000.0);
        }
    }

    /// Counts a file of observations.
    pub(crate) fn flushed(&self, taken: bool) {
        self.flushes.get_or_create(&Passed { outcome: if taken { "done" } else { "failed" } }).inc();
    }

    /// Counts what did not get into the observations.
    pub(crate) fn unrecorded(&self, reason: &'static str, rows: u64) {
        self.unrecorded.get_or_create(&Reason { reason }).inc_by(rows);
    }

    /// Everything that this daemon counts.
    pub(crate) fn metrics(&self, phase: &watch::Receiver<Phase>) -> Metrics {
        Metrics::new("registryd", |registry| self.register(registry, phase))
    }

    /// Everything that this daemon counts, and what `others` do, with whether they said it.
    pub(crate) fn collect(
        metrics: Metrics,
        others: Others,
    ) -> impl Fn() -> futures_util::future::BoxFuture<'static, String> + Send + Sync + 'static + use<> {
        move || {
            let (metrics, others) = (metrics.clone(), others.clone());
            Box::pin(async move {
                let told = others.told(ASK_ALONE).await;
                let up = up(&told.iter().map(|(process, text)| (*process, text.is_some())).collect::<Vec<_>>());
                let own = metrics.text();
                let texts = told.iter().filter_map(|(_, text)| text.as_deref());
                merge([up.as_str(), own.as_str()].into_iter().chain(texts))
            })
        }
    }

    fn register(&self, registry: &mut Registry, phase: &watch::Receiver<Phase>) {
        registry.register("bucket_requests", "Requests to the bucket, by outcome", self.requests.clone());
        let about = "How long a request to the bucket takes, its body included";
        registry.register_with_unit("bucket_request_duration", about, Unit::Seconds, self.seconds.clone());
        registry.register("reconcile_passes", "Passes of the reconcile loop, by outcome", self.passes.clone());
        let about = "How long a pass of the reconcile loop takes";
        registry.register_with_unit("reconcile_pass_duration", about, Unit::Seconds, self.pass_seconds.clone());
        let about = "When the last look at the bucket ended that went through, in seconds since 1970";
        registry.register_with_unit("snapshot_timestamp", about, Unit::Seconds, self.seen_at.clone());
        self.register_observations(registry);
        for (kind, name, help, unit, of) in READ {
            let phase = phase.clone();
            read(registry, *kind, (*name, *help, unit.clone()), move || match &*phase.borrow() {
                Phase::Ready(core) => of(core),
                Phase::Starting(_) => Samples::new(),
            });
        }
    }
}

impl Figures {
    pub(crate) fn register_observations(&self, registry: &mut Registry) {
        let about = "Files of observations, by whether the bucket took them";
        registry.register("observation_flushes", about, self.flushes.clone());
        let about = "Observations that were not recorded, by why";
        registry.register("observations_dropped", about, self.unrecorded.clone());
    }
}

/// The processes that say what they count when this daemon asks: those that hand in nothing by themselves.
#[derive(Debug, Clone)]
pub(crate) struct Others(Vec<(&'static str, Channel)>);

impl Others {
    pub(crate) fn of(settings: &RegistrydSettings) -> Self {
        let sockets = &settings.figures_sockets;
        let all = [
            ("supervisor", Some(&settings.supervisor_socket)),
            ("bucketd", sockets.bucketd.as_ref()),
            ("ingressd", sockets.ingressd.as_ref()),
        ];
        Self(all.into_iter().filter_map(|(process, socket)| Some((process, channel(socket?)))).collect())
    }

    /// What each of them counts; `None` for one that does not say it within `patience`.
    pub(crate) async fn told(&self, patience: Duration) -> Vec<(&'static str, Option<String>)> {
        let asked =
            self.0.iter().map(|(process, channel)| async move { (*process, ask(channel.clone(), patience).await) });
        join_all(asked).await
    }
}

type Read = (Kind, &'static str, &'static str, Option<Unit>, fn(&Core) -> Samples);

/// What is read when somebody asks. Applications are those of this node, which has ports for so many.
const READ: &[Read] = &[
    (Kind::Gauge, "coordinator", "Whether this node coordinates", None, |core| {
        one(f64::from(u8::from(core.lease.borrow().lead.is_some())))
    }),
    (Kind::Gauge, "coordinator_fence", "The fence of the lease that was seen last", None, |core| {
        core.lease.borrow().record.as_ref().map_or_else(Samples::new, |record| one(record.fence.0 as f64))
    }),
    (Kind::Gauge, "nodes", "Nodes of the fleet, by whether they live", None, |core| {
        let world = core.worlds.borrow().clone();
        let live = world.nodes.values().filter(|node| node.live).count();
        vec![labelled("live", "yes", live), labelled("live", "no", world.nodes.len() - live)]
    }),
    (Kind::Gauge, "applications", "Applications of the fleet", None, |core| {
        one(core.worlds.borrow().shown.applications.len() as f64)
    }),
    (Kind::Gauge, "applications_placed", "Applications that are placed on this node", None, |core| {
        let (world, me) = (core.worlds.borrow().clone(), &core.settings.node.id);
        one(world.shown.placements.values().filter(|placement| placement.nodes.contains(me)).count() as f64)
    }),
    (Kind::Gauge, "applications_unplaced", "Applications that this coordinator cannot place", None, |core| {
        core.unplaced.borrow().as_ref().map_or_else(Samples::new, |unplaced| one(unplaced.len() as f64))
    }),
    (Kind::Gauge, "record_faults", "Records that cannot be read", None, |core| one(faults(core).len() as f64)),
    (Kind::Gauge, "application_processes", "Processes of applications on this node, by state", None, |core| {
        let processes = core.worlds.borrow().processes.clone();
        STATES.iter().map(|(state, name)| labelled("state", name, in_state(&processes, *state))).collect()
    }),
    (Kind::Gauge, "application_ready", "Whether the application's process on this node is ready", None, |core| {
        of_processes(core, |process| f64::from(u8::from(process.state == ProcessState::Ready)))
    }),
    (Kind::Counter, "application_restarts", "How often the application's process was started again", None, |core| {
        of_processes(core, |process| f64::from(process.restarts))
    }),
];

const STATES: &[(ProcessState, &str)] = &[
    (ProcessState::Starting, "starting"),
    (ProcessState::Ready, "ready"),
    (ProcessState::Unhealthy, "unhealthy"),
    (ProcessState::Stopping, "stopping"),
    (ProcessState::BackingOff, "backing-off"),
    (ProcessState::CrashLooping, "crash-looping"),
];

fn one(value: f64) -> Samples {
    vec![(Vec::new(), value)]
}

fn labelled(name: &'static str, value: &str, count: usize) -> (Vec<(&'static str, String)>, f64) {
    (vec![(name, value.to_owned())], count as f64)
}

fn in_state(processes: &[ProcessStatus], state: ProcessState) -> usize {
    processes.iter().filter(|process| process.state == state).count()
}

fn of_processes(core: &Core, of: fn(&ProcessStatus) -> f64) -> Samples {
    let processes = core.worlds.borrow().processes.clone();
    let sample = |process: &ProcessStatus| (vec![("application", process.application.to_string())], of(process));
    processes.iter().map(sample).collect()
}

/// A bucket whose requests are counted, timed, and part of traces.
pub(crate) struct Counted {
    bucket: Arc<dyn Bucket>,
    figures: Figures,
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bucket.fmt(f)
    }
}

impl Counted {
    pub(crate) fn new(bucket: Arc<dyn Bucket>, figures: Figures) -> Self {
        Self { bucket, figures }
    }

    async fn counted<T>(
        &self,
        operation: &'static str,
        outcome: impl FnOnce(&T) -> &'static str + Send,
        request: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        let span = span(operation);
        let started = Instant::now();
        let answer = request.instrument(span.clone()).await;
        let outcome = answer.as_ref().map_or("failed", outcome);
        span.record("scafo.outcome", outcome);
        self.figures.requests.get_or_create(&Asked { operation, outcome }).inc();
        self.figures.seconds.get_or_create(&Operation { operation }).observe(started.elapsed().as_secs_f64());
        answer
    }
}

/// Keys are left out: those of certificates name hosts.
fn span(operation: &'static str) -> Span {
    if !trace::is_on() || Span::current().is_none() {
        return Span::none();
    }
    tracing::info_span!(target: trace::SPANS, "bucket", otel.name = format!("bucket {operation}"), otel.kind = "client",
        scafo.outcome = Empty)
}

fn found<T>(there: &Option<T>) -> &'static str {
    if there.is_some() { "found" } else { "absent" }
}

fn put_outcome(put: &Put) -> &'static str {
    match put {
        Put::Written(_) => "written",
        Put::Refused => "refused",
        Put::Gone => "gone",
        Put::Conflict => "conflict",
        Put::Busy => "busy",
        Put::Unknown(_) => "unknown",
    }
}

fn done<T>(_: &T) -> &'static str {
    "done"
}

#[async_trait]
impl Bucket for Counted {
    async fn get_bounded(&self, key: &str, limit: u64) -> Result<Option<Object>, Error> {
        self.counted("get", found, self.bucket.get_bounded(key, limit)).await
    }

    async fn head(&self, key: &str) -> Result<Option<Head>, Error> {
        self.counted("head", found, self.bucket.head(key)).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Option<Bytes>, Error> {
        self.counted("get", found, self.bucket.get_range(key, range)).await
    }

    async fn put(&self, key: &str, body: Bytes, options: PutOptions) -> Result<Put, Error> {
        self.counted("put", put_outcome, self.bucket.put(key, body, options)).await
    }

    async fn delete(&self, key: &str) -> Result<(), Error> {
        self.counted("delete", done, self.bucket.delete(key)).await
    }

    async fn delete_many(&self, keys: &[String]) -> Result<(), Error> {
        self.counted("delete_many", done, self.bucket.delete_many(keys)).await
    }

    async fn list_page(&self, request: ListRequest<'_>) -> Result<Page, Error> {
        self.counted("list", done, self.bucket.list_page(request)).await
    }

    fn use_etag_form(&self, form: ETagForm) {
        self.bucket.use_etag_form(form);
    }

    fn requests(&self) -> u64 {
        self.bucket.requests()
    }
}

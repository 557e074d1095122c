//! Flushes: what of that which was handed in is in which file, also when the bucket or the supervisor gives no answer.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use scafo_core::Timestamp;
use scafo_core::key::prefix::OBSERVE;
use scafo_core::observation::ObservationKey;
use scafo_store::{
    Bucket, ETagForm, Error, Fault, Head, ListRequest, MemoryBucket, Object, Operation, Page, Put, PutOptions,
};
use scafo_telemetry::metrics::{Kind, Metrics};
use tokio_util::sync::CancellationToken;

use super::{MINUTE, NOW, node, span};
use crate::daemon::testing::settings;
use crate::figures::{Figures, Others};
use crate::observe::file::decode;
use crate::observe::flush::{Desk, Flusher};
use crate::observe::rows::Contents;
use crate::registry::{Clock, TokioClock};

/// A flusher of a node `a` on that bucket.
struct Stage {
    memory: Arc<MemoryBucket>,
    clock: TokioClock,
    desk: Desk,
    figures: Figures,
    stop: CancellationToken,
    running: tokio::task::JoinSet<crate::daemon::Fatal>,
}

impl Stage {
    fn start(every: Duration) -> Self {
        Self::beside(Path::new("/nonexistent/supervisor.sock"), every)
    }

    /// With a supervisor at this socket.
    fn beside(supervisor: &Path, every: Duration) -> Self {
        Self::through(|memory| memory, supervisor, every)
    }

    /// With a bucket that is seen through `door`.
    fn through<B: Bucket + 'static>(
        door: impl FnOnce(Arc<MemoryBucket>) -> Arc<B>,
        supervisor: &Path,
        every: Duration,
    ) -> Self {
        let memory = Arc::new(MemoryBucket::new());
        let clock = TokioClock::starting_at(Timestamp::from_millis(NOW));
        let (desk, figures, stop) = (Desk::default(), Figures::default(), CancellationToken::new());
        let metrics = Metrics::new("registryd", |registry| {
            let one = || vec![(vec![], 1.0)];
            scafo_telemetry::metrics::read(registry, Kind::Gauge, ("one", "One", None), one);
        });
        let mut settings = settings("a");
        settings.supervisor_socket = supervisor.to_owned();
        let flusher = Flusher {
            bucket: door(Arc::clone(&memory)),
            clock: Arc::new(clock),
            node: node("a"),
            every,
            desk: desk.clone(),
            metrics,
            others: Others::of(&settings),
            figures: figures.clone(),
            sequence: 0,
        };
        let mut running = tokio::task::JoinSet::new();
        running.spawn(flusher.run(stop.clone()));
        Self { memory, clock, desk, figures, stop, running }
    }

    fn keys(&self) -> Vec<ObservationKey> {
        self.memory.keys(OBSERVE).iter().map(|key| key.parse().unwrap()).collect()
    }

    async fn file(&self, key: &ObservationKey) -> Contents {
        decode(self.memory.get(&key.to_string()).await.unwrap().unwrap().body).unwrap()
    }

    async fn stop(mut self) -> Self {
        self.stop.cancel();
        while self.running.join_next().await.is_some() {}
        self
    }
}

#[tokio::test(start_paused = true)]
async fn each_flush_is_one_request_and_one_file_in_the_hour_of_its_stamp() {
    let stage = Stage::start(Duration::from_mins(1));
    let before = stage.memory.requests();
    stage.clock.sleep(Duration::from_mins(120)).await;
    let keys = stage.keys();
    // The first comes up to a quarter sooner than the others.
    assert!((119..=121).contains(&keys.len()), "{}", keys.len());
    assert_eq!(stage.memory.requests() - before, keys.len() as u64);
    for pair in keys.windows(2) {
        let apart = pair[1].at().since(pair[0].at());
        assert!(apart >= Duration::from_mins(1) && apart < Duration::from_secs(70), "{apart:?}");
    }
    let file = stage.file(&keys[0]).await;
    assert!(
        file.points.iter().any(|point| point.name == "scafo_one" && point.process == "registryd" && point.value == 1.0)
    );
}

#[tokio::test(start_paused = true)]
async fn what_was_handed_in_is_in_the_next_file_once_and_a_stop_flushes() {
    let stage = Stage::start(Duration::from_mins(1));
    stage.desk.buffer().span(span(1));
    stage.desk.buffer().text("apiserver", 5, "a 1\n".to_owned());
    stage.clock.sleep(Duration::from_mins(3)).await;
    stage.desk.buffer().span(span(2));
    let stage = stage.stop().await;
    let mut spans = Vec::new();
    let mut told = 0;
    for key in stage.keys() {
        let file = stage.file(&key).await;
        spans.extend(file.spans);
        told += file.points.iter().filter(|point| point.process == "apiserver").count();
    }
    assert_eq!((spans, told), (vec![span(1), span(2)], 1));
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_a_supervisor_that_says_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("supervisor.sock");
    // It takes calls, and answers none.
    let _silent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let stage = Stage::beside(&socket, Duration::from_mins(1));
    stage.desk.buffer().span(span(1));
    let before = stage.clock.mono();
    let stage = stage.stop().await;
    let took = stage.clock.mono().since(before);
    assert!(took <= Duration::from_millis(500), "by the clock that the deadlines go by: {took:?}");
    let [key] = &stage.keys()[..] else { panic!("one file: {:?}", stage.keys()) };
    assert_eq!(stage.file(key).await.spans, [span(1)]);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_the_bucket_does_not_take_is_tried_once_more_and_then_dropped_and_counted() {
    let stage = Stage::start(Duration::from_mins(1));
    let mut tries: BTreeMap<String, u32> = BTreeMap::new();
    let away = NOW + 5 * MINUTE;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    stage.memory.plan(move |operation| match operation {
        Operation::Put(key, _) => {
            log.lock().unwrap().push(key.to_owned());
            let at = key.parse::<ObservationKey>().unwrap().at();
            let first = *tries.entry(key.to_owned()).and_modify(|n| *n += 1).or_insert(1) == 1;
            // The bucket is away for one flush, and later for good.
            let lost =
                at.as_millis() >= away || (first && (NOW + 2 * MINUTE..NOW + 3 * MINUTE).contains(&at.as_millis()));
            lost.then_some(Fault::LoseRequest)
        }
        Operation::Get(_) | Operation::Delete(_) | Operation::List(_) => None,
    });
    stage.desk.buffer().span(span(1));
    stage.clock.sleep(Duration::from_millis(8 * MINUTE as u64 + 30_000)).await;
    let written = stage.keys();
    let last = written.last().unwrap().at().as_millis();
    assert!((NOW + 4 * MINUTE - 20_000..away).contains(&last), "{last}");
    assert!(
        written.windows(2).all(|pair| pair[1].at().since(pair[0].at()) < Duration::from_secs(80)),
        "none is missing before"
    );
    let seen = seen.lock().unwrap().clone();
    let mut counts: BTreeMap<&String, u32> = BTreeMap::new();
    seen.iter().for_each(|key| *counts.entry(key).or_default() += 1);
    assert!(counts.values().all(|tries| *tries <= 2), "{counts:?}");
    let text = Metrics::new("test", |registry| stage.figures.register_observations(registry)).text();
    assert!(text.contains("scafo_observations_dropped_total{reason=\"not_taken\"}"), "{text}");
}

/// Never answers to writes of the key that is written first.
#[derive(Debug)]
struct Silent {
    memory: Arc<MemoryBucket>,
    first: Arc<Mutex<Option<String>>>,
}

#[async_trait]
impl Bucket for Silent {
    async fn put(&self, key: &str, body: Bytes, options: PutOptions) -> Result<Put, Error> {
        let is_first = self.first.lock().unwrap().get_or_insert_with(|| key.to_owned()) == key;
        if is_first {
            return std::future::pending().await;
        }
        self.memory.put(key, body, options).await
    }

    async fn get_bounded(&self, key: &str, limit: u64) -> Result<Option<Object>, Error> {
        self.memory.get_bounded(key, limit).await
    }

    async fn head(&self, key: &str) -> Result<Option<Head>, Error> {
        self.memory.head(key).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Option<Bytes>, Error> {
        self.memory.get_range(key, range).await
    }

    async fn delete(&self, key: &str) -> Result<(), Error> {
        self.memory.delete(key).await
    }

    async fn delete_many(&self, keys: &[String]) -> Result<(), Error> {
        self.memory.delete_many(keys).await
    }

    async fn list_page(&self, request: ListRequest<'_>) -> Result<Page, Error> {
        self.memory.list_page(request).await
    }

    fn use_etag_form(&self, form: ETagForm) {
        self.memory.use_etag_form(form);
    }

    fn requests(&self) -> u64 {
        self.memory.requests()
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_writes_what_is_new_without_waiting_for_what_was_not_taken_before() {
    let first = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&first);
    let door = |memory| Arc::new(Silent { memory, first: seen });
    let stage = Stage::through(door, Path::new("/nonexistent/supervisor.sock"), Duration::from_mins(2));
    // Its first flush, and the time that the bucket has for it.
    stage.clock.sleep(Duration::from_secs(120 + 40)).await;
    let held = first.lock().unwrap().clone().expect("one was flushed");
    stage.desk.buffer().span(span(1));
    stage.stop.cancel();
    // Less than a daemon that ends has for all of it.
    stage.clock.sleep(Duration::from_secs(1)).await;
    let [key] = &stage.keys()[..] else { panic!("one file: {:?}", stage.keys()) };
    assert!(key.to_string() != held && stage.file(key).await.spans == [span(1)]);
}

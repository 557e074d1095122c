//! What the nodes of a scene share and what stands between them and the bucket: one store in memory, a clock for each node, and a
//! counter with a distance.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use scafo_core::Timestamp;
use scafo_core::key;
use scafo_core::record::to_bytes;
use scafo_store::{Bucket, ETagForm, Error, Head, ListRequest, MemoryBucket, Object, Page, Put, PutOptions};
use tokio::time::{Instant, sleep};

use super::{Does, Requests, WALL};
use crate::registry::{Clock, Kind, Mono};

/// What a request takes: a bucket in the same region.
const LATENCY: Duration = Duration::from_millis(10);

/// What all nodes of a scene stand on.
pub(super) struct Stage {
    start: Instant,
    pub(super) memory: MemoryBucket,
}

impl Stage {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), memory: MemoryBucket::new() }
    }

    pub(super) fn wall(&self) -> Timestamp {
        Timestamp::from_millis(WALL).after(self.start.elapsed())
    }

    pub(super) async fn put<T: Kind>(&self, record: &T) -> Result<(), String> {
        self.memory.set_now(self.wall());
        let body = Bytes::from(to_bytes(record));
        let put = self.memory.put(&record.key(), body, PutOptions::default()).await;
        put.map(drop).map_err(|error| error.to_string())
    }
}

/// The clock of one node, and its dice.
pub(super) struct StageClock {
    stage: Arc<Stage>,
    dice: Mutex<u64>,
}

impl StageClock {
    pub(super) fn new(stage: &Arc<Stage>, seed: u64) -> Self {
        Self { stage: Arc::clone(stage), dice: Mutex::new(seed) }
    }
}

impl fmt::Debug for StageClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageClock").finish_non_exhaustive()
    }
}

#[async_trait]
impl Clock for StageClock {
    fn wall(&self) -> Timestamp {
        self.stage.wall()
    }

    fn mono(&self) -> Mono {
        Mono::at(self.stage.start.elapsed())
    }

    fn random(&self) -> u32 {
        // SplitMix64, of which the upper half is as good as all of it.
        let mut state = self.dice.lock().unwrap_or_else(PoisonError::into_inner);
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        u32::try_from((z ^ (z >> 31)) >> 32).unwrap_or_default()
    }

    async fn sleep_until(&self, at: Mono) {
        sleep(at.since(self.mono())).await;
    }
}

/// What one node asked for.
#[derive(Debug, Default)]
pub(super) struct Tally(Mutex<Requests>);

impl Tally {
    pub(super) fn lock(&self) -> MutexGuard<'_, Requests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bucket of one node, with a counter and a distance.
pub(super) struct Counting {
    stage: Arc<Stage>,
    tally: Arc<Tally>,
}

impl fmt::Debug for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counting").finish_non_exhaustive()
    }
}

impl Counting {
    pub(super) fn new(stage: &Arc<Stage>, tally: &Arc<Tally>) -> Self {
        Self { stage: Arc::clone(stage), tally: Arc::clone(tally) }
    }

    async fn arrive(&self, does: Does, key: &str) {
        let kind = key.trim_start_matches(key::ROOT).split('/').next().unwrap_or_default();
        *self.tally.lock().entry((does, kind.trim_end_matches(".json").to_owned())).or_default() += 1;
        sleep(LATENCY).await;
        self.stage.memory.set_now(self.stage.wall());
    }
}

#[async_trait]
impl Bucket for Counting {
    async fn get_bounded(&self, key: &str, limit: u64) -> Result<Option<Object>, Error> {
        self.arrive(Does::Get, key).await;
        self.stage.memory.get_bounded(key, limit).await
    }

    async fn head(&self, key: &str) -> Result<Option<Head>, Error> {
        self.arrive(Does::Get, key).await;
        self.stage.memory.head(key).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Option<Bytes>, Error> {
        self.arrive(Does::Get, key).await;
        self.stage.memory.get_range(key, range).await
    }

    async fn put(&self, key: &str, body: Bytes, options: PutOptions) -> Result<Put, Error> {
        self.arrive(Does::Put, key).await;
        self.stage.memory.put(key, body, options).await
    }

    async fn delete(&self, key: &str) -> Result<(), Error> {
        self.arrive(Does::Delete, key).await;
        self.stage.memory.delete(key).await
    }

    async fn delete_many(&self, keys: &[String]) -> Result<(), Error> {
        self.arrive(Does::Delete, keys.first().map_or("", String::as_str)).await;
        self.stage.memory.delete_many(keys).await
    }

    async fn list_page(&self, request: ListRequest<'_>) -> Result<Page, Error> {
        self.arrive(Does::List, request.prefix).await;
        self.stage.memory.list_page(request).await
    }

    fn use_etag_form(&self, form: ETagForm) {
        self.stage.memory.use_etag_form(form);
    }

    fn requests(&self) -> u64 {
        self.tally.lock().values().sum()
    }
}

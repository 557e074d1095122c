//! The change hint: one object that says that the registry moved, so that an idle node reads one object a pass.
//!
//! Kept true: every write under a hinted key that may have taken place is followed by a write of the hint, whoever made it,
//! because the hint sits around the bucket and not in the callers. A hint goes out at once; those of the following second are
//! merged into one, and it is tried until it lands. It is written blind: the last one wins, and that is enough, since its
//! reader only asks whether it is the one it saw last. It is never authority: readers look at everything now and then anyway.

use std::{ops::Range, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use scafo_core::{
    Problem, ProblemCode, Timestamp,
    key::{CHANGES, is_hinted},
    record::{ChangeHint, Rest, V1, to_bytes},
};
use scafo_store::{Bucket, ETagForm, Error, Head, ListRequest, Object, Page, Put, PutOptions};
use tokio::{sync::watch, task::JoinSet};

use super::{backoff::Backoff, clock::Clock};

/// Least time between two hints of one process: some stores take one write per second and key.
const MERGE: Duration = Duration::from_secs(1);

/// Writes hints. Dropping it ends its task; [`Hinter::flush`] first where a hint must not be lost.
#[derive(Debug)]
pub(crate) struct Hinter {
    wanted: watch::Sender<u64>,
    landed: watch::Receiver<u64>,
    clock: Arc<dyn Clock>,
    /// Owns the one task, which ends only with this. If it panicked, hints would stay out and the periodic full passes of
    /// all nodes would find the changes.
    _task: JoinSet<()>,
}

impl Hinter {
    /// `by` names this process in the hint: a node, or an operator at the command line.
    pub(crate) fn start(bucket: Arc<dyn Bucket>, clock: Arc<dyn Clock>, by: String) -> Self {
        let (wanted, requests) = watch::channel(0);
        let (done, landed) = watch::channel(0);
        let mut task = JoinSet::new();
        task.spawn(write_hints(bucket, Arc::clone(&clock), by, requests, done));
        Self { wanted, landed, clock, _task: task }
    }

    /// Says that something moved.
    pub(crate) fn moved(&self) {
        self.wanted.send_modify(|count| *count += 1);
    }

    /// Waits until everything said so far has landed.
    pub(crate) async fn flush(&self, limit: Duration) -> Result<(), Problem> {
        let target = *self.wanted.borrow();
        let mut landed = self.landed.clone();
        let late = || {
            let detail = "the change is written, but the bucket did not take the change hint: nodes see it at their next full pass";
            Problem::new(ProblemCode::StoreUnavailable, detail)
        };
        tokio::select! {
            biased;
            done = landed.wait_for(|count| *count >= target) => done.map(|_| ()).map_err(|_| late()),
            () = self.clock.sleep(limit) => Err(late()),
        }
    }
}

async fn write_hints(
    bucket: Arc<dyn Bucket>,
    clock: Arc<dyn Clock>,
    by: String,
    mut requests: watch::Receiver<u64>,
    landed: watch::Sender<u64>,
) {
    loop {
        let done = *landed.borrow();
        let Ok(target) = requests.wait_for(|wanted| *wanted > done).await.map(|wanted| *wanted) else { return };
        let started = clock.mono();
        let mut backoff = Backoff::default();
        let mut failures = 0_u32;
        // A body of its own for each try: one that was given up may arrive after other hints, and must not be taken for one that
        // was seen before them.
        while let Err(error) = write_hint(&*bucket, fresh_hint(clock.wall(), &by)).await {
            failures += 1;
            if failures == 1 {
                tracing::warn!(%error, "change hint not written, trying again");
            }
            clock.sleep(backoff.next(clock.random())).await;
        }
        landed.send_replace(target);
        clock.sleep_until(started.after(MERGE)).await;
    }
}

fn fresh_hint(at: Timestamp, by: &str) -> Bytes {
    let token = format!("{:032x}", rand::random::<u128>());
    to_bytes(&ChangeHint { v: V1, token, at, by: by.to_owned(), rest: Rest::new() }).into()
}

async fn write_hint(bucket: &dyn Bucket, body: Bytes) -> Result<(), String> {
    let options = PutOptions { content_type: Some("application/json".to_owned()), ..PutOptions::default() };
    match bucket.put(CHANGES, body, options).await {
        Ok(Put::Written(_)) => Ok(()),
        Ok(put) => Err(format!("{put:?}")),
        Err(error) => Err(error.to_string()),
    }
}

/// A bucket whose writes under hinted keys move the hint.
#[derive(Debug)]
pub(crate) struct Hinting {
    bucket: Arc<dyn Bucket>,
    hinter: Arc<Hinter>,
}

impl Hinting {
    pub(crate) fn new(bucket: Arc<dyn Bucket>, hinter: Arc<Hinter>) -> Self {
        Self { bucket, hinter }
    }

    /// Hints when it is dropped, if one of `keys` is hinted.
    fn unfinished<'a>(&self, mut keys: impl Iterator<Item = &'a str>) -> Unfinished<'_> {
        Unfinished { hinter: keys.any(is_hinted).then_some(&*self.hinter) }
    }
}

#[async_trait]
impl Bucket for Hinting {
    async fn get_bounded(&self, key: &str, limit: u64) -> Result<Option<Object>, Error> {
        self.bucket.get_bounded(key, limit).await
    }

    async fn head(&self, key: &str) -> Result<Option<Head>, Error> {
        self.bucket.head(key).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Option<Bytes>, Error> {
        self.bucket.get_range(key, range).await
    }

    async fn put(&self, key: &str, body: Bytes, options: PutOptions) -> Result<Put, Error> {
        let hinted = self.unfinished(std::iter::once(key));
        let put = self.bucket.put(key, body, options).await;
        match &put {
            // What may have landed is hinted: a hint too many costs a listing, one too few a quarter of an hour.
            Ok(Put::Written(_) | Put::Unknown(_)) => drop(hinted),
            Ok(Put::Refused | Put::Gone | Put::Conflict | Put::Busy) | Err(_) => hinted.disarm(),
        }
        put
    }

    async fn delete(&self, key: &str) -> Result<(), Error> {
        let _hinted = self.unfinished(std::iter::once(key));
        self.bucket.delete(key).await
    }

    async fn delete_many(&self, keys: &[String]) -> Result<(), Error> {
        let _hinted = self.unfinished(keys.iter().map(String::as_str));
        self.bucket.delete_many(keys).await
    }

    async fn list_page(&self, request: ListRequest<'_>) -> Result<Page, Error> {
        self.bucket.list_page(request).await
    }

    fn use_etag_form(&self, form: ETagForm) {
        self.bucket.use_etag_form(form);
    }

    fn requests(&self) -> u64 {
        self.bucket.requests()
    }
}

/// A write on its way. Dropped with its caller's future it may land all the same, so it hints then too.
struct Unfinished<'a> {
    hinter: Option<&'a Hinter>,
}

impl Unfinished<'_> {
    fn disarm(mut self) {
        self.hinter = None;
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(hinter) = self.hinter {
            hinter.moved();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use scafo_store::{Condition, Fault, MemoryBucket, Operation};

    use super::*;
    use crate::registry::clock::TokioClock;

    const KEY: &str = "_scafo/applications/shop.json";

    struct World {
        bucket: Hinting,
        hinter: Arc<Hinter>,
        clock: TokioClock,
        hints: Arc<AtomicU32>,
    }

    /// A hinting bucket whose first `faulty` writes of the hint fail, and a count of all that were tried.
    fn world(faulty: u32, fault: Fault) -> World {
        let memory = MemoryBucket::new();
        let hints = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&hints);
        memory.plan(move |operation| match operation {
            Operation::Put(CHANGES, _) => (seen.fetch_add(1, Ordering::Relaxed) < faulty).then_some(fault),
            Operation::Put(..) | Operation::Get(_) | Operation::Delete(_) | Operation::List(_) => None,
        });
        let memory: Arc<dyn Bucket> = Arc::new(memory);
        let clock = TokioClock::starting_at(Timestamp::from_millis(0));
        let hinter = Arc::new(Hinter::start(Arc::clone(&memory), Arc::new(clock), "test".to_owned()));
        World { bucket: Hinting::new(memory, Arc::clone(&hinter)), hinter, clock, hints }
    }

    async fn put(world: &World, key: &str, condition: Condition) -> Put {
        let options = PutOptions { condition, ..PutOptions::default() };
        world.bucket.put(key, Bytes::from_static(b"x"), options).await.unwrap()
    }

    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn hints_of_one_second_are_merged_into_two_writes() {
        let world = world(0, Fault::Busy);
        let start = world.clock.mono();
        put(&world, KEY, Condition::None).await;
        world.hinter.flush(LIMIT).await.unwrap();
        assert!(world.clock.mono().since(start) < Duration::from_millis(10), "the first goes out at once");
        for _ in 0..50 {
            put(&world, KEY, Condition::None).await;
        }
        world.hinter.flush(LIMIT).await.unwrap();
        assert_eq!(world.hints.load(Ordering::Relaxed), 2);
        assert!(world.clock.mono().since(start) >= MERGE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hint_is_tried_until_it_lands() {
        let world = world(7, Fault::LoseRequest);
        put(&world, KEY, Condition::None).await;
        world.hinter.flush(LIMIT).await.unwrap();
        assert_eq!(world.hints.load(Ordering::Relaxed), 8);
        assert!(world.bucket.get(CHANGES).await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_hint_that_arrives_late_is_no_older_one_come_back() {
        let memory = MemoryBucket::new();
        memory.fail_next_puts(CHANGES, [Fault::HoldBack]);
        let late = memory.sibling();
        let bucket: Arc<dyn Bucket> = Arc::new(memory);
        let clock = Arc::new(TokioClock::starting_at(Timestamp::from_millis(0)));
        let hinter = Hinter::start(Arc::clone(&bucket), clock, "test".to_owned());
        let tag = async || bucket.head(CHANGES).await.unwrap().unwrap().etag;
        let mut seen = Vec::new();
        for _ in 0..2 {
            hinter.moved();
            hinter.flush(LIMIT).await.unwrap();
            seen.push(tag().await);
        }
        assert_eq!(late.release_held(), 1);
        assert!(!seen.contains(&tag().await));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_write_hints_nothing_and_a_heartbeat_neither() {
        let world = world(0, Fault::Busy);
        put(&world, "_scafo/nodes/a.json", Condition::None).await;
        put(&world, KEY, Condition::Matches(scafo_store::ETag::parse("none").unwrap())).await;
        world.hinter.flush(LIMIT).await.unwrap();
        assert_eq!(world.hints.load(Ordering::Relaxed), 0);
        world.bucket.delete(KEY).await.unwrap();
        world.hinter.flush(LIMIT).await.unwrap();
        assert_eq!(world.hints.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_that_cannot_land_says_so() {
        let world = world(u32::MAX, Fault::Busy);
        put(&world, KEY, Condition::None).await;
        let problem = world.hinter.flush(LIMIT).await.unwrap_err();
        assert_eq!(problem.code, ProblemCode::StoreUnavailable);
    }
}

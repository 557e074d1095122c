//! Reads and conditional writes of records.
//!
//! Kept true: an update that was acknowledged is in the bucket; an update that was refused is not, unless the answer says
//! that nobody knows; members of a record that this build does not know survive; nothing of another version is overwritten.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use scafo_core::{Problem, ProblemCode, Timestamp, record::to_bytes};
use scafo_store::{Bucket, Condition, ETag, Object, PutOptions};
use tokio_util::sync::CancellationToken;

use super::{
    backoff::Backoff,
    clock::{Clock, Mono},
    kind::Record,
    settle::{Found, Next, Settling},
};

/// User metadata that carries the write id.
pub(crate) const WRITE_ID: &str = "scafo-write";
/// User metadata that carries the ids of the writes before that, newest first.
const WRITES_BEFORE: &str = "scafo-writes-before";
/// How many of them: a write in doubt is settled within half a minute, in which a key of a busy store takes one a second. 24
/// ids of 32 characters fit beside everything else into the 2 KiB that stores allow.
const BEFORE_MAX: usize = 24;
/// Longest id that is carried on, so that the bound above holds.
const BEFORE_ID_MAX: usize = 64;
/// Largest record that is read: a node record with ten thousand entries of 400 bytes.
pub const RECORD_BYTES_MAX: u64 = 4 << 20;
/// How long one logical write or read is tried. Six slow answers of the store; less than the 90 s after which a silent node
/// counts as dead.
const BUDGET: Duration = Duration::from_secs(30);
/// How much of a decoder's message is passed on.
const REASON_CHARS_MAX: usize = 300;

/// A record as it stands in the bucket.
#[derive(Debug, Clone)]
pub struct Stored<T> {
    /// The record.
    pub record: T,
    /// The tag of exactly this body.
    pub etag: ETag,
    /// The id of the write that put it there.
    pub write_id: Option<String>,
    /// The ids of the writes before it, newest first, as far as they are remembered.
    pub before: Vec<String>,
    /// When, by the store's clock.
    pub last_modified: Option<Timestamp>,
}

impl<T> Stored<T> {
    /// Whether this is what `earlier` was, or was written over it. What was made anew in its place names no write before.
    pub(super) fn continues(&self, earlier: &Self) -> bool {
        earlier.write_id.as_ref().map_or_else(|| self.etag == earlier.etag, |id| self.descends_from(id))
    }

    /// Whether the write of this id put it there, or one that was written over.
    pub(crate) fn descends_from(&self, id: &str) -> bool {
        self.write_id.iter().chain(&self.before).any(|write| write == id)
    }
}

/// How one change is to be made.
#[derive(Debug, Clone)]
pub struct Intent {
    write_id: String,
    repeatable: bool,
    overtaken_counts: bool,
    budget: Duration,
    authority: CancellationToken,
}

/// What a change wants to do about what is there.
#[derive(Debug)]
pub enum Step<T> {
    /// Leave it.
    Keep,
    /// Put this there.
    Write(T),
}

/// How a change ended.
#[derive(Debug, Clone)]
pub struct Changed<T> {
    /// What stands now.
    pub stored: Stored<T>,
    /// Whether this change put it there.
    pub written: bool,
    /// Not written, but an earlier try may have landed before what stands now.
    pub doubtful: bool,
}

/// Something to make sure of right before each conditional write.
#[async_trait]
pub trait Guard: Send + Sync {
    /// # Errors
    /// Whatever forbids the write; it ends the change.
    async fn check(&self) -> Result<(), Problem>;
}

/// What the caller knows of a key before the first try.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    Nothing,
    /// Very likely there is nothing: one request less than looking first.
    Absent,
}

impl Intent {
    /// A change that may run again after an attempt whose end nobody knows, because doing it twice does what doing it once
    /// does.
    #[must_use]
    pub fn new() -> Self {
        Self {
            write_id: format!("{:032x}", rand::random::<u128>()),
            repeatable: true,
            overtaken_counts: false,
            budget: BUDGET,
            authority: CancellationToken::new(),
        }
    }

    /// Recognised when it comes again, also by another process: `id` stands beside the body. One id for one change of one
    /// record; printable ASCII, at most 200 characters.
    #[must_use]
    pub fn operation(mut self, id: impl Into<String>) -> Self {
        self.write_id = id.into();
        self
    }

    /// A change that must not run a second time over a newer body while its first attempt is in doubt.
    #[must_use]
    pub const fn once(mut self) -> Self {
        self.repeatable = false;
        self
    }

    /// A change that is done once it has landed, also when somebody else has written over it since: what stands then is answered,
    /// and the change is not made a second time. Without this, a change in doubt may take place, be overwritten, and take place
    /// again, which undoes what came in between.
    #[must_use]
    pub const fn or_overtaken(mut self) -> Self {
        self.overtaken_counts = true;
        self
    }

    /// Ends before the next read or write when `authority` is cancelled.
    #[must_use]
    pub fn under(mut self, authority: CancellationToken) -> Self {
        self.authority = authority;
        self
    }

    /// Gives up after this long instead of half a minute.
    #[must_use]
    pub const fn within(mut self, budget: Duration) -> Self {
        self.budget = budget;
        self
    }
}

impl Default for Intent {
    fn default() -> Self {
        Self::new()
    }
}

/// The store with its clock.
#[derive(Clone)]
pub struct Engine {
    bucket: Arc<dyn Bucket>,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("bucket", &self.bucket).finish_non_exhaustive()
    }
}

impl Engine {
    pub(crate) fn new(bucket: Arc<dyn Bucket>, clock: Arc<dyn Clock>) -> Self {
        Self { bucket, clock }
    }

    pub(crate) fn bucket(&self) -> &Arc<dyn Bucket> {
        &self.bucket
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The record, or `None` if there is none.
    ///
    /// # Errors
    /// `store-unavailable`, or `store-nonconforming` for bytes that are no such record of version 1.
    pub async fn try_load<T: Record>(&self, key: &str) -> Result<Option<Stored<T>>, Problem> {
        self.pursuit(&Intent::new()).load(key).await
    }

    /// Any object of at most `limit` bytes, tried again while the store gives no answer.
    ///
    /// # Errors
    /// `store-unavailable`, `store-nonconforming`.
    pub async fn try_get(&self, key: &str, limit: u64) -> Result<Option<Object>, Problem> {
        self.pursuit(&Intent::new()).get(key, limit).await
    }

    /// As [`Engine::try_load`], one try and no patience: for loops that come back anyway.
    ///
    /// # Errors
    /// As [`Engine::try_load`].
    pub(crate) async fn load_once<T: Record>(&self, key: &str) -> Result<Option<Stored<T>>, Problem> {
        let object = self.bucket.get_bounded(key, RECORD_BYTES_MAX).await?;
        object.map(|object| decode(key, object)).transpose()
    }

    /// Creates what is not there. `written` tells whether this call did.
    ///
    /// # Errors
    /// As [`Engine::change`].
    pub async fn create<T: Record>(&self, intent: &Intent, record: &T) -> Result<Changed<T>, Problem> {
        let decide = |there: Option<&Stored<T>>| match there {
            Some(_) => Ok(Step::Keep),
            None => Ok(Step::Write(record.clone())),
        };
        self.pursuit(intent).change(&record.key(), Known::Absent, None, decide).await
    }

    /// Changes what is there; the members that `mutate` does not touch stay, unknown ones included. `mutate` may run more
    /// than once and must have no effects.
    ///
    /// # Errors
    /// `not-found` if nothing is there, else as [`Engine::change`].
    pub async fn update<T: Record>(
        &self,
        intent: &Intent,
        key: &str,
        mut mutate: impl FnMut(&mut T) -> Result<(), Problem> + Send,
    ) -> Result<Changed<T>, Problem> {
        self.change(intent, key, None, |there: Option<&Stored<T>>| {
            let mut record = there.ok_or_else(|| missing::<T>(key))?.record.clone();
            mutate(&mut record)?;
            Ok(Step::Write(record))
        })
        .await
    }

    /// Reads, decides, and writes if what was read still stands; again with full jitter until it does. `guard` is asked
    /// right before each try of the write.
    ///
    /// # Errors
    /// What `decide` and `guard` refuse; `immutable` if the record would move to another key; `cas-conflict` for an
    /// [`once`](Intent::once) change that may have landed before a newer body; `lease-lost` when the authority ended;
    /// `store-unavailable` and `store-nonconforming`.
    pub async fn change<T: Record>(
        &self,
        intent: &Intent,
        key: &str,
        guard: Option<&dyn Guard>,
        decide: impl FnMut(Option<&Stored<T>>) -> Result<Step<T>, Problem> + Send,
    ) -> Result<Changed<T>, Problem> {
        self.pursuit(intent).change(key, Known::Nothing, guard, decide).await
    }

    pub(super) fn pursuit<'a>(&'a self, intent: &'a Intent) -> Pursuit<'a> {
        let until = self.clock.mono().after(intent.budget);
        Pursuit { engine: self, intent, backoff: Backoff::default(), until, doubtful: false }
    }
}

/// How one body is sent.
#[derive(Clone, Copy)]
struct Sending<'a> {
    condition: &'a Condition,
    /// Ids of the writes before it.
    before: &'a [String],
    /// Asked before each try.
    guard: Option<&'a dyn Guard>,
}

/// One logical call on its way: what it may still spend, and what is in doubt.
pub(super) struct Pursuit<'a> {
    engine: &'a Engine,
    intent: &'a Intent,
    backoff: Backoff,
    until: Mono,
    /// An attempt of ours may have landed before a newer body.
    doubtful: bool,
}

impl Pursuit<'_> {
    async fn change<T: Record>(
        &mut self,
        key: &str,
        mut known: Known,
        guard: Option<&dyn Guard>,
        mut decide: impl FnMut(Option<&Stored<T>>) -> Result<Step<T>, Problem> + Send,
    ) -> Result<Changed<T>, Problem> {
        let mut lost = 0_u32;
        loop {
            let there = match std::mem::replace(&mut known, Known::Nothing) {
                Known::Nothing => self.load(key).await?,
                Known::Absent => None,
            };
            if let Some(stored) = &there
                && self.has_landed(stored)
            {
                return Ok(Changed { stored: stored.clone(), written: true, doubtful: false });
            }
            if self.doubtful && !self.intent.repeatable {
                return Err(unclear(key));
            }
            let (mut record, stands) = match (decide(there.as_ref())?, there) {
                (Step::Write(record), there) => (record, there),
                (Step::Keep, Some(stored)) => return Ok(self.kept(stored)),
                (Step::Keep, None) => return Err(missing::<T>(key)),
            };
            if record.key() != key {
                return Err(Problem::new(ProblemCode::Immutable, format!("what `{key}` is named for never changes")));
            }
            let (condition, before) = match stands {
                Some(stored) if to_bytes(&stored.record) == to_bytes(&record) => return Ok(self.kept(stored)),
                Some(stored) => {
                    record.revise();
                    let before = stored.write_id.into_iter().chain(stored.before);
                    let before = before.filter(|id| id.len() <= BEFORE_ID_MAX).take(BEFORE_MAX).collect();
                    (Condition::Matches(stored.etag), before)
                }
                None => (Condition::Absent, Vec::new()),
            };
            let sending = Sending { condition: &condition, before: &before, guard };
            if let Some(etag) = self.write(key, to_bytes(&record).into(), sending).await? {
                let write_id = Some(self.intent.write_id.clone());
                let stored = Stored { record, etag, write_id, before, last_modified: None };
                return Ok(Changed { stored, written: true, doubtful: false });
            }
            // The first loss is looked at at once: who only wanted to create finds that it is done.
            if lost > 0 {
                self.wait(|| moved(key)).await?;
            }
            lost += 1;
        }
    }

    /// Whether what stands is this change's, or comes after it where that is as good.
    fn has_landed<T>(&self, stored: &Stored<T>) -> bool {
        let id = &self.intent.write_id;
        stored.write_id.as_ref() == Some(id) || (self.intent.overtaken_counts && stored.before.contains(id))
    }

    fn kept<T>(&self, stored: Stored<T>) -> Changed<T> {
        Changed { stored, written: false, doubtful: self.doubtful }
    }

    async fn load<T: Record>(&mut self, key: &str) -> Result<Option<Stored<T>>, Problem> {
        self.get(key, RECORD_BYTES_MAX).await?.map(|object| decode(key, object)).transpose()
    }

    /// A read that is tried again while the store gives no answer.
    async fn get(&mut self, key: &str, limit: u64) -> Result<Option<Object>, Problem> {
        loop {
            self.authorised()?;
            match self.engine.bucket.get_bounded(key, limit).await {
                Ok(object) => return Ok(object),
                Err(error) if error.is_transient() => self.wait(|| error.clone().into()).await?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// One conditional write to its end: the tag of the new body, or `None` if the condition does not hold.
    async fn write(&mut self, key: &str, body: Bytes, sending: Sending<'_>) -> Result<Option<ETag>, Problem> {
        let Sending { condition, before, guard } = sending;
        let write_id = &self.intent.write_id;
        let mut settling = Settling::new(condition, write_id);
        let mut metadata: BTreeMap<String, String> = [(WRITE_ID.to_owned(), write_id.clone())].into();
        if !before.is_empty() {
            metadata.insert(WRITES_BEFORE.to_owned(), before.join(" "));
        }
        loop {
            self.authorised()?;
            if let Some(guard) = guard {
                guard.check().await?;
            }
            let options = PutOptions {
                condition: condition.clone(),
                metadata: metadata.clone(),
                content_type: Some("application/json".to_owned()),
            };
            let mut next = settling.put(self.engine.bucket.put(key, body.clone(), options).await?);
            if next == Next::ReadBack {
                let object = self.get(key, RECORD_BYTES_MAX).await?;
                next = settling.read_back(object.as_ref().map(|object| Found {
                    etag: &object.head.etag,
                    write_id: object.head.metadata.get(WRITE_ID).map(String::as_str),
                }));
            }
            match next {
                Next::Written(etag) => return Ok(Some(etag)),
                Next::Moved { doubtful } => {
                    self.doubtful |= doubtful;
                    return Ok(None);
                }
                Next::Again | Next::ReadBack => self.wait(|| unsettled(key, &settling)).await?,
            }
        }
    }

    /// # Errors
    /// `lease-lost` once the authority is gone.
    pub(super) fn authorised(&self) -> Result<(), Problem> {
        if self.intent.authority.is_cancelled() {
            return Err(Problem::new(ProblemCode::LeaseLost, "the authority for this write ended before it was done"));
        }
        Ok(())
    }

    /// Waits for the next try, or gives up with `failure`.
    pub(super) async fn wait(&mut self, failure: impl FnOnce() -> Problem) -> Result<(), Problem> {
        let clock = &self.engine.clock;
        let next = clock.mono().after(self.backoff.next(clock.random()));
        if next >= self.until {
            return Err(failure());
        }
        tokio::select! {
            biased;
            () = self.intent.authority.cancelled() => self.authorised(),
            () = clock.sleep_until(next) => Ok(()),
        }
    }
}

/// The record in an object, if it is one of this build's version and stands under its own key.
fn decode<T: Record>(key: &str, object: Object) -> Result<Stored<T>, Problem> {
    let record: T = serde_json::from_slice(&object.body).map_err(|error| {
        let reason: String = error.to_string().chars().take(REASON_CHARS_MAX).collect();
        unreadable::<T>(key, &reason)
    })?;
    let named = record.key();
    if named != key {
        return Err(unreadable::<T>(key, "it names another record than its key does"));
    }
    let head = object.head;
    let write_id = head.metadata.get(WRITE_ID).cloned();
    let before = head.metadata.get(WRITES_BEFORE).map(|ids| ids.split(' ').map(str::to_owned).collect());
    let before = before.unwrap_or_default();
    Ok(Stored { record, etag: head.etag, write_id, before, last_modified: head.last_modified })
}

fn unreadable<T: Record>(key: &str, reason: &str) -> Problem {
    let detail = format!("`{key}` is no {} record that this version of scafo reads: {reason}", T::NAME);
    Problem::new(ProblemCode::StoreNonconforming, detail).titled("A record cannot be read")
}

fn missing<T: Record>(key: &str) -> Problem {
    Problem::new(ProblemCode::NotFound, format!("there is no {} record `{key}`", T::NAME))
}

fn moved(key: &str) -> Problem {
    Problem::new(ProblemCode::CasConflict, format!("`{key}` kept moving under this write: try again"))
}

fn unclear(key: &str) -> Problem {
    let detail =
        format!("the bucket did not answer a write of `{key}`, and somebody else wrote it since: look, then decide");
    Problem::new(ProblemCode::CasConflict, detail)
}

fn unsettled(key: &str, settling: &Settling<'_>) -> Problem {
    match settling.doubt() {
        Some(cause) => {
            let detail = format!("the bucket does not say whether `{key}` was written: it is safe to try again");
            Problem::new(ProblemCode::StoreUnavailable, detail).because(cause)
        }
        None => {
            Problem::new(ProblemCode::StoreUnavailable, format!("the bucket is too busy to write `{key}`: try again"))
        }
    }
}

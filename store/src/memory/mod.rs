//! A bucket in memory, as awkward as the real ones: tags are hashes of bodies, so that A→B→A shows; it can lose a request
//! or only an answer, and hold a write back until its writer has long gone.

mod store;

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64, atomic::Ordering},
};

use async_trait::async_trait;
use bytes::Bytes;
use scafo_core::Timestamp;

use self::store::{Store, Write};
use crate::{
    Bucket, Cause, Condition, ETagForm, Error, Head, ListRequest, Object, Page, Put, PutOptions, TITLE_RANGES,
};

/// One thing that goes wrong with one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request never arrives; the caller sees no answer.
    LoseRequest,
    /// The request is carried out; the caller sees no answer.
    LoseAnswer,
    /// A write arrives only at [`MemoryBucket::release_held`], its condition judged then; the caller sees no answer.
    HoldBack,
    /// A write is answered 412.
    Refuse,
    /// The store is busy.
    Busy,
    /// A write is answered 409 `ConditionalRequestConflict` and not carried out.
    Conflict,
}

/// What a request wants, for a plan of faults to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation<'a> {
    /// A read of the key, whole, in part, or of its head.
    Get(&'a str),
    /// A write of the key under the condition.
    Put(&'a str, &'a Condition),
    /// A delete of the key.
    Delete(&'a str),
    /// A listing of the prefix.
    List(&'a str),
}

/// How a store that must be found out breaks its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// Overwrites on `If-None-Match: *`.
    IgnoresIfNoneMatch,
    /// Overwrites on a stale `If-Match`.
    IgnoresIfMatch,
    /// Writes on `If-Match` of a missing key.
    CreatesOnIfMatch,
    /// One tag for all bodies of a key.
    CoarseTags,
    /// Answers a ranged read with the whole object.
    IgnoresRange,
    /// Forgets what lies behind the first page.
    CutsListings,
    /// Lists tags that no GET gives.
    ListsOtherTags,
    /// Drops user metadata.
    LosesMetadata,
    /// No lie but a quirk: refuses an `If-Match` in quotes.
    WantsBareTags,
}

type Plan = Box<dyn FnMut(Operation<'_>) -> Option<Fault> + Send>;

/// A handle on a store in memory. [`MemoryBucket::sibling`] gives another on the same objects with faults of its own, as
/// another machine would have.
pub struct MemoryBucket {
    store: Arc<Mutex<Store>>,
    plan: Mutex<Option<Plan>>,
    next_puts: Mutex<HashMap<String, VecDeque<Fault>>>,
    form: Mutex<ETagForm>,
    requests: AtomicU64,
}

impl MemoryBucket {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::on(Arc::default())
    }

    /// An empty store that breaks its word.
    #[must_use]
    pub fn lying(lie: Lie) -> Self {
        let bucket = Self::new();
        bucket.store().lie = Some(lie);
        bucket
    }

    /// Another handle on the same objects.
    #[must_use]
    pub fn sibling(&self) -> Self {
        Self::on(Arc::clone(&self.store))
    }

    fn on(store: Arc<Mutex<Store>>) -> Self {
        Self {
            store,
            plan: Mutex::default(),
            next_puts: Mutex::default(),
            form: Mutex::default(),
            requests: AtomicU64::new(0),
        }
    }

    /// Asks `plan` about every request of this handle from now on.
    pub fn plan(&self, plan: impl FnMut(Operation<'_>) -> Option<Fault> + Send + 'static) {
        *lock(&self.plan) = Some(Box::new(plan));
    }

    /// These befall the next writes of `key` by this handle, one each, before any plan.
    pub fn fail_next_puts(&self, key: &str, faults: impl IntoIterator<Item = Fault>) {
        lock(&self.next_puts).entry(key.to_owned()).or_default().extend(faults);
    }

    /// Lets the writes that were held back arrive now, the first one first. Answers how many.
    pub fn release_held(&self) -> usize {
        let mut store = self.store();
        let held = std::mem::take(&mut store.held);
        let count = held.len();
        for write in held {
            store.write(write);
        }
        count
    }

    /// Sets the store's clock, which stands in `Date` and `Last-Modified`; until then it is the machine's.
    pub fn set_now(&self, now: Timestamp) {
        self.store().now = Some(now);
    }

    /// Pages no longer than this, so that short listings have several.
    pub fn set_page_keys(&self, keys: u16) {
        self.store().page_keys = keys.max(1);
    }

    /// The keys that start with `prefix`, without counting as a request.
    #[must_use]
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        self.store().keys(prefix)
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        lock(&self.store)
    }

    /// Counts the request and asks what befalls it.
    async fn arrive(&self, operation: Operation<'_>) -> Option<Fault> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        // Others get their turn between any two requests, as over a network.
        tokio::task::yield_now().await;
        if let Operation::Put(key, _) = operation
            && let Some(fault) = lock(&self.next_puts).get_mut(key).and_then(VecDeque::pop_front)
        {
            return Some(fault);
        }
        lock(&self.plan).as_mut().and_then(|plan| plan(operation))
    }

    async fn read(&self, operation: Operation<'_>, name: &'static str, key: &str) -> Result<(), Error> {
        let fault = self.arrive(operation).await;
        match fault {
            None | Some(Fault::HoldBack | Fault::Refuse | Fault::Conflict) => Ok(()),
            Some(Fault::LoseRequest | Fault::LoseAnswer) => {
                Err(Error::Unavailable { operation: name, key: key.to_owned(), cause: Cause::new("injected") })
            }
            Some(Fault::Busy) => Err(Error::Busy { operation: name, key: key.to_owned() }),
        }
    }
}

impl Default for MemoryBucket {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBucket").field("requests", &self.requests).finish_non_exhaustive()
    }
}

#[async_trait]
impl Bucket for MemoryBucket {
    async fn get_bounded(&self, key: &str, limit: u64) -> Result<Option<Object>, Error> {
        self.read(Operation::Get(key), "get", key).await?;
        let Some(object) = self.store().get(key) else { return Ok(None) };
        if object.head.size > limit {
            return Err(Error::TooLarge { key: key.to_owned(), size: object.head.size, limit });
        }
        Ok(Some(object))
    }

    async fn head(&self, key: &str) -> Result<Option<Head>, Error> {
        self.read(Operation::Get(key), "head", key).await?;
        Ok(self.store().get(key).map(|object| object.head))
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Option<Bytes>, Error> {
        self.read(Operation::Get(key), "get", key).await?;
        let store = self.store();
        let Some(object) = store.get(key) else { return Ok(None) };
        if store.lie == Some(Lie::IgnoresRange) {
            return Err(Error::nonconforming(TITLE_RANGES, format!("a ranged read of `{key}` gave all of it")));
        }
        if range.is_empty() || range.start >= object.head.size {
            let code = "InvalidRange".to_owned();
            return Err(Error::Rejected { operation: "get", key: key.to_owned(), code });
        }
        let index = |at: u64| usize::try_from(at.min(object.head.size)).unwrap_or(usize::MAX);
        Ok(Some(object.body.slice(index(range.start)..index(range.end))))
    }

    async fn put(&self, key: &str, body: Bytes, options: PutOptions) -> Result<Put, Error> {
        let fault = self.arrive(Operation::Put(key, &options.condition)).await;
        let write = Write { key: key.to_owned(), body, options, form: *lock(&self.form) };
        let unknown = || Put::Unknown(Cause::new("injected"));
        let put = match fault {
            None => self.store().write(write),
            Some(Fault::LoseAnswer) => {
                self.store().write(write);
                unknown()
            }
            Some(Fault::HoldBack) => {
                self.store().held.push(write);
                unknown()
            }
            Some(Fault::LoseRequest) => unknown(),
            Some(Fault::Refuse) => Put::Refused,
            Some(Fault::Busy) => Put::Busy,
            Some(Fault::Conflict) => Put::Conflict,
        };
        tokio::task::yield_now().await;
        Ok(put)
    }

    async fn delete(&self, key: &str) -> Result<(), Error> {
        let fault = self.arrive(Operation::Delete(key)).await;
        let unavailable =
            || Error::Unavailable { operation: "delete", key: key.to_owned(), cause: Cause::new("injected") };
        match fault {
            Some(Fault::LoseRequest) => Err(unavailable()),
            Some(Fault::Busy) => Err(Error::Busy { operation: "delete", key: key.to_owned() }),
            Some(Fault::LoseAnswer) => {
                self.store().delete(key);
                Err(unavailable())
            }
            None | Some(Fault::HoldBack | Fault::Refuse | Fault::Conflict) => {
                self.store().delete(key);
                Ok(())
            }
        }
    }

    async fn delete_many(&self, keys: &[String]) -> Result<(), Error> {
        for key in keys {
            self.delete(key).await?;
        }
        Ok(())
    }

    async fn list_page(&self, request: ListRequest<'_>) -> Result<Page, Error> {
        self.read(Operation::List(request.prefix), "list", request.prefix).await?;
        Ok(self.store().page(request))
    }

    fn use_etag_form(&self, form: ETagForm) {
        *lock(&self.form) = form;
    }

    fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn create(bucket: &MemoryBucket, body: &'static str) -> Put {
        let options = PutOptions { condition: Condition::Absent, ..PutOptions::default() };
        bucket.put("k", Bytes::from_static(body.as_bytes()), options).await.unwrap()
    }

    async fn body(bucket: &MemoryBucket) -> Option<Bytes> {
        bucket.get("k").await.unwrap().map(|object| object.body)
    }

    #[tokio::test]
    async fn a_lost_answer_hides_a_write_and_a_lost_request_prevents_it() {
        let bucket = MemoryBucket::new();
        bucket.fail_next_puts("k", [Fault::LoseRequest, Fault::LoseAnswer]);
        assert!(matches!(create(&bucket, "a").await, Put::Unknown(_)));
        assert_eq!(body(&bucket).await, None);
        assert!(matches!(create(&bucket, "b").await, Put::Unknown(_)));
        assert_eq!(body(&bucket).await.as_deref(), Some(&b"b"[..]));
        assert_eq!(create(&bucket, "c").await, Put::Refused);
    }

    #[tokio::test]
    async fn a_held_write_is_judged_when_it_arrives() {
        let bucket = MemoryBucket::new();
        bucket.fail_next_puts("k", [Fault::HoldBack]);
        assert!(matches!(create(&bucket, "late").await, Put::Unknown(_)));
        assert!(matches!(create(&bucket.sibling(), "early").await, Put::Written(_)));
        assert_eq!(bucket.release_held(), 1);
        assert_eq!(body(&bucket).await.as_deref(), Some(&b"early"[..]));
    }

    #[tokio::test]
    async fn faults_of_one_handle_leave_its_sibling_alone() {
        let bucket = MemoryBucket::new();
        let other = bucket.sibling();
        bucket.plan(|_| Some(Fault::LoseRequest));
        assert!(bucket.get("k").await.is_err());
        assert!(other.get("k").await.unwrap().is_none());
    }
}

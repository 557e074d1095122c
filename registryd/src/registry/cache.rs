//! One kind of record in memory: listed, and read back only where a tag moved.
//!
//! Kept true: a record is filed under the tag that the *listing* named, and only if it was read under that very tag. One that
//! moved between the listing and the read is filed under none, so that the next refresh reads it once more, also where it has
//! moved back by then: equal bodies have equal tags. A listing that fails changes nothing. A
//! record that cannot be read leaves out itself and is named. One that moved and is listed, and gives no answer again and
//! again, stays as it was read last and is named too: one object must not hold up everything for ever.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::{StreamExt, stream};
use scafo_core::{Problem, ProblemCode, Timestamp};
use scafo_store::{ETag, Listed, Listing, PAGE_KEYS_MAX};

use super::{
    engine::{Engine, Intent, Stored},
    kind::Kind,
};

/// Reads at once. Enough to read 10,000 records from a store 20 ms away in half a minute, few enough that a small store
/// keeps up.
const READS_AT_ONCE: usize = 16;
/// In how many refreshes in a row a record may give no answer before it is waited for no longer. One that was never read is then
/// left out like a bad one; until then the refresh fails as a whole: a store in trouble must not look like a fleet with few
/// applications. Of one that was read, the old record stands from the first time on, and it is stale until then.
const SILENCES_MAX: u32 = 3;

/// What to read of what moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// Everything that moved.
    Moved,
    /// Only what is new. What moved keeps its old record until a refresh reads it; its listing's row is the new one.
    New,
    /// What is new, what moved and has another size than when it was read, and of the rest that moved at most so many, those
    /// that were read longest ago first. For records that move all the time and rarely say anything new.
    Some(usize),
}

/// The records of one kind.
#[derive(Debug)]
pub struct Cache<T> {
    prefix: String,
    entries: BTreeMap<String, Entry<T>>,
    date: Option<Timestamp>,
    /// Counts the refreshes.
    refreshes: u64,
    /// What moved and no caller was told yet, because its refresh failed or was dropped half way.
    untold: Refreshed,
}

#[derive(Debug)]
struct Entry<T> {
    /// The row of the last listing.
    listed: Listed,
    /// What the listing said when the record was read; none while it could not be, or where that was another body.
    filed: Option<Filed>,
    state: State<T>,
    /// In how many reads in a row it gave no answer. Another tag ends that no more than for what was never read: the records of
    /// nodes have another one with each heartbeat.
    silences: u32,
}

#[derive(Debug)]
struct Filed {
    etag: ETag,
    size: u64,
    refresh: u64,
}

#[derive(Debug)]
enum State<T> {
    Good(Arc<Stored<T>>),
    Bad(Problem),
    /// No answer yet.
    Silent,
}

/// What one refresh did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refreshed {
    /// Keys whose record was read anew, for better or worse.
    pub read: Vec<String>,
    /// Keys that are not there any more.
    pub dropped: Vec<String>,
    /// Keys that moved and gave no answer; their last record stays for now. Those of [`Cache::overdue`] are not among them.
    pub stale: Vec<String>,
}

impl Refreshed {
    /// Whether the records differ from before.
    #[must_use]
    pub fn moved(&self) -> bool {
        !self.read.is_empty() || !self.dropped.is_empty()
    }
}

impl<T: Kind> Default for Cache<T> {
    fn default() -> Self {
        Self::under(T::PREFIX)
    }
}

impl<T: Kind> Cache<T> {
    /// An empty cache of what stands under `prefix`, which is the kind's or a part of it, trailing separator included.
    #[must_use]
    pub fn under(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), entries: BTreeMap::new(), date: None, refreshes: 0, untold: Refreshed::default() }
    }

    /// Lists, and reads what `read` says. What was read is kept even if the refresh fails as a whole or is dropped; the next
    /// one that succeeds tells of it.
    ///
    /// # Errors
    /// `store-unavailable` if the listing fails or a record that was never read gives no answer; `store-nonconforming` for a
    /// listing that is cut short or lacks tags.
    pub async fn refresh(&mut self, engine: &Engine, read: Read) -> Result<Refreshed, Problem> {
        let listing = engine.bucket().list(&self.prefix).await?;
        self.refresh_from(engine, listing, read).await
    }

    /// As [`Cache::refresh`] of everything that moved, tried again while the store gives no answer, for a call that somebody waits
    /// for. What was read stays read, so each try has less to do. A record that gives no answer is never left out: whoever asks
    /// once decides by what there is.
    ///
    /// # Errors
    /// As [`Cache::refresh`].
    pub async fn refresh_patiently(&mut self, engine: &Engine) -> Result<(), Problem> {
        let intent = Intent::new();
        let mut pursuit = engine.pursuit(&intent);
        loop {
            let silent = match self.refresh(engine, Read::Moved).await {
                Err(problem) if problem.code == ProblemCode::StoreUnavailable => problem,
                Err(problem) => return Err(problem),
                Ok(done) => match done.stale.first().map(|key| silent(key)).or_else(|| self.first_silent()) {
                    Some(problem) => problem,
                    None => return Ok(()),
                },
            };
            pursuit.wait(|| silent).await?;
        }
    }

    /// As [`Cache::refresh_patiently`], for what is only shown: a record that gives no answer three times is left out.
    ///
    /// # Errors
    /// As [`Cache::refresh`].
    pub async fn refresh_to_show(&mut self, engine: &Engine) -> Result<(), Problem> {
        let intent = Intent::new();
        let mut pursuit = engine.pursuit(&intent);
        loop {
            match self.refresh(engine, Read::Moved).await {
                Err(problem) if problem.code == ProblemCode::StoreUnavailable => pursuit.wait(|| problem).await?,
                done => return done.map(drop),
            }
        }
    }

    fn first_silent(&self) -> Option<Problem> {
        let mut silent = self.bad().chain(self.overdue()).map(|(_, problem)| problem);
        silent.find(|problem| problem.code == ProblemCode::StoreUnavailable)
    }

    /// As [`Cache::refresh_patiently`], for a decision that any record may decide: one that cannot be read refuses it, and
    /// `unknown` says what is not known then.
    ///
    /// # Errors
    /// `store-nonconforming` where a record cannot be read; as [`Cache::refresh`].
    pub async fn refresh_whole(&mut self, engine: &Engine, unknown: &str) -> Result<(), Problem> {
        self.refresh_patiently(engine).await?;
        match self.bad().next() {
            None => Ok(()),
            Some((key, problem)) => {
                let detail = format!("`{key}` cannot be read, and {unknown}: {}", problem.detail);
                Err(Problem::new(ProblemCode::StoreNonconforming, detail))
            }
        }
    }

    /// As [`Cache::refresh`] with a listing that is there already.
    ///
    /// # Errors
    /// As [`Cache::refresh`].
    pub async fn refresh_from(&mut self, engine: &Engine, listing: Listing, read: Read) -> Result<Refreshed, Problem> {
        self.date = listing.date;
        self.untold.stale.clear();
        let wanted = self.take(listing, read);
        let mut reads = stream::iter(wanted)
            .map(|listed| async move {
                let loaded = engine.load_once::<T>(&listed.key).await;
                (listed, loaded)
            })
            .buffer_unordered(READS_AT_ONCE);
        let mut silent = None;
        while let Some((listed, loaded)) = reads.next().await {
            if let Err(problem) = self.file(listed, loaded) {
                silent = Some(problem);
            }
        }
        if let Some(problem) = silent {
            return Err(problem);
        }
        let mut told = std::mem::take(&mut self.untold);
        for keys in [&mut told.read, &mut told.dropped, &mut told.stale] {
            keys.sort();
            keys.dedup();
        }
        Ok(told)
    }

    /// Takes a listing over and answers which of its objects to read.
    fn take(&mut self, listing: Listing, read: Read) -> Vec<Listed> {
        self.refreshes += 1;
        let mut before = std::mem::take(&mut self.entries);
        let mut wanted = Vec::new();
        // What moved and need not be read, with the refresh that it was read in last.
        let mut spare: Vec<(u64, Listed)> = Vec::new();
        for listed in listing.entries {
            // What names no record is skipped, and so is what a store lists twice.
            if !T::is_key(&listed.key) || self.entries.contains_key(&listed.key) {
                continue;
            }
            match before.remove(&listed.key) {
                Some(mut entry) => {
                    match entry.due(&listed, read) {
                        Due::Now => wanted.push(listed.clone()),
                        Due::Spare(since) => spare.push((since, listed.clone())),
                        Due::Not => {}
                    }
                    entry.take(listed);
                    self.entries.insert(entry.listed.key.clone(), entry);
                }
                None => {
                    wanted.push(listed.clone());
                    let entry = Entry { listed: listed.clone(), filed: None, state: State::Silent, silences: 0 };
                    self.entries.insert(listed.key, entry);
                }
            }
        }
        if let Read::Some(limit) = read {
            spare.sort_by_key(|(since, _)| *since);
            wanted.extend(spare.into_iter().take(limit).map(|(_, listed)| listed));
        }
        self.untold.dropped.extend(before.into_keys());
        wanted
    }

    fn file(&mut self, listed: Listed, loaded: Result<Option<Stored<T>>, Problem>) -> Result<(), Problem> {
        let done = &mut self.untold;
        let filed = Filed { etag: listed.etag, size: listed.size, refresh: self.refreshes };
        let Some(entry) = self.entries.get_mut(&listed.key) else { return Ok(()) };
        if !matches!(&loaded, Err(problem) if problem.code == ProblemCode::StoreUnavailable) {
            entry.silences = 0;
        }
        match loaded {
            Ok(Some(stored)) => {
                entry.filed = Some(filed).filter(|filed| filed.etag == stored.etag);
                entry.state = State::Good(Arc::new(stored));
                done.read.push(listed.key);
            }
            // Deleted since the listing.
            Ok(None) => {
                self.entries.remove(&listed.key);
                done.dropped.push(listed.key);
            }
            Err(problem) if problem.code == ProblemCode::StoreUnavailable => {
                return entry.silent(listed.key, problem, done);
            }
            Err(problem) => {
                entry.filed = Some(filed);
                entry.state = State::Bad(problem);
                done.read.push(listed.key);
            }
        }
        Ok(())
    }

    /// The records that could be read, by key.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Stored<T>>> {
        self.entries.values().filter_map(Entry::good)
    }

    /// The record at `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Arc<Stored<T>>> {
        self.entries.get(key).and_then(Entry::good)
    }

    /// The rows of the last listing, records that cannot be read included: a bad record still holds its key.
    pub fn listed(&self) -> impl Iterator<Item = &Listed> {
        self.entries.values().map(|entry| &entry.listed)
    }

    /// Pages that the last listing took.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.entries.len().div_ceil(usize::from(PAGE_KEYS_MAX)).max(1)
    }

    /// Keys whose record cannot be read, and why.
    pub fn bad(&self) -> impl Iterator<Item = (&str, Problem)> {
        self.entries.iter().filter_map(|(key, entry)| match &entry.state {
            State::Good(_) => None,
            State::Bad(problem) => Some((key.as_str(), problem.clone())),
            State::Silent => Some((key.as_str(), silent(key))),
        })
    }

    /// Keys whose record was read, moved since, and gave no answer so often that it is waited for no longer. What it said last
    /// stands.
    pub fn overdue(&self) -> impl Iterator<Item = (&str, Problem)> {
        let overdue = self.entries.iter().filter(|(_, entry)| entry.is_overdue());
        overdue.map(|(key, _)| {
            let mut problem = silent(key);
            problem.detail.push_str("; what it said before stands");
            (key.as_str(), problem)
        })
    }

    /// Whether any record is waited for no longer, read before or not.
    #[must_use]
    pub(crate) fn is_any_silent(&self) -> bool {
        self.entries.values().any(|entry| entry.silences >= SILENCES_MAX)
    }

    /// The `Date` of the last listing, by the store's clock.
    #[must_use]
    pub const fn date(&self) -> Option<Timestamp> {
        self.date
    }

    /// Takes over a record that this process has just written, so that it need not wait for the next listing. The next
    /// listing still decides.
    pub fn put(&mut self, stored: Stored<T>) {
        let key = stored.record.key();
        let etag = stored.etag.clone();
        let listed = Listed { key: key.clone(), etag, size: 0, last_modified: None, date: None };
        // Its size is not known here, so that the next listing that names another tag has it read.
        let filed = Some(Filed { etag: stored.etag.clone(), size: 0, refresh: self.refreshes });
        match self.entries.get_mut(&key) {
            Some(entry) => {
                entry.filed = filed;
                entry.state = State::Good(Arc::new(stored));
                entry.silences = 0;
            }
            None => {
                self.entries.insert(key, Entry { listed, filed, state: State::Good(Arc::new(stored)), silences: 0 });
            }
        }
    }
}

fn silent(key: &str) -> Problem {
    Problem::new(ProblemCode::StoreUnavailable, format!("the bucket lists `{key}` and does not let it be read"))
}

/// When an object of a listing is read.
enum Due {
    Now,
    /// When there is room for it, those of the earliest refresh first.
    Spare(u64),
    Not,
}

impl<T> Entry<T> {
    fn take(&mut self, listed: Listed) {
        if self.filed.as_ref().is_some_and(|filed| filed.etag == listed.etag) {
            // It is again what was read.
            self.silences = 0;
        }
        self.listed = listed;
    }

    fn is_overdue(&self) -> bool {
        self.silences >= SILENCES_MAX && matches!(self.state, State::Good(_))
    }

    fn due(&self, listed: &Listed, read: Read) -> Due {
        let known = matches!(self.state, State::Good(_) | State::Bad(_));
        match (&self.filed, read) {
            (Some(filed), _) if filed.etag == listed.etag => Due::Not,
            (_, Read::Moved) => Due::Now,
            _ if !known => Due::Now,
            (Some(filed), Read::Some(_)) if filed.size == listed.size => Due::Spare(filed.refresh),
            (_, Read::Some(_)) => Due::Now,
            (_, Read::New) => Due::Not,
        }
    }

    const fn good(&self) -> Option<&Arc<Stored<T>>> {
        match &self.state {
            State::Good(stored) => Some(stored),
            State::Bad(_) | State::Silent => None,
        }
    }

    fn silent(&mut self, key: String, problem: Problem, done: &mut Refreshed) -> Result<(), Problem> {
        self.silences = self.silences.saturating_add(1);
        match self.state {
            _ if self.silences >= SILENCES_MAX => Ok(()),
            State::Silent => Err(problem),
            State::Good(_) | State::Bad(_) => {
                done.stale.push(key);
                Ok(())
            }
        }
    }
}

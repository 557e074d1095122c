//! Rounds over all records of one kind, one page at a time, in little memory: of what need not be read again a digest stays.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};

use scafo_core::view::RecordFault;
use scafo_core::{Problem, ProblemCode};
use scafo_store::Listed;

use crate::registry::{Engine, Kind, Paged, Stored};

/// The rounds. `N` is what is noted of a record that was read, so that it need not be read again until it moves.
#[derive(Debug)]
pub(super) struct Round<T, N> {
    pages: Paged<T>,
    hasher: RandomState,
    /// What the last round found.
    before: Found<N>,
    /// What this one found so far.
    now: Found<N>,
}

/// What a round found.
#[derive(Debug)]
struct Found<N> {
    /// The notes, by the digest of key and tag. A false one is as rare as two equal numbers of 64 bits; whoever acts on a note
    /// reads the record first.
    notes: HashMap<u64, N>,
    /// The digests of what cannot be read: nor can it before it moves.
    bad: HashSet<u64>,
    /// What could not be read, or gave no answer, by key, and why.
    faults: BTreeMap<String, String>,
}

impl<N> Found<N> {
    fn knows(&self, digest: u64) -> bool {
        self.notes.contains_key(&digest) || self.bad.contains(&digest)
    }

    fn add(&mut self, other: Self) {
        self.notes.extend(other.notes);
        self.bad.extend(other.bad);
        self.faults.extend(other.faults);
    }
}

impl<N> Default for Found<N> {
    fn default() -> Self {
        Self { notes: HashMap::new(), bad: HashSet::new(), faults: BTreeMap::new() }
    }
}

/// A record of a page.
#[derive(Debug)]
pub(super) enum Row<T, N> {
    /// It was read.
    Read(Stored<T>),
    /// It has not moved since this was noted.
    Noted { key: String, note: N },
}

impl<T, N> Default for Round<T, N> {
    fn default() -> Self {
        Self { pages: Paged::default(), hasher: RandomState::new(), before: Found::default(), now: Found::default() }
    }
}

impl<T: Kind, N: Clone + Send + Sync> Round<T, N> {
    /// The next page. `note` answers what to note of a record; without a note it is read in each round.
    ///
    /// # Errors
    /// As [`Paged::next`].
    pub(super) async fn advance(
        &mut self,
        engine: &Engine,
        note: impl Fn(&T) -> Option<N> + Send,
    ) -> Result<Vec<Row<T, N>>, Problem> {
        let Self { pages, hasher, before, now } = self;
        let digest = |listed: &Listed| hasher.hash_one((&listed.key, &listed.etag));
        let is_known = |listed: &Listed| {
            let digest = digest(listed);
            now.knows(digest) || before.knows(digest)
        };
        let leaf = pages.next(engine, is_known).await?;
        let mut rows = Vec::with_capacity(leaf.skipped.len() + leaf.read.len());
        for listed in leaf.skipped {
            let digest = digest(&listed);
            if let Some(note) = now.notes.get(&digest).or_else(|| before.notes.get(&digest)).cloned() {
                now.notes.insert(digest, note.clone());
                rows.push(Row::Noted { key: listed.key, note });
            } else if let Some(error) = now.faults.get(&listed.key).or_else(|| before.faults.get(&listed.key)).cloned()
            {
                now.bad.insert(digest);
                now.faults.insert(listed.key, error);
            }
        }
        for (listed, stored) in leaf.read {
            if let Some(note) = note(&stored.record) {
                now.notes.insert(digest(&listed), note);
            }
            rows.push(Row::Read(stored));
        }
        for (listed, problem) in leaf.bad {
            // No answer says nothing of the record: it is asked for again in the next round.
            if problem.code != ProblemCode::StoreUnavailable {
                now.bad.insert(digest(&listed));
            }
            now.faults.insert(listed.key, problem.detail);
        }
        if leaf.last {
            // What is not in this round is gone.
            *before = std::mem::take(now);
        }
        Ok(rows)
    }

    /// Begins at the first page again. What was noted stays.
    pub(super) fn restart(&mut self) {
        self.pages = Paged::default();
        self.before.add(std::mem::take(&mut self.now));
    }

    /// What could not be read in the last round or in this one.
    pub(super) fn faults(&self) -> Vec<RecordFault> {
        let all: BTreeMap<&String, &String> = self.before.faults.iter().chain(&self.now.faults).collect();
        all.into_iter().map(|(key, error)| RecordFault { key: key.clone(), error: error.clone() }).collect()
    }
}

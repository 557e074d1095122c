//! Rounds over all records of one kind, one page at a time, in little memory: of what need not be read again a digest stays.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};

use scafo_core::Problem;
use scafo_core::view::RecordFault;
use scafo_store::Listed;

use crate::registry::{Engine, Kind, Paged, Stored};

/// The rounds. `N` is what is noted of a record that was read, so that it need not be read again until it moves.
#[derive(Debug)]
pub(super) struct Round<T, N> {
    pages: Paged<T>,
    hasher: RandomState,
    /// The notes of the last round, by the digest of key and tag. A false one is as rare as two equal numbers of 64 bits; whoever
    /// acts on a note reads the record first.
    before: HashMap<u64, N>,
    /// Those of this round so far.
    now: HashMap<u64, N>,
    /// What could not be read, in the last round and in this one.
    faults: [BTreeMap<String, String>; 2],
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
        let (before, now) = (HashMap::new(), HashMap::new());
        Self {
            pages: Paged::default(),
            hasher: RandomState::new(),
            before,
            now,
            faults: [const { BTreeMap::new() }; 2],
        }
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
        let Self { pages, hasher, before, now, faults } = self;
        let digest = |listed: &Listed| hasher.hash_one((&listed.key, &listed.etag));
        let noted = |listed: &Listed| {
            let digest = digest(listed);
            now.contains_key(&digest) || before.contains_key(&digest)
        };
        let leaf = pages.next(engine, noted).await?;
        let mut rows = Vec::with_capacity(leaf.skipped.len() + leaf.read.len());
        for listed in leaf.skipped {
            let digest = digest(&listed);
            let Some(note) = now.get(&digest).or_else(|| before.get(&digest)).cloned() else { continue };
            now.insert(digest, note.clone());
            rows.push(Row::Noted { key: listed.key, note });
        }
        for (listed, stored) in leaf.read {
            if let Some(note) = note(&stored.record) {
                now.insert(digest(&listed), note);
            }
            rows.push(Row::Read(stored));
        }
        faults[1].extend(leaf.bad.into_iter().map(|(key, problem)| (key, problem.detail)));
        if leaf.last {
            // What is not in this round is gone.
            *before = std::mem::take(now);
            faults[0] = std::mem::take(&mut faults[1]);
        }
        Ok(rows)
    }

    /// Begins at the first page again. What was noted stays.
    pub(super) fn restart(&mut self) {
        self.pages = Paged::default();
        self.before.extend(self.now.drain());
        self.faults[1].clear();
    }

    /// What could not be read in the last round or in this one.
    pub(super) fn faults(&self) -> Vec<RecordFault> {
        let [before, now] = &self.faults;
        let all: BTreeMap<&String, &String> = before.iter().chain(now).collect();
        all.into_iter().map(|(key, error)| RecordFault { key: key.clone(), error: error.clone() }).collect()
    }
}

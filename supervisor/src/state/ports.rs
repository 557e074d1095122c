//! The port book: each application's pair of ports, chosen once and kept.
//!
//! Routing documents name ports, and an ingress may hold an old document for a while. So a pair is never given to another
//! application while the range has untouched ports; when it has none left, the pair goes that has been unused for longest, and
//! only after a day.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, TcpListener};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use scafo_core::{ApplicationName, Timestamp};
use serde::{Deserialize, Serialize};

use super::files::{read_json, write_json};
use crate::api::Error;

/// How long a pair that nobody uses stays reserved.
const RESERVED: Duration = Duration::from_secs(24 * 60 * 60);

/// The two ports of one application on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pair {
    pub(crate) public: u16,
    pub(crate) internal: u16,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(flatten)]
    pair: Pair,
    /// Since when no process of the application is wanted here; absent while one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unused_since: Option<Timestamp>,
}

/// The book, as it stands in `ports.json`.
#[derive(Debug)]
pub(crate) struct Book {
    path: PathBuf,
    range: RangeInclusive<u16>,
    entries: BTreeMap<ApplicationName, Entry>,
}

impl Book {
    /// Opens the book of a state directory.
    ///
    /// # Errors
    /// When there is a book that cannot be read: every application would get other ports than the routing documents name.
    pub(crate) fn open(state: &Path, range: RangeInclusive<u16>) -> Result<Self, Error> {
        let path = state.join("ports.json");
        let entries = read_json(&path).map_err(|error| unreadable(&path, &error))?.unwrap_or_default();
        Ok(Self { path, range, entries })
    }

    /// Notes the pair of a process that runs already, unless the book has one for its application.
    pub(crate) fn keep(&mut self, name: &ApplicationName, pair: Pair) -> io::Result<()> {
        if self.entries.contains_key(name) {
            return Ok(());
        }
        self.entries.insert(name.clone(), Entry { pair, unused_since: None });
        self.save()
    }

    /// The pair that an application has, if it has one.
    pub(crate) fn pair(&self, name: &ApplicationName) -> Option<Pair> {
        self.entries.get(name).map(|entry| entry.pair)
    }

    /// The ports beside the range, which applications have from another setting.
    pub(crate) fn beside_range(&self) -> BTreeSet<u16> {
        let ports = self.entries.values().flat_map(|entry| [entry.pair.public, entry.pair.internal]);
        ports.filter(|port| !self.range.contains(port)).collect()
    }

    /// The application's pair: the one that it has, or a new one that is free on `address` right now. Written down before it is
    /// returned. `None`: the range is used up.
    pub(crate) fn assign(
        &mut self,
        name: &ApplicationName,
        address: IpAddr,
        now: Timestamp,
    ) -> io::Result<Option<Pair>> {
        let start = usize::from(rand::random::<u16>());
        self.assign_with(name, now, start, |port| TcpListener::bind((address, port)).is_ok())
    }

    /// The search starts at a random place, so that two nodes on one machine rarely look at the same ports at once.
    fn assign_with(
        &mut self,
        name: &ApplicationName,
        now: Timestamp,
        start: usize,
        free: impl Fn(u16) -> bool,
    ) -> io::Result<Option<Pair>> {
        if let Some(entry) = self.entries.get_mut(name) {
            let pair = entry.pair;
            if entry.unused_since.take().is_some() {
                self.save()?;
            }
            return Ok(Some(pair));
        }
        let Some(pair) = self.untouched(start, &free).or_else(|| self.reclaim(now, &free)) else { return Ok(None) };
        self.entries.insert(name.clone(), Entry { pair, unused_since: None });
        if let Err(error) = self.save() {
            // Nothing that is not on disk may be used: after a restart it would be given away again.
            self.entries.remove(name);
            return Err(error);
        }
        Ok(Some(pair))
    }

    /// Says that no process of the application is wanted here any more.
    pub(crate) fn release(&mut self, name: &ApplicationName, now: Timestamp) -> io::Result<()> {
        match self.entries.get_mut(name) {
            Some(entry) if entry.unused_since.is_none() => {
                entry.unused_since = Some(now);
                self.save()
            }
            _ => Ok(()),
        }
    }

    /// Says that of every application that is not among these.
    pub(crate) fn release_others(
        &mut self,
        is_used: impl Fn(&ApplicationName) -> bool,
        now: Timestamp,
    ) -> io::Result<()> {
        let mut changed = false;
        for (name, entry) in &mut self.entries {
            if entry.unused_since.is_none() && !is_used(name) {
                entry.unused_since = Some(now);
                changed = true;
            }
        }
        if changed { self.save() } else { Ok(()) }
    }

    fn untouched(&self, start: usize, free: &impl Fn(u16) -> bool) -> Option<Pair> {
        let taken: BTreeSet<u16> = self.entries.values().flat_map(|e| [e.pair.public, e.pair.internal]).collect();
        let width = self.range.len();
        let from = u16::try_from(start % width.max(1)).unwrap_or(0);
        let ports =
            (*self.range.start() + from..=*self.range.end()).chain(*self.range.start()..*self.range.start() + from);
        let mut candidates = ports.filter(|port| !taken.contains(port) && free(*port));
        Some(Pair { public: candidates.next()?, internal: candidates.next()? })
    }

    fn reclaim(&mut self, now: Timestamp, free: &impl Fn(u16) -> bool) -> Option<Pair> {
        let long_unused = |entry: &Entry| entry.unused_since.filter(|since| now.since(*since) >= RESERVED);
        let (oldest, _) = self
            .entries
            .iter()
            .filter(|(_, entry)| free(entry.pair.public) && free(entry.pair.internal))
            .filter_map(|(name, entry)| Some((name.clone(), long_unused(entry)?)))
            .min_by_key(|(_, since)| *since)?;
        self.entries.remove(&oldest).map(|entry| entry.pair)
    }

    /// Writes the book down.
    fn save(&self) -> io::Result<()> {
        write_json(&self.path, &self.entries)
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    let path = path.display();
    match error.kind() {
        io::ErrorKind::InvalidData => Error::new(
            format!("the book of the applications' ports, {path}, is damaged: {error}"),
            "put it back from a copy; or remove it: then applications that do not run now get new ports, and requests to the old \
             ones fail until every ingress knows",
        ),
        _ => Error::new(
            format!("the book of the applications' ports, {path}, cannot be read: {error}"),
            "run as the user that owns the state directory, or set stateDir (SCAFO_STATE_DIR, --state-dir) to one of your own",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis_const(1_800_000_000_000);

    fn name(text: &str) -> ApplicationName {
        text.parse().unwrap()
    }

    fn book(dir: &tempfile::TempDir) -> Book {
        Book::open(dir.path(), 24_000..=24_005).unwrap()
    }

    #[test]
    fn a_pair_is_chosen_once_and_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let first = book(&dir).assign_with(&name("shop"), NOW, 4, |_| true).unwrap().unwrap();
        assert_eq!(first, Pair { public: 24_004, internal: 24_005 });
        let again = book(&dir).assign_with(&name("shop"), NOW, 0, |_| false).unwrap().unwrap();
        assert_eq!(again, first);
    }

    #[test]
    fn no_two_applications_share_a_port_and_ports_in_use_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let mut book = book(&dir);
        let busy = |port| port != 24_001;
        let a = book.assign_with(&name("a"), NOW, 5, busy).unwrap().unwrap();
        assert_eq!(a, Pair { public: 24_005, internal: 24_000 });
        let b = book.assign_with(&name("b"), NOW, 5, busy).unwrap().unwrap();
        assert_eq!(b, Pair { public: 24_002, internal: 24_003 });
        assert_eq!(book.assign_with(&name("c"), NOW, 5, busy).unwrap(), None);
    }

    #[test]
    fn a_pair_goes_to_another_application_only_when_it_was_unused_for_a_day_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let mut book = book(&dir);
        for app in ["a", "b", "c"] {
            book.assign_with(&name(app), NOW, 0, |_| true).unwrap().unwrap();
        }
        let old = book.entries[&name("b")].pair;
        book.release(&name("b"), NOW).unwrap();
        let soon = NOW.after(Duration::from_secs(3600));
        assert_eq!(book.assign_with(&name("d"), soon, 0, |_| true).unwrap(), None);
        let later = NOW.after(RESERVED);
        assert_eq!(book.assign_with(&name("d"), later, 0, |_| true).unwrap(), Some(old));
        assert_eq!(book.assign_with(&name("b"), later, 0, |_| true).unwrap(), None);
    }

    #[test]
    fn coming_back_ends_the_time_of_disuse() {
        let dir = tempfile::tempdir().unwrap();
        let mut book = book(&dir);
        let pair = book.assign_with(&name("a"), NOW, 0, |_| true).unwrap();
        book.release(&name("a"), NOW).unwrap();
        assert_eq!(book.assign_with(&name("a"), NOW, 0, |_| true).unwrap(), pair);
        assert!(Book::open(dir.path(), 24_000..=24_005).unwrap().entries[&name("a")].unused_since.is_none());
    }

    #[test]
    fn a_pair_that_cannot_be_written_down_is_not_given() {
        let dir = tempfile::tempdir().unwrap();
        let mut book = book(&dir);
        std::fs::create_dir(dir.path().join(".ports.json.new")).unwrap();
        assert!(book.assign_with(&name("a"), NOW, 0, |_| true).is_err());
        assert!(book.entries.is_empty());
    }

    #[test]
    fn a_damaged_book_is_named_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        for damaged in ["", "{", "[]"] {
            std::fs::write(dir.path().join("ports.json"), damaged).unwrap();
            let error = Book::open(dir.path(), 24_000..=24_005).unwrap_err();
            assert!(error.message.contains("ports.json, is damaged") && error.hint.contains("remove it"), "{error:?}");
        }
    }

    #[test]
    fn the_ports_of_what_runs_already_are_kept_and_never_given_to_another() {
        let dir = tempfile::tempdir().unwrap();
        let mut book = book(&dir);
        let pair = Pair { public: 24_000, internal: 24_001 };
        book.keep(&name("a"), pair).unwrap();
        assert_eq!(book.assign_with(&name("b"), NOW, 0, |_| true).unwrap().unwrap().public, 24_002);
        book.keep(&name("a"), Pair { public: 24_004, internal: 24_005 }).unwrap();
        assert_eq!(Book::open(dir.path(), 24_000..=24_005).unwrap().pair(&name("a")), Some(pair));
        assert!(book.beside_range().is_empty());
        let moved = Book::open(dir.path(), 24_001..=24_002).unwrap();
        assert_eq!((moved.pair(&name("a")), moved.beside_range()), (Some(pair), BTreeSet::from([24_000, 24_003])));
    }

    #[test]
    fn a_port_that_somebody_listens_on_is_not_free() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let dir = tempfile::tempdir().unwrap();
        let mut book = Book::open(dir.path(), port..=port).unwrap();
        assert_eq!(book.assign(&name("a"), "127.0.0.1".parse().unwrap(), NOW).unwrap(), None);
    }
}

//! Whose turn it is: deploys of one application run one after another in the order in which they were accepted, over
//! restarts too. Pure.
//!
//! What was accepted and is not offered yet keeps its place, so that a younger deploy that is offered first waits for it. The
//! place is given back when the deploy ends or is given up.

use std::collections::BTreeMap;
use std::time::Duration;

use scafo_core::{ApplicationName, DeployId, Timestamp};

use super::publication::Project;
use crate::registry::Mono;

/// Deploys that are taken on at once, at the least. The API's queue (`deploy.queue`) is the bound that callers meet; this one
/// follows it, and only keeps a broken neighbour from filling the memory.
const ACTIVE: usize = 256;
/// How long the part of the node that holds the artifacts may be silent about one of them.
pub(crate) const OFFERED: Duration = Duration::from_secs(60);
/// How far acceptances may run ahead of the wall clock: deploys of one millisecond take one each. Beyond it the clock was set
/// back, and is followed.
const AHEAD: Duration = Duration::from_secs(1);

#[derive(Debug)]
enum Place {
    /// Accepted; its artifact was last heard of at `heard`.
    Expected {
        heard: Mono,
    },
    Offered(Project),
    Running,
}

#[derive(Debug)]
struct Entry {
    accepted: Timestamp,
    place: Place,
}

/// The lines of all applications.
#[derive(Debug)]
pub(crate) struct Turns {
    /// How many are taken on at once.
    active: usize,
    /// Whether the records of an earlier run have been read. Before, nobody knows who is first.
    known: bool,
    last: Option<Timestamp>,
    lines: BTreeMap<ApplicationName, BTreeMap<DeployId, Entry>>,
    /// Those whose records may or may not have been written, and since when. They keep nobody waiting.
    doubts: BTreeMap<DeployId, Mono>,
}

impl Turns {
    /// For an API that takes on `queue` deploys at once.
    pub(crate) fn new(queue: u32) -> Self {
        let active = usize::try_from(queue).unwrap_or(usize::MAX).clamp(ACTIVE, usize::MAX / 2);
        Self { active, known: false, last: None, lines: BTreeMap::new(), doubts: BTreeMap::new() }
    }

    /// When the deploy that is accepted now is accepted: later than every one before.
    fn stamp(&mut self, wall: Timestamp) -> Timestamp {
        let next = self.last.map(|last| last.after(Duration::from_millis(1)));
        let at = next.filter(|next| *next > wall && next.since(wall) < AHEAD).unwrap_or(wall);
        self.last = Some(at);
        at
    }

    /// Gives a deploy its place ahead of everything that is accepted later. Answers when it is accepted, and whether its
    /// place is new; one that has a place is heard of.
    pub(crate) fn accept(&mut self, id: &DeployId, wall: Timestamp, now: Mono) -> (Timestamp, bool) {
        if let Some(entry) = self.entry(id) {
            if let Place::Expected { heard } = &mut entry.place {
                *heard = now;
            }
            return (entry.accepted, false);
        }
        let accepted = self.stamp(wall);
        (accepted, self.expect(id, accepted, now))
    }

    /// Keeps a place for a deploy that was accepted at `accepted`. Without room it has none, and takes its chance when it is
    /// offered. True when the place is new.
    fn expect(&mut self, id: &DeployId, accepted: Timestamp, now: Mono) -> bool {
        // Twice what may be active: as many again may wait for their artifacts.
        if self.entry(id).is_some() || self.lines.values().map(BTreeMap::len).sum::<usize>() >= 2 * self.active {
            return false;
        }
        let entry = Entry { accepted, place: Place::Expected { heard: now } };
        self.lines.entry(id.application()).or_default().insert(id.clone(), entry);
        true
    }

    /// The record that stands says that it was accepted at `accepted`.
    pub(crate) fn accepted_at(&mut self, id: &DeployId, accepted: Timestamp) {
        if let Some(entry) = self.entry(id) {
            entry.accepted = accepted;
        }
    }

    /// Everything that an earlier run accepted and did not end. From here on turns are given.
    pub(crate) fn know(&mut self, open: impl IntoIterator<Item = (DeployId, Timestamp)>, now: Mono) {
        for (id, accepted) in open {
            self.last = self.last.max(Some(accepted));
            if !self.expect(&id, accepted, now) {
                self.accepted_at(&id, accepted);
            }
        }
        self.known = true;
    }

    /// A project that can run when it is its turn. False when there are too many.
    pub(crate) fn offer(&mut self, project: Project, accepted: Timestamp) -> bool {
        let active = self.lines.values().flat_map(BTreeMap::values);
        let active = active.filter(|entry| !matches!(entry.place, Place::Expected { .. })).count();
        let (id, most) = (project.id.clone(), self.active);
        match self.entry(&id) {
            Some(Entry { place: Place::Offered(_) | Place::Running, .. }) => return true,
            _ if active >= most => return false,
            Some(entry) => *entry = Entry { accepted, place: Place::Offered(project) },
            None => {
                let entry = Entry { accepted, place: Place::Offered(project) };
                self.lines.entry(id.application()).or_default().insert(id, entry);
            }
        }
        true
    }

    /// A deploy whose turn it is. It runs from now on.
    pub(crate) fn next(&mut self) -> Option<Project> {
        if !self.known {
            return None;
        }
        self.lines.values_mut().find_map(|line| {
            if line.values().any(|entry| matches!(entry.place, Place::Running)) {
                return None;
            }
            let (_, first) = line.iter_mut().min_by(|(a, x), (b, y)| (x.accepted, a).cmp(&(y.accepted, b)))?;
            match std::mem::replace(&mut first.place, Place::Running) {
                Place::Offered(project) => Some(project),
                before => {
                    first.place = before;
                    None
                }
            }
        })
    }

    /// Nobody knows whether it was accepted: it is looked at once its artifact has not been heard of for [`OFFERED`].
    pub(crate) fn doubt(&mut self, id: &DeployId, now: Mono) {
        self.give_up(id);
        if self.doubts.len() < 2 * self.active {
            self.doubts.insert(id.clone(), now);
        }
    }

    /// It has ended, or will never come. One that runs keeps its place until [`Turns::ran`].
    pub(crate) fn give_up(&mut self, id: &DeployId) {
        self.doubts.remove(id);
        if self.entry(id).is_some_and(|entry| !matches!(entry.place, Place::Running)) {
            self.ran(id);
        }
    }

    /// It has run.
    pub(crate) fn ran(&mut self, id: &DeployId) {
        let name = id.application();
        if let Some(line) = self.lines.get_mut(&name) {
            line.remove(id);
            if line.is_empty() {
                self.lines.remove(&name);
            }
        }
    }

    /// Whether somebody works on it, or has its artifact and said so lately.
    pub(crate) fn is_held(&self, id: &DeployId, now: Mono) -> bool {
        let entry = self.lines.get(&id.application()).and_then(|line| line.get(id));
        entry.is_some_and(|entry| !entry.is_silent(now))
    }

    /// Those whose artifacts have not been heard of for longer than [`OFFERED`].
    pub(crate) fn silent(&self, now: Mono) -> Vec<DeployId> {
        let expected = self.lines.values().flatten().filter(|(_, entry)| entry.is_silent(now)).map(|(id, _)| id);
        let doubted = self.doubts.iter().filter(|(_, since)| now.since(**since) > OFFERED).map(|(id, _)| id);
        expected.chain(doubted.filter(|id| !self.is_held(id, now))).cloned().collect()
    }

    fn entry(&mut self, id: &DeployId) -> Option<&mut Entry> {
        self.lines.get_mut(&id.application())?.get_mut(id)
    }
}

impl Entry {
    fn is_silent(&self, now: Mono) -> bool {
        matches!(self.place, Place::Expected { heard } if now.since(heard) > OFFERED)
    }
}

#[cfg(test)]
mod tests {
    use scafo_telemetry::trace::Thread;

    use super::*;

    fn s(seconds: u64) -> Mono {
        Mono::at(Duration::from_secs(seconds))
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn id(random: u64) -> DeployId {
        DeployId::new(&"shop".parse().unwrap(), random)
    }

    fn project(random: u64) -> Project {
        Project { id: id(random), config_path: "/x/wrangler.jsonc".into(), trace: Thread::default() }
    }

    fn next(turns: &mut Turns) -> Option<DeployId> {
        turns.next().map(|project| project.id)
    }

    fn started() -> Turns {
        let mut turns = Turns::new(16);
        turns.know([], s(0));
        turns
    }

    #[test]
    fn turns_come_in_the_order_of_acceptance_whatever_the_order_of_the_offers() {
        let mut turns = started();
        // Ids in the opposite order, and one millisecond for all of them.
        let accepted = [3, 2, 1].map(|random| turns.accept(&id(random), at(5), s(0)).0);
        assert!(accepted.is_sorted_by(|a, b| a < b));
        assert!(turns.offer(project(1), accepted[2]) && turns.offer(project(2), accepted[1]));
        assert_eq!(next(&mut turns), None, "the first is not offered yet");
        assert!(turns.offer(project(3), accepted[0]));
        for random in [3, 2, 1] {
            assert_eq!(next(&mut turns), Some(id(random)));
            assert_eq!(next(&mut turns), None, "one at a time");
            turns.give_up(&id(random));
            assert_eq!(next(&mut turns), None, "what runs keeps its place until it has run");
            turns.ran(&id(random));
        }
        assert!(turns.lines.is_empty());
    }

    #[test]
    fn after_a_restart_the_younger_wait_until_the_older_are_offered_or_given_up() {
        let mut turns = Turns::new(16);
        turns.offer(project(3), at(3));
        assert_eq!(next(&mut turns), None, "nobody knows yet who is first");
        turns.know([(id(1), at(1)), (id(2), at(2)), (id(3), at(3))], s(0));
        assert_eq!(next(&mut turns), None);
        turns.offer(project(2), at(2));
        assert_eq!(next(&mut turns), None);
        assert_eq!((turns.silent(s(60)), turns.silent(s(61))), (vec![], vec![id(1)]));
        turns.give_up(&id(1));
        assert_eq!(next(&mut turns), Some(id(2)));
        turns.ran(&id(2));
        assert_eq!(next(&mut turns), Some(id(3)));
    }

    #[test]
    fn applications_do_not_wait_for_each_other() {
        let mut turns = started();
        turns.accept(&id(1), at(1), s(0));
        let other = Project { id: DeployId::new(&"other".parse().unwrap(), 1), ..project(1) };
        turns.offer(other.clone(), at(2));
        assert_eq!(next(&mut turns), Some(other.id));
    }

    #[test]
    fn an_artifact_that_is_heard_of_is_held_for_longer() {
        let mut turns = started();
        turns.accept(&id(1), at(1), s(0));
        assert_eq!(turns.accept(&id(1), at(9), s(50)), (at(1), false));
        assert!(turns.is_held(&id(1), s(110)) && !turns.is_held(&id(1), s(111)));
        assert!(!turns.is_held(&id(2), s(0)));
    }

    #[test]
    fn a_clock_that_was_set_back_is_followed() {
        let mut turns = started();
        assert_eq!(turns.accept(&id(1), at(50_000), s(0)).0, at(50_000));
        assert_eq!(turns.accept(&id(2), at(49_999), s(0)).0, at(50_001));
        assert_eq!(turns.accept(&id(3), at(10), s(0)).0, at(10));
    }

    #[test]
    fn a_broken_neighbour_does_not_fill_the_memory() {
        let mut turns = started();
        for random in 0..3 * 256 {
            turns.accept(&id(random), at(1), s(0));
        }
        assert_eq!(turns.lines.values().map(BTreeMap::len).sum::<usize>(), 2 * ACTIVE);
        let taken = (0..3 * 256).filter(|random| turns.offer(project(*random), at(1))).count();
        assert_eq!(taken, ACTIVE);
        let mut wide = Turns::new(300);
        let taken = (0..301).filter(|random| wide.offer(project(*random), at(1))).count();
        assert_eq!(taken, 300, "as many as the API takes on");
    }

    #[test]
    fn what_may_have_been_accepted_is_looked_at_and_keeps_nobody_waiting() {
        let mut turns = started();
        turns.accept(&id(1), at(1), s(0));
        turns.doubt(&id(1), s(0));
        turns.offer(project(2), at(2));
        assert_eq!(next(&mut turns), Some(id(2)));
        assert_eq!((turns.silent(s(60)), turns.silent(s(61))), (vec![], vec![id(1)]));
        turns.accept(&id(1), at(3), s(61));
        assert!(turns.silent(s(62)).is_empty(), "it is accepted anew");
        turns.give_up(&id(1));
        assert!(turns.silent(s(999)).is_empty());
    }
}

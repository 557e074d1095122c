//! How this node leaves the fleet when it is asked to. Pure.
//!
//! `leaving` in its record is the request, and anybody may set it; from then on the coordinator places nothing new here and
//! finds others for what runs here. The node itself decides when it may go: once the others would do without it for each of
//! its applications, it says `draining`, which takes it out of every routing document, and its processes end after the hold.
//! From there is no way back but `undrain`: others may count on what was said.
//!
//! A node for which nobody takes over says so when its time is up and goes on serving. Asked again, it begins anew; told to
//! go anyway (`force`), it goes at that point.

use std::time::Duration;

use scafo_core::ApplicationName;
use scafo_core::record::{Drain, DrainState, NodeRecord};

use crate::registry::Mono;

/// Applications that a record names; the first hundred tell enough, and a node record is read by every node.
const NAMED_MAX: usize = 100;

/// The machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Leaving {
    asked: Option<Asked>,
    /// This run of the node is being stopped, whatever else was asked.
    stopping: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked {
    /// Empty for a record that says `leaving` and not who asked.
    id: String,
    until: Mono,
    state: DrainState,
    waits_for: Vec<ApplicationName>,
}

/// What the machine looks at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Situation<'a> {
    /// This node's record as it is known to be in the bucket.
    pub(crate) record: &'a NodeRecord,
    /// Applications that too few others serve.
    pub(crate) held_up_by: &'a [ApplicationName],
    /// Whether any process runs here.
    pub(crate) runs: bool,
    pub(crate) now: Mono,
    /// How long to wait when the request does not say.
    pub(crate) timeout: Duration,
}

impl Leaving {
    /// Moves on.
    pub(crate) fn look(&mut self, situation: Situation<'_>) {
        let Situation { record, held_up_by, runs, now, timeout } = situation;
        if !record.leaving {
            self.asked = None;
            return;
        }
        let order = record.drain.as_ref();
        let id = order.map_or("", |drain| &drain.id);
        let mut asked = match self.asked.take() {
            Some(asked) if asked.id == id => asked,
            // Asked again on its way out, it stays on its way out.
            Some(asked) if asked.is_out() => Asked { id: id.to_owned(), ..asked },
            Some(_) | None => Asked::anew(id, order, now, timeout),
        };
        asked.waits_for = held_up_by.iter().take(NAMED_MAX).cloned().collect();
        let force = order.is_some_and(|drain| drain.force);
        asked.state = match asked.state {
            DrainState::Waiting if held_up_by.is_empty() || (force && asked.until <= now) => DrainState::Draining,
            DrainState::Waiting if asked.until <= now => DrainState::Failed,
            DrainState::Draining if !runs => DrainState::Drained,
            // Somebody was told that it failed: nothing stops behind their back.
            state @ (DrainState::Waiting | DrainState::Failed | DrainState::Draining | DrainState::Drained) => state,
        };
        if asked.is_out() {
            asked.waits_for.clear();
        }
        self.asked = Some(asked);
    }

    /// Goes now, asked to leave or not: the node is being stopped.
    pub(crate) const fn stop(&mut self) {
        self.stopping = true;
    }

    /// Whether this node is out of the documents and stops what it runs.
    pub(crate) fn is_out(&self) -> bool {
        self.stopping || self.asked.as_ref().is_some_and(Asked::is_out)
    }

    /// When [`Leaving::look`] is to be called again although nothing moved.
    pub(crate) fn due(&self) -> Option<Mono> {
        self.asked.as_ref().filter(|asked| asked.state == DrainState::Waiting).map(|asked| asked.until)
    }

    /// Puts how far it is into the record. A record that speaks of another request stays as it is: the next look is about
    /// that one.
    pub(crate) fn write(&self, record: &mut NodeRecord) {
        if !record.leaving {
            record.draining = self.stopping;
            return;
        }
        record.draining |= self.is_out();
        let Some(asked) = &self.asked else { return };
        if let Some(drain) = record.drain.as_mut().filter(|drain| drain.id == asked.id) {
            drain.state = asked.state;
            drain.waits_for.clone_from(&asked.waits_for);
        }
    }

    /// Whether the record says something else.
    pub(crate) fn is_news(&self, record: &NodeRecord) -> bool {
        let mut next = record.clone();
        self.write(&mut next);
        next.draining != record.draining || next.drain != record.drain
    }
}

impl Asked {
    fn anew(id: &str, order: Option<&Drain>, now: Mono, timeout: Duration) -> Self {
        let timeout = order.map_or(timeout, |drain| Duration::from_millis(drain.timeout_ms));
        // What the record says of an earlier run of this daemon: a failure was told and stands. A start takes a node back
        // into the documents, so everything else begins anew.
        let failed = order.is_some_and(|drain| drain.state == DrainState::Failed);
        let state = if failed { DrainState::Failed } else { DrainState::Waiting };
        Self { id: id.to_owned(), until: now.after(timeout), state, waits_for: Vec::new() }
    }

    const fn is_out(&self) -> bool {
        match self.state {
            DrainState::Waiting | DrainState::Failed => false,
            DrainState::Draining | DrainState::Drained => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use scafo_core::Timestamp;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(600);

    fn order(id: &str, force: bool) -> Drain {
        Drain {
            id: id.to_owned(),
            by: "op".to_owned(),
            asked_at: Timestamp::from_millis(0),
            timeout_ms: 60_000,
            force,
            state: DrainState::Waiting,
            waits_for: Vec::new(),
            rest: Default::default(),
        }
    }

    fn record(drain: Option<Drain>) -> NodeRecord {
        NodeRecord { leaving: drain.is_some(), drain, ..crate::registry::testing::node("a", 1) }
    }

    fn look(leaving: &mut Leaving, record: &NodeRecord, held_up_by: &[&str], runs: bool, at: u64) -> NodeRecord {
        let held_up_by: Vec<ApplicationName> = held_up_by.iter().map(|name| name.parse().unwrap()).collect();
        let now = Mono::at(Duration::from_secs(at));
        leaving.look(Situation { record, held_up_by: &held_up_by, runs, now, timeout: TIMEOUT });
        let mut said = record.clone();
        leaving.write(&mut said);
        said
    }

    fn state(record: &NodeRecord) -> (bool, Option<DrainState>) {
        (record.draining, record.drain.as_ref().map(|drain| drain.state))
    }

    #[test]
    fn a_node_leaves_the_documents_once_the_others_serve_and_is_drained_once_nothing_runs() {
        let (mut leaving, asked) = (Leaving::default(), record(Some(order("x", false))));
        let said = look(&mut leaving, &asked, &["shop"], true, 0);
        assert_eq!(state(&said), (false, Some(DrainState::Waiting)));
        assert_eq!(said.drain.unwrap().waits_for[0].as_str(), "shop");
        assert_eq!(leaving.due(), Some(Mono::at(Duration::from_secs(60))));
        let said = look(&mut leaving, &asked, &[], true, 10);
        assert_eq!((state(&said), said.drain.unwrap().waits_for), ((true, Some(DrainState::Draining)), vec![]));
        // What the others do now changes nothing: it is on its way out.
        assert_eq!(state(&look(&mut leaving, &asked, &["shop"], true, 99)), (true, Some(DrainState::Draining)));
        assert_eq!(state(&look(&mut leaving, &asked, &[], false, 100)), (true, Some(DrainState::Drained)));
        assert_eq!(leaving.due(), None);
    }

    #[test]
    fn a_drain_without_replacement_fails_by_name_and_goes_on_only_when_asked_again_or_forced() {
        let (mut leaving, asked) = (Leaving::default(), record(Some(order("x", false))));
        look(&mut leaving, &asked, &["shop"], true, 0);
        assert_eq!(state(&look(&mut leaving, &asked, &["shop"], true, 59)), (false, Some(DrainState::Waiting)));
        assert_eq!(state(&look(&mut leaving, &asked, &["shop"], true, 60)), (false, Some(DrainState::Failed)));
        assert_eq!(state(&look(&mut leaving, &asked, &[], true, 70)), (false, Some(DrainState::Failed)));
        // The same over a restart of the daemon.
        let failed = record(Some(Drain { state: DrainState::Failed, ..order("x", false) }));
        assert_eq!(state(&look(&mut Leaving::default(), &failed, &[], true, 0)), (false, Some(DrainState::Failed)));
        let again = record(Some(order("y", true)));
        assert_eq!(state(&look(&mut leaving, &again, &["shop"], true, 80)), (false, Some(DrainState::Waiting)));
        assert_eq!(state(&look(&mut leaving, &again, &["shop"], true, 140)), (true, Some(DrainState::Draining)));
    }

    #[test]
    fn undrain_takes_everything_back() {
        let (mut leaving, asked) = (Leaving::default(), record(Some(order("x", false))));
        let said = look(&mut leaving, &asked, &[], true, 0);
        assert!(said.draining && leaving.is_out());
        let back = record(None);
        assert_eq!(state(&look(&mut leaving, &back, &[], true, 1)), (false, None));
        assert!(!leaving.is_out());
        // A record written before this node saw that is set right by its next write.
        let mut late = NodeRecord { draining: true, ..back };
        assert!(leaving.is_news(&late));
        leaving.write(&mut late);
        assert!(!late.draining && !leaving.is_news(&late));
    }

    #[test]
    fn a_record_that_speaks_of_another_request_is_left_to_the_next_look() {
        let mut leaving = Leaving::default();
        look(&mut leaving, &record(Some(order("x", false))), &["shop"], true, 0);
        let mut newer = record(Some(order("y", false)));
        leaving.write(&mut newer);
        assert_eq!(newer, record(Some(order("y", false))));
    }

    #[test]
    fn a_node_that_is_stopped_is_out_at_once_and_stays_so() {
        let (mut leaving, nobody) = (Leaving::default(), record(None));
        look(&mut leaving, &nobody, &[], true, 0);
        leaving.stop();
        assert!(leaving.is_out() && leaving.is_news(&nobody));
        assert_eq!(state(&look(&mut leaving, &nobody, &["shop"], true, 1)), (true, None));
        // A drain that waits goes on waiting, out of the documents.
        let asked = record(Some(order("x", false)));
        assert_eq!(state(&look(&mut leaving, &asked, &["shop"], true, 2)), (true, Some(DrainState::Waiting)));
        assert_eq!(state(&look(&mut leaving, &nobody, &[], true, 3)), (true, None));
    }

    #[test]
    fn leaving_alone_is_a_request_with_the_default_time() {
        let (mut leaving, asked) = (Leaving::default(), NodeRecord { leaving: true, ..record(None) });
        look(&mut leaving, &asked, &["shop"], true, 0);
        assert_eq!(leaving.due(), Some(Mono::at(TIMEOUT)));
        assert!(look(&mut leaving, &asked, &[], true, 1).draining);
    }
}

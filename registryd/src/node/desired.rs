//! Which processes this node shall run. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use scafo_core::record::{NodeRecord, Serving};
use scafo_core::{ApplicationName, NodeId};

use super::serving::names;
use super::world::NodeView;
use crate::registry::Mono;

/// Why a process shall run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The placement names this node.
    Placed,
    /// It did; the process lives on until every ingress has seen that it has left the routing documents.
    Leaving {
        /// When its hold is over. It begins when the bucket has the record that no longer offers the process, which other nodes
        /// make their documents from: not before, however long that takes.
        until: Option<Mono>,
    },
}

/// What a pass knows of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It may serve; `here` when the placement in force names this node.
    Serves {
        /// Whether it is placed here.
        here: bool,
    },
    /// Blocked, retired or being deleted.
    Stopped,
    /// Its record, or its placement's, cannot be read: what runs goes on, nothing is begun.
    Unreadable,
}

/// How processes end here.
pub(crate) struct Terms<'a> {
    pub(crate) now: Mono,
    pub(crate) hold: Duration,
    /// This node's record as the bucket has it.
    pub(crate) own: &'a NodeRecord,
    /// Ended without a hold, because this node stops and nobody could be sent elsewhere.
    pub(crate) unheld: &'a BTreeSet<ApplicationName>,
    /// Another node ends its process of these, and this one goes after it.
    pub(crate) after_others: &'a BTreeSet<ApplicationName>,
}

impl Terms<'_> {
    /// A process that has not ended its hold yet, or waits for its turn.
    fn leaving(&self, name: &ApplicationName, until: Option<Mono>) -> Option<Wanted> {
        let begins = || (!names(self.own, name)).then(|| self.now.after(self.hold));
        let until = until.or_else(begins);
        let over = until.is_some_and(|until| until <= self.now) && !self.after_others.contains(name);
        (!over).then_some(Wanted::Leaving { until })
    }
}

/// The processes of this pass: of the applications that are `placed` here and those that ran in the last one (`was`). What ran and is
/// placed no longer is held, except that block, retire and delete stop at once. An application without a standing is not there.
pub(crate) fn desired<'a>(
    placed: impl Iterator<Item = &'a ApplicationName>,
    standing: impl Fn(&ApplicationName) -> Option<Standing>,
    was: &'a BTreeMap<ApplicationName, Wanted>,
    terms: &Terms<'_>,
) -> BTreeMap<ApplicationName, Wanted> {
    let names: BTreeSet<&ApplicationName> = placed.chain(was.keys()).collect();
    let decide = |name: &ApplicationName| {
        let before = was.get(name).copied();
        match standing(name)? {
            Standing::Serves { here: true } => Some(Wanted::Placed),
            Standing::Serves { here: false } => match before? {
                Wanted::Placed if terms.unheld.contains(name) => None,
                Wanted::Placed => terms.leaving(name, None),
                Wanted::Leaving { until } => terms.leaving(name, until),
            },
            Standing::Unreadable => before,
            Standing::Stopped => None,
        }
    };
    names.into_iter().filter_map(|name| Some((name.clone(), decide(name)?))).collect()
}

/// When the next hold ends.
pub(crate) fn next_end(desired: &BTreeMap<ApplicationName, Wanted>, now: Mono) -> Option<Mono> {
    let ends = desired.values().filter_map(|wanted| match wanted {
        Wanted::Placed => None,
        // One that waits for its turn goes on when the other node's record says so.
        Wanted::Leaving { until } => until.filter(|until| *until > now),
    });
    ends.min()
}

/// Applications of which another living node ends its process too, and goes first: nodes of one application never drain
/// together. Each sees the other's end in its record long before the hold is over; the order is that of their names.
pub(crate) fn after_others(
    world: &BTreeMap<NodeId, NodeView>,
    placed: impl Fn(&ApplicationName, &NodeId) -> bool,
    me: &NodeId,
) -> BTreeSet<ApplicationName> {
    let before = world.values().filter(|node| node.live && node.record.id < *me);
    let ends = before.flat_map(|node| {
        let goes = |serving: &&Serving| node.record.draining || !placed(&serving.application, &node.record.id);
        node.record.serving.iter().filter(goes).map(|serving| serving.application.clone())
    });
    ends.collect()
}

#[cfg(test)]
mod tests {
    use scafo_core::record::ProcessState;

    use super::*;
    use crate::registry::testing::{node, serving};

    const HOLD: Duration = Duration::from_secs(35);

    fn s(seconds: u64) -> Mono {
        Mono::at(Duration::from_secs(seconds))
    }

    fn shop() -> ApplicationName {
        "shop".parse().unwrap()
    }

    /// A record that offers the process, and one that does not.
    fn record(state: ProcessState) -> NodeRecord {
        NodeRecord { serving: vec![serving("shop", state)], ..node("b", 1) }
    }

    struct Row {
        was: Option<Wanted>,
        standing: Option<Standing>,
        at: u64,
        own: NodeRecord,
        unheld: bool,
        after_others: bool,
    }

    impl Row {
        fn new(was: Option<Wanted>, standing: Option<Standing>, at: u64) -> Self {
            Self { was, standing, at, own: record(ProcessState::Stopping), unheld: false, after_others: false }
        }

        fn decide(self) -> Option<Wanted> {
            let was: BTreeMap<_, _> = self.was.map(|wanted| (shop(), wanted)).into_iter().collect();
            let shop = shop();
            let placed = self.standing.iter().map(|_| &shop);
            let set = |there: bool| there.then(|| shop.clone()).into_iter().collect::<BTreeSet<_>>();
            let (unheld, after_others) = (set(self.unheld), set(self.after_others));
            let terms =
                Terms { now: s(self.at), hold: HOLD, own: &self.own, unheld: &unheld, after_others: &after_others };
            desired(placed, |_| self.standing, &was, &terms).remove(&shop)
        }
    }

    const HERE: Option<Standing> = Some(Standing::Serves { here: true });
    const ELSEWHERE: Option<Standing> = Some(Standing::Serves { here: false });
    const PLACED: Option<Wanted> = Some(Wanted::Placed);

    fn leaving(until: u64) -> Option<Wanted> {
        Some(Wanted::Leaving { until: Some(s(until)) })
    }

    #[test]
    fn each_standing_has_its_consequence() {
        let (unreadable, stopped) = (Some(Standing::Unreadable), Some(Standing::Stopped));
        for (row, (was, standing, at, expected)) in [
            (None, HERE, 0, PLACED),
            (None, ELSEWHERE, 0, None),
            (PLACED, HERE, 0, PLACED),
            // Held, and no longer than once.
            (PLACED, ELSEWHERE, 10, leaving(45)),
            (leaving(45), ELSEWHERE, 44, leaving(45)),
            (leaving(45), ELSEWHERE, 45, None),
            (leaving(45), HERE, 44, PLACED),
            // Block, retire and delete do not wait.
            (PLACED, stopped, 10, None),
            (leaving(45), stopped, 10, None),
            (PLACED, None, 10, None),
            // A record that cannot be read starts and stops nothing.
            (None, unreadable, 10, None),
            (PLACED, unreadable, 10, PLACED),
            (leaving(45), unreadable, 50, leaving(45)),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(Row::new(was, standing, at).decide(), expected, "row {row}");
        }
    }

    #[test]
    fn a_hold_begins_when_the_bucket_has_the_record_that_does_not_offer_the_process() {
        let offered = |at, was| Row { own: record(ProcessState::Ready), ..Row::new(was, ELSEWHERE, at) };
        let unsaid = Some(Wanted::Leaving { until: None });
        assert_eq!(offered(10, PLACED).decide(), unsaid);
        assert_eq!(offered(10_000, unsaid).decide(), unsaid, "as long as the bucket does not take it");
        assert_eq!(Row::new(unsaid, ELSEWHERE, 100).decide(), leaving(135));
        let draining = NodeRecord { draining: true, ..record(ProcessState::Ready) };
        assert_eq!(Row { own: draining, ..Row::new(unsaid, ELSEWHERE, 100) }.decide(), leaving(135));
    }

    #[test]
    fn what_nobody_else_serves_ends_at_once_when_the_node_stops() {
        let stopping = |was| Row { unheld: true, ..Row::new(was, ELSEWHERE, 10) };
        assert_eq!(stopping(PLACED).decide(), None);
        assert_eq!(stopping(leaving(45)).decide(), leaving(45), "it left the documents before");
    }

    #[test]
    fn a_process_waits_for_its_turn_after_the_hold() {
        let waits = |at| Row { after_others: true, ..Row::new(leaving(45), ELSEWHERE, at) };
        assert_eq!((waits(44).decide(), waits(99).decide()), (leaving(45), leaving(45)));
        let wanted = [(shop(), Wanted::Leaving { until: Some(s(45)) })].into();
        assert_eq!(next_end(&wanted, s(99)), None, "the other one's record wakes it");
    }

    #[test]
    fn of_two_nodes_that_drain_together_one_goes_first() {
        let view = |id: &str, live, draining, state| {
            let record = NodeRecord { draining, serving: vec![serving("shop", state)], ..node(id, 1) };
            (record.id.clone(), NodeView { record: record.into(), live })
        };
        let ask = |world: &[(NodeId, NodeView)], placed: &[&str], me: &str| {
            let world = world.iter().cloned().collect();
            !after_others(&world, |_, node| placed.contains(&node.as_str()), &me.parse().unwrap()).is_empty()
        };
        let both = [view("a", true, true, ProcessState::Stopping), view("b", true, true, ProcessState::Stopping)];
        assert!(!ask(&both, &["a", "b"], "a") && ask(&both, &["a", "b"], "b"));
        // The same when a placement takes one away while another drains.
        let moved = [view("a", true, false, ProcessState::Stopping), view("b", true, true, ProcessState::Stopping)];
        assert!(ask(&moved, &["b"], "b") && !ask(&moved, &["a", "b"], "b"));
        let dead = [view("a", false, true, ProcessState::Stopping), view("b", true, true, ProcessState::Stopping)];
        assert!(!ask(&dead, &["a", "b"], "b"), "nobody waits for the dead");
    }

    #[test]
    fn the_next_pass_is_due_when_the_first_hold_ends() {
        let names: [ApplicationName; 4] = ["a", "b", "c", "d"].map(|name| name.parse().unwrap());
        let [a, b, c, d] = names;
        let leaving = |until: Option<u64>| Wanted::Leaving { until: until.map(s) };
        let desired = [(a, Wanted::Placed), (b, leaving(Some(9))), (c, leaving(Some(7))), (d, leaving(None))].into();
        assert_eq!(next_end(&desired, s(0)), Some(s(7)));
        assert_eq!(next_end(&BTreeMap::new(), s(0)), None);
    }
}

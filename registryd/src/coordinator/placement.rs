//! Which nodes serve an application: rendezvous hashing, and the order in which a placement moves. Pure.
//!
//! Every node gets a score from the application's and its own name, and the highest scores win. So a node that comes takes
//! over only what it wins, and a node that goes gives away only what it had; nothing else moves.
//!
//! A placement never shrinks below what is known to serve: new nodes are added first, and a living one leaves only when the
//! others are ready and a hold has passed ([`Outlook::may_shrink`]).

use std::collections::BTreeMap;

use scafo_core::record::{Replicas, UnplacedReason};
use scafo_core::{ApplicationName, NodeId};
use sha2::{Digest as _, Sha256};

#[cfg(test)]
use crate::model::seeds::{Rule, is_broken};

/// A node as placement sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) id: NodeId,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) live: bool,
    /// It wants to go: nothing new for it, what it serves stays until it is elsewhere.
    pub(crate) leaving: bool,
    /// It has left the documents and ends what it runs.
    pub(crate) out: bool,
    /// What it runs of the application in question.
    pub(crate) serves: Serves,
}

/// What a node runs of one application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Serves {
    /// No process of it.
    Nothing,
    /// A process that does not serve what was published, or not yet.
    Something,
    /// The published deploy, ready.
    Published,
}

impl Candidate {
    pub(super) fn placeable(&self) -> bool {
        self.live && !self.leaving
    }

    fn matches(&self, selector: Option<&BTreeMap<String, String>>) -> bool {
        selector.is_none_or(|wanted| wanted.iter().all(|(name, value)| self.labels.get(name) == Some(value)))
    }
}

/// What an application asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish<'a> {
    pub(crate) application: &'a ApplicationName,
    pub(crate) replicas: Replicas,
    pub(crate) selector: Option<&'a BTreeMap<String, String>>,
    /// Whether anything was published yet.
    pub(crate) published: bool,
}

/// Where it would be if nothing were placed yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ideal {
    /// Sorted.
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) wanted: u32,
    /// Why there are fewer than wanted.
    pub(crate) reason: Option<UnplacedReason>,
}

impl Ideal {
    fn has(&self, node: &NodeId) -> bool {
        self.nodes.binary_search(node).is_ok()
    }
}

/// The best nodes for a wish. At least one is wanted even of "all" of none. What the nodes serve decides nothing here.
pub(crate) fn ideal(wish: &Wish<'_>, nodes: &[Candidate]) -> Ideal {
    let placeable = nodes.iter().filter(|node| node.placeable()).count();
    let eligible = nodes.iter().filter(|node| node.placeable() && node.matches(wish.selector));
    let mut chosen: Vec<&NodeId> = eligible.map(|node| &node.id).collect();
    let eligible = chosen.len();
    let count = u32::try_from(eligible).unwrap_or(u32::MAX);
    let wanted = match wish.replicas {
        Replicas::Count(count) => count.get(),
        Replicas::All => count.max(1),
    };
    let reason = match (count < wanted, placeable) {
        (false, _) => None,
        (true, 0) => Some(UnplacedReason::NoLiveNode),
        (true, _) if eligible < placeable => Some(UnplacedReason::Selector),
        (true, _) => Some(UnplacedReason::Capacity),
    };
    let take = usize::try_from(wanted).unwrap_or(usize::MAX);
    // Where all of them are taken no score is needed, and scores are what a pass over many applications costs.
    if take < eligible {
        chosen = best(wish.application, &chosen, take);
    }
    chosen.sort_unstable();
    Ideal { nodes: chosen.into_iter().cloned().collect(), wanted, reason }
}

/// Those with the highest scores, `take` of them, which is less than there are.
fn best<'a>(application: &ApplicationName, nodes: &[&'a NodeId], take: usize) -> Vec<&'a NodeId> {
    let mut scored: Vec<(u64, &NodeId)> = nodes.iter().map(|id| (score(application, id), *id)).collect();
    // Equal scores do not happen in practice; the id makes the order total all the same.
    scored.select_nth_unstable_by(take, |a, b| b.cmp(a));
    #[cfg(test)]
    if is_broken(Rule::ScoresAreIndependent) {
        scored.sort_by_key(|(_, id)| *id);
        let turn = application.as_str().len() % scored.len();
        scored.rotate_left(turn);
    }
    scored.truncate(take);
    scored.into_iter().map(|(_, id)| id).collect()
}

fn score(application: &ApplicationName, node: &NodeId) -> u64 {
    // Neither name holds a zero byte, so that no two pairs are spelled alike.
    let digest =
        Sha256::new().chain_update(application.as_str()).chain_update([0]).chain_update(node.as_str()).finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_be_bytes(first)
}

/// The next placement of an application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outlook {
    /// Its nodes, sorted.
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) wanted: u32,
    pub(crate) reason: Option<UnplacedReason>,
    /// A living node is there beyond the ideal, and the others would do without it. Once this has stood for the hold, pass
    /// `held: true`.
    pub(crate) may_shrink: bool,
}

/// What comes after `current` on the way to `ideal`. `held`: [`Outlook::may_shrink`] has been true for the whole hold.
pub(crate) fn next(wish: &Wish<'_>, ideal: &Ideal, current: &[NodeId], nodes: &[Candidate], held: bool) -> Outlook {
    let surplus = surplus(wish, ideal, current, nodes);
    let leaves_now = leaver(wish, current, nodes, ideal, &surplus);
    let may_shrink = leaves_now.is_some();
    let gone = leaves_now.filter(|_| held || !wish.published || hopeless(wish, ideal, &surplus));
    let mut next: Vec<NodeId> = ideal.nodes.clone();
    next.extend(surplus.iter().filter(|node| Some(&node.id) != gone).map(|node| node.id.clone()));
    next.sort();
    next.dedup();
    Outlook { nodes: next, wanted: ideal.wanted, reason: ideal.reason, may_shrink }
}

/// Where it is beyond the ideal and has something to lose: who may go first comes first.
fn surplus<'a>(wish: &Wish<'_>, ideal: &Ideal, current: &[NodeId], nodes: &'a [Candidate]) -> Vec<&'a Candidate> {
    let beyond = current.iter().filter(|id| !ideal.has(id));
    let known = beyond.filter_map(|id| nodes.iter().find(|node| node.id == *id));
    let mut surplus: Vec<&Candidate> = known
        // Silent: nothing there is waited for.
        .filter(|node| node.live)
        .filter(|node| !(node.leaving && node.serves == Serves::Nothing))
        // Before anything was published there is nothing to lose.
        .filter(|node| wish.published || node.serves != Serves::Nothing)
        .collect();
    // The weakest goes first; the order must not depend on that of the record.
    surplus.sort_by_key(|node| (node.leaving, score(wish.application, &node.id), node.id.clone()));
    surplus
}

/// The surplus node that may go as far as the others are concerned.
fn leaver<'a>(
    wish: &Wish<'_>,
    current: &[NodeId],
    nodes: &[Candidate],
    ideal: &Ideal,
    surplus: &[&'a Candidate],
) -> Option<&'a NodeId> {
    // A leaving node stays in the placement until its process is gone; that it does by itself.
    let first = surplus.iter().find(|node| !node.leaving)?;
    if nodes.iter().any(|node| ends(node, current, ideal)) {
        return None;
    }
    let spare = !wish.published || hopeless(wish, ideal, surplus) || others_serve(ideal, current, nodes, &first.id);
    spare.then_some(&first.id)
}

/// Whether a node ends its process of the application: it goes, or is placed there no longer. Nobody follows it before it has:
/// nodes of one application leave one at a time.
fn ends(node: &Candidate, current: &[NodeId], ideal: &Ideal) -> bool {
    let placed = || current.contains(&node.id) || ideal.has(&node.id);
    node.live && node.serves != Serves::Nothing && (node.out || !placed())
}

/// Whether as many others as there can be serve what was published, at least one.
fn others_serve(ideal: &Ideal, current: &[NodeId], nodes: &[Candidate], without: &NodeId) -> bool {
    let ready = nodes
        .iter()
        .filter(|node| node.placeable() && node.serves == Serves::Published && node.id != *without)
        .filter(|node| current.contains(&node.id))
        .count();
    let needed = usize::try_from(ideal.wanted).unwrap_or(usize::MAX).min(ideal.nodes.len()).max(1);
    ready >= needed
}

/// Whether a leaving node that serves the application may end: the rule by which the coordinator takes any other node out.
pub(crate) fn dispensable(wish: &Wish<'_>, current: &[NodeId], nodes: &[Candidate], leaving: &NodeId) -> bool {
    let ideal = ideal(wish, nodes);
    // Nothing satisfies the selector, this node neither: then the selector wins over serving.
    let unwanted = || ideal.nodes.is_empty() && nodes.iter().any(|it| it.id == *leaving && !it.matches(wish.selector));
    let follows = || nodes.iter().any(|node| node.id != *leaving && ends(node, current, &ideal));
    !wish.published || (!follows() && (others_serve(&ideal, current, nodes, leaving) || unwanted()))
}

/// The surplus breaks the selector and nothing satisfies it: then the selector wins over serving.
fn hopeless(wish: &Wish<'_>, ideal: &Ideal, surplus: &[&Candidate]) -> bool {
    ideal.nodes.is_empty() && surplus.iter().any(|node| !node.leaving && !node.matches(wish.selector))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> ApplicationName {
        text.parse().unwrap()
    }

    fn id(text: &str) -> NodeId {
        text.parse().unwrap()
    }

    fn node(text: &str) -> Candidate {
        Candidate {
            id: id(text),
            labels: BTreeMap::new(),
            live: true,
            leaving: false,
            out: false,
            serves: Serves::Nothing,
        }
    }

    fn next(wish: &Wish<'_>, current: &[NodeId], nodes: &[Candidate], held: bool) -> Outlook {
        super::next(wish, &ideal(wish, nodes), current, nodes, held)
    }

    fn labelled(text: &str, region: &str) -> Candidate {
        Candidate { labels: [("region".to_owned(), region.to_owned())].into(), ..node(text) }
    }

    #[test]
    fn a_leaving_node_is_dispensable_once_as_many_others_serve_as_there_can_be() {
        let (shop, eu) = (name("shop"), BTreeMap::from([("region".to_owned(), "eu".to_owned())]));
        let ask = |replicas, published, selector, current: &[&str], nodes: &[Candidate]| {
            let wish = Wish { application: &shop, replicas, selector, published };
            let current: Vec<NodeId> = current.iter().map(|text| id(text)).collect();
            dispensable(&wish, &current, nodes, &id("a"))
        };
        let a = Candidate { leaving: true, serves: Serves::Published, ..node("a") };
        let ready = |text| Candidate { serves: Serves::Published, ..node(text) };
        let booting = |text| Candidate { serves: Serves::Something, ..node(text) };
        let one = count(1);
        assert!(!ask(one, true, None, &["a"], std::slice::from_ref(&a)), "nobody else is there");
        assert!(!ask(one, true, None, &["a", "b"], &[a.clone(), booting("b")]));
        assert!(ask(one, true, None, &["a", "b"], &[a.clone(), ready("b")]));
        assert!(!ask(one, true, None, &["a"], &[a.clone(), ready("b")]), "`b` serves it still, not again");
        assert!(!ask(count(2), true, None, &["a", "b", "c"], &[a.clone(), ready("b"), booting("c")]));
        assert!(ask(count(9), true, None, &["a", "b", "c"], &[a.clone(), ready("b"), ready("c")]));
        assert!(ask(one, false, None, &["a"], std::slice::from_ref(&a)), "nothing was published yet");
        assert!(ask(one, true, Some(&eu), &["a"], std::slice::from_ref(&a)), "nobody is wanted there");
        let gone = |text| Candidate { leaving: true, out: true, ..ready(text) };
        assert!(!ask(one, true, None, &["a", "b", "c"], &[a.clone(), ready("b"), gone("c")]), "`c` goes first");
        assert!(!ask(one, true, None, &["a", "b"], &[a.clone(), ready("b"), ready("c")]), "`c` is still to end");
        let ended = Candidate { serves: Serves::Nothing, ..gone("c") };
        assert!(ask(one, true, None, &["a", "b", "c"], &[a.clone(), ready("b"), ended]));
        let dead = Candidate { live: false, ..gone("c") };
        assert!(ask(one, true, None, &["a", "b", "c"], &[a.clone(), ready("b"), dead]));
    }

    fn count(replicas: u32) -> Replicas {
        Replicas::Count(NonZeroU32::new(replicas).unwrap())
    }

    fn wish(application: &ApplicationName, replicas: Replicas) -> Wish<'_> {
        Wish { application, replicas, selector: None, published: true }
    }

    #[test]
    fn what_cannot_be_placed_says_why() {
        let shop = name("shop");
        let eu: BTreeMap<String, String> = [("region".to_owned(), "eu".to_owned())].into();
        let selecting = Wish { selector: Some(&eu), ..wish(&shop, count(1)) };
        let reason = |wish: &Wish<'_>, nodes: &[Candidate]| ideal(wish, nodes).reason;
        let dead = Candidate { live: false, ..node("a") };
        let leaving = Candidate { leaving: true, ..node("a") };
        assert_eq!(reason(&wish(&shop, count(1)), &[]), Some(UnplacedReason::NoLiveNode));
        assert_eq!(reason(&wish(&shop, count(1)), &[dead]), Some(UnplacedReason::NoLiveNode));
        assert_eq!(reason(&wish(&shop, Replicas::All), &[leaving]), Some(UnplacedReason::NoLiveNode));
        assert_eq!(reason(&selecting, &[labelled("a", "us")]), Some(UnplacedReason::Selector));
        assert_eq!(reason(&wish(&shop, count(3)), &[node("a"), node("b")]), Some(UnplacedReason::Capacity));
        assert_eq!(reason(&selecting, &[labelled("a", "eu"), labelled("b", "us")]), None);
        assert_eq!(reason(&wish(&shop, Replicas::All), &[node("a"), node("b")]), None);
    }

    #[test]
    fn a_living_node_leaves_only_when_the_others_are_ready_and_a_hold_has_passed() {
        let shop = name("shop");
        let one = wish(&shop, count(1));
        let mut nodes: Vec<Candidate> = ["a", "b", "c"].map(node).into();
        let best = ideal(&one, &nodes).nodes[0].clone();
        let other = nodes.iter().find(|node| node.id != best).unwrap().id.clone();
        let both = {
            let mut both = vec![best.clone(), other.clone()];
            both.sort();
            both
        };
        let serve = |nodes: &mut Vec<Candidate>, id: &NodeId, serves| {
            nodes.iter_mut().find(|node| node.id == *id).unwrap().serves = serves;
        };
        serve(&mut nodes, &other, Serves::Published);
        let added = next(&one, std::slice::from_ref(&other), &nodes, false);
        assert_eq!((added.nodes.clone(), added.may_shrink), (both.clone(), false));
        serve(&mut nodes, &best, Serves::Something);
        assert!(!next(&one, &both, &nodes, false).may_shrink);
        serve(&mut nodes, &best, Serves::Published);
        let ready = next(&one, &both, &nodes, false);
        assert_eq!((ready.nodes, ready.may_shrink), (both.clone(), true));
        assert_eq!(next(&one, &both, &nodes, true).nodes, std::slice::from_ref(&best));
        // Dead, it is not waited for.
        nodes.iter_mut().find(|node| node.id == other).unwrap().live = false;
        assert_eq!(next(&one, &both, &nodes, false).nodes, [best]);
    }

    #[test]
    fn a_leaving_node_stays_until_its_process_is_gone() {
        let shop = name("shop");
        let one = wish(&shop, count(1));
        let mut nodes = vec![node("a"), Candidate { leaving: true, serves: Serves::Published, ..node("b") }];
        assert_eq!(next(&one, &[id("b")], &nodes, true).nodes, [id("a"), id("b")]);
        nodes[1].serves = Serves::Nothing;
        assert_eq!(next(&one, &[id("a"), id("b")], &nodes, false).nodes, [id("a")]);
    }

    #[test]
    fn one_node_of_an_application_goes_at_a_time() {
        let shop = name("shop");
        let one = wish(&shop, count(1));
        let nodes: Vec<Candidate> =
            ["a", "b", "c"].map(|id| Candidate { serves: Serves::Published, ..node(id) }).into();
        let all = [id("a"), id("b"), id("c")];
        let two = next(&one, &all, &nodes, true).nodes;
        assert_eq!(two.len(), 2);
        // The one that went still runs.
        assert_eq!(next(&one, &two, &nodes, true).nodes, two);
    }

    #[test]
    fn a_selector_that_nothing_satisfies_ends_the_placement() {
        let shop = name("shop");
        let eu: BTreeMap<String, String> = [("region".to_owned(), "eu".to_owned())].into();
        let selecting = Wish { selector: Some(&eu), ..wish(&shop, count(1)) };
        let us = Candidate { serves: Serves::Published, ..labelled("a", "us") };
        assert_eq!(next(&selecting, &[id("a")], std::slice::from_ref(&us), false).nodes, [] as [NodeId; 0]);
        let both = [us, labelled("b", "eu")];
        assert_eq!(next(&selecting, &[id("a")], &both, false).nodes, [id("a"), id("b")]);
    }

    #[test]
    fn nothing_published_is_nothing_to_lose() {
        let shop = name("shop");
        let fresh = Wish { published: false, ..wish(&shop, count(1)) };
        let nodes: Vec<Candidate> = ["a", "b"].map(node).into();
        let best = ideal(&fresh, &nodes).nodes;
        assert_eq!(next(&fresh, &[id("a"), id("b")], &nodes, false).nodes, best);
    }

    proptest! {
        /// When a node comes or goes, each application keeps every node that it does not have to lose.
        #[test]
        fn only_the_moved_share_moves(fleet in 2usize..30, replicas in 1u32..5, applications in 1usize..40) {
            let all: Vec<Candidate> = (0..fleet).map(|index| node(&format!("n{index}"))).collect();
            let fewer = &all[1..];
            for index in 0..applications {
                let application = name(&format!("app-{index}"));
                let wish = wish(&application, count(replicas));
                let (with, without) = (ideal(&wish, &all).nodes, ideal(&wish, fewer).nodes);
                let kept = with.iter().filter(|id| without.contains(id)).count();
                let lost = usize::from(with.contains(&all[0].id));
                prop_assert_eq!(kept, with.len() - lost);
            }
        }

        /// The order in which nodes are listed decides nothing.
        #[test]
        fn the_order_of_the_listing_decides_nothing(seed in any::<u64>(), replicas in 1u32..4) {
            let mut nodes: Vec<Candidate> = (0..8).map(|index| node(&format!("n{index}"))).collect();
            let application = name("shop");
            let wish = wish(&application, count(replicas));
            let before = ideal(&wish, &nodes);
            let turn = usize::try_from(seed % 8).unwrap();
            nodes.rotate_left(turn);
            prop_assert_eq!(ideal(&wish, &nodes), before);
        }
    }
}

//! The coordinator's lease as a state machine without I/O.
//!
//! What is kept true: a node acts as coordinator only between a write of the lease that it knows to have landed and one TTL
//! after that write *left*; expiry of somebody else's lease is judged by this node's own clock since it first saw that very
//! body; each take-over has a fence above every fence that was seen anywhere. No writer's clock decides anything.
//!
//! A holder that ends in good order first steps down and then gives the lease back: it writes a body of the same fence with no
//! life left, over its own last one. The record is not deleted, because the fence has to survive. Whoever sees that body takes
//! over at once instead of waiting a life; the next fence is higher all the same, so what the old holder still has on the wire
//! is refused like anything else that comes late.
//!
//! Every write has a nonce, in the body and on its outcome. It proves authorship after a lost answer, and it keeps the late
//! outcome of an abandoned write from being taken for that of a newer one.

use std::time::Duration;

use scafo_core::NodeId;
use scafo_core::record::Fence;
use scafo_store::ETag;

use crate::registry::Mono;

/// Bounds of a TTL that another node's record may claim: below a second no renewal over a network keeps up, and five minutes
/// without a coordinator is the most that a mistaken setting may cost.
const TTL_BOUNDS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// The lease as one read of the bucket showed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Body {
    pub(crate) etag: ETag,
    pub(crate) node: NodeId,
    pub(crate) fence: Fence,
    pub(crate) ttl: Duration,
    pub(crate) nonce: String,
}

impl Body {
    /// Its holder stepped down before it wrote this.
    const fn is_given_back(&self) -> bool {
        self.ttl.is_zero()
    }
}

/// Somebody's lease and since when this node has been looking at this very body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// None: there is no record, since then.
    etag: Option<ETag>,
    fence: Fence,
    lapses: Mono,
}

impl Seen {
    fn first(body: &Body, now: Mono) -> Self {
        let ttl = if body.is_given_back() { Duration::ZERO } else { body.ttl.clamp(TTL_BOUNDS.0, TTL_BOUNDS.1) };
        Self { etag: Some(body.etag.clone()), fence: body.fence, lapses: now.after(ttl) }
    }

    fn is(&self, body: &Body) -> bool {
        self.etag.as_ref() == Some(&body.etag)
    }
}

/// A write that is on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) fence: Fence,
    /// The body that it replaces; none means that there must be no lease.
    pub(crate) replacing: Option<ETag>,
    pub(crate) nonce: String,
    /// Zero gives the lease back.
    pub(crate) ttl: Duration,
}

/// Where this node stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// Somebody else's turn, or nobody's.
    Following(Option<Seen>),
    /// A take-over left at `sent`. `doubtful`: a try of it has had no clear answer.
    Claiming { write: Write, sent: Mono, doubtful: bool },
    /// Coordinator until `lapses`, unless renewed.
    Holding { fence: Fence, etag: ETag, renew: Mono, lapses: Mono },
    /// Coordinator until `lapses`; a renewal left at `sent`.
    Renewing { write: Write, sent: Mono, lapses: Mono, doubtful: bool },
}

/// What happens to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// [`State::due`] has come.
    Due,
    /// This node ends. Only a holder has anything to do; one whose renewal is on its way waits for its outcome first.
    Resign,
    /// The bucket showed this.
    Read(Option<Body>),
    /// The bucket could not be read.
    ReadFailed,
    /// The write with this nonce landed.
    Written { nonce: String, etag: ETag },
    /// The write with this nonce found another body than the one it was to replace.
    Refused { nonce: String },
    /// The write with this nonce had no clear answer.
    Unknown { nonce: String },
}

/// What is to be done, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Read the lease; answer with [`Event::Read`] or [`Event::ReadFailed`].
    Read,
    /// Write it; answer with one of the three outcomes.
    Write(Write),
    /// This node coordinates from now on, or for longer.
    Lead { fence: Fence, lapses: Mono },
    /// It does not any more.
    StepDown,
}

/// What a step may use beside state and event.
#[derive(Debug, Clone)]
pub(crate) struct Inputs<'a> {
    pub(crate) now: Mono,
    pub(crate) me: &'a NodeId,
    pub(crate) ttl: Duration,
    /// The highest fence seen in placements, in node records and on this node's disk.
    pub(crate) floor: Fence,
    /// Fresh and random; used when this step begins a write.
    pub(crate) nonce: &'a str,
}

impl State {
    /// When [`Event::Due`] is to happen next. `None`: at once.
    pub(crate) fn due(&self) -> Option<Mono> {
        match self {
            Self::Following(seen) => seen.as_ref().map(|seen| seen.lapses),
            Self::Claiming { sent, .. } => Some(sent.after(TTL_BOUNDS.1)),
            Self::Holding { renew, .. } => Some(*renew),
            Self::Renewing { lapses, .. } => Some(*lapses),
        }
    }

    fn nonce(&self) -> Option<&str> {
        match self {
            Self::Claiming { write, .. } | Self::Renewing { write, .. } => Some(&write.nonce),
            Self::Following(_) | Self::Holding { .. } => None,
        }
    }
}

/// One step. The effects are to be carried out in order and their outcomes fed back.
pub(crate) fn step(state: State, event: Event, inputs: &Inputs<'_>) -> (State, Vec<Effect>) {
    let stale = match &event {
        Event::Written { nonce, .. } | Event::Refused { nonce } | Event::Unknown { nonce } => {
            state.nonce() != Some(nonce)
        }
        Event::Due | Event::Resign | Event::Read(_) | Event::ReadFailed => false,
    };
    if stale {
        return (state, vec![]);
    }
    match state {
        State::Following(seen) => following(seen, event, inputs),
        State::Claiming { write, sent, doubtful } => claiming(write, sent, doubtful, event, inputs),
        State::Holding { fence, etag, renew, lapses } => holding(fence, etag, renew, lapses, &event, inputs),
        State::Renewing { write, sent, lapses, doubtful } => renewing(write, sent, lapses, doubtful, event, inputs),
    }
}

fn following(seen: Option<Seen>, event: Event, inputs: &Inputs<'_>) -> (State, Vec<Effect>) {
    match event {
        Event::Due => (State::Following(seen), vec![Effect::Read]),
        Event::Resign => (State::Following(seen), vec![]),
        // Given back: its writer says so itself.
        Event::Read(Some(body)) if body.is_given_back() => claim(Some(body.etag), body.fence, inputs),
        Event::Read(None) => missing(seen, inputs),
        // An earlier run of this very node: it is dead, because this one lives. Its late writes lose against the ETag.
        Event::Read(Some(body)) if body.node == *inputs.me => claim(Some(body.etag), body.fence, inputs),
        Event::Read(Some(body)) => match seen {
            // The very body that has been timed, and it has stood for its whole life: its writer is gone.
            Some(seen) if seen.is(&body) && inputs.now >= seen.lapses => claim(Some(body.etag), seen.fence, inputs),
            Some(seen) if seen.is(&body) => (State::Following(Some(seen)), vec![]),
            // A body that is new to this node: somebody lives. It is timed from now, by this node's clock.
            Some(_) | None => (State::Following(Some(Seen::first(&body, inputs.now))), vec![]),
        },
        // Tried again when due; without a clear read nobody is declared gone.
        Event::ReadFailed => (State::Following(seen), vec![]),
        Event::Written { .. } | Event::Refused { .. } | Event::Unknown { .. } => (State::Following(seen), vec![]),
    }
}

/// There is no record. In a bucket where nothing was ever placed that is how it begins. Elsewhere it was lost, its holder may
/// be at work until it notices, and its fence may stand nowhere else yet: a whole life passes first, in which the holder falls
/// and what it wrote is seen.
fn missing(seen: Option<Seen>, inputs: &Inputs<'_>) -> (State, Vec<Effect>) {
    match seen {
        None if inputs.floor == Fence::default() => claim(None, Fence::default(), inputs),
        Some(seen) if seen.etag.is_none() && inputs.now >= seen.lapses => claim(None, seen.fence, inputs),
        Some(seen) if seen.etag.is_none() => (State::Following(Some(seen)), vec![]),
        Some(_) | None => {
            let fence = seen.map_or(Fence::default(), |seen| seen.fence);
            let seen = Seen { etag: None, fence, lapses: inputs.now.after(inputs.ttl) };
            (State::Following(Some(seen)), vec![])
        }
    }
}

fn claim(replacing: Option<ETag>, replaced: Fence, inputs: &Inputs<'_>) -> (State, Vec<Effect>) {
    let fence = replaced.max(inputs.floor).next();
    let write = Write { fence, replacing, nonce: inputs.nonce.to_owned(), ttl: inputs.ttl };
    let state = State::Claiming { write: write.clone(), sent: inputs.now, doubtful: false };
    (state, vec![Effect::Write(write)])
}

fn claiming(write: Write, sent: Mono, doubtful: bool, event: Event, inputs: &Inputs<'_>) -> (State, Vec<Effect>) {
    match event {
        Event::Written { etag, .. } => landed(write.fence, etag, sent, inputs),
        Event::Read(Some(body)) if body.nonce == write.nonce => landed(write.fence, body.etag, sent, inputs),
        // Lost, or not there yet: should it still land, the next read finds this node's own name and claims anew.
        Event::Refused { .. } if !doubtful => (State::Following(None), vec![]),
        Event::Read(Some(body)) if body.node != *inputs.me => {
            (State::Following(Some(Seen::first(&body, inputs.now))), vec![])
        }
        Event::Refused { .. } | Event::Unknown { .. } => {
            (State::Claiming { write, sent, doubtful: true }, vec![Effect::Read])
        }
        Event::Read(_) | Event::ReadFailed | Event::Due => (State::Following(None), vec![]),
        Event::Resign => (State::Claiming { write, sent, doubtful }, vec![]),
    }
}

/// A write that left at `sent` has landed. Its life counts from then, never from when the answer came.
fn landed(fence: Fence, etag: ETag, sent: Mono, inputs: &Inputs<'_>) -> (State, Vec<Effect>) {
    let lapses = sent.after(inputs.ttl);
    if inputs.now >= lapses {
        return (State::Following(None), vec![Effect::StepDown]);
    }
    let renew = sent.after(inputs.ttl / 3);
    (State::Holding { fence, etag, renew, lapses }, vec![Effect::Lead { fence, lapses }])
}

fn holding(
    fence: Fence,
    etag: ETag,
    renew: Mono,
    lapses: Mono,
    event: &Event,
    inputs: &Inputs<'_>,
) -> (State, Vec<Effect>) {
    match event {
        Event::Due if inputs.now >= lapses => (State::Following(None), vec![Effect::StepDown]),
        Event::Due => {
            let write = Write { fence, replacing: Some(etag), nonce: inputs.nonce.to_owned(), ttl: inputs.ttl };
            let state = State::Renewing { write: write.clone(), sent: inputs.now, lapses, doubtful: false };
            (state, vec![Effect::Write(write)])
        }
        // First the authority, then the lease: in the other order somebody else could lead meanwhile.
        Event::Resign => {
            let nonce = inputs.nonce.to_owned();
            let write = Write { fence, replacing: Some(etag), nonce, ttl: Duration::ZERO };
            (State::Following(None), vec![Effect::StepDown, Effect::Write(write)])
        }
        Event::Read(_) | Event::ReadFailed | Event::Written { .. } | Event::Refused { .. } | Event::Unknown { .. } => {
            (State::Holding { fence, etag, renew, lapses }, vec![])
        }
    }
}

fn renewing(
    write: Write,
    sent: Mono,
    lapses: Mono,
    doubtful: bool,
    event: Event,
    inputs: &Inputs<'_>,
) -> (State, Vec<Effect>) {
    if inputs.now >= lapses && !matches!(event, Event::Written { .. }) {
        return (State::Following(None), vec![Effect::StepDown]);
    }
    match event {
        Event::Written { etag, .. } => landed(write.fence, etag, sent, inputs),
        Event::Read(Some(body)) if body.nonce == write.nonce => landed(write.fence, body.etag, sent, inputs),
        // Not there (yet): the same write again, with the same condition, for as long as there is time.
        Event::Read(Some(body)) if Some(&body.etag) == write.replacing.as_ref() => {
            let again = Effect::Write(write.clone());
            (State::Renewing { write, sent, lapses, doubtful: true }, vec![again])
        }
        // Somebody else's body, or none: the authority is gone.
        Event::Read(_) => (State::Following(None), vec![Effect::StepDown]),
        Event::Refused { .. } if !doubtful => (State::Following(None), vec![Effect::StepDown]),
        // After a doubtful try a refusal may be the answer to our own success.
        Event::Refused { .. } | Event::Unknown { .. } | Event::ReadFailed => {
            (State::Renewing { write, sent, lapses, doubtful: true }, vec![Effect::Read])
        }
        Event::Due | Event::Resign => (State::Renewing { write, sent, lapses, doubtful }, vec![]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(15);

    fn s(seconds: u64) -> Mono {
        Mono::at(Duration::from_secs(seconds))
    }

    fn tag(text: &str) -> ETag {
        ETag::parse(text).unwrap()
    }

    fn body(etag: &str, node: &str, fence: u64) -> Body {
        Body { etag: tag(etag), node: node.parse().unwrap(), fence: Fence(fence), ttl: TTL, nonce: format!("n-{etag}") }
    }

    fn go(state: State, event: Event, at: u64) -> (State, Vec<Effect>) {
        let me = "me".parse().unwrap();
        step(state, event, &Inputs { now: s(at), me: &me, ttl: TTL, floor: Fence(4), nonce: "fresh" })
    }

    fn write(fence: u64, replacing: Option<&str>) -> Write {
        Write { fence: Fence(fence), replacing: replacing.map(tag), nonce: "fresh".into(), ttl: TTL }
    }

    fn claiming_at(at: u64) -> State {
        State::Claiming { write: write(9, Some("e")), sent: s(at), doubtful: false }
    }

    fn renewing_at(at: u64, lapses: u64) -> State {
        State::Renewing { write: write(9, Some("e")), sent: s(at), lapses: s(lapses), doubtful: false }
    }

    fn written() -> Event {
        Event::Written { nonce: "fresh".into(), etag: tag("new") }
    }

    #[test]
    fn a_lost_lease_is_claimed_after_a_life_above_every_fence_that_was_seen() {
        let (seen, none) = go(State::Following(None), Event::Read(None), 1);
        assert_eq!((seen.due(), none.len()), (Some(s(16)), 0));
        assert_eq!(go(seen.clone(), Event::Read(None), 15), (seen.clone(), vec![]));
        let (state, effects) = go(seen.clone(), Event::Read(None), 16);
        assert_eq!(effects, [Effect::Write(write(5, None))]);
        assert_eq!(state, State::Claiming { write: write(5, None), sent: s(16), doubtful: false });
        // What was seen before it was lost counts as well.
        let (held, _) = go(State::Following(None), Event::Read(Some(body("a", "other", 8))), 0);
        let (lost, none) = go(held, Event::Read(None), 15);
        assert_eq!((lost.due(), none.len()), (Some(s(30)), 0));
        assert_eq!(go(lost, Event::Read(None), 30).1, [Effect::Write(write(9, None))]);
    }

    #[test]
    fn the_first_lease_of_a_bucket_is_claimed_at_once() {
        let me = "me".parse().unwrap();
        let inputs = Inputs { now: s(0), me: &me, ttl: TTL, floor: Fence::default(), nonce: "fresh" };
        assert_eq!(step(State::Following(None), Event::Read(None), &inputs).1, [Effect::Write(write(1, None))]);
    }

    #[test]
    fn a_body_is_gone_only_after_it_stood_its_whole_life_before_our_eyes() {
        let (seen, none) = go(State::Following(None), Event::Read(Some(body("a", "other", 8))), 100);
        assert!(none.is_empty());
        assert_eq!(seen.due(), Some(s(115)));
        let (still, none) = go(seen.clone(), Event::Read(Some(body("a", "other", 8))), 114);
        assert_eq!((&still, none.len()), (&seen, 0));
        let (moved, none) = go(seen.clone(), Event::Read(Some(body("b", "other", 8))), 115);
        assert_eq!((moved.due(), none.len()), (Some(s(130)), 0));
        let (_, claim) = go(seen, Event::Read(Some(body("a", "other", 8))), 115);
        assert_eq!(claim, [Effect::Write(write(9, Some("a")))]);
    }

    #[test]
    fn an_earlier_run_of_this_node_is_replaced_at_once() {
        let (_, claim) = go(State::Following(None), Event::Read(Some(body("a", "me", 8))), 0);
        assert_eq!(claim, [Effect::Write(write(9, Some("a")))]);
    }

    #[test]
    fn an_unreadable_bucket_declares_nobody_gone() {
        let (seen, _) = go(State::Following(None), Event::Read(Some(body("a", "other", 8))), 0);
        assert_eq!(go(seen.clone(), Event::ReadFailed, 500), (seen, vec![]));
    }

    #[test]
    fn the_life_of_a_lease_counts_from_when_its_write_left() {
        let (state, effects) = go(claiming_at(10), written(), 20);
        assert_eq!(effects, [Effect::Lead { fence: Fence(9), lapses: s(25) }]);
        assert_eq!(state.due(), Some(s(15)));
        assert_eq!(go(claiming_at(10), written(), 25).1, [Effect::StepDown]);
    }

    #[test]
    fn refused_renewal_steps_down_at_once() {
        let refused = Event::Refused { nonce: "fresh".into() };
        assert_eq!(go(renewing_at(5, 15), refused, 6), (State::Following(None), vec![Effect::StepDown]));
    }

    #[test]
    fn a_renewal_without_an_answer_steps_down_when_the_lease_lapses() {
        let unknown = Event::Unknown { nonce: "fresh".into() };
        let (state, effects) = go(renewing_at(5, 15), unknown, 6);
        assert_eq!(effects, [Effect::Read]);
        assert_eq!(go(state.clone(), Event::Due, 15), (State::Following(None), vec![Effect::StepDown]));
        assert_eq!(go(state, Event::ReadFailed, 16).1, [Effect::StepDown]);
    }

    #[test]
    fn a_lost_answer_is_recognised_by_the_nonce() {
        let (doubt, _) = go(renewing_at(5, 15), Event::Unknown { nonce: "fresh".into() }, 6);
        let mut ours = body("new", "me", 9);
        ours.nonce = "fresh".into();
        assert_eq!(go(doubt.clone(), Event::Read(Some(ours)), 8).1, [Effect::Lead { fence: Fence(9), lapses: s(20) }]);
        let (again, effects) = go(doubt.clone(), Event::Read(Some(body("e", "me", 9))), 8);
        assert_eq!(effects, [Effect::Write(write(9, Some("e")))]);
        // The first try landed after all, so that the second is refused: that is to be looked at, not believed.
        assert_eq!(go(again, Event::Refused { nonce: "fresh".into() }, 9).1, [Effect::Read]);
        assert_eq!(go(doubt, Event::Read(Some(body("x", "other", 10))), 8).1, [Effect::StepDown]);
    }

    #[test]
    fn the_late_outcome_of_an_abandoned_write_changes_nothing() {
        let late = || Event::Written { nonce: "old".into(), etag: tag("late") };
        for state in [State::Following(None), claiming_at(10), renewing_at(5, 15)] {
            assert_eq!(go(state.clone(), late(), 11), (state, vec![]));
        }
    }

    #[test]
    fn a_lost_claim_follows_the_winner() {
        let (state, effects) = go(claiming_at(1), Event::Refused { nonce: "fresh".into() }, 2);
        assert_eq!((state, effects.len()), (State::Following(None), 0));
        let (state, effects) = go(claiming_at(1), Event::Read(Some(body("w", "other", 9))), 2);
        assert_eq!((state.due(), effects.len()), (Some(s(17)), 0));
    }

    #[test]
    fn a_lease_is_given_back_only_after_its_holder_stepped_down_and_taken_at_once() {
        let holding = State::Holding { fence: Fence(9), etag: tag("e"), renew: s(5), lapses: s(15) };
        let back = Write { ttl: Duration::ZERO, ..write(9, Some("e")) };
        let (state, effects) = go(holding, Event::Resign, 3);
        assert_eq!((state, effects), (State::Following(None), vec![Effect::StepDown, Effect::Write(back)]));
        // Where the next body is depends on a renewal that is on its way.
        assert_eq!(go(renewing_at(5, 15), Event::Resign, 6), (renewing_at(5, 15), vec![]));
        let free = Body { ttl: Duration::ZERO, ..body("f", "other", 9) };
        let (seen, _) = go(State::Following(None), Event::Read(Some(body("a", "other", 9))), 0);
        for state in [State::Following(None), seen] {
            assert_eq!(go(state, Event::Read(Some(free.clone())), 1).1, [Effect::Write(write(10, Some("f")))]);
        }
    }

    #[test]
    fn a_holder_renews_at_a_third_and_never_after_its_time() {
        let holding = State::Holding { fence: Fence(9), etag: tag("e"), renew: s(5), lapses: s(15) };
        assert_eq!(go(holding.clone(), Event::Due, 5).1, [Effect::Write(write(9, Some("e")))]);
        assert_eq!(go(holding, Event::Due, 15), (State::Following(None), vec![Effect::StepDown]));
    }
}

#[cfg(test)]
mod histories;

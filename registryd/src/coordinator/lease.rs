//! The coordinator's lease as a state machine without I/O.
//!
//! What is kept true: a node acts as coordinator only between a write of the lease that it knows to have landed and one TTL
//! after that write *left*; expiry of somebody else's lease is judged by this node's own clock since it first saw that very
//! body; nobody acts under a fence that another run acts or has acted under. No writer's clock decides anything.
//!
//! The last of these must outlive the record itself, which people delete and restore from copies. So a claim goes through
//! three gates. Before it, a fresh look finds the highest fence that stands anywhere ([`Effect::Survey`]). After it, the new
//! fence goes onto this node's disk and into its record, and only then this node looks once more ([`Effect::Prove`]): if any
//! other node's record or any placement carries that fence or a higher one, or the lease is not its own any more, it steps
//! down and claims anew. Of two that claim one fence each writes before it looks, so at least one sees the other.
//!
//! A record whose fence is lower than one that was acted under is an old copy. Who holds the lease finds that out at its next
//! renewal and falls; until then a whole life passes before anybody claims over the copy, and likewise over no record at all.
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
    /// The highest fence that anybody can have who is timed by this: the body's own, or the one that shows it to be a copy.
    fence: Fence,
    lapses: Mono,
}

impl Seen {
    /// There is no record, and nothing is known of one that was.
    const fn nothing(now: Mono) -> Self {
        Self { etag: None, fence: Fence(0), lapses: now }
    }

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

/// Whether the fence of a lease is this run's alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// That is still to be found out.
    Claimed,
    /// It is.
    Proven,
}

/// Where this node stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// Somebody else's turn, or nobody's.
    Following(Option<Seen>),
    /// What was seen may be taken over as soon as the highest fence is known.
    Surveying(Seen),
    /// A take-over left at `sent`. `doubtful`: a try of it has had no clear answer.
    Claiming { write: Write, sent: Mono, doubtful: bool },
    /// Holder until `lapses`, unless renewed; coordinator once the right is proven.
    Holding { fence: Fence, right: Right, etag: ETag, renew: Mono, lapses: Mono },
    /// The same; a renewal left at `sent`.
    Renewing { write: Write, right: Right, sent: Mono, lapses: Mono, doubtful: bool },
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
    /// No fence anywhere is higher than this one, as of a look that began after [`Effect::Survey`].
    Surveyed(Fence),
    /// The survey did not go through.
    SurveyFailed,
    /// Nobody else has this fence or a higher one.
    Proven(Fence),
    /// Somebody has, or the lease is not this node's any more.
    Overtaken(Fence),
}

/// What is to be done, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Read the lease; answer with [`Event::Read`] or [`Event::ReadFailed`].
    Read,
    /// Write it; answer with one of the three outcomes.
    Write(Write),
    /// Find the highest fence in any placement, in any node's record and on this node's disk; answer with
    /// [`Event::Surveyed`] or [`Event::SurveyFailed`].
    Survey,
    /// Keep this fence on disk, write it into this node's record, then look whether it is this run's alone, again until it
    /// comes out or [`Effect::StepDown`]; answer with [`Event::Proven`] or [`Event::Overtaken`].
    Prove(Fence),
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
    /// Fresh and random; used when this step begins a write.
    pub(crate) nonce: &'a str,
}

impl State {
    /// When [`Event::Due`] is to happen next. `None`: at once.
    pub(crate) fn due(&self) -> Option<Mono> {
        match self {
            Self::Following(seen) => seen.as_ref().map(|seen| seen.lapses),
            // Their answers come by themselves.
            Self::Surveying(seen) => Some(seen.lapses.after(TTL_BOUNDS.1)),
            Self::Claiming { sent, .. } => Some(sent.after(TTL_BOUNDS.1)),
            Self::Holding { renew, .. } => Some(*renew),
            Self::Renewing { lapses, .. } => Some(*lapses),
        }
    }

    /// Whether an answer with this nonce is awaited.
    fn awaits(&self, answered: &str) -> bool {
        match self {
            Self::Claiming { write, .. } | Self::Renewing { write, .. } => write.nonce == answered,
            Self::Following(_) | Self::Surveying(_) | Self::Holding { .. } => false,
        }
    }

    /// Whether it is still to be found out if this fence is this run's alone.
    fn is_to_prove(&self, proven: Fence) -> bool {
        match self {
            Self::Holding { fence, right, .. } => *right == Right::Claimed && *fence == proven,
            Self::Renewing { write, right, .. } => *right == Right::Claimed && write.fence == proven,
            Self::Following(_) | Self::Surveying(_) | Self::Claiming { .. } => false,
        }
    }
}

/// One step. The effects are to be carried out in order and their outcomes fed back.
pub(crate) fn step(state: State, event: Event, inputs: &Inputs<'_>) -> (State, Vec<Effect>) {
    let counts = match &event {
        Event::Written { nonce, .. } | Event::Refused { nonce } | Event::Unknown { nonce } => state.awaits(nonce),
        Event::Proven(fence) | Event::Overtaken(fence) => state.is_to_prove(*fence),
        Event::Surveyed(_) | Event::SurveyFailed => matches!(state, State::Surveying(_)),
        Event::Due | Event::Resign | Event::Read(_) | Event::ReadFailed => true,
    };
    if !counts {
        return (state, vec![]);
    }
    match state {
        State::Following(seen) => following(seen, event, inputs),
        State::Surveying(seen) => surveying(seen, &event, inputs),
        State::Claiming { write, sent, doubtful } => claiming(write, sent, doubtful, event, inputs),
        State::Holding { fence, right, etag, renew, lapses } => {
            holding(Tenure { fence, right, etag, renew, lapses }, &event, inputs)
        }
        State::Renewing { write, right, sent, lapses, doubtful } => {
            renewing(write, right, sent, lapses, doubtful, event, inputs)
        }
    }
}

fn following(seen: Option<Seen>, event: Event, inputs: &Inputs<'_>) -> (State, Vec<Effect>) {
    match event {
        Event::Due => (State::Following(seen), vec![Effect::Read]),
        Event::Read(None) => missing(seen, inputs),
        Event::Read(Some(body)) => match seen {
            // The very body that has been timed, and it has stood for its whole life: its writer is gone.
            Some(seen) if seen.is(&body) && inputs.now >= seen.lapses => survey(seen),
            Some(seen) if seen.is(&body) => (State::Following(Some(seen)), vec![]),
            // Given back: its writer says so itself. Or an earlier run of this very node: it is dead, because this one lives.
            _ if body.is_given_back() || body.node == *inputs.me => survey(Seen::first(&body, inputs.now)),
            // A body that is new to this node: somebody lives. It is timed from now, by this node's clock.
            Some(_) | None => (State::Following(Some(Seen::first(&body, inputs.now))), vec![]),
        },
        // Tried again when due; without a clear read nobody is declared gone.
        Event::ReadFailed | Event::Resign => (State::Following(seen), vec![]),
        Event::Written { .. } | Event::Refused { .. } | Event::Unknown { .. } => (State::Following(seen), vec![]),
        Event::Surveyed(_) | Event::SurveyFailed => (State::Following(seen), vec![]),
        Event::Proven(_) | Event::Overtaken(_) => (State::Following(seen), vec![]),
    }
}

/// There is no record. In a bucket where nothing was ever placed that is how it begins. Elsewhere it was lost, and its holder
/// may be at work until it notices: a whole life passes first.
fn missing(seen: Option<Seen>, inputs: &Inputs<'_>) -> (State, Vec<Effect>) {
    match seen {
        None => survey(Seen::nothing(inputs.now)),
        Some(seen) if seen.etag.is_none() && inputs.now >= seen.lapses => survey(seen),
        Some(seen) if seen.etag.is_none() => (State::Following(Some(seen)), vec![]),
        Some(seen) => {
            let gone = Seen { etag: None, lapses: inputs.now.after(inputs.ttl), ..seen };
            (State::Following(Some(gone)), vec![])
        }
    }
}

fn survey(seen: Seen) -> (State, Vec<Effect>) {
    (State::Surveying(seen), vec![Effect::Survey])
}

fn surveying(seen: Seen, event: &Event, inputs: &Inputs<'_>) -> (State, Vec<Effect>) {
    match event {
        Event::Surveyed(floor) if *floor <= seen.fence => claim(seen, inputs),
        // Somebody has acted under a higher fence than this record tells of, or did while it was timed: he may still.
        Event::Surveyed(floor) => {
            let seen = Seen { fence: *floor, lapses: inputs.now.after(inputs.ttl), ..seen };
            (State::Following(Some(seen)), vec![])
        }
        Event::SurveyFailed | Event::Resign => (State::Following(Some(seen)), vec![]),
        Event::Due | Event::Read(_) | Event::ReadFailed => (State::Surveying(seen), vec![]),
        Event::Written { .. } | Event::Refused { .. } | Event::Unknown { .. } => (State::Surveying(seen), vec![]),
        Event::Proven(_) | Event::Overtaken(_) => (State::Surveying(seen), vec![]),
    }
}

fn claim(seen: Seen, inputs: &Inputs<'_>) -> (State, Vec<Effect>) {
    let fence = seen.fence.next();
    let write = Write { fence, replacing: seen.etag, nonce: inputs.nonce.to_owned(), ttl: inputs.ttl };
    let state = State::Claiming { write: write.clone(), sent: inputs.now, doubtful: false };
    (state, vec![Effect::Write(write)])
}

fn claiming(write: Write, sent: Mono, doubtful: bool, event: Event, inputs: &Inputs<'_>) -> (State, Vec<Effect>) {
    match event {
        Event::Written { etag, .. } => won(write.fence, etag, sent, inputs),
        Event::Read(Some(body)) if body.nonce == write.nonce => won(write.fence, body.etag, sent, inputs),
        // Lost, or not there yet: should it still land, the next read finds this node's own name and claims anew.
        Event::Refused { .. } if !doubtful => (State::Following(None), vec![]),
        Event::Read(Some(body)) if body.node != *inputs.me => {
            (State::Following(Some(Seen::first(&body, inputs.now))), vec![])
        }
        Event::Refused { .. } | Event::Unknown { .. } => {
            (State::Claiming { write, sent, doubtful: true }, vec![Effect::Read])
        }
        Event::Read(_) | Event::ReadFailed | Event::Due => (State::Following(None), vec![]),
        Event::Resign | Event::Surveyed(_) | Event::SurveyFailed => (State::Claiming { write, sent, doubtful }, vec![]),
        Event::Proven(_) | Event::Overtaken(_) => (State::Claiming { write, sent, doubtful }, vec![]),
    }
}

/// The claim has landed. It gives the lease, and not yet the right to act: that is proven under the lease.
fn won(fence: Fence, etag: ETag, sent: Mono, inputs: &Inputs<'_>) -> (State, Vec<Effect>) {
    let (state, mut effects) = landed(fence, Right::Claimed, etag, sent, inputs);
    if matches!(state, State::Holding { .. }) {
        effects.push(Effect::Prove(fence));
    }
    (state, effects)
}

/// A write that left at `sent` has landed. Its life counts from then, never from when the answer came.
fn landed(fence: Fence, right: Right, etag: ETag, sent: Mono, inputs: &Inputs<'_>) -> (State, Vec<Effect>) {
    let lapses = sent.after(inputs.ttl);
    if inputs.now >= lapses {
        return (State::Following(None), vec![Effect::StepDown]);
    }
    let effect = match right {
        Right::Proven => Some(Effect::Lead { fence, lapses }),
        Right::Claimed => None,
    };
    let renew = sent.after(inputs.ttl / 3);
    (State::Holding { fence, right, etag, renew, lapses }, effect.into_iter().collect())
}

/// What a holder has.
struct Tenure {
    fence: Fence,
    right: Right,
    etag: ETag,
    renew: Mono,
    lapses: Mono,
}

fn holding(held: Tenure, event: &Event, inputs: &Inputs<'_>) -> (State, Vec<Effect>) {
    let Tenure { fence, right, etag, renew, lapses } = held;
    if inputs.now >= lapses {
        return (State::Following(None), vec![Effect::StepDown]);
    }
    match event {
        Event::Due => {
            let write = Write { fence, replacing: Some(etag), nonce: inputs.nonce.to_owned(), ttl: inputs.ttl };
            let state = State::Renewing { write: write.clone(), right, sent: inputs.now, lapses, doubtful: false };
            (state, vec![Effect::Write(write)])
        }
        // First the authority, then the lease: in the other order somebody else could lead meanwhile.
        Event::Resign => {
            let nonce = inputs.nonce.to_owned();
            let write = Write { fence, replacing: Some(etag), nonce, ttl: Duration::ZERO };
            (State::Following(None), vec![Effect::StepDown, Effect::Write(write)])
        }
        Event::Proven(_) => {
            let state = State::Holding { fence, right: Right::Proven, etag, renew, lapses };
            (state, vec![Effect::Lead { fence, lapses }])
        }
        // The next read finds this node's own lease, and claims anew above everything.
        Event::Overtaken(_) => (State::Following(None), vec![Effect::StepDown]),
        Event::Read(_) | Event::ReadFailed | Event::Written { .. } | Event::Refused { .. } | Event::Unknown { .. } => {
            (State::Holding { fence, right, etag, renew, lapses }, vec![])
        }
        Event::Surveyed(_) | Event::SurveyFailed => (State::Holding { fence, right, etag, renew, lapses }, vec![]),
    }
}

fn renewing(
    write: Write,
    right: Right,
    sent: Mono,
    lapses: Mono,
    doubtful: bool,
    event: Event,
    inputs: &Inputs<'_>,
) -> (State, Vec<Effect>) {
    if inputs.now >= lapses && !matches!(event, Event::Written { .. }) {
        return (State::Following(None), vec![Effect::StepDown]);
    }
    let fence = write.fence;
    match event {
        Event::Written { etag, .. } => landed(fence, right, etag, sent, inputs),
        Event::Read(Some(body)) if body.nonce == write.nonce => landed(fence, right, body.etag, sent, inputs),
        // Not there (yet): the same write again, with the same condition, for as long as there is time.
        Event::Read(Some(body)) if Some(&body.etag) == write.replacing.as_ref() => {
            let again = Effect::Write(write.clone());
            (State::Renewing { write, right, sent, lapses, doubtful: true }, vec![again])
        }
        // Somebody else's body, or none: the authority is gone.
        Event::Read(_) | Event::Overtaken(_) => (State::Following(None), vec![Effect::StepDown]),
        Event::Refused { .. } if !doubtful => (State::Following(None), vec![Effect::StepDown]),
        // After a doubtful try a refusal may be the answer to our own success.
        Event::Refused { .. } | Event::Unknown { .. } | Event::ReadFailed => {
            (State::Renewing { write, right, sent, lapses, doubtful: true }, vec![Effect::Read])
        }
        Event::Proven(_) => {
            let lead = Effect::Lead { fence, lapses };
            (State::Renewing { write, right: Right::Proven, sent, lapses, doubtful }, vec![lead])
        }
        Event::Due | Event::Resign | Event::Surveyed(_) | Event::SurveyFailed => {
            (State::Renewing { write, right, sent, lapses, doubtful }, vec![])
        }
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod histories;

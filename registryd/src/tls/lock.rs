//! One lock as a state machine without I/O.
//!
//! The node holds a lock on behalf of its ingress. Kept true: at every moment at most one node counts a lock as its own.
//! A hold lasts for [`LIFE`] from when its last write *left*, by the holder's own clock, and is rewritten halfway; another node
//! takes over only what it has seen stand unchanged for as long by *its* own clock, which began later. A rewrite that does not
//! clearly land ends the hold at once. Each body has a nonce of its own, so equal bytes never hide a rewrite.
//!
//! A lock is given up by a conditional write of a body whose `refreshedAt` is no time, which everybody may take over at once.
//! It is not deleted: a delete has no condition, and one that arrives late would take the next holder's lock away.
//!
//! How long a hold goes on: a client that names itself ([`LockOwner`]) comes again every ten seconds, and its lock is kept for
//! [`QUIET`] after it came last; one that does not cannot say that it lives, and its lock ends after [`LONGEST`].

use std::time::Duration;

use scafo_core::{Problem, ProblemCode, Timestamp};
use scafo_store::ETag;

use crate::registry::Mono;

/// How long a lock counts without being rewritten.
pub(crate) const LIFE: Duration = Duration::from_secs(10);
/// When it is rewritten.
pub(crate) const RESTAMP: Duration = Duration::from_secs(5);
/// How long a named client may be silent: it comes every ten seconds, and two of these may be lost.
pub(crate) const QUIET: Duration = Duration::from_secs(30);
/// How long a lock of a client without a name lasts: well above what one order at a certificate authority takes.
pub(crate) const LONGEST: Duration = Duration::from_mins(15);
/// How long it is remembered since when a body stands that nobody asks about any more.
const FORGET: Duration = Duration::from_secs(60);
/// Longest name of a client.
const OWNER_BYTES_MAX: usize = 128;

/// The name that a client process gave itself (`X-Scafo-Lock-Owner`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockOwner(String);

impl LockOwner {
    /// Reads the header; nothing is no name.
    ///
    /// # Errors
    /// `invalid-input` for more than 128 characters or any that is not visible ASCII.
    pub fn parse(text: &str) -> Result<Option<Self>, Problem> {
        if text.is_empty() {
            return Ok(None);
        }
        if text.len() > OWNER_BYTES_MAX || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let detail = "`X-Scafo-Lock-Owner` is 1 to 128 visible ASCII characters";
            return Err(Problem::new(ProblemCode::InvalidInput, detail));
        }
        Ok(Some(Self(text.to_owned())))
    }
}

/// Whom to answer.
pub(crate) type Ticket = u64;

/// A lock's body as one read showed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Body {
    pub(crate) etag: ETag,
    /// Its `refreshedAt` is no time: anybody may take it.
    pub(crate) free: bool,
}

/// Somebody's lock and since when this node has been looking at this very body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    etag: ETag,
    first: Mono,
    last: Mono,
}

/// A write on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) nonce: String,
    /// The body that it replaces; none means that there must be none.
    pub(crate) replacing: Option<ETag>,
    pub(crate) acquired_at: Timestamp,
    pub(crate) what: Stamp,
}

/// What a write says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stamp {
    /// Held.
    Hold,
    /// For anybody to take.
    Free,
}

/// A lock of this node's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    owner: Option<LockOwner>,
    etag: ETag,
    acquired: Mono,
    acquired_at: Timestamp,
    /// When its client came last.
    asked: Mono,
    /// When the write left that put this body there.
    sent: Mono,
}

/// Where a lock is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// Not here, as far as is known.
    Elsewhere(Option<Seen>),
    /// Being looked at for a client.
    Looking { owner: Option<LockOwner>, ticket: Ticket, seen: Option<Seen> },
    /// Being written for a client. `leaving`: it gave the lock up before it heard that it has it.
    Taking { owner: Option<LockOwner>, ticket: Ticket, write: Write, sent: Mono, leaving: Option<Ticket> },
    /// Here.
    Holding(Held),
    /// Here, and being rewritten. `leaving`: its client gives it up once that is done.
    Restamping { held: Held, nonce: String, sent: Mono, leaving: Option<Ticket> },
    /// Being given up.
    Freeing { nonce: String, ticket: Ticket },
}

/// What happens to a lock.
#[derive(Debug)]
pub(crate) enum Event {
    /// A client wants it, or wants to keep it.
    Lock { owner: Option<LockOwner>, ticket: Ticket },
    /// A client gives it up.
    Unlock { owner: Option<LockOwner>, ticket: Ticket },
    /// What there is in the bucket.
    Read(Result<Option<Body>, Problem>),
    /// The write with this nonce landed.
    Written { nonce: String, etag: ETag },
    /// The write with this nonce did not clearly land.
    Lost { nonce: String, why: Loss },
    /// [`State::due`] has come.
    Due,
}

/// Why a write did not clearly land.
#[derive(Debug)]
pub(crate) enum Loss {
    /// Somebody else has written, or is about to.
    Contended,
    /// The bucket gave no answer, or none that helps.
    Unclear(Problem),
}

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Read the lock.
    Read,
    /// Write it.
    Write(Write),
    /// Answer a client.
    Answer(Ticket, Result<(), Problem>),
    /// Tell a client that it still has the lock: nothing to take back when it does not hear it.
    Kept(Ticket),
}

/// What a step may use beside state and event.
#[derive(Debug, Clone)]
pub(crate) struct Inputs {
    pub(crate) now: Mono,
    pub(crate) wall: Timestamp,
    /// Fresh and random; used when this step begins a write.
    pub(crate) nonce: String,
}

impl State {
    /// When something is to be done by itself.
    pub(crate) fn due(&self) -> Option<Mono> {
        match self {
            Self::Elsewhere(None) | Self::Looking { .. } | Self::Taking { .. } | Self::Freeing { .. } => None,
            Self::Elsewhere(Some(seen)) => Some(seen.last.after(FORGET)),
            Self::Holding(held) => Some(held.sent.after(RESTAMP)),
            Self::Restamping { held, .. } => Some(held.lapses()),
        }
    }

    /// Whether nothing at all is known, so that nothing needs to be remembered.
    pub(crate) const fn is_blank(&self) -> bool {
        matches!(self, Self::Elsewhere(None))
    }

    /// Whether this node counts the lock as its own.
    #[cfg(test)]
    pub(crate) fn holds(&self, now: Mono) -> bool {
        match self {
            Self::Holding(held) | Self::Restamping { held, .. } => now < held.lapses(),
            Self::Elsewhere(_) | Self::Looking { .. } | Self::Taking { .. } | Self::Freeing { .. } => false,
        }
    }
}

impl Held {
    fn lapses(&self) -> Mono {
        self.sent.after(LIFE)
    }

    /// Whether its client has had its time.
    fn is_spent(&self, now: Mono) -> bool {
        match self.owner {
            Some(_) => now.since(self.asked) >= QUIET,
            None => now.since(self.acquired) >= LONGEST,
        }
    }

    fn write(&self, nonce: &str, what: Stamp) -> Write {
        let replacing = Some(self.etag.clone());
        Write { nonce: nonce.to_owned(), replacing, acquired_at: self.acquired_at, what }
    }
}

/// One event.
pub(crate) fn step(state: State, event: Event, inputs: &Inputs) -> (State, Vec<Effect>) {
    match event {
        Event::Lock { owner, ticket } => lock(state, owner, ticket, inputs.now),
        Event::Unlock { owner, ticket } => unlock(state, owner.as_ref(), ticket, inputs),
        Event::Read(there) => read(state, there, inputs),
        Event::Written { nonce, etag } => written(state, &nonce, etag, inputs),
        Event::Lost { nonce, why } => lost(state, &nonce, why),
        Event::Due => due(state, inputs),
    }
}

fn lock(state: State, owner: Option<LockOwner>, ticket: Ticket, now: Mono) -> (State, Vec<Effect>) {
    match state {
        State::Elsewhere(seen) => (State::Looking { owner, ticket, seen }, vec![Effect::Read]),
        State::Holding(held) if now >= held.lapses() => lock(State::Elsewhere(None), owner, ticket, now),
        State::Holding(mut held) => {
            let answer = keep(&mut held, owner.as_ref(), ticket, now);
            (State::Holding(held), vec![answer])
        }
        State::Restamping { mut held, nonce, sent, leaving } => {
            let lives = leaving.is_none() && now < held.lapses();
            let answer = if lives {
                keep(&mut held, owner.as_ref(), ticket, now)
            } else {
                Effect::Answer(ticket, Err(elsewhere()))
            };
            (State::Restamping { held, nonce, sent, leaving }, vec![answer])
        }
        // Somebody is ahead; whoever loses comes again in a second.
        busy @ (State::Looking { .. } | State::Taking { .. } | State::Freeing { .. }) => {
            (busy, vec![Effect::Answer(ticket, Err(elsewhere()))])
        }
    }
}

/// The client that holds a lock says that it lives. Without a name nobody can tell it from another one.
fn keep(held: &mut Held, owner: Option<&LockOwner>, ticket: Ticket, now: Mono) -> Effect {
    if owner.is_none() || held.owner.as_ref() != owner {
        return Effect::Answer(ticket, Err(elsewhere()));
    }
    held.asked = now;
    Effect::Kept(ticket)
}

fn unlock(state: State, owner: Option<&LockOwner>, ticket: Ticket, inputs: &Inputs) -> (State, Vec<Effect>) {
    match state {
        State::Holding(held) if held.owner.as_ref() == owner => {
            let write = held.write(&inputs.nonce, Stamp::Free);
            (State::Freeing { nonce: inputs.nonce.clone(), ticket }, vec![Effect::Write(write)])
        }
        State::Restamping { held, nonce, sent, leaving: None } if held.owner.as_ref() == owner => {
            (State::Restamping { held, nonce, sent, leaving: Some(ticket) }, vec![])
        }
        // Its client has given up waiting. What is read or written all the same finds this out.
        State::Looking { owner: Some(asking), ticket: asked, seen } if Some(&asking) == owner => {
            let answers = vec![Effect::Answer(asked, Err(elsewhere())), Effect::Answer(ticket, Ok(()))];
            (State::Elsewhere(seen), answers)
        }
        State::Taking { owner: Some(asking), ticket: asked, write, sent, leaving: None } if Some(&asking) == owner => {
            (State::Taking { owner: Some(asking), ticket: asked, write, sent, leaving: Some(ticket) }, vec![])
        }
        // Not here, or not this client's: giving up what one does not have is done.
        other @ (State::Elsewhere(_)
        | State::Looking { .. }
        | State::Taking { .. }
        | State::Holding(_)
        | State::Restamping { .. }
        | State::Freeing { .. }) => (other, vec![Effect::Answer(ticket, Ok(()))]),
    }
}

fn read(state: State, there: Result<Option<Body>, Problem>, inputs: &Inputs) -> (State, Vec<Effect>) {
    let State::Looking { owner, ticket, seen } = state else { return (state, vec![]) };
    let now = inputs.now;
    let replacing = match there {
        Ok(None) => None,
        Ok(Some(body)) => {
            let same = seen.filter(|seen| seen.etag == body.etag);
            let first = same.map_or(now, |seen| seen.first);
            if !body.free && now.since(first) < LIFE {
                let seen = Some(Seen { etag: body.etag, first, last: now });
                return (State::Elsewhere(seen), vec![Effect::Answer(ticket, Err(elsewhere()))]);
            }
            Some(body.etag)
        }
        Err(problem) => return (State::Elsewhere(seen), vec![Effect::Answer(ticket, Err(problem))]),
    };
    let write = Write { nonce: inputs.nonce.clone(), replacing, acquired_at: inputs.wall, what: Stamp::Hold };
    (State::Taking { owner, ticket, write: write.clone(), sent: now, leaving: None }, vec![Effect::Write(write)])
}

fn written(state: State, nonce: &str, etag: ETag, inputs: &Inputs) -> (State, Vec<Effect>) {
    let now = inputs.now;
    match state {
        State::Taking { owner, ticket, write, sent, leaving } if write.nonce == nonce => {
            let held = Held { owner, etag, acquired: sent, acquired_at: write.acquired_at, asked: now, sent };
            if let Some(leaving) = leaving {
                let write = held.write(&inputs.nonce, Stamp::Free);
                let effects = vec![Effect::Answer(ticket, Err(elsewhere())), Effect::Write(write)];
                return (State::Freeing { nonce: inputs.nonce.clone(), ticket: leaving }, effects);
            }
            if now >= held.lapses() {
                return (State::Elsewhere(None), vec![Effect::Answer(ticket, Err(slow()))]);
            }
            (State::Holding(held), vec![Effect::Answer(ticket, Ok(()))])
        }
        State::Restamping { held, nonce: ours, sent, leaving } if ours == nonce => {
            let held = Held { etag, sent, ..held };
            match leaving {
                None => (State::Holding(held), vec![]),
                Some(ticket) => {
                    let write = held.write(&inputs.nonce, Stamp::Free);
                    (State::Freeing { nonce: inputs.nonce.clone(), ticket }, vec![Effect::Write(write)])
                }
            }
        }
        State::Freeing { nonce: ours, ticket } if ours == nonce => {
            (State::Elsewhere(None), vec![Effect::Answer(ticket, Ok(()))])
        }
        // Of a hold that ended meanwhile: nobody rewrites that body, so it lapses.
        other => (other, vec![]),
    }
}

fn lost(state: State, nonce: &str, why: Loss) -> (State, Vec<Effect>) {
    match state {
        State::Taking { ticket, write, leaving, .. } if write.nonce == nonce => {
            let problem = match why {
                Loss::Contended => elsewhere(),
                Loss::Unclear(problem) => problem,
            };
            let left = leaving.map(|ticket| Effect::Answer(ticket, Ok(())));
            (State::Elsewhere(None), [Effect::Answer(ticket, Err(problem))].into_iter().chain(left).collect())
        }
        // Going on holding a lock that may be somebody else's is the one thing that a lock must not do.
        State::Restamping { nonce: ours, leaving, .. } if ours == nonce => {
            (State::Elsewhere(None), leaving.map(|ticket| Effect::Answer(ticket, Ok(()))).into_iter().collect())
        }
        State::Freeing { nonce: ours, ticket } if ours == nonce => {
            (State::Elsewhere(None), vec![Effect::Answer(ticket, Ok(()))])
        }
        other => (other, vec![]),
    }
}

fn due(state: State, inputs: &Inputs) -> (State, Vec<Effect>) {
    let now = inputs.now;
    match state {
        State::Elsewhere(Some(seen)) if now >= seen.last.after(FORGET) => (State::Elsewhere(None), vec![]),
        State::Holding(held) if now >= held.lapses() || held.is_spent(now) => (State::Elsewhere(None), vec![]),
        State::Holding(held) if now >= held.sent.after(RESTAMP) => {
            let write = held.write(&inputs.nonce, Stamp::Hold);
            let nonce = inputs.nonce.clone();
            (State::Restamping { held, nonce, sent: now, leaving: None }, vec![Effect::Write(write)])
        }
        State::Restamping { held, leaving, .. } if now >= held.lapses() => {
            (State::Elsewhere(None), leaving.map(|ticket| Effect::Answer(ticket, Ok(()))).into_iter().collect())
        }
        other => (other, vec![]),
    }
}

/// The answer that a client waits a second after and comes again.
pub(super) fn elsewhere() -> Problem {
    Problem::new(ProblemCode::CasConflict, "somebody else holds this lock: try again in a second")
        .titled("The lock is held")
}

fn slow() -> Problem {
    let detail = "the bucket took longer to answer than a lock lasts: try again";
    Problem::new(ProblemCode::StoreUnavailable, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Inputs {
        let now = Mono::at(Duration::from_secs(seconds));
        Inputs { now, wall: Timestamp::from_millis(0), nonce: format!("n{seconds}") }
    }

    fn tag(text: &str) -> ETag {
        ETag::parse(text).unwrap()
    }

    fn taking(sent: u64) -> State {
        let (state, _) = step(State::Elsewhere(None), Event::Lock { owner: None, ticket: 1 }, &at(sent));
        step(state, Event::Read(Ok(None)), &at(sent)).0
    }

    #[test]
    fn a_lock_that_lapsed_before_its_answer_is_not_granted() {
        for (answer, granted) in [(9, true), (10, false), (60, false)] {
            let written = Event::Written { nonce: "n0".to_owned(), etag: tag("x") };
            let (state, effects) = step(taking(0), written, &at(answer));
            let [Effect::Answer(1, outcome)] = effects.as_slice() else { panic!("{effects:?}") };
            assert_eq!((outcome.is_ok(), state.holds(at(answer).now)), (granted, granted));
        }
    }

    #[test]
    fn who_gives_a_lock_up_while_it_is_being_taken_does_not_get_it() {
        let owner = || LockOwner::parse("ingress-1").unwrap();
        let lock = |state, ticket| step(state, Event::Lock { owner: owner(), ticket }, &at(0));
        let (looking, _) = lock(State::Elsewhere(None), 1);
        let (gone, effects) = step(looking.clone(), Event::Unlock { owner: owner(), ticket: 2 }, &at(0));
        assert!(gone.is_blank() && effects.len() == 2, "{effects:?}");
        let taking = step(looking, Event::Read(Ok(None)), &at(0)).0;
        let (stranger, effects) = step(taking.clone(), Event::Unlock { owner: None, ticket: 2 }, &at(0));
        assert!(stranger == taking && matches!(effects.as_slice(), [Effect::Answer(2, Ok(()))]), "{effects:?}");
        let (leaving, effects) = step(taking, Event::Unlock { owner: owner(), ticket: 2 }, &at(0));
        assert!(effects.is_empty());
        let written = || Event::Written { nonce: "n0".to_owned(), etag: tag("x") };
        let (freeing, effects) = step(leaving.clone(), written(), &at(1));
        assert!(!freeing.holds(at(1).now));
        assert!(matches!(effects.as_slice(), [Effect::Answer(1, Err(_)), Effect::Write(_)]), "{effects:?}");
        let lost = Event::Lost { nonce: "n0".to_owned(), why: Loss::Contended };
        let (gone, effects) = step(leaving, lost, &at(1));
        assert!(gone.is_blank() && effects.len() == 2, "{effects:?}");
    }

    #[test]
    fn a_sign_of_life_that_nobody_hears_gives_nothing_up() {
        let owner = || LockOwner::parse("ingress-1").unwrap();
        let (looking, _) = step(State::Elsewhere(None), Event::Lock { owner: owner(), ticket: 1 }, &at(0));
        let taking = step(looking, Event::Read(Ok(None)), &at(0)).0;
        let held = step(taking, Event::Written { nonce: "n0".to_owned(), etag: tag("x") }, &at(0)).0;
        let (_, effects) = step(held, Event::Lock { owner: owner(), ticket: 2 }, &at(2));
        assert!(matches!(effects.as_slice(), [Effect::Kept(2)]), "{effects:?}");
    }

    #[test]
    fn the_outcome_of_another_write_changes_nothing() {
        let written = Event::Written { nonce: "old".to_owned(), etag: tag("x") };
        assert_eq!(step(taking(0), written, &at(1)).0, taking(0));
        let lost = Event::Lost { nonce: "old".to_owned(), why: Loss::Contended };
        assert_eq!(step(taking(0), lost, &at(1)).0, taking(0));
    }

    #[test]
    fn a_hold_ends_when_its_rewrite_has_no_answer_in_time() {
        let written = Event::Written { nonce: "n0".to_owned(), etag: tag("x") };
        let held = step(taking(0), written, &at(1)).0;
        assert_eq!(held.due(), Some(at(5).now));
        let restamping = step(held, Event::Due, &at(5)).0;
        assert_eq!(restamping.due(), Some(at(10).now));
        assert!(restamping.holds(at(9).now) && !restamping.holds(at(10).now));
        let gone = step(restamping, Event::Due, &at(10)).0;
        assert!(gone.is_blank());
        // The answer that comes too late brings nothing back.
        let late = Event::Written { nonce: "n5".to_owned(), etag: tag("y") };
        assert!(step(gone, late, &at(11)).0.is_blank());
    }
}

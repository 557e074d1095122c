//! Whether what many clients saw of one key can have happened one after the other (Wing and Gong's search, with Lowe's memory of
//! what was tried).
//!
//! An operation takes effect at one moment between its beginning and its end. One whose outcome nobody knows takes effect at any
//! moment after its beginning, or never. The search orders the operations and steps a model through them, and fails when no
//! order gives every client what it was told.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;

/// How many states are looked at before the search gives up: far more than any history here needs.
const STATES_MAX: usize = 5_000_000;

/// What a key does, one operation after the other.
pub trait Model: Debug {
    /// What it holds; begins with the default.
    type State: Clone + Eq + Hash + Debug + Default;

    /// The state after this operation, or `None` if its client cannot have been told in `state` what it was told.
    fn step(&self, state: &Self::State) -> Option<Self::State>;
}

/// One operation of one client.
#[derive(Debug, Clone)]
pub struct Event<O> {
    /// What it was, and what its client was told.
    pub what: O,
    /// When, by one clock for all.
    pub began: Duration,
    /// None: nobody knows whether and when it took effect.
    pub ended: Option<Duration>,
}

/// Looks for an order.
///
/// # Errors
/// What cannot be explained, and how far the search came.
pub fn check<O: Model>(events: &[Event<O>]) -> Result<(), String> {
    check_with(events, &[])
}

/// Looks for an order in which each of `optional` takes effect between its beginning and its end, or never.
///
/// # Errors
/// As [`check`].
pub fn check_with<O: Model>(events: &[Event<O>], optional: &[Event<O>]) -> Result<(), String> {
    let needed = events.iter().map(|event| (event, event.ended.is_some()));
    let mut events: Vec<(&Event<O>, bool)> = needed.chain(optional.iter().map(|event| (event, false))).collect();
    // Those that ended first come first; the search then tries the likely orders first, and what need not be last.
    events.sort_by_key(|(event, needed)| (!needed, event.ended, event.began));
    let mut tried = HashSet::new();
    let mut best = 0;
    let mut open = vec![(Placed::none(events.len()), O::State::default())];
    while let Some((placed, state)) = open.pop() {
        let waiting = |(at, (_, needed)): &(usize, &(&Event<O>, bool))| *needed && !placed.has(*at);
        // Nothing may come before this that began after it.
        let Some((first, (next, _))) = events.iter().enumerate().find(waiting) else { return Ok(()) };
        best = best.max(first);
        let until = next.ended.unwrap_or(Duration::MAX);
        for (at, (event, needed)) in events.iter().enumerate().rev() {
            if placed.has(at) || event.began > until {
                continue;
            }
            // Nor may what need not be come behind what began after it.
            let late = |ended| events.iter().enumerate().any(|(at, (other, _))| placed.has(at) && other.began > ended);
            if !needed && event.ended.is_some_and(late) {
                continue;
            }
            let Some(state) = event.what.step(&state) else { continue };
            let with = placed.with(at);
            if tried.insert((with.clone(), state.clone())) {
                open.push((with, state));
            }
        }
        if tried.len() > STATES_MAX {
            return Err(format!("undecided after {STATES_MAX} states"));
        }
    }
    let (stuck, _) = events[best];
    let near = events.iter().map(|(event, _)| event).filter(|event| event.began <= stuck.ended.unwrap_or_default());
    let near: Vec<String> = near.rev().take(30).map(|event| format!("{event:?}")).collect();
    Err(format!("no order explains {stuck:?}; what came before it, last first:\n{}", near.join("\n")))
}

/// Which operations have their place already.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Placed(Box<[u64]>);

impl Placed {
    fn none(length: usize) -> Self {
        Self(vec![0; length.div_ceil(64)].into())
    }

    fn has(&self, at: usize) -> bool {
        self.0[at / 64] & (1 << (at % 64)) != 0
    }

    fn with(&self, at: usize) -> Self {
        let mut with = self.clone();
        with.0[at / 64] |= 1 << (at % 64);
        with
    }
}

/// A value that is replaced as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Register {
    /// Of this value.
    Write(u64),
    /// That saw this one.
    Read(Option<u64>),
}

impl Model for Register {
    type State = Option<u64>;

    fn step(&self, state: &Option<u64>) -> Option<Option<u64>> {
        match self {
            Self::Write(value) => Some(Some(*value)),
            Self::Read(seen) => (seen == state).then_some(*state),
        }
    }
}

/// Leaves out writes of unknown end whose value nobody saw: they explain nothing and make the search long.
pub fn seen_writes(events: &mut Vec<Event<Register>>) {
    let seen: HashSet<u64> = events
        .iter()
        .filter_map(|event| match event.what {
            Register::Read(seen) => seen,
            Register::Write(_) => None,
        })
        .collect();
    events.retain(|event| match event.what {
        Register::Write(value) => event.ended.is_some() || seen.contains(&value),
        Register::Read(_) => true,
    });
}

/// A name that one of several may hold, for ever.
#[derive(Debug, Clone, Copy)]
pub enum Claim {
    /// Who, and whether it was told that it holds it; None while nobody knows.
    By(usize, Option<bool>),
    /// Who was seen to hold it.
    Read(Option<usize>),
}

impl Model for Claim {
    type State = Option<usize>;

    fn step(&self, state: &Option<usize>) -> Option<Option<usize>> {
        match *self {
            Self::By(who, told) => {
                let holds = state.is_none_or(|holder| holder == who);
                let after = if holds { Some(who) } else { *state };
                told.is_none_or(|told| told == holds).then_some(after)
            }
            Self::Read(seen) => (seen == *state).then_some(*state),
        }
    }
}

/// The freeze: made once until it is lifted, told apart by its reason.
#[derive(Debug, Clone, Copy)]
pub enum Freeze {
    /// With this reason, and the reason that it was told to stand; None while nobody knows.
    Make(u64, Option<u64>),
    /// Whether it was told that it lifted one. Two that lift the same one are both told so.
    Lift(Option<bool>),
    /// The reason that was seen.
    Read(Option<u64>),
}

impl Model for Freeze {
    type State = Option<u64>;

    fn step(&self, state: &Option<u64>) -> Option<Option<u64>> {
        match *self {
            Self::Make(reason, told) => {
                let stands = state.unwrap_or(reason);
                told.is_none_or(|told| told == stands).then_some(Some(stands))
            }
            Self::Lift(told) => (told != Some(false) || state.is_none()).then_some(None),
            Self::Read(seen) => (seen == *state).then_some(*state),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event<O>(what: O, began: u64, ended: impl Into<Option<u64>>) -> Event<O> {
        Event { what, began: Duration::from_secs(began), ended: ended.into().map(Duration::from_secs) }
    }

    #[test]
    fn a_register_is_explained_where_it_can_be_and_nowhere_else() {
        use Register::{Read, Write};
        let fine = |events: &[Event<Register>]| check(events).is_ok();
        assert!(fine(&[event(Read(None), 0, 1), event(Write(1), 0, 2), event(Read(Some(1)), 3, 4)]));
        // At the same time, in either order.
        for last in [1, 2] {
            assert!(fine(&[event(Write(1), 0, 9), event(Write(2), 0, 9), event(Read(Some(last)), 10, 11)]));
        }
        // Unknown: never, or at any time later.
        assert!(fine(&[event(Write(1), 0, 1), event(Write(2), 2, None), event(Read(Some(1)), 50, 51)]));
        assert!(fine(&[
            event(Write(1), 0, 1),
            event(Write(2), 2, None),
            event(Read(Some(1)), 50, 51),
            event(Read(Some(2)), 60, 61)
        ]));
        // Lost; stale; from the future; undone by a write that took place a second time, known and unknown.
        assert!(!fine(&[event(Write(1), 0, 1), event(Read(None), 2, 3)]));
        assert!(!fine(&[event(Write(1), 0, 1), event(Write(2), 2, 3), event(Read(Some(1)), 4, 5)]));
        assert!(!fine(&[event(Read(Some(1)), 0, 1), event(Write(1), 2, 3)]));
        for ended in [Some(9), None] {
            let again = [Some(2), Some(3), Some(2)].into_iter().zip([1, 3, 5]);
            let mut events: Vec<_> = again.map(|(seen, at)| event(Read(seen), at, at + 1)).collect();
            events.extend([event(Write(2), 0, ended), event(Write(3), 2, 3)]);
            assert!(!fine(&events), "{ended:?}");
        }
    }

    #[test]
    fn what_need_not_be_is_between_its_beginning_and_its_end() {
        use Register::{Read, Write};
        let again = [Some(2), Some(3), Some(2)].into_iter().zip([1, 3, 5]);
        let mut events: Vec<_> = again.map(|(seen, at)| event(Read(seen), at, at + 1)).collect();
        events.extend([event(Write(2), 0, 9), event(Write(3), 2, 3)]);
        assert!(check(&events).is_err());
        assert!(check_with(&events, &[event(Write(2), 0, 9)]).is_ok(), "it took place twice");
        assert!(check_with(&events, &[event(Write(2), 0, 2)]).is_ok());
        assert!(check_with(&events[..4], &[event(Write(7), 0, 9)]).is_err(), "it is no excuse for another");
        let late = [event(Write(1), 0, 1), event(Write(2), 2, 3), event(Read(Some(1)), 6, 7)];
        assert!(check_with(&late, &[event(Write(1), 0, 9)]).is_ok());
        assert!(check_with(&late, &[event(Write(1), 0, 1)]).is_err(), "it cannot be later than its end");
    }

    #[test]
    fn a_claim_has_one_winner() {
        use Claim::{By, Read};
        let fine = |events: &[Event<Claim>]| check(events).is_ok();
        assert!(fine(&[event(By(1, Some(true)), 0, 9), event(By(2, Some(false)), 0, 9), event(Read(Some(1)), 10, 11)]));
        // The winner does not know, and the loser does.
        assert!(fine(&[event(By(1, None), 0, None), event(By(2, Some(false)), 3, 9), event(Read(Some(1)), 10, 11)]));
        assert!(!fine(&[event(By(1, Some(true)), 0, 9), event(By(2, Some(true)), 0, 9)]), "two winners");
        assert!(!fine(&[event(By(1, Some(false)), 0, 9), event(Read(Some(1)), 10, 11)]), "told that it lost");
        assert!(!fine(&[event(By(1, Some(false)), 0, 9)]), "refused by nobody");
        assert!(!fine(&[event(By(1, Some(true)), 0, 9), event(Read(Some(2)), 10, 11), event(By(2, None), 0, None)]));
    }

    #[test]
    fn a_freeze_stands_until_it_is_lifted() {
        use Freeze::{Lift, Make, Read};
        let fine = |events: &[Event<Freeze>]| check(events).is_ok();
        assert!(fine(&[event(Make(1, Some(1)), 0, 1), event(Make(2, Some(1)), 2, 3), event(Lift(Some(true)), 4, 5)]));
        assert!(fine(&[event(Make(1, Some(1)), 0, 1), event(Lift(None), 2, None), event(Make(2, Some(2)), 4, 5)]));
        assert!(!fine(&[event(Make(1, Some(1)), 0, 1), event(Make(2, Some(2)), 2, 3)]), "the first one was lost");
        let lost = [event(Make(1, Some(1)), 0, 1), event(Lift(Some(true)), 2, 6), event(Make(2, Some(2)), 3, 4)];
        assert!(!fine(&[&lost[..], &[event(Read(None), 8, 9)]].concat()), "one lift, two freezes gone");
        assert!(fine(&[&lost[..], &[event(Read(Some(2)), 8, 9)]].concat()));
    }
}

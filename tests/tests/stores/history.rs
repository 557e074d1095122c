//! Checks recorded histories of one key: whether everybody could have seen them in one order (they are linearizable).
//!
//! **Grow-only sets.** Every update adds a label of its own and is answered with the set as it was then or somewhat later. Such a history is
//! linearizable if and only if each answer has the label that was
//! added, of any two answers one contains the other, and no answer has a label whose update began only after it. An update
//! that ended before another began is then contained in its answer: otherwise the later answer would be the smaller one, and
//! the earlier one would have the later label. Updates that were not acknowledged may be in it or not.
//!
//! **Counters.** Every step adds one and is answered with the sum. The sums differ, follow the order of steps that did not
//! overlap, and the counter stands at least at the number of acknowledged steps and at most at that of all.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// One acknowledged update.
#[derive(Debug, Clone)]
pub(crate) struct Update {
    pub(crate) label: String,
    pub(crate) began: Duration,
    pub(crate) ended: Duration,
    /// The set that the answer told of.
    pub(crate) told: BTreeSet<String>,
}

/// Checks the acknowledged updates of one key against each other and against what stands at the end.
pub(crate) fn check(mut updates: Vec<Update>, stands: &BTreeSet<String>) -> Result<(), String> {
    updates.sort_by_key(|update| update.told.len());
    let began: HashMap<&String, Duration> = updates.iter().map(|update| (&update.label, update.began)).collect();
    for (index, update) in updates.iter().enumerate() {
        if !update.told.contains(&update.label) {
            return Err(format!("{} was acknowledged with a set without it", update.label));
        }
        if let Some(lost) = update.told.difference(stands).next() {
            return Err(format!("{lost} stood when {} was acknowledged, and is lost", update.label));
        }
        if let Some(next) = updates.get(index + 1)
            && !update.told.is_subset(&next.told)
        {
            return Err(format!("neither of {} and {} saw the other", update.label, next.label));
        }
        let future = |label: &&String| began.get(label).is_some_and(|began| *began > update.ended);
        if let Some(label) = update.told.iter().find(future) {
            return Err(format!("{} ended before {label} began, which it contains", update.label));
        }
    }
    Ok(())
}

/// One acknowledged step of a counter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub(crate) began: Duration,
    pub(crate) ended: Duration,
    pub(crate) sum: u64,
}

/// Checks the acknowledged steps of one counter, of `tried` in all, and where it `stands` at the end.
pub(crate) fn check_counter(mut steps: Vec<Step>, tried: u64, stands: u64) -> Result<(), String> {
    steps.sort_by_key(|step| step.sum);
    let mut latest_start = Duration::ZERO;
    for pair in steps.windows(2) {
        if pair[0].sum == pair[1].sum {
            return Err(format!("two steps were told {}", pair[0].sum));
        }
    }
    for step in &steps {
        if step.sum > stands {
            return Err(format!("a step was told {}, and the counter stands at {stands}", step.sum));
        }
        if step.ended < latest_start {
            return Err(format!("the step to {} ended before one to a lower sum began", step.sum));
        }
        latest_start = latest_start.max(step.began);
    }
    if stands < steps.len() as u64 || stands > tried {
        return Err(format!("{} of {tried} steps were acknowledged, and the counter stands at {stands}", steps.len()));
    }
    Ok(())
}

fn update(label: &str, began: u64, ended: u64, told: &[&str]) -> Update {
    Update {
        label: label.to_owned(),
        began: Duration::from_secs(began),
        ended: Duration::from_secs(ended),
        told: told.iter().map(|label| (*label).to_owned()).collect(),
    }
}

#[test]
fn the_checker_takes_what_can_be_and_nothing_else() {
    let stands: BTreeSet<String> = ["a", "b", "c"].map(str::to_owned).into();
    let fine = |updates: &[Update]| check(updates.to_vec(), &stands).is_ok();
    // At once, in either order or told later; one after the other; with one between that nobody acknowledged.
    assert!(fine(&[update("a", 0, 9, &["a", "b"]), update("b", 0, 9, &["b"])]));
    assert!(fine(&[update("a", 0, 9, &["a", "b"]), update("b", 0, 9, &["a", "b"])]));
    assert!(fine(&[update("a", 0, 1, &["a"]), update("b", 2, 3, &["a", "b"])]));
    assert!(fine(&[update("a", 0, 1, &["a"]), update("b", 2, 3, &["a", "b", "c"])]));
    // Lost; overwritten by one that did not see it; out of order; without itself.
    assert!(!fine(&[update("d", 0, 1, &["d"])]));
    assert!(!fine(&[update("a", 0, 9, &["a"]), update("b", 0, 9, &["b"])]));
    assert!(!fine(&[update("a", 0, 1, &["a", "b"]), update("b", 2, 3, &["b"])]));
    assert!(!fine(&[update("a", 0, 1, &["b"])]));
}

#[test]
fn a_counter_counts_each_step_once() {
    let step = |began, ended, sum| Step { began: Duration::from_secs(began), ended: Duration::from_secs(ended), sum };
    let fine = |steps: &[Step], tried, stands| check_counter(steps.to_vec(), tried, stands).is_ok();
    assert!(fine(&[step(0, 1, 1), step(2, 3, 2)], 2, 2));
    assert!(fine(&[step(0, 9, 2), step(0, 9, 1)], 2, 2));
    // One that was not acknowledged took place.
    assert!(fine(&[step(0, 1, 1), step(2, 3, 3)], 3, 3));
    // Lost; counted twice; told twice; out of order.
    assert!(!fine(&[step(0, 1, 1), step(2, 3, 2)], 2, 1));
    assert!(!fine(&[step(0, 1, 1)], 1, 2));
    assert!(!fine(&[step(0, 1, 1), step(2, 3, 1)], 2, 2));
    assert!(!fine(&[step(0, 1, 2), step(2, 3, 1)], 2, 2));
}

//! One seed decides everything that chance decides in a history. A failure names it: `SCAFO_TEST_SEED=N` runs that one alone,
//! `SCAFO_TEST_LONG=1` twenty times as many, `SCAFO_TEST_SEEDS=A..B` those from A to B.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Runs `history` for every seed, on every core, and ends the test with the first that fails.
pub(crate) fn for_each_seed(seeds: u64, history: impl Fn(u64) -> Result<(), String> + Sync) {
    let number = |text: &str| text.parse::<u64>().expect("a seed is a number");
    let long = std::env::var_os("SCAFO_TEST_LONG").is_some();
    let mut range = 0..if long { seeds * 20 } else { seeds };
    if let Ok(wanted) = std::env::var("SCAFO_TEST_SEEDS") {
        let (first, end) = wanted.split_once("..").expect("SCAFO_TEST_SEEDS is A..B");
        range = number(first)..number(end);
    }
    if let Ok(seed) = std::env::var("SCAFO_TEST_SEED") {
        range = number(&seed)..number(&seed) + 1;
    }
    if let Some((seed, why)) = first_failure(range, history) {
        panic!("history {seed} fails; SCAFO_TEST_SEED={seed} runs it again\n{why}");
    }
}

/// The first of these histories that fails, and how, with as many at once as there are cores.
pub(crate) fn first_failure(
    seeds: std::ops::Range<u64>,
    history: impl Fn(u64) -> Result<(), String> + Sync,
) -> Option<(u64, String)> {
    let (next, failed) = (AtomicU64::new(seeds.start), Mutex::new(None));
    let work = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= seeds.end || failed.lock().unwrap().is_some() {
            return;
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| history(seed)));
        let outcome = outcome.unwrap_or_else(|_| Err("it panicked".to_owned()));
        if let Err(why) = outcome {
            failed.lock().unwrap().get_or_insert((seed, why));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from).min(8) {
            scope.spawn(work);
        }
    });
    failed.into_inner().unwrap()
}

/// Rules that can be left out, to see whether the checks miss them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A claimed fence is written and looked for before anything is done under it.
    FenceIsProven,
    /// A holder looks at its clock before it sends a placement.
    GuardIsAsked,
    /// It does so before each try.
    GuardIsAskedAgain,
    /// A changed body under a lower fence is not in force.
    LateWritesAreHeldBack,
    /// The store compares tags.
    UpdatesAreConditional,
    /// The store creates only what is not there.
    CreatesAreConditional,
    /// A claimant looks for neighbours after its write.
    ClaimantsLookAgain,
    /// The scores of the nodes do not depend on each other.
    ScoresAreIndependent,
}

thread_local! {
    /// A history runs on one thread.
    static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
}

/// Whether the history on this thread leaves this rule out.
pub(crate) fn is_broken(rule: Rule) -> bool {
    BROKEN.get() == Some(rule)
}

/// Runs a history without the rule.
pub(crate) fn breaking<T>(rule: Rule, history: impl FnOnce() -> T) -> T {
    BROKEN.set(Some(rule));
    let outcome = history();
    BROKEN.set(None);
    outcome
}

/// Runs one history on one thread and a clock that only moves when nobody has anything to do, so that the seed decides the
/// order of everything.
pub(crate) fn run<T>(history: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(history)
}

/// Dice (SplitMix64): the same numbers for a seed whatever version a library has.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed ^ 0x5CAF_0000_0000_0000)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) const fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, usize::try_from(self.below(last as u64 + 1)).unwrap());
        }
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let index = self.below(from.len() as u64);
        &from[usize::try_from(index).unwrap()]
    }
}

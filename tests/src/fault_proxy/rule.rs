//! Rules: when something goes wrong with a request, and what. Pure: the same seed and the same requests of a key give the
//! same faults, in whatever order the requests of different keys come.

use std::collections::HashMap;
use std::time::Duration;

use serde::Deserialize;

use super::asked::{Asked, Conditional, Operation};
use super::listing::Cut;
use super::reply::Reply;

/// Keys whose requests are counted one by one: more than any test has. Those beyond are counted together.
const KEYS_MAX: usize = 100_000;

/// One thing that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Fault {
    /// The store never sees the request; the connection is closed.
    DropRequest,
    /// The store answers, and then the connection is closed instead.
    DropAnswer,
    /// The store answers, and the connection is closed in the middle of its body.
    TearAnswer,
    /// The connection is closed at once, and the request reaches the store later: after its sender has given up on it.
    LandLate {
        /// How much later, in milliseconds.
        after_ms: u64,
    },
    /// The store never sees the request; this is answered.
    Answer(Reply),
    /// The store carries the request out; this is answered instead of what it said.
    Mask(Reply),
    /// The request waits before it goes on.
    DelayRequest {
        /// How long, in milliseconds.
        by_ms: u64,
    },
    /// The answer waits before it goes on.
    DelayAnswer {
        /// How long, in milliseconds.
        by_ms: u64,
    },
    /// `Date` of the answer is this much later (negative: earlier).
    ShiftDate {
        /// How much, in seconds.
        by_s: i64,
    },
    /// A page of a listing lacks something. Other answers stay as they are.
    CutListing(Cut),
}

/// Which of the requests that fit a rule it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Nth {
    /// The first so many.
    First(u64),
    /// This one alone, counted from 1.
    Only(u64),
    /// Each so manieth; 1 means all.
    Each(u64),
    /// All behind the first so many.
    After(u64),
}

impl Nth {
    const fn takes(self, number: u64) -> bool {
        match self {
            Self::First(count) => number <= count,
            Self::Only(only) => number == only,
            Self::Each(step) => step != 0 && number.is_multiple_of(step),
            Self::After(count) => number > count,
        }
    }
}

/// A fault and the requests that it befalls: those that everything here fits.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    fault: Fault,
    /// Empty: any.
    #[serde(default)]
    on: Vec<Operation>,
    #[serde(default)]
    key_prefix: String,
    #[serde(default)]
    key_part: String,
    #[serde(default)]
    conditional: Option<Conditional>,
    /// Only pages of a listing behind its first one.
    #[serde(default)]
    later_pages: bool,
    #[serde(default = "each")]
    nth: Nth,
    /// Of a hundred.
    #[serde(default = "certain")]
    percent: u8,
}

const fn each() -> Nth {
    Nth::Each(1)
}

const fn certain() -> u8 {
    100
}

impl Rule {
    /// Befalls every request.
    pub const fn new(fault: Fault) -> Self {
        Self {
            fault,
            on: Vec::new(),
            key_prefix: String::new(),
            key_part: String::new(),
            conditional: None,
            later_pages: false,
            nth: each(),
            percent: certain(),
        }
    }

    /// Only these operations.
    #[must_use]
    pub fn on(mut self, operations: impl IntoIterator<Item = Operation>) -> Self {
        self.on = operations.into_iter().collect();
        self
    }

    /// Only keys (of a listing: prefixes) that start with this.
    #[must_use]
    pub fn under(mut self, key_prefix: impl Into<String>) -> Self {
        self.key_prefix = key_prefix.into();
        self
    }

    /// Only keys with this somewhere in them.
    #[must_use]
    pub fn about(mut self, key_part: impl Into<String>) -> Self {
        self.key_part = key_part.into();
        self
    }

    /// Only with this condition.
    #[must_use]
    pub const fn conditional(mut self, conditional: Conditional) -> Self {
        self.conditional = Some(conditional);
        self
    }

    /// Only pages of a listing behind its first one.
    #[must_use]
    pub const fn later_pages(mut self) -> Self {
        self.later_pages = true;
        self
    }

    /// Of those that fit so far, only these.
    #[must_use]
    pub const fn nth(mut self, nth: Nth) -> Self {
        self.nth = nth;
        self
    }

    /// Of those that fit so far, so many of a hundred, chosen by the seed.
    #[must_use]
    pub const fn percent(mut self, percent: u8) -> Self {
        self.percent = percent;
        self
    }

    fn fits(&self, asked: &Asked) -> bool {
        (self.on.is_empty() || self.on.contains(&asked.operation))
            && asked.key.starts_with(&self.key_prefix)
            && asked.key.contains(&self.key_part)
            && self.conditional.is_none_or(|conditional| asked.conditional == Some(conditional))
            && (!self.later_pages || asked.later_page)
    }
}

/// What is going to happen to one request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) before: Duration,
    pub(super) after: Duration,
    pub(super) shift_s: i64,
    pub(super) cut: Option<Cut>,
    pub(super) fate: Option<Fate>,
    /// Everything that was planned, for the log.
    pub(super) faults: Vec<Fault>,
}

/// What decides the end of a request; the first rule that says one is obeyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    DropRequest,
    DropAnswer,
    TearAnswer,
    LandLate(Duration),
    Answer(Reply),
    Mask(Reply),
}

impl Plan {
    fn add(&mut self, fault: Fault) {
        let fate = match fault {
            Fault::DropRequest => Fate::DropRequest,
            Fault::DropAnswer => Fate::DropAnswer,
            Fault::TearAnswer => Fate::TearAnswer,
            Fault::LandLate { after_ms } => Fate::LandLate(Duration::from_millis(after_ms)),
            Fault::Answer(reply) => Fate::Answer(reply),
            Fault::Mask(reply) => Fate::Mask(reply),
            Fault::DelayRequest { by_ms } => {
                return self.pass(fault, |plan| plan.before += Duration::from_millis(by_ms));
            }
            Fault::DelayAnswer { by_ms } => return self.pass(fault, |plan| plan.after += Duration::from_millis(by_ms)),
            Fault::ShiftDate { by_s } => return self.pass(fault, |plan| plan.shift_s += by_s),
            Fault::CutListing(cut) => return self.pass(fault, |plan| plan.cut = Some(cut)),
        };
        if self.fate.is_none() {
            self.fate = Some(fate);
            self.faults.push(fault);
        }
    }

    fn pass(&mut self, fault: Fault, change: impl FnOnce(&mut Self)) {
        change(self);
        self.faults.push(fault);
    }
}

/// Rules with what they have seen.
#[derive(Debug, Default)]
pub(super) struct Rules {
    seed: u64,
    made: u64,
    rules: Vec<Armed>,
}

#[derive(Debug)]
struct Armed {
    /// Counts rules over the life of the proxy, so that a rule that comes later throws other dice.
    id: u64,
    rule: Rule,
    fitted: u64,
    by_key: HashMap<(Operation, String), u64>,
}

impl Rules {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    pub(super) fn push(&mut self, rule: Rule) {
        self.rules.push(Armed { id: self.made, rule, fitted: 0, by_key: HashMap::new() });
        self.made += 1;
    }

    pub(super) fn clear(&mut self) {
        self.rules.clear();
    }

    /// What befalls the request that comes now.
    pub(super) fn plan(&mut self, asked: &Asked) -> Plan {
        let mut plan = Plan::default();
        for armed in &mut self.rules {
            if armed.strikes(self.seed, asked) {
                plan.add(armed.rule.fault);
            }
        }
        plan
    }
}

impl Armed {
    fn strikes(&mut self, seed: u64, asked: &Asked) -> bool {
        if !self.rule.fits(asked) {
            return false;
        }
        self.fitted += 1;
        if !self.rule.nth.takes(self.fitted) {
            return false;
        }
        if self.rule.percent >= 100 {
            return true;
        }
        let known = self.by_key.len() < KEYS_MAX;
        let key = if known { asked.key.clone() } else { String::new() };
        let number = self.by_key.entry((asked.operation, key)).or_default();
        *number += 1;
        roll(&[seed, self.id, asked.operation as u64, hash(&asked.key), *number]) % 100 < u64::from(self.rule.percent)
    }
}

/// FNV-1a, which is the same in every build.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

/// One number out of several, each bit of it depending on all of theirs (the finaliser of `SplitMix64`).
fn roll(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |state: u64, part| {
        let mut mixed = (state ^ part).wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str) -> Asked {
        Asked { operation: Operation::Put, key: key.to_owned(), ..Asked::default() }
    }

    fn fates(rules: &mut Rules, asked: &[Asked]) -> Vec<bool> {
        asked.iter().map(|asked| rules.plan(asked).fate.is_some()).collect()
    }

    #[test]
    fn a_rule_strikes_the_requests_that_it_names() {
        for (nth, struck) in [
            (Nth::First(2), [true, true, false, false]),
            (Nth::Only(2), [false, true, false, false]),
            (Nth::Each(2), [false, true, false, true]),
            (Nth::After(2), [false, false, true, true]),
        ] {
            let mut rules = Rules::new(1);
            rules.push(Rule::new(Fault::DropAnswer).on([Operation::Put]).under("a/").nth(nth));
            let other = Asked { operation: Operation::Get, ..put("a/x") };
            assert_eq!(fates(&mut rules, &[put("b"), other]), [false, false]);
            assert_eq!(fates(&mut rules, &[put("a/1"), put("a/2"), put("a/1"), put("a/3")]), struck, "{nth:?}");
        }
    }

    #[test]
    fn a_condition_is_part_of_a_rule() {
        let mut rules = Rules::new(1);
        rules.push(Rule::new(Fault::DropRequest).conditional(Conditional::Update));
        let update = Asked { conditional: Some(Conditional::Update), ..put("k") };
        let create = Asked { conditional: Some(Conditional::Create), ..put("k") };
        assert_eq!(fates(&mut rules, &[put("k"), create, update]), [false, false, true]);
    }

    #[test]
    fn the_order_of_other_keys_changes_nothing() {
        let struck = |order: &[&str]| {
            let mut rules = Rules::new(7);
            rules.push(Rule::new(Fault::DropAnswer).percent(50));
            let of = |key: &&str| ((*key).to_owned(), rules.plan(&put(key)).fate.is_some());
            let mut all: Vec<(String, bool)> = order.iter().map(of).collect();
            all.sort_by(|a, b| a.0.cmp(&b.0));
            all
        };
        assert_eq!(struck(&["a", "b", "a", "b", "c"]), struck(&["c", "b", "b", "a", "a"]));
    }

    #[test]
    fn chance_is_what_was_asked_for_and_follows_the_seed() {
        let struck = |seed| {
            let mut rules = Rules::new(seed);
            rules.push(Rule::new(Fault::DropAnswer).percent(30));
            (0..1_000).map(|_| rules.plan(&put("k")).fate.is_some()).collect::<Vec<bool>>()
        };
        let count = struck(1).into_iter().filter(|struck| *struck).count();
        assert!((250..350).contains(&count), "{count} of 1,000");
        assert_eq!(struck(1), struck(1));
        assert_ne!(struck(1), struck(2));
    }

    #[test]
    fn delays_add_up_and_the_first_fate_wins() {
        let mut rules = Rules::new(1);
        rules.push(Rule::new(Fault::DelayRequest { by_ms: 5 }));
        rules.push(Rule::new(Fault::Answer(Reply::SlowDown)));
        rules.push(Rule::new(Fault::DropAnswer));
        rules.push(Rule::new(Fault::DelayRequest { by_ms: 7 }));
        let plan = rules.plan(&put("k"));
        assert_eq!(plan.before, Duration::from_millis(12));
        assert_eq!(plan.fate, Some(Fate::Answer(Reply::SlowDown)));
        assert_eq!(plan.faults.len(), 3);
        rules.clear();
        assert_eq!(rules.plan(&put("k")), Plan::default());
    }

    #[test]
    fn a_script_is_json() {
        let text = r#"{"fault": {"landLate": {"afterMs": 20}}, "on": ["put"], "keyPrefix": "_scafo/",
            "conditional": "create", "nth": {"first": 3}, "percent": 40}"#;
        let rule: Rule = serde_json::from_str(text).unwrap();
        let want = Rule::new(Fault::LandLate { after_ms: 20 })
            .on([Operation::Put])
            .under("_scafo/")
            .conditional(Conditional::Create)
            .nth(Nth::First(3))
            .percent(40);
        assert_eq!(rule, want);
        let rule: Rule = serde_json::from_str(r#"{"fault": {"answer": "slowDown"}}"#).unwrap();
        assert_eq!(rule, Rule::new(Fault::Answer(Reply::SlowDown)));
        assert!(serde_json::from_str::<Rule>(r#"{"fault": "dropAnswer", "keyprefix": "x"}"#).is_err());
    }
}

//! What is known of one issuer's keys, and when it may be asked again. A state machine without I/O.
//!
//! What is kept true, whatever tokens arrive: at most one request is under way to an issuer; keys are not used for longer
//! than [`KEYS_LIVE`]; after a failure the issuer is left alone for [`BACK_OFF`]; and tokens that name keys which do not exist
//! cause at most one further request in each [`REFETCH_PAUSE`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::jwks::KeySet;

/// How long fetched keys are used, counted from when they were asked for.
pub(super) const KEYS_LIVE: Duration = Duration::from_secs(300);
/// How long an issuer is left alone after it failed.
pub(super) const BACK_OFF: Duration = Duration::from_secs(30);
/// Between two looks for a key that the known set does not have. Equal to the back-off: a missing key is a failure too.
pub(super) const REFETCH_PAUSE: Duration = BACK_OFF;

/// What an issuer was found to have.
#[derive(Debug, Clone)]
pub(super) struct Found {
    /// Where its keys are.
    pub(super) jwks_uri: Arc<str>,
    /// The keys.
    pub(super) keys: Arc<KeySet>,
}

/// One thing to ask an issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Question {
    /// Its metadata, and then its keys.
    Everything,
    /// The keys at the address that its metadata named.
    Keys(Arc<str>),
}

/// What to do for a token.
#[derive(Debug)]
pub(super) enum Step {
    /// Verify it with these.
    Use(Arc<KeySet>),
    /// Ask the issuer, then come again.
    Ask(Question),
    /// Somebody has asked already: wait, then come again.
    Wait,
    /// There are no keys for it.
    Refuse(Refusal),
}

/// Why there are no keys for a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// The issuer failed a moment ago.
    #[error("the issuer failed and is left alone for a moment")]
    BackedOff,
    /// The issuer has no such key, and was asked a moment ago.
    #[error("a kid that the issuer does not publish")]
    UnknownKey,
    /// It was asked and the answer came too late.
    #[error("the issuer is too slow")]
    TooSlow,
    /// Every place is taken by an issuer that is being asked.
    #[error("too many issuers are being asked")]
    TooMany,
}

/// Everything about one issuer.
#[derive(Debug, Default)]
pub(super) struct State {
    kept: Option<(Instant, Found)>,
    /// Not asked before, after it failed.
    retry_at: Option<Instant>,
    /// Not asked for an unknown key before.
    refetch_at: Option<Instant>,
    asking: bool,
}

impl State {
    /// Whether it is being asked.
    pub(super) const fn is_asking(&self) -> bool {
        self.asking
    }

    /// Decides for a token that names `kid`. After [`Step::Ask`] the caller owes a [`State::answered`].
    pub(super) fn step(&mut self, kid: Option<&str>, now: Instant) -> Step {
        let fresh = self.kept.as_ref().filter(|(sent, _)| now.saturating_duration_since(*sent) < KEYS_LIVE);
        if let Some((_, found)) = fresh {
            if kid.is_none_or(|kid| found.keys.has(kid)) {
                return Step::Use(found.keys.clone());
            }
            return self.look_for_a_new_key(found.jwks_uri.clone(), now);
        }
        if self.asking {
            return Step::Wait;
        }
        if self.retry_at.is_some_and(|at| now < at) {
            return Step::Refuse(Refusal::BackedOff);
        }
        self.asking = true;
        Step::Ask(Question::Everything)
    }

    fn look_for_a_new_key(&mut self, jwks_uri: Arc<str>, now: Instant) -> Step {
        if self.asking {
            return Step::Wait;
        }
        if self.refetch_at.is_some_and(|at| now < at) {
            return Step::Refuse(Refusal::UnknownKey);
        }
        self.refetch_at = Some(now + REFETCH_PAUSE);
        self.asking = true;
        Step::Ask(Question::Keys(jwks_uri))
    }

    /// Takes the answer to what was asked at `sent`; `None` for a failure, which leaves keys that are still good in place.
    pub(super) fn answered(&mut self, found: Option<Found>, sent: Instant, now: Instant) {
        self.asking = false;
        match found {
            Some(found) => {
                self.kept = Some((sent, found));
                self.retry_at = None;
            }
            None => self.retry_at = Some(now + BACK_OFF),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(kid: &str) -> Found {
        let set = serde_json::json!({ "keys": [{ "kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": kid }] });
        let keys = KeySet::parse(set.to_string().as_bytes()).unwrap();
        Found { jwks_uri: "https://issuer.example/keys".into(), keys: Arc::new(keys) }
    }

    /// A machine and its clock, told in short words.
    struct Machine {
        state: State,
        start: Instant,
    }

    impl Machine {
        fn new() -> Self {
            Self { state: State::default(), start: Instant::now() }
        }

        fn at(&self, seconds: u64) -> Instant {
            self.start + Duration::from_secs(seconds)
        }

        fn step(&mut self, seconds: u64, kid: &str) -> String {
            let now = self.at(seconds);
            match self.state.step(Some(kid), now) {
                Step::Use(_) => "use".to_owned(),
                Step::Ask(Question::Everything) => "ask everything".to_owned(),
                Step::Ask(Question::Keys(_)) => "ask keys".to_owned(),
                Step::Wait => "wait".to_owned(),
                Step::Refuse(refusal) => format!("{refusal:?}"),
            }
        }

        fn answered(&mut self, seconds: u64, kid: Option<&str>) {
            let at = self.at(seconds);
            self.state.answered(kid.map(found), at, at);
        }
    }

    #[test]
    fn keys_live_for_300_seconds() {
        let mut machine = Machine::new();
        assert_eq!(machine.step(0, "a"), "ask everything");
        assert_eq!(machine.step(0, "a"), "wait");
        machine.answered(0, Some("a"));
        assert_eq!(machine.step(299, "a"), "use");
        assert_eq!(machine.step(300, "a"), "ask everything");
    }

    #[test]
    fn a_failed_issuer_is_left_alone_for_30_seconds() {
        let mut machine = Machine::new();
        assert_eq!(machine.step(0, "a"), "ask everything");
        machine.answered(5, None);
        assert_eq!(machine.step(5, "a"), "BackedOff");
        assert_eq!(machine.step(34, "b"), "BackedOff");
        assert_eq!(machine.step(35, "a"), "ask everything");
    }

    #[test]
    fn a_rotated_key_is_found_at_once_and_junk_asks_once_in_30_seconds() {
        let mut machine = Machine::new();
        assert_eq!(machine.step(0, "a"), "ask everything");
        machine.answered(0, Some("a"));
        assert_eq!(machine.step(1, "b"), "ask keys");
        assert_eq!(machine.step(1, "c"), "wait");
        assert_eq!(machine.step(1, "a"), "use", "who has a key is not held up");
        machine.answered(1, Some("b"));
        assert_eq!(machine.step(1, "b"), "use");
        for second in 1..31 {
            assert_eq!(machine.step(second, "junk"), "UnknownKey");
        }
        assert_eq!(machine.step(31, "junk"), "ask keys");
    }

    #[test]
    fn a_refetch_that_fails_takes_no_good_key_away() {
        let mut machine = Machine::new();
        assert_eq!(machine.step(0, "a"), "ask everything");
        machine.answered(0, Some("a"));
        assert_eq!(machine.step(280, "junk"), "ask keys");
        machine.answered(285, None);
        assert_eq!(machine.step(299, "a"), "use");
        assert_eq!(machine.step(300, "a"), "BackedOff", "it failed at 285");
        assert_eq!(machine.step(315, "a"), "ask everything");
    }

    #[test]
    fn ten_thousand_junk_tokens_an_hour_cause_a_bounded_number_of_requests() {
        let mut machine = Machine::new();
        let mut asked = 0;
        for index in 0..10_000_u64 {
            let second = index * 3600 / 10_000;
            if machine.step(second, &format!("junk{index}")).starts_with("ask") {
                asked += 1;
                machine.answered(second, (index % 3 != 0).then_some("a"));
            }
        }
        assert!(asked <= 3600 / 30 + 3600 / 30 + 2, "{asked}");
    }
}

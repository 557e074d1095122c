//! Which failures have a reason.

use std::time::{Duration, Instant};

use scafo_tests::load::Outcome;

use crate::load::Answer;

/// A moment on this machine, as another process sees it: signals and sockets take their time when it is busy.
const BLUR: Duration = Duration::from_millis(300);

/// Why requests may fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The only process of this application was killed or stopped, until it answered again.
    Application(usize),
    /// The ingress, or the supervisor with which it dies, was killed: until it was gone, what it held is cut.
    Held,
    /// A supervisor in the foreground was down, and the sockets with it.
    Down,
}

/// A reason with its time.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    pub(crate) reason: Reason,
    pub(crate) from: Instant,
    pub(crate) to: Instant,
}

impl Window {
    fn explains(&self, answer: &Answer) -> bool {
        let overlaps = answer.sent <= self.to + BLUR && answer.ended + BLUR >= self.from;
        match self.reason {
            Reason::Application(number) => overlaps && answer.application == number,
            // In flight when it ended: on a busy machine a killed process goes on for a while before it is gone.
            Reason::Held => overlaps && matches!(answer.outcome, Outcome::Cut(_)),
            Reason::Down => overlaps && matches!(answer.outcome, Outcome::Refused | Outcome::Cut(_)),
        }
    }
}

/// What explains a failure; `None` when nothing does.
pub(crate) fn reason<'a>(answer: &Answer, windows: &'a [Window]) -> Option<&'a Reason> {
    windows.iter().find(|window| window.explains(answer)).map(|window| &window.reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_explains_what_it_is_about_and_nothing_else() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let answer =
            |application, sent, ended, outcome| Answer { application, sent: at(sent), ended: at(ended), outcome };
        let cut = || Outcome::Cut("closed".to_owned());
        let window = |reason, from, to| vec![Window { reason, from: at(from), to: at(to) }];
        let explained = |answer: &Answer, windows: &[Window]| reason(answer, windows).is_some();
        let own = window(Reason::Application(3), 10, 20);
        assert!(explained(&answer(3, 9, 11, cut()), &own) && explained(&answer(3, 15, 16, Outcome::Refused), &own));
        assert!(!explained(&answer(4, 15, 16, cut()), &own) && !explained(&answer(3, 22, 23, cut()), &own));
        let held = window(Reason::Held, 10, 10);
        assert!(explained(&answer(1, 9, 10, cut()), &held));
        assert!(!explained(&answer(1, 9, 10, Outcome::Refused), &held), "the supervisor holds the socket");
        assert!(!explained(&answer(1, 11, 12, cut()), &held));
        let down = window(Reason::Down, 10, 20);
        assert!(explained(&answer(1, 12, 12, Outcome::Refused), &down));
        let wrong = Outcome::Answered { status: 502, body: String::new() };
        assert!(!explained(&answer(1, 12, 12, wrong), &down));
    }
}

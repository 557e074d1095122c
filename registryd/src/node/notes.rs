//! What a look at the bucket tells the operator: one line in the log when something changes, not one for each pass.

use scafo_core::token::CLOCK_SKEW_S;
use scafo_core::{Problem, Timestamp};

use super::disk::NotKept;

/// What was said last.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    failing: bool,
    apart: bool,
    unkept: bool,
}

impl Notes {
    /// Something was to be kept on this machine's disk.
    pub(crate) fn kept(&mut self, outcome: &Result<(), NotKept>) {
        match (outcome, self.unkept) {
            (Err(error), false) => tracing::error!("{error}"),
            (Ok(()), true) => tracing::info!("the state of this node is kept again"),
            _ => {}
        }
        self.unkept = outcome.is_err();
    }

    /// A look ended, between these two moments of this machine's clock. `date` is the store's, if the look listed anything.
    pub(crate) fn looked(&mut self, error: Option<&Problem>, date: Option<Timestamp>, between: (Timestamp, Timestamp)) {
        match (error, self.failing) {
            (Some(problem), false) => tracing::warn!(?problem, "a look at the bucket failed; the last snapshot stays"),
            (None, true) => tracing::info!("the bucket answers again"),
            _ => {}
        }
        self.failing = error.is_some();
        let Some(date) = date else { return };
        let ahead_s = ahead_s(date, between);
        match (ahead_s, self.apart) {
            (Some(ahead_s), false) => tracing::warn!(
                ahead_s,
                "the clock of this machine is not that of the bucket: tokens and certificates are judged wrongly, and beyond \
                 a quarter of an hour most stores refuse this node; set the clock (NTP)"
            ),
            (None, true) => tracing::info!("the clock of this machine is right again"),
            _ => {}
        }
        self.apart = ahead_s.is_some();
    }
}

/// By how many seconds this machine is ahead of the store (negative: behind), when that is more than the tolerance of tokens.
/// The store's clock was read at some moment in between.
fn ahead_s(date: Timestamp, (began, ended): (Timestamp, Timestamp)) -> Option<i64> {
    let ahead = began.as_seconds().saturating_sub(date.as_seconds());
    let behind = date.as_seconds().saturating_sub(ended.as_seconds());
    if ahead > CLOCK_SKEW_S { Some(ahead) } else { (behind > CLOCK_SKEW_S).then(|| behind.saturating_neg()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_apart_beyond_what_tokens_tolerate_and_a_slow_look_is_no_sign_of_it() {
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1000);
        for (date, began, ended, expected) in [
            (100, 100, 101, None),
            (100, 130, 131, None),
            (100, 131, 132, Some(31)),
            (100, 69, 70, None),
            (100, 60, 69, Some(-31)),
            (100, 40, 100, None),
            (100, 90, 200, None),
            (0, 3_600, 3_601, Some(3_600)),
        ] {
            assert_eq!(ahead_s(at(date), (at(began), at(ended))), expected, "{date} {began} {ended}");
        }
    }
}

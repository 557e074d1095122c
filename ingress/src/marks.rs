//! Passive health: which upstreams have just failed.
//!
//! A mark only changes the order in which upstreams are tried. None is ever left out, because a wrong mark on the last
//! one would turn a hiccup into an outage.
//!
//! A mark that is over is half open: one request finds out, and until it is answered the others go where they went. So a machine that
//! is gone without a word costs one request the connect deadline at a time, and not all that come within it.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use scafo_proxy::Upstream;
use tokio::time::Instant;

/// How long a failed upstream is tried last. 2 s: at a request per millisecond two thousand requests are spared the
/// connect deadline, and a process that was only restarted is first again before anybody notices.
const MARKED_FOR: Duration = Duration::from_secs(2);

/// How long the request that finds out has, before the next one does. 4 s: longer than the connect deadline of 3 s.
const PROBED_FOR: Duration = Duration::from_secs(4);

/// How long after its end a mark is forgotten that nobody needed to find out about. A minute: an upstream that no document names any
/// more is not remembered for ever.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The upstreams that failed lately, and until when they are tried last. Not many more than the documents name, since forgotten marks
/// are dropped whenever one is set.
#[derive(Default)]
pub(crate) struct Marks(Mutex<HashMap<Upstream, Instant>>);

impl Marks {
    /// The upstreams in the order to try them: priority order, those marked at `now` behind the others. If the first one without a
    /// mark in force has one that is over, whoever asks finds out, and it is marked for the others meanwhile.
    pub(crate) fn order<'a>(&self, upstreams: &'a [Upstream], now: Instant) -> Vec<&'a Upstream> {
        if upstreams.len() < 2 {
            return upstreams.iter().collect();
        }
        let mut marks = self.marks();
        let first = upstreams.iter().find(|upstream| marks.get(upstream).is_none_or(|until| *until <= now));
        let probed = first.filter(|upstream| is_remembered(marks.get(upstream), now));
        let (marked, others): (Vec<_>, Vec<_>) = upstreams
            .iter()
            .filter(|upstream| Some(*upstream) != probed)
            .partition(|upstream| is_remembered(marks.get(upstream), now));
        if let Some(until) = probed.and_then(|upstream| marks.get_mut(upstream)) {
            *until = now + PROBED_FOR;
        }
        probed.into_iter().chain(others).chain(marked).collect()
    }

    /// It has failed. Answers whether that is news, so that an outage does not fill the log.
    pub(crate) fn set(&self, upstream: &Upstream, now: Instant) -> bool {
        let mut marks = self.marks();
        marks.retain(|_, until| is_remembered(Some(until), now));
        marks.insert(upstream.clone(), now + MARKED_FOR).is_none_or(|until| until <= now)
    }

    /// It has answered.
    pub(crate) fn clear(&self, upstream: &Upstream) {
        self.marks().remove(upstream);
    }

    fn marks(&self) -> MutexGuard<'_, HashMap<Upstream, Instant>> {
        // No section can leave the map half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a mark counts, in force or half open.
fn is_remembered(until: Option<&Instant>, now: Instant) -> bool {
    until.is_some_and(|until| *until + FORGOTTEN_AFTER > now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_upstream_is_tried_last_until_its_mark_is_over_or_it_answers() {
        let upstreams: Vec<Upstream> =
            ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"].map(|text| text.parse().unwrap()).into();
        let [a, b, c] = &upstreams[..] else { panic!("three") };
        let (marks, now) = (Marks::default(), Instant::now());
        assert_eq!(marks.order(&upstreams, now), [a, b, c]);
        assert!(marks.set(a, now) && !marks.set(a, now));
        assert_eq!(marks.order(&upstreams, now), [b, c, a]);
        marks.set(b, now + MARKED_FOR / 2);
        assert_eq!(marks.order(&upstreams, now + MARKED_FOR / 2), [c, a, b]);
        assert_eq!(marks.order(&upstreams, now + MARKED_FOR), [a, c, b]);
        marks.clear(b);
        marks.clear(a);
        assert_eq!(marks.order(&upstreams, now + MARKED_FOR), [a, b, c]);
    }

    #[test]
    fn when_a_mark_is_over_one_request_at_a_time_finds_out_whether_the_upstream_answers() {
        let upstreams: Vec<Upstream> =
            ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"].map(|text| text.parse().unwrap()).into();
        let [a, b, c] = &upstreams[..] else { panic!("three") };
        let (marks, now) = (Marks::default(), Instant::now());
        marks.set(a, now);
        let over = now + MARKED_FOR;
        assert_eq!(marks.order(&upstreams, over), [a, b, c]);
        // The others do not wait with it for the connect deadline, and neither does the next one after its client has gone.
        let deadline = over + scafo_proxy::Limits::default().connect;
        assert_eq!(marks.order(&upstreams, over), [b, c, a]);
        assert_eq!(marks.order(&upstreams, deadline), [b, c, a]);
        assert_eq!(marks.order(&upstreams, over + PROBED_FOR), [a, b, c]);
        assert_eq!(marks.order(&upstreams, over + PROBED_FOR), [b, c, a]);
        // It fails: that is no news, and marks it as before.
        let failed = over + PROBED_FOR + Duration::from_secs(3);
        assert!(!marks.set(a, failed));
        assert_eq!(marks.order(&upstreams, failed), [b, c, a]);
        assert_eq!(marks.order(&upstreams, failed + MARKED_FOR), [a, b, c]);
        marks.clear(a);
        assert_eq!(marks.order(&upstreams, failed + MARKED_FOR), [a, b, c]);
    }

    #[test]
    fn nobody_finds_out_about_an_upstream_behind_one_that_answers_and_its_mark_is_forgotten() {
        let upstreams: Vec<Upstream> =
            ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"].map(|text| text.parse().unwrap()).into();
        let [a, b, c] = &upstreams[..] else { panic!("three") };
        let (marks, now) = (Marks::default(), Instant::now());
        marks.set(b, now);
        for _ in 0..2 {
            assert_eq!(marks.order(&upstreams, now + MARKED_FOR), [a, c, b]);
        }
        let forgotten = now + MARKED_FOR + FORGOTTEN_AFTER;
        for _ in 0..2 {
            assert_eq!(marks.order(&upstreams, forgotten), [a, b, c]);
        }
        assert!(marks.set(b, forgotten));
    }
}

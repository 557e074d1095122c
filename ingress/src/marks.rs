//! Passive health: which upstreams have just failed.
//!
//! A mark only changes the order in which upstreams are tried. None is ever left out, because a wrong mark on the last
//! one would turn a hiccup into an outage.

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

/// The upstreams that failed lately. Not more than the documents name, since marks that are over are dropped whenever
/// one is set.
#[derive(Default)]
pub(crate) struct Marks(Mutex<HashMap<Upstream, Instant>>);

impl Marks {
    /// The upstreams in the order to try them: priority order, those marked at `now` behind the others.
    pub(crate) fn order<'a>(&self, upstreams: &'a [Upstream], now: Instant) -> Vec<&'a Upstream> {
        if upstreams.len() < 2 {
            return upstreams.iter().collect();
        }
        let marks = self.marks();
        let (marked, mut order): (Vec<_>, Vec<_>) =
            upstreams.iter().partition(|upstream| marks.get(upstream).is_some_and(|until| *until > now));
        order.extend(marked);
        order
    }

    /// It has failed. Answers whether that is news, so that an outage does not fill the log.
    pub(crate) fn set(&self, upstream: &Upstream, now: Instant) -> bool {
        let mut marks = self.marks();
        marks.retain(|_, until| *until > now);
        marks.insert(upstream.clone(), now + MARKED_FOR).is_none()
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
        assert_eq!(marks.order(&upstreams, now + MARKED_FOR), [a, b, c]);
    }
}

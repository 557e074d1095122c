//! How long to wait before the next try: exponential with full jitter, so that competitors for one key spread out.

use std::time::Duration;

/// First upper bound: about one round trip to a store in another region.
const FIRST: Duration = Duration::from_millis(50);
/// Last upper bound: stores that limit a key to one write per second are content with it, and a caller does not wait
/// noticeably longer than it must once the store is back.
const CAP: Duration = Duration::from_secs(2);

/// The waits of one logical call.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Backoff {
    tries: u32,
}

impl Backoff {
    /// The next wait: uniform between nothing and a bound that doubles with each try. `random` is uniform.
    pub(crate) fn next(&mut self, random: u32) -> Duration {
        let bound = FIRST.saturating_mul(1 << self.tries.min(16)).min(CAP);
        self.tries = self.tries.saturating_add(1);
        bound.mul_f64(f64::from(random) / f64::from(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_lies_anywhere_below_a_bound_that_doubles_to_a_cap() {
        let mut longest = Backoff::default();
        let waits: Vec<u128> = (0..8).map(|_| longest.next(u32::MAX).as_millis()).collect();
        assert_eq!(waits, [50, 100, 200, 400, 800, 1600, 2000, 2000]);
        assert_eq!(longest.next(0), Duration::ZERO);
        let half = Backoff::default().next(u32::MAX / 2);
        assert!((24..=25).contains(&half.as_millis()), "{half:?}");
    }
}

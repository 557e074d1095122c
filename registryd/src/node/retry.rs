//! When a look is made again that was not finished.

use std::time::Duration;

use crate::registry::Mono;

/// The least pause: soon, but no faster than a store that limits a key to one write a second.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// The pauses. They double from one unfinished look to the next, up to the time between two looks anyway: what is in trouble, the
/// store or one object in it, is not asked by every node once a second.
#[derive(Debug, Default)]
pub(super) struct Retry {
    at: Option<Mono>,
    unfinished: u32,
}

impl Retry {
    /// A look has ended. `most` is the time between two; `random` is uniform.
    pub(super) fn looked(&mut self, finished: bool, now: Mono, most: Duration, random: u32) {
        if finished {
            *self = Self::default();
            return;
        }
        let least = RETRY.min(most);
        let bound = RETRY.saturating_mul(1 << self.unfinished.min(16)).min(most);
        let spread = bound.saturating_sub(least).mul_f64(f64::from(random) / f64::from(u32::MAX));
        self.at = Some(now.after(least + spread));
        self.unfinished = self.unfinished.saturating_add(1);
    }

    /// Not before then; none after a look that was finished.
    pub(super) const fn at(&self) -> Option<Mono> {
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_lie_between_a_second_and_a_bound_that_doubles_up_to_the_interval() {
        let most = Duration::from_secs(5);
        for (random, expected) in [(0, [1, 1, 1, 1, 1]), (u32::MAX, [1, 2, 4, 5, 5])] {
            let mut retry = Retry::default();
            let pauses = [(); 5].map(|()| {
                retry.looked(false, Mono::at(Duration::ZERO), most, random);
                retry.at().unwrap().since(Mono::at(Duration::ZERO)).as_secs()
            });
            assert_eq!(pauses, expected);
            retry.looked(true, Mono::at(Duration::ZERO), most, random);
            assert_eq!(retry.at(), None);
        }
        let mut short = Retry::default();
        short.looked(false, Mono::at(Duration::ZERO), Duration::from_millis(200), u32::MAX);
        assert_eq!(short.at(), Some(Mono::at(Duration::from_millis(200))));
    }
}

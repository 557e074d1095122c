//! Time, handed in. `wall` goes into records and to people; `mono` decides.

use std::{
    fmt::Debug,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use scafo_core::Timestamp;
use scafo_proto::boot::Boot;
use tokio::time::Instant;

/// A point on a clock that only goes forward, counted from somewhere that is fixed for the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mono(Duration);

impl Mono {
    /// A point `since_start` behind the start of the clock.
    #[must_use]
    pub const fn at(since_start: Duration) -> Self {
        Self(since_start)
    }

    /// Time from `earlier` to here; zero if that is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The point `later` than this.
    #[must_use]
    pub fn after(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }
}

/// Both clocks, and a way to wait.
#[async_trait]
pub trait Clock: Send + Sync + Debug {
    /// What people call the time. It may jump.
    fn wall(&self) -> Timestamp;

    /// What leases and deadlines are judged by. It counts the time during which the machine was suspended.
    fn mono(&self) -> Mono;

    /// A uniform random number, for jitter. It is handed in with the time, because the two together decide the order of
    /// events: a simulation that is given both can be run again.
    fn random(&self) -> u32 {
        rand::random()
    }

    /// Waits until `mono` is there. May be dropped at any time.
    async fn sleep_until(&self, at: Mono);

    /// Waits for `duration`. May be dropped at any time.
    async fn sleep(&self, duration: Duration) {
        self.sleep_until(self.mono().after(duration)).await;
    }
}

/// The machine's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

/// Longest nap between two looks at the clock: the runtime's timers stand still while the machine is suspended, so a
/// sleeper notices that it overslept at most this long after the machine woke.
const NAP: Duration = Duration::from_secs(2);

#[async_trait]
impl Clock for SystemClock {
    fn wall(&self) -> Timestamp {
        Timestamp::from_system(SystemTime::now())
    }

    fn mono(&self) -> Mono {
        Mono(Boot::uptime())
    }

    async fn sleep_until(&self, at: Mono) {
        loop {
            let left = at.since(self.mono());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(NAP)).await;
        }
    }
}

/// The runtime's clock: with tokio's time paused, both clocks move only as the test lets them.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    start: Instant,
    wall: Timestamp,
}

impl TokioClock {
    /// A clock that shows `wall` now.
    #[must_use]
    pub fn starting_at(wall: Timestamp) -> Self {
        Self { start: Instant::now(), wall }
    }
}

#[async_trait]
impl Clock for TokioClock {
    fn wall(&self) -> Timestamp {
        self.wall.after(self.start.elapsed())
    }

    fn mono(&self) -> Mono {
        Mono(self.start.elapsed())
    }

    async fn sleep_until(&self, at: Mono) {
        tokio::time::sleep_until(self.start + at.0).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_clock_only_goes_forward() {
        let earlier = SystemClock.mono();
        let later = SystemClock.mono();
        assert!(later >= earlier);
        assert_eq!(earlier.since(later.after(Duration::from_secs(1))), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn paused_time_moves_both_clocks_together() {
        let clock = TokioClock::starting_at(Timestamp::from_millis(1_000));
        let before = clock.mono();
        clock.sleep(Duration::from_secs(3)).await;
        assert_eq!(clock.mono().since(before), Duration::from_secs(3));
        assert_eq!(clock.wall(), Timestamp::from_millis(4_000));
    }
}

//! The two clocks, handed in so that tests can turn them.

use std::time::{Instant, SystemTime};

use scafo_core::time::Timestamp;

/// What time it is.
pub trait Clock: Send + Sync {
    /// For comparison with what others wrote: the times in a token.
    fn wall(&self) -> Timestamp;
    /// For our own durations.
    fn mono(&self) -> Instant;
}

/// The machine's clocks.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn wall(&self) -> Timestamp {
        Timestamp::from_system(SystemTime::now())
    }

    fn mono(&self) -> Instant {
        Instant::now()
    }
}

//! Medians and what lies at the end.

use std::time::Duration;

/// Several measurements of one thing.
#[derive(Default)]
pub(crate) struct Sample(Vec<Duration>);

impl Sample {
    /// Adds one.
    pub(crate) fn push(&mut self, measured: Duration) {
        self.0.push(measured);
        self.0.sort();
    }

    /// The one in the middle.
    pub(crate) fn median(&self) -> Duration {
        self.at(50)
    }

    /// The one that `percent` of all do not pass.
    pub(crate) fn at(&self, percent: usize) -> Duration {
        let last = self.0.len().saturating_sub(1);
        self.0.get(last * percent / 100).copied().unwrap_or_default()
    }

    /// Median, p99 and number, for a table.
    pub(crate) fn row(&self) -> String {
        let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
        format!("median {:>8.1} ms   p99 {:>8.1} ms   n {}", ms(self.median()), ms(self.at(99)), self.0.len())
    }
}

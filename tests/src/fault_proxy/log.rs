//! What went through the proxy, for those who check a history afterwards.

use std::time::Duration;

use serde::Serialize;

use super::asked::Asked;
use super::rule::Fault;

/// The most requests that are kept; of those beyond only the [counts](Counts) are. Some 300 bytes each.
const LOG_MAX: usize = 200_000;

/// One request and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    /// What was asked.
    pub asked: Asked,
    /// When it came, counted from the start of the proxy.
    pub began: Duration,
    /// When it was over; `None` while it is under way.
    pub ended: Option<Duration>,
    /// What befell it.
    pub faults: Vec<Fault>,
    /// What the true store answered, if it was asked and did.
    pub store: Option<u16>,
    /// What the client was told; `None` if its connection was closed instead.
    pub told: Option<u16>,
}

/// How many requests had which end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// All that came.
    pub requests: u64,
    /// Those that some fault befell.
    pub faulty: u64,
    /// Those that the true store answered.
    pub reached: u64,
    /// Those whose client saw no answer.
    pub cut: u64,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    exchanges: Vec<Exchange>,
    counts: Counts,
    /// How many were taken out before the first that is kept.
    taken: usize,
}

impl Log {
    /// Enters a request; the number names it later.
    pub(super) fn begin(&mut self, asked: &Asked, faults: &[Fault], began: Duration) -> usize {
        self.counts.requests += 1;
        self.counts.faulty += u64::from(!faults.is_empty());
        if self.exchanges.len() >= LOG_MAX {
            return usize::MAX;
        }
        let (asked, faults) = (asked.clone(), faults.to_vec());
        self.exchanges.push(Exchange { asked, began, ended: None, faults, store: None, told: None });
        self.taken + self.exchanges.len() - 1
    }

    pub(super) fn reached(&mut self, number: usize, status: u16) {
        self.counts.reached += 1;
        if let Some(exchange) = self.at(number) {
            exchange.store = Some(status);
        }
    }

    pub(super) fn end(&mut self, number: usize, told: Option<u16>, ended: Duration) {
        self.counts.cut += u64::from(told.is_none());
        if let Some(exchange) = self.at(number) {
            exchange.told = told;
            exchange.ended = Some(ended);
        }
    }

    fn at(&mut self, number: usize) -> Option<&mut Exchange> {
        self.exchanges.get_mut(number.checked_sub(self.taken)?)
    }

    pub(super) const fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn all(&self) -> Vec<Exchange> {
        self.exchanges.clone()
    }

    pub(super) fn take(&mut self) -> Vec<Exchange> {
        self.taken += self.exchanges.len();
        std::mem::take(&mut self.exchanges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_that_was_taken_out_ends_without_harm() {
        let mut log = Log::default();
        let first = log.begin(&Asked::default(), &[Fault::DropAnswer], Duration::ZERO);
        assert_eq!(log.take().len(), 1);
        let second = log.begin(&Asked::default(), &[], Duration::ZERO);
        log.reached(first, 200);
        log.end(first, None, Duration::ZERO);
        log.end(second, Some(200), Duration::ZERO);
        assert_eq!(log.all()[0].told, Some(200));
        assert_eq!(log.all()[0].store, None);
        assert_eq!(log.counts(), Counts { requests: 2, faulty: 1, reached: 1, cut: 1 });
    }
}

//! How much memory each application may take, so that all of them fit on the machine together.
//!
//! celld learns its ceiling when it starts and keeps it, so the ceilings of those that run are given; only what is left of the
//! budget can be shared out. A process that starts anew gets what is fair by then.

use std::collections::BTreeMap;

use scafo_core::ApplicationName;

/// What one process needs at least, in MiB: two isolates of 128 MiB.
const LEAST: u64 = 256;
/// What is plenty for one, in MiB.
const MOST: u64 = 2048;
/// Shares of the budget while there are few applications: a handful of busy ones fits without a restart.
const FEWEST_SHARES: u64 = 8;
/// What the system and our daemons keep at least, in MiB; on large machines a quarter.
const RESERVE: u64 = 512;
/// The machine, when it does not say how much it has, in MiB.
const UNKNOWN: u64 = 4096;

/// The budget, and who holds which part of it.
#[derive(Debug)]
pub(super) struct Memory {
    budget: u64,
    held: BTreeMap<ApplicationName, u64>,
}

impl Memory {
    /// The budget of this machine, or of the container that we are in.
    pub(super) fn of_machine() -> Self {
        let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_mib(&text));
        // The limit of our own cgroup, as far as a cgroup namespace shows it; `max` is none.
        let container = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
        let container = container.and_then(|bytes| bytes.trim().parse::<u64>().ok()).map(|bytes| bytes >> 20);
        let total = machine.unwrap_or(UNKNOWN);
        Self::of(container.map_or(total, |limit| limit.min(total)))
    }

    fn of(total: u64) -> Self {
        Self { budget: total.saturating_sub(RESERVE.max(total / 4)), held: BTreeMap::new() }
    }

    /// The ceiling in MiB of a process that starts now, on a node where so many applications are `wanted`. Three
    /// quarters of what is left stay for those that come later. Where even the least does not fit the ceilings exceed the budget.
    pub(super) fn allot(&mut self, application: &ApplicationName, wanted: usize) -> u64 {
        self.held.remove(application);
        let wanted = u64::try_from(wanted.max(self.held.len() + 1)).unwrap_or(u64::MAX);
        let left = self.budget.saturating_sub(self.held.values().sum());
        // Half as many applications again may come.
        let fair = self.budget / wanted.saturating_add(wanted / 2).max(FEWEST_SHARES);
        let ceiling = fair.min(left / 4).clamp(LEAST, MOST);
        if ceiling > left {
            tracing::warn!(%application, ceiling, left, "more applications than memory: their ceilings in MiB exceed it together");
        }
        self.held.insert(application.clone(), ceiling);
        ceiling
    }

    /// A process that runs already has this ceiling.
    pub(super) fn hold(&mut self, application: &ApplicationName, ceiling: u64) {
        self.held.insert(application.clone(), ceiling);
    }

    /// Its process has ended.
    pub(super) fn release(&mut self, application: &ApplicationName) {
        self.held.remove(application);
    }
}

fn total_mib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn app(n: usize) -> ApplicationName {
        format!("app{n}").parse().unwrap()
    }

    #[test]
    fn ceilings_of_all_applications_fit_in_the_budget_however_they_come() {
        let mut at_once = Memory::of(32 * 1024);
        let ceilings: Vec<u64> = (0..20).map(|n| at_once.allot(&app(n), 20)).collect();
        assert_eq!(ceilings, [819; 20], "24 GiB in 30 shares");
        let mut one_by_one = Memory::of(32 * 1024);
        let ceilings: Vec<u64> = (0..19).map(|n| one_by_one.allot(&app(n), n + 1)).collect();
        assert!(ceilings.iter().sum::<u64>() <= 24 * 1024, "{ceilings:?}");
        assert!(ceilings.iter().all(|ceiling| (LEAST..=MOST).contains(ceiling)));
    }

    #[test]
    fn what_an_ended_process_held_is_shared_out_again() {
        let mut memory = Memory::of(4096);
        assert_eq!(memory.budget, 3072);
        memory.hold(&app(0), 2048);
        assert_eq!(memory.allot(&app(1), 2), 256, "a quarter of what is left");
        memory.hold(&app(2), 640);
        assert_eq!(memory.allot(&app(3), 4), LEAST, "nothing is left, and less is of no use");
        memory.release(&app(0));
        memory.release(&app(2));
        assert_eq!(memory.allot(&app(3), 4), 384);
    }

    #[test]
    fn a_tiny_machine_still_gives_the_least() {
        assert_eq!(Memory::of(256).allot(&app(0), 1), LEAST);
    }

    #[test]
    fn the_total_of_memory_is_read_in_kib() {
        assert_eq!(total_mib("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16));
        assert_eq!(total_mib("nothing"), None);
        assert!(Memory::of_machine().budget > 0);
    }
}

//! The crashes of an application's process that the next supervisor has to know of: `processes/<application>.past`. Without
//! them a restart of the supervisor would start at once what has to wait, and a crash loop would look like a first crash.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use scafo_core::ApplicationName;
use serde::{Deserialize, Serialize};

use super::life::Past;
use crate::state::{read_json, remove, write_json};

/// This boot of the machine, and how long it lasts already. Unlike the time of day, nobody sets this clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Boot {
    pub(super) id: String,
    pub(super) uptime: Duration,
}

impl Boot {
    pub(super) fn now() -> Self {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        let time = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
        Self { id, uptime: Duration::new(seconds, nanoseconds) }
    }

    /// How long ago something was at the least that happened at `uptime` of the boot `id`.
    pub(super) fn since(&self, id: &str, uptime: Duration) -> Duration {
        // Whatever was before this boot ended with the one before, at the latest.
        if id == self.id { self.uptime.saturating_sub(uptime) } else { self.uptime }
    }
}

/// The file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Kept {
    pub(super) application: ApplicationName,
    /// The deploy that crashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) deploy: Option<String>,
    boot: String,
    uptime_ms: u64,
    starts: u32,
    next_pause_ms: u64,
    left_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crashed_ms: Option<u64>,
    early_exits_ms: Vec<u64>,
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn path(dir: &Path, application: &ApplicationName) -> PathBuf {
    dir.join(format!("{application}.past"))
}

impl Kept {
    pub(super) fn new(application: &ApplicationName, deploy: Option<String>, past: &Past, boot: &Boot) -> Self {
        Self {
            application: application.clone(),
            deploy,
            boot: boot.id.clone(),
            uptime_ms: ms(boot.uptime),
            starts: past.starts,
            next_pause_ms: ms(past.next_pause),
            left_ms: ms(past.left),
            crashed_ms: past.crashed.map(ms),
            early_exits_ms: past.early_exits.iter().copied().map(ms).collect(),
        }
    }

    /// What is left of it now.
    pub(super) fn past(&self, boot: &Boot) -> Past {
        let age = boot.since(&self.boot, Duration::from_millis(self.uptime_ms));
        let ago = |ms: u64| Duration::from_millis(ms).saturating_add(age);
        Past {
            starts: self.starts,
            next_pause: Duration::from_millis(self.next_pause_ms),
            left: Duration::from_millis(self.left_ms).saturating_sub(age),
            crashed: self.crashed_ms.map(ago),
            early_exits: self.early_exits_ms.iter().copied().map(ago).collect(),
        }
    }

    pub(super) fn save(&self, dir: &Path) -> io::Result<()> {
        write_json(&path(dir, &self.application), self)
    }

    pub(super) fn forget(dir: &Path, application: &ApplicationName) {
        if let Err(error) = remove(&path(dir, application)) {
            // The next supervisor waits for longer than it has to.
            tracing::warn!(%application, %error, "cannot remove what was kept of crashes");
        }
    }

    /// One application's, when there is one that can be read.
    pub(super) fn load(dir: &Path, application: &ApplicationName) -> Option<Self> {
        match read_json(&path(dir, application)) {
            Ok(kept) => kept,
            Err(error) => {
                tracing::warn!(%application, %error, "cannot read what was kept of crashes");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot(id: &str, uptime: u64) -> Boot {
        Boot { id: id.to_owned(), uptime: Duration::from_secs(uptime) }
    }

    #[test]
    fn what_is_kept_grows_older_by_the_time_that_passed() {
        let s = Duration::from_secs;
        let past =
            Past { starts: 3, next_pause: s(40), left: s(20), crashed: Some(s(5)), early_exits: vec![s(65), s(5)] };
        let dir = tempfile::tempdir().unwrap();
        let shop = "shop".parse().unwrap();
        Kept::new(&shop, Some("shop.1".to_owned()), &past, &boot("one", 1000)).save(dir.path()).unwrap();
        let kept = Kept::load(dir.path(), &shop).unwrap();
        assert_eq!(kept.deploy.as_deref(), Some("shop.1"));
        assert_eq!(kept.past(&boot("one", 1000)), past);
        let later = Past { left: s(13), crashed: Some(s(12)), early_exits: vec![s(72), s(12)], ..past.clone() };
        assert_eq!(kept.past(&boot("one", 1007)), later);
        let much_later = kept.past(&boot("one", 2000));
        assert_eq!(much_later.left, Duration::ZERO);
        let another = Past { left: s(17), crashed: Some(s(8)), early_exits: vec![s(68), s(8)], ..past };
        assert_eq!(kept.past(&boot("two", 3)), another, "before this boot is all that is known");
        Kept::forget(dir.path(), &shop);
        assert_eq!(Kept::load(dir.path(), &shop), None);
    }

    #[test]
    fn this_machine_has_booted() {
        let (first, second) = (Boot::now(), Boot::now());
        assert!(!first.id.is_empty() && first.id == second.id && second.uptime >= first.uptime);
        assert!(first.uptime > Duration::ZERO);
    }
}

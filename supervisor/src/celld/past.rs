//! The crashes of an application's process that the next supervisor has to know of: `processes/<application>.past`. Without
//! them a restart of the supervisor would start at once what has to wait, and a crash loop would look like a first crash.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use scafo_core::ApplicationName;
use scafo_proto::boot::Boot;
use serde::{Deserialize, Serialize};

use super::life::Past;
use crate::state::{read_json, remove, write_json};

/// A moment in a boot of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Moment {
    /// [`Boot::as_str`]; empty where the kernel does not say which boot it is.
    pub(super) boot: String,
    pub(super) uptime: Duration,
}

impl Moment {
    pub(super) fn now() -> Self {
        let boot = Boot::current().map(|boot| boot.as_str().to_owned()).unwrap_or_default();
        Self { boot, uptime: Boot::uptime() }
    }

    /// How long ago something was at the least that happened at `uptime` of `boot`.
    pub(super) fn since(&self, boot: &str, uptime: Duration) -> Duration {
        // Whatever was before this boot ended with the one before, at the latest.
        if boot == self.boot { self.uptime.saturating_sub(uptime) } else { self.uptime }
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
    pub(super) fn new(application: &ApplicationName, deploy: Option<String>, past: &Past, now: &Moment) -> Self {
        Self {
            application: application.clone(),
            deploy,
            boot: now.boot.clone(),
            uptime_ms: ms(now.uptime),
            starts: past.starts,
            next_pause_ms: ms(past.next_pause),
            left_ms: ms(past.left),
            crashed_ms: past.crashed.map(ms),
            early_exits_ms: past.early_exits.iter().copied().map(ms).collect(),
        }
    }

    /// What is left of it now.
    pub(super) fn past(&self, now: &Moment) -> Past {
        let age = now.since(&self.boot, Duration::from_millis(self.uptime_ms));
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

    fn at(boot: &str, uptime: u64) -> Moment {
        Moment { boot: boot.to_owned(), uptime: Duration::from_secs(uptime) }
    }

    #[test]
    fn what_is_kept_grows_older_by_the_time_that_passed() {
        let s = Duration::from_secs;
        let past =
            Past { starts: 3, next_pause: s(40), left: s(20), crashed: Some(s(5)), early_exits: vec![s(65), s(5)] };
        let dir = tempfile::tempdir().unwrap();
        let shop = "shop".parse().unwrap();
        Kept::new(&shop, Some("shop.1".to_owned()), &past, &at("one", 1000)).save(dir.path()).unwrap();
        let kept = Kept::load(dir.path(), &shop).unwrap();
        assert_eq!(kept.deploy.as_deref(), Some("shop.1"));
        assert_eq!(kept.past(&at("one", 1000)), past);
        let later = Past { left: s(13), crashed: Some(s(12)), early_exits: vec![s(72), s(12)], ..past.clone() };
        assert_eq!(kept.past(&at("one", 1007)), later);
        let much_later = kept.past(&at("one", 2000));
        assert_eq!(much_later.left, Duration::ZERO);
        let another = Past { left: s(17), crashed: Some(s(8)), early_exits: vec![s(68), s(8)], ..past };
        assert_eq!(kept.past(&at("two", 3)), another, "before this boot is all that is known");
        Kept::forget(dir.path(), &shop);
        assert_eq!(Kept::load(dir.path(), &shop), None);
    }
}

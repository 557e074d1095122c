//! What the next supervisor needs to take a process over: `processes/<application>.json`.

use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use scafo_core::{ApplicationName, Timestamp};
use serde::{Deserialize, Serialize};

use crate::spawn::{ProcessHandle, proc};
use crate::state::{Pair, read_json, remove, write_json};

/// The variable with the data directory.
pub(super) const WATCH: &str = "CELLD_WATCH";

/// A process that was started here, or is about to be: then its number is 0 yet. It is written before the process is there, so
/// that one which a killed supervisor started is looked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    pub(super) application: ApplicationName,
    pub(super) pid: u32,
    /// Tells the process apart from a later one with its number.
    pub(super) start_time: u64,
    /// The data directory that it was started with, and that nobody else is.
    pub(super) watch: PathBuf,
    pub(super) ports: Pair,
    pub(super) celld_version: String,
    pub(super) started_at: Timestamp,
    /// Whether it has been ready: from then on silence is no starting any more.
    #[serde(default)]
    pub(super) was_ready: bool,
    /// Its ceiling of memory in MiB.
    #[serde(default)]
    pub(super) memory_mib: u64,
    /// The boot of the machine in which it was started.
    #[serde(default)]
    pub(super) boot: String,
}

fn path(dir: &Path, application: &ApplicationName) -> PathBuf {
    dir.join(format!("{application}.json"))
}

impl Record {
    pub(super) fn save(&self, dir: &Path) -> io::Result<()> {
        write_json(&path(dir, &self.application), self)
    }

    pub(super) fn forget(dir: &Path, application: &ApplicationName) {
        if let Err(error) = remove(&path(dir, application)) {
            // The next supervisor finds that its start time names nobody.
            tracing::warn!(%application, %error, "cannot remove the record of an ended process");
        }
    }

    /// One application's record, when there is one that can be read.
    pub(super) fn load(dir: &Path, application: &ApplicationName) -> Option<Self> {
        read_json(&path(dir, application)).ok().flatten()
    }

    /// Every record of the directory. One that cannot be read is left out and named.
    pub(super) fn all(dir: &Path) -> io::Result<Vec<Self>> {
        let mut records = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match read_json(&path) {
                Ok(Some(record)) => records.push(record),
                Ok(None) => {}
                Err(error) => tracing::warn!(path = %path.display(), %error, "cannot read the record of a process"),
            }
        }
        Ok(records)
    }

    /// The same record with the number of a process.
    pub(super) fn of(mut self, pid: u32) -> Option<Self> {
        self.start_time = proc::start_time(pid)?;
        self.pid = pid;
        Some(self)
    }

    /// The process, if it still runs. The number and the time of its start were written down by whoever started it, so that they are
    /// proof enough.
    pub(super) fn process(&self) -> Option<ProcessHandle> {
        self.process_if(|_| true)
    }

    /// The same with the number of a process that was only found: it must be this user's and no container's, or anybody could pass
    /// off a program of theirs as the application's.
    pub(super) fn found(self, pid: u32, uid: u32) -> Option<(Self, ProcessHandle)> {
        let record = self.of(pid)?;
        let process = record.process_if(|pid| proc::is_of(pid, uid))?;
        Some((record, process))
    }

    /// The pidfd is opened first and the process looked at afterwards, so that what was looked at is what the pidfd holds.
    fn process_if(&self, fine: impl FnOnce(u32) -> bool) -> Option<ProcessHandle> {
        let pid = Pid::from_raw(i32::try_from(self.pid).ok()?)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        if proc::start_time(self.pid)? != self.start_time || !proc::was_given(self.pid, WATCH, &self.watch) {
            return None;
        }
        if !fine(self.pid) {
            return None;
        }
        ProcessHandle::of_stranger(pid, pidfd).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(pid: u32, watch: &str) -> Record {
        Record {
            application: "shop".parse().unwrap(),
            pid,
            start_time: proc::start_time(pid).unwrap(),
            watch: watch.into(),
            ports: Pair { public: 1, internal: 2 },
            celld_version: "0.6.0".to_owned(),
            started_at: Timestamp::from_millis(0),
            was_ready: false,
            memory_mib: 0,
            boot: String::new(),
        }
    }

    #[tokio::test]
    async fn only_the_very_process_is_taken_over() {
        let mut child = std::process::Command::new("sleep").arg("600").env(WATCH, "/s/watch").spawn().unwrap();
        let own = record(child.id(), "/s/watch");
        // The kernel lets the parent go on a moment before the new program's environment can be seen.
        let limit = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
        while own.process().is_none() && tokio::time::Instant::now() < limit {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        assert_eq!(own.process().unwrap().pid(), child.id());
        let reused = Record { start_time: own.start_time + 1, ..own.clone() };
        assert!(reused.process().is_none());
        let nobody_yet = Record { pid: 0, start_time: 0, ..own.clone() };
        assert!(nobody_yet.process().is_none());
        let uid = rustix::process::getuid().as_raw();
        assert!(nobody_yet.clone().found(child.id(), uid).is_some());
        assert!(nobody_yet.found(child.id(), uid + 1).is_none(), "of another user");
        let other = Record { watch: "/s/other".into(), ..own.clone() };
        assert!(other.process().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(own.process().is_none());
    }

    #[test]
    fn records_come_back_and_broken_ones_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let own = record(std::process::id(), "/s/watch");
        own.save(dir.path()).unwrap();
        std::fs::write(dir.path().join("broken.json"), "{").unwrap();
        let all = Record::all(dir.path()).unwrap();
        assert_eq!((all.len(), all[0].ports), (1, own.ports));
        Record::forget(dir.path(), &own.application);
        assert!(Record::all(dir.path()).unwrap().is_empty());
    }
}

//! What `/proc` says of a process that is not our child.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Longest environment that is looked at, in bytes. celld's has about 1 KiB.
const MAX_ENVIRONMENT: u64 = 1024 * 1024;
/// What `/proc` counts processor time in (`USER_HZ`): the same on every architecture that we build for.
const TICKS_PER_SECOND: f64 = 100.0;

fn file(pid: u32, name: &str) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join(name)
}

/// Clock ticks from boot to the start of a process, field 22 of `/proc/<pid>/stat` (`proc(5)`): it tells the process apart from a
/// later one with the same number. `None`: it has ended.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    start_time_of(&std::fs::read_to_string(file(pid, "stat")).ok()?)
}

/// Whether a process was started with this variable.
pub(crate) fn was_given(pid: u32, name: &str, value: &Path) -> bool {
    given(pid, name).is_some_and(|given| given == value)
}

/// What a process was started with in this variable; `None` also when it belongs to another user.
fn given(pid: u32, name: &str) -> Option<PathBuf> {
    let mut environment = Vec::new();
    std::fs::File::open(file(pid, "environ")).ok()?.take(MAX_ENVIRONMENT).read_to_end(&mut environment).ok()?;
    let values = environment.split(|byte| *byte == 0).filter_map(|pair| pair.strip_prefix(name.as_bytes()));
    let value = values.filter_map(|rest| rest.strip_prefix(b"=")).next()?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(value)))
}

/// Every process that leads a session and was started with this variable: by its value. What such a process starts inherits the
/// variable, but not the session's lead.
pub(crate) fn session_leaders_given(name: &str) -> BTreeMap<PathBuf, u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return BTreeMap::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let leaders = pids
        .filter(|pid| std::fs::read_to_string(file(*pid, "stat")).is_ok_and(|stat| session_of(&stat) == Some(*pid)));
    leaders.filter_map(|pid| Some((given(pid, name)?, pid))).collect()
}

/// Ends what was started without new privileges and works in one of these directories: what jobs of a node that was killed left
/// behind. Whoever only looks around there in a shell has given up nothing.
pub(crate) fn kill_left_in(directories: &[PathBuf]) {
    let Ok(entries) = std::fs::read_dir("/proc") else { return };
    for pid in entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok()) {
        let works_there = || {
            let cwd = std::fs::read_link(file(pid, "cwd"));
            cwd.is_ok_and(|cwd| directories.iter().any(|directory| cwd.starts_with(directory)))
                && std::fs::read_to_string(file(pid, "status"))
                    .is_ok_and(|status| status.contains("\nNoNewPrivs:\t1\n"))
        };
        if let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw)
            && works_there()
            && let Ok(process) = pidfd_open(number, PidfdFlags::empty())
            && works_there()
        {
            tracing::warn!(pid, "killing what a deploy job of an earlier node left behind");
            let _ = pidfd_send_signal(&process, Signal::KILL);
        }
    }
}

/// Ends every process of these users.
pub(crate) fn kill_all_of(users: std::ops::RangeInclusive<u32>) {
    // Twice: what is forked while the list is read.
    for _ in 0..2 {
        let Ok(entries) = std::fs::read_dir("/proc") else { return };
        for entry in entries.flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let theirs = || entry.metadata().is_ok_and(|metadata| users.contains(&metadata.uid()));
            if let Some(pid) = pid.and_then(Pid::from_raw)
                && theirs()
                && let Ok(process) = pidfd_open(pid, PidfdFlags::empty())
                // It might have become another's meanwhile.
                && theirs()
            {
                let _ = pidfd_send_signal(&process, Signal::KILL);
            }
        }
    }
}

/// What a process takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Usage {
    /// Memory that it has in use.
    pub(crate) resident_bytes: u64,
    /// Processor time since it began.
    pub(crate) cpu_seconds: f64,
}

/// What a process takes (`proc(5)`: `VmRSS` of `status`, fields 14 and 15 of `stat`). `None`: it has ended.
pub(crate) fn usage(pid: u32) -> Option<Usage> {
    let read = |name| std::fs::read_to_string(file(pid, name)).ok();
    usage_of(&read("stat")?, &read("status")?)
}

fn usage_of(stat: &str, status: &str) -> Option<Usage> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().strip_suffix("kB")?;
    let resident: u64 = resident.trim().parse().ok()?;
    Some(Usage { resident_bytes: resident * 1024, cpu_seconds: (user + system) as f64 / TICKS_PER_SECOND })
}

/// The process that started it, or took it over; field 4.
pub(crate) fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(file(pid, "stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Field 6; `None` of a zombie.
fn session_of(stat: &str) -> Option<u32> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(2)?.parse().ok()
}

/// The name in field 2 may hold spaces and parentheses, so the fields are counted behind its last `)`. A zombie has ended.
fn start_time_of(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    // Field 3 is taken; field 22 is the 19th after it.
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_takes_is_read_whatever_its_name() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 9 0 99 1000000 2500 18446744073709551615";
        let usage = usage_of(stat, "Name:\ta ) b\nVmRSS:\t   10240 kB\n").unwrap();
        assert_eq!(usage, Usage { resident_bytes: 10_485_760, cpu_seconds: 2.0 });
        assert_eq!(usage_of(stat, "Name:\tgone\n"), None);
    }

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20";
        assert_eq!(start_time_of(&format!("42 (a) b) (c)) {fields}")), Some(777));
        assert_eq!(start_time_of(&format!("42 (a) {}", fields.replacen('S', "Z", 1))), None);
        assert_eq!(start_time_of("42 (a)"), None);
        assert_eq!(session_of(&format!("42 (a) b) (c)) {fields}")), Some(3));
    }

    #[test]
    fn this_process_can_be_looked_at() {
        let own = std::process::id();
        assert!(start_time(own).unwrap() > 0);
        assert_eq!(start_time(own), start_time(own));
        assert_eq!(parent(own), Some(std::os::unix::process::parent_id()));
        let path = std::env::var("PATH").unwrap();
        assert!(was_given(own, "PATH", Path::new(&path)) && !was_given(own, "PATH", Path::new("/other")));
    }
}

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

/// Every process that leads a session, was started with this variable and is of the user that this value belongs to: by the value.
/// What such a process starts inherits the variable, but not the session's lead. Anybody can give a program of theirs any variable,
/// and a container has directories of the same names: hence the user, and [`is_of`].
pub(crate) fn session_leaders_given(name: &str, owner: impl Fn(&Path) -> Option<u32>) -> BTreeMap<PathBuf, u32> {
    given_to_session_leaders(name).filter(|(value, pid)| owner(value).is_some_and(|uid| is_of(*pid, uid))).collect()
}

/// Whether any process that leads a session was started with such a value, whoever it is of.
pub(crate) fn is_a_session_leader_given(name: &str, such: impl Fn(&Path) -> bool) -> bool {
    given_to_session_leaders(name).any(|(value, _)| such(&value))
}

fn given_to_session_leaders(name: &str) -> impl Iterator<Item = (PathBuf, u32)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let leaders = pids
        .filter(|pid| std::fs::read_to_string(file(*pid, "stat")).is_ok_and(|stat| session_of(&stat) == Some(*pid)));
    leaders.filter_map(move |pid| Some((given(pid, name)?, pid)))
}

/// Whether this user started a process, and in our process namespace: another one is that of a container, whose users and
/// directories only have the same numbers and names as ours.
pub(crate) fn is_of(pid: u32, uid: u32) -> bool {
    status(pid).is_some_and(|status| real_user(&status) == Some(uid) && is_at_home(&status))
}

/// The real user of a process; `None`: it has ended.
pub(crate) fn user_of(pid: u32) -> Option<u32> {
    real_user(&status(pid)?)
}

fn status(pid: u32) -> Option<String> {
    std::fs::read_to_string(file(pid, "status")).ok()
}

/// The real user id, the first of four: a program cannot change it by being somebody else's and set-user-id.
fn real_user(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_ascii_whitespace().next()?.parse().ok()
}

/// Whether a process has a number in our namespace alone (`NSpid`, `proc(5)`): in those of containers below it has one more each. A
/// kernel without such namespaces does not write the line, and then everybody is at home. Unlike the link `ns/pid`, everybody may read
/// this.
fn is_at_home(status: &str) -> bool {
    status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))
        .is_none_or(|numbers| numbers.split_ascii_whitespace().count() == 1)
}

/// Ends what was started without new privileges and works in one of these directories: what jobs of a node that was killed left
/// behind. Whoever only looks around there in a shell has given up nothing, and in a container such a directory is another one.
pub(crate) fn kill_left_in(directories: &[PathBuf]) {
    let Ok(entries) = std::fs::read_dir("/proc") else { return };
    for pid in entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok()) {
        let works_there = || {
            let cwd = std::fs::read_link(file(pid, "cwd"));
            cwd.is_ok_and(|cwd| directories.iter().any(|directory| cwd.starts_with(directory)))
                && status(pid).is_some_and(|status| status.contains("\nNoNewPrivs:\t1\n") && is_at_home(&status))
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

/// Ends every process of these users, but for those of containers.
pub(crate) fn kill_all_of(users: std::ops::RangeInclusive<u32>) {
    // Twice: what is forked while the list is read.
    for _ in 0..2 {
        let Ok(entries) = std::fs::read_dir("/proc") else { return };
        for entry in entries.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let theirs = || {
                entry.metadata().is_ok_and(|metadata| users.contains(&metadata.uid()))
                    && status(pid).is_some_and(|status| is_at_home(&status))
            };
            if let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw)
                && theirs()
                && let Ok(process) = pidfd_open(number, PidfdFlags::empty())
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
    fn who_a_process_is_and_whether_it_is_a_containers_stands_in_its_status() {
        let status = "Name:\tcelld\nUid:\t1000\t0\t0\t0\nGid:\t0\t0\t0\t0\nNSpid:\t4711\nNoNewPrivs:\t1\n";
        assert_eq!(real_user(status), Some(1000));
        assert!(is_at_home(status));
        assert!(!is_at_home(&status.replace("4711", "4711\t1")), "the first process of a container");
        assert!(is_at_home(&status.replace("NSpid:\t4711\n", "")), "a kernel without process namespaces");
    }

    #[test]
    fn this_process_can_be_looked_at() {
        let own = std::process::id();
        assert!(start_time(own).unwrap() > 0);
        assert_eq!(start_time(own), start_time(own));
        assert_eq!(parent(own), Some(std::os::unix::process::parent_id()));
        let uid = rustix::process::getuid().as_raw();
        assert!(is_of(own, uid) && !is_of(own, uid + 1));
        let path = std::env::var("PATH").unwrap();
        assert!(was_given(own, "PATH", Path::new(&path)) && !was_given(own, "PATH", Path::new("/other")));
    }
}

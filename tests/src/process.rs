//! Looking at processes from outside, through `/proc`.

use std::path::PathBuf;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// One process that runs now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its parent's.
    pub parent: u32,
    /// File name of its executable.
    pub name: String,
    /// Start time in clock ticks since boot; tells a pid apart from its reuse.
    pub started: u64,
}

/// Every process that can be seen; those that end meanwhile are left out, and so are zombies.
pub fn all() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| read(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// One process by its id, unless it has ended.
pub fn read(pid: u32) -> Option<Process> {
    let root = PathBuf::from(format!("/proc/{pid}"));
    let stat = std::fs::read_to_string(root.join("stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    if *fields.first()? == "Z" {
        return None;
    }
    let executable = std::fs::read_link(root.join("exe")).ok()?;
    let name = executable.file_name()?.to_str()?.trim_end_matches(" (deleted)").to_owned();
    Some(Process { pid, parent: fields.get(1)?.parse().ok()?, name, started: fields.get(19)?.parse().ok()? })
}

/// The child of `parent` whose executable is called `name`.
pub fn child(parent: u32, name: &str) -> Option<Process> {
    all().into_iter().find(|process| process.parent == parent && process.name == name)
}

/// Every process with `text` in its environment or arguments.
pub fn mentioning(text: &str) -> Vec<Process> {
    let mentions = |pid: u32, file: &str| {
        let content = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        content.windows(text.len()).any(|window| window == text.as_bytes())
    };
    all().into_iter().filter(|p| mentions(p.pid, "cmdline") || mentions(p.pid, "environ")).collect()
}

/// Bytes of memory that a process holds now; 0 once it has ended.
pub fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let held = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    held.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap_or_default() * 1024
}

/// Sends a signal; a process that has ended already is fine.
pub fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("process ids fit"));
    let _ = kill(pid, signal);
}

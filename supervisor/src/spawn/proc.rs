//! What `/proc` says of a process that is not our child.

use std::path::{Path, PathBuf};

/// What tells a process apart from a later one with the same number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Clock ticks from boot to its start: field 22 of `/proc/<pid>/stat` (proc(5)).
    pub(crate) start_time: u64,
    /// Its executable; a replaced one ends in ` (deleted)`, which is taken off.
    pub(crate) executable: PathBuf,
}

/// Looks at a process. `None`: it has ended, or may not be looked at.
pub(crate) fn look(pid: u32) -> Option<Seen> {
    let root = Path::new("/proc").join(pid.to_string());
    let stat = std::fs::read_to_string(root.join("stat")).ok()?;
    let start_time = start_time_of(&stat)?;
    let executable = std::fs::read_link(root.join("exe")).ok()?;
    let shown = executable.to_str()?;
    Some(Seen { start_time, executable: PathBuf::from(shown.strip_suffix(" (deleted)").unwrap_or(shown)) })
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
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20";
        assert_eq!(start_time_of(&format!("42 (a) b) (c)) {fields}")), Some(777));
        assert_eq!(start_time_of(&format!("42 (a) {}", fields.replacen('S', "Z", 1))), None);
        assert_eq!(start_time_of("42 (a)"), None);
    }

    #[test]
    fn this_process_can_be_looked_at() {
        let seen = look(std::process::id()).unwrap();
        assert!(seen.start_time > 0);
        assert_eq!(seen, look(std::process::id()).unwrap());
    }
}

//! What `/proc` says of a process that is not our child.

use std::path::{Path, PathBuf};

/// Longest environment that is looked at, in bytes. celld's has about 1 KiB.
const MAX_ENVIRONMENT: u64 = 1024 * 1024;

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
    use std::io::Read as _;
    let mut environment = Vec::new();
    let read = std::fs::File::open(file(pid, "environ")).map(|f| f.take(MAX_ENVIRONMENT).read_to_end(&mut environment));
    let wanted = format!("{name}={}", value.display());
    matches!(read, Ok(Ok(_))) && environment.split(|byte| *byte == 0).any(|pair| pair == wanted.as_bytes())
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
        let own = std::process::id();
        assert!(start_time(own).unwrap() > 0);
        assert_eq!(start_time(own), start_time(own));
        let path = std::env::var("PATH").unwrap();
        assert!(was_given(own, "PATH", Path::new(&path)) && !was_given(own, "PATH", Path::new("/other")));
    }
}

//! What a daemon gives up for good once it has its settings.

use std::collections::BTreeMap;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

/// `execve(2)` and `execveat(2)` on this machine.
#[cfg(target_arch = "x86_64")]
const EXEC: [i64; 2] = [59, 322];
#[cfg(target_arch = "aarch64")]
const EXEC: [i64; 2] = [221, 281];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const EXEC: [i64; 0] = [];

/// `EPERM`, the same number on every Linux.
const EPERM: u32 = 1;

/// From here on this process starts no program, and no other process of its user reads its memory (`ptrace(2)`, `/proc/<pid>/mem`,
/// `/proc/<pid>/environ`). What the kernel cannot do is said in the log; the supervisor tells people.
pub(crate) fn give_up() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::debug!(%error, "others of this user may look into this process");
    }
    if let Err(error) = no_programs().and_then(|program| seccompiler::apply_filter_all_threads(&program)) {
        tracing::debug!(%error, "this process may start programs");
    }
}

fn no_programs() -> Result<BpfProgram, seccompiler::Error> {
    let rules: BTreeMap<i64, Vec<_>> = EXEC.iter().map(|number| (*number, Vec::new())).collect();
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(EPERM), arch)?;
    Ok(filter.try_into()?)
}

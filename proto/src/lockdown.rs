//! What a daemon gives up for good once it has its settings.

use std::collections::BTreeMap;
use std::io;

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

/// `ENOSYS` and `EINVAL`: what a kernel without filters answers, which seccomp(2) has no other word for.
const UNKNOWN: [i32; 2] = [38, 22];

/// From here on this process starts no program, and no other process of its user reads its memory (`ptrace(2)`, `/proc/<pid>/mem`,
/// `/proc/<pid>/environ`). A kernel without filters of system calls leaves the first open, which the supervisor tells people.
///
/// # Errors
/// When the kernel has these means and does not let us use them: then nothing is to be done for anybody.
pub(crate) fn give_up() -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    if EXEC.is_empty() {
        // The numbers of system calls of this machine are not known here; the supervisor has no filters for it either.
        return Ok(());
    }
    let program = no_programs().map_err(io::Error::other)?;
    match seccompiler::apply_filter_all_threads(&program) {
        Ok(()) => Ok(()),
        Err(seccompiler::Error::Seccomp(error)) if error.raw_os_error().is_some_and(|code| UNKNOWN.contains(&code)) => {
            tracing::debug!(%error, "this process may start programs, as this kernel has no filters of system calls");
            Ok(())
        }
        Err(seccompiler::Error::Seccomp(error)) => Err(error),
        Err(error) => Err(io::Error::other(error)),
    }
}

fn no_programs() -> Result<BpfProgram, seccompiler::Error> {
    let rules: BTreeMap<i64, Vec<_>> = EXEC.iter().map(|number| (*number, Vec::new())).collect();
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(EPERM), arch)?;
    Ok(filter.try_into()?)
}

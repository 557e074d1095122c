//! A daemon that cannot give up what it must not do does not start: looked at with a kernel that refuses it the means.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

/// `seccomp(2)`.
#[cfg(target_arch = "x86_64")]
const SECCOMP: i64 = 317;
#[cfg(target_arch = "aarch64")]
const SECCOMP: i64 = 277;

const EPERM: u32 = 1;
const ENOMEM: u32 = 12;
const EINVAL: u32 = 22;

/// Starts the daemon where filters of system calls are answered with this error, and gives it settings that are none of its own:
/// whether they are read at all shows whether it went on.
fn started_where_filters_are(error: u32) -> Output {
    let run = move || {
        let arch = TargetArch::try_from(std::env::consts::ARCH).unwrap();
        let rules: BTreeMap<i64, Vec<_>> = [(SECCOMP, Vec::new())].into();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(error), arch).unwrap();
        let program: BpfProgram = filter.try_into().unwrap();
        // Of this thread alone, and of what it starts.
        seccompiler::apply_filter(&program).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_scafo-apiserver"));
        command.env_remove("LISTEN_FDS").env("SCAFO_LOG", "debug");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"{}").unwrap();
        child.wait_with_output().unwrap()
    };
    std::thread::spawn(run).join().unwrap()
}

#[test]
fn what_cannot_be_confined_on_a_kernel_that_could_does_not_start() {
    let unconfined = "this process cannot give up what it must not do";
    // One that meets the same at the next start is not started again; for want of memory it is.
    for (error, code, says) in
        [(EPERM, 78, unconfined), (ENOMEM, 1, unconfined), (EINVAL, 78, "does not hold the settings")]
    {
        let output = started_where_filters_are(error);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{error}: {said}");
        assert!(said.contains(says), "{error}: {said}");
    }
}

//! What a process that we start may still do: Landlock (landlock(7)) for files, sockets and signals, seccomp (seccomp(2)) for system
//! calls. Everything is prepared here, in the parent, and entered by the child between fork and exec, so that no program of ours
//! can forget it: one that is not confined does not start. What each daemon may do stands in [`table`], and nowhere else.
//!
//! A kernel without Landlock or seccomp confines less, and the node says so ([`gaps`]).

mod calls;
mod table;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, NetPort, Ruleset, RulesetAttr as _,
    RulesetCreated, RulesetCreatedAttr as _, RulesetError, Scope, path_beneath_rules,
};
use seccompiler::BpfProgram;

pub(crate) use table::{and_collector, daemon, job};

/// Rights as of Linux 7.1. An older kernel enforces those that it knows.
const RIGHTS: ABI = ABI::V9;
/// Bind and connect of TCP. UDP is left alone: names are resolved over it.
const TCP: ABI = ABI::V4;
/// Abstract sockets, and signals to processes outside.
const SCOPES: ABI = ABI::V6;

/// The program interpreters that start a dynamic executable.
const LOADERS: [&str; 6] = [
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-aarch64.so.1",
    "/lib/ld-musl-x86_64.so.1",
    "/lib/ld-musl-aarch64.so.1",
    "/lib/ld-linux.so.2",
    "/libx32/ld-linux-x32.so.2",
];
/// What a dynamic executable reads before its first line.
const LIBRARIES: [&str; 10] = [
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libx32",
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
];

/// What one process may do.
#[derive(Debug, Clone, Default)]
pub(crate) struct Allowed {
    /// Files and directories that it may start programs from, and read.
    pub(crate) execute: Vec<PathBuf>,
    pub(crate) read: Vec<PathBuf>,
    /// Directories of its own.
    pub(crate) write: Vec<PathBuf>,
    /// Unix sockets that it may connect to; kernels before 7.1 do not look.
    pub(crate) sockets: Vec<PathBuf>,
    pub(crate) tcp: Tcp,
    pub(crate) families: Families,
    pub(crate) children: Children,
}

/// Where a process may connect to by TCP. It binds nothing: its sockets are handed to it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Tcp {
    #[default]
    Nowhere,
    /// Every port of this number.
    Port(u16),
    Everywhere,
}

/// Which sockets a process may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Families {
    /// None but Unix ones.
    #[default]
    Unix,
    /// IPv4 and IPv6, and what the resolver asks the kernel.
    Internet,
    Both,
}

/// Whether a process may have others beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Children {
    #[default]
    None,
    Some,
}

/// Entered by the child; see [`crate::spawn`].
#[derive(Debug)]
pub(crate) struct Confinement {
    pub(crate) ruleset: Option<OwnedFd>,
    pub(crate) filters: Vec<BpfProgram>,
}

impl Confinement {
    /// # Errors
    /// When the kernel has these means and does not let us use them: then nothing is to be started.
    pub(crate) fn prepare(allowed: &Allowed) -> io::Result<Self> {
        let ruleset = ruleset(allowed).map_err(io::Error::other)?;
        let filters = if has_seccomp() { calls::filters(allowed).map_err(io::Error::other)? } else { Vec::new() };
        Ok(Self { ruleset: ruleset.into(), filters })
    }
}

fn ruleset(allowed: &Allowed) -> Result<RulesetCreated, RulesetError> {
    let files = Ruleset::default().handle_access(AccessFs::from_all(RIGHTS))?;
    let bounded = match allowed.tcp {
        Tcp::Everywhere => files.handle_access(AccessNet::BindTcp)?,
        Tcp::Nowhere | Tcp::Port(_) => files.handle_access(AccessNet::from_all(TCP))?,
    };
    let created = bounded.scope(Scope::from_all(SCOPES))?.create()?;
    let execute = AccessFs::from_read(RIGHTS);
    let read = execute & !AccessFs::Execute;
    let mut created = created
        .add_rules(path_beneath_rules(LOADERS, execute))?
        .add_rules(path_beneath_rules(LIBRARIES, read))?
        .add_rules(path_beneath_rules(&allowed.execute, execute))?
        .add_rules(path_beneath_rules(&allowed.read, read))?
        .add_rules(path_beneath_rules(&allowed.write, own_directory()))?
        .add_rules(path_beneath_rules(["/dev/null"], AccessFs::ReadFile | AccessFs::WriteFile))?
        .add_rules(path_beneath_rules(["/dev/urandom", "/dev/random", "/dev/zero"], AccessFs::ReadFile))?;
    for socket in &allowed.sockets {
        created = created.add_rules(path_beneath_rules([socket], AccessFs::ResolveUnix))?;
    }
    match allowed.tcp {
        Tcp::Port(port) => created.add_rule(NetPort::new(port, AccessNet::ConnectTcp)),
        Tcp::Nowhere | Tcp::Everywhere => Ok(created),
    }
}

/// Everything with plain files and directories; no programs, and nothing that is more than a file.
fn own_directory() -> BitFlags<AccessFs> {
    AccessFs::from_all(RIGHTS)
        & !(AccessFs::Execute
            | AccessFs::MakeChar
            | AccessFs::MakeBlock
            | AccessFs::MakeFifo
            | AccessFs::IoctlDev
            | AccessFs::ResolveUnix)
}

/// What this kernel does not confine, for people.
pub(crate) fn gaps() -> Vec<String> {
    let mut gaps = Vec::new();
    let has = |abi: ABI| {
        let wanted = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        wanted.handle_access(AccessFs::from_all(abi)).and_then(Ruleset::create).is_ok()
    };
    if !has(ABI::V1) {
        gaps.push(
            "which files daemons and deploy jobs read and write: this kernel has no Landlock (Linux 5.13, lsm=landlock)"
                .to_owned(),
        );
    } else if Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessNet::from_all(TCP))
        .and_then(Ruleset::create)
        .is_err()
    {
        gaps.push(
            "which ports daemons and deploy jobs connect to: this kernel's Landlock is older than Linux 6.7".to_owned(),
        );
    }
    if !has_seccomp() {
        gaps.push("which system calls daemons and deploy jobs make: this kernel has no seccomp filters".to_owned());
    }
    gaps
}

fn has_seccomp() -> bool {
    Path::new("/proc/sys/kernel/seccomp/actions_avail").exists() && calls::known_here()
}

#[cfg(test)]
mod tests;

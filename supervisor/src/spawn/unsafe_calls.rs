//! The only unsafe code of the workspace: what a child does between fork and exec, and waiting on a pidfd.
//!
//! `pre_exec` is unsafe because its closure runs in a forked copy of a process with threads: it may only make system calls that
//! are async-signal-safe, must not allocate, and must not touch a lock that another thread may have held at the fork. Each closure
//! below makes plain system calls on values that it owns, and nothing else.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid, getppid, setgroups, setresgid, setresuid, setsid};
use rustix::fs::Mode;
use rustix::process::umask;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{Gate, User};
use crate::confine::Confinement;

/// Lets the kernel kill the child when the thread that forks it ends. The parent may have ended between fork and this call;
/// then the signal never comes, so the child looks whose child it is and gives up by itself.
pub(super) fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let setup = move || {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        if u32::try_from(getppid().as_raw()) == Ok(parent) {
            return Ok(());
        }
        // Built from a number: no allocation.
        Err(io::Error::from_raw_os_error(Errno::ESRCH as i32))
    };
    // SAFETY: `prctl(PR_SET_PDEATHSIG)` and `getppid` are bare system calls on integers; the closure owns one integer, allocates
    // nothing and takes no lock. Converting `Errno` into `io::Error` stores a number.
    unsafe { command.pre_exec(setup) };
}

/// Gives the child a session of its own, so that it survives the end of the supervisor's terminal and session.
pub(super) fn own_session(command: &mut Command) {
    // SAFETY: `setsid` is a bare system call and async-signal-safe (POSIX.1-2024, XSH 2.4.3); the closure captures nothing,
    // allocates nothing and takes no lock.
    unsafe { command.pre_exec(|| setsid().map(drop).map_err(io::Error::from)) };
}

/// Bounds how many files the child may have open, never above what we may, and how many processes its user may have; and there
/// are no core files, which would hold secrets. Set before the program runs, since celld takes for its own what the hard limit
/// allows.
pub(super) fn limit(command: &mut Command, files: Option<u64>, tasks: Option<u64>) {
    let setup = move || {
        setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
        for (resource, wanted) in [(Resource::RLIMIT_NOFILE, files), (Resource::RLIMIT_NPROC, tasks)] {
            if let Some(wanted) = wanted {
                let (_, hard) = getrlimit(resource)?;
                let most = hard.min(wanted);
                setrlimit(resource, most, most)?;
            }
        }
        Ok(())
    };
    // SAFETY: `getrlimit` and `setrlimit` are bare system calls on integers and a structure on the stack; the closure owns
    // integers, allocates nothing and takes no lock.
    unsafe { command.pre_exec(setup) };
}

/// Makes the child somebody else's, for good.
pub(super) fn become_user(command: &mut Command, user: &User) {
    let groups: Vec<Gid> = user.groups.iter().copied().map(Gid::from_raw).collect();
    let (uid, gid, mask) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid), Mode::from_raw_mode(user.mask));
    let setup = move || {
        setgroups(&groups)?;
        setresgid(gid, gid, gid)?;
        setresuid(uid, uid, uid)?;
        umask(mask);
        Ok(())
    };
    // SAFETY: the four are system calls on integers and on a list that the closure owns and only lends. In a process with threads
    // glibc runs set*id on all of them, by signals; a forked child has one thread, for which it is the bare call.
    unsafe { command.pre_exec(setup) };
}

/// The child says its number and waits until it is let through, or has waited for long enough. When the thread that forked it ends meanwhile, so does it.
pub(super) fn wait_at(command: &mut Command, gate: Gate) {
    let patience = libc::c_int::try_from(gate.patience.as_millis()).unwrap_or(libc::c_int::MAX);
    let setup = move || {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        rustix::io::write(&gate.arrived, &std::process::id().to_ne_bytes())?;
        let mut opened = libc::pollfd { fd: gate.opened.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `poll` is given one structure, which is on the stack, and its number.
        if unsafe { libc::poll(&raw mut opened, 1, patience) } != 1 {
            return Err(io::Error::from_raw_os_error(Errno::ETIMEDOUT as i32));
        }
        prctl::set_pdeathsig(None)?;
        Ok(())
    };
    // SAFETY: `prctl`, `write`, `poll` and `getpid` are bare system calls on integers, on descriptors that the closure owns, and on
    // memory on the stack; nothing is allocated and no lock is taken.
    unsafe { command.pre_exec(setup) };
}

/// The header of capset(2), version 3, for this thread, and the data that leave it no capability.
const CAPABILITIES: [u32; 2] = [0x2008_0522, 0];
const NONE_OF_THEM: [u32; 6] = [0; 6];

/// No new privileges, and what [`crate::confine`] has prepared. A child that cannot be confined does not start. One that is confined has
/// no capabilities either: some of them go around Landlock, and without new privileges root does not get them back.
pub(super) fn confine(command: &mut Command, confinement: Option<Confinement>) {
    let setup = move || {
        prctl::set_no_new_privs()?;
        let Some(Confinement { ruleset, filters }) = &confinement else { return Ok(()) };
        // SAFETY: the call reads a header of two integers and data of six, which are constants.
        Errno::result(unsafe { libc::syscall(libc::SYS_capset, CAPABILITIES.as_ptr(), NONE_OF_THEM.as_ptr()) })?;
        if let Some(ruleset) = ruleset {
            // SAFETY: the call takes a descriptor, which is open for as long as the closure lives, and flags, of which there are none.
            let restricted = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) };
            Errno::result(restricted)?;
        }
        for filter in filters {
            seccompiler::apply_filter(filter).map_err(|_| io::Error::from_raw_os_error(Errno::EACCES as i32))?;
        }
        Ok(())
    };
    // SAFETY: `prctl`, `landlock_restrict_self` and `seccomp` are bare system calls on integers and on filters that the closure owns
    // and only lends; their errors are numbers, so nothing is allocated, and no lock is taken.
    unsafe { command.pre_exec(setup) };
}

/// Registers a pidfd with the runtime: it becomes readable when its process ends (`pidfd_open(2)`).
pub(super) fn watch_end(pidfd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the runtime asks that the number stays the same and open for as long as the registration lives. An `OwnedFd` returns
    // one number all its life and closes it only when it is dropped, and the `AsyncFd` that owns it hands out no `&mut` here.
    let registered = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) };
    registered.map_err(|error| io::Error::other(error.to_string()))
}

//! The only unsafe code of the workspace: what a child does between fork and exec, and waiting on a pidfd.
//!
//! `pre_exec` is unsafe because its closure runs in a forked copy of a process with threads: it may only make system calls that
//! are async-signal-safe, must not allocate, and must not touch a lock that another thread may have held at the fork. Each closure
//! below makes plain system calls on values that it owns, and nothing else.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::{getppid, setsid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

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
        Err(io::Error::from_raw_os_error(nix::errno::Errno::ESRCH as i32))
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

/// Bounds how many files the child may have open, never above what we may. Set before the program runs, since celld takes for its
/// own what the hard limit allows.
pub(super) fn limit_files(command: &mut Command, files: u64) {
    let setup = move || {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        let files = hard.min(files);
        setrlimit(Resource::RLIMIT_NOFILE, files, files).map_err(io::Error::from)
    };
    // SAFETY: `getrlimit` and `setrlimit` are bare system calls on integers and a structure on the stack; the closure owns one
    // integer, allocates nothing and takes no lock.
    unsafe { command.pre_exec(setup) };
}

/// Registers a pidfd with the runtime: it becomes readable when its process ends (`pidfd_open(2)`).
pub(super) fn watch_end(pidfd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the runtime asks that the number stays the same and open for as long as the registration lives. An `OwnedFd` returns
    // one number all its life and closes it only when it is dropped, and the `AsyncFd` that owns it hands out no `&mut` here.
    let registered = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) };
    registered.map_err(|error| io::Error::other(error.to_string()))
}

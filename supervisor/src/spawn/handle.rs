//! One process, held by its pidfd: its end, and signals that can only reach it.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_send_signal, waitid};
use tokio::io::unix::AsyncFd;

use super::unsafe_calls::watch_end;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal(i32),
    /// It was not our child, so the kernel tells nobody here.
    Unknown,
}

/// Kills a child of ours that nobody has waited for, with its group, and waits for it, which takes a moment.
pub(super) fn end(pid: Pid) {
    let _ = kill_process_group(pid, Signal::KILL);
    let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
}

/// A running or ended process.
#[derive(Debug)]
pub(crate) struct ProcessHandle {
    pid: Pid,
    pidfd: AsyncFd<OwnedFd>,
    ended: Option<Exit>,
}

impl ProcessHandle {
    /// For a child of ours, which leads a group. Nobody would own one that cannot be watched, so it is ended then.
    pub(crate) fn of_child(pid: Pid, pidfd: OwnedFd) -> io::Result<Self> {
        Self::watching(pid, pidfd).inspect_err(|_| end(pid))
    }

    /// For a process that an earlier supervisor started. One that cannot be watched runs on.
    pub(crate) fn of_stranger(pid: Pid, pidfd: OwnedFd) -> io::Result<Self> {
        Self::watching(pid, pidfd)
    }

    fn watching(pid: Pid, pidfd: OwnedFd) -> io::Result<Self> {
        Ok(Self { pid, pidfd: watch_end(pidfd)?, ended: None })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Resolves when it has ended. May be dropped and called again.
    pub(crate) async fn ended(&mut self) -> Exit {
        if let Some(exit) = self.ended {
            return exit;
        }
        // A pidfd is readable from its process's end on; an error here means that the runtime is shutting down.
        if self.pidfd.readable().await.is_err() {
            return std::future::pending().await;
        }
        let exit = match waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Exit::Code(code),
                (None, Some(signal)) => Exit::Signal(signal),
                (None, None) => Exit::Unknown,
            },
            Ok(None) | Err(_) => Exit::Unknown,
        };
        self.ended = Some(exit);
        exit
    }

    /// The same for a process that leads a group: whoever it left behind in the group is killed first, while the group's number
    /// is still held by the leader that nobody has waited for.
    pub(crate) async fn ended_with_its_group(&mut self) -> Exit {
        if self.ended.is_none() && self.pidfd.readable().await.is_ok() {
            self.kill_group();
        }
        self.ended().await
    }

    /// Sends a signal to it; after its end nothing happens.
    pub(crate) fn signal(&self, signal: Signal) {
        if self.ended.is_none()
            && let Err(error) = pidfd_send_signal(&self.pidfd, signal)
        {
            tracing::debug!(pid = self.pid(), %error, "could not send a signal");
        }
    }

    /// Sends SIGKILL to its whole process group, which it must lead. The group's number stays reserved while a member lives or
    /// its leader has not been waited for, so this is only done before the end was seen.
    pub(crate) fn kill_group(&self) {
        if self.ended.is_none() {
            let _ = kill_process_group(self.pid, Signal::KILL);
        }
    }
}

//! Starting processes and learning how they end.
//!
//! One thread forks everything and lives as long as the node: the kernel's parent-death signal fires when the *thread* that
//! forked ends, so a fork from a thread of the runtime's pool would kill healthy daemons. A process is held by its pidfd from the
//! moment of its fork; nothing here ever signals a bare number that might have been given to somebody else meanwhile.

mod gate;
mod handle;
pub(crate) mod proc;
mod unsafe_calls;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use command_fds::{CommandFdExt as _, FdMapping};
use rustix::fs::{MemfdFlags, SeekFrom};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::oneshot;

use crate::confine::Confinement;

pub(crate) use gate::{Door, Gate};
pub(crate) use handle::{Exit, ProcessHandle};

/// First descriptor of the systemd protocol.
const FIRST_DESCRIPTOR: i32 = 3;
/// Most sockets that one child gets: eight addresses of the API are the most that the configuration allows.
const MAX_DESCRIPTORS: i32 = 16;

/// What to start. Its environment and its input hold secrets, so that no `Debug` shows them.
pub(crate) struct Spec {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    /// The whole environment: nothing is inherited.
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) directory: Option<PathBuf>,
    pub(crate) input: Input,
    pub(crate) output: Output,
    /// Sockets by name, passed by the systemd protocol.
    pub(crate) sockets: Vec<(String, OwnedFd)>,
    pub(crate) bond: Bond,
    pub(crate) limits: Limits,
    pub(crate) rights: Rights,
}

/// What a process may do: by default what we may, less new privileges, which no child ever gets (`PR_SET_NO_NEW_PRIVS`).
#[derive(Debug, Default)]
pub(crate) struct Rights {
    /// Somebody else to be.
    pub(crate) user: Option<User>,
    /// Entered last, just before the program.
    pub(crate) confined: Option<Confinement>,
    /// Where it waits before the program, until somebody has put it where it belongs.
    pub(crate) gate: Option<Gate>,
}

/// A user, with its groups. Only root can make a process somebody else's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    /// `umask(2)`.
    pub(crate) mask: u32,
}

/// What is different for a process from what we have ourselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Limits {
    /// So much easier to kill than we are when the machine runs out of memory, in thousandths of it (`proc(5)`, `oom_score_adj`).
    pub(crate) easier_to_kill: i32,
    /// How many files it may have open, as far as we may have so many.
    pub(crate) files: Option<u64>,
    /// How many processes and threads its user may have: for users that belong to one process and its children.
    pub(crate) tasks: Option<u64>,
}

/// The highest value of `oom_score_adj`.
const EASIEST_TO_KILL: i32 = 1000;

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spec")
            .field("program", &self.program)
            .field("arguments", &self.arguments)
            .finish_non_exhaustive()
    }
}

/// Standard input.
pub(crate) enum Input {
    Nothing,
    /// A document, secrets included: it lives in memory only and never blocks the writer.
    Document(Vec<u8>),
}

/// Standard output and standard error.
#[derive(Debug)]
pub(crate) enum Output {
    /// Both go to our standard error: standard output belongs to the command that the supervisor is part of.
    OurLog,
    /// Both go to this file, which outlives us.
    File(File),
    /// Two pipes.
    Piped,
}

/// What ties a process to the supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bond {
    /// Dies with it, the kernel sees to that; a process group of its own, so that Ctrl-C reaches only us.
    Bound,
    /// Outlives it, in a session of its own.
    Free,
}

/// A process that was started. Its end must be waited for, or it stays a zombie.
#[derive(Debug)]
pub(crate) struct Spawned {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
}

type Job = (Spec, oneshot::Sender<io::Result<Spawned>>);

/// The threads that fork: one for most, and one for those that wait at a gate, so that a service manager that is slow holds up
/// nobody else. They end when the last clone of this is dropped, and with them every [`Bond::Bound`] process.
#[derive(Debug, Clone)]
pub(crate) struct Spawner {
    jobs: mpsc::Sender<Job>,
    gated: mpsc::Sender<Job>,
}

impl Spawner {
    /// Starts the threads.
    pub(crate) fn start() -> io::Result<Self> {
        let reserved = reserve_low_descriptors()?;
        Ok(Self { jobs: forking("spawner", reserved)?, gated: forking("spawner-gated", Vec::new())? })
    }

    /// Starts a process.
    pub(crate) async fn spawn(&self, spec: Spec) -> io::Result<Spawned> {
        let (answer, outcome) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts processes is gone");
        let thread = if spec.rights.gate.is_some() { &self.gated } else { &self.jobs };
        thread.send((spec, answer)).map_err(|_| gone())?;
        outcome.await.map_err(|_| gone())?
    }

    /// The same, as a handle. For processes without pipes.
    pub(crate) async fn start_process(&self, spec: Spec) -> io::Result<ProcessHandle> {
        let spawned = self.spawn(spec).await?;
        ProcessHandle::of_child(spawned.pid, spawned.pidfd)
    }
}

fn forking(name: &str, reserved: Vec<File>) -> io::Result<mpsc::Sender<Job>> {
    let (jobs, inbox) = mpsc::channel::<Job>();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _reserved = reserved;
        for (spec, answer) in inbox {
            // A caller that is gone leaves the process without an owner: end it at once.
            if let Err(Ok(orphan)) = answer.send(spawn(spec)) {
                let _ = rustix::process::pidfd_send_signal(&orphan.pidfd, rustix::process::Signal::KILL);
                let _ = rustix::process::waitid(
                    rustix::process::WaitId::PidFd(orphan.pidfd.as_fd()),
                    rustix::process::WaitIdOptions::EXITED,
                );
            }
        }
    })?;
    Ok(jobs)
}

/// Keeps the descriptors that a child's sockets are moved to taken here. Between fork and exec the child's end of the standard
/// library's error pipe would otherwise be such a low number, and moving a socket there would close it: a failed exec would then
/// look like a success.
fn reserve_low_descriptors() -> io::Result<Vec<File>> {
    let mut reserved = Vec::new();
    loop {
        let file = File::open("/dev/null")?;
        if file.as_raw_fd() >= FIRST_DESCRIPTOR + MAX_DESCRIPTORS {
            return Ok(reserved);
        }
        reserved.push(file);
    }
}

fn spawn(spec: Spec) -> io::Result<Spawned> {
    let mut command = Command::new(&spec.program);
    command.args(&spec.arguments).env_clear().envs(&spec.environment);
    if let Some(directory) = &spec.directory {
        command.current_dir(directory);
    }
    command.stdin(match spec.input {
        Input::Nothing => Stdio::null(),
        Input::Document(bytes) => Stdio::from(in_memory(&bytes)?),
    });
    match spec.output {
        Output::OurLog => {
            let log = io::stderr().as_fd().try_clone_to_owned()?;
            command.stdout(log.try_clone()?).stderr(log);
        }
        Output::File(file) => {
            command.stdout(file.try_clone()?).stderr(file);
        }
        Output::Piped => {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
    }
    // What a child does before its program runs, in this order: what only root may do comes first, and what cannot be taken back last.
    if let Some(gate) = spec.rights.gate {
        unsafe_calls::wait_at(&mut command, gate);
    }
    unsafe_calls::limit(&mut command, spec.limits.files, spec.limits.tasks);
    if let Some(user) = &spec.rights.user {
        unsafe_calls::become_user(&mut command, user);
    }
    match spec.bond {
        Bond::Bound => {
            command.process_group(0);
            // A change of user clears the signal, so it is asked for after that.
            unsafe_calls::die_with_parent(&mut command);
        }
        Bond::Free => unsafe_calls::own_session(&mut command),
    }
    pass_sockets(&mut command, spec.sockets)?;
    unsafe_calls::confine(&mut command, spec.rights.confined);
    let mut child = command.spawn()?;
    let pid = Pid::from_child(&child);
    if spec.limits.easier_to_kill > 0
        && let Err(error) = make_easier_to_kill(child.id(), spec.limits.easier_to_kill)
    {
        tracing::debug!(%error, "cannot make a process easier to kill than the node");
    }
    let pidfd = held(&mut child, |pid| pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from))?;
    let (stdout, stderr) = (child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from));
    Ok(Spawned { pid, pidfd, stdout, stderr })
}

/// Takes hold of a child. Nobody has waited for it, so the number is still its own even if it has ended already. One that cannot be
/// held, because we may open no more files, is ended: nobody would own it.
fn held(child: &mut Child, open: impl FnOnce(Pid) -> io::Result<OwnedFd>) -> io::Result<OwnedFd> {
    let pid = Pid::from_child(child);
    open(pid).inspect_err(|_| handle::end(pid))
}

/// Anybody may raise the value of a process of theirs.
fn make_easier_to_kill(pid: u32, by: i32) -> io::Result<()> {
    let own: i32 = std::fs::read_to_string("/proc/self/oom_score_adj")?.trim().parse().map_err(io::Error::other)?;
    std::fs::write(format!("/proc/{pid}/oom_score_adj"), own.saturating_add(by).min(EASIEST_TO_KILL).to_string())
}

fn pass_sockets(command: &mut Command, sockets: Vec<(String, OwnedFd)>) -> io::Result<()> {
    if sockets.is_empty() {
        return Ok(());
    }
    if sockets.len() > usize::try_from(MAX_DESCRIPTORS).unwrap_or(0) {
        return Err(io::Error::other("more sockets than a child may get"));
    }
    let names: Vec<&str> = sockets.iter().map(|(name, _)| name.as_str()).collect();
    command.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
    let numbered = (FIRST_DESCRIPTOR..).zip(sockets);
    let mappings = numbered.map(|(child_fd, (_, parent_fd))| FdMapping { parent_fd, child_fd }).collect();
    command.fd_mappings(mappings).map_err(io::Error::other)?;
    Ok(())
}

/// A file without a name, positioned at its start.
fn in_memory(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create("scafo-settings", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    rustix::fs::seek(&file, SeekFrom::Start(0))?;
    Ok(file.into())
}

#[cfg(test)]
mod tests;

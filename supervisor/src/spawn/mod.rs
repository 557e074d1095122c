//! Starting processes and learning how they end.
//!
//! One thread forks everything and lives as long as the node: the kernel's parent-death signal fires when the *thread* that
//! forked ends, so a fork from a thread of the runtime's pool would kill healthy daemons. A process is held by its pidfd from the
//! moment of its fork; nothing here ever signals a bare number that might have been given to somebody else meanwhile.

mod handle;
pub(crate) mod proc;
mod unsafe_calls;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use command_fds::{CommandFdExt as _, FdMapping};
use rustix::fs::{MemfdFlags, SeekFrom};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::oneshot;

pub(crate) use handle::{Exit, ProcessHandle};

/// First descriptor of the systemd protocol.
const FIRST_DESCRIPTOR: i32 = 3;
/// Most sockets that one child gets: eight addresses of the API are the most that the configuration allows.
const MAX_DESCRIPTORS: i32 = 16;

/// What to start.
#[derive(Debug)]
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
}

/// What is different for a process from what we have ourselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Limits {
    /// So much easier to kill than we are when the machine runs out of memory, in thousandths of it (`proc(5)`, `oom_score_adj`).
    pub(crate) easier_to_kill: i32,
    /// How many files it may have open, as far as we may have so many.
    pub(crate) files: Option<u64>,
}

/// The highest value of `oom_score_adj`.
const EASIEST_TO_KILL: i32 = 1000;

/// Standard input.
#[derive(Debug)]
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

/// The thread that forks. It ends when the last clone of this is dropped, and with it every [`Bond::Bound`] process.
#[derive(Debug, Clone)]
pub(crate) struct Spawner {
    jobs: mpsc::Sender<Job>,
}

impl Spawner {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Self> {
        let reserved = reserve_low_descriptors()?;
        let (jobs, inbox) = mpsc::channel::<Job>();
        std::thread::Builder::new().name("spawner".to_owned()).spawn(move || {
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
        Ok(Self { jobs })
    }

    /// Starts a process.
    pub(crate) async fn spawn(&self, spec: Spec) -> io::Result<Spawned> {
        let (answer, outcome) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts processes is gone");
        self.jobs.send((spec, answer)).map_err(|_| gone())?;
        outcome.await.map_err(|_| gone())?
    }

    /// The same, as a handle. For processes without pipes.
    pub(crate) async fn start_process(&self, spec: Spec) -> io::Result<ProcessHandle> {
        let spawned = self.spawn(spec).await?;
        ProcessHandle::of_child(spawned.pid, spawned.pidfd)
    }
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
    match spec.bond {
        Bond::Bound => {
            command.process_group(0);
            unsafe_calls::die_with_parent(&mut command);
        }
        Bond::Free => unsafe_calls::own_session(&mut command),
    }
    if let Some(files) = spec.limits.files {
        unsafe_calls::limit_files(&mut command, files);
    }
    pass_sockets(&mut command, spec.sockets)?;
    let mut child = command.spawn()?;
    let pid = Pid::from_child(&child);
    if spec.limits.easier_to_kill > 0
        && let Err(error) = make_easier_to_kill(child.id(), spec.limits.easier_to_kill)
    {
        tracing::debug!(%error, "cannot make a process easier to kill than the node");
    }
    // Nobody has waited for it, so the number is still this child's even if it has ended already.
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let (stdout, stderr) = (child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from));
    Ok(Spawned { pid, pidfd, stdout, stderr })
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

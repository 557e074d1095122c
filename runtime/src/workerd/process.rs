//! One running workerd: from its start until it is gone, with one task that owns it.

use std::{
    collections::VecDeque,
    fs::File,
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use scafo_proxy::Upstream;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    net::unix::pipe,
    process::{Child, Command},
    sync::{mpsc, watch},
    task::JoinSet,
    time::timeout,
};

use super::{Launcher, config::SOCKETS, stage::Staged};
use crate::{
    Failure,
    args::EXEC_WORKERD,
    failure::{Context, Outcome},
};

/// How long workerd may take to listen. It takes a tenth of a second; a loaded machine and a large bundle take some.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Longest line of a Worker's output that is kept in one piece, in bytes.
const LINE_BYTES_MAX: usize = 8 << 10;

/// How much of the last output goes into an error, in bytes: what a deploy record carries.
const TAIL_BYTES_MAX: usize = 2 << 10;

/// A workerd that listens.
#[derive(Debug)]
pub(crate) struct Workerd {
    pub pid: u32,
    /// Where it takes requests.
    pub http: Upstream,
    /// Where it answers the node itself.
    pub side: Upstream,
    stop: mpsc::Sender<Duration>,
    ended: watch::Receiver<Option<Ended>>,
    /// The directory that the sockets are in: paths through an open directory are short, whatever its own path is.
    _directory: File,
    /// One task; dropping it kills the child.
    _owner: JoinSet<()>,
    _staged: Arc<Staged>,
}

/// How it ended, and its last words.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub status: Option<ExitStatus>,
    pub last_words: String,
}

/// The last output, shared by the readers of both streams.
type Tail = Arc<Mutex<VecDeque<u8>>>;

impl Workerd {
    /// Starts `program` on what was staged, and waits until it listens.
    ///
    /// # Errors
    /// It ended, with its last words, or did not listen in time.
    pub(crate) async fn start(launcher: &Launcher, program: &Path, staged: Arc<Staged>) -> Outcome<Self> {
        let directory = File::open(staged.directory()).context(|| "open the stage of workerd".into())?;
        let (control, control_writer) = io::pipe().context(|| "make a pipe for workerd".into())?;
        let this = std::env::current_exe().context(|| "find this program".into())?;
        let mut command = Command::new(this);
        command
            .arg(EXEC_WORKERD)
            .arg(std::process::id().to_string())
            .arg(program)
            .args(["serve", "--experimental", "--control-fd=0"])
            .arg(staged.config())
            .current_dir(staged.directory())
            .env_clear()
            // The group of this process may get a signal that is for this process alone.
            .process_group(0)
            // Descriptor 0 is where workerd says that it listens.
            .stdin(Stdio::from(OwnedFd::from(control_writer)));
        let mut child = launcher.spawn(command).await.context(|| "start workerd".into())?;
        let pid = child.id().context(|| "workerd ended at once".into())?;
        let tail = Tail::default();
        let control = pipe::Receiver::from_owned_fd(OwnedFd::from(control)).context(|| "read from workerd".into())?;
        let (stop, stops) = mpsc::channel(1);
        let (end, mut ended) = watch::channel(None);
        let outputs = (child.stdout.take(), child.stderr.take());
        let mut owner = JoinSet::new();
        owner.spawn(own(child, outputs, tail, stops, end));
        let listening = tokio::select! {
            biased;
            listens = timeout(START_LIMIT, listens(control, SOCKETS)) => listens.unwrap_or(false),
            _ = ended.wait_for(Option::is_some) => false,
        };
        if !listening {
            return Err(failed_start(&stop, &mut ended).await);
        }
        let socket = |name: &str| Upstream::unix(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()));
        let (http, side) = (socket(super::HTTP_SOCKET), socket(super::SIDE_SOCKET));
        Ok(Self { pid, http, side, stop, ended, _directory: directory, _owner: owner, _staged: staged })
    }

    /// Waits until it is gone.
    pub(crate) async fn ended(&self) -> Ended {
        ended(&mut self.ended.clone()).await
    }

    /// Asks it to end, kills it after `grace`, and waits until it is gone.
    pub(crate) async fn stop(&self, grace: Duration) {
        // Full: it is being stopped already. Closed: it is gone.
        let _being_stopped = self.stop.try_send(grace);
        self.ended().await;
    }
}

async fn ended(ended: &mut watch::Receiver<Option<Ended>>) -> Ended {
    let gone = ended.wait_for(Option::is_some).await.ok().and_then(|found| found.clone());
    gone.unwrap_or(Ended { status: None, last_words: String::new() })
}

async fn failed_start(stop: &mpsc::Sender<Duration>, end: &mut watch::Receiver<Option<Ended>>) -> Failure {
    // The pipe may break a moment before the end is known; the words come with the end.
    let gone = match timeout(Duration::from_secs(1), ended(end)).await {
        Ok(gone) => gone,
        Err(_) => {
            let _being_stopped = stop.try_send(Duration::ZERO);
            ended(end).await
        }
    };
    let words = if gone.last_words.is_empty() { "it said nothing" } else { gone.last_words.as_str() };
    match gone.status {
        Some(status) => Failure::new(format!("workerd did not start ({status}): {words}")),
        None => Failure::new(format!("workerd did not start: {words}")),
    }
}

/// Reads the control pipe until every socket is named.
async fn listens(mut control: pipe::Receiver, sockets: usize) -> bool {
    let mut said = Vec::new();
    let mut buffer = [0; 1024];
    while let Ok(read @ 1..) = control.read(&mut buffer).await {
        said.extend_from_slice(buffer.get(..read).unwrap_or_default());
        let events = said.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
        let listen = |line: &[u8]| line.windows(8).any(|window| window == br#""listen""#);
        if events.filter(|line| listen(line)).count() >= sockets {
            return true;
        }
        if said.len() > LINE_BYTES_MAX {
            return false;
        }
    }
    false
}

/// Owns the child: passes its output on, stops it when asked, and tells how it ended.
async fn own<O, E>(
    mut child: Child,
    (out, err): (Option<O>, Option<E>),
    tail: Tail,
    mut stops: mpsc::Receiver<Duration>,
    end: watch::Sender<Option<Ended>>,
) where
    O: AsyncRead + Unpin,
    E: AsyncRead + Unpin,
{
    let output = async { tokio::join!(pass_on(out, &tail, "stdout"), pass_on(err, &tail, "stderr")) };
    let mut output = std::pin::pin!(output);
    let mut output_ended = false;
    let status = loop {
        tokio::select! {
            biased;
            status = child.wait() => break status.ok(),
            Some(grace) = stops.recv() => break stop(&mut child, grace).await,
            _ = &mut output, if !output_ended => output_ended = true,
        }
    };
    if !output_ended {
        // What it said last is in the pipe; a grandchild that holds the pipe open must not hold us.
        let _rest = timeout(Duration::from_millis(200), output).await;
    }
    let mut words = tail.lock().unwrap_or_else(PoisonError::into_inner);
    let last_words = String::from_utf8_lossy(words.make_contiguous()).trim().to_owned();
    end.send_replace(Some(Ended { status, last_words }));
}

async fn stop(child: &mut Child, grace: Duration) -> Option<ExitStatus> {
    if !grace.is_zero()
        && let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok())
    {
        // The child is not reaped yet, so the number is still its own.
        let _gone = kill(Pid::from_raw(pid), Signal::SIGTERM);
        if let Ok(status) = timeout(grace, child.wait()).await {
            return status.ok();
        }
    }
    child.kill().await.ok()?;
    child.wait().await.ok()
}

/// Logs a stream line by line and keeps its end.
async fn pass_on(stream: Option<impl AsyncRead + Unpin>, tail: &Mutex<VecDeque<u8>>, name: &'static str) {
    let Some(mut stream) = stream else { return };
    let mut line = Vec::with_capacity(256);
    let mut buffer = vec![0; LINE_BYTES_MAX];
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        let read = buffer.get(..read).unwrap_or_default();
        keep_tail(tail, read);
        for part in read.split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(part);
            if part.ends_with(b"\n") || line.len() >= LINE_BYTES_MAX {
                log(&line, name);
                line.clear();
            }
        }
    }
    log(&line, name);
}

fn log(line: &[u8], stream: &'static str) {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end();
    if !text.is_empty() {
        tracing::info!(target: "worker", stream, "{text}");
    }
}

fn keep_tail(tail: &Mutex<VecDeque<u8>>, bytes: &[u8]) {
    let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
    tail.extend(bytes);
    let over = tail.len().saturating_sub(TAIL_BYTES_MAX);
    tail.drain(..over);
}

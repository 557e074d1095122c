//! Programs that run to their end: bounded in time and in what is kept of their output. Nothing of a job outlives its end.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use crate::spawn::{Exit, Output, ProcessHandle, Spawner, Spec};

/// What is kept of standard output, its beginning, in bytes. What celld prints there is one line.
const STDOUT_KEPT: usize = 64 * 1024;
/// What is kept of standard error, its end, in bytes: the message of a failure stands last.
const STDERR_KEPT: usize = 64 * 1024;
/// Longest line that is passed on whole, in bytes.
const LONGEST_LINE: usize = 4096;
/// How long the pipes may stay open behind the job's end. Whoever holds them then has left the job's process group.
const PIPES_GRACE: Duration = Duration::from_secs(2);

/// How a job ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) exit: Exit,
    pub(crate) why: Why,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// Who ended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    ItEnded,
    Deadline,
    Cancelled,
}

/// Runs a program to its end, which comes at `deadline` at the latest, or when `cancelled` resolves: then its whole process group
/// is killed. Lines of standard error go to `lines`; those for which there is no room are left out there.
pub(crate) async fn run(
    spawner: &Spawner,
    spec: Spec,
    deadline: Duration,
    cancelled: impl Future<Output = ()>,
    lines: Option<mpsc::Sender<String>>,
) -> io::Result<Finished> {
    let spawned = spawner.spawn(Spec { output: Output::Piped, ..spec }).await?;
    let mut process = ProcessHandle::of_child(spawned.pid, spawned.pidfd)?;
    let (mut stdout, mut stderr) = (Kept::first(STDOUT_KEPT), Kept::last(STDERR_KEPT));
    let kept = (&mut stdout, &mut stderr);
    let reading = Box::pin(async move {
        tokio::join!(read(spawned.stdout, kept.0, None), read(spawned.stderr, kept.1, lines));
    });
    let ending = async {
        let why = tokio::select! {
            biased;
            exit = process.ended_with_its_group() => return (exit, Why::ItEnded),
            () = cancelled => Why::Cancelled,
            () = tokio::time::sleep(deadline) => Why::Deadline,
        };
        process.kill_group();
        (process.ended_with_its_group().await, why)
    };
    let mut reading = reading;
    tokio::pin!(ending);
    let mut read_all = false;
    let (exit, why) = loop {
        tokio::select! {
            biased;
            ended = &mut ending => break ended,
            () = &mut reading, if !read_all => read_all = true,
        }
    };
    if !read_all {
        let _ = tokio::time::timeout(PIPES_GRACE, &mut reading).await;
    }
    drop(reading);
    Ok(Finished { exit, why, stdout: stdout.bytes, stderr: stderr.bytes })
}

/// A bounded piece of a stream.
struct Kept {
    bytes: Vec<u8>,
    most: usize,
    last: bool,
}

impl Kept {
    const fn first(most: usize) -> Self {
        Self { bytes: Vec::new(), most, last: false }
    }

    const fn last(most: usize) -> Self {
        Self { bytes: Vec::new(), most, last: true }
    }

    fn push(&mut self, piece: &[u8]) {
        if self.last {
            self.bytes.extend_from_slice(piece);
            let over = self.bytes.len().saturating_sub(self.most);
            self.bytes.drain(..over);
        } else {
            let room = self.most - self.bytes.len();
            self.bytes.extend_from_slice(&piece[..piece.len().min(room)]);
        }
    }
}

/// Reads a pipe to its end, always, so that its writer never blocks.
async fn read(pipe: Option<OwnedFd>, kept: &mut Kept, lines: Option<mpsc::Sender<String>>) {
    let Some(pipe) = pipe else { return };
    match pipe::Receiver::from_owned_fd(pipe) {
        Ok(pipe) => read_from(pipe, kept, lines).await,
        Err(error) => tracing::error!(%error, "cannot read the output of a job"),
    }
}

async fn read_from(mut pipe: impl AsyncRead + Unpin, kept: &mut Kept, lines: Option<mpsc::Sender<String>>) {
    let mut buffer = vec![0; 8192];
    let mut splitter = Splitter::default();
    while let Ok(length @ 1..) = pipe.read(&mut buffer).await {
        kept.push(&buffer[..length]);
        if let Some(lines) = &lines {
            splitter.push(&buffer[..length], |line| {
                // A reader that is slow or gone misses lines; the end of the output is kept anyway.
                let _ = lines.try_send(line);
            });
        }
    }
    if let Some(lines) = &lines {
        splitter.finish(|line| drop(lines.try_send(line)));
    }
}

#[derive(Default)]
struct Splitter(Vec<u8>);

impl Splitter {
    fn push(&mut self, piece: &[u8], mut emit: impl FnMut(String)) {
        for byte in piece {
            if *byte == b'\n' || self.0.len() >= LONGEST_LINE {
                emit(self.take());
            }
            if *byte != b'\n' {
                self.0.push(*byte);
            }
        }
    }

    fn finish(&mut self, mut emit: impl FnMut(String)) {
        if !self.0.is_empty() {
            emit(self.take());
        }
    }

    fn take(&mut self) -> String {
        let line = String::from_utf8_lossy(&self.0).trim_end_matches('\r').to_owned();
        self.0.clear();
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spawn::{Bond, Input, proc};
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    fn shell(script: &str) -> Spec {
        Spec {
            program: PathBuf::from("/bin/sh"),
            arguments: vec!["-c".into(), script.into()],
            environment: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
            directory: None,
            input: Input::Nothing,
            output: Output::Piped,
            sockets: Vec::new(),
            bond: Bond::Bound,
            limits: crate::spawn::Limits::default(),
            rights: crate::spawn::Rights::default(),
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    async fn run_to_end(script: &str, deadline: Duration) -> Finished {
        let spawner = Spawner::start().unwrap();
        run(&spawner, shell(script), deadline, std::future::pending(), None).await.unwrap()
    }

    #[tokio::test]
    async fn both_streams_and_the_code_come_back() {
        let finished = run_to_end("echo out; echo err >&2; exit 3", LONG).await;
        assert_eq!((finished.exit, finished.why), (Exit::Code(3), Why::ItEnded));
        assert_eq!((finished.stdout.as_slice(), finished.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    }

    #[tokio::test]
    async fn output_is_bounded_and_the_writer_never_blocks() {
        let finished =
            run_to_end("head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; echo last >&2; echo more", LONG)
                .await;
        assert_eq!(finished.exit, Exit::Code(0));
        assert_eq!((finished.stdout.len(), finished.stderr.len()), (STDOUT_KEPT, STDERR_KEPT));
        assert!(finished.stderr.ends_with(b"last\n"));
    }

    #[tokio::test]
    async fn a_deadline_kills_the_whole_group() {
        // The first may come before the shell has said a word.
        for deadline in [300, 3_000, 30_000].map(Duration::from_millis) {
            let finished = run_to_end("sleep 600 & echo $!; wait", deadline).await;
            assert_eq!((finished.exit, finished.why), (Exit::Signal(9), Why::Deadline));
            if !finished.stdout.is_empty() {
                return gone(&finished).await;
            }
        }
        panic!("it says nothing");
    }

    #[tokio::test]
    async fn what_a_job_leaves_behind_is_killed_with_its_end() {
        let finished = run_to_end("sleep 600 & echo $!", LONG).await;
        assert_eq!((finished.exit, finished.why), (Exit::Code(0), Why::ItEnded));
        gone(&finished).await;
    }

    #[tokio::test]
    async fn cancelling_kills() {
        let spawner = Spawner::start().unwrap();
        let finished = run(&spawner, shell("exec sleep 600"), LONG, std::future::ready(()), None).await.unwrap();
        assert_eq!((finished.exit, finished.why), (Exit::Signal(9), Why::Cancelled));
    }

    #[tokio::test]
    async fn lines_come_one_by_one() {
        let spawner = Spawner::start().unwrap();
        let (sender, mut lines) = mpsc::channel(16);
        let script = "printf 'a\\nb\\r\\nc' >&2";
        run(&spawner, shell(script), LONG, std::future::pending(), Some(sender)).await.unwrap();
        let mut got = Vec::new();
        while let Some(line) = lines.recv().await {
            got.push(line);
        }
        assert_eq!(got, ["a", "b", "c"]);
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let mut lengths = Vec::new();
        let mut splitter = Splitter::default();
        splitter.push(&vec![b'x'; LONGEST_LINE * 2 + 1], |line| lengths.push(line.len()));
        splitter.finish(|line| lengths.push(line.len()));
        assert_eq!(lengths, [LONGEST_LINE, LONGEST_LINE, 1]);
    }

    async fn gone(finished: &Finished) {
        let inner: u32 = String::from_utf8_lossy(&finished.stdout).trim().parse().unwrap();
        for _ in 0..1000 {
            if proc::start_time(inner).is_none() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the job left a process behind");
    }
}

//! The process's words. Nothing here waits for a reader or fails because there is none: a supervisor may be gone while the
//! application must go on.

use std::{
    io::{self, Write},
    sync::{
        OnceLock,
        mpsc::{SyncSender, sync_channel},
    },
    time::Duration,
};

use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

/// Lines that may wait for a stalled reader before new ones are dropped, as in celld.
const LOG_LINES_MAX: usize = 8192;

/// How long the end of the process waits for its last lines to be read.
const FLUSH_LIMIT: Duration = Duration::from_millis(200);

/// The way to the thread that writes the log of a node.
static LOG: OnceLock<SyncSender<Message>> = OnceLock::new();

enum Message {
    Line(Vec<u8>),
    /// Everything before this is written.
    Flush(SyncSender<()>),
}

/// One line of data on standard output.
pub(crate) fn line(text: &str) {
    // Nobody is there to be told that nobody reads.
    let _unread = writeln!(io::stdout().lock(), "{text}");
}

/// Text that ends in its own line break, on standard output.
pub(crate) fn text(text: &str) {
    let _unread = io::stdout().lock().write_all(text.as_bytes());
}

/// One line for people on standard error.
pub(crate) fn note(text: &str) {
    let _unread = writeln!(io::stderr().lock(), "{text}");
}

/// Sends the log of a node to standard output, through a thread that alone may block on it.
pub(crate) fn start_node_log() {
    let (lines, waiting) = sync_channel(LOG_LINES_MAX);
    let writer = std::thread::Builder::new().name("log".into()).spawn(move || {
        for message in waiting {
            match message {
                Message::Line(line) => {
                    let _unread = io::stdout().lock().write_all(&line);
                }
                Message::Flush(done) => {
                    let _gone = done.try_send(());
                }
            }
        }
    });
    if writer.is_err() {
        return note("Warning: no thread for the log: this node logs nothing");
    }
    // A process is one node.
    let _only_once = LOG.set(lines.clone());
    install(LossyStdout { lines });
}

/// Waits a moment for the log's last lines to be written.
pub(crate) fn flush_node_log() {
    let Some(lines) = LOG.get() else { return };
    let (done, flushed) = sync_channel(1);
    if lines.try_send(Message::Flush(done)).is_ok() {
        let _stalled = flushed.recv_timeout(FLUSH_LIMIT);
    }
}

/// Sends the log of a command to standard error, so that standard output is data.
pub(crate) fn start_command_log() {
    install(io::stderr);
}

fn install<W: for<'a> MakeWriter<'a> + Send + Sync + 'static>(writer: W) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(writer);
    // A second log in one process would be a mistake of ours, and the first one goes on.
    let _already = log.try_init();
}

struct LossyStdout {
    lines: SyncSender<Message>,
}

struct LossyLine<'a> {
    line: Vec<u8>,
    lines: &'a SyncSender<Message>,
}

impl<'a> MakeWriter<'a> for LossyStdout {
    type Writer = LossyLine<'a>;

    fn make_writer(&'a self) -> LossyLine<'a> {
        LossyLine { line: Vec::with_capacity(256), lines: &self.lines }
    }
}

impl Write for LossyLine<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LossyLine<'_> {
    fn drop(&mut self) {
        if !self.line.is_empty() {
            let _dropped_when_full = self.lines.try_send(Message::Line(std::mem::take(&mut self.line)));
        }
    }
}

//! Being a child of the supervisor.
//!
//! Sockets come by the systemd protocol (descriptors from 3 on, `LISTEN_FDS`, `LISTEN_FDNAMES`), so a daemon can also be
//! started by systemd or by hand. The settings come as one JSON document on standard input, because arguments and environment
//! can be read by others and hold no secrets.

use std::collections::HashMap;
use std::io::{self, IsTerminal as _, Read as _};
use std::os::unix::net::UnixListener;

use listenfd::ListenFd;
use serde::de::DeserializeOwned;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Longest settings document. A node with a thousand labels has about 100 KiB.
const MAX_SETTINGS_BYTES: u64 = 4 * 1024 * 1024;

/// What keeps a daemon from starting.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Standard input could not be read.
    #[error("cannot read the settings from standard input")]
    Settings(#[source] io::Error),
    /// Standard input holds no settings of this daemon. The text is kept out: it may hold secrets.
    #[error("standard input does not hold the settings of this daemon: line {line}, column {column}")]
    Malformed {
        /// Where.
        line: usize,
        /// Where.
        column: usize,
    },
    /// The supervisor did not pass a socket.
    #[error("no socket named `{0}` was passed; this daemon is started by scafo-supervisor")]
    NoSocket(String),
    /// What was passed is no such socket.
    #[error("the socket named `{name}` cannot be used")]
    BadSocket {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        cause: io::Error,
    },
}

/// Reads the settings.
///
/// # Errors
/// [`StartError::Settings`] and [`StartError::Malformed`].
pub fn settings<T: DeserializeOwned>() -> Result<T, StartError> {
    let mut text = Vec::new();
    io::stdin().lock().take(MAX_SETTINGS_BYTES).read_to_end(&mut text).map_err(StartError::Settings)?;
    serde_json::from_slice(&text).map_err(|error| StartError::Malformed { line: error.line(), column: error.column() })
}

/// The sockets that this process was started with.
pub struct Listeners {
    passed: ListenFd,
    positions: HashMap<String, usize>,
}

impl Listeners {
    /// Reads what was passed. To be called once, before any file is opened.
    pub fn from_env() -> Self {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let positions = names.split(':').enumerate().map(|(index, name)| (name.to_owned(), index)).collect();
        Self { passed: ListenFd::from_env(), positions }
    }

    /// Takes a TCP listener, ready for tokio.
    ///
    /// # Errors
    /// When it was not passed or cannot be used.
    pub fn take_tcp(&mut self, name: &str) -> Result<tokio::net::TcpListener, StartError> {
        let index = self.position(name)?;
        let mut ready = || -> io::Result<Option<tokio::net::TcpListener>> {
            let Some(listener) = self.passed.take_tcp_listener(index)? else { return Ok(None) };
            listener.set_nonblocking(true)?;
            tokio::net::TcpListener::from_std(listener).map(Some)
        };
        found(name, ready())
    }

    /// Takes every TCP listener whose name starts with `prefix`, in the order of their names; at least one.
    ///
    /// # Errors
    /// When none was passed or one cannot be used.
    pub fn take_tcp_starting_with(&mut self, prefix: &str) -> Result<Vec<tokio::net::TcpListener>, StartError> {
        let mut names: Vec<_> = self.positions.keys().filter(|name| name.starts_with(prefix)).cloned().collect();
        if names.is_empty() {
            return Err(StartError::NoSocket(prefix.to_owned()));
        }
        names.sort();
        names.iter().map(|name| self.take_tcp(name)).collect()
    }

    /// Takes a Unix listener, ready for tokio.
    ///
    /// # Errors
    /// When it was not passed or cannot be used.
    pub fn take_unix(&mut self, name: &str) -> Result<tokio::net::UnixListener, StartError> {
        let index = self.position(name)?;
        let mut ready = || -> io::Result<Option<tokio::net::UnixListener>> {
            let Some(listener): Option<UnixListener> = self.passed.take_unix_listener(index)? else { return Ok(None) };
            listener.set_nonblocking(true)?;
            tokio::net::UnixListener::from_std(listener).map(Some)
        };
        found(name, ready())
    }

    fn position(&self, name: &str) -> Result<usize, StartError> {
        self.positions.get(name).copied().ok_or_else(|| StartError::NoSocket(name.to_owned()))
    }
}

fn found<T>(name: &str, outcome: io::Result<Option<T>>) -> Result<T, StartError> {
    match outcome {
        Ok(Some(listener)) => Ok(listener),
        Ok(None) => Err(StartError::NoSocket(name.to_owned())),
        Err(cause) => Err(StartError::BadSocket { name: name.to_owned(), cause }),
    }
}

/// What is logged unless `SCAFO_LOG` says otherwise. Pollers ask several times a second, so the access log is for who asks for it
/// (`SCAFO_LOG=info,s3s=off`). The S3 protocol crate reports every refused request as an error, with its
/// answer; bucketd logs for itself what an operator has to see.
const DEFAULT_FILTER: &str = "info,s3s=off,scafo::access=warn";

/// Sends the log to standard error: for people on a terminal, as JSON lines with `SCAFO_LOG_FORMAT=json`. `SCAFO_LOG`
/// filters it (default `info` without the access log).
pub fn init_tracing(process: &'static str) {
    let filter = EnvFilter::try_from_env("SCAFO_LOG").unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Unfailing(io::stderr()));
    // A second subscriber in one process is a test's doing; the first one stays.
    let _ = match std::env::var("SCAFO_LOG_FORMAT").as_deref() {
        Ok("json") => builder.json().with_current_span(false).try_init(),
        _ => builder.with_ansi(io::stderr().is_terminal()).try_init(),
    };
    tracing::debug!(process, pid = std::process::id(), "started");
}

/// Standard error, where a line that cannot be written is dropped. Without this a full disk under the log ends the process: the
/// subscriber reports a failed write on standard error, and a write that fails there panics.
struct Unfailing(io::Stderr);

impl io::Write for Unfailing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.0.write(bytes).unwrap_or(bytes.len()))
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}

/// Resolves when this process is asked to end (SIGTERM or SIGINT).
///
/// # Errors
/// When the handlers cannot be installed.
pub fn shutdown_signal() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

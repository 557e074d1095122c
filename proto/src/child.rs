//! Being a child of the supervisor.
//!
//! Sockets come by the systemd protocol (descriptors from 3 on, `LISTEN_FDS`, `LISTEN_FDNAMES`), so a daemon can also be
//! started by systemd or by hand. The settings come as one JSON document on standard input, because arguments and environment
//! can be read by others and hold no secrets.

use std::collections::HashMap;
use std::error::Error;
use std::io::{self, Read as _};
use std::os::unix::net::UnixListener;
use std::process::ExitCode;

use listenfd::ListenFd;
use scafo_core::settings::TelemetrySettings;
use scafo_telemetry::trace::Export;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::signal::unix::{SignalKind, signal};

/// Longest settings document. A node with a thousand labels has about 100 KiB.
const MAX_SETTINGS_BYTES: u64 = 4 * 1024 * 1024;

/// Exit code of a process that will not run with what it was given: starting it again changes nothing until somebody corrects that
/// (`EX_CONFIG` of `sysexits.h`).
pub const EXIT_REFUSED: u8 = 78;

/// Marks a failure that another start meets again.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Refused(Box<dyn Error + Send + Sync>);

impl Refused {
    /// A failure to mark.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(error.into())
    }
}

/// How a daemon that fails with `error` ends: with [`EXIT_REFUSED`] when it is [`Refused`] or a [`StartError`] that another try would
/// not mend, otherwise with 1.
pub fn exit_code(error: &(dyn Error + 'static)) -> ExitCode {
    ExitCode::from(if is_final(error) { EXIT_REFUSED } else { 1 })
}

fn is_final(error: &(dyn Error + 'static)) -> bool {
    match error.downcast_ref() {
        // Memory is short when another process has just been ended for want of it, and then is not.
        Some(StartError::Unconfined(cause)) => {
            !matches!(cause.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock)
        }
        Some(_) => true,
        None => error.is::<Refused>(),
    }
}

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
    /// What no daemon may do any more could not be given up.
    #[error("this process cannot give up what it must not do")]
    Unconfined(#[source] io::Error),
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

/// Reads the settings, and gives up what no daemon needs from then on: starting programs, and being looked into by others of the
/// same user. The rest of what a daemon must not do the supervisor sees to before it starts one.
///
/// # Errors
/// [`StartError::Settings`], [`StartError::Unconfined`] and [`StartError::Malformed`].
pub fn settings<T: DeserializeOwned>() -> Result<T, StartError> {
    settings_and_telemetry().map(|(own, _)| own)
}

/// As [`settings`], with what every daemon is told beside its own.
///
/// # Errors
/// As [`settings`].
pub fn settings_and_telemetry<T: DeserializeOwned>() -> Result<(T, TelemetrySettings), StartError> {
    #[derive(Deserialize)]
    struct Beside {
        #[serde(default)]
        telemetry: TelemetrySettings,
    }
    let mut text = Vec::new();
    io::stdin().lock().take(MAX_SETTINGS_BYTES).read_to_end(&mut text).map_err(StartError::Settings)?;
    crate::lockdown::give_up().map_err(StartError::Unconfined)?;
    let malformed = |error: serde_json::Error| StartError::Malformed { line: error.line(), column: error.column() };
    let own = serde_json::from_slice(&text).map_err(malformed)?;
    let Beside { telemetry } = serde_json::from_slice(&text).map_err(malformed)?;
    Ok((own, telemetry))
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

    /// Takes a TCP listener as [`Listeners::take_tcp`] does, if one was passed.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn try_take_tcp(&mut self, name: &str) -> Result<Option<tokio::net::TcpListener>, StartError> {
        if self.positions.contains_key(name) { self.take_tcp(name).map(Some) } else { Ok(None) }
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

    /// Takes a Unix listener as [`Listeners::take_unix`] does, if one was passed.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn try_take_unix(&mut self, name: &str) -> Result<Option<tokio::net::UnixListener>, StartError> {
        if self.positions.contains_key(name) { self.take_unix(name).map(Some) } else { Ok(None) }
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

/// Sends the log to standard error: see [`scafo_telemetry::log`].
pub fn init_tracing(process: &'static str) {
    scafo_telemetry::log::init(process);
}

/// Sends spans to the collector that `told` names, if it names one, as `service`. To be called within the runtime. What keeps spans
/// from being sent is logged and keeps nobody from work.
pub fn export_spans(service: &'static str, told: &TelemetrySettings) -> Option<Export> {
    let begun = Export::begin(told.otlp.as_deref()?, service, &told.node);
    begun.inspect_err(|error| tracing::error!(%error, "no traces are sent")).ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_another_try_would_not_mend_is_final() {
        let unconfined = |kind: io::ErrorKind| StartError::Unconfined(kind.into());
        for (error, last) in [
            (unconfined(io::ErrorKind::PermissionDenied), true),
            (unconfined(io::ErrorKind::OutOfMemory), false),
            (unconfined(io::ErrorKind::WouldBlock), false),
            (StartError::NoSocket("grpc".to_owned()), true),
        ] {
            assert_eq!(is_final(&error), last, "{error:?}");
        }
        assert!(is_final(&Refused::new("no")) && !is_final(&io::Error::other("later")));
    }
}

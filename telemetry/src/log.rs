//! The log: lines on standard error, filtered and formatted by two environment variables.

use std::io::{self, IsTerminal as _};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::Metadata;
use tracing_subscriber::filter::{FilterExt as _, FilterFn, LevelFilter, filter_fn};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, fmt, reload};

use crate::trace;

/// What is logged unless `SCAFO_LOG` says otherwise. Pollers ask several times a second, so the access log is for who asks for it
/// (`SCAFO_LOG=info,s3s=off`). The S3 protocol crate reports every refused request as an error, with its
/// answer; bucketd logs for itself what an operator has to see.
const DEFAULT_FILTER: &str = "info,s3s=off,scafo::access=warn";

/// Lines that could not be written.
static DROPPED: AtomicU64 = AtomicU64::new(0);
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Why the filter stays as it was.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// Not a filter.
    #[error("this is no filter for the log: {0}; write levels and targets, like `info,scafo::access=info`")]
    Malformed(#[from] tracing_subscriber::filter::ParseError),
    /// [`init`] was not called, or another subscriber was first.
    #[error("this process logs in a way of its own")]
    NotOurs,
}

/// Sends the log to standard error: for people on a terminal, as JSON lines with `SCAFO_LOG_FORMAT=json`. `SCAFO_LOG`
/// filters it (default `info` without the access log). Spans wait for [`crate::trace::Export`] to begin.
pub fn init(process: &'static str) {
    let filter = EnvFilter::try_from_env("SCAFO_LOG").unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let (filter, handle) = reload::Layer::new(filter);
    // Spans of traces are not for people who read lines: they would stand before each of them. Without a level of its own this
    // filter would take the other one's away, and every line that is not written would be looked at each time.
    let lines: FilterFn<fn(&Metadata<'_>) -> bool> = filter_fn(|metadata| !trace::is_ours(metadata));
    let lines = lines.with_max_level_hint(LevelFilter::TRACE);
    let layer = fmt::layer().with_writer(|| Unfailing(io::stderr()));
    let layer = match std::env::var("SCAFO_LOG_FORMAT").as_deref() {
        Ok("json") => layer.json().with_current_span(false).with_filter(filter.and(lines)).boxed(),
        _ => layer.with_ansi(io::stderr().is_terminal()).with_filter(filter.and(lines)).boxed(),
    };
    // A second subscriber in one process is a test's doing; the first one stays.
    if tracing_subscriber::registry().with(layer).with(trace::layer()).try_init().is_ok() {
        let _ = FILTER.set(handle);
    }
    tracing::debug!(process, pid = std::process::id(), "started");
}

/// Filters the log anew; empty for the default.
///
/// # Errors
/// [`FilterError`]; then everything stays as it was.
pub fn set_filter(directives: &str) -> Result<(), FilterError> {
    let filter = EnvFilter::try_new(if directives.is_empty() { DEFAULT_FILTER } else { directives })?;
    let handle = FILTER.get().ok_or(FilterError::NotOurs)?;
    handle.reload(filter).map_err(|_| FilterError::NotOurs)
}

/// How many lines could not be written.
pub fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Standard error, where a line that cannot be written is dropped and counted. Without this a full disk under the log ends the
/// process: the subscriber reports a failed write on standard error, and a write that fails there panics.
struct Unfailing(io::Stderr);

impl io::Write for Unfailing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.0.write(bytes).unwrap_or_else(|_| {
            DROPPED.fetch_add(1, Ordering::Relaxed);
            bytes.len()
        }))
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_logged_costs_one_look_at_a_level() {
        init("test");
        set_filter("debug").unwrap();
        assert_eq!(LevelFilter::current(), LevelFilter::DEBUG);
        assert!(matches!(set_filter("info,x=y=z"), Err(FilterError::Malformed(_))));
        set_filter("").unwrap();
        assert_eq!(LevelFilter::current(), LevelFilter::INFO);
    }
}

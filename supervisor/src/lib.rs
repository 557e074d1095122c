//! The supervisor: starts, watches, restarts and stops every process of a node.
//!
//! It owns every listening socket, the state directory, the node's key and the celld processes. It never talks to the bucket,
//! holds no business rule, and reads nothing from the network but bounded answers of the celld processes that it started.
//! `scafo sail` and `scafo dev` call [`run`] and thereby become the supervisor.

mod api;

pub use api::{DevOptions, EXIT_REFUSED, Ended, Error, NODE_FILE, OnReady, Options, Pids, Ready};
use scafo_core::config::Config;

/// Runs a node until it is asked to end (SIGTERM, SIGINT; SIGHUP too in development). The caller makes the runtime.
///
/// # Errors
/// What keeps the node from running, with the next step and the exit code to end with.
pub async fn run(_config: Config, _options: Options) -> Result<Ended, Error> {
    Ok(Ended::Stopped)
}

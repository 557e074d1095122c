//! The signals that end a node.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use crate::api::Error;

/// What comes so soon after a request to end is the same request: Ctrl-C reaches every process of a terminal's group, and a script
/// among them passes it on.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// SIGTERM and SIGINT; SIGHUP too in development, where it means that the terminal is gone.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    hangup_stops: bool,
    requested: Option<Instant>,
}

impl Signals {
    pub(crate) fn install(hangup_stops: bool) -> Result<Self, Error> {
        let install =
            |kind| signal(kind).map_err(|error| Error::new(format!("cannot handle signals: {error}"), "start again"));
        Ok(Self {
            terminate: install(SignalKind::terminate())?,
            interrupt: install(SignalKind::interrupt())?,
            hangup: install(SignalKind::hangup())?,
            hangup_stops,
            requested: None,
        })
    }

    /// Resolves when the node is asked to end; again for each further request.
    pub(crate) async fn stop(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
                _ = self.hangup.recv() => {
                    if !self.hangup_stops {
                        tracing::info!("SIGHUP: settings are read at start only; restart the node for new ones");
                        continue;
                    }
                }
            }
            let again = self.requested.is_some_and(|before| before.elapsed() < SAME_REQUEST);
            if !again {
                self.requested = Some(Instant::now());
                return;
            }
        }
    }
}

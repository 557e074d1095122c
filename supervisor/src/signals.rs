//! The signals that end a node.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::api::Error;

/// SIGTERM and SIGINT; SIGHUP too in development, where it means that the terminal is gone.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    hangup_stops: bool,
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
        })
    }

    /// Resolves when the node is asked to end; again for each further request.
    pub(crate) async fn stop(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => {
                    if self.hangup_stops {
                        return;
                    }
                    tracing::info!("SIGHUP: settings are read at start only; restart the node for new ones");
                }
            }
        }
    }
}

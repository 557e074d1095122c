//! The signals that end a node, and the one that has it read its settings again.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::api::Error;

/// What comes so soon after a request to end is the same request: Ctrl-C reaches every process of a terminal's group, and a script
/// among them passes it on.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// SIGTERM and SIGINT; SIGHUP, which in development means that the terminal is gone, and elsewhere that settings have changed.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    hangup_stops: bool,
    reloads: Arc<Notify>,
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
            reloads: Arc::default(),
            requested: None,
        })
    }

    /// Told whenever settings are to be read again, while somebody waits in [`Signals::stop`].
    pub(crate) fn reloads(&self) -> Arc<Notify> {
        Arc::clone(&self.reloads)
    }

    /// Resolves when the node is asked to end; again for each further request.
    pub(crate) async fn stop(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
                _ = self.hangup.recv() => {
                    if !self.hangup_stops {
                        self.reloads.notify_one();
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

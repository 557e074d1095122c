//! Keeps one daemon running until it is ordered to stop.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::watch;
use tokio::time::Instant;

use super::life::{Found, Life, Patience};
use super::plan::{Daemon, Given};
use crate::api::{EXIT_REFUSED, Error};
use crate::spawn::{Exit, ProcessHandle, Spawner};

/// Time between two probes of a daemon that starts: what a deploy or a test waits for.
const STARTING_PROBES: Duration = Duration::from_millis(25);
/// Time between two probes of one that serves.
const PROBES: Duration = Duration::from_secs(2);

/// What a daemon shall do. Only ever grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Order {
    Run,
    /// End, in order: SIGTERM, and SIGKILL after its grace.
    Stop,
    /// End at once.
    Kill,
}

/// What a daemon does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Report {
    /// While one runs.
    pub(crate) pid: Option<u32>,
    /// Whether this one has been ready.
    pub(crate) ready: bool,
    /// How often one was started.
    pub(crate) starts: u64,
}

impl Report {
    fn ended(&mut self) {
        *self = Self { starts: self.starts, ..Self::default() };
    }
}

/// One daemon with what it takes to keep it.
pub(crate) struct Keeper {
    pub(crate) daemon: Daemon,
    pub(crate) spawner: Spawner,
    pub(crate) orders: watch::Receiver<Order>,
    pub(crate) report: watch::Sender<Report>,
    /// Other settings, to start again with.
    pub(crate) changes: watch::Receiver<Arc<Given>>,
}

enum Attended {
    Ended(Exit),
    Stopped,
    /// Ended in order, because there are other settings.
    Renewed,
}

impl Keeper {
    /// Keeps it running until it is ordered to stop.
    ///
    /// # Errors
    /// When it cannot be started at first, or refuses to run with what it was given ([`EXIT_REFUSED`]).
    pub(crate) async fn keep(mut self) -> Result<(), Error> {
        let mut life = Life::new(Patience::of(self.daemon.name));
        let mut first = true;
        while *self.orders.borrow() == Order::Run {
            let pause = match self.start(&mut life).await {
                Ok(mut process) => match self.attend(&mut process, &mut life).await {
                    Attended::Stopped => break,
                    Attended::Renewed => Duration::ZERO,
                    Attended::Ended(Exit::Code(code)) if code == i32::from(EXIT_REFUSED) => {
                        self.report.send_modify(Report::ended);
                        return Err(self.refused());
                    }
                    Attended::Ended(exit) => {
                        let pause = life.ended();
                        tracing::warn!(
                            daemon = self.daemon.name.executable(),
                            ?exit,
                            ?pause,
                            "ended; starting it again"
                        );
                        pause
                    }
                },
                Err(error) if first => return Err(self.not_started(&error)),
                Err(error) => {
                    let pause = life.ended();
                    tracing::error!(daemon = self.daemon.name.executable(), %error, ?pause, "cannot be started");
                    pause
                }
            };
            first = false;
            self.report.send_modify(Report::ended);
            tokio::select! {
                biased;
                _ = self.orders.wait_for(|order| *order != Order::Run) => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.report.send_modify(Report::ended);
        Ok(())
    }

    async fn start(&mut self, life: &mut Life) -> std::io::Result<ProcessHandle> {
        self.daemon.given = Arc::clone(&self.changes.borrow_and_update());
        let process = self.spawner.start_process(self.daemon.spec()?).await?;
        life.started(Instant::now());
        self.report.send_modify(|report| {
            *report = Report { pid: Some(process.pid()), ready: false, starts: report.starts + 1 };
        });
        Ok(process)
    }

    async fn attend(&mut self, process: &mut ProcessHandle, life: &mut Life) -> Attended {
        let why = loop {
            let pause = if self.report.borrow().ready { PROBES } else { STARTING_PROBES };
            let probe = self.daemon.probe.clone();
            let probed = async {
                tokio::time::sleep(pause).await;
                probe.ask().await
            };
            let found = tokio::select! {
                biased;
                _ = self.orders.wait_for(|order| *order != Order::Run) => break Attended::Stopped,
                exit = process.ended() => return Attended::Ended(exit),
                () = changed(&mut self.changes) => break Attended::Renewed,
                found = probed => found,
            };
            if life.probed(found, Instant::now()) {
                tracing::error!(daemon = self.daemon.name.executable(), pid = process.pid(), "hangs; killing it");
                process.signal(Signal::KILL);
            }
            if found == Found::Serving {
                self.report.send_if_modified(|report| !std::mem::replace(&mut report.ready, true));
            }
        };
        stop(process, &mut self.orders, self.daemon.grace, self.daemon.name.executable()).await;
        why
    }

    fn refused(&self) -> Error {
        Error::refused(
            format!(
                "{} refuses to run with this configuration; its reason stands above",
                self.daemon.name.executable()
            ),
            "correct what it names and start again",
        )
    }

    fn not_started(&self, error: &std::io::Error) -> Error {
        Error::new(
            format!("cannot start {}: {error}", self.daemon.executable.display()),
            "reinstall scafo, or set SCAFO_LIBEXEC to the directory with its executables",
        )
    }
}

/// Resolves when there are other settings than those that were started with.
async fn changed(changes: &mut watch::Receiver<Arc<Given>>) {
    if changes.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Ends a process: SIGTERM, then SIGKILL after `grace` or when the order becomes [`Order::Kill`]. Returns when it has ended.
async fn stop(process: &mut ProcessHandle, orders: &mut watch::Receiver<Order>, grace: Duration, name: &str) {
    process.signal(Signal::TERM);
    tokio::select! {
        biased;
        _ = process.ended() => return,
        _ = orders.wait_for(|order| *order == Order::Kill) => {}
        () = tokio::time::sleep(grace) => tracing::warn!(daemon = name, ?grace, "did not end in time; killing it"),
    }
    process.signal(Signal::KILL);
    process.ended().await;
}

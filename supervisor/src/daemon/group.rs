//! All daemons of the node: started together, ended one after another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::keeper::{Keeper, Order, Report};
use super::plan::{Daemon, Given, Name};
use crate::api::Error;
use crate::spawn::Spawner;

/// The daemons. Dropping it ends the keepers, and with the spawner's thread the processes.
pub(crate) struct Group {
    keepers: JoinSet<(Name, Result<(), Error>)>,
    running: BTreeSet<Name>,
    handles: Handles,
}

/// What can be seen and ordered from elsewhere.
#[derive(Clone)]
pub(crate) struct Handles(BTreeMap<Name, Handle>);

/// The ends of a keeper's channels that are not its own.
#[derive(Clone)]
struct Handle {
    order: watch::Sender<Order>,
    report: watch::Receiver<Report>,
    /// Tells of other settings.
    given: watch::Sender<Arc<Given>>,
}

/// How long the next daemon waits for the one before when settings change. One that is not ready by then had its reason before.
const RENEWED: Duration = Duration::from_secs(60);

impl Group {
    /// Starts all of them in their order, without waiting in between: what one asks of another waits in that one's backlog.
    pub(crate) fn start(daemons: Vec<Daemon>, spawner: &Spawner) -> Self {
        let mut group = Self { keepers: JoinSet::new(), running: BTreeSet::new(), handles: Handles(BTreeMap::new()) };
        for daemon in daemons {
            let name = daemon.name;
            let (order, orders) = watch::channel(Order::Run);
            let (reports, report) = watch::channel(Report::default());
            let (given, changes) = watch::channel(Arc::clone(&daemon.given));
            let keeper = Keeper { daemon, spawner: spawner.clone(), orders, report: reports, changes };
            group.keepers.spawn(async move { (name, keeper.keep().await) });
            group.running.insert(name);
            group.handles.0.insert(name, Handle { order, report, given });
        }
        group
    }

    pub(crate) fn handles(&self) -> Handles {
        self.handles.clone()
    }

    /// Resolves when a daemon cannot go on, with the reason. May be dropped.
    pub(crate) async fn failed(&mut self) -> Error {
        loop {
            match self.next_end().await {
                Some((_, Err(error))) => return error,
                Some((name, Ok(()))) => {
                    return Error::new(format!("{} was left alone", name.executable()), "report this");
                }
                None => std::future::pending().await,
            }
        }
    }

    /// Ends these and waits for them.
    pub(crate) async fn stop(&mut self, names: &[Name]) {
        for name in names {
            self.handles.order(*name, Order::Stop);
        }
        while names.iter().any(|name| self.running.contains(name)) {
            if self.next_end().await.is_none() {
                return;
            }
        }
    }

    async fn next_end(&mut self) -> Option<(Name, Result<(), Error>)> {
        match self.keepers.join_next().await? {
            Ok((name, outcome)) => {
                self.running.remove(&name);
                Some((name, outcome))
            }
            Err(error) => {
                // A defect: which keeper it was is not known any more. Its daemon dies with the node, which ends now.
                tracing::error!(%error, "a keeper broke");
                Some((
                    Name::Registryd,
                    Err(Error::new("a part of the supervisor broke", "start again and report this")),
                ))
            }
        }
    }
}

impl Handles {
    /// Orders grow only: what shall be killed is not asked any more.
    pub(crate) fn order(&self, name: Name, order: Order) {
        if let Some(handle) = self.0.get(&name) {
            handle.order.send_if_modified(|old| {
                let grows = *old < order;
                *old = (*old).max(order);
                grows
            });
        }
    }

    /// Has the daemons that would be told something else now start again with it, one after another, those behind first: what one
    /// asks of another waits meanwhile. Gives the names of those that did.
    pub(crate) async fn renew(&self, daemons: Vec<Daemon>) -> Vec<&'static str> {
        let mut renewed = Vec::new();
        for daemon in daemons {
            let Some(handle) = self.0.get(&daemon.name) else { continue };
            let starts = handle.report.borrow().starts;
            let other = |given: &mut Arc<Given>| std::mem::replace(given, Arc::clone(&daemon.given)) != daemon.given;
            if !handle.given.send_if_modified(other) {
                continue;
            }
            let mut report = handle.report.clone();
            let ready = report.wait_for(|now| now.starts > starts && now.ready);
            if tokio::time::timeout(RENEWED, ready).await.is_err() {
                tracing::warn!(daemon = daemon.name.executable(), "is not ready again yet");
            }
            renewed.push(daemon.name.executable());
        }
        renewed
    }

    pub(crate) fn kill_all(&self) {
        for name in self.0.keys() {
            self.order(*name, Order::Kill);
        }
    }

    /// Waits until these of the daemons, as far as there are such, have been ready at once.
    pub(crate) async fn ready(&self, which: impl Fn(Name) -> bool) {
        loop {
            let chosen = || self.0.iter().filter(|(name, _)| which(**name)).map(|(_, handle)| &handle.report);
            for report in chosen() {
                if report.clone().wait_for(|report| report.ready).await.is_err() {
                    // It ended for good; whoever waits here is about to hear of it.
                    std::future::pending::<()>().await;
                }
            }
            if chosen().all(|report| report.borrow().ready) {
                return;
            }
        }
    }

    /// Those that are not ready now.
    pub(crate) fn lagging(&self) -> Vec<&'static str> {
        let lags = self.0.iter().filter(|(_, handle)| !handle.report.borrow().ready);
        lags.map(|(name, _)| name.executable()).collect()
    }

    /// How often each was started.
    pub(crate) fn starts(&self) -> impl Iterator<Item = (Name, u64)> {
        self.0.iter().map(|(name, handle)| (*name, handle.report.borrow().starts))
    }

    /// The process of each that runs.
    pub(crate) fn pids(&self) -> impl Iterator<Item = (Name, u32)> {
        self.0.iter().filter_map(|(name, handle)| Some((*name, handle.report.borrow().pid?)))
    }

    pub(crate) fn pid(&self, name: Name) -> Option<u32> {
        self.0.get(&name).and_then(|handle| handle.report.borrow().pid)
    }
}

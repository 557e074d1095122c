//! What bounds an application from outside, its children included: a transient scope of systemd
//! (`org.freedesktop.systemd1(5)`), or a control group that we make ourselves. A process is put there while it waits at its gate,
//! before its program runs, so nothing that it starts is anywhere else.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use scafo_core::ApplicationName;
use zbus::Connection;
use zbus::zvariant::{OwnedObjectPath, Value};

use super::cgroup::Cgroups;
use super::is_there;
use crate::spawn::{Door, Gate, ProcessHandle, Spawner, Spec};
use crate::state::Users;

/// How long a process waits at its gate. Without its bounds it serves all the same, and the log says so.
const DEADLINE: Duration = Duration::from_secs(5);
/// When a process gives up by itself, because whoever should have let it through is gone.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two looks whether systemd has moved a process; it takes a few milliseconds.
const LOOKS: Duration = Duration::from_millis(5);
/// As long as systemd waits between SIGTERM and SIGKILL when the machine goes down: celld's grace and some.
const STOP: Duration = Duration::from_secs(100);
/// How long processes that were killed may take to leave their control groups.
const CLEAR: Duration = Duration::from_secs(2);
const SYSTEMD: &str = "org.freedesktop.systemd1";
const OBJECT: &str = "/org/freedesktop/systemd1";
const MANAGER: Option<&str> = Some("org.freedesktop.systemd1.Manager");
const SLICE: &str = "scafo-apps.slice";

/// What one application may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// In bytes.
    pub(crate) memory: u64,
    /// Processes and threads.
    pub(crate) tasks: u64,
}

impl Bounds {
    /// For a process whose own ceiling is this. celld sheds at its ceiling; the bound behind it stands a third above.
    pub(crate) const fn above(memory_mib: u64, tasks: u64) -> Self {
        Self { memory: (memory_mib << 20) / 3 * 4, tasks }
    }
}

/// How applications are bounded on this node.
#[derive(Debug, Default)]
pub(crate) enum Enclosure {
    /// By nothing from outside.
    #[default]
    None,
    /// Scopes below `scafo-apps.slice`.
    Scopes(Link<Connection>),
    /// Control groups of our own.
    Cgroups(Cgroups),
}

impl Enclosure {
    /// Scopes where systemd started us and lets us make them, control groups where each application is a user of its own and they
    /// can be written: a development node leaves the machine's control groups alone.
    pub(crate) async fn open(users: Option<&Users>) -> Self {
        if is_there() && rustix::process::geteuid().is_root() {
            match tokio::time::timeout(DEADLINE, Connection::system()).await {
                Ok(Ok(bus)) => return Self::Scopes(Link(Mutex::new(Some(bus)))),
                Ok(Err(error)) => tracing::warn!(%error, "applications get no scopes: the system bus does not answer"),
                Err(_) => tracing::warn!("applications get no scopes: the system bus does not answer in time"),
            }
        }
        users.and_then(|_| Cgroups::open()).map_or(Self::None, Self::Cgroups)
    }

    /// What is not bounded, for people.
    pub(crate) fn gaps(&self) -> Option<String> {
        let missing = match self {
            Self::Scopes(_) => Vec::new(),
            Self::Cgroups(groups) => groups.missing(),
            Self::None => vec!["memory", "CPU", "tasks"],
        };
        let list = missing.join(", ");
        (!missing.is_empty()).then(|| {
            format!("hard limits of {list} for each application: celld keeps its ceiling of memory by itself; run under systemd as root")
        })
    }

    /// Removes what it made, once no application is to run any more. Waits a moment for processes that were killed to be gone.
    pub(crate) async fn clear(&self) {
        let Self::Cgroups(groups) = self else { return };
        let cleared = async {
            while !groups.clear() {
                tokio::time::sleep(LOOKS).await;
            }
        };
        if tokio::time::timeout(CLEAR, cleared).await.is_err() {
            tracing::warn!("a process is still in a control group of this node, which stays until a node starts again");
        }
    }

    /// Starts an application's process within its bounds.
    pub(crate) async fn start(
        &self,
        spawner: &Spawner,
        mut spec: Spec,
        application: &ApplicationName,
        bounds: Bounds,
    ) -> io::Result<ProcessHandle> {
        if matches!(self, Self::None) {
            return spawner.start_process(spec).await;
        }
        let (gate, door) = Gate::new(PATIENCE)?;
        spec.rights.gate = Some(gate);
        tokio::join!(spawner.start_process(spec), self.admit(door, application, bounds)).0
    }

    /// Takes the process behind this door in and lets it through. Says in the log when it stays outside.
    async fn admit(&self, mut door: Door, application: &ApplicationName, bounds: Bounds) {
        // There is no child when its start failed, and then nothing to do.
        let Ok(pid) = door.arrival().await else { return };
        let taken = match self {
            Self::None => Ok(()),
            Self::Cgroups(groups) => groups.take(application, pid, bounds),
            Self::Scopes(link) => {
                let scope = |bus| async move { scope(&bus, application, pid, bounds).await };
                match tokio::time::timeout(DEADLINE, link.ask(Connection::system, scope)).await {
                    Ok(taken) => taken.map_err(io::Error::other),
                    Err(_) => {
                        link.keep(None);
                        Err(io::Error::new(io::ErrorKind::TimedOut, "systemd did not answer in time"))
                    }
                }
            }
        };
        if let Err(error) = taken {
            tracing::error!(%application, pid, %error, "its process runs without limits from outside");
        }
        door.open().await;
    }

    /// Its process has ended, and its group was killed, where it was a child of ours.
    pub(crate) fn forget(&self, application: &ApplicationName) {
        if let Self::Cgroups(groups) = self {
            groups.forget(application);
        }
    }
}

/// A connection to the bus, kept for the next one who asks. All of them break when the bus is started again.
#[derive(Debug)]
pub(crate) struct Link<C>(Mutex<Option<C>>);

impl<C: Clone> Link<C> {
    fn keep(&self, connection: Option<C>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = connection;
    }

    /// Asks over the connection that is kept, and once more over a new one when that is broken.
    async fn ask<O, F>(&self, open: impl Fn() -> O, ask: impl Fn(C) -> F) -> zbus::Result<()>
    where
        O: Future<Output = zbus::Result<C>>,
        F: Future<Output = zbus::Result<()>>,
    {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(connection) = kept {
            match ask(connection).await {
                Err(error) if !is_an_answer(&error) => {
                    tracing::warn!(%error, "the connection to the system bus is broken; making a new one");
                    self.keep(None);
                }
                answer => return answer,
            }
        }
        let connection = Box::pin(open()).await?;
        self.keep(Some(connection.clone()));
        ask(connection).await
    }
}

/// Whether somebody on the bus said so.
const fn is_an_answer(error: &zbus::Error) -> bool {
    matches!(error, zbus::Error::MethodError(..))
}

/// The scope of an application.
fn unit(application: &ApplicationName) -> String {
    format!("scafo-app-{application}.scope")
}

async fn scope(bus: &Connection, application: &ApplicationName, pid: u32, bounds: Bounds) -> zbus::Result<()> {
    let unit = unit(application);
    while let Err(error) = start(bus, &unit, application, pid, bounds).await {
        if !exists(&error) {
            return Err(error);
        }
        // Over a connection that broke before the answer came.
        if is_within(pid, &unit).await {
            return Ok(());
        }
        // What the last process left there; two processes of one application never run.
        let _ = bus.call_method(Some(SYSTEMD), OBJECT, MANAGER, "KillUnit", &(unit.as_str(), "all", 9_i32)).await;
        tokio::time::sleep(LOOKS * 10).await;
    }
    while !is_within(pid, &unit).await {
        tokio::time::sleep(LOOKS).await;
    }
    Ok(())
}

async fn is_within(pid: u32, unit: &str) -> bool {
    let groups = tokio::fs::read_to_string(format!("/proc/{pid}/cgroup")).await.unwrap_or_default();
    groups.lines().any(|line| line.ends_with(unit))
}

async fn start(
    bus: &Connection,
    unit: &str,
    application: &ApplicationName,
    pid: u32,
    bounds: Bounds,
) -> zbus::Result<OwnedObjectPath> {
    let microseconds = u64::try_from(STOP.as_micros()).unwrap_or(u64::MAX);
    let properties: Vec<(&str, Value<'_>)> = vec![
        ("Description", Value::from(format!("scafo application {application}"))),
        ("Slice", Value::from(SLICE)),
        ("PIDs", Value::from(vec![pid])),
        ("MemoryMax", Value::from(bounds.memory)),
        ("MemorySwapMax", Value::from(0_u64)),
        ("TasksMax", Value::from(bounds.tasks)),
        ("CPUWeight", Value::from(100_u64)),
        // When the machine goes down, the node drains them first.
        ("Before", Value::from(vec!["scafo.service"])),
        ("TimeoutStopUSec", Value::from(microseconds)),
        // One that failed can be started again.
        ("CollectMode", Value::from("inactive-or-failed")),
    ];
    let none: Vec<(&str, Vec<(&str, Value<'_>)>)> = Vec::new();
    let wanted = (unit, "fail", properties, none);
    bus.call_method(Some(SYSTEMD), OBJECT, MANAGER, "StartTransientUnit", &wanted).await?.body().deserialize()
}

fn exists(error: &zbus::Error) -> bool {
    matches!(error, zbus::Error::MethodError(name, ..) if name.as_str() == "org.freedesktop.systemd1.UnitExists")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_stands_above_the_ceiling_that_celld_keeps() {
        assert_eq!(Bounds::above(768, 9), Bounds { memory: 1 << 30, tasks: 9 });
    }

    #[tokio::test]
    async fn a_connection_to_the_bus_that_broke_is_replaced_and_an_answer_is_believed() {
        let broken = || zbus::Error::from(io::Error::from(io::ErrorKind::BrokenPipe));
        let asked = Mutex::new(Vec::new());
        let link = Link(Mutex::new(Some(1)));
        let open = || async { Ok(2) };
        let only_the_new_one = |connection: i32| {
            asked.lock().unwrap().push(connection);
            async move { if connection == 2 { Ok(()) } else { Err(broken()) } }
        };
        link.ask(open, only_the_new_one).await.unwrap();
        link.ask(open, only_the_new_one).await.unwrap();
        assert_eq!(*asked.lock().unwrap(), [1, 2, 2]);
        // Without a bus there is none, and the next one who asks looks again.
        link.ask(|| async { Err(broken()) }, |_| async { Err(broken()) }).await.unwrap_err();
        link.ask(open, only_the_new_one).await.unwrap();
        let refused = zbus::Message::method_call("/", "Start").unwrap().build(&()).unwrap();
        let name = "org.freedesktop.systemd1.UnitExists".try_into().unwrap();
        let refused = zbus::Error::MethodError(name, None, refused);
        let none = || async { unreachable!("an answer came") };
        link.ask(none, |_| async { Err(refused.clone()) }).await.unwrap_err();
    }

    #[tokio::test]
    async fn a_process_is_let_through_whatever_bounds_it() {
        let application: ApplicationName = "shop".parse().unwrap();
        let (gate, door) = Gate::new(PATIENCE).unwrap();
        drop(gate);
        Enclosure::None.admit(door, &application, Bounds::above(1, 1)).await;
        assert!(Enclosure::None.gaps().unwrap().contains("memory, CPU, tasks"));
    }
}

//! Drives one application's process: waits for what happens, asks [`Machine`] what to do, does it.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use rustix::process::Signal;
use scafo_core::record::ProcessState;
use scafo_core::view::{LastExit, ProcessStatus};
use scafo_core::{ApplicationName, DeploymentVersion, Timestamp, text};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::command::Launch;
use super::fleet::Statuses;
use super::life::{CrashMark, Effect, Event, Found, LEASE_TTL, Machine};
use super::log;
use super::memory::Memory;
use super::past::{Kept, Moment};
use super::probe::{self, Probed, Prober};
use super::record::{Record, WATCH};
use super::runtime::Runtime;
use super::strays::Noted;
use super::version::Version;
use crate::manager::Bounds;
use crate::spawn::{Bond, Exit, Input, Limits, Output, ProcessHandle, Rights, Spawner, Spec, proc};
use crate::state::{Book, Pair};

/// Shortest lease lifetime that is believed, so that a typing error makes no loop of starts.
const SHORTEST_TTL: Duration = Duration::from_millis(100);
/// Files that one process may have open: what celld warns below is 8000, and about eight belong to each resident cell.
const FILES: u64 = 65_536;
/// Processes and threads of one application: what celld and the stand-in have, tenfold.
const TASKS: u64 = 512;
/// Longest reason that is shown why a process could not be started.
const MAX_REASON_BYTES: usize = 512;
/// When memory runs out, an application goes before a daemon that all of them need.
const EASIER_TO_KILL: i32 = 300;

/// What all drivers of a node share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) launch: Arc<Launch>,
    pub(super) runtime: Arc<Runtime>,
    pub(super) spawner: Spawner,
    pub(super) book: Mutex<Book>,
    pub(super) statuses: watch::Sender<Statuses>,
    pub(super) memory: Mutex<Memory>,
    /// How many applications are wanted here.
    pub(super) wanted: AtomicUsize,
    /// When the supervisor started.
    pub(super) begun: Moment,
    pub(super) strays: Noted,
}

impl Shared {
    /// Notes whose a process is that was taken over.
    fn note_user(&self, application: &ApplicationName, pid: u32) {
        if let (Some(users), Some(uid)) = (&self.launch.users, proc::user_of(pid)) {
            self.strays.note(users, application, uid, rustix::process::getuid().as_raw());
        }
    }

    /// The life of a celld lease here.
    pub(super) fn ttl(&self) -> Duration {
        let configured = self.launch.extra.get("CELLD_TTL_MS").and_then(|ms| ms.parse().ok());
        configured.map_or(LEASE_TTL, Duration::from_millis).max(SHORTEST_TTL)
    }

    /// A part of the pause after a crash that is this process's own: up to a quarter of a lease's life.
    fn jitter(&self) -> Duration {
        self.ttl().mul_f64(rand::random_range(0.0..0.25))
    }

    pub(super) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an application's process shall do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Want {
    Run,
    Stop,
    /// Like [`Want::Stop`], and nobody wants it again: the driver ends with its process.
    End,
    /// The same, and nobody waits for a drain.
    Hurry,
}

/// The same, with the deploy that was published last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) want: Want,
    pub(super) deploy: Option<String>,
}

/// What the fleet and a driver have in common beside the wish.
#[derive(Debug, Default)]
pub(super) struct Tap {
    /// Somebody knows that there is something new to see.
    pub(super) nudge: Notify,
    /// Nothing would be lost if the driver were dropped: nothing runs, nothing is wanted, and no pause is left.
    pub(super) over: AtomicBool,
}

/// One application's process with what belongs to it.
pub(super) struct Driver {
    shared: Arc<Shared>,
    application: ApplicationName,
    ports: Pair,
    wishes: watch::Receiver<Wish>,
    deploy: Option<String>,
    tap: Arc<Tap>,
    machine: Machine,
    /// The crashes that the disk knows of.
    kept: Option<CrashMark>,
    process: Option<ProcessHandle>,
    /// What the next supervisor will read of it.
    record: Option<Record>,
    probe: Option<BoxFuture<'static, Probed>>,
    prober: Prober,
    /// How long its log was when it was started.
    log_from: u64,
    adopted: bool,
    version: Option<String>,
    started_at: Option<Timestamp>,
    last_exit: Option<LastExit>,
    deployment: Option<DeploymentVersion>,
}

impl Driver {
    /// For an application without a process.
    pub(super) fn new(
        shared: Arc<Shared>,
        application: ApplicationName,
        ports: Pair,
        wishes: watch::Receiver<Wish>,
        tap: Arc<Tap>,
    ) -> Self {
        let deploy = wishes.borrow().deploy.clone();
        Self {
            machine: Machine::new(shared.ttl()).with_jitter(shared.jitter()),
            shared,
            application,
            ports,
            deploy,
            wishes,
            tap,
            kept: None,
            process: None,
            record: None,
            probe: None,
            prober: Prober::default(),
            log_from: 0,
            adopted: false,
            version: None,
            started_at: None,
            last_exit: None,
            deployment: None,
        }
    }

    /// Lets others start first.
    pub(super) fn hold(&mut self, pause: Duration) {
        if !pause.is_zero() {
            self.machine.hold_until(Instant::now() + pause);
        }
    }

    /// Goes on from what an earlier supervisor, or an earlier driver, kept of crashes.
    pub(super) fn remember(&mut self, kept: &Kept) {
        self.deploy.clone_from(&kept.deploy);
        self.machine.resume(&kept.past(&Moment::now()), Instant::now());
        self.kept = Some(self.machine.crash_mark());
    }

    /// Takes over a process that an earlier supervisor started.
    pub(super) fn adopt(&mut self, record: &Record, process: ProcessHandle) {
        let machine = Machine::adopted(self.shared.ttl(), record.was_ready, Instant::now());
        self.machine = machine.with_jitter(self.shared.jitter());
        if let Some(kept) = Kept::load(&self.shared.launch.dirs.processes(), &self.application) {
            self.remember(&kept);
        }
        self.shared.memory().hold(&self.application, record.memory_mib);
        self.shared.note_user(&self.application, process.pid());
        self.record = Some(record.clone());
        self.process = Some(process);
        self.probe = Some(self.probe_in(Duration::ZERO));
        self.adopted = true;
        self.version = Some(record.celld_version.clone());
        self.started_at = Some(record.started_at);
    }

    /// Runs until it is dropped, or told to end and nothing runs any more. Dropping leaves the process running.
    pub(super) async fn run(mut self) {
        let wish = self.wishes.borrow_and_update().clone();
        let event = self.event_of(wish);
        self.handle(event).await;
        loop {
            self.keep_crashes();
            self.publish();
            if self.wishes.borrow().want >= Want::End && self.machine.state(Instant::now()).is_none() {
                return;
            }
            let event = self.next_event().await;
            self.handle(event).await;
        }
    }

    fn event_of(&mut self, wish: Wish) -> Event {
        match wish.want {
            Want::Run if wish.deploy != self.deploy => {
                self.deploy = wish.deploy;
                Event::Renewed
            }
            Want::Run => Event::Wanted,
            Want::Stop | Want::End => Event::Unwanted,
            Want::Hurry => Event::Hurried,
        }
    }

    /// Writes down what the next supervisor has to know of crashes, when that has changed.
    fn keep_crashes(&mut self) {
        let past = self.machine.past(Instant::now());
        let mark = past.as_ref().map(|_| self.machine.crash_mark());
        if mark == self.kept {
            return;
        }
        let dir = self.shared.launch.dirs.processes();
        match past {
            None => Kept::forget(&dir, &self.application),
            Some(past) => {
                let kept = Kept::new(&self.application, self.deploy.clone(), &past, &Moment::now());
                if let Err(error) = kept.save(&dir) {
                    tracing::warn!(application = %self.application, %error, "cannot write down that it crashed");
                }
            }
        }
        self.kept = mark;
    }

    async fn next_event(&mut self) -> Event {
        if !self.machine.is_running() {
            self.probe = None;
        } else if self.probe.is_none() {
            let starting = self.machine.state(Instant::now()) == Some(ProcessState::Starting);
            self.probe = Some(self.probe_in(if starting { probe::STARTING } else { probe::USUAL }));
        }
        let (process, probe, wake) = (&mut self.process, &mut self.probe, self.machine.wake());
        let is_ours = !self.adopted;
        tokio::select! {
            biased;
            wish = changed(&mut self.wishes) => self.event_of(wish),
            exit = ended(process, is_ours) => Event::Ended(exit),
            () = self.tap.nudge.notified() => {
                self.prober.nudge();
                if self.machine.is_running() {
                    self.probe = Some(self.probe_in(Duration::ZERO));
                }
                Event::Time
            }
            probed = finished(probe) => {
                self.probe = None;
                if probed.found == Found::Ready {
                    self.deployment = probed.deployment.or(self.deployment.take());
                }
                Event::Probed(probed.found)
            }
            () = reached(wake) => Event::Time,
        }
    }

    async fn handle(&mut self, event: Event) {
        let mut ended = None;
        if let Event::Ended(exit) = event {
            ended = Some((exit, self.machine.was_ready()));
            self.ended(exit);
        }
        let mut event = event;
        loop {
            let now = Instant::now();
            let effect = self.machine.step(event, now);
            if let Some((exit, was_ready)) = ended.take() {
                // None: it is not wanted any more, or left as it was asked to and starts at once.
                let pause_ms = self.machine.pause(now).map(|pause| pause.as_millis());
                tracing::info!(application = %self.application, ?exit, was_ready, pause_ms, "its process ended");
            }
            self.note_readiness();
            match effect {
                None => return,
                Some(Effect::Terminate) => {
                    tracing::info!(application = %self.application, "asking its process to end");
                    self.signal(Signal::TERM);
                    return;
                }
                Some(Effect::Kill) => {
                    tracing::warn!(application = %self.application, "killing its process");
                    self.process.iter().for_each(ProcessHandle::kill_group);
                    return;
                }
                Some(Effect::Spawn) => event = self.spawn().await,
            }
        }
    }

    /// Writes down, once, that it has been ready.
    fn note_readiness(&mut self) {
        let Some(record) = self.record.as_mut().filter(|record| !record.was_ready) else { return };
        if !self.machine.was_ready() {
            return;
        }
        record.was_ready = true;
        if let Err(error) = record.save(&self.shared.launch.dirs.processes()) {
            // The next supervisor then takes silence for starting, as it does without a record.
            tracing::warn!(application = %self.application, %error, "cannot write down that it is ready");
        }
    }

    fn signal(&self, signal: Signal) {
        self.process.iter().for_each(|process| process.signal(signal));
    }

    fn ended(&mut self, exit: Exit) {
        let (code, signal) = match exit {
            Exit::Code(code) => (Some(code), None),
            Exit::Signal(signal) => (None, Some(signal)),
            Exit::Unknown => (None, None),
        };
        let early = self.machine.is_running() && !self.machine.was_ready();
        let path = self.shared.launch.dirs.log(self.application.as_str());
        let said = early.then(|| log::tail(&path, self.log_from)).flatten();
        self.last_exit = Some(LastExit { code, signal, at: now(), said });
        self.process = None;
        self.record = None;
        self.probe = None;
        self.deployment = None;
        self.adopted = false;
        self.started_at = None;
        self.shared.memory().release(&self.application);
        self.shared.strays.forget(&self.application);
        self.shared.launch.enclosure.forget(&self.application);
        Record::forget(&self.shared.launch.dirs.processes(), &self.application);
    }

    async fn spawn(&mut self) -> Event {
        self.publish();
        match self.try_spawn().await {
            Ok(()) => Event::Spawned,
            Err(reason) => {
                tracing::error!(application = %self.application, %reason, "cannot start its process; trying again later");
                let said = Some(format!("{}{}", LastExit::NOT_STARTED, text::head(&reason, MAX_REASON_BYTES)));
                self.last_exit = Some(LastExit { code: None, signal: None, at: now(), said });
                self.shared.memory().release(&self.application);
                Record::forget(&self.shared.launch.dirs.processes(), &self.application);
                Event::NotSpawned
            }
        }
    }

    async fn try_spawn(&mut self) -> Result<(), String> {
        let (program, version) = self.shared.runtime.current().await.map_err(|problem| {
            tracing::warn!(application = %self.application, ?problem, "there is no celld for its process");
            problem.detail
        })?;
        let shared = Arc::clone(&self.shared);
        let (processes, own) = (shared.launch.dirs.processes(), shared.launch.own(&self.application));
        let memory_mib = shared.memory().allot(&self.application, shared.wanted.load(Ordering::Relaxed));
        // Whose process would be running already: the next one may be somebody else, out of another range.
        let owner = shared.launch.owner_of(&self.application);
        let spec = self.spec(program, &version, memory_mib).map_err(|error| error.to_string())?;
        self.log_from = log::length(&shared.launch.dirs.log(self.application.as_str()));
        let mut record = Record {
            application: self.application.clone(),
            pid: 0,
            start_time: 0,
            watch: own.watch,
            ports: self.ports,
            celld_version: version.to_string(),
            started_at: now(),
            was_ready: false,
            memory_mib,
            boot: self.shared.begun.boot.clone(),
        };
        // Before the process is there: a supervisor that is killed in between leaves what the next one looks for.
        let unwritten = |error: io::Error| format!("cannot write down what is started: {error}");
        record.save(&processes).map_err(unwritten)?;
        let left = Self::left_by_another(record.clone(), owner).await;
        self.adopted = left.is_some();
        let bounds = Bounds::above(memory_mib, TASKS);
        let mut process = match left {
            Some((found, process)) => {
                tracing::warn!(application = %self.application, pid = found.pid, "it runs already; taking it over");
                shared.note_user(&self.application, found.pid);
                record = found;
                process
            }
            None => shared
                .launch
                .enclosure
                .start(&shared.spawner, spec, &self.application, bounds)
                .await
                .map_err(|error| format!("celld cannot be executed: {error}"))?,
        };
        // One that has ended already has no start time, and its end is about to be seen.
        if let Some(found) = record.clone().of(process.pid()) {
            if let Err(error) = found.save(&processes) {
                process.kill_group();
                process.ended().await;
                return Err(unwritten(error));
            }
            record = found;
        }
        tracing::info!(application = %self.application, pid = process.pid(), %version, port = self.ports.public, memory_mib, "started");
        (self.version, self.started_at) = (Some(record.celld_version.clone()), Some(record.started_at));
        self.record = Some(record);
        self.process = Some(process);
        Ok(())
    }

    /// A process on this data directory that no record led to. Two on one directory would destroy each other's data.
    async fn left_by_another(record: Record, uid: u32) -> Option<(Record, ProcessHandle)> {
        let watch = record.watch.clone();
        let search =
            move || proc::session_leaders_given(WATCH, |given| (*given == watch).then_some(uid)).remove(&watch);
        record.found(tokio::task::spawn_blocking(search).await.ok()??, uid)
    }

    fn spec(&self, program: std::path::PathBuf, version: &Version, memory_mib: u64) -> io::Result<Spec> {
        let launch = &self.shared.launch;
        let own = launch.own(&self.application);
        let user = launch.users.as_ref().map(|users| users.application(&self.application)).transpose()?;
        launch.make_own(&self.application, user.as_ref())?;
        Ok(Spec {
            program,
            arguments: launch.node_arguments(&self.application, self.ports),
            environment: launch.node_environment(&self.application, version, memory_mib),
            directory: Some(own.temp),
            input: Input::Nothing,
            output: Output::File(log::open(&launch.dirs.log(self.application.as_str()))?),
            sockets: Vec::new(),
            bond: Bond::Free,
            limits: Limits { easier_to_kill: EASIER_TO_KILL, files: Some(FILES), tasks: user.as_ref().map(|_| TASKS) },
            rights: Rights { user, ..Rights::default() },
        })
    }

    fn probe_in(&mut self, pause: Duration) -> BoxFuture<'static, Probed> {
        let address = self.shared.launch.address;
        let public = SocketAddr::new(address, self.ports.public);
        let internal = SocketAddr::new(address, self.ports.internal);
        self.prober.next(pause, public, internal, self.deployment.is_none())
    }

    /// Shows the status, if it has changed.
    fn publish(&self) {
        let state = self.machine.state(Instant::now());
        self.tap.over.store(self.machine.is_over(Instant::now()), Ordering::Release);
        self.shared.statuses.send_if_modified(|statuses| {
            let old = statuses.get(&self.application);
            let Some(state) = state else { return statuses.remove(&self.application).is_some() };
            let since = old.filter(|old| old.state == state).map_or_else(now, |old| old.since);
            let new = ProcessStatus {
                application: self.application.clone(),
                state,
                since,
                pid: self.process.as_ref().map(ProcessHandle::pid),
                port: self.ports.public,
                internal_port: self.ports.internal,
                deployment: self.deployment.clone(),
                celld_version: self.version.clone(),
                restarts: self.machine.restarts(),
                started_at: self.started_at,
                last_exit: self.last_exit.clone(),
                adopted: self.adopted,
            };
            let changed = old != Some(&new);
            statuses.insert(self.application.clone(), new);
            changed
        });
    }
}

fn now() -> Timestamp {
    Timestamp::from_system(SystemTime::now())
}

async fn changed(wishes: &mut watch::Receiver<Wish>) -> Wish {
    if wishes.changed().await.is_err() {
        // The fleet is gone, and this task goes with it.
        std::future::pending::<()>().await;
    }
    wishes.borrow_and_update().clone()
}

/// With one of ours goes what it left in its group: a script that did not `exec` its celld. The number of another one's group may be
/// somebody else's by then.
async fn ended(process: &mut Option<ProcessHandle>, is_ours: bool) -> Exit {
    match process {
        Some(process) if is_ours => process.ended_with_its_group().await,
        Some(process) => process.ended().await,
        None => std::future::pending().await,
    }
}

async fn finished(probe: &mut Option<BoxFuture<'static, Probed>>) -> Probed {
    match probe {
        Some(probe) => probe.await,
        None => std::future::pending().await,
    }
}

async fn reached(wake: Option<Instant>) {
    match wake {
        Some(wake) => tokio::time::sleep_until(wake).await,
        None => std::future::pending().await,
    }
}

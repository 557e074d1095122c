//! All celld processes of the node: which are wanted, what they do, and the end of them all.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use http::Method;
use scafo_core::record::ProcessState;
use scafo_core::view::ProcessStatus;
use scafo_core::{ApplicationName, Problem, ProblemCode, Timestamp};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::belongings::{Belongings, Owner};
use super::command::Launch;
use super::driver::{Driver, Shared, Tap, Want, Wish};
use super::life::Machine;
use super::log;
use super::memory::Memory;
use super::past::{Kept, Moment};
use super::record::{Record, WATCH};
use super::reload::Reload;
use super::runtime::Runtime;
use super::strays::{Noted, Strays};
use crate::api::Error;
use crate::http::Question;
use crate::spawn::{ProcessHandle, Spawner, proc};
use crate::state::{Book, Pair, cannot_write};

/// The statuses of all processes.
pub(crate) type Statuses = BTreeMap<ApplicationName, ProcessStatus>;

/// celld's own bound for taking a deployment is a minute; the rest is for a busy machine.
const RELOAD_DEADLINE: Duration = Duration::from_secs(80);
const MAX_RELOAD_BYTES: usize = 64 * 1024;
/// So many processes start at once; each further one waits for its turn, since a start lists the bucket and compiles.
const AT_ONCE: u32 = 4;
/// The time of one turn. A start takes about as much of a core.
const TURN: Duration = Duration::from_millis(50);
/// Nobody's turn is later: a node that comes back with two hundred applications.
const LAST_TURN: Duration = Duration::from_secs(10);

/// How long the `n`th of the processes that are to start now waits, at a random place within its turn.
fn turn(n: u32) -> Duration {
    let begun = TURN.saturating_mul(n.saturating_sub(AT_ONCE - 1)).min(LAST_TURN);
    if n < AT_ONCE { Duration::ZERO } else { begun - TURN.mul_f64(rand::random_range(0.0..1.0)) }
}

/// How the processes shall end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    Drained,
    Killed,
}

/// The processes.
#[derive(Debug)]
pub(crate) struct Fleet {
    shared: Arc<Shared>,
    inner: Mutex<Inner>,
    belongings: Mutex<Belongings>,
    /// The drivers that have not ended.
    driving: TaskTracker,
}

/// A whole set of processes, as registryd orders it.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// The run of registryd that orders, and its number there.
    pub(crate) run: String,
    pub(crate) pass: u64,
    pub(crate) installation: String,
    pub(crate) processes: BTreeMap<ApplicationName, Asked>,
    /// Applications that do not exist any more.
    pub(crate) gone: Vec<ApplicationName>,
}

/// One process of an order.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// The deploy that was published last.
    pub(crate) deploy: Option<String>,
    /// Whose process it is, where that is known.
    pub(crate) owner: Option<Owner>,
}

#[derive(Debug, Default)]
struct Inner {
    entries: BTreeMap<ApplicationName, Entry>,
    /// Owns the drivers: they end with the fleet, the processes do not.
    drivers: JoinSet<()>,
    /// Keep the logs short and the disk free of what nobody owns any more.
    keepers: JoinSet<()>,
    /// The last set that was applied.
    applied: Option<(String, u64)>,
    stopping: bool,
}

#[derive(Debug)]
struct Entry {
    wishes: watch::Sender<Wish>,
    tap: Arc<Tap>,
    ports: Pair,
    driver: AbortHandle,
}

impl Fleet {
    /// Opens the port book and takes over what an earlier supervisor left running. Those processes run on until a desired set
    /// says otherwise.
    pub(crate) fn open(
        launch: Arc<Launch>,
        runtime: Arc<Runtime>,
        spawner: Spawner,
        ports: std::ops::RangeInclusive<u16>,
    ) -> Result<Self, Error> {
        let state = launch.dirs.state.clone();
        let book = Book::open(&state, ports)?;
        let belongings = Belongings::open(&launch.dirs).map_err(|error| cannot_write(&state.join("owners"), &error))?;
        let processes = launch.dirs.processes();
        let records = Record::all(&processes).map_err(|error| cannot_write(&processes, &error))?;
        let (statuses, _) = watch::channel(Statuses::new());
        let shared = Shared {
            launch,
            runtime,
            spawner,
            book: Mutex::new(book),
            statuses,
            memory: Mutex::new(Memory::of_machine()),
            wanted: AtomicUsize::new(0),
            begun: Moment::now(),
            strays: Noted::default(),
        };
        let belongings = Mutex::new(belongings);
        let fleet = Self { shared: Arc::new(shared), inner: Mutex::default(), belongings, driving: TaskTracker::new() };
        fleet.inner().keepers.spawn(log::keep_short(state.join("logs")));
        fleet.inner().keepers.spawn(fleet.belongings().sweep());
        fleet.adopt(records);
        Ok(fleet)
    }

    fn adopt(&self, records: Vec<Record>) {
        let launch = &self.shared.launch;
        // Those that a killed supervisor had started and not yet written down, or whose record is gone, are found here only.
        let owner = |watch: &Path| Some(launch.owner_of(&launch.application_of(watch)?));
        let mut found = proc::session_leaders_given(WATCH, owner);
        let mut inner = self.inner();
        for record in records {
            let found = found.remove(&record.watch);
            let adopted = record
                .process()
                .map(|process| (record.clone(), process))
                .or_else(|| record.clone().found(found?, launch.owner_of(&record.application)));
            match adopted {
                Some((record, process)) => self.adopt_one(&mut inner, &record, process),
                None => self.ended_unseen(&record),
            }
        }
        for (watch, pid) in found {
            let Some(application) = launch.application_of(&watch) else { continue };
            let Some(record) = self.record_of(&application, watch) else { continue };
            let Some((record, process)) = record.found(pid, launch.owner_of(&application)) else { continue };
            self.adopt_one(&mut inner, &record, process);
        }
    }

    fn adopt_one(&self, inner: &mut Inner, record: &Record, process: ProcessHandle) {
        tracing::info!(application = %record.application, pid = record.pid, "taking over its process");
        if let Err(error) = record.save(&self.shared.launch.dirs.processes()) {
            tracing::warn!(application = %record.application, %error, "cannot write down what was taken over");
        }
        if let Err(error) = self.book().keep(&record.application, record.ports) {
            tracing::warn!(application = %record.application, %error, "cannot write down the ports of what was taken over");
        }
        self.start(inner, &record.application, None, record.ports, |driver| driver.adopt(record, process));
    }

    /// It ended while no supervisor was there: when and how is not known, and that counts as a crash just now.
    fn ended_unseen(&self, record: &Record) {
        let (processes, application) = (self.shared.launch.dirs.processes(), &record.application);
        let (begun, now) = (&self.shared.begun, Instant::now());
        tracing::info!(%application, "its process has ended meanwhile");
        let before = Kept::load(&processes, application);
        let mut machine = Machine::new(self.shared.ttl());
        if let Some(before) = &before {
            machine.resume(&before.past(begun), now);
        }
        machine.ended_unseen(record.was_ready, begun.since(&record.boot, begun.uptime), now);
        if let Some(past) = machine.past(now)
            && let Err(error) =
                Kept::new(application, before.and_then(|kept| kept.deploy), &past, begun).save(&processes)
        {
            tracing::warn!(%application, %error, "cannot write down that it ended");
            return;
        }
        Record::forget(&processes, application);
    }

    /// A record for a process without one. The ports are those of the book: it was written before any process had them.
    fn record_of(&self, application: &ApplicationName, watch: PathBuf) -> Option<Record> {
        Some(Record {
            application: application.clone(),
            pid: 0,
            start_time: 0,
            watch,
            ports: self.book().pair(application)?,
            celld_version: "unknown".to_owned(),
            started_at: now(),
            was_ready: false,
            memory_mib: 0,
            boot: self.shared.begun.boot.clone(),
        })
    }

    /// What runs, now and later.
    pub(crate) fn watch(&self) -> watch::Receiver<Statuses> {
        self.shared.statuses.subscribe()
    }

    /// Makes exactly these applications run here, each with the deploy that was published last. Answers of which others something
    /// is kept.
    ///
    /// # Errors
    /// `cas-conflict` for a set that is older than the last one of the same `run`, `draining` while the node stops,
    /// `resource-limit` when the ports are used up and `internal` when the port book or the owner of data cannot be written; in the
    /// last two cases all other applications are applied.
    pub(crate) fn apply(&self, order: &Order) -> Result<Vec<ApplicationName>, Problem> {
        let mut inner = self.inner();
        if inner.stopping {
            return Err(Problem::new(ProblemCode::Draining, "this node is stopping"));
        }
        if let Some((last_run, last_pass)) = &inner.applied
            && *last_run == order.run
            && order.pass < *last_pass
        {
            let pass = order.pass;
            let detail = format!("a newer set of processes is in force: pass {last_pass}, this is pass {pass}");
            return Err(Problem::new(ProblemCode::CasConflict, detail));
        }
        inner.applied = Some((order.run.clone(), order.pass));
        self.shared.wanted.store(order.processes.len(), Ordering::Relaxed);
        let mut outcome = Ok(());
        let mut started = 0;
        let mut wanted = BTreeSet::new();
        for (application, asked) in &order.processes {
            if inner.entries.contains_key(application) && self.is_anothers(application, asked) {
                // It ends like one that is not wanted, and the next order starts the one that is.
                tracing::info!(%application, "its process belongs to an application of this name that was deleted");
                continue;
            }
            wanted.insert(application);
            if let Err(problem) = self.want(&mut inner, application, asked, &mut started) {
                tracing::error!(%application, ?problem, "cannot run here");
                outcome = Err(problem);
            }
        }
        self.unwant_others(&mut inner, &wanted);
        let mut belongings = self.belongings();
        let lives = |name: &ApplicationName| order.processes.contains_key(name) || inner.entries.contains_key(name);
        for application in order.gone.iter().filter(|name| !lives(name)) {
            if let Err(error) = belongings.forget(application, &order.installation) {
                tracing::warn!(%application, %error, "cannot remove what it left; trying again later");
            }
        }
        // Those of applications that left while this node was down have no entry that says so.
        if let Err(error) = self.book().release_others(lives, now()) {
            tracing::warn!(%error, "cannot write the port book");
        }
        let kept = belongings.kept(&order.installation).filter(|name| !order.processes.contains_key(*name));
        outcome.map(|()| kept.cloned().collect())
    }

    fn is_anothers(&self, application: &ApplicationName, asked: &Asked) -> bool {
        asked.owner.as_ref().is_some_and(|owner| self.belongings().are_anothers(application, owner))
    }

    fn want(
        &self,
        inner: &mut Inner,
        application: &ApplicationName,
        asked: &Asked,
        started: &mut u32,
    ) -> Result<(), Problem> {
        let deploy = asked.deploy.as_ref();
        let ports = self.ports(application)?;
        if let Some(owner) = &asked.owner {
            // A process that runs is this owner's, or of before there were any: the caller has looked.
            self.belongings().claim(application, owner).map_err(|error| {
                Problem::new(ProblemCode::Internal, "this node cannot write down whose data it keeps; see its log")
                    .because(error)
            })?;
        }
        if inner.entries.get(application).is_some_and(|entry| entry.driver.is_finished()) {
            // A driver has no end of its own: this is a defect. What it left running is taken over like that of a supervisor.
            tracing::error!(%application, "its driver broke; taking over from it");
            inner.entries.remove(application);
            let left = Record::load(&self.shared.launch.dirs.processes(), application);
            let process = left.as_ref().and_then(|record| Some((record, record.process()?)));
            self.start(inner, application, deploy, ports, |driver| {
                if let Some((record, process)) = process {
                    driver.adopt(record, process);
                }
            });
            return Ok(());
        }
        if let Some(entry) = inner.entries.get(application) {
            let wish = Wish { want: Want::Run, deploy: deploy.cloned() };
            let moved = entry.wishes.send_if_modified(|old| {
                // Whoever knows of no deploy takes none back.
                let wish = Wish { deploy: wish.deploy.or_else(|| old.deploy.clone()), ..wish };
                let moved = *old != wish;
                *old = wish;
                moved
            });
            if moved {
                entry.tap.over.store(false, Ordering::Release);
            }
            return Ok(());
        }
        let pause = turn(*started);
        *started = started.saturating_add(1);
        let kept = Kept::load(&self.shared.launch.dirs.processes(), application);
        self.start(inner, application, deploy, ports, |driver| {
            kept.iter().for_each(|kept| driver.remember(kept));
            driver.hold(pause);
        });
        Ok(())
    }

    fn ports(&self, application: &ApplicationName) -> Result<Pair, Problem> {
        let assigned = self.book().assign(application, self.shared.launch.address, now());
        let unwritten = |error: std::io::Error| {
            Problem::new(ProblemCode::Internal, "this node cannot write its port book; see its log").because(error)
        };
        assigned.map_err(unwritten)?.ok_or_else(|| {
            Problem::new(
                ProblemCode::ResourceLimit,
                "this node has no free pair of ports left for another application; widen celld.portRange",
            )
        })
    }

    fn unwant_others(&self, inner: &mut Inner, wanted: &BTreeSet<&ApplicationName>) {
        let mut over = Vec::new();
        for (application, entry) in &inner.entries {
            if wanted.contains(application) {
                continue;
            }
            if entry.wishes.send_if_modified(|wish| grow(wish, Want::Stop))
                && let Err(error) = self.book().release(application, now())
            {
                // The pair stays reserved for longer than it has to.
                tracing::warn!(%application, %error, "cannot write the port book");
            }
            if entry.tap.over.load(Ordering::Acquire) {
                over.push(application.clone());
            }
        }
        for application in over {
            if let Some(entry) = inner.entries.remove(&application) {
                entry.driver.abort();
            }
        }
        while inner.drivers.try_join_next().is_some() {}
    }

    /// Those that run as users beside `celld.uidRange`, now and later.
    pub(crate) fn strays(&self) -> watch::Receiver<Strays> {
        self.shared.strays.watch()
    }

    /// The ports of applications that are beside `celld.portRange`: they keep theirs, and nobody gets another one there.
    pub(crate) fn ports_beside_range(&self) -> BTreeSet<u16> {
        self.book().beside_range()
    }

    /// Tells an application's process to look at its pointer now.
    pub(crate) async fn reload(&self, application: &ApplicationName) -> Reload {
        let serving = self
            .shared
            .statuses
            .borrow()
            .get(application)
            .is_some_and(|status| matches!(status.state, ProcessState::Ready | ProcessState::Unhealthy));
        let entry = self.inner().entries.get(application).map(|entry| (entry.ports, Arc::clone(&entry.tap)));
        let Some((ports, tap)) = entry.filter(|_| serving) else { return Reload::Unavailable };
        let internal = SocketAddr::new(self.shared.launch.address, ports.internal);
        let question = Question::get(internal, "/reload", MAX_RELOAD_BYTES, RELOAD_DEADLINE);
        let answer = Question { method: Method::POST, ..question }.ask().await;
        tap.nudge.notify_one();
        answer.map_or(Reload::Unavailable, |answer| Reload::read(answer.status, answer.body.as_deref()))
    }

    /// Removes what bounded the applications. To be called once all of them have ended.
    pub(crate) async fn clear(&self) {
        self.shared.launch.enclosure.clear().await;
    }

    /// Ends every process and waits for that. Nothing is started any more.
    pub(crate) async fn stop(&self, how: Stop) {
        let want = match how {
            Stop::Drained => Want::End,
            Stop::Killed => Want::Hurry,
        };
        {
            let mut inner = self.inner();
            inner.stopping = true;
            for entry in inner.entries.values() {
                entry.wishes.send_if_modified(|wish| grow(wish, want));
            }
        }
        // Nobody is added to them any more. What they show may be nothing yet: one that has just begun has shown nothing of the process
        // that it took over, or is about to start.
        self.driving.close();
        self.driving.wait().await;
    }

    fn start(
        &self,
        inner: &mut Inner,
        application: &ApplicationName,
        deploy: Option<&String>,
        ports: Pair,
        prepare: impl FnOnce(&mut Driver),
    ) {
        let (wishes, wished) = watch::channel(Wish { want: Want::Run, deploy: deploy.cloned() });
        let tap = Arc::new(Tap::default());
        let mut driver = Driver::new(Arc::clone(&self.shared), application.clone(), ports, wished, Arc::clone(&tap));
        prepare(&mut driver);
        let driver = inner.drivers.spawn(self.driving.track_future(driver.run()));
        inner.entries.insert(application.clone(), Entry { wishes, tap, ports, driver });
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn belongings(&self) -> MutexGuard<'_, Belongings> {
        self.belongings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.shared.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What shall end never does so more slowly because somebody else asks for it, too.
fn grow(wish: &mut Wish, want: Want) -> bool {
    let grows = wish.want < want;
    wish.want = wish.want.max(want);
    grows
}

fn now() -> Timestamp {
    Timestamp::from_system(SystemTime::now())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Child;

    use scafo_core::config;

    use super::super::command::tests::launch;
    use super::*;
    use crate::state::Dirs;

    /// A fleet with directories of its own.
    fn fleet(dirs: Dirs) -> Fleet {
        let spawner = Spawner::start().unwrap();
        let celld = config::Celld { path: None, port_range: 24_000..=24_001, env: BTreeMap::new(), uid_range: None };
        let runtime = Runtime::find(&celld, &BTreeMap::new(), None, spawner.clone()).unwrap();
        let launch = Launch { dirs, ..launch("", None) };
        Fleet::open(Arc::new(launch), Arc::new(runtime), spawner, celld.port_range).unwrap()
    }

    /// A process of this application that an earlier supervisor has left, in its directories.
    async fn left(dirs: &Dirs, application: &str) -> Child {
        let application: ApplicationName = application.parse().unwrap();
        let watch = dirs.application(application.as_str()).join("watch");
        let mut command = std::process::Command::new("sleep");
        let child = command.arg("600").env(WATCH, &watch).process_group(0).spawn().unwrap();
        let record = Record {
            application,
            pid: child.id(),
            start_time: proc::start_time(child.id()).unwrap(),
            watch,
            ports: Pair { public: 24_000, internal: 24_001 },
            celld_version: "0.6.0".to_owned(),
            started_at: now(),
            was_ready: true,
            memory_mib: 0,
            boot: String::new(),
        };
        record.save(&dirs.processes()).unwrap();
        // The kernel lets the parent go on a moment before the new program's environment can be seen.
        let limit = Instant::now() + Duration::from_secs(60);
        while record.process().is_none() && Instant::now() < limit {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        child
    }

    /// On one thread, so that no driver has done anything yet when the stop comes.
    #[tokio::test]
    async fn a_stop_waits_for_a_process_that_was_only_just_taken_over() {
        for how in [Stop::Drained, Stop::Killed] {
            let state = tempfile::tempdir().unwrap();
            let dirs = Dirs::create(&state.path().join("state"), &state.path().join("run")).unwrap();
            let mut child = left(&dirs, "shop").await;
            let fleet = fleet(dirs);
            fleet.stop(how).await;
            // Whoever took it over has waited for it.
            let ended = proc::start_time(child.id()).is_none();
            if !ended {
                child.kill().unwrap();
            }
            assert!(ended, "{how:?}");
        }
    }

    #[tokio::test]
    async fn the_reason_why_a_process_could_not_be_started_is_shown() {
        let state = tempfile::tempdir().unwrap();
        let dirs = Dirs::create(&state.path().join("state"), &state.path().join("run")).unwrap();
        let fleet = fleet(dirs);
        let shop: ApplicationName = "shop".parse().unwrap();
        fleet.book().keep(&shop, Pair { public: 24_000, internal: 24_001 }).unwrap();
        let mut statuses = fleet.watch();
        let processes = BTreeMap::from([(shop.clone(), Asked::default())]);
        fleet.apply(&Order { processes, ..Order::default() }).unwrap();
        let shown = statuses.wait_for(|statuses| statuses.get(&shop).is_some_and(|status| status.last_exit.is_some()));
        let shown = tokio::time::timeout(Duration::from_secs(60), shown).await.unwrap().unwrap().clone();
        let exit = shown[&shop].last_exit.clone().unwrap();
        assert!(exit.not_started().is_some_and(|why| why.contains("no celld")), "{exit:?}");
    }

    #[tokio::test]
    async fn the_ports_of_an_application_that_left_while_the_node_was_down_are_given_back() {
        let state = tempfile::tempdir().unwrap();
        let dirs = Dirs::create(&state.path().join("state"), &state.path().join("run")).unwrap();
        let book = dirs.state.join("ports.json");
        let fleet = fleet(dirs);
        let [left, stays] = ["left", "stays"].map(|name| name.parse::<ApplicationName>().unwrap());
        fleet.book().keep(&left, Pair { public: 24_000, internal: 24_001 }).unwrap();
        fleet.book().keep(&stays, Pair { public: 24_002, internal: 24_003 }).unwrap();
        fleet.apply(&Order { processes: BTreeMap::from([(stays, Asked::default())]), ..Order::default() }).unwrap();
        let book: serde_json::Value = serde_json::from_slice(&std::fs::read(book).unwrap()).unwrap();
        assert!(book["left"]["unusedSince"].is_string() && book["stays"]["unusedSince"].is_null(), "{book}");
    }

    #[test]
    fn a_few_start_at_once_and_many_one_after_another() {
        assert!((0..4).all(|n| turn(n).is_zero()));
        for n in 4..400 {
            let latest = TURN.saturating_mul(n - 3).min(LAST_TURN);
            assert!((latest - TURN..=latest).contains(&turn(n)), "{n}");
        }
    }
}

//! What happens: one strike after the other, each with what it allows and how long it took until all was well again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use scafo_core::Timestamp;
use scafo_tests::node::DAEMONS;
use scafo_tests::process;
use tokio::task::JoinSet;

use crate::allowed::{Reason, Window};
use crate::disk::Disk;
use crate::fleet::{APPLICATIONS, Subject};
use crate::leases::Refusals;

/// A daemon that dies over and over is started again more and more slowly, which is a rule of its own: so many strikes…
const STRIKES: usize = 5;
/// …within so long are enough. It has to be well for a minute for its pauses to begin anew.
const WITHIN: Duration = Duration::from_secs(75);
/// How long the disk stays full: for longer, leases of applications could not be renewed, and rightly so.
const FULL: Duration = Duration::from_secs(3);
/// A stopped process goes on after at most so long: before anybody takes it for dead.
const STOPPED_MS: u64 = 2500;
/// How often the processes are looked at for two of one application, and their logs for a lost lease.
const LOOK: Duration = Duration::from_millis(500);
/// Between two deploys of the load.
const BETWEEN_DEPLOYS: Duration = Duration::from_secs(2);

/// How something dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Killed,
    Stopped(u64),
    ToldToEnd,
}

impl How {
    fn word(self) -> &'static str {
        match self {
            Self::Killed => "kill -9",
            Self::Stopped(_) => "stopped for a while",
            Self::ToldToEnd => "told to end",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strike {
    Daemon(&'static str, How),
    Runtime(&'static str, How),
    Supervisor(How),
    FullDisk,
}

/// What was seen and done.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) windows: Vec<Window>,
    /// How long it took until all was well, by what had happened.
    pub(crate) recoveries: BTreeMap<String, Vec<Duration>>,
    pub(crate) deployed: usize,
    pub(crate) not_deployed: Vec<String>,
    pub(crate) violations: BTreeSet<String>,
    pub(crate) lost_leases: Vec<LostLease>,
    pub(crate) refusals: Arc<Refusals>,
    pub(crate) leaks: Vec<String>,
    /// The node's log.
    pub(crate) node: String,
    /// When the load began, in the form of that log.
    pub(crate) begun: String,
    /// One moment, as it is told here and as it is told in that log.
    pub(crate) ended: Option<(Instant, Timestamp)>,
}

/// An application gave up because it could not renew its lease.
#[derive(Debug)]
pub(crate) struct LostLease {
    pub(crate) application: usize,
    pub(crate) earliest: Instant,
    pub(crate) latest: Instant,
    /// It was struck itself, which may have kept it from renewing.
    pub(crate) struck: bool,
}

type Shared = Arc<Mutex<Log>>;

pub(crate) struct Chaos {
    subject: Arc<Subject>,
    dice: StdRng,
    disk_can_be_filled: bool,
    disk: Arc<Disk>,
    log: Shared,
    /// Applications that are away.
    away: Arc<Mutex<BTreeSet<usize>>>,
    struck: BTreeMap<&'static str, Vec<Instant>>,
    recovering: JoinSet<()>,
    background: JoinSet<()>,
    over: Arc<AtomicBool>,
    /// What is seen until the last application is back.
    observers: JoinSet<()>,
    settled: Arc<AtomicBool>,
    refusals: Arc<Refusals>,
    number: usize,
}

impl Chaos {
    pub(crate) fn new(subject: &Arc<Subject>, disk: &Arc<Disk>, mut dice: StdRng) -> Self {
        let (log, over) = (Shared::default(), Arc::new(AtomicBool::new(false)));
        let (away, refusals) = (Arc::<Mutex<BTreeSet<usize>>>::default(), Arc::<Refusals>::default());
        let mut background = JoinSet::new();
        let deploys = StdRng::seed_from_u64(dice.random());
        background.spawn(deploy(Arc::clone(subject), Arc::clone(&log), Arc::clone(&over), deploys));
        background.spawn(watch(Arc::clone(subject), Arc::clone(&log), Arc::clone(&over)));
        let (mut observers, settled) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
        observers.spawn(Arc::clone(&refusals).watch(subject.state().to_owned(), Arc::clone(&settled)));
        let follower = Follower { subject: Arc::clone(subject), log: Arc::clone(&log), away: Arc::clone(&away) };
        observers.spawn(follower.run(Arc::clone(&settled)));
        Self {
            subject: Arc::clone(subject),
            dice,
            disk_can_be_filled: disk.can_be_filled(),
            disk: Arc::clone(disk),
            log,
            away,
            struck: BTreeMap::new(),
            recovering: JoinSet::new(),
            background,
            over,
            observers,
            settled,
            refusals,
            number: 0,
        }
    }

    /// One strike, and all but applications well again.
    pub(crate) async fn strike(&mut self) {
        let strike = self.choose();
        self.number += 1;
        eprintln!("{:>4} {strike:?}", self.number);
        match strike {
            Strike::Daemon(name, how) => self.daemon(name, how).await,
            Strike::Runtime(name, how) => self.runtime(name, how),
            Strike::Supervisor(how) => self.supervisor(how).await,
            Strike::FullDisk => self.full_disk().await,
        }
        tokio::time::sleep(Duration::from_millis(self.dice.random_range(0..1500))).await;
        while self.recovering.try_join_next().is_some() {}
    }

    /// The first ones are one of each kind, so that a short run has them all.
    fn choose(&mut self) -> Strike {
        let first = [
            Strike::Runtime("celld-workerd", How::Killed),
            Strike::Supervisor(How::Killed),
            Strike::Daemon("scafo-ingressd", How::Killed),
            Strike::Daemon("scafo-bucketd", How::Killed),
            Strike::Daemon("scafo-registryd", How::Killed),
            Strike::Runtime("workerd", How::Killed),
            Strike::Daemon("scafo-routerd", How::Stopped(1000)),
            Strike::Daemon("scafo-apiserver", How::ToldToEnd),
            Strike::FullDisk,
        ];
        let how = match self.dice.random_range(0..4) {
            0 | 1 => How::Killed,
            2 => How::Stopped(self.dice.random_range(200..STOPPED_MS)),
            _ => How::ToldToEnd,
        };
        let strike = match (first.get(self.number), self.dice.random_range(0..20)) {
            (Some(first), _) => *first,
            (None, 0..11) => Strike::Daemon(DAEMONS.choose(&mut self.dice).expect("there are some"), how),
            (None, 11..16) => Strike::Runtime("celld-workerd", how),
            (None, 16) => Strike::Runtime("workerd", How::Killed),
            (None, 17 | 18) if how == How::ToldToEnd => Strike::Supervisor(How::Killed),
            (None, 17 | 18) => Strike::Supervisor(how),
            (None, _) => Strike::FullDisk,
        };
        match strike {
            Strike::FullDisk if !self.disk_can_be_filled => Strike::Runtime("celld-workerd", How::Killed),
            Strike::Daemon(name, _) => {
                let before = self.struck.entry(name).or_default();
                before.retain(|at| at.elapsed() < WITHIN);
                if before.len() >= STRIKES {
                    return Strike::Runtime("celld-workerd", How::Killed);
                }
                before.push(Instant::now());
                strike
            }
            Strike::Runtime(..) | Strike::Supervisor(_) | Strike::FullDisk => strike,
        }
    }

    fn allow(&self, reason: Reason, from: Instant, to: Instant) {
        self.log.lock().unwrap().windows.push(Window { reason, from, to });
    }

    fn recovered(&self, what: String, since: Instant) {
        self.log.lock().unwrap().recoveries.entry(what).or_default().push(since.elapsed());
    }

    fn away(&self) -> Vec<usize> {
        self.away.lock().unwrap().iter().copied().collect()
    }

    async fn daemon(&self, name: &'static str, how: How) {
        let old = self.subject.until_daemon(name).await;
        let from = Instant::now();
        act(&old, how).await;
        if name == "scafo-ingressd" && how == How::Killed {
            until_gone(&old).await;
            self.allow(Reason::Held, from, Instant::now());
        }
        // One that was stopped is asked only once it goes on: that it is away meanwhile is no news.
        let from = if matches!(how, How::Stopped(_)) { Instant::now() } else { from };
        self.subject.until_well(&self.away()).await;
        self.recovered(format!("{name} {}", how.word()), from);
    }

    /// Strikes one application's process and goes on; it is away for at least the life of its lease.
    fn runtime(&mut self, name: &'static str, how: How) {
        let away = self.away();
        let all = self.subject.of_applications(name);
        let there: Vec<_> = all.into_iter().filter(|(number, _)| !away.contains(number)).collect();
        let Some((number, victim)) = there.choose(&mut self.dice).cloned() else { return };
        self.away.lock().unwrap().insert(number);
        let (subject, log, away) = (Arc::clone(&self.subject), Arc::clone(&self.log), Arc::clone(&self.away));
        self.recovering.spawn(async move {
            let from = Instant::now();
            act(&victim, how).await;
            // The dead one may still answer for a moment.
            subject.until_other(name, number, &victim, how == How::ToldToEnd || how == How::Killed).await;
            subject.until_good(number).await;
            let mut log = log.lock().unwrap();
            log.windows.push(Window { reason: Reason::Application(number), from, to: Instant::now() });
            log.recoveries.entry(format!("{name} {}", how.word())).or_default().push(from.elapsed());
            away.lock().unwrap().remove(&number);
        });
    }

    async fn supervisor(&mut self, how: How) {
        let from = Instant::now();
        if let How::Stopped(ms) = how {
            let pid = self.subject.supervisor().await.expect("it runs");
            process::signal(pid, Signal::SIGSTOP);
            tokio::time::sleep(Duration::from_millis(ms)).await;
            process::signal(pid, Signal::SIGCONT);
            let from = Instant::now();
            self.subject.until_well(&self.away()).await;
            return self.recovered(format!("supervisor {}", how.word()), from);
        }
        self.subject.kill_supervisor().await;
        self.allow(Reason::Held, from, from);
        self.allow(Reason::Down, from, Instant::now());
        self.subject.until_well(&self.away()).await;
        self.recovered("supervisor kill -9, and another one started".to_owned(), from);
    }

    async fn full_disk(&self) {
        let disk = Arc::clone(&self.disk);
        tokio::task::spawn_blocking(move || disk.fill()).await.unwrap();
        tokio::time::sleep(FULL).await;
        self.disk.empty();
        let from = Instant::now();
        self.subject.until_well(&self.away()).await;
        self.recovered("full disk, and space again".to_owned(), from);
    }

    /// Lets everything come back, and deploys what must go through now.
    pub(crate) async fn settle(mut self) -> Log {
        self.over.store(true, Ordering::Relaxed);
        for set in [&mut self.recovering, &mut self.background] {
            while let Some(ended) = set.join_next().await {
                ended.unwrap();
            }
        }
        self.subject.until_well(&[]).await;
        for number in 0..APPLICATIONS {
            self.subject.until_good(number).await;
        }
        self.settled.store(true, Ordering::Relaxed);
        while let Some(ended) = self.observers.join_next().await {
            ended.unwrap();
        }
        let mut log = std::mem::take(&mut *self.log.lock().unwrap());
        for number in 0..3 {
            if let Err(said) = self.subject.deploy(number, usize::MAX).await {
                log.violations.insert(format!("a deploy after the chaos failed: {said}"));
            }
        }
        log.node = self.subject.log();
        log.refusals = self.refusals;
        log.ended = Some((Instant::now(), Timestamp::from_system(SystemTime::now())));
        self.subject.until_nothing_is_staged().await;
        log
    }
}

/// Follows applications that lose their lease: they are away like killed ones. Whether they had a reason is judged at the end.
struct Follower {
    subject: Arc<Subject>,
    log: Shared,
    away: Arc<Mutex<BTreeSet<usize>>>,
}

impl Follower {
    async fn run(self, over: Arc<AtomicBool>) {
        let (mut looked, mut before) = (Instant::now(), self.subject.lost_leases());
        let mut followed = JoinSet::new();
        loop {
            let last = over.load(Ordering::Relaxed);
            let (now, looking) = (Instant::now(), Arc::clone(&self.subject));
            let all = tokio::task::spawn_blocking(move || looking.lost_leases()).await.unwrap();
            for number in (0..APPLICATIONS).filter(|number| all[*number] > before[*number]) {
                let struck = !self.away.lock().unwrap().insert(number);
                eprintln!("     app-{number} lost its lease");
                let lost = LostLease { application: number, earliest: looked, latest: Instant::now(), struck };
                self.log.lock().unwrap().lost_leases.push(lost);
                if !struck {
                    followed.spawn(self.follow(number, looked));
                }
            }
            (looked, before) = (now, all);
            if last {
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        while let Some(ended) = followed.join_next().await {
            ended.unwrap();
        }
    }

    fn follow(&self, number: usize, from: Instant) -> impl Future<Output = ()> + Send + 'static {
        let (subject, log, away) = (Arc::clone(&self.subject), Arc::clone(&self.log), Arc::clone(&self.away));
        async move {
            subject.until_good(number).await;
            log.lock().unwrap().windows.push(Window { reason: Reason::Application(number), from, to: Instant::now() });
            away.lock().unwrap().remove(&number);
        }
    }
}

async fn act(victim: &process::Process, how: How) {
    match how {
        How::Killed => process::signal(victim.pid, Signal::SIGKILL),
        How::ToldToEnd => process::signal(victim.pid, Signal::SIGTERM),
        How::Stopped(ms) => {
            process::signal(victim.pid, Signal::SIGSTOP);
            tokio::time::sleep(Duration::from_millis(ms)).await;
            process::signal(victim.pid, Signal::SIGCONT);
        }
    }
}

/// Waits until a killed process is one no more.
async fn until_gone(victim: &process::Process) {
    scafo_tests::wait::until("a killed process to end", Duration::from_secs(60), || async {
        process::read(victim.pid).is_none_or(|now| now.started != victim.started).then_some(())
    })
    .await;
}

/// Deploys one application after the other.
async fn deploy(subject: Arc<Subject>, log: Shared, over: Arc<AtomicBool>, mut dice: StdRng) {
    let mut edition = 0;
    while !over.load(Ordering::Relaxed) {
        edition += 1;
        match subject.deploy(dice.random_range(0..APPLICATIONS), edition).await {
            Ok(_) => log.lock().unwrap().deployed += 1,
            Err(said) => log.lock().unwrap().not_deployed.push(said),
        }
        tokio::time::sleep(BETWEEN_DEPLOYS).await;
    }
}

/// Looks for two processes of one application.
async fn watch(subject: Arc<Subject>, log: Shared, over: Arc<AtomicBool>) {
    while !over.load(Ordering::Relaxed) {
        let looking = Arc::clone(&subject);
        let all = tokio::task::spawn_blocking(move || looking.of_applications("celld-workerd")).await.unwrap();
        let mut seen = BTreeMap::new();
        for (number, process) in all {
            if let Some(other) = seen.insert(number, process.clone()) {
                let two = format!("two processes of app-{number}: {} and {}", other.pid, process.pid);
                log.lock().unwrap().violations.insert(two);
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

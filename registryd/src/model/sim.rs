//! What the nodes of a simulation stand on: clocks that differ, a network that delays and loses, a store that never lies, and
//! the dice. One seed decides everything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use scafo_core::key;
use scafo_core::record::{Fence, Published};
use scafo_core::view::ProcessStatus;
use scafo_core::{ApplicationName, Timestamp};
use scafo_store::{Bucket, MemoryBucket, PutOptions};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::checks::Ledger;
use super::seeds::Dice;
use crate::daemon::Core;
use crate::node::in_force::Kept;
use crate::registry::{Clock, Mono};

mod bucket;

pub(super) use self::bucket::SimBucket;

/// How long a node waits for an answer of the store.
const DEADLINE: Duration = Duration::from_secs(5);
/// The store's clock at the start.
const WALL: i64 = 1_800_000_000_000;

/// How bad the network is, in percent of the requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weather {
    pub(super) faults: u64,
    pub(super) slow: u64,
}

impl Weather {
    pub(super) const CALM: Self = Self { faults: 0, slow: 0 };
}

/// One computer: what outlives the daemons on it.
pub(super) struct Machine {
    pub(super) id: String,
    pub(super) region: &'static str,
    skew: i64,
    base: Duration,
    pub(super) disk: Arc<Mutex<Option<Kept>>>,
    pub(super) processes: Mutex<BTreeMap<ApplicationName, Process>>,
    fate: Mutex<Fate>,
    pub(super) killed: Notify,
    pub(super) life: Mutex<Option<Life>>,
    pub(super) hold: Mutex<Option<Hold>>,
    pub(super) requests: AtomicU64,
}

/// The right of a run to coordinate, where there is no daemon to ask.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hold {
    pub(super) run: u64,
    pub(super) fence: Fence,
    pub(super) lapses: Mono,
}

/// One run of the daemon on a machine.
#[derive(Debug, Clone)]
pub(super) struct Life {
    pub(super) run: u64,
    pub(super) core: Arc<Core>,
}

impl Machine {
    /// Under which right this machine coordinates, by its own clock.
    pub(super) fn holds(&self, since_start: Duration) -> Option<Hold> {
        let life = self.life.lock().unwrap().clone();
        let of_daemon = life.and_then(|life| {
            let lead = life.core.lease.borrow().lead.clone()?;
            Some(Hold { run: life.run, fence: lead.fence, lapses: lead.lapses })
        });
        let hold = of_daemon.or(*self.hold.lock().unwrap())?;
        (Mono::at(self.base + since_start) < hold.lapses).then_some(hold)
    }

    /// What the daemon's parts share, once they are up.
    pub(super) fn core(&self) -> Option<Arc<Core>> {
        self.life.lock().unwrap().as_ref().map(|life| Arc::clone(&life.core))
    }
}

/// A process of a machine.
pub(super) struct Process {
    pub(super) status: ProcessStatus,
    /// When it can be ready.
    pub(super) ready: Instant,
}

#[derive(Debug)]
struct Fate {
    paused: Instant,
    cut_off: Instant,
    down: Instant,
    steps_left: Option<u64>,
}

/// The whole.
pub(super) struct Sim {
    start: Instant,
    pub(super) ttl: Duration,
    /// Half of the histories never lose it, and keep the stricter rules.
    pub(super) loses_the_lease: bool,
    dice: Mutex<Dice>,
    pub(super) memory: MemoryBucket,
    pub(super) machines: Vec<Machine>,
    /// Writes on their way: they outlive their senders.
    network: Mutex<JoinSet<()>>,
    weather: Mutex<Weather>,
    pub(super) ledger: Mutex<Ledger>,
    /// What each application's record says is published, at once when it says so.
    pub(super) published: Mutex<BTreeMap<ApplicationName, Published>>,
    runs: AtomicU64,
    /// Whether the store lists in whatever order.
    shuffles: AtomicBool,
}

/// What befalls one request.
enum Way {
    Through,
    /// Never arrives.
    Lost,
    /// Arrives; the answer does not.
    Unanswered,
    /// Arrives when its sender has given up.
    Late,
    Busy,
    Conflict,
    /// A write is answered 412 out of nowhere, as by a store that looked at a replica.
    Refused,
}

impl Sim {
    /// `machines` computers of which the last `people` only carry the command line.
    pub(super) fn new(seed: u64, machines: usize, ttl: Duration) -> Arc<Self> {
        let mut dice = Dice::new(seed);
        let start = Instant::now();
        let machine = |(index, dice): (usize, &mut Dice)| Machine {
            id: format!("n{index}"),
            region: if index.is_multiple_of(2) { "eu" } else { "us" },
            // Up to an hour wrong either way: no decision may notice.
            skew: i64::try_from(dice.below(7_200_000)).unwrap() - 3_600_000,
            base: dice.millis(0, 1_000_000),
            disk: Arc::default(),
            processes: Mutex::default(),
            fate: Mutex::new(Fate { paused: start, cut_off: start, down: start, steps_left: None }),
            killed: Notify::new(),
            life: Mutex::default(),
            hold: Mutex::default(),
            requests: AtomicU64::new(0),
        };
        let machines = (0..machines).map(|index| machine((index, &mut dice))).collect();
        Arc::new(Self {
            start,
            ttl,
            loses_the_lease: seed % 2 == 1,
            dice: Mutex::new(dice),
            memory: MemoryBucket::new(),
            machines,
            network: Mutex::default(),
            weather: Mutex::new(Weather::CALM),
            ledger: Mutex::default(),
            published: Mutex::default(),
            runs: AtomicU64::new(0),
            shuffles: AtomicBool::new(false),
        })
    }

    pub(super) fn dice(&self) -> MutexGuard<'_, Dice> {
        self.dice.lock().unwrap()
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap()
    }

    /// From now on pages of listings come in an order of their own.
    pub(super) fn shuffle_listings(&self) {
        self.shuffles.store(true, Ordering::Relaxed);
    }

    pub(super) fn set_weather(&self, weather: Weather) {
        *self.weather.lock().unwrap() = weather;
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    pub(super) fn next_run(&self) -> u64 {
        self.runs.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn clock(self: &Arc<Self>, machine: usize) -> Arc<SimClock> {
        Arc::new(SimClock { sim: Arc::clone(self), machine })
    }

    pub(super) fn bucket(self: &Arc<Self>, machine: usize, run: u64) -> Arc<SimBucket> {
        Arc::new(SimBucket { sim: Arc::clone(self), machine, run })
    }

    /// Everything on this machine stands still until then; its clock does not.
    pub(super) fn pause(&self, machine: usize, duration: Duration) {
        self.fate(machine).paused = Instant::now() + duration;
    }

    pub(super) fn cut_off(&self, machine: usize, duration: Duration) {
        self.fate(machine).cut_off = Instant::now() + duration;
    }

    /// Ends the daemons of this machine now, until `duration` has passed.
    pub(super) fn kill(&self, machine: usize, duration: Duration) {
        self.fate(machine).down = Instant::now() + duration;
        self.machines[machine].killed.notify_one();
    }

    /// Has the daemons crash at the `steps`-th point from now at which a write leaves or its answer arrives.
    pub(super) fn crash_after(&self, machine: usize, steps: u64) {
        self.fate(machine).steps_left = Some(steps);
    }

    pub(super) fn heal(&self) {
        self.set_weather(Weather::CALM);
        for machine in 0..self.machines.len() {
            let now = Instant::now();
            *self.fate(machine) = Fate { paused: now, cut_off: now, down: now, steps_left: None };
        }
    }

    pub(super) async fn until_up(&self, machine: usize) {
        loop {
            let down = self.fate(machine).down;
            if down <= Instant::now() {
                return;
            }
            // It may be told to come up earlier.
            sleep_until(down.min(Instant::now() + Duration::from_secs(1))).await;
        }
    }

    fn fate(&self, machine: usize) -> MutexGuard<'_, Fate> {
        self.machines[machine].fate.lock().unwrap()
    }

    async fn while_paused(&self, machine: usize) {
        loop {
            let paused = self.fate(machine).paused;
            if paused <= Instant::now() {
                return;
            }
            sleep_until(paused).await;
        }
    }

    /// A point at which the machine may crash.
    async fn step(&self, machine: usize) {
        let crashes = {
            let mut fate = self.fate(machine);
            match &mut fate.steps_left {
                Some(0) => {
                    fate.steps_left = None;
                    true
                }
                Some(steps) => {
                    *steps -= 1;
                    false
                }
                None => false,
            }
        };
        if crashes {
            let down = self.dice().millis(100, 30_000);
            self.kill(machine, down);
            std::future::pending::<()>().await;
        }
    }

    fn way(&self, machine: usize) -> (Way, Duration, Duration) {
        let weather = *self.weather.lock().unwrap();
        let cut_off = self.fate(machine).cut_off > Instant::now();
        let mut dice = self.dice();
        let mut leg = || if dice.chance(weather.slow) { dice.millis(100, 4_000) } else { dice.millis(1, 15) };
        let (there, back) = (leg(), leg());
        if cut_off {
            return (Way::Lost, there, back);
        }
        if !dice.chance(weather.faults) {
            return (Way::Through, there, back);
        }
        match dice.below(10) {
            0..3 => (Way::Lost, there, back),
            3..6 => (Way::Unanswered, there, back),
            // Far beyond the life of a lease.
            6 => (Way::Late, dice.millis(5_000, 60_000), back),
            7 => (Way::Busy, there, back),
            8 => (Way::Conflict, there, back),
            _ => (Way::Refused, there, back),
        }
    }

    /// Deletes the record of the lease, or puts a copy there that once stood there.
    pub(super) async fn lose_the_lease(&self) {
        let copies = self.ledger().leases.clone();
        self.tick();
        self.ledger().tampered();
        if copies.is_empty() || self.dice().chance(40) {
            self.memory.delete(key::LEASE).await.unwrap();
        } else {
            let copy = self.dice().pick(&copies).clone();
            self.memory.put(key::LEASE, copy, PutOptions::default()).await.unwrap();
        }
        self.ledger().tampered();
    }

    fn tick(&self) {
        let now = WALL + i64::try_from(self.elapsed().as_millis()).unwrap();
        self.memory.set_now(Timestamp::from_millis(now));
    }

    /// Sends something that arrives whatever becomes of the sender.
    fn send(&self, letter: impl Future<Output = ()> + Send + 'static) {
        let mut network = self.network.lock().unwrap();
        while network.try_join_next().is_some() {}
        network.spawn(letter);
    }
}

/// The clocks of one machine.
pub(super) struct SimClock {
    sim: Arc<Sim>,
    machine: usize,
}

impl fmt::Debug for SimClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimClock").field("machine", &self.machine).finish_non_exhaustive()
    }
}

#[async_trait]
impl Clock for SimClock {
    fn wall(&self) -> Timestamp {
        let machine = &self.sim.machines[self.machine];
        Timestamp::from_millis(WALL + machine.skew).after(self.sim.elapsed())
    }

    fn mono(&self) -> Mono {
        Mono::at(self.sim.machines[self.machine].base + self.sim.elapsed())
    }

    fn random(&self) -> u32 {
        u32::try_from(self.sim.dice().next() >> 32).unwrap()
    }

    async fn sleep_until(&self, at: Mono) {
        sleep(at.since(self.mono())).await;
        self.sim.while_paused(self.machine).await;
    }
}

/// The names of what runs on a machine.
pub(super) fn running(machine: &Machine) -> BTreeSet<ApplicationName> {
    machine.processes.lock().unwrap().keys().cloned().collect()
}

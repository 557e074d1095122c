//! What the nodes of a simulation stand on: clocks that differ, a network that delays and loses, a store that never lies, and
//! the dice. One seed decides everything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use scafo_core::record::Published;
use scafo_core::view::ProcessStatus;
use scafo_core::{ApplicationName, Timestamp};
use scafo_store::{Bucket, Cause, ETagForm, Error, Head, ListRequest, MemoryBucket, Object, Page, Put, PutOptions};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::checks::Ledger;
use crate::daemon::Core;
use crate::node::in_force::Kept;
use crate::registry::{Clock, Mono};

/// How long a node waits for an answer of the store.
const DEADLINE: Duration = Duration::from_secs(5);
/// The store's clock at the start.
const WALL: i64 = 1_800_000_000_000;

/// Dice (SplitMix64): the same numbers for a seed whatever version a library has.
#[derive(Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed ^ 0x5CAF_0000_0000_0000)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(super) const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(super) const fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }

    pub(super) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let index = self.below(from.len() as u64);
        &from[usize::try_from(index).unwrap()]
    }
}

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
    pub(super) core: Mutex<Option<Arc<Core>>>,
    pub(super) requests: AtomicU64,
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
            core: Mutex::default(),
            requests: AtomicU64::new(0),
        };
        let machines = (0..machines).map(|index| machine((index, &mut dice))).collect();
        Arc::new(Self {
            start,
            ttl,
            dice: Mutex::new(dice),
            memory: MemoryBucket::new(),
            machines,
            network: Mutex::default(),
            weather: Mutex::new(Weather::CALM),
            ledger: Mutex::default(),
            published: Mutex::default(),
            runs: AtomicU64::new(0),
        })
    }

    pub(super) fn dice(&self) -> MutexGuard<'_, Dice> {
        self.dice.lock().unwrap()
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap()
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

/// The store as one run on one machine reaches it.
pub(super) struct SimBucket {
    sim: Arc<Sim>,
    machine: usize,
    run: u64,
}

impl fmt::Debug for SimBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimBucket").field("machine", &self.machine).finish_non_exhaustive()
    }
}

impl SimBucket {
    fn count(&self) {
        self.sim.machines[self.machine].requests.fetch_add(1, Ordering::Relaxed);
    }

    async fn read<T: Send>(
        &self,
        operation: &'static str,
        key: &str,
        read: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        self.count();
        let sim = &self.sim;
        sim.while_paused(self.machine).await;
        let (way, there, back) = sim.way(self.machine);
        let outcome = match way {
            Way::Through | Way::Conflict | Way::Refused => {
                sleep(there).await;
                sim.tick();
                let value = read.await;
                sleep(back).await;
                value
            }
            Way::Lost | Way::Unanswered | Way::Late => {
                sleep(DEADLINE).await;
                Err(Error::Unavailable { operation, key: key.to_owned(), cause: Cause::new("lost") })
            }
            Way::Busy => {
                sleep(there).await;
                Err(Error::Busy { operation, key: key.to_owned() })
            }
        };
        sim.while_paused(self.machine).await;
        outcome
    }

    /// Sends a change and waits for its answer for as long as a client does.
    async fn change<T: Send + 'static>(
        &self,
        way: &Way,
        there: Duration,
        back: Duration,
        change: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        let gives_up = Instant::now() + DEADLINE;
        let arrives = !matches!(way, Way::Lost);
        let answers = matches!(way, Way::Through);
        self.sim.send(async move {
            if !arrives {
                return;
            }
            sleep(there).await;
            let outcome = change.await;
            if answers {
                sleep(back).await;
                let _ = answer.send(outcome);
            }
        });
        let outcome = tokio::time::timeout_at(gives_up, answered).await.ok().and_then(Result::ok);
        if outcome.is_none() {
            sleep_until(gives_up).await;
        }
        outcome
    }
}

#[async_trait]
impl Bucket for SimBucket {
    async fn get_bounded(&self, key: &str, limit: u64) -> Result<Option<Object>, Error> {
        self.read("get", key, self.sim.memory.get_bounded(key, limit)).await
    }

    async fn head(&self, key: &str) -> Result<Option<Head>, Error> {
        self.read("head", key, self.sim.memory.head(key)).await
    }

    async fn get_range(&self, key: &str, range: std::ops::Range<u64>) -> Result<Option<Bytes>, Error> {
        self.read("get", key, self.sim.memory.get_range(key, range)).await
    }

    async fn put(&self, key: &str, body: Bytes, options: PutOptions) -> Result<Put, Error> {
        self.count();
        let sim = &self.sim;
        sim.while_paused(self.machine).await;
        sim.step(self.machine).await;
        let (way, there, back) = sim.way(self.machine);
        let early = match way {
            Way::Busy => Some(Put::Busy),
            Way::Conflict => Some(Put::Conflict),
            Way::Refused => Some(Put::Refused),
            Way::Through | Way::Lost | Way::Unanswered | Way::Late => None,
        };
        let put = if let Some(early) = early {
            sleep(there + back).await;
            early
        } else {
            let (world, machine, run, key) = (Arc::clone(sim), self.machine, self.run, key.to_owned());
            let landing = async move {
                world.tick();
                let before = Ledger::before(&world, &key);
                let put = world.memory.put(&key, body.clone(), options).await.unwrap();
                if matches!(put, Put::Written(_)) {
                    Ledger::landed(&world, (machine, run), &key, &body, before).await;
                }
                put
            };
            self.change(&way, there, back, landing).await.unwrap_or_else(|| Put::Unknown(Cause::new("lost")))
        };
        sim.while_paused(self.machine).await;
        sim.step(self.machine).await;
        Ok(put)
    }

    async fn delete(&self, key: &str) -> Result<(), Error> {
        self.count();
        let sim = &self.sim;
        sim.while_paused(self.machine).await;
        sim.step(self.machine).await;
        let (way, there, back) = sim.way(self.machine);
        let way = if matches!(way, Way::Conflict | Way::Refused) { Way::Through } else { way };
        let unavailable = || Error::Unavailable { operation: "delete", key: key.to_owned(), cause: Cause::new("lost") };
        let outcome = if matches!(way, Way::Busy) {
            sleep(there + back).await;
            Err(Error::Busy { operation: "delete", key: key.to_owned() })
        } else {
            let (world, key) = (Arc::clone(sim), key.to_owned());
            let deleted = self.change(&way, there, back, async move { world.memory.delete(&key).await }).await;
            deleted.unwrap_or_else(|| Err(unavailable()))
        };
        sim.while_paused(self.machine).await;
        sim.step(self.machine).await;
        outcome
    }

    async fn delete_many(&self, keys: &[String]) -> Result<(), Error> {
        for key in keys {
            self.delete(key).await?;
        }
        Ok(())
    }

    async fn list_page(&self, request: ListRequest<'_>) -> Result<Page, Error> {
        self.read("list", request.prefix, self.sim.memory.list_page(request)).await
    }

    fn use_etag_form(&self, _form: ETagForm) {}

    fn requests(&self) -> u64 {
        self.sim.machines[self.machine].requests.load(Ordering::Relaxed)
    }
}

/// The names of what runs on a machine.
pub(super) fn running(machine: &Machine) -> BTreeSet<ApplicationName> {
    machine.processes.lock().unwrap().keys().cloned().collect()
}

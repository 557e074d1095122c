//! What eight clients at three nodes set, claim, freeze and read, through proxies that fail three requests in ten, can have
//! happened one after the other.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use scafo_core::domain::Host;
use scafo_core::record::Replicas;
use scafo_core::{Problem, ProblemCode, key};
use scafo_registryd::registry::{NewClaim, Reason, Registry};
use scafo_tests::fault_proxy::{Exchange, Fault, FaultProxy, Operation, Reply, Rule};
use scafo_tests::linear::{self, Claim, Event, Freeze, Register};
use tokio::task::JoinSet;

use crate::registry::{Fleet, application, is_undecided};
use crate::support::{long, seed};

const WRITERS: usize = 8;

/// How much is done, and over how many keys of each kind.
struct Size {
    operations: usize,
    applications: usize,
    hosts: usize,
}

/// What one client did.
#[derive(Default)]
struct Seen {
    replicas: Vec<(usize, Event<Register>)>,
    labels: Vec<(usize, Event<Register>)>,
    hosts: Vec<(usize, Event<Claim>)>,
    freeze: Vec<Event<Freeze>>,
}

struct Client {
    registry: Arc<Registry>,
    number: usize,
    start: Instant,
    random: StdRng,
    size: Size,
    seen: Seen,
}

fn label(value: u64) -> BTreeMap<String, String> {
    [("value".to_owned(), value.to_string())].into()
}

fn host(number: usize) -> Host {
    format!("host-{number}.example.net").parse().unwrap()
}

/// The answer, or `None` where nobody knows.
fn known<T>(outcome: Result<T, Problem>) -> Option<T> {
    match outcome {
        Ok(answer) => Some(answer),
        Err(problem) if is_undecided(&problem) => None,
        Err(problem) => panic!("{problem:?}"),
    }
}

impl Client {
    async fn run(mut self) -> Seen {
        for turn in 0..self.size.operations {
            // Every value is written once in the whole history, so that a read tells which write it saw.
            let value = (turn * WRITERS + self.number + 1) as u64;
            let key = self.random.random_range(0..self.size.applications);
            match self.random.random_range(0..100) {
                0..35 => self.set_replicas(key, value).await,
                35..55 => self.set_labels(key, value).await,
                55..80 => self.read(key).await,
                80..88 => self.claim(self.number % self.size.applications).await,
                88..93 => self.freeze(value).await,
                93..96 => self.lift().await,
                _ => self.look_at_freeze().await,
            }
        }
        self.seen
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    async fn set_replicas(&mut self, key: usize, value: u64) {
        let replicas = Replicas::Count(NonZeroU32::new(u32::try_from(value).unwrap()).unwrap());
        let began = self.now();
        let done = known(self.registry.set_replicas(&application(key), replicas).await);
        let event = Event { what: Register::Write(value), began, ended: done.map(|_| self.now()) };
        self.seen.replicas.push((key, event));
    }

    async fn set_labels(&mut self, key: usize, value: u64) {
        let began = self.now();
        let done = known(self.registry.set_labels(&application(key), &label(value)).await);
        let event = Event { what: Register::Write(value), began, ended: done.map(|_| self.now()) };
        self.seen.labels.push((key, event));
    }

    /// One read shows both registers of an application.
    async fn read(&mut self, key: usize) {
        let began = self.now();
        let Some(stored) = known(self.registry.application(&application(key)).await) else { return };
        let ended = Some(self.now());
        let record = stored.unwrap().record;
        let replicas = record.replicas.map(|replicas| match replicas {
            Replicas::Count(count) => u64::from(count.get()),
            Replicas::All => unreachable!("nobody sets it"),
        });
        let labels = record.labels.map(|labels| labels["value"].parse().unwrap());
        self.seen.replicas.push((key, Event { what: Register::Read(replicas), began, ended }));
        self.seen.labels.push((key, Event { what: Register::Read(labels), began, ended }));
    }

    async fn claim(&mut self, by: usize) {
        let number = self.random.random_range(0..self.size.hosts);
        let claim = NewClaim {
            application: application(by),
            host: host(number),
            wildcard: false,
            by: format!("client-{}", self.number),
            names: None,
        };
        let began = self.now();
        let told = match self.registry.claim_domain(&claim, &[]).await {
            Err(problem) if problem.code == ProblemCode::ReferenceHeld => Some(false),
            outcome => known(outcome).map(|_| true),
        };
        let event = Event { what: Claim::By(by, told), began, ended: told.map(|_| self.now()) };
        self.seen.hosts.push((number, event));
    }

    async fn freeze(&mut self, value: u64) {
        let began = self.now();
        let frozen = known(self.registry.freeze("somebody", Reason::parse(&value.to_string()).unwrap()).await);
        let told = frozen.map(|frozen| {
            let stands = frozen.freeze.reason.unwrap().parse().unwrap();
            assert_eq!(frozen.created, stands == value, "told wrongly whose freeze it is");
            stands
        });
        let event = Event { what: Freeze::Make(value, told), began, ended: told.map(|_| self.now()) };
        self.seen.freeze.push(event);
    }

    async fn lift(&mut self) {
        let began = self.now();
        let told = known(self.registry.unfreeze().await);
        self.seen.freeze.push(Event { what: Freeze::Lift(told), began, ended: told.map(|_| self.now()) });
    }

    async fn look_at_freeze(&mut self) {
        let began = self.now();
        let Some(stands) = known(self.registry.frozen().await) else { return };
        let reason = stands.map(|stored| stored.record.reason.unwrap().parse().unwrap());
        self.seen.freeze.push(Event { what: Freeze::Read(reason), began, ended: Some(self.now()) });
    }
}

fn sorted<E>(events: impl Iterator<Item = (usize, E)>) -> BTreeMap<usize, Vec<E>> {
    let mut by_key: BTreeMap<usize, Vec<E>> = BTreeMap::new();
    for (key, event) in events {
        by_key.entry(key).or_default().push(event);
    }
    by_key
}

/// Eight clients, and at the end, with a store that behaves, one that reads everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_clients_set_claim_and_freeze_through_faults_is_linearizable() {
    let size = || match long() {
        true => Size { operations: 1_250, applications: 24, hosts: 120 },
        false => Size { operations: 40, applications: 4, hosts: 8 },
    };
    let seed = seed();
    println!("SCAFO_TEST_SEED={seed}");
    let fleet = Fleet::start(seed).await;
    for number in 0..size().applications {
        fleet.registry(0).create_application(&application(number)).await.unwrap();
    }
    fleet.misbehave();
    for (proxy, _) in &fleet.nodes {
        // A delete has no condition: one that arrives after its sender has gone on is the one thing that nobody can mend.
        for fault in [Fault::DropRequest, Fault::DropAnswer, Fault::Answer(Reply::SlowDown)] {
            proxy.push(Rule::new(fault).on([Operation::Delete]).percent(10));
        }
    }
    let start = Instant::now();
    let client = |number: usize, size| Client {
        registry: fleet.registry(number),
        number,
        start,
        random: StdRng::seed_from_u64(seed.wrapping_add(number as u64)),
        size,
        seen: Seen::default(),
    };
    let mut clients = JoinSet::new();
    for number in 0..WRITERS {
        clients.spawn(client(number, size()).run());
    }
    let mut seen = clients.join_all().await;
    let took = start.elapsed();
    fleet.assert_hard();
    for (proxy, _) in &fleet.nodes {
        proxy.calm();
    }
    let mut last = client(WRITERS, size());
    for key in 0..last.size.applications {
        last.read(key).await;
    }
    for number in 0..last.size.hosts {
        let began = last.now();
        let holder = last.registry.claim(&host(number)).await.unwrap().map(|stored| stored.record.application);
        let holder = holder.map(|holder| (0..WRITERS).find(|by| application(*by) == holder).unwrap());
        let event = Event { what: Claim::Read(holder), began, ended: Some(last.now()) };
        last.seen.hosts.push((number, event));
    }
    last.look_at_freeze().await;
    seen.push(last.seen);
    explain(seen, &late_freezes(&fleet, start), took);
}

/// A create of the freeze that reached the store after its sender had given up on that try.
struct Late {
    sent: Duration,
    landed: Option<Duration>,
}

/// Those that the proxies saw, by the clock of the history.
fn late_freezes(fleet: &Fleet, start: Instant) -> Vec<Late> {
    let is_late = |exchange: &&Exchange| {
        exchange.asked.operation == Operation::Put
            && exchange.asked.key == key::FREEZE
            && exchange.store == Some(200)
            && exchange.faults.iter().any(|fault| matches!(fault, Fault::LandLate { .. }))
    };
    let of = |(proxy, _): &(FaultProxy, Arc<Registry>)| {
        let since_start = |at: Duration| (proxy.started() + at).saturating_duration_since(start);
        let late =
            |exchange: &Exchange| Late { sent: since_start(exchange.began), landed: exchange.ended.map(since_start) };
        proxy.log().iter().filter(is_late).map(late).collect::<Vec<Late>>()
    };
    fleet.nodes.iter().flat_map(of).collect()
}

/// Checks every key, and says how much there was to check.
fn explain(seen: Vec<Seen>, late: &[Late], took: Duration) {
    let (mut replicas, mut labels, mut hosts, mut freeze) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for client in seen {
        replicas.extend(client.replicas);
        labels.extend(client.labels);
        hosts.extend(client.hosts);
        freeze.extend(client.freeze);
    }
    let unknown = replicas.iter().chain(&labels).filter(|(_, event)| event.ended.is_none()).count()
        + hosts.iter().filter(|(_, event)| event.ended.is_none()).count()
        + freeze.iter().filter(|event| event.ended.is_none()).count();
    println!(
        "{} events of replicas, {} of labels, {} of claims, {} of the freeze in {took:.1?}; {unknown} of unknown end",
        replicas.len(),
        labels.len(),
        hosts.len(),
        freeze.len()
    );
    for (what, registers) in [("replicas", replicas), ("labels", labels)] {
        for (key, mut events) in sorted(registers.into_iter()) {
            linear::seen_writes(&mut events);
            linear::check(&events).unwrap_or_else(|wrong| panic!("{what} of app-{key}: {wrong}"));
        }
    }
    for (number, events) in sorted(hosts.into_iter()) {
        linear::check(&events).unwrap_or_else(|wrong| panic!("host {number}: {wrong}"));
    }
    let again = made_again(&freeze, late);
    linear::check_with(&freeze, &again).unwrap_or_else(|wrong| panic!("the freeze: {wrong}"));
}

/// A freeze is lifted by a delete, which leaves no trace of it. So one that landed without an answer, and was lifted before its
/// caller's node asked again, is made a second time: its caller, who waits all the while, is told that it stands, and it does. And
/// a try that reaches the store late makes it a second time where another one had landed and was lifted meanwhile.
fn made_again(freeze: &[Event<Freeze>], late: &[Late]) -> Vec<Event<Freeze>> {
    let mut again = Vec::new();
    for event in freeze {
        let Freeze::Make(reason, _) = event.what else { continue };
        let once_more = |ended| Event { what: Freeze::Make(reason, Some(reason)), began: event.began, ended };
        again.push(once_more(event.ended));
        let Some(ended) = event.ended else { continue };
        let of_this = late.iter().filter(|late| (event.began..=ended).contains(&late.sent));
        again.extend(of_this.map(|late| once_more(late.landed)));
    }
    again
}

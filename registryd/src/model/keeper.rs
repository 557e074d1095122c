//! A node without a daemon: the same decisions (lease, placement, placements in force) and the same writes of the registry, one
//! request after the other. It costs a tenth of a whole node, so that there can be thousands of histories of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use scafo_core::record::{ApplicationRecord, CoordinatorLease, Fence, NodeRecord, PlacementRecord, Rest, V1};
use scafo_core::settings::Millis;
use scafo_core::{ApplicationName, NodeId, Problem, ProblemCode};
use scafo_store::{Condition, Put};

use super::seeds::{Rule, is_broken};
use super::sim::{Hold, Sim};
use crate::bootstrap;
use crate::coordinator::lease::{Body, Effect, Event, Inputs, State, Write, step};
use crate::coordinator::placement::{Candidate, Serves, Wish, ideal, next};
use crate::daemon::testing::settings;
use crate::node::in_force::{InForce, LeaseSeen};
use crate::registry::{Arrival, Cache, Guard, Intent, Mono, Read, Registry};

/// Between two looks of a node at the placements.
const LOOK: Duration = Duration::from_secs(6);
/// Names the simulated bucket.
const INSTALLATION: &str = "simulated";

/// Keeps a node running: after each death it starts again when its machine is up.
pub(super) async fn keep(sim: Arc<Sim>, machine: usize) {
    loop {
        sim.until_up(machine).await;
        let run = sim.next_run();
        tokio::select! {
            biased;
            () = sim.machines[machine].killed.notified() => {}
            () = live(&sim, machine, run) => unreachable!("it goes on for ever"),
        }
        *sim.machines[machine].hold.lock().unwrap() = None;
    }
}

async fn live(sim: &Arc<Sim>, machine: usize, run: u64) {
    let it = &sim.machines[machine];
    let mut settings = settings(&it.id);
    settings.node.labels = [("region".to_owned(), it.region.to_owned())].into();
    settings.lease_ttl = Millis::from(sim.ttl);
    let registry = Registry::new(sim.bucket(machine, run), sim.clock(machine), it.id.clone());
    let kept = it.disk.lock().unwrap().clone();
    let in_force = InForce::resume(kept, INSTALLATION);
    let mut record = bootstrap::record(&settings, registry.clock().wall());
    record.fence = in_force.kept().fence;
    while registry.register_node(&record, Arrival::Joining).await.is_err() {
        registry.clock().sleep(Duration::from_secs(1)).await;
    }
    let keeper = Keeper {
        sim,
        machine,
        run,
        me: record.id,
        registry: &registry,
        state: State::Following(None),
        seen: LeaseSeen::default(),
        body: None,
        in_force,
        placements: Cache::default(),
        nodes: Cache::default(),
        applications: Cache::default(),
        nonces: 0,
    };
    keeper.run().await;
}

struct Keeper<'a> {
    sim: &'a Arc<Sim>,
    machine: usize,
    run: u64,
    me: NodeId,
    registry: &'a Registry,
    state: State,
    seen: LeaseSeen,
    /// The body of the lease that was seen last.
    body: Option<String>,
    in_force: InForce,
    placements: Cache<PlacementRecord>,
    nodes: Cache<NodeRecord>,
    applications: Cache<ApplicationRecord>,
    nonces: u64,
}

/// Asked right before each placement is sent.
struct Holding<'a> {
    registry: &'a Registry,
    hold: &'a Mutex<Option<Hold>>,
    fence: Fence,
    asked: AtomicBool,
}

#[async_trait]
impl Guard for Holding<'_> {
    async fn check(&self) -> Result<(), Problem> {
        let now = self.registry.clock().mono();
        let holds = self.hold.lock().unwrap().is_some_and(|hold| hold.fence == self.fence && now < hold.lapses);
        let again = self.asked.swap(true, Ordering::Relaxed);
        if holds || is_broken(Rule::GuardIsAsked) || (again && is_broken(Rule::GuardIsAskedAgain)) {
            return Ok(());
        }
        Err(Problem::new(ProblemCode::LeaseLost, "this node does not coordinate any more"))
    }
}

impl Keeper<'_> {
    async fn run(mut self) {
        let mut next_look = self.now();
        loop {
            if self.state.due().is_none_or(|due| due <= self.now()) {
                self.feed(Event::Due).await;
            }
            if next_look <= self.now() {
                next_look = self.now().after(LOOK);
                if self.look().await.is_ok() {
                    self.place().await;
                }
            }
            // A node that may try again at once does not spin.
            let soon = self.now().after(Duration::from_millis(300));
            let due = self.state.due().map_or(soon, |due| due.max(soon));
            self.registry.clock().sleep_until(due.min(next_look.max(soon))).await;
        }
    }

    fn now(&self) -> Mono {
        self.registry.clock().mono()
    }

    fn hold(&self) -> &Mutex<Option<Hold>> {
        &self.sim.machines[self.machine].hold
    }

    /// Feeds an event and everything that follows from it.
    async fn feed(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            self.nonces += 1;
            let nonce = format!("{}-{}-{}", self.machine, self.run, self.nonces);
            let inputs = Inputs { now: self.now(), me: &self.me, ttl: self.sim.ttl, nonce: &nonce };
            let (state, effects) = step(self.state.clone(), event, &inputs);
            self.state = state;
            for effect in effects {
                events.extend(self.carry_out(effect).await);
            }
        }
    }

    async fn carry_out(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Read => Some(match self.registry.lease().await {
                Ok(stored) => {
                    self.saw(stored.as_ref().map(|stored| &stored.record));
                    Event::Read(stored.map(|stored| Body {
                        ttl: Duration::from_millis(stored.record.ttl_ms),
                        etag: stored.etag,
                        node: stored.record.node,
                        fence: stored.record.fence,
                        nonce: stored.record.nonce,
                    }))
                }
                Err(_) => Event::ReadFailed,
            }),
            Effect::Write(write) => Some(self.write(write).await),
            Effect::Survey => Some(match self.look().await {
                Ok(()) => Event::Surveyed(self.floor()),
                Err(_) => Event::SurveyFailed,
            }),
            Effect::Prove(fence) => Some(self.prove(fence).await),
            Effect::Lead { fence, lapses } => {
                *self.hold().lock().unwrap() = Some(Hold { run: self.run, fence, lapses });
                self.sim.ledger().acts(self.sim, (self.machine, self.run), fence);
                None
            }
            Effect::StepDown => {
                *self.hold().lock().unwrap() = None;
                None
            }
        }
    }

    fn saw(&mut self, lease: Option<&CoordinatorLease>) {
        let nonce = lease.map(|lease| lease.nonce.clone());
        let fence = lease.map_or(Fence(0), |lease| lease.fence);
        if self.body != nonce {
            self.seen.bodies += u64::from(fence >= self.seen.fence);
            self.body = nonce;
        }
        self.seen.fence = self.seen.fence.max(fence);
    }

    async fn write(&mut self, write: Write) -> Event {
        let Write { fence, replacing, nonce, ttl } = write;
        let now = self.registry.clock().wall();
        let lease = CoordinatorLease {
            v: V1,
            node: self.me.clone(),
            fence,
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap(),
            acquired_at: now,
            renewed_at: now,
            nonce: nonce.clone(),
            rest: Rest::new(),
        };
        match self.registry.put_lease(&lease, replacing.map_or(Condition::Absent, Condition::Matches)).await {
            Ok(Put::Written(etag)) => {
                self.saw(Some(&lease));
                Event::Written { nonce, etag }
            }
            Ok(Put::Refused | Put::Gone) => Event::Refused { nonce },
            Ok(Put::Conflict | Put::Busy | Put::Unknown(_)) | Err(_) => Event::Unknown { nonce },
        }
    }

    async fn prove(&mut self, fence: Fence) -> Event {
        loop {
            match self.is_alone(fence).await {
                Ok(true) => return Event::Proven(fence),
                Ok(false) => return Event::Overtaken(fence),
                // Too late it is for nobody to notice; the machine steps down.
                Err(_) if self.lapsed() => return Event::Due,
                Err(_) => self.registry.clock().sleep(Duration::from_millis(500)).await,
            }
        }
    }

    fn lapsed(&self) -> bool {
        match &self.state {
            State::Holding { lapses, .. } | State::Renewing { lapses, .. } => *lapses <= self.now(),
            State::Following(_) | State::Surveying(_) | State::Claiming { .. } => true,
        }
    }

    async fn is_alone(&mut self, fence: Fence) -> Result<bool, Problem> {
        self.in_force.claim(fence);
        *self.sim.machines[self.machine].disk.lock().unwrap() = Some(self.in_force.kept().clone());
        if is_broken(Rule::FenceIsProven) {
            return Ok(true);
        }
        let stand = |node: &mut NodeRecord| {
            node.fence = node.fence.max(fence);
            Ok(())
        };
        self.registry.update_node(&Intent::new(), &self.me, stand).await?;
        self.look().await?;
        let others = self.nodes.iter().filter(|stored| stored.record.id != self.me).map(|stored| stored.record.fence);
        let placed = self.placements.iter().map(|stored| stored.record.fence);
        if others.chain(placed).any(|rival| rival >= fence) {
            return Ok(false);
        }
        let lease = self.registry.lease().await?;
        Ok(lease.is_some_and(|lease| lease.record.node == self.me && lease.record.fence == fence))
    }

    fn floor(&self) -> Fence {
        let noted = self.nodes.iter().map(|stored| stored.record.fence);
        let placed = self.placements.iter().map(|stored| stored.record.fence);
        noted.chain(placed).fold(self.in_force.kept().fence.max(self.seen.fence), Fence::max)
    }

    /// Nodes and placements as they are, every record that moved included.
    async fn look(&mut self) -> Result<(), Problem> {
        let engine = self.registry.engine();
        let complete = |stale: &[String]| {
            let silent = || Problem::new(ProblemCode::StoreUnavailable, "a record gave no answer");
            if stale.is_empty() { Ok(()) } else { Err(silent()) }
        };
        complete(&self.nodes.refresh(engine, Read::Moved).await?.stale)?;
        complete(&self.placements.refresh(engine, Read::Moved).await?.stale)?;
        let now = self.registry.clock().mono();
        let shown: Vec<&PlacementRecord> = self.placements.iter().map(|stored| &stored.record).collect();
        if self.in_force.observe(shown.into_iter(), &[], self.seen, now, self.sim.ttl).is_some() {
            *self.sim.machines[self.machine].disk.lock().unwrap() = Some(self.in_force.kept().clone());
        }
        super::checks::moment(self.sim);
        Ok(())
    }

    /// Places while this node coordinates. Every node lives as far as this is concerned.
    async fn place(&mut self) {
        let Some(hold) = *self.hold().lock().unwrap() else { return };
        if self.applications.refresh(self.registry.engine(), Read::Moved).await.is_err() {
            return;
        }
        let held_back: Vec<ApplicationName> = self.in_force.held_back().cloned().collect();
        let there: BTreeMap<&ApplicationName, &PlacementRecord> =
            self.placements.iter().map(|stored| (&stored.record.application, &stored.record)).collect();
        let candidates: Vec<Candidate> = self.nodes.iter().map(|stored| candidate(&stored.record)).collect();
        for stored in self.applications.iter().filter(|stored| stored.record.may_serve()) {
            let application = &stored.record;
            let wish = wish(application);
            let before = there.get(&application.name);
            let current = before.map_or(&[][..], |before| &before.nodes);
            let outlook = next(&wish, &ideal(&wish, &candidates), current, &candidates, true);
            let record = PlacementRecord {
                v: V1,
                application: application.name.clone(),
                nodes: outlook.nodes,
                wanted: outlook.wanted,
                reason: outlook.reason,
                fence: hold.fence,
                updated_at: self.registry.clock().wall(),
                rest: Rest::new(),
            };
            let says = |there: &PlacementRecord| {
                there.nodes == record.nodes && there.wanted == record.wanted && there.reason == record.reason
            };
            let restamp = held_back.contains(&record.application);
            if before.is_some_and(|there| says(there)) && !restamp {
                continue;
            }
            let asked = AtomicBool::new(false);
            let guard = Holding { registry: self.registry, hold: self.hold(), fence: hold.fence, asked };
            let intent = Intent::new().within(Duration::from_secs(8));
            let _ = if restamp {
                self.registry.restamp_placement(&intent, &record, &guard).await.map(drop)
            } else {
                self.registry.put_placement(&intent, &record, &guard).await.map(drop)
            };
            // What is due about the lease comes first; the rest is placed in the next round.
            if self.state.due().is_none_or(|due| due <= self.registry.clock().mono()) {
                return;
            }
        }
    }
}

pub(super) fn candidate(node: &NodeRecord) -> Candidate {
    Candidate {
        id: node.id.clone(),
        labels: node.labels.clone(),
        live: true,
        leaving: node.leaving,
        out: false,
        serves: Serves::Nothing,
    }
}

pub(super) fn wish(application: &ApplicationRecord) -> Wish<'_> {
    Wish {
        application: &application.name,
        replicas: application.replicas.unwrap_or_default(),
        selector: application.node_selector.as_ref(),
        // Nothing runs here, so nothing has to be waited for.
        published: false,
    }
}

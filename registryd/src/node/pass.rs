//! The reconcile loop: the one place that decides what this node runs and says.
//!
//! It takes no input but what is true: records as the last look showed them, processes as the supervisor reports them. Events
//! only wake it. What may take long (a look at the bucket, a write of the node's record, a reload) runs in a task of the loop
//! and comes back as an event, so a bucket that hangs does not keep a dead process in the routing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use scafo_core::record::{Fence, NodeRecord, Serving};
use scafo_core::view::{ProcessStatus, ReconcileStatus};
use scafo_core::{ApplicationName, DeployId, NodeId, Problem, ProblemCode, Timestamp};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::adoption::{Adopting, Reloaded, Report};
use super::apply::{Desired, Process};
use super::desired::{Standing, Terms, Wanted, after_others, desired, next_end};
use super::disk::NotKept;
use super::drain::{Leaving, Situation};
use super::in_force::{InForce, Kept};
use super::notes::Notes;
use super::own::{self, WRITE, Wrote};
use super::parting::{Out, Stopping};
use super::publish::Publisher;
use super::records::{HintDue, Order, Records};
use super::retry::{RETRY, Retry};
use super::serving::{fold, withdraws};
use super::wake::Asked;
use super::world::{Shown, World};
use crate::coordinator::places::held_up_by;
use crate::daemon::{Core, Fatal, unbroken};
use crate::deploy::versions;
use crate::registry::{Mono, Stored};

struct Looked {
    records: Records,
    outcome: Result<(), Problem>,
    asked: Asked,
    began: (Mono, Timestamp),
}

/// The loop.
pub(crate) struct Pass {
    core: Arc<Core>,
    asked: watch::Receiver<Asked>,
    claim: watch::Receiver<Fence>,
    /// The fence of this node's last claim, once it is on disk.
    claimed: Fence,
    stop_asked: watch::Receiver<bool>,
    stopping: Option<Stopping>,
    statuses: watch::Receiver<Option<Vec<ProcessStatus>>>,
    desired: watch::Sender<Desired>,
    /// Away while a look is under way.
    records: Option<Records>,
    looks: JoinSet<Looked>,
    next_hint: Mono,
    retry: Retry,
    in_force: InForce,
    wanted: Option<BTreeMap<ApplicationName, Wanted>>,
    adopting: BTreeMap<ApplicationName, Adopting>,
    reloads: JoinSet<(ApplicationName, DeployId, Reloaded)>,
    /// This node's record as it was last known in the bucket.
    own: NodeRecord,
    /// The same with its tag, once this loop has written it.
    stored: Option<Stored<NodeRecord>>,
    /// What the record said about each process when this daemon started.
    before: BTreeMap<ApplicationName, Serving>,
    writes: JoinSet<Wrote>,
    /// When the last write of it ended.
    wrote: Mono,
    next_heartbeat: Mono,
    next_write: Mono,
    serving: Vec<Serving>,
    leaving: Leaving,
    passes: u64,
    notes: Notes,
    publisher: Publisher,
}

impl Pass {
    /// The loop of a node that has registered as `own`.
    pub(crate) fn new(
        core: Arc<Core>,
        own: NodeRecord,
        in_force: InForce,
        asked: watch::Receiver<Asked>,
        statuses: watch::Receiver<Option<Vec<ProcessStatus>>>,
        desired: watch::Sender<Desired>,
    ) -> Self {
        let now = core.mono();
        let settings = &core.settings;
        let records = Records::new(settings.liveness.get(), settings.heartbeat.get());
        let before = own.serving.iter().map(|serving| (serving.application.clone(), serving.clone())).collect();
        Self {
            asked,
            claim: core.claim.subscribe(),
            claimed: Fence::default(),
            stop_asked: core.parting.asked(),
            stopping: None,
            statuses,
            desired,
            records: Some(records),
            looks: JoinSet::new(),
            next_hint: now,
            retry: Retry::default(),
            in_force,
            wanted: None,
            adopting: BTreeMap::new(),
            reloads: JoinSet::new(),
            serving: own.serving.clone(),
            own,
            stored: None,
            before,
            writes: JoinSet::new(),
            wrote: now,
            leaving: Leaving::default(),
            next_heartbeat: now.after(settings.heartbeat.get()),
            next_write: now,
            passes: 0,
            notes: Notes::default(),
            publisher: Publisher::default(),
            core,
        }
    }

    /// Runs until this node must stop.
    ///
    /// # Errors
    /// Always: when the node's record was removed, or when a task of the loop broke.
    pub(crate) async fn run(mut self) -> Fatal {
        loop {
            if let Err(fatal) = self.turn().await {
                return fatal;
            }
        }
    }

    async fn turn(&mut self) -> Result<(), Fatal> {
        self.start_look();
        self.start_write();
        let due = self.due();
        let clock = Arc::clone(self.core.registry.clock());
        tokio::select! {
            biased;
            Some(looked) = self.looks.join_next() => self.looked(unbroken(looked)?).await,
            Some(wrote) = self.writes.join_next() => self.wrote(unbroken(wrote)?)?,
            Some(reloaded) = self.reloads.join_next() => {
                let (name, deploy, outcome) = unbroken(reloaded)?;
                if let Some(machine) = self.adopting.get_mut(&name) {
                    machine.reloaded(&deploy, outcome, self.core.mono());
                }
            }
            changed = self.statuses.changed() => changed.map_err(|_| Fatal::ended("the watch on the processes"))?,
            changed = self.stop_asked.changed() => changed.map_err(|_| Fatal::ended("the handle that stops the node"))?,
            changed = self.claim.changed() => {
                changed.map_err(|_| Fatal::ended("the handle that claims a fence"))?;
                self.claim().await;
            }
            changed = self.asked.changed() => changed.map_err(|_| Fatal::ended("the handle that asks for passes"))?,
            () = clock.sleep_until(due) => {}
        }
        self.settle();
        Ok(())
    }

    /// Starts a look when one is due and none is under way.
    fn start_look(&mut self) {
        let now = self.core.mono();
        let Some(records) = &self.records else { return };
        let asked = *self.asked.borrow_and_update();
        let tick = self.next_hint <= now;
        let due = tick || records.pending(asked) || records.due().is_none_or(|due| due <= now);
        if !due || self.retry.at().is_some_and(|retry| retry > now) {
            return;
        }
        let Some(mut records) = self.records.take() else { return };
        if tick {
            self.next_hint = now.after(self.core.settings.reconcile_interval.get());
        }
        let hint = if tick { HintDue::Yes } else { HintDue::No };
        let order =
            Order { asked, now, hint, jitter: f64::from(self.core.registry.clock().random()) / f64::from(u32::MAX) };
        let core = Arc::clone(&self.core);
        let began = (now, core.registry.clock().wall());
        self.looks.spawn(async move {
            let outcome = records.look(&core.registry, order).await;
            Looked { records, outcome, asked, began }
        });
    }

    async fn looked(&mut self, looked: Looked) {
        let Looked { records, outcome, asked, began } = looked;
        let now = self.core.mono();
        self.passes += 1;
        self.notes.looked(outcome.as_ref().err(), records.date(), (began.1, self.core.registry.clock().wall()));
        let failed = outcome.is_err();
        let mut error = outcome.err().map(|problem| problem.detail);
        let finished = !failed && !records.is_incomplete();
        let random = self.core.registry.clock().random();
        self.retry.looked(finished, now, self.core.settings.reconcile_interval.get(), random);
        if failed {
            // What was due is due again.
            self.next_hint = self.next_hint.min(now);
        } else {
            error = self.take_in(&records, began.0, now).await.err().map(|error| error.to_string());
        }
        let clock = self.core.registry.clock();
        let status = ReconcileStatus {
            pass: self.passes,
            started_at: began.1,
            finished_at: clock.wall(),
            took_ms: u64::try_from(now.since(began.0).as_millis()).unwrap_or(u64::MAX),
            ok: error.is_none(),
            error,
            store_requests: self.core.registry.requests(),
        };
        self.core.figures.passed(&status);
        self.publisher.looked((!failed).then_some(&records), asked, status);
        self.records = Some(records);
    }

    async fn take_in(&mut self, records: &Records, began: Mono, now: Mono) -> Result<(), NotKept> {
        let shown = records.shown();
        // What a look saw that began before the last write ended may be older than that, and so may what it did not read
        // anew. Nobody else writes the heartbeat, so the record with ours is ours or came after it.
        if let Some(own) = shown.nodes.get(&self.own.id)
            && self.writes.is_empty()
            && began >= self.wrote
            && own.record.heartbeat_at == self.own.heartbeat_at
        {
            self.own.leaving = own.record.leaving;
            self.own.draining = own.record.draining;
            self.own.drain.clone_from(&own.record.drain);
        }
        let lease = self.core.lease.borrow().seen;
        let placements = shown.placements.values().map(|placement| &**placement);
        let ttl = self.core.settings.lease_ttl.get();
        match self.in_force.observe(placements, &shown.unreadable_placements, lease, now, ttl) {
            Some(before) => self.keep(before).await,
            None => Ok(()),
        }
    }

    /// Takes a claim in: on disk first, then in the record. A claim that would not survive a crash is none.
    async fn claim(&mut self) {
        let fence = *self.claim.borrow_and_update();
        let before = self.in_force.claim(fence);
        if self.keep(before).await.is_ok() {
            self.claimed = fence;
        } else {
            self.core.unkept.send_replace(Some(fence));
        }
    }

    /// On disk before it counts: after a crash an old body must not look like a new one. What the disk does not take is left out
    /// for now, and the next look brings it again: a full disk ends neither this daemon nor what runs.
    async fn keep(&mut self, before: Kept) -> Result<(), NotKept> {
        let outcome = self.core.disk.keep(self.in_force.kept()).await;
        self.notes.kept(&outcome);
        if outcome.is_err() {
            self.in_force.restore(before);
        }
        outcome
    }

    /// Starts a write of the node's record when it says something new or the heartbeat is due.
    fn start_write(&mut self) {
        let now = self.core.mono();
        let news = self.has_news();
        if !self.writes.is_empty() || self.next_write > now || !(news || self.next_heartbeat <= now) {
            return;
        }
        let core = Arc::clone(&self.core);
        let (serving, leaving) = (self.serving.clone(), self.leaving.clone());
        let fence = self.in_force.kept().fence;
        let celld_version = versions::current(&self.core);
        let id = self.own.id.clone();
        // A bare heartbeat goes over what this loop wrote last, without a look before.
        let over = self.stored.take().filter(|_| !news);
        let withdraws = withdraws(&self.own, &self.as_it_is());
        let told = self.own.clone();
        self.writes.spawn(async move {
            let heartbeat_at = core.registry.clock().wall();
            let mutate = |node: &mut NodeRecord| {
                node.serving.clone_from(&serving);
                node.celld_version.clone_from(&celld_version);
                node.heartbeat_at = heartbeat_at;
                node.fence = node.fence.max(fence);
                leaving.write(node);
                Ok(())
            };
            let outcome = own::write(&core, &id, over, &told, mutate).await;
            if withdraws && outcome.is_ok() {
                own::tell(&core).await;
            }
            Wrote { outcome, began: now }
        });
    }

    /// Whether this node has more to say than that it lives.
    fn has_news(&self) -> bool {
        self.serving != self.own.serving || self.leaving.is_news(&self.own) || self.claimed > self.own.fence
    }

    fn wrote(&mut self, wrote: Wrote) -> Result<(), Fatal> {
        self.wrote = self.core.mono();
        match wrote.outcome {
            Ok(stored) => {
                self.own.clone_from(&stored.record);
                self.stored = Some(stored);
                self.next_heartbeat = wrote.began.after(self.core.settings.heartbeat.get());
                if let Some(stopping) = self.stopping.as_ref().filter(|_| self.own.draining) {
                    self.core.parting.is_out(Out { since: self.wrote, held: stopping.held });
                }
                Ok(())
            }
            Err(problem) if problem.code == ProblemCode::NotFound => Err(Fatal::removed(&self.own.id)),
            Err(problem) => {
                tracing::warn!(?problem, "this node's record is not written, trying again");
                self.next_write = self.core.mono().after(RETRY);
                Ok(())
            }
        }
    }

    /// When something is due although nothing happened.
    fn due(&self) -> Mono {
        let mut due = self.next_heartbeat.max(self.next_write);
        if self.has_news() {
            due = self.next_write;
        }
        if !self.writes.is_empty() {
            // Its end wakes the loop.
            due = self.core.mono().after(WRITE);
        }
        if let Some(records) = &self.records {
            let asked = *self.asked.borrow();
            let mut look = records.due().map_or(self.next_hint, |due| due.min(self.next_hint));
            if records.pending(asked) {
                look = self.core.mono();
            }
            due = due.min(self.retry.at().map_or(look, |retry| retry.max(look)));
        }
        let holds = self
            .wanted
            .as_ref()
            .and_then(|wanted| next_end(wanted, self.core.mono()))
            .into_iter()
            .chain(self.leaving.due());
        let reloads = self.adopting.values().filter_map(Adopting::due).filter(|at| *at > self.core.mono()).min();
        holds.chain(reloads).fold(due, Mono::min)
    }

    /// Decides from what is known now, and tells everybody.
    fn settle(&mut self) {
        let shown = self.publisher.shown();
        let statuses = self.statuses.borrow_and_update().clone();
        if !self.publisher.is_seen() {
            return;
        }
        let Some(statuses) = statuses else {
            // Nothing is known of the processes yet: what the record says of them still holds.
            let own = self.as_it_is();
            self.core.worlds.send_replace(Arc::new(self.publisher.world(own, &self.in_force, &[])));
            return;
        };
        if self.stopping.is_none() && *self.stop_asked.borrow_and_update() {
            let (world, hold) = (self.core.worlds.borrow().clone(), self.core.settings.ingress_hold.get());
            self.stopping = Some(Stopping::begin(&world, &self.own.id, hold));
            self.leaving.stop();
        }
        let world = self.decide(&shown, &statuses);
        let out = self.leaving.is_out();
        let held_up_by = if self.own.leaving { held_up_by(&world, &self.own.id) } else { Vec::new() };
        self.leaving.look(Situation {
            record: &self.own,
            held_up_by: &held_up_by,
            runs: !statuses.is_empty(),
            now: self.core.mono(),
            timeout: self.core.settings.drain_timeout.get(),
        });
        // On its way out, or back, other things follow from the same facts.
        let world = if self.leaving.is_out() == out { world } else { self.decide(&shown, &statuses) };
        self.publisher.snapshot(&self.core, &world);
        self.core.worlds.send_replace(world);
    }

    /// This node's record with what is true now and not written yet.
    fn as_it_is(&self) -> NodeRecord {
        let mut own = NodeRecord { serving: self.serving.clone(), ..self.own.clone() };
        self.leaving.write(&mut own);
        own
    }

    /// Which processes shall run, and what there is to say about those that do.
    fn decide(&mut self, shown: &Shown, statuses: &[ProcessStatus]) -> Arc<World> {
        let now = self.core.mono();
        // What runs when this daemon starts was placed once, and gets its hold if it is no more.
        let was = self
            .wanted
            .take()
            .unwrap_or_else(|| statuses.iter().map(|status| (status.application.clone(), Wanted::Placed)).collect());
        let wanted = self.wanted_of(&was, shown, now);
        let reports = self.adopt(shown, &wanted, statuses, now);
        self.serving = fold(statuses, &wanted, &reports);
        let process = |name: &ApplicationName| {
            let Some(application) = shown.applications.get(name) else { return Process::default() };
            let deploy = application.deployment.as_ref().map(|published| published.deploy.clone());
            Process { deploy, created_at: Some(application.created_at) }
        };
        let shall_run: BTreeMap<_, _> = wanted.keys().map(|name| (name.clone(), process(name))).collect();
        self.desired.send_if_modified(|desired| {
            let same = desired.as_deref() == Some(&shall_run);
            if !same {
                *desired = Some(Arc::new(shall_run));
            }
            !same
        });
        self.wanted = Some(wanted);
        let own = self.as_it_is();
        Arc::new(self.publisher.world(own, &self.in_force, statuses))
    }

    fn wanted_of(
        &self,
        was: &BTreeMap<ApplicationName, Wanted>,
        shown: &Shown,
        now: Mono,
    ) -> BTreeMap<ApplicationName, Wanted> {
        let placed = |name: &ApplicationName, node: &NodeId| {
            self.in_force.get(name).is_some_and(|placement| placement.nodes.contains(node))
        };
        let (unheld, after_others) = match &self.stopping {
            // A stop has no time to wait for its turn.
            Some(stopping) => (stopping.unheld.clone(), BTreeSet::new()),
            None => (BTreeSet::new(), after_others(&shown.nodes, placed, &self.own.id)),
        };
        let hold = self.core.settings.ingress_hold.get();
        let terms = Terms { now, hold, own: &self.own, unheld: &unheld, after_others: &after_others };
        desired(self.in_force.placed_on(&self.own.id), |name| self.standing(shown, name), was, &terms)
    }

    /// `None`: there is no such application.
    fn standing(&self, shown: &Shown, name: &ApplicationName) -> Option<Standing> {
        let Some(application) = shown.applications.get(name) else {
            // A placement that cannot be read leaves the one in force; an application's record leaves what runs.
            return shown.unreadable.contains(name).then_some(Standing::Unreadable);
        };
        if !application.may_serve() {
            return Some(Standing::Stopped);
        }
        let placement = self.in_force.get(name);
        // A node on its way out ends what it runs as if it were placed elsewhere: after the hold.
        let here = !self.leaving.is_out() && placement.is_some_and(|placement| placement.nodes.contains(&self.own.id));
        Some(Standing::Serves { here })
    }

    /// Moves every adoption on and starts the reloads that are due.
    fn adopt(
        &mut self,
        shown: &Shown,
        wanted: &BTreeMap<ApplicationName, Wanted>,
        statuses: &[ProcessStatus],
        now: Mono,
    ) -> BTreeMap<ApplicationName, Report> {
        let mut machines = std::mem::take(&mut self.adopting);
        let mut reports = BTreeMap::new();
        for status in statuses {
            let name = &status.application;
            let placed = wanted.get(name) == Some(&Wanted::Placed);
            let published = shown.applications.get(name).and_then(|application| application.deployment.as_ref());
            let Some(published) = published.filter(|_| placed) else { continue };
            let machine = machines.remove(name).or_else(|| {
                let before = self.before.remove(name)?;
                let adoption = before.adoption.filter(|_| before.deploy.as_ref() == Some(&published.deploy))?;
                Some(Adopting::resumed(published, status, adoption, before.error))
            });
            let (machine, reload) = Adopting::look(machine, published, status, now);
            if reload {
                let supervisor = self.core.supervisor.clone();
                let (name, deploy) = (name.clone(), published.deploy.clone());
                self.reloads.spawn(async move {
                    let outcome = supervisor.reload(&name).await;
                    (name, deploy, outcome)
                });
            }
            reports.insert(name.clone(), machine.report());
            self.adopting.insert(name.clone(), machine);
        }
        reports
    }
}

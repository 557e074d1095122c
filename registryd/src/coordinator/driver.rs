//! Carries out what the lease machine decides.

use std::sync::Arc;
use std::time::Duration;

use scafo_core::record::{CoordinatorLease, Rest, V1};
use scafo_core::view::RecordFault;
use scafo_core::{NodeId, Problem, ProblemCode, Timestamp, key};
use scafo_store::{Condition, Put};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::lease::{Body, Effect, Event, Inputs, State, Write, step};
use super::{Lead, LeaseView, fences};
use crate::daemon::{Core, Fatal};
use crate::registry::{Mono, Stored};

/// Bounds of the pause before the next request after one that failed: a bucket that refuses connections answers at once.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// For how many lives of a lease a node stands back whose disk did not take its claim: another one takes over within two.
const BARRED: u32 = 3;

struct Done {
    event: Event,
    record: Option<CoordinatorLease>,
    failed: bool,
}

struct Driver {
    core: Arc<Core>,
    me: NodeId,
    state: State,
    requests: JoinSet<Done>,
    /// At most one; it ends with the tenure that it is about.
    proof: JoinSet<Event>,
    pause: Duration,
    not_before: Mono,
    /// Until then this node does not take part.
    barred: Mono,
    acquired_at: Timestamp,
}

/// Takes part in the election until `stop`, then gives the lease back if this node holds it.
pub(crate) async fn elect(core: Arc<Core>, stop: CancellationToken) -> Fatal {
    // The next fence needs a look at every placement and node first.
    let seen = async { core.worlds.subscribe().wait_for(|world| world.is_seen()).await.is_ok() };
    tokio::select! {
        biased;
        () = stop.cancelled() => return Fatal::ended("the election, as asked,"),
        seen = seen => if !seen { return Fatal::ended("the reconcile loop") },
    }
    let now = core.mono();
    let driver = Driver {
        me: core.settings.node.id.clone(),
        state: State::Following(None),
        requests: JoinSet::new(),
        proof: JoinSet::new(),
        pause: Duration::ZERO,
        not_before: now,
        barred: now,
        acquired_at: core.registry.clock().wall(),
        core,
    };
    driver.run(stop).await
}

impl Driver {
    async fn run(mut self, stop: CancellationToken) -> Fatal {
        let clock = Arc::clone(self.core.registry.clock());
        loop {
            if stop.is_cancelled() {
                self.feed(Event::Resign);
                if matches!(self.state, State::Following(_)) {
                    // What is left is giving the lease back, if anything.
                    while self.requests.join_next().await.is_some() {}
                    return Fatal::ended("the election, as asked,");
                }
            }
            let due = self.due();
            tokio::select! {
                biased;
                () = stop.cancelled(), if !stop.is_cancelled() => {}
                Some(done) = self.requests.join_next() => match done {
                    Ok(done) => self.done(done),
                    Err(_) => return Fatal::ended("a request about the lease"),
                },
                Some(proven) = self.proof.join_next() => match proven {
                    Ok(event) => self.proven(event),
                    Err(_) => return Fatal::ended("the proof of a fence"),
                },
                () = clock.sleep_until(due) => self.feed(Event::Due),
            }
        }
    }

    /// A follower waits for its requests; a holder's time runs out whether the bucket answers or not.
    fn due(&self) -> Mono {
        let due = self.state.due().unwrap_or(self.not_before);
        match self.state {
            State::Following(_) if !self.requests.is_empty() => self.core.mono().after(PAUSE.1),
            State::Following(_) => due.max(self.not_before).max(self.barred),
            State::Surveying(_) | State::Claiming { .. } | State::Holding { .. } | State::Renewing { .. } => due,
        }
    }

    /// A proof came out. A claim that only the disk forbade would be made again at once, and keep everybody else from leading.
    fn proven(&mut self, event: Event) {
        if let Event::Overtaken(fence) = event
            && *self.core.unkept.borrow() == Some(fence)
        {
            self.barred = self.core.mono().after(self.core.settings.lease_ttl.get() * BARRED);
        }
        self.feed(event);
    }

    fn done(&mut self, done: Done) {
        self.pause = if done.failed { (self.pause * 2).clamp(PAUSE.0, PAUSE.1) } else { Duration::ZERO };
        let landed = matches!(done.event, Event::Written { .. });
        if landed || matches!(done.event, Event::Read(_)) {
            self.core.lease.send_modify(|view| {
                view.fault = None;
                let fence = done.record.as_ref().map(|record| record.fence);
                if view.record != done.record {
                    // A copy from earlier is no sign of life.
                    view.seen.bodies += u64::from(fence >= Some(view.seen.fence));
                    view.record.clone_from(&done.record);
                }
                view.seen.fence = view.seen.fence.max(fence.unwrap_or_default());
            });
        }
        self.feed(done.event);
    }

    fn feed(&mut self, event: Event) {
        if matches!((&self.state, &event), (State::Following(_), Event::Due)) && !self.requests.is_empty() {
            return;
        }
        let now = self.core.mono();
        let nonce = format!("{:032x}", rand::random::<u128>());
        let ttl = self.core.settings.lease_ttl.get();
        let inputs = Inputs { now, me: &self.me, ttl, nonce: &nonce };
        let before = std::mem::replace(&mut self.state, State::Following(None));
        let claimed = matches!(before, State::Surveying(_));
        let (state, effects) = step(before, event, &inputs);
        if claimed && matches!(state, State::Claiming { .. }) {
            self.acquired_at = self.core.registry.clock().wall();
        }
        self.state = state;
        if let State::Following(seen) = &self.state
            && !effects.contains(&Effect::Read)
        {
            // Whatever ended here is looked at again after a moment, not at once: two nodes that race must not spin.
            let due = self.state.due();
            let jitter =
                PAUSE.0 + PAUSE.1.mul_f64(f64::from(self.core.registry.clock().random()) / f64::from(u32::MAX) / 4.0);
            self.not_before = now.after(jitter.max(self.pause));
            let stands_until = seen.as_ref().and(due);
            self.core.lease.send_if_modified(|view| {
                let moved = view.stands_until != stands_until;
                view.stands_until = stands_until;
                moved
            });
        }
        for effect in effects {
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Read => {
                let (core, pause) = (Arc::clone(&self.core), self.pause);
                self.requests.spawn(async move {
                    core.registry.clock().sleep(pause).await;
                    read(&core).await
                });
            }
            Effect::Write(write) => {
                let (core, pause, acquired_at) = (Arc::clone(&self.core), self.pause, self.acquired_at);
                self.requests.spawn(async move {
                    core.registry.clock().sleep(pause).await;
                    put(&core, write, acquired_at).await
                });
            }
            Effect::Survey => {
                let (core, pause) = (Arc::clone(&self.core), self.pause);
                self.requests.spawn(async move {
                    core.registry.clock().sleep(pause).await;
                    let event = fences::survey(&core).await;
                    let failed = event == Event::SurveyFailed;
                    Done { event, record: None, failed }
                });
            }
            Effect::Prove(fence) => {
                let core = Arc::clone(&self.core);
                self.proof = JoinSet::new();
                self.proof.spawn(async move { fences::prove(&core, fence).await });
            }
            Effect::Lead { fence, lapses } => self.core.lease.send_modify(|view| match &mut view.lead {
                Some(lead) if lead.fence == fence => lead.lapses = lapses,
                lead => {
                    tracing::info!(fence = fence.0, "this node coordinates");
                    *lead = Some(Lead { fence, lapses, authority: CancellationToken::new() });
                    view.stands_until = None;
                    // Everybody has a look now: what a coordinator that died left undone shows at once and not when the
                    // hint moves next.
                    self.core.registry.mint_hint();
                }
            }),
            Effect::StepDown => {
                self.proof = JoinSet::new();
                self.core.lease.send_modify(|view| {
                    if let Some(lead) = view.lead.take() {
                        tracing::warn!(fence = lead.fence.0, "this node does not coordinate any more");
                        lead.authority.cancel();
                    }
                });
            }
        }
    }
}

async fn read(core: &Core) -> Done {
    match core.registry.lease().await {
        Ok(stored) => {
            let record = stored.as_ref().map(|stored| stored.record.clone());
            Done { event: Event::Read(stored.map(body)), record, failed: false }
        }
        Err(problem) => {
            tracing::debug!(?problem, "the lease cannot be read");
            note_fault(core, &problem);
            Done { event: Event::ReadFailed, record: None, failed: true }
        }
    }
}

/// Shows a record that is no lease, which stays until somebody removes it. A bucket without an answer is another matter.
fn note_fault(core: &Core, problem: &Problem) {
    if problem.code != ProblemCode::StoreNonconforming {
        return;
    }
    let fault = Some(RecordFault { key: key::LEASE.to_owned(), error: problem.detail.clone() });
    core.lease.send_if_modified(|view| {
        let news = view.fault != fault;
        if news {
            tracing::warn!(?problem, "the lease cannot be read, so that nobody can coordinate");
            view.fault.clone_from(&fault);
        }
        news
    });
}

fn body(stored: Stored<CoordinatorLease>) -> Body {
    let Stored { record, etag, .. } = stored;
    let ttl = Duration::from_millis(record.ttl_ms);
    Body { etag, node: record.node, fence: record.fence, ttl, nonce: record.nonce }
}

async fn put(core: &Core, write: Write, acquired_at: Timestamp) -> Done {
    let Write { fence, replacing, nonce, ttl } = write;
    let lease = CoordinatorLease {
        v: V1,
        node: core.settings.node.id.clone(),
        fence,
        ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
        acquired_at,
        renewed_at: core.registry.clock().wall(),
        nonce: nonce.clone(),
        rest: Rest::new(),
    };
    let condition = replacing.map_or(Condition::Absent, Condition::Matches);
    let (event, failed) = match core.registry.put_lease(&lease, condition).await {
        Ok(Put::Written(etag)) => (Event::Written { nonce, etag }, false),
        Ok(Put::Refused | Put::Gone) => (Event::Refused { nonce }, false),
        Ok(outcome @ (Put::Conflict | Put::Busy | Put::Unknown(_))) => {
            tracing::debug!(?outcome, "no clear answer to a write of the lease");
            (Event::Unknown { nonce }, true)
        }
        // Certainly not written; whether it will be is for the next try to find out.
        Err(problem) => {
            tracing::debug!(?problem, "the lease cannot be written");
            (Event::Unknown { nonce }, true)
        }
    };
    Done { event, record: Some(lease), failed }
}

/// The record of the lease while it counts: one that has lapsed is no coordinator.
pub(crate) fn standing(view: &LeaseView, now: Mono) -> Option<&CoordinatorLease> {
    let until = view.lead.as_ref().map(|lead| lead.lapses).or(view.stands_until)?;
    view.record.as_ref().filter(|_| now < until)
}

#[cfg(test)]
mod tests {
    use scafo_store::{Fault, MemoryBucket};
    use tokio::sync::watch;

    use super::*;
    use crate::daemon::testing::core;
    use crate::node::world::NodeView;

    fn leads(core: &Core) -> bool {
        core.lease.borrow().lead.as_ref().is_some_and(|lead| core.mono() < lead.lapses)
    }

    /// An election without the rest of the daemon: a stand-in for the reconcile loop has the world say what was claimed.
    async fn run(core: Arc<Core>, stop: CancellationToken) -> Fatal {
        let stand = async {
            let mut claims = core.claim.subscribe();
            loop {
                let fence = *claims.borrow_and_update();
                core.worlds.send_modify(|world| {
                    let mut record = crate::bootstrap::record(&core.settings, core.started);
                    record.fence = fence;
                    let view = NodeView { record: Arc::new(record), live: true };
                    let nodes = &mut Arc::make_mut(world).nodes;
                    Arc::make_mut(nodes).insert(core.settings.node.id.clone(), view);
                });
                claims.changed().await.unwrap();
            }
        };
        tokio::select! {
            ended = elect(Arc::clone(&core), stop) => ended,
            () = stand => unreachable!("it goes on for ever"),
        }
    }

    async fn until_leads(leases: &mut watch::Receiver<LeaseView>) -> u64 {
        leases.wait_for(|view| view.lead.is_some()).await.unwrap().lead.as_ref().unwrap().fence.0
    }

    #[tokio::test(start_paused = true)]
    async fn another_node_takes_over_within_two_lives_under_a_higher_fence() {
        let memory = MemoryBucket::new();
        let (a, b) = (core("a", memory.sibling()), core("b", memory.sibling()));
        let mut first = JoinSet::new();
        first.spawn(run(Arc::clone(&a), CancellationToken::new()));
        assert_eq!(until_leads(&mut a.lease.subscribe()).await, 1);
        let mut second = JoinSet::new();
        second.spawn(run(Arc::clone(&b), CancellationToken::new()));
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_millis(700)).await;
            assert!(leads(&a) && !leads(&b));
        }
        let record = b.lease.borrow().record.clone().unwrap();
        assert_eq!((record.node.as_str(), record.fence.0), ("a", 1));
        assert!(standing(&b.lease.borrow(), b.mono()).is_some());
        first.shutdown().await;
        let killed = b.mono();
        assert_eq!(until_leads(&mut b.lease.subscribe()).await, 2);
        assert!(b.mono().since(killed) <= Duration::from_secs(30));
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_that_is_cut_off_steps_down_before_anybody_else_may_lead() {
        let memory = MemoryBucket::new();
        let cut = memory.sibling();
        let (switch, cut_off) = watch::channel(false);
        cut.plan(move |_| cut_off.borrow().then_some(Fault::LoseRequest));
        let (a, b) = (core("a", cut), core("b", memory.sibling()));
        let mut tasks = JoinSet::new();
        tasks.spawn(run(Arc::clone(&a), CancellationToken::new()));
        until_leads(&mut a.lease.subscribe()).await;
        let authority = a.lease.borrow().lead.clone().unwrap().authority;
        tasks.spawn(run(Arc::clone(&b), CancellationToken::new()));
        tokio::time::sleep(Duration::from_secs(20)).await;
        switch.send_replace(true);
        let mut taken = b.lease.subscribe();
        let watching = async {
            loop {
                tokio::time::sleep(Duration::from_millis(50)).await;
                assert!(!(leads(&a) && leads(&b)), "two holders");
            }
        };
        tokio::select! {
            fence = until_leads(&mut taken) => assert_eq!(fence, 2),
            () = watching => {}
        }
        assert!(authority.is_cancelled() && a.lease.borrow().lead.is_none());
        switch.send_replace(false);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(leads(&b) && !leads(&a));
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_ends_gives_the_lease_back() {
        let memory = MemoryBucket::new();
        let (a, b) = (core("a", memory.sibling()), core("b", memory.sibling()));
        let stop = CancellationToken::new();
        let mut first = JoinSet::new();
        first.spawn(run(Arc::clone(&a), stop.clone()));
        until_leads(&mut a.lease.subscribe()).await;
        let mut second = JoinSet::new();
        second.spawn(run(Arc::clone(&b), CancellationToken::new()));
        tokio::time::sleep(Duration::from_secs(31)).await;
        let authority = a.lease.borrow().lead.clone().unwrap().authority;
        stop.cancel();
        first.join_next().await.unwrap().unwrap();
        assert!(authority.is_cancelled());
        let back = b.registry.lease().await.unwrap().unwrap().record;
        assert_eq!((back.node.as_str(), back.fence.0, back.ttl_ms), ("a", 1, 0));
        let ended = b.mono();
        assert_eq!(until_leads(&mut b.lease.subscribe()).await, 2);
        // One life until it looks, and no second one for waiting.
        assert!(b.mono().since(ended) <= Duration::from_secs(16));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_record_does_not_lower_the_fence() {
        let memory = MemoryBucket::new();
        let a = core("a", memory.sibling());
        a.worlds.send_modify(|world| Arc::make_mut(world).floor = scafo_core::record::Fence(41));
        let mut tasks = JoinSet::new();
        tasks.spawn(run(Arc::clone(&a), CancellationToken::new()));
        assert_eq!(until_leads(&mut a.lease.subscribe()).await, 42);
    }
}

//! Who works on which deploy: one of an application at a time, a bounded number at all, each until its end.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use scafo_core::record::DeployRecord;
use scafo_core::{DeployId, Problem, ProblemCode, Timestamp};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use super::intake;
use super::open::Open;
use super::publication::{Project, carry_out};
use super::turns::{OFFERED, Turns};
use crate::daemon::{Core, Fatal};
use crate::registry::Mono;

/// The deploys that this node works on.
#[derive(Debug)]
pub(crate) struct Deploys {
    turns: Mutex<Turns>,
    open: Open,
    /// Says that a turn may have come. One word says it as well as many.
    moved: mpsc::Sender<()>,
    /// Becomes true with the first word from the API: from then on artifacts can be offered.
    neighbour: watch::Sender<bool>,
    /// The runtime's version that the last job ran on, and when that was.
    ran_on: Mutex<Option<(Timestamp, String)>>,
}

impl Deploys {
    /// The handle, and what its owner runs with.
    pub(crate) fn new(queue: u32, open: Open) -> (Self, mpsc::Receiver<()>) {
        let (moved, moves) = mpsc::channel(1);
        let (turns, neighbour) = (Mutex::new(Turns::new(queue)), watch::Sender::new(false));
        (Self { turns, open, moved, neighbour, ran_on: Mutex::default() }, moves)
    }

    /// Notes which version of the runtime a job ran on.
    pub(crate) fn ran_on(&self, version: &str, at: Timestamp) {
        *self.ran_on.lock().unwrap_or_else(PoisonError::into_inner) = Some((at, version.to_owned()));
    }

    /// When the last job ran, and on which version of the runtime.
    pub(crate) fn last_ran_on(&self) -> Option<(Timestamp, String)> {
        self.ran_on.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives back the place of a deploy of which nobody knows whether its record was written.
    pub(crate) fn doubt(&self, id: &DeployId, now: Mono) {
        self.lock().doubt(id, now);
        self.look();
    }

    /// Notes that the API is up.
    pub(crate) fn neighbour_is_up(&self) {
        self.neighbour.send_if_modified(|up| !std::mem::replace(up, true));
    }

    /// Keeps a place for a deploy that is accepted now; see [`Turns::accept`].
    pub(crate) fn accept(&self, id: &DeployId, wall: impl FnOnce() -> Timestamp, now: Mono) -> (Timestamp, bool) {
        let mut turns = self.lock();
        // Within the lock, so that the order of the times is the order of the places.
        turns.accept(id, wall(), now)
    }

    /// Has the next run know of a deploy that is accepted now; before its record is written.
    ///
    /// # Errors
    /// `resource-limit`.
    pub(crate) async fn note(&self, id: &DeployId, accepted: Timestamp) -> Result<(), Problem> {
        self.open.add(id, accepted).await
    }

    /// Corrects when a deploy was accepted; see [`Turns::accepted_at`].
    pub(crate) fn accepted_at(&self, id: &DeployId, accepted: Timestamp) {
        self.open.accepted_at(id, accepted);
        self.lock().accepted_at(id, accepted);
    }

    /// Gives back the place of a deploy that has ended or will never come.
    pub(crate) fn give_up(&self, id: &DeployId) {
        self.open.ended(id);
        self.lock().give_up(id);
        self.look();
    }

    /// Takes a deploy on, once: one that is being worked on is left to that.
    ///
    /// # Errors
    /// `deploy-overloaded`.
    fn take_on(&self, project: Project, accepted: Timestamp) -> Result<(), Problem> {
        if !self.lock().offer(project, accepted) {
            return Err(Problem::new(ProblemCode::DeployOverloaded, "too many deploys at once on this node"));
        }
        self.look();
        Ok(())
    }

    /// Has the worker look whose turn it is. Full means that it will.
    fn look(&self) {
        let _ = self.moved.try_send(());
    }

    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Publishes a deploy that was accepted on this node. Returns when it is taken on; safe to repeat.
///
/// # Errors
/// `not-found`; `invalid-input` when the artifact is another one; `reference-held` when another node accepted it;
/// `deploy-overloaded`; store errors.
pub(crate) async fn publish(core: &Core, project: Project, sha256: &str) -> Result<DeployRecord, Problem> {
    let record = core.registry.deploy(&project.id).await?.record;
    if record.state.is_terminal() {
        core.deploys.give_up(&project.id);
        return Ok(record);
    }
    if record.node != core.settings.node.id {
        return Err(Problem::new(
            ProblemCode::ReferenceHeld,
            format!("node `{}` accepted this deploy and publishes it", record.node),
        ));
    }
    if record.artifact.as_ref().is_none_or(|artifact| artifact.sha256 != sha256) {
        return Err(Problem::new(
            ProblemCode::InvalidInput,
            "this is not the artifact that the deploy was accepted with",
        ));
    }
    core.deploys.take_on(project, record.accepted_at)?;
    Ok(record)
}

/// Works on deploys until the daemon ends. What is under way then is offered again after the restart.
pub(crate) async fn work(core: Arc<Core>, mut moves: mpsc::Receiver<()>) -> Fatal {
    let jobs = Arc::new(Semaphore::new(usize::try_from(core.settings.deploy_jobs.max(1)).unwrap_or(1)));
    let mut tasks: JoinSet<DeployId> = JoinSet::new();
    remember(&core).await;
    loop {
        while let Some(project) = { core.deploys.lock().next() } {
            let (core, jobs) = (Arc::clone(&core), Arc::clone(&jobs));
            tasks.spawn(async move {
                // Its record stays open then, and it is offered again; the daemon and the other deploys go on.
                if AssertUnwindSafe(carry_out(&core, &jobs, &project)).catch_unwind().await.is_err() {
                    tracing::error!(deploy = %project.id, "the task of a deploy panicked before its end was recorded");
                }
                project.id
            });
        }
        tokio::select! {
            Some(ended) = tasks.join_next() => {
                let Ok(id) = ended else { return Fatal::ended("a deploy") };
                core.deploys.lock().ran(&id);
            }
            moved = moves.recv() => if moved.is_none() { return Fatal::ended("the intake of deploys") },
        }
    }
}

/// Learns what an earlier run accepted and did not end: nobody's turn has come before.
async fn remember(core: &Core) {
    let open = core.deploys.open.left(core).await;
    core.deploys.lock().know(open, core.mono());
}

/// Ends what this node accepted and nobody offers any more. Looks as often as that may take, and only at that: what an earlier run
/// left has its place since [`remember`], so that a node with nothing to do asks the bucket for nothing.
pub(crate) async fn forget(core: Arc<Core>) -> Fatal {
    let mut up = core.deploys.neighbour.subscribe();
    if up.wait_for(|up| *up).await.is_err() {
        return Fatal::ended("the intake of deploys");
    }
    core.registry.clock().sleep(OFFERED).await;
    loop {
        let pause = match sweep(&core).await {
            Ok(()) => OFFERED,
            Err(problem) => {
                tracing::warn!(?problem, "deploys that nobody offers are not looked for yet, trying again");
                OFFERED / 6
            }
        };
        core.registry.clock().sleep(pause).await;
    }
}

/// Ends what has been silent for too long. One that gives no answer holds up no other.
async fn sweep(core: &Core) -> Result<(), Problem> {
    let silent = core.deploys.lock().silent(core.mono());
    let mut outcome = Ok(());
    for id in silent {
        // The first failure tells what is wrong; the next sweep tries all of them again.
        outcome = outcome.and(end_silent(core, &id).await);
    }
    outcome
}

/// Ends a deploy that nobody offers any more, if it is this node's to end.
async fn end_silent(core: &Core, id: &DeployId) -> Result<(), Problem> {
    match end_unoffered(core, id).await {
        // It stays as it is, for a person to look at.
        Err(problem) if problem.code == ProblemCode::StoreNonconforming => {
            tracing::warn!(deploy = %id, ?problem, "the record of a deploy that nobody offers cannot be read");
            core.deploys.give_up(id);
            Ok(())
        }
        outcome => outcome,
    }
}

async fn end_unoffered(core: &Core, id: &DeployId) -> Result<(), Problem> {
    let record = match core.registry.deploy(id).await {
        Ok(stored) => stored.record,
        Err(problem) if problem.code == ProblemCode::NotFound => {
            core.deploys.give_up(id);
            return Ok(());
        }
        Err(problem) => return Err(problem),
    };
    if record.state.is_terminal() || record.node != core.settings.node.id {
        core.deploys.give_up(id);
        return Ok(());
    }
    // It may have been offered while its record was read.
    if core.deploys.lock().is_held(id, core.mono()) {
        return Ok(());
    }
    tracing::warn!(deploy = %id, "nobody offers this deploy any more");
    let how = if record.accepted_at < core.started { "restarted and" } else { "was interrupted and" };
    let detail = format!("node `{}` {how} has its artifact no more; deploy again", record.node);
    intake::fail(core, id, Problem::new(ProblemCode::DeployTimeout, detail)).await.map(drop)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use scafo_core::key;
    use scafo_core::record::DeployState;
    use scafo_store::{Fault, MemoryBucket, Operation};
    use scafo_telemetry::trace::Thread;

    use super::*;
    use crate::daemon::testing::{core, settings};
    use crate::deploy::intake::testing::{accepted, asked};
    use crate::figures::Figures;
    use crate::node::disk::Disk;
    use crate::parts::Means;
    use crate::registry::testing::put_raw;
    use crate::registry::{Registry, TokioClock};
    use crate::service::Operations;
    use crate::supervisor::Supervisor;

    async fn state(core: &Core, id: &DeployId) -> DeployState {
        core.registry.deploy(id).await.unwrap().record.state
    }

    fn project(id: &DeployId) -> Project {
        Project { id: id.clone(), config_path: "/x/wrangler.jsonc".into(), trace: Thread::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn what_this_node_accepted_and_nobody_offers_fails_and_nothing_else_does() {
        let memory = MemoryBucket::new();
        let core_a = core("a", memory.sibling());
        let (lost, offered, heard) =
            (accepted(&core_a, 1).await, accepted(&core_a, 2).await, accepted(&core_a, 3).await);
        let foreign = accepted(&core("b", memory.sibling()), 4).await;
        publish(&core_a, project(&offered), &"0".repeat(64)).await.unwrap();
        tokio::time::advance(OFFERED).await;
        accepted(&core_a, 3).await;
        let fresh = accepted(&core_a, 5).await;
        sweep(&core_a).await.unwrap();
        assert_eq!(state(&core_a, &lost).await, DeployState::Accepted, "not for longer than that yet");
        tokio::time::advance(OFFERED / 2).await;
        sweep(&core_a).await.unwrap();
        assert_eq!(state(&core_a, &lost).await, DeployState::Failed);
        for id in [&offered, &heard, &foreign, &fresh] {
            assert_eq!(state(&core_a, id).await, DeployState::Accepted, "{id}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_deploy_that_was_failed_before_its_record_arrived_ends() {
        let memory = MemoryBucket::new();
        // Whether accepting it waits for the bucket to the end, or its caller hangs up before.
        for (random, patience) in [(1, OFFERED), (2, OFFERED / 12)] {
            let (own, away) = (memory.sibling(), Arc::new(AtomicBool::new(true)));
            let (id, is_away) = (asked(random).id, Arc::clone(&away));
            own.fail_next_puts(&key::deploy(&id), [Fault::HoldBack]);
            own.plan(move |operation| {
                let lost = matches!(operation, Operation::Put(..)) && is_away.load(Ordering::Relaxed);
                lost.then_some(Fault::LoseRequest)
            });
            let core = core("a", own);
            let accepting = tokio::time::timeout(patience, intake::accept(&core, asked(random))).await;
            assert!(accepting.is_err() || accepting.is_ok_and(|accepted| accepted.is_err()));
            away.store(false, Ordering::Relaxed);
            let cut_off = Problem::new(ProblemCode::StoreUnavailable, "accepting this deploy was cut off");
            let failed = intake::fail(&core, &id, cut_off).await.unwrap_err();
            assert_eq!(failed.code, ProblemCode::NotFound);
            let next = accepted(&core, 10 + random).await;
            publish(&core, project(&next), &"0".repeat(64)).await.unwrap();
            core.deploys.lock().know([], core.mono());
            assert_eq!(core.deploys.lock().next().map(|project| project.id), Some(next), "it keeps nobody waiting");
            assert_eq!(memory.release_held(), 1);
            assert_eq!(state(&core, &id).await, DeployState::Accepted);
            tokio::time::advance(OFFERED + OFFERED / 60).await;
            sweep(&core).await.unwrap();
            assert_eq!(state(&core, &id).await, DeployState::Failed);
            assert_eq!(core.deploys.lock().silent(core.mono()), []);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_that_cannot_be_read_holds_up_no_other_deploy() {
        let memory = MemoryBucket::new();
        let core = core("a", memory.sibling());
        let (bad, lost) = (accepted(&core, 1).await, accepted(&core, 2).await);
        put_raw(&memory, &key::deploy(&bad), "unreadable").await;
        tokio::time::advance(OFFERED * 2).await;
        sweep(&core).await.unwrap();
        assert_eq!(state(&core, &lost).await, DeployState::Failed);
        let next = accepted(&core, 3).await;
        publish(&core, project(&next), &"0".repeat(64)).await.unwrap();
        assert_eq!(core.deploys.lock().silent(core.mono()), []);
        core.deploys.lock().know([], core.mono());
        assert_eq!(core.deploys.lock().next().map(|project| project.id), Some(next));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_deploy_is_ended_although_others_give_no_answer() {
        let memory = MemoryBucket::new();
        let (own, away) = (memory.sibling(), Arc::new(AtomicBool::new(false)));
        let [unread, unwritten] = [1, 2].map(|random| key::deploy(&asked(random).id));
        let is_away = Arc::clone(&away);
        own.plan(move |operation| {
            let meant = match operation {
                Operation::Get(key) => key == unread,
                Operation::Put(key, _) => key == unwritten,
                Operation::Delete(_) | Operation::List(_) => false,
            };
            (meant && is_away.load(Ordering::Relaxed)).then_some(Fault::LoseRequest)
        });
        let core = core("a", own);
        let ids = [accepted(&core, 1).await, accepted(&core, 2).await, accepted(&core, 3).await];
        let states = async || [state(&core, &ids[0]).await, state(&core, &ids[1]).await, state(&core, &ids[2]).await];
        tokio::time::advance(OFFERED * 2).await;
        away.store(true, Ordering::Relaxed);
        assert_eq!(sweep(&core).await.unwrap_err().code, ProblemCode::StoreUnavailable);
        away.store(false, Ordering::Relaxed);
        assert_eq!(states().await, [DeployState::Accepted, DeployState::Accepted, DeployState::Failed]);
        sweep(&core).await.unwrap();
        assert_eq!(states().await, [DeployState::Failed; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_that_breaks_while_its_deploy_runs_holds_up_no_later_one() {
        let memory = MemoryBucket::new();
        let core = core("a", memory.sibling());
        let (broken, next) = (accepted(&core, 1).await, accepted(&core, 2).await);
        for id in [&broken, &next] {
            publish(&core, project(id), &"0".repeat(64)).await.unwrap();
        }
        put_raw(&memory, &key::deploy(&broken), "unreadable").await;
        let (_moved, moves) = mpsc::channel(1);
        let has_its_turn = async {
            while state(&core, &next).await == DeployState::Accepted {
                tokio::time::sleep(OFFERED).await;
            }
        };
        tokio::select! {
            fatal = work(Arc::clone(&core), moves) => panic!("{fatal}"),
            turn = tokio::time::timeout(OFFERED * 60, has_its_turn) => turn.unwrap(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_with_nothing_to_look_for_asks_the_bucket_for_nothing() {
        let memory = MemoryBucket::new();
        let (own, requests) = (memory.sibling(), Arc::new(AtomicU32::new(0)));
        let counted = Arc::clone(&requests);
        own.plan(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            None
        });
        let idle = core("a", own);
        let other = core("b", memory.sibling());
        for random in 0..9 {
            accepted(&other, random).await;
        }
        tokio::time::advance(2 * OFFERED).await;
        sweep(&idle).await.unwrap();
        assert_eq!(requests.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_run_keeps_the_places_of_what_the_last_one_accepted() {
        let memory = MemoryBucket::new();
        memory.set_page_keys(1);
        let before = core("a", memory.sibling());
        let (first, second) = (accepted(&before, 2).await, accepted(&before, 1).await);
        let now = core("a", memory.sibling());
        remember(&now).await;
        publish(&now, project(&second), &"0".repeat(64)).await.unwrap();
        assert!(now.deploys.lock().next().is_none(), "the older one is not offered yet");
        intake::fail(&now, &first, Problem::new(ProblemCode::Internal, "given up")).await.unwrap();
        assert_eq!(now.deploys.lock().next().map(|project| project.id), Some(second));
    }

    /// A run of node `a` that keeps its state in `dir`.
    async fn run(memory: MemoryBucket, dir: &Path) -> Arc<Core> {
        let clock = TokioClock::starting_at(Timestamp::from_millis(1_800_000_000_000));
        let registry = Registry::new(Arc::new(memory), Arc::new(clock), "a");
        let settings = settings("a");
        let means = Means {
            supervisor: Supervisor::new(&settings.supervisor_socket),
            disk: Disk::Memory(Arc::default()),
            operations: Operations::in_memory(),
            figures: Figures::default(),
            open: Open::resume(dir, "i", &settings.node.id).await,
        };
        let started = registry.clock().wall();
        Core::assemble(settings, registry, started, means).0
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_reads_what_its_last_run_left_open_and_no_other_deploy() {
        let (memory, dir) = (MemoryBucket::new(), tempfile::tempdir().unwrap());
        let other = core("b", memory.sibling());
        for random in 100..600 {
            let id = accepted(&other, random).await;
            intake::fail(&other, &id, Problem::new(ProblemCode::Internal, "over")).await.unwrap();
        }
        // The first run ever finds no list, and walks.
        let first = run(memory.sibling(), dir.path()).await;
        remember(&first).await;
        let done = accepted(&first, 4).await;
        let ids = [accepted(&first, 3).await, accepted(&first, 2).await, accepted(&first, 1).await];
        intake::fail(&first, &done, Problem::new(ProblemCode::Internal, "over")).await.unwrap();
        drop(first);

        let (own, requests) = (memory.sibling(), Arc::new(AtomicU32::new(0)));
        let counted = Arc::clone(&requests);
        own.plan(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            None
        });
        let now = run(own, dir.path()).await;
        remember(&now).await;
        let asked = requests.load(Ordering::Relaxed);
        assert!(asked <= 4, "{asked}");
        for id in ids.iter().rev() {
            assert!(now.deploys.lock().next().is_none(), "older ones are not offered yet");
            publish(&now, project(id), &"0".repeat(64)).await.unwrap();
        }
        for id in ids {
            assert_eq!(now.deploys.lock().next().map(|project| project.id), Some(id.clone()));
            now.deploys.lock().ran(&id);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_noted_deploy_whose_record_gives_no_answer_keeps_its_place_and_holds_up_no_start() {
        let (memory, dir) = (MemoryBucket::new(), tempfile::tempdir().unwrap());
        let first = run(memory.sibling(), dir.path()).await;
        remember(&first).await;
        let (silent, next) = (accepted(&first, 2).await, accepted(&first, 1).await);
        drop(first);
        let (own, withheld) = (memory.sibling(), key::deploy(&silent));
        own.plan(move |operation| (operation == Operation::Get(&withheld)).then_some(Fault::LoseRequest));
        let now = run(own, dir.path()).await;
        tokio::time::timeout(OFFERED * 2, remember(&now)).await.unwrap();
        publish(&now, project(&next), &"0".repeat(64)).await.unwrap();
        assert!(now.deploys.lock().next().is_none(), "the older one keeps its place");
        now.deploys.give_up(&silent);
        assert_eq!(now.deploys.lock().next().map(|project| project.id), Some(next));
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_accepting_node_publishes_and_only_what_it_accepted() {
        let memory = MemoryBucket::new();
        let (a, b) = (core("a", memory.sibling()), core("b", memory.sibling()));
        let id = accepted(&a, 1).await;
        let elsewhere = publish(&b, project(&id), &"0".repeat(64)).await.unwrap_err();
        assert_eq!(elsewhere.code, ProblemCode::ReferenceHeld);
        let other = publish(&a, project(&id), &"1".repeat(64)).await.unwrap_err();
        assert_eq!(other.code, ProblemCode::InvalidInput);
    }
}

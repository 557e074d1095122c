//! Who works on which deploy: one of an application at a time, a bounded number at all, each until its end.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use scafo_core::record::DeployRecord;
use scafo_core::{ApplicationName, DeployId, Problem, ProblemCode};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use super::intake;
use super::publication::{Project, carry_out};
use crate::daemon::{Core, Fatal};
use crate::registry::{Cache, Read};

/// Deploys that are taken on at once. The API's queue admits 16 by default and is the one that callers meet; this only keeps
/// a broken neighbour from filling the memory.
const ACTIVE: usize = 256;
/// How long the parts of the node that hold the artifacts may take to offer them again after a restart.
const OFFERED: Duration = Duration::from_secs(60);

/// The deploys that this node works on.
#[derive(Debug)]
pub(crate) struct Deploys {
    active: Mutex<HashSet<DeployId>>,
    start: mpsc::Sender<Project>,
    /// Becomes true with the first word from the API: from then on artifacts can be offered.
    neighbour: watch::Sender<bool>,
}

impl Deploys {
    /// The handle, and what its owner runs with.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Project>) {
        let (start, started) = mpsc::channel(ACTIVE);
        (Self { active: Mutex::default(), start, neighbour: watch::Sender::new(false) }, started)
    }

    /// Notes that the API is up.
    pub(crate) fn neighbour_is_up(&self) {
        self.neighbour.send_if_modified(|up| !std::mem::replace(up, true));
    }

    /// Takes a deploy on, once: one that is being worked on is left to that.
    ///
    /// # Errors
    /// `deploy-overloaded`.
    fn take_on(&self, project: Project) -> Result<(), Problem> {
        let overloaded = || Problem::new(ProblemCode::DeployOverloaded, "too many deploys at once on this node");
        let mut active = self.lock();
        if active.contains(&project.id) {
            return Ok(());
        }
        if active.len() >= ACTIVE {
            return Err(overloaded());
        }
        let id = project.id.clone();
        // The channel is as long as the map may be large, so that it is full only with a receiver that is gone.
        self.start.try_send(project).map_err(|_| overloaded())?;
        active.insert(id);
        Ok(())
    }

    fn is_active(&self, id: &DeployId) -> bool {
        self.lock().contains(id)
    }

    fn ended(&self, id: &DeployId) {
        self.lock().remove(id);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<DeployId>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
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
    core.deploys.take_on(project)?;
    Ok(record)
}

/// Works on deploys until the daemon ends. What is under way then is offered again after the restart.
pub(crate) async fn work(core: Arc<Core>, mut started: mpsc::Receiver<Project>) -> Fatal {
    let jobs = Arc::new(Semaphore::new(usize::try_from(core.settings.deploy_jobs.max(1)).unwrap_or(1)));
    let mut turns: HashMap<ApplicationName, Arc<tokio::sync::Mutex<()>>> = HashMap::new();
    let mut tasks: JoinSet<DeployId> = JoinSet::new();
    loop {
        tokio::select! {
            Some(ended) = tasks.join_next() => {
                let Ok(id) = ended else { return Fatal::ended("a deploy") };
                core.deploys.ended(&id);
                // Nobody waits for a turn that only this map knows.
                turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            }
            project = started.recv() => {
                let Some(project) = project else { return Fatal::ended("the intake of deploys") };
                let turn = Arc::clone(turns.entry(project.id.application()).or_default());
                let (core, jobs) = (Arc::clone(&core), Arc::clone(&jobs));
                tasks.spawn(async move {
                    // tokio's mutex is fair: deploys of one application end in the order in which they came.
                    let _turn = turn.lock_owned().await;
                    carry_out(&core, &jobs, &project).await;
                    project.id
                });
            }
        }
    }
}

/// Ends what an earlier run of this node accepted and nobody offers any more. Runs once, then waits for ever.
pub(crate) async fn forget(core: Arc<Core>) -> Fatal {
    let mut up = core.deploys.neighbour.subscribe();
    if up.wait_for(|up| *up).await.is_err() {
        return Fatal::ended("the intake of deploys");
    }
    core.registry.clock().sleep(OFFERED).await;
    while let Err(problem) = sweep(&core).await {
        tracing::warn!(?problem, "deploys of an earlier run are not looked through yet, trying again");
        core.registry.clock().sleep(OFFERED / 6).await;
    }
    std::future::pending().await
}

async fn sweep(core: &Core) -> Result<(), Problem> {
    let mut deploys: Cache<DeployRecord> = Cache::default();
    deploys.refresh(core.registry.engine(), Read::Moved).await?;
    let ours = deploys.iter().map(|stored| &stored.record).filter(|record| {
        record.node == core.settings.node.id
            && !record.state.is_terminal()
            && record.accepted_at < core.started
            && !core.deploys.is_active(&record.id)
    });
    for record in ours {
        tracing::warn!(deploy = %record.id, "a deploy of an earlier run was not offered again");
        let problem = Problem::new(
            ProblemCode::DeployTimeout,
            format!("node `{}` restarted and its artifact is not there any more; deploy again", record.node),
        );
        intake::fail(core, &record.id, problem).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use scafo_core::record::DeployState;
    use scafo_store::MemoryBucket;

    use super::*;
    use crate::daemon::testing::core;
    use crate::deploy::intake::{Accept, accept};

    async fn accepted(core: &Core, random: u64) -> DeployId {
        let id = DeployId::new(&"shop".parse().unwrap(), random);
        let sha256 = "0".repeat(64);
        let deploy = Accept { id: id.clone(), by: "op".into(), source: None, oidc: None, sha256, bytes: 1 };
        accept(core, deploy).await.unwrap();
        id
    }

    async fn state(core: &Core, id: &DeployId) -> DeployState {
        core.registry.deploy(id).await.unwrap().record.state
    }

    #[tokio::test(start_paused = true)]
    async fn what_an_earlier_run_accepted_and_nobody_offers_fails_and_nothing_else_does() {
        let memory = MemoryBucket::new();
        let before = core("a", memory.sibling());
        let (lost, offered) = (accepted(&before, 1).await, accepted(&before, 2).await);
        let foreign = accepted(&core("b", memory.sibling()), 3).await;
        tokio::time::advance(Duration::from_secs(1)).await;
        let now = core("a", memory.sibling());
        // The clock of a core starts anew; the run that accepted the first three was an hour ago.
        let later =
            Arc::new(Core { started: now.started.after(Duration::from_hours(1)), ..Arc::into_inner(now).unwrap() });
        later.deploys.active.lock().unwrap().insert(offered.clone());
        sweep(&later).await.unwrap();
        assert_eq!(state(&later, &lost).await, DeployState::Failed);
        assert_eq!(state(&later, &offered).await, DeployState::Accepted);
        assert_eq!(state(&later, &foreign).await, DeployState::Accepted);
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_accepting_node_publishes_and_only_what_it_accepted() {
        let memory = MemoryBucket::new();
        let (a, b) = (core("a", memory.sibling()), core("b", memory.sibling()));
        let id = accepted(&a, 1).await;
        let project = || Project { id: id.clone(), config_path: "/x/wrangler.jsonc".into() };
        let elsewhere = publish(&b, project(), &"0".repeat(64)).await.unwrap_err();
        assert_eq!(elsewhere.code, ProblemCode::ReferenceHeld);
        let other = publish(&a, project(), &"1".repeat(64)).await.unwrap_err();
        assert_eq!(other.code, ProblemCode::InvalidInput);
    }
}

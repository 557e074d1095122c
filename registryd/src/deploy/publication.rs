//! One deploy's way from its unpacked project to being served, and what is done again after a restart.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use scafo_core::record::{DeployRecord, DeployState, DeploymentRecord, Rest, V1};
use scafo_core::{ApplicationName, DeployId, DeploymentVersion, Problem, ProblemCode};
use scafo_proto::supervisor::JobExited;
use scafo_telemetry::trace::{SPANS, Thread};
use tokio::sync::Semaphore;
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use super::admission::admit;
use super::verdict::{REPORT, Scene, Verdict, Waiting, look, still_ours};
use super::{intake, output};
use crate::daemon::Core;
use crate::node::wake::{Look, seen};
use crate::node::world::World;
use crate::registry::{Intent, Mono};

/// How often a job is run when it lost a race or does not know how it ended. Deploys of one application are serialised on a
/// node, so that more than one rival is rare.
const RUNS: u32 = 3;
/// What a job says that lost a race for the pointer, or does not know whether it won (celld contract 2.6).
const UNCLEAR: [&str; 3] = ["lost a race", "may have committed", "nobody knows"];
/// Between two tries of a step that met a part of the node, or a bucket, that is away.
const AGAIN: Duration = Duration::from_millis(500);
/// How often other nodes' records are looked at while they are waited for, beside what the hint brings.
const REMOTE: Duration = Duration::from_secs(1);

/// A project to publish.
#[derive(Debug, Clone)]
pub(crate) struct Project {
    pub(crate) id: DeployId,
    /// The configuration file in the unpacked tree.
    pub(crate) config_path: String,
    /// The trace of whoever offered it, of which the work on it is a part.
    pub(crate) trace: Thread,
}

/// Takes a deploy to its end and writes that end down, however long the bucket takes to accept it. A record that cannot be read is left
/// to a person: nothing can be written down on it, and the next deploy of the application is not to wait for it.
pub(crate) async fn carry_out(core: &Core, jobs: &Semaphore, project: &Project) {
    let application = project.id.application();
    let span = tracing::info_span!(target: SPANS, parent: None, "publication", scafo.deploy = %project.id,
        scafo.application = %application, scafo.outcome = Empty, otel.status_code = Empty);
    project.trace.join(&span);
    carry(core, jobs, project).instrument(span).await;
}

async fn carry(core: &Core, jobs: &Semaphore, project: &Project) {
    let id = &project.id;
    let end = whole(publish(core, jobs, project)).await;
    match &end {
        Ok(note) => tracing::info!(deploy = %id, note = note.as_deref().unwrap_or(""), "deployed"),
        Err(problem) => tracing::warn!(deploy = %id, ?problem, "deploy failed"),
    }
    let span = Span::current();
    span.record("scafo.outcome", end.as_ref().map_or_else(|problem| problem.code.as_str(), |_| "deployed"));
    if end.as_ref().is_err_and(|problem| problem.code.status() >= 500) {
        span.record("otel.status_code", "ERROR");
    }
    while let Err(problem) = intake::finish(core, id, end.clone()).await {
        match problem.code {
            ProblemCode::NotFound => return,
            ProblemCode::StoreNonconforming => {
                tracing::error!(deploy = %id, ?problem, "the end of a deploy cannot be recorded; its record needs a person");
                return;
            }
            _ => {}
        }
        tracing::warn!(deploy = %id, ?problem, "the end of a deploy is not recorded, trying again");
        core.registry.clock().sleep(AGAIN * 4).await;
    }
}

/// A deploy that brings its task down would do so again and again if it were left open: it fails instead.
async fn whole<T>(publishing: impl Future<Output = Result<T, Problem>>) -> Result<T, Problem> {
    AssertUnwindSafe(publishing).catch_unwind().await.unwrap_or_else(|_| {
        let detail = "publishing failed inside of this node, whose log says where; `scafo status` tells what is served";
        Err(Problem::new(ProblemCode::Internal, detail))
    })
}

async fn publish(core: &Core, jobs: &Semaphore, project: &Project) -> Result<Option<String>, Problem> {
    let deadline = core.mono().after(core.settings.deploy_task_timeout.get());
    let step = Step { core, deadline, id: &project.id };
    let mut record = step.until("taking it on", || step.begin().boxed()).await?;
    if record.state.is_terminal() {
        return outcome_of(record);
    }
    // What an earlier run of this daemon published, if that is still to be gone on with.
    let published = step.until("reading the pointer", || step.published(&record).boxed()).await?;
    let version = match published {
        Some(version) => version,
        None => {
            let (version, celld) = step.run(jobs, project).await?;
            record = step.at_last("recording the version", || step.note(&version, celld.as_deref()).boxed()).await?;
            version
        }
    };
    step.at_last("recording the deployment", || step.file(&record, &version).boxed()).await?;
    step.at_last("publishing", || step.name(&version).boxed()).await?;
    // The record of a version that comes again is old, and may have been removed as such until the application named it.
    step.at_last("recording the deployment", || step.file(&record, &version).boxed()).await?;
    // However late it is: nodes that were told of it a moment ago are not to blame for that.
    let step = Step { deadline: deadline.max(core.mono().after(REPORT)), ..step };
    step.served(version).instrument(part("waiting until it is served")).await
}

/// The span of a part of the work on a deploy.
fn part(what: &str) -> Span {
    tracing::info_span!(target: SPANS, "part", otel.name = what)
}

fn outcome_of(record: DeployRecord) -> Result<Option<String>, Problem> {
    if record.state == DeployState::Deployed {
        return Ok(record.detail);
    }
    let code = record.code.unwrap_or(ProblemCode::Internal);
    Err(Problem::new(code, record.detail.unwrap_or_default()))
}

struct Step<'a> {
    core: &'a Core,
    deadline: Mono,
    id: &'a DeployId,
}

impl Step<'_> {
    /// Tries a step while what it needs is only away, until the deploy's time is over.
    async fn until<'s, T>(
        &'s self,
        what: &str,
        step: impl FnMut() -> BoxFuture<'s, Result<T, Problem>> + Send,
    ) -> Result<T, Problem> {
        self.tried(what, Some(self.deadline), step).await
    }

    /// Tries a step for as long as the bucket is away; each try has the store's own deadline. The pointer names the new version
    /// by then, and a record that says otherwise would be wrong for good.
    async fn at_last<'s, T>(
        &'s self,
        what: &str,
        step: impl FnMut() -> BoxFuture<'s, Result<T, Problem>> + Send,
    ) -> Result<T, Problem> {
        self.tried(what, None, step).await
    }

    async fn tried<'s, T>(
        &'s self,
        what: &str,
        deadline: Option<Mono>,
        mut step: impl FnMut() -> BoxFuture<'s, Result<T, Problem>> + Send,
    ) -> Result<T, Problem> {
        let tries = async {
            loop {
                match step().await {
                    Err(problem) if is_away(&problem) => {
                        tracing::warn!(deploy = %self.id, ?problem, "{what} did not go through, trying again");
                        if deadline.is_some_and(|deadline| self.core.mono().after(AGAIN) >= deadline) {
                            return Err(Problem::new(
                                ProblemCode::DeployTimeout,
                                format!("{what} did not succeed in time: {}", problem.detail),
                            ));
                        }
                        self.core.registry.clock().sleep(AGAIN).await;
                    }
                    outcome => return outcome,
                }
            }
        };
        tries.instrument(part(what)).await
    }

    fn left(&self) -> Duration {
        self.deadline.since(self.core.mono())
    }

    async fn begin(&self) -> Result<DeployRecord, Problem> {
        let mut there = self.core.registry.deploy(self.id).await?.record;
        if there.state == DeployState::Accepted && !there.is_admitted() {
            // The daemon that filed it was killed before it was told of.
            there = admit(self.core, there).await?;
        }
        if there.state != DeployState::Accepted {
            return Ok(there);
        }
        let now = self.core.registry.clock().wall();
        let mutate = |record: &mut DeployRecord| {
            record.state = DeployState::Uploading;
            record.moved_at = now;
            Ok(())
        };
        Ok(self.core.registry.update_deploy(&Intent::new(), self.id, mutate).await?.stored.record)
    }

    /// The version that an earlier run published, unless the pointer was moved by a deploy that was accepted before this one:
    /// then the job runs again. One that was accepted later has replaced it, which the next steps find.
    async fn published(&self, record: &DeployRecord) -> Result<Option<DeploymentVersion>, Problem> {
        let Some(version) = record.deployment.clone() else { return Ok(None) };
        if self.pointer().await?.as_ref() == Some(&version) {
            return Ok(Some(version));
        }
        let application = self.core.registry.application(&record.application).await?;
        let Some(named) = application.and_then(|it| it.record.deployment) else { return Ok(None) };
        let replaced = named.deploy == record.id
            || match self.core.registry.deploy(&named.deploy).await {
                Ok(other) => (other.record.accepted_at, &named.deploy) > (record.accepted_at, &record.id),
                // Its record was kept for a week after its end: it is older by far.
                Err(problem) if problem.code == ProblemCode::NotFound => false,
                Err(problem) => return Err(problem),
            };
        Ok(replaced.then_some(version))
    }

    /// The job, in its turn: what it published, and the runtime's version that did.
    async fn run(&self, jobs: &Semaphore, project: &Project) -> Result<(DeploymentVersion, Option<String>), Problem> {
        let turn = tokio::time::timeout(self.left(), jobs.acquire()).instrument(part("waiting for its turn")).await;
        let Ok(Ok(_turn)) = turn else { return Err(overdue("waiting for its turn to publish")) };
        let before = self.until("reading the pointer", || self.pointer().boxed()).await?;
        let mut runs = 1;
        loop {
            let exited = self.until("running `celld deploy`", || self.job(project).boxed()).await?;
            let celld = Some(exited.celld_version.clone()).filter(|version| !version.is_empty());
            if let Some(version) = &celld {
                self.core.deploys.ran_on(version, self.core.registry.clock().wall());
            }
            match judge_job(&exited, &self.roots(project)) {
                Job::Published(version) => return Ok((version, celld)),
                Job::Again(_) if runs < RUNS && !exited.timed_out => {
                    tracing::info!(deploy = %self.id, runs, "`celld deploy` is to be run again");
                    runs += 1;
                }
                Job::Again(problem) => {
                    let ours = self.until("reading the pointer", || self.ours(before.as_ref()).boxed()).await?;
                    return ours.map(|version| (version, celld)).ok_or(problem);
                }
                Job::Failed(problem) => return Err(problem),
            }
        }
    }

    async fn pointer(&self) -> Result<Option<DeploymentVersion>, Problem> {
        let pointer = self.core.registry.pointer(&self.id.application()).await?;
        Ok(pointer.map(|pointer| pointer.version))
    }

    /// The version that the pointer names, if that is this deploy's although no run of the job could say so: it was published
    /// from the same artifact before, or it is new since the first run and nobody has put his name to it.
    async fn ours(&self, before: Option<&DeploymentVersion>) -> Result<Option<DeploymentVersion>, Problem> {
        let Some(version) = self.pointer().await? else { return Ok(None) };
        let deployment = self.core.registry.deployment(&self.id.application(), &version).await?;
        let artifact = self.core.registry.deploy(self.id).await?.record.artifact;
        let ours = match deployment {
            Some(stored) => Some(stored.record.artifact) == artifact,
            None => before != Some(&version),
        };
        Ok(ours.then_some(version))
    }

    async fn job(&self, project: &Project) -> Result<JobExited, Problem> {
        let left = self.left();
        if left.is_zero() {
            return Err(overdue("publishing"));
        }
        self.core.supervisor.run_deploy(self.id, &project.config_path, left).await
    }

    /// Directories whose names are nobody's business.
    fn roots<'p>(&'p self, project: &'p Project) -> Vec<&'p Path> {
        let tree = Path::new(&project.config_path).parent();
        let state = self.core.settings.dir.parent();
        tree.into_iter().chain(state).collect()
    }

    /// From here on a restart does not run the job again.
    async fn note(&self, version: &DeploymentVersion, celld: Option<&str>) -> Result<DeployRecord, Problem> {
        let now = self.core.registry.clock().wall();
        let mutate = |record: &mut DeployRecord| {
            record.deployment = Some(version.clone());
            if let Some(celld) = celld {
                record.celld_version = Some(celld.to_owned());
            }
            record.moved_at = now;
            Ok(())
        };
        Ok(self.core.registry.update_deploy(&Intent::new(), self.id, mutate).await?.stored.record)
    }

    /// Files the deployment, unless this version has a record already: versions are content ids and come again.
    async fn file(&self, record: &DeployRecord, version: &DeploymentVersion) -> Result<(), Problem> {
        let name = &record.application;
        if self.core.registry.deployment(name, version).await?.is_some() {
            return Ok(());
        }
        let Some(artifact) = record.artifact.clone() else {
            return Err(Problem::new(ProblemCode::Internal, "the record of this deploy names no artifact"));
        };
        let deployment = DeploymentRecord {
            v: V1,
            application: name.clone(),
            version: version.clone(),
            deploy: record.id.clone(),
            node: record.node.clone(),
            by: record.by.clone(),
            celld_version: record.celld_version.clone().unwrap_or_default(),
            source: record.source.clone(),
            oidc: record.oidc.clone(),
            artifact,
            created_at: self.core.registry.clock().wall(),
            rest: Rest::new(),
        };
        match self.core.registry.record_deployment(&deployment).await {
            // Another deploy of the same version was faster.
            Err(problem) if problem.code == ProblemCode::Immutable => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    /// Makes it what the application serves: this is what every node acts on.
    async fn name(&self, version: &DeploymentVersion) -> Result<(), Problem> {
        let intent = Intent::new().operation(self.id.as_str());
        self.core.registry.publish(&intent, &self.id.application(), version, self.id).await.map(drop)
    }

    /// Whether the record itself still names this version.
    async fn confirm(&self, name: &ApplicationName, version: &DeploymentVersion) -> Result<(), Problem> {
        let there = self.core.registry.application(name).await?;
        still_ours(version, there.as_ref().map(|stored| &stored.record)).map(drop)
    }

    /// The fleet as it is now or a little later.
    async fn fleet(&self) -> Result<Arc<World>, Problem> {
        self.core.wake.look(Look::Applications);
        let ticket = self.core.wake.look(Look::Placements);
        seen(&mut self.core.worlds.subscribe(), ticket).await
    }

    /// Waits until every placed node serves it.
    async fn served(&self, version: DeploymentVersion) -> Result<Option<String>, Problem> {
        let core = self.core;
        let name = self.id.application();
        let mut worlds = core.worlds.subscribe();
        let mut world = self.until("seeing the publication", || self.fleet().boxed()).await?;
        let since = core.mono();
        let mut waiting = Waiting { version, since, deadline: self.deadline, asked: BTreeMap::new() };
        let mut next_look = since.after(REMOTE);
        loop {
            let scene = Scene {
                me: &core.settings.node.id,
                application: world.shown.applications.get(&name).map(|application| &**application),
                placement: world.shown.placements.get(&name).map(|placement| &**placement),
                nodes: &world.nodes,
                ttl: core.settings.lease_ttl.get(),
            };
            let now = core.mono();
            let until = match look(&mut waiting, &scene, now) {
                Verdict::Served { note } => return Ok(note),
                Verdict::Failed(problem) => return Err(problem),
                Verdict::MovedOn => {
                    self.until("reading the application", || self.confirm(&name, &waiting.version).boxed()).await?;
                    if now >= waiting.deadline {
                        return Err(overdue("waiting until this node sees its own publication"));
                    }
                    // The record still names it, so that it is the look that is behind.
                    core.wake.look(Look::Applications);
                    now.after(AGAIN)
                }
                Verdict::Wait { at, remote: true } => at.min(next_look),
                Verdict::Wait { at, remote: false } => at,
            };
            tokio::select! {
                biased;
                changed = worlds.changed() => {
                    if changed.is_err() {
                        return Err(Problem::new(ProblemCode::Draining, "this node is stopping"));
                    }
                }
                () = core.registry.clock().sleep_until(until) => {
                    core.wake.look(Look::Nodes);
                    next_look = core.mono().after(REMOTE);
                }
            }
            world = worlds.borrow_and_update().clone();
        }
    }
}

/// Whether trying again may help: something is away, not wrong.
const fn is_away(problem: &Problem) -> bool {
    matches!(problem.code, ProblemCode::StoreUnavailable | ProblemCode::Draining)
}

fn overdue(what: &str) -> Problem {
    Problem::new(ProblemCode::DeployTimeout, format!("the deploy ran out of time while {what}"))
}

/// What to make of a job's end.
#[derive(Debug)]
enum Job {
    Published(DeploymentVersion),
    /// It lost a race, or nobody knows whether its last write landed: running it again is safe, and in the end the pointer tells.
    Again(Problem),
    Failed(Problem),
}

fn judge_job(exited: &JobExited, roots: &[&Path]) -> Job {
    if exited.timed_out {
        // Its last write may have landed.
        return Job::Again(overdue("`celld deploy` ran"));
    }
    if exited.code == Some(0) {
        return output::published(&exited.stdout).map_or_else(Job::Again, Job::Published);
    }
    let words = output::complaint(&exited.stderr, roots);
    let how = match exited.code {
        Some(code) => format!("`celld deploy` ended with code {code}"),
        None => "`celld deploy` was ended by a signal".to_owned(),
    };
    let detail = if words.is_empty() { format!("{how} and said nothing") } else { format!("{how}:\n{words}") };
    let problem = Problem::new(ProblemCode::PublishFailed, detail);
    // A signal, as from a kernel that is short of memory, may come after the last write as well as before.
    let unclear = exited.code.is_none() || UNCLEAR.iter().any(|unclear| words.contains(unclear));
    if unclear { Job::Again(problem) } else { Job::Failed(problem) }
}

#[cfg(test)]
mod tests {
    use scafo_core::key;
    use scafo_store::{Bucket as _, MemoryBucket, PutOptions};

    use super::*;

    fn exited(code: Option<i32>, stdout: &str, stderr: &str) -> JobExited {
        JobExited {
            code,
            timed_out: false,
            stdout: stdout.as_bytes().to_vec().into(),
            stderr: stderr.as_bytes().to_vec().into(),
            celld_version: "celld 0.6.0".into(),
        }
    }

    #[tokio::test]
    async fn a_panic_fails_the_one_deploy() {
        let broken = async { if true { panic!("broken") } else { Ok(()) } };
        assert_eq!(whole(broken).await.unwrap_err().code, ProblemCode::Internal);
        assert_eq!(whole(async { Ok(1) }).await.unwrap(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_pointer_names_already_is_recorded_even_after_the_deploys_time() {
        let core = crate::daemon::testing::core("a", MemoryBucket::new());
        let id = DeployId::new(&"shop".parse().unwrap(), 1);
        let step = Step { core: &core, deadline: core.mono(), id: &id };
        let away = |tries: u32| {
            let mut left = tries;
            move || {
                left = left.saturating_sub(1);
                let outcome = match left {
                    0 => Ok(()),
                    _ => Err(Problem::new(ProblemCode::StoreUnavailable, "away")),
                };
                async { outcome }.boxed()
            }
        };
        assert_eq!(step.until("a step", away(100)).await.unwrap_err().code, ProblemCode::DeployTimeout);
        step.at_last("a step", away(100)).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_deploy_that_an_earlier_build_accepted_goes_on_under_a_freeze() {
        let core = crate::daemon::testing::core("a", MemoryBucket::new());
        let id = intake::testing::accepted(&core, 1).await;
        let of_an_earlier_build = |record: &mut DeployRecord| {
            record.admitted = None;
            Ok(())
        };
        let changed = core.registry.update_deploy(&Intent::new(), &id, of_an_earlier_build).await.unwrap();
        assert!(!serde_json::to_string(&changed.stored.record).unwrap().contains("admitted"));
        core.registry.freeze("op", None).await.unwrap();
        let again = intake::accept(&core, intake::testing::asked(1)).await.unwrap();
        assert_eq!(again.state, DeployState::Accepted, "the call that comes again");
        let step = Step { core: &core, deadline: core.mono().after(REPORT), id: &id };
        assert_eq!(step.begin().await.unwrap().state, DeployState::Uploading, "its publication");
        intake::fail(&core, &id, Problem::new(ProblemCode::PublishFailed, "its project is broken")).await.unwrap();
        let ended = intake::accept(&core, intake::testing::asked(1)).await.unwrap();
        assert_eq!(ended.code, Some(ProblemCode::PublishFailed), "its end is an answer, no refusal");
    }

    #[tokio::test(start_paused = true)]
    async fn a_publication_that_this_node_never_sees_has_an_end() {
        let memory = MemoryBucket::new();
        let core = crate::daemon::testing::core("a", memory.sibling());
        let (name, version): (ApplicationName, DeploymentVersion) = ("shop".parse().unwrap(), "v1".parse().unwrap());
        let id = DeployId::new(&name, 1);
        let before = core.registry.create_application(&name).await.unwrap().stored.record;
        let pointer = r#"{ "version": "v1", "prefix": "deploy/shop/v1" }"#;
        memory.put(&key::fleet_pointer(&name), pointer.into(), PutOptions::default()).await.unwrap();
        core.registry.publish(&Intent::new(), &name, &version, &id).await.unwrap();
        // A look that goes through and always shows what was before.
        crate::daemon::testing::show(&core, &[before], &[], &[]);
        let old = World::clone(&core.worlds.borrow());
        core.worlds.send_replace(Arc::new(World { answered: u64::MAX, attempted: u64::MAX, ..old }));
        let step = Step { core: &core, deadline: core.mono().after(REPORT), id: &id };
        assert_eq!(step.served(version).await.unwrap_err().code, ProblemCode::DeployTimeout);
    }

    #[test]
    fn each_end_of_a_job_has_its_consequence() {
        let row = "Current Version ID: 0123456789abcdef\n";
        for (exited, expected) in [
            (exited(Some(0), row, ""), "published"),
            (exited(Some(0), "", ""), "again"),
            (exited(Some(1), "", "error: lost a race, run it again"), "again"),
            (exited(Some(1), "", "error: the write may have committed"), "again"),
            (exited(Some(1), row, "✘ [ERROR] Unexpected"), "failed"),
            (exited(None, "", ""), "again"),
            (JobExited { timed_out: true, ..exited(None, "", "") }, "again"),
        ] {
            let job = judge_job(&exited, &[]);
            let name = match &job {
                Job::Published(_) => "published",
                Job::Again(_) => "again",
                Job::Failed(_) => "failed",
            };
            assert_eq!(name, expected, "{exited:?}");
        }
    }

    #[test]
    fn a_failed_job_speaks_with_the_bundlers_words_and_no_path_of_this_machine() {
        let stderr = "/s/x/tree/src/index.js:1:1: ERROR: Expected \";\"";
        let Job::Failed(problem) = judge_job(&exited(Some(1), "", stderr), &[Path::new("/s/x/tree")]) else {
            panic!("not a failure")
        };
        assert_eq!(problem.code, ProblemCode::PublishFailed);
        assert!(problem.detail.ends_with("src/index.js:1:1: ERROR: Expected \";\""), "{}", problem.detail);
        assert!(!problem.detail.contains("/s/x"));
    }
}

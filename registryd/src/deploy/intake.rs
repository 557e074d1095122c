//! What happens to a deploy before anything is published: the checks ahead of its body, its record, its early end.

use scafo_core::deploy::Metadata;
use scafo_core::hex::is_lower_hex;
use scafo_core::record::{ApplicationRecord, Artifact, DeployRecord, DeployState, Rest, Source, V1};
use scafo_core::{ApplicationName, DeployId, Problem, ProblemCode, Timestamp, text};

use super::admission::{admit, not_frozen, takes_deploys};
use super::{judge, versions};
use crate::daemon::Core;
use crate::node::wake::Look;
use crate::registry::Intent;

/// Longest detail of a failure that a caller may put on a record, in bytes.
const DETAIL_BYTES: usize = 4096;
/// Longest name of who deploys, in bytes: an operator id or a workload's subject.
const BY_BYTES: usize = 1024;

/// What stands before a deploy's body is read.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// Whether the application is new.
    pub(crate) created: bool,
    /// When it was made.
    pub(crate) application_since: Timestamp,
}

/// Freeze, then application, then versions, in this order; the application is created when it is new. Safe to repeat.
///
/// # Errors
/// `deploys-frozen`, `application-blocked`, `reference-held` while it is being deleted, `version-skew`, store errors.
pub(crate) async fn prepare(core: &Core, name: &ApplicationName, metadata: &Metadata) -> Result<Prepared, Problem> {
    not_frozen(core).await?;
    let application = core.registry.create_application(name).await?;
    let created = application.written;
    let application_since = application.stored.record.created_at;
    takes_deploys(&application.stored.record)?;
    let moved = intend(core, application.stored.record, metadata).await?;
    if created || moved {
        core.wake.look(Look::Applications);
    }
    if let Some(ours) = versions::current(core).as_deref() {
        // Versions can only be compared once there has been a look at the nodes.
        let mut worlds = core.worlds.subscribe();
        let world = worlds.wait_for(|world| world.is_seen()).await;
        let world = world.map_err(|_| Problem::new(ProblemCode::Draining, "this node is stopping"))?.clone();
        let living = world.nodes.values().filter(|node| node.live).map(|node| &*node.record);
        versions::check(name, &core.settings.node.id, ours, living)?;
    }
    Ok(Prepared { created, application_since })
}

/// Takes over what the deploy asks for. What it does not mention stays.
async fn intend(core: &Core, application: ApplicationRecord, metadata: &Metadata) -> Result<bool, Problem> {
    let replicas = metadata.replicas.or(application.replicas);
    let selector = metadata.node_selector.clone().or_else(|| application.node_selector.clone());
    if replicas == application.replicas && selector == application.node_selector {
        return Ok(false);
    }
    let mutate = |application: &mut ApplicationRecord| {
        takes_deploys(application)?;
        if metadata.replicas.is_some() {
            application.replicas = metadata.replicas;
        }
        if metadata.node_selector.is_some() {
            application.node_selector.clone_from(&metadata.node_selector);
        }
        Ok(())
    };
    let intent = Intent::new().or_overtaken();
    core.registry.update_application(&intent, &application.name, mutate).await.map(|changed| changed.written)
}

/// A deploy to take on.
#[derive(Debug)]
pub(crate) struct Accept {
    pub(crate) id: DeployId,
    pub(crate) by: String,
    pub(crate) source: Option<Source>,
    pub(crate) oidc: Option<serde_json::Value>,
    pub(crate) sha256: String,
    pub(crate) bytes: u64,
    /// Which application it was prepared for; `None` for a deploy that an earlier build prepared.
    pub(crate) application_since: Option<Timestamp>,
}

/// Files the record of a deploy whose artifact is staged. The same id again answers what stands, or why it was refused.
///
/// An artifact may take minutes to arrive, in which nothing of the deploy is in the bucket. So what was checked before is
/// looked at again once the record is, see [`admit`].
///
/// # Errors
/// `invalid-input` for a digest that is none; `immutable` when the id was taken for another artifact; `reference-held` when
/// the application was deleted meanwhile; `deploys-frozen`, `application-blocked`; `resource-limit`; store errors.
pub(crate) async fn accept(core: &Core, accept: Accept) -> Result<DeployRecord, Problem> {
    let Accept { id, by, source, oidc, sha256, bytes, application_since } = accept;
    if !is_lower_hex(&sha256, 64) || by.is_empty() || by.len() > BY_BYTES {
        return Err(Problem::new(
            ProblemCode::InvalidInput,
            "a deploy needs who it is by and the digest of its artifact",
        ));
    }
    // Its place first: whoever is accepted after this moment comes after it, even if his record is written sooner.
    let (now, new) = core.deploys.accept(&id, || core.registry.clock().wall(), core.mono());
    let record = DeployRecord {
        v: V1,
        application: id.application(),
        id: id.clone(),
        state: DeployState::Accepted,
        node: core.settings.node.id.clone(),
        by,
        accepted_at: now,
        application_since,
        admitted: Some(false),
        moved_at: now,
        finished_at: None,
        deployment: None,
        code: None,
        detail: None,
        source,
        oidc,
        artifact: Some(Artifact { sha256, bytes }),
        celld_version: versions::current(core),
        rest: Rest::new(),
    };
    if let Err(problem) = core.deploys.note(&id, now).await {
        if new {
            core.deploys.give_up(&id);
        }
        return Err(problem);
    }
    let there = match core.registry.create_deploy(&record).await {
        Ok(there) => there.stored.record,
        Err(problem) => {
            if new {
                core.deploys.doubt(&id, core.mono());
            }
            return Err(problem);
        }
    };
    let other = there.node != record.node || there.artifact != record.artifact;
    if new && (other || there.state.is_terminal()) {
        core.deploys.give_up(&id);
    }
    core.deploys.accepted_at(&id, there.accepted_at);
    if other {
        return Err(Problem::new(ProblemCode::Immutable, "this deploy id was taken for another artifact"));
    }
    match there.state {
        // In a box: with everything that may follow, this would be the largest future of the daemon.
        DeployState::Accepted => Box::pin(admit(core, there)).await,
        // An earlier run of this call refused it and was killed before it could say so.
        DeployState::Failed if !there.is_admitted() => {
            let detail = there.detail.unwrap_or_else(|| "this deploy was refused".to_owned());
            Err(Problem::new(there.code.unwrap_or(ProblemCode::Internal), detail))
        }
        DeployState::Uploading | DeployState::Deployed | DeployState::Failed => Ok(there),
    }
}

/// Ends a deploy that cannot be published. One that has ended already stays as it is.
///
/// # Errors
/// `not-found`; store errors.
pub(crate) async fn fail(core: &Core, id: &DeployId, problem: Problem) -> Result<DeployRecord, Problem> {
    finish(core, id, Err(problem)).await
}

/// Writes the end of a deploy: `Ok` with a note for one that is served. Answers the record that stands.
pub(crate) async fn finish(
    core: &Core,
    id: &DeployId,
    end: Result<Option<String>, Problem>,
) -> Result<DeployRecord, Problem> {
    let now = core.registry.clock().wall();
    let mutate = |record: &mut DeployRecord| {
        record.moved_at = now;
        record.finished_at = Some(now);
        match &end {
            Ok(note) => {
                record.state = DeployState::Deployed;
                record.detail.clone_from(note);
            }
            Err(problem) => {
                record.state = DeployState::Failed;
                record.code = Some(problem.code);
                record.detail = Some(text::head(&problem.detail, DETAIL_BYTES).to_owned());
            }
        }
        Ok(())
    };
    let ended = match core.registry.update_deploy(&Intent::new(), id, mutate).await {
        Ok(changed) => Ok(changed.stored.record),
        Err(problem) if problem.code == ProblemCode::CasConflict => {
            let there = core.registry.deploy(id).await?.record;
            if there.state.is_terminal() { Ok(there) } else { Err(problem) }
        }
        Err(problem) => Err(problem),
    };
    match &ended {
        Ok(_) => core.deploys.give_up(id),
        // Its record may be on its way still: whoever accepts it may have lost the answer, or the patience.
        Err(problem) if problem.code == ProblemCode::NotFound => core.deploys.doubt(id, core.mono()),
        Err(_) => {}
    }
    ended
}

/// A deploy as a poll sees it: with the judgement of the moment, which is not stored here.
///
/// # Errors
/// `not-found`; store errors.
pub(crate) async fn look_up(core: &Core, id: &DeployId) -> Result<DeployRecord, Problem> {
    let mut record = core.registry.deploy(id).await?.record;
    let now = core.registry.clock().wall();
    let window = core.settings.liveness.get();
    if judge::is_silent(&record, now, window) {
        let world = core.worlds.borrow().clone();
        // Before the first look at the nodes nobody is declared gone.
        let answers = record.node == core.settings.node.id || !world.is_seen() || world.lives(&record.node);
        if let Some(problem) = judge::abandoned(&record, answers, now, window) {
            record.state = DeployState::Failed;
            record.code = Some(problem.code);
            record.detail = Some(problem.detail);
        }
    }
    Ok(record)
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// What the API asks for the deploy `random` of `shop`.
    pub(crate) fn asked(random: u64) -> Accept {
        let id = DeployId::new(&"shop".parse().unwrap(), random);
        let sha256 = "0".repeat(64);
        Accept { id, by: "op".into(), source: None, oidc: None, sha256, bytes: 1, application_since: None }
    }

    /// An accepted deploy of `shop`.
    pub(crate) async fn accepted(core: &Core, random: u64) -> DeployId {
        core.registry.create_application(&"shop".parse().unwrap()).await.unwrap();
        accept(core, asked(random)).await.unwrap().id
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use scafo_core::key;
    use scafo_core::record::Replicas;
    use scafo_store::{Fault, MemoryBucket};

    use super::testing::{accepted, asked};
    use super::*;
    use crate::daemon::testing::{core, show};

    #[tokio::test(start_paused = true)]
    async fn a_deploy_changes_only_the_intent_that_it_mentions() {
        let core = core("a", MemoryBucket::new());
        let name: ApplicationName = "shop".parse().unwrap();
        let metadata = |text: &str| serde_json::from_str::<Metadata>(text).unwrap();
        let created = async |text: &str| prepare(&core, &name, &metadata(text)).await.unwrap().created;
        assert!(created(r#"{"replicas":3,"nodeSelector":{"region":"eu"}}"#).await);
        assert!(!created(r#"{"replicas":2}"#).await);
        assert!(!created("{}").await);
        let record = core.registry.application(&name).await.unwrap().unwrap().record;
        let selector = record.node_selector.unwrap();
        assert_eq!(record.replicas.map(|replicas| serde_json::to_string(&replicas).unwrap()).as_deref(), Some("2"));
        assert_eq!(selector.get("region").map(String::as_str), Some("eu"));
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_deploy_asks_for_is_not_made_again_over_what_was_decided_since() {
        let memory = MemoryBucket::new();
        let (own, name): (_, ApplicationName) = (memory.sibling(), "shop".parse().unwrap());
        let others = core("b", memory.sibling()).registry.under("theirs");
        let application = others.create_application(&name).await.unwrap().stored.record;
        // It lands without an answer, and is sent again.
        let lost = [Fault::LoseAnswer, Fault::LoseRequest, Fault::LoseRequest, Fault::LoseRequest];
        own.fail_next_puts(&key::application(&name), lost);
        let core = core("a", own);
        let replicas = async || others.application(&name).await.unwrap().unwrap().record.replicas;
        let decided = async {
            while replicas().await.is_none() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            others.set_replicas(&name, Replicas::All).await.unwrap();
        };
        let metadata = serde_json::from_str(r#"{"replicas":2}"#).unwrap();
        let (moved, ()) = tokio::join!(intend(&core, application, &metadata), decided);
        assert!(moved.unwrap());
        assert_eq!(replicas().await, Some(Replicas::All));
    }

    #[tokio::test(start_paused = true)]
    async fn a_finished_deploy_keeps_its_first_end_and_its_text_is_bounded() {
        let core = core("a", MemoryBucket::new());
        let id = accepted(&core, 1).await;
        let ended = fail(&core, &id, Problem::new(ProblemCode::InvalidInput, "ä".repeat(9000))).await.unwrap();
        assert!(ended.detail.as_ref().unwrap().len() <= DETAIL_BYTES);
        let again = fail(&core, &id, Problem::new(ProblemCode::Internal, "later")).await.unwrap();
        assert_eq!((again.code, again.detail), (ended.code, ended.detail));
        let bad = Accept { sha256: "x".into(), ..asked(1) };
        assert_eq!(accept(&core, bad).await.unwrap_err().code, ProblemCode::InvalidInput);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_deploy_is_judged_at_read_time_and_nothing_is_written() {
        let memory = MemoryBucket::new();
        let accepting = core("b", memory.sibling());
        let asked = core("a", memory.sibling());
        let id = accepted(&accepting, 1).await;
        for (answers, passed, state) in [
            (false, 0, DeployState::Accepted),
            (false, 90, DeployState::Accepted),
            (true, 1, DeployState::Accepted),
            (false, 0, DeployState::Failed),
        ] {
            tokio::time::advance(Duration::from_secs(passed)).await;
            show(&asked, &[], &[], &[("b", answers)]);
            let judged = look_up(&asked, &id).await.unwrap();
            assert_eq!(judged.state, state, "{answers} {passed}");
            let failed = state == DeployState::Failed;
            assert_eq!(judged.code == Some(ProblemCode::DeployTimeout), failed);
            assert_eq!(judged.detail.is_some_and(|detail| detail.contains("`b`")), failed);
        }
        let stored = asked.registry.deploy(&id).await.unwrap().record;
        assert_eq!((stored.state, stored.code), (DeployState::Accepted, None));
    }
}

//! Whether a deploy may go ahead, asked twice: before its artifact is taken, and once its record stands.
//!
//! Kept true: nobody is told of a deploy, and nothing of it is published, before the second look has gone through and is noted on
//! the record. Whoever deletes the application, freezes deploys or prunes after the record was written finds the record; whoever
//! did before is found by the look. A daemon that dies between the two leaves a record without the note, and whoever takes that
//! up, the same call again or the publication, has the look first.

use scafo_core::record::{ApplicationRecord, DeployRecord};
use scafo_core::{Problem, ProblemCode};

use super::intake::finish;
use crate::daemon::Core;
use crate::registry::Intent;

/// Refuses while deploys are frozen.
///
/// # Errors
/// `deploys-frozen`; store errors.
pub(super) async fn not_frozen(core: &Core) -> Result<(), Problem> {
    let Some(freeze) = core.registry.frozen().await? else { return Ok(()) };
    let freeze = freeze.record;
    let why = freeze.reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    let detail =
        format!("deploys are frozen since {} by {}{why}; `scafo fleet unfreeze` lifts it", freeze.frozen_at, freeze.by);
    Err(Problem::new(ProblemCode::DeploysFrozen, detail))
}

/// Refuses for an application that takes no deploys.
///
/// # Errors
/// `reference-held` while it is being deleted; `application-blocked`.
pub(super) fn takes_deploys(application: &ApplicationRecord) -> Result<(), Problem> {
    let name = &application.name;
    if application.deleting == Some(true) {
        return Err(Problem::new(
            ProblemCode::ReferenceHeld,
            format!("`{name}` is being deleted; deploy again once that is done"),
        ));
    }
    if application.blocked {
        return Err(Problem::new(
            ProblemCode::ApplicationBlocked,
            format!("an admin has blocked `{name}`; it takes no deploys until it is unblocked"),
        ));
    }
    Ok(())
}

/// The second look at a deploy whose record stands and is in its first state. Ends one whose application is not there any more,
/// and one that was not admitted yet and that a freeze or a block forbids by now; what was admitted before goes on. Answers the
/// record that stands. Safe to repeat.
///
/// # Errors
/// `reference-held`, `deploys-frozen`, `application-blocked`, each after the record was ended; store errors.
pub(super) async fn admit(core: &Core, deploy: DeployRecord) -> Result<DeployRecord, Problem> {
    let (name, id, new) = (&deploy.application, &deploy.id, !deploy.is_admitted());
    let application = core.registry.application(name).await?.map(|stored| stored.record);
    let same = application.filter(|there| deploy.application_since.is_none_or(|since| there.created_at == since));
    let refused = match &same {
        None => Some(Problem::new(
            ProblemCode::ReferenceHeld,
            format!("`{name}` was deleted while the artifact arrived; deploy again to make it anew"),
        )),
        Some(application) => match takes_deploys(application) {
            Err(refused) if new || refused.code == ProblemCode::ReferenceHeld => Some(refused),
            Ok(()) if new => not_frozen(core).await.err(),
            Ok(()) | Err(_) => None,
        },
    };
    let Some(refused) = refused else { return if new { note(core, deploy).await } else { Ok(deploy) } };
    match finish(core, id, Err(refused.clone())).await {
        // The deletion of the application has just taken it.
        Err(problem) if problem.code == ProblemCode::NotFound => {}
        ended => drop(ended?),
    }
    if same.is_none() || (new && refused.code == ProblemCode::ReferenceHeld) {
        // Nothing of the old application is left to one of its name, and its deletion may have looked here already.
        core.registry.forget_deploy(id).await?;
    }
    Err(refused)
}

/// From here on the deploy goes on whatever is forbidden later.
async fn note(core: &Core, deploy: DeployRecord) -> Result<DeployRecord, Problem> {
    let mutate = |record: &mut DeployRecord| {
        record.admitted = Some(true);
        Ok(())
    };
    match core.registry.update_deploy(&Intent::new(), &deploy.id, mutate).await {
        Ok(changed) => Ok(changed.stored.record),
        // Somebody has ended it meanwhile.
        Err(problem) if problem.code == ProblemCode::CasConflict => {
            let there = core.registry.deploy(&deploy.id).await?.record;
            if there.state.is_terminal() { Ok(there) } else { Err(problem) }
        }
        Err(problem) => Err(problem),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use scafo_core::deploy::Metadata;
    use scafo_core::record::DeployState;
    use scafo_core::{ApplicationName, Timestamp};
    use scafo_store::{Fault, MemoryBucket};
    use tokio::sync::Notify;

    use super::super::intake::testing::{accepted, asked};
    use super::super::intake::{Accept, accept, prepare};
    use super::*;
    use crate::daemon::testing::core;

    #[tokio::test(start_paused = true)]
    async fn an_artifact_that_arrives_after_its_application_was_deleted_is_no_deploy_of_the_next_one() {
        let core = core("a", MemoryBucket::new());
        let registry = &core.registry;
        let name: ApplicationName = "shop".parse().unwrap();
        let since = prepare(&core, &name, &Metadata::default()).await.unwrap().application_since;
        let arrives = async |random| accept(&core, Accept { application_since: Some(since), ..asked(random) }).await;
        let key = scafo_core::key::application(&name);
        registry.engine().delete(&Intent::new(), &key).await.unwrap();
        assert_eq!(arrives(1).await.unwrap_err().code, ProblemCode::ReferenceHeld);
        tokio::time::advance(Duration::from_secs(1)).await;
        registry.create_application(&name).await.unwrap();
        assert_eq!(arrives(2).await.unwrap_err().code, ProblemCode::ReferenceHeld);
        assert_eq!(registry.deploys(&name).await.unwrap(), [], "the new one inherits nothing");
        accept(&core, asked(3)).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_forbidden_while_an_artifact_arrives_refuses_it_and_what_was_accepted_before_goes_on() {
        let core = core("a", MemoryBucket::new());
        let registry = &core.registry;
        let before = accepted(&core, 1).await;
        registry.freeze("op", None).await.unwrap();
        assert_eq!(accept(&core, asked(2)).await.unwrap_err().code, ProblemCode::DeploysFrozen);
        assert_eq!(accept(&core, asked(1)).await.unwrap().id, before);
        registry.unfreeze().await.unwrap();
        let name = before.application();
        registry.set_blocked(&name, true).await.unwrap();
        assert_eq!(accept(&core, asked(3)).await.unwrap_err().code, ProblemCode::ApplicationBlocked);
        assert_eq!(accept(&core, asked(1)).await.unwrap().state, DeployState::Accepted);
        let states: Vec<_> = registry.deploys(&name).await.unwrap().into_iter().map(|deploy| deploy.state).collect();
        assert_eq!(states, [DeployState::Accepted, DeployState::Failed, DeployState::Failed], "prune finds none open");
    }

    /// What may forbid a deploy while the daemon that filed it is away.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Forbids {
        Freeze,
        Block,
        Deletion,
        AnotherOfThatName,
    }

    impl Forbids {
        async fn happen(self, core: &Core) {
            let (registry, name) = (&core.registry, "shop".parse().unwrap());
            match self {
                Self::Freeze => drop(registry.freeze("op", None).await.unwrap()),
                Self::Block => drop(registry.set_blocked(&name, true).await.unwrap()),
                Self::Deletion => {
                    let mutate = |application: &mut ApplicationRecord| {
                        application.deleting = Some(true);
                        Ok(())
                    };
                    registry.update_application(&Intent::new(), &name, mutate).await.unwrap();
                }
                Self::AnotherOfThatName => {
                    let key = scafo_core::key::application(&name);
                    registry.engine().delete(&Intent::new(), &key).await.unwrap();
                    tokio::time::advance(Duration::from_secs(1)).await;
                    registry.create_application(&name).await.unwrap();
                }
            }
        }

        const fn code(self) -> ProblemCode {
            match self {
                Self::Freeze => ProblemCode::DeploysFrozen,
                Self::Block => ProblemCode::ApplicationBlocked,
                Self::Deletion | Self::AnotherOfThatName => ProblemCode::ReferenceHeld,
            }
        }
    }

    /// Lets a daemon take a deploy of an application that was made at `since`, and kills it at its request number `at`. Answers
    /// whether the call ended before.
    async fn killed_at(at: u64, fault: Fault, memory: &MemoryBucket, since: Timestamp) -> bool {
        let own = memory.sibling();
        let (kill, killed) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let (trigger, reached) = (Arc::clone(&kill), Arc::clone(&killed));
        let mut requests = 0;
        own.plan(move |_| {
            requests += 1;
            (requests == at).then(|| {
                reached.store(true, Ordering::Relaxed);
                trigger.notify_one();
                fault
            })
        });
        let core = core("a", own);
        tokio::select! {
            biased;
            () = kill.notified() => {}
            taken = accept(&core, Accept { application_since: Some(since), ..asked(1) }) => drop(taken),
        }
        !killed.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn a_crash_between_a_deploys_record_and_the_second_look_leaves_the_look_to_who_takes_it_up() {
        for forbids in [Forbids::Freeze, Forbids::Block, Forbids::Deletion, Forbids::AnotherOfThatName] {
            for (fault, repeated) in [
                (Fault::LoseRequest, true),
                (Fault::LoseAnswer, true),
                (Fault::LoseRequest, false),
                (Fault::LoseAnswer, false),
            ] {
                let mut filed = 0;
                for at in 1..100 {
                    let memory = MemoryBucket::new();
                    let before = core("a", memory.sibling());
                    let name: ApplicationName = "shop".parse().unwrap();
                    let since = prepare(&before, &name, &Metadata::default()).await.unwrap().application_since;
                    let ended = killed_at(at, fault, &memory, since).await;
                    let id = asked(1).id;
                    let there = before.registry.deploy(&id).await.ok().map(|stored| stored.record);
                    let admitted = there.as_ref().is_some_and(DeployRecord::is_admitted);
                    filed += u32::from(there.is_some() && !admitted);
                    forbids.happen(&before).await;
                    let next = core("a", memory.sibling());
                    let outcome = if repeated {
                        accept(&next, Accept { application_since: Some(since), ..asked(1) }).await
                    } else if let Some(there) = there {
                        // What the publication does first.
                        if there.is_admitted() { Ok(there) } else { admit(&next, there).await }
                    } else {
                        Err(Problem::new(forbids.code(), "nothing is there to be published"))
                    };
                    let at = format!("{forbids:?}, {fault:?} at request {at}, repeated: {repeated}");
                    if admitted && matches!(forbids, Forbids::Freeze | Forbids::Block) {
                        assert!(outcome.is_ok(), "{at}: {outcome:?}");
                    } else if !admitted || repeated {
                        assert_eq!(outcome.err().map(|problem| problem.code), Some(forbids.code()), "{at}");
                        let open = next.registry.deploys(&name).await.unwrap();
                        assert!(open.iter().all(|deploy| deploy.state.is_terminal()), "{at}: {open:?}");
                    }
                    if ended {
                        break;
                    }
                }
                assert!(filed > 1, "it was killed between its record and the note");
            }
        }
    }
}

//! Sweeps up while this node coordinates: stores the judgement on deploys that nobody carries out any more, removes the
//! records of those that finished a week ago, and claims and placements whose application does not exist.

use std::sync::Arc;
use std::time::Duration;

use scafo_core::record::{DeployRecord, DeployState, DomainClaim};
use scafo_core::view::RecordFault;
use scafo_core::{ApplicationName, Problem, key};
use scafo_store::{ListRequest, Pages};

use super::{Lead, retention};
use crate::daemon::{Core, Fatal};
use crate::deploy::judge::{abandoned, expired};
use crate::registry::{Cache, Intent, Kind, Mono, Read};

/// Time between two sweeps. Each takes one page of each of two listings, whatever the fleet holds: of 10,000 claims a round takes
/// ten minutes, and nobody waits for what is swept up.
const SWEEP: Duration = Duration::from_mins(1);
/// Time between two looks at what is kept for days. They list much more, and a quarter of an hour more is nothing to a day.
const RETENTION: Duration = Duration::from_mins(15);
/// The look at deployments comes less often where it takes more pages than two: for each of them this long.
const RETENTION_PAGE: Duration = Duration::from_mins(6);

/// Sweeps until the daemon ends.
pub(crate) async fn reap(core: Arc<Core>) -> Fatal {
    let mut deploys: Round<DeployRecord> = Round::default();
    let mut claims: Round<DomainClaim> = Round::default();
    let mut old = Old::new(&core);
    loop {
        core.registry.clock().sleep(SWEEP).await;
        let Some(lead) = leads(&core) else {
            (deploys.pages, claims.pages) = (Pages::default(), Pages::default());
            old.put_off(&core);
            continue;
        };
        if let Err(problem) = sweep(&core, &lead, &mut deploys).await {
            tracing::warn!(?problem, "a sweep did not go through; the next one goes on");
        }
        if let Err(problem) = orphans(&core, &lead, &mut claims).await {
            tracing::warn!(?problem, "a sweep of orphans did not go through; the next one goes on");
        }
        let bad = deploys.cache.bad().chain(claims.cache.bad());
        let bad = bad.map(|(key, problem)| RecordFault { key: key.to_owned(), error: problem.detail }).collect();
        core.lease.send_if_modified(|view| {
            let news = view.swept != bad;
            view.swept = bad;
            news
        });
        old.sweep(&core).await;
    }
}

/// The sweeps of what is kept for days: when they are due, and how far the one over the nodes is.
struct Old {
    deployments: Mono,
    observations: Mono,
    done: Option<String>,
}

impl Old {
    fn new(core: &Core) -> Self {
        let mut old = Self { deployments: core.mono(), observations: core.mono(), done: None };
        old.put_off(core);
        old
    }

    /// Not right after a take-over: coordinators that fail one after the other must not each begin with the largest listings.
    fn put_off(&mut self, core: &Core) {
        self.deployments = core.mono().after(jittered(core, RETENTION));
        self.observations = core.mono().after(jittered(core, RETENTION));
    }

    async fn sweep(&mut self, core: &Core) {
        if self.deployments <= core.mono()
            && let Some(lead) = leads(core)
        {
            let world = core.worlds.borrow().clone();
            let pages = retention::deployments(core, &lead, &world).await.unwrap_or_else(|problem| {
                tracing::warn!(?problem, "a sweep of old deployments did not go through; the next one goes on");
                1
            });
            let pause = RETENTION.max(RETENTION_PAGE.saturating_mul(pages));
            self.deployments = core.mono().after(jittered(core, pause));
        }
        if self.observations <= core.mono()
            && let Some(lead) = leads(core)
        {
            if let Err(problem) = retention::observations(core, &lead, &mut self.done).await {
                tracing::warn!(?problem, "a sweep of old observations did not go through; the next one goes on");
            }
            self.observations = core.mono().after(jittered(core, RETENTION));
        }
    }
}

/// The records of one kind, listed one page a sweep.
struct Round<T> {
    pages: Pages,
    cache: Cache<T>,
}

impl<T: Kind> Default for Round<T> {
    fn default() -> Self {
        Self { pages: Pages::default(), cache: Cache::default() }
    }
}

impl<T: Kind> Round<T> {
    /// Takes a page. Answers the records when that was the last one of a listing.
    async fn advance(&mut self, core: &Core) -> Result<Option<&Cache<T>>, Problem> {
        let engine = core.registry.engine();
        let Some(listing) = self.pages.next(&**engine.bucket(), ListRequest::of(T::PREFIX)).await? else {
            return Ok(None);
        };
        self.cache.refresh_from(engine, listing, Read::Moved).await?;
        Ok(Some(&self.cache))
    }
}

fn leads(core: &Core) -> Option<Lead> {
    let lead = core.lease.borrow().lead.clone();
    lead.filter(|lead| core.mono() < lead.lapses)
}

/// Up to a quarter less.
fn jittered(core: &Core, duration: Duration) -> Duration {
    duration.mul_f64(1.0 - f64::from(core.registry.clock().random()) / f64::from(u32::MAX) / 4.0)
}

/// Removes what a deletion that met a claim or a pass half way has left. What this node's last look did not show is looked up
/// before anything is removed.
async fn orphans(core: &Core, lead: &Lead, claims: &mut Round<DomainClaim>) -> Result<(), Problem> {
    let claims = claims.advance(core).await?;
    let world = core.worlds.borrow().clone();
    let known =
        |name: &ApplicationName| world.shown.applications.contains_key(name) || world.shown.unreadable.contains(name);
    for claim in claims.into_iter().flat_map(Cache::iter).filter(|claim| !known(&claim.record.application)) {
        if core.registry.remove_orphaned_claim(claim).await? {
            tracing::info!(host = %claim.record.host, "a claim without an application is removed");
        }
    }
    let intent = Intent::new().under(lead.authority.clone());
    for name in world.shown.placements.keys().filter(|name| !known(name)) {
        if core.registry.remove_orphaned_placement(&intent, name).await? {
            tracing::info!(application = %name, "a placement without an application is removed");
        }
    }
    Ok(())
}

async fn sweep(core: &Core, lead: &Lead, deploys: &mut Round<DeployRecord>) -> Result<(), Problem> {
    let Some(deploys) = deploys.advance(core).await? else { return Ok(()) };
    let now = core.registry.clock().wall();
    let window = core.settings.liveness.get();
    let world = core.worlds.borrow().clone();
    for stored in deploys.iter() {
        let record = &stored.record;
        let intent = Intent::new().under(lead.authority.clone());
        if expired(record, now) {
            core.registry.engine().delete(&intent, &key::deploy(&record.id)).await?;
        } else if let Some(problem) = abandoned(record, world.lives(&record.node), now, window) {
            tracing::info!(deploy = %record.id, node = %record.node, "a deploy was abandoned");
            let store = |deploy: &mut DeployRecord| {
                // It may have moved since it was listed.
                let still = abandoned(deploy, false, now, window).is_some();
                if still {
                    deploy.state = DeployState::Failed;
                    deploy.code = Some(problem.code);
                    deploy.detail = Some(problem.detail.clone());
                    deploy.moved_at = now;
                    deploy.finished_at = Some(now);
                }
                Ok(())
            };
            // Finished in the meantime is as good.
            if let Err(problem) = core.registry.update_deploy(&intent, &record.id, store).await {
                tracing::debug!(deploy = %record.id, ?problem, "the judgement was not stored");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use scafo_core::NodeId;
    use scafo_core::problem::ProblemCode;
    use scafo_core::record::Fence;
    use scafo_store::MemoryBucket;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::daemon::testing::{core, show};
    use crate::deploy::intake::testing::accepted;
    use crate::deploy::intake::{finish, look_up};

    #[tokio::test(start_paused = true)]
    async fn the_sweep_stores_what_a_poll_says_and_forgets_after_a_week() {
        let memory = MemoryBucket::new();
        let (gone, core) = (core("gone", memory.sibling()), core("a", memory.sibling()));
        let (left, done) = (accepted(&gone, 1).await, accepted(&gone, 2).await);
        finish(&gone, &done, Ok(None)).await.unwrap();
        let lead =
            Lead { fence: Fence(1), lapses: core.mono().after(SWEEP * 100_000), authority: CancellationToken::new() };
        let mut deploys = Round::default();
        show(&core, &[], &[], &[("a", true), ("gone", true)]);
        tokio::time::advance(Duration::from_secs(91)).await;
        sweep(&core, &lead, &mut deploys).await.unwrap();
        assert_eq!(look_up(&core, &left).await.unwrap().state, DeployState::Accepted, "its node answers");
        show(&core, &[], &[], &[("a", true)]);
        let polled = look_up(&core, &left).await.unwrap();
        let node: NodeId = "gone".parse().unwrap();
        assert_eq!((polled.code, &polled.node), (Some(ProblemCode::DeployTimeout), &node));
        assert_eq!(
            core.registry.deploy(&left).await.unwrap().record.state,
            DeployState::Accepted,
            "a poll writes nothing"
        );
        sweep(&core, &lead, &mut deploys).await.unwrap();
        let stored = core.registry.deploy(&left).await.unwrap().record;
        assert_eq!((stored.state, stored.code, stored.detail), (polled.state, polled.code, polled.detail));
        tokio::time::advance(Duration::from_hours(7 * 24 + 1)).await;
        sweep(&core, &lead, &mut deploys).await.unwrap();
        for id in [left, done] {
            assert_eq!(look_up(&core, &id).await.unwrap_err().code, ProblemCode::NotFound);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_sweep_takes_one_page_whatever_there_is() {
        let memory = MemoryBucket::new();
        memory.set_page_keys(4);
        let (gone, core) = (core("gone", memory.sibling()), core("a", memory.sibling()));
        let mut left = Vec::new();
        for random in 0..10 {
            left.push(accepted(&gone, random).await);
        }
        let lead =
            Lead { fence: Fence(1), lapses: core.mono().after(SWEEP * 100), authority: CancellationToken::new() };
        show(&core, &[], &[], &[("a", true)]);
        tokio::time::advance(Duration::from_secs(91)).await;
        let mut deploys = Round::default();
        for page in 1..=2 {
            let before = core.registry.requests();
            sweep(&core, &lead, &mut deploys).await.unwrap();
            assert_eq!(core.registry.requests() - before, 1, "page {page} of 3");
        }
        sweep(&core, &lead, &mut deploys).await.unwrap();
        for id in &left {
            assert_eq!(core.registry.deploy(id).await.unwrap().record.state, DeployState::Failed, "{id}");
        }
    }
}

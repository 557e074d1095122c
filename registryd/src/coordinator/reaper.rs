//! Sweeps up while this node coordinates: stores the judgement on deploys that nobody carries out any more, removes the
//! records of those that finished a week ago, claims and placements whose application does not exist, and claims that their
//! application does not list.

use std::sync::Arc;
use std::time::Duration;

use scafo_core::domain::Host;
use scafo_core::record::{DeployRecord, DeployState, DomainClaim};
use scafo_core::{ApplicationName, Problem, ProblemCode, Timestamp, key};

use super::retention::{Pages, Turn};
use super::round::{Round, Row};
use super::{Lead, retention};
use crate::daemon::{Core, Fatal};
use crate::deploy::judge::{self, abandoned, expired};
use crate::registry::{Intent, Kind, Mono, Stored};

/// Time between two sweeps. Each takes one page of each of two listings, whatever the fleet holds: of 10,000 claims a round takes
/// ten minutes, and nobody waits for what is swept up.
const SWEEP: Duration = Duration::from_mins(1);
/// Time between two looks at what is kept for days. They list much more, and a quarter of an hour more is nothing to a day.
const RETENTION: Duration = Duration::from_mins(15);
/// The look at deployments comes less often where it takes more pages than two: for each of them this long.
const RETENTION_PAGE: Duration = Duration::from_mins(6);
/// How long a claim may stand that its application does not list: many times what a call takes.
const UNLISTED: Duration = Duration::from_mins(15);
/// Records of one page that may fail before the rest of it waits for the next round: each may take half a minute.
const FAILURES_MAX: u32 = 3;

/// Of a deploy it is noted when it finished; one that did not is read in each round.
type Deploys = Round<DeployRecord, Timestamp>;
/// Of a claim it is noted whose it is: nobody's once it was released, and what stays of it is a mark that whoever claims the host next
/// takes over.
type Claims = Round<DomainClaim, Option<ApplicationName>>;

/// Sweeps until the daemon ends.
pub(crate) async fn reap(core: Arc<Core>) -> Fatal {
    let (mut deploys, mut claims) = (Deploys::default(), Claims::default());
    let mut old = Old::new(&core);
    loop {
        core.registry.clock().sleep(SWEEP).await;
        let Some(lead) = leads(&core) else {
            deploys.restart();
            claims.restart();
            old.put_off(&core);
            continue;
        };
        if let Err(problem) = sweep(&core, &lead, &mut deploys).await {
            tracing::warn!(?problem, "a sweep did not go through; the next one goes on");
        }
        if let Err(problem) = orphans(&core, &lead, &mut claims).await {
            tracing::warn!(?problem, "a sweep of orphans did not go through; the next one goes on");
        }
        let mut bad = deploys.faults();
        bad.extend(claims.faults());
        core.lease.send_if_modified(|view| {
            let news = view.swept != bad;
            view.swept = bad;
            news
        });
        old.sweep(&core).await;
    }
}

/// The sweeps of what is kept for days: when they are due, and how far each is.
struct Old {
    deployments: Mono,
    pages: Pages,
    observations: Mono,
    done: Option<String>,
}

impl Old {
    fn new(core: &Core) -> Self {
        let (deployments, observations) = (core.mono(), core.mono());
        let mut old = Self { deployments, pages: Pages::default(), observations, done: None };
        old.put_off(core);
        old
    }

    /// Not right after a take-over: coordinators that fail one after the other must not each begin with the largest listings.
    fn put_off(&mut self, core: &Core) {
        self.pages = Pages::default();
        self.deployments = core.mono().after(jittered(core, RETENTION));
        self.observations = core.mono().after(jittered(core, RETENTION));
    }

    async fn sweep(&mut self, core: &Core) {
        if self.deployments <= core.mono()
            && let Some(lead) = leads(core)
        {
            let world = core.worlds.borrow().clone();
            let swept = retention::deployments(core, &lead, &world, &mut self.pages).await;
            let pause = match swept {
                Ok(()) => RETENTION.max(RETENTION_PAGE.saturating_mul(self.pages.ended())),
                Err(problem) => {
                    tracing::warn!(?problem, "a sweep of old deployments did not go through; the next one goes on");
                    RETENTION
                }
            };
            self.deployments = core.mono().after(jittered(core, pause));
        }
        if self.observations <= core.mono()
            && let Some(lead) = leads(core)
        {
            let swept = retention::observations(core, &lead, &mut self.done).await;
            let pause = match swept {
                Ok(Turn::Over) => jittered(core, RETENTION),
                Ok(Turn::Unfinished) => SWEEP,
                Err(problem) => {
                    tracing::warn!(?problem, "a sweep of old observations did not go through; the next one goes on");
                    jittered(core, RETENTION)
                }
            };
            self.observations = core.mono().after(pause);
        }
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
async fn orphans(core: &Core, lead: &Lead, claims: &mut Claims) -> Result<(), Problem> {
    let holder = |claim: &DomainClaim| (!claim.released).then(|| claim.application.clone());
    let rows = claims.advance(core.registry.engine(), |claim| Some(holder(claim))).await?;
    let world = core.worlds.borrow().clone();
    let known =
        |name: &ApplicationName| world.shown.applications.contains_key(name) || world.shown.unreadable.contains(name);
    let lists = |name: &ApplicationName, host: &Host| {
        world.shown.applications.get(name).is_none_or(|application| application.domains.contains(host))
    };
    let mut failures = Failures::default();
    for row in rows {
        let (holder, host) = match &row {
            Row::Read(stored) => (holder(&stored.record), Some(stored.record.host.clone())),
            Row::Noted { key, note } => (note.clone(), host_of(key)),
        };
        let Some((name, host)) = holder.zip(host) else { continue };
        if !known(&name) {
            failures.note(release(core, row).await)?;
        } else if !lists(&name, &host) {
            failures.note(withdraw(core, row).await)?;
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

async fn release(core: &Core, row: Row<DomainClaim, Option<ApplicationName>>) -> Result<(), Problem> {
    let Some(claim) = stored(core, row).await? else { return Ok(()) };
    if core.registry.remove_orphaned_claim(&claim).await? {
        tracing::info!(host = %claim.record.host, "a claim without an application is removed");
    }
    Ok(())
}

/// Takes back a claim that has stood unlisted for longer than a call that claims takes. One that is under way all the same finds
/// out, and has to be made again.
async fn withdraw(core: &Core, row: Row<DomainClaim, Option<ApplicationName>>) -> Result<(), Problem> {
    let Some(claim) = stored(core, row).await? else { return Ok(()) };
    let now = core.registry.clock().wall();
    let stood = claim.last_modified.is_some_and(|written| now.since(written) > UNLISTED);
    if stood && !claim.record.released && core.registry.withdraw_unlisted(&claim.record).await? {
        tracing::info!(host = %claim.record.host, "a claim that its application does not list is taken back");
    }
    Ok(())
}

fn host_of(claim: &str) -> Option<Host> {
    key::name_of(claim, key::prefix::DOMAINS)?.parse().ok()
}

async fn sweep(core: &Core, lead: &Lead, deploys: &mut Deploys) -> Result<(), Problem> {
    let now = core.registry.clock().wall();
    let mut failures = Failures::default();
    for row in deploys.advance(core.registry.engine(), judge::finished).await? {
        if matches!(row, Row::Noted { note, .. } if !judge::is_past(note, now)) {
            continue;
        }
        failures.note(judged(core, lead, row, now).await)?;
    }
    Ok(())
}

/// Forgets a deploy that finished long ago, and stores the judgement on one that nobody carries out.
async fn judged(core: &Core, lead: &Lead, row: Row<DeployRecord, Timestamp>, now: Timestamp) -> Result<(), Problem> {
    let Some(Stored { record, .. }) = stored(core, row).await? else { return Ok(()) };
    let window = core.settings.liveness.get();
    let intent = Intent::new().under(lead.authority.clone());
    let lives = core.worlds.borrow().lives(&record.node);
    if expired(&record, now) {
        core.registry.engine().delete(&intent, &key::deploy(&record.id)).await?;
    } else if let Some(problem) = abandoned(&record, lives, now, window) {
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
    Ok(())
}

/// The record of a row as it stands, if it is there still.
async fn stored<T: Kind, N>(core: &Core, row: Row<T, N>) -> Result<Option<Stored<T>>, Problem> {
    match row {
        Row::Read(stored) => Ok(Some(stored)),
        Row::Noted { key, .. } => core.registry.engine().load_once(&key).await,
    }
}

/// What went wrong with single records of a page: the others have their turn all the same, unless it looks like all of them.
#[derive(Default)]
struct Failures(u32);

impl Failures {
    fn note(&mut self, outcome: Result<(), Problem>) -> Result<(), Problem> {
        let Err(problem) = outcome else { return Ok(()) };
        self.0 += 1;
        if self.0 >= FAILURES_MAX || problem.code == ProblemCode::LeaseLost {
            return Err(problem);
        }
        tracing::warn!(?problem, "a record is not swept up; the next round tries it again");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use scafo_core::NodeId;
    use scafo_core::key::prefix::OBSERVE;
    use scafo_core::observation::ObservationKey;
    use scafo_core::record::{Fence, Rest, V1};
    use scafo_store::{Bucket as _, Fault, MemoryBucket};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::daemon::testing::{core, show};
    use crate::deploy::intake::testing::accepted;
    use crate::deploy::intake::{finish, look_up};
    use crate::registry::NewClaim;
    use crate::registry::testing::put_raw;

    #[tokio::test(start_paused = true)]
    async fn the_sweep_stores_what_a_poll_says_and_forgets_after_a_week() {
        let memory = MemoryBucket::new();
        let (gone, core) = (core("gone", memory.sibling()), core("a", memory.sibling()));
        let (left, done) = (accepted(&gone, 1).await, accepted(&gone, 2).await);
        finish(&gone, &done, Ok(None)).await.unwrap();
        let lead =
            Lead { fence: Fence(1), lapses: core.mono().after(SWEEP * 100_000), authority: CancellationToken::new() };
        let mut deploys = Deploys::default();
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
        let mut deploys = Deploys::default();
        for judged in [4, 8, 10] {
            sweep(&core, &lead, &mut deploys).await.unwrap();
            let mut states = Vec::new();
            for id in &left {
                states.push(core.registry.deploy(id).await.unwrap().record.state);
            }
            let failed = states.iter().filter(|state| **state == DeployState::Failed).count();
            assert_eq!(failed, judged, "of a page of four");
        }
        // Who wrote them last was this node, so each is read once more, and then a page costs its listing.
        for requests in [[5, 5, 3], [1, 1, 1]] {
            for requests in requests {
                let before = core.registry.requests();
                sweep(&core, &lead, &mut deploys).await.unwrap();
                assert_eq!(core.registry.requests() - before, requests);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_with_more_old_observations_than_a_sweep_removes_is_gone_on_with_within_minutes() {
        let memory = MemoryBucket::new();
        let core = core("a", memory.sibling());
        let now = core.started;
        memory.set_now(now);
        let put = async |node: &str, count: i64| {
            for second in 0..count {
                let at = Timestamp::from_millis(now.as_millis() - 20 * 24 * 3_600_000 + second * 1000);
                let key = ObservationKey::new(node.parse().unwrap(), at, 0).unwrap();
                put_raw(&memory, &key.to_string(), "x").await;
            }
        };
        put("a", 61_000).await;
        put("b", 100).await;
        let lead =
            Lead { fence: Fence(1), lapses: core.mono().after(SWEEP * 100), authority: CancellationToken::new() };
        core.lease.send_modify(|view| view.lead = Some(lead));
        let left = |node: &str| memory.keys(&format!("{OBSERVE}{node}/")).len();
        // The one before the first, so that it begins with `a`.
        let mut old = Old { done: Some(format!("{OBSERVE}b/")), ..Old::new(&core) };
        let mut minute = async || {
            tokio::time::advance(SWEEP).await;
            old.sweep(&core).await;
        };
        let mut waited = 0;
        while left("a") == 61_000 && waited < 15 {
            minute().await;
            waited += 1;
        }
        for more in [21_000, 1_000, 0] {
            assert_eq!(left("b"), 100, "its turn is the next");
            minute().await;
            assert_eq!(left("a"), more, "a minute later");
        }
        for _ in 0..15 {
            minute().await;
        }
        assert_eq!(left("b"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_without_an_application_goes_and_what_cannot_be_read_is_named_until_it_can() {
        let memory = MemoryBucket::new();
        memory.set_page_keys(2);
        let core = core("a", memory.sibling());
        let shop: ApplicationName = "shop".parse().unwrap();
        core.registry.create_application(&shop).await.unwrap();
        for host in ["a.example", "b.example", "c.example"] {
            let (application, host) = (shop.clone(), host.parse().unwrap());
            let claim = NewClaim { application, host, wildcard: false, by: "op".to_owned(), names: None };
            core.registry.claim_domain(&claim, &[]).await.unwrap();
        }
        put_raw(&memory, "_scafo/domains/bad.example.json", "unreadable").await;
        let lead =
            Lead { fence: Fence(1), lapses: core.mono().after(SWEEP * 100), authority: CancellationToken::new() };
        let application = core.registry.application(&shop).await.unwrap().unwrap().record;
        show(&core, &[application], &[], &[("a", true)]);
        let mut claims = Claims::default();
        for _ in 0..4 {
            orphans(&core, &lead, &mut claims).await.unwrap();
        }
        assert_eq!(memory.keys("_scafo/domains/").len(), 4);
        let bad: Vec<String> = claims.faults().into_iter().map(|fault| fault.key).collect();
        assert_eq!(bad, ["_scafo/domains/bad.example.json"]);
        show(&core, &[], &[], &[("a", true)]);
        for _ in 0..2 {
            orphans(&core, &lead, &mut claims).await.unwrap();
        }
        assert_eq!(memory.keys("_scafo/domains/").len(), 4, "its record stands, whatever was shown");
        core.registry.engine().delete(&Intent::new(), &key::application(&shop)).await.unwrap();
        memory.delete("_scafo/domains/bad.example.json").await.unwrap();
        for _ in 0..4 {
            orphans(&core, &lead, &mut claims).await.unwrap();
        }
        assert_eq!(memory.keys("_scafo/domains/"), Vec::<String>::new());
        assert_eq!(claims.faults().len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_arrived_after_its_release_is_taken_back_and_a_young_one_stays() {
        let memory = MemoryBucket::new();
        let core = core("a", memory.sibling());
        memory.set_now(core.started);
        let names: [ApplicationName; 2] = ["shop", "other"].map(|name| name.parse().unwrap());
        for name in &names {
            core.registry.create_application(name).await.unwrap();
        }
        let claim = |name: &ApplicationName, host: &str| {
            let (application, host) = (name.clone(), host.parse().unwrap());
            NewClaim { application, host, wildcard: false, by: "op".to_owned(), names: None }
        };
        // The first try of the claim is held back; another one makes it.
        let late = memory.sibling();
        late.fail_next_puts("_scafo/domains/late.example.json", [Fault::HoldBack]);
        let claimant = crate::daemon::testing::core("b", late);
        let (listed, released) = (claim(&names[0], "listed.example"), claim(&names[0], "late.example"));
        claimant.registry.claim_domain(&released, &[]).await.unwrap();
        claimant.registry.release_domain(&names[0], &released.host, &[]).await.unwrap();
        claimant.registry.claim_domain(&listed, &[]).await.unwrap();
        assert_eq!(memory.release_held(), 1);
        assert!(core.registry.claim(&released.host).await.unwrap().is_some(), "nobody lists it");
        let application = core.registry.application(&names[0]).await.unwrap().unwrap().record;
        show(&core, &[application], &[], &[("a", true)]);
        let lead =
            Lead { fence: Fence(1), lapses: core.mono().after(SWEEP * 100), authority: CancellationToken::new() };
        let mut claims = Claims::default();
        for (stood, stands) in [(Duration::ZERO, true), (UNLISTED / 2, true), (UNLISTED, false)] {
            tokio::time::advance(stood).await;
            orphans(&core, &lead, &mut claims).await.unwrap();
            assert_eq!(core.registry.claim(&released.host).await.unwrap().is_some(), stands);
            assert!(core.registry.claim(&listed.host).await.unwrap().is_some());
        }
        core.registry.claim_domain(&claim(&names[1], "late.example"), &[]).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_at_rest_reads_neither_marks_nor_what_cannot_be_read() {
        let memory = MemoryBucket::new();
        let core = core("a", memory.sibling());
        let mark = DomainClaim {
            v: V1,
            host: "mark.example".parse().unwrap(),
            application: "gone".parse().unwrap(),
            wildcard: false,
            claimed_at: core.started,
            by: "op".to_owned(),
            nonce: None,
            released: true,
            rest: Rest::new(),
        };
        put_raw(&memory, "_scafo/domains/mark.example.json", &serde_json::to_string(&mark).unwrap()).await;
        put_raw(&memory, "_scafo/domains/bad.example.json", "unreadable").await;
        let bad_deploy = key::deploy(&accepted(&core, 1).await);
        put_raw(&memory, &bad_deploy, "unreadable").await;
        let lead =
            Lead { fence: Fence(1), lapses: core.mono().after(SWEEP * 100), authority: CancellationToken::new() };
        let (mut deploys, mut claims) = (Deploys::default(), Claims::default());
        for requests in [5, 2, 2] {
            let before = core.registry.requests();
            sweep(&core, &lead, &mut deploys).await.unwrap();
            orphans(&core, &lead, &mut claims).await.unwrap();
            assert_eq!(core.registry.requests() - before, requests, "two listings, and what is new");
            let faults: Vec<String> = deploys.faults().into_iter().map(|fault| fault.key).collect();
            assert_eq!(faults, std::slice::from_ref(&bad_deploy), "named in each round");
            let faults: Vec<String> = claims.faults().into_iter().map(|fault| fault.key).collect();
            assert_eq!(faults, ["_scafo/domains/bad.example.json"]);
        }
        // One that moves is read again.
        memory.delete(&bad_deploy).await.unwrap();
        put_raw(&memory, "_scafo/domains/bad.example.json", "something else").await;
        for requests in [3, 2] {
            let before = core.registry.requests();
            sweep(&core, &lead, &mut deploys).await.unwrap();
            orphans(&core, &lead, &mut claims).await.unwrap();
            assert_eq!(core.registry.requests() - before, requests);
            assert_eq!((deploys.faults().len(), claims.faults().len()), (0, 1));
        }
    }
}

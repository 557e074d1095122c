//! Domain claims in the bucket.
//!
//! Kept true, whatever crashes or races: a host that an application lists has a standing claim of that application; a host is
//! never listed by two applications, nor covered by one and held exactly by a stranger.
//!
//! A claim is made referent-first: the application is checked, the claim is written, and only then the application lists the
//! host. Between the last two the claimant *looks again*, because claims one label apart stand under different keys and cannot
//! exclude each other: whoever sees a conflict after its own write withdraws, perhaps both. A claim that its application lists
//! is never withdrawn. Each write of a claim has a new nonce, so a call withdraws only the very body that it wrote; a call
//! that found the claim there has rewritten it first and is safe from that. A call that died in between leaves a claim that
//! nothing lists; the same call ends that when it comes again, also when it is refused.
//!
//! A claim is removed in two steps, since a store deletes without conditions and a delete may arrive late: it is marked
//! `released` by compare-and-swap, and the call that wrote the mark, and no other, then sends one delete. Nobody writes over a
//! mark before it has stood for longer than any request lives.

mod withdrawal;

use std::{collections::BTreeSet, time::Duration};

use futures_util::{StreamExt, TryStreamExt, stream};
use scafo_core::{
    ApplicationName, Problem, ProblemCode,
    domain::Host,
    key::{self, prefix},
    record::{ApplicationRecord, DomainClaim, NodeRecord, Rest, V1},
    scope::ApplicationScope,
};
use scafo_store::{ETag, Error, Walk};

#[cfg(test)]
use crate::model::seeds::{Rule, is_broken};

use self::withdrawal::Withdrawal;
use super::{Cache, Intent, Registry, Step, Stored, backoff::Backoff, claims, engine::RECORD_BYTES_MAX};

/// How long a mark must have stood, by the store's clock, before it is written over: three times the half minute that one
/// logical write may take, after which no delete of the marker can still be on its way.
const QUARANTINE: Duration = Duration::from_secs(90);
/// How long a claim waits for a release that is under way: that takes two requests.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks meanwhile.
const LOOK: Duration = Duration::from_millis(200);
/// Tries of a delete that the store certainly did not carry out.
const DELETE_TRIES: u32 = 5;
/// Reads of neighbouring claims at once, as the cache's.
const READS_AT_ONCE: usize = 16;

/// A host to claim.
#[derive(Debug, Clone)]
pub struct NewClaim {
    /// For which application.
    pub application: ApplicationName,
    /// Which host.
    pub host: Host,
    /// Whether the single label below it is claimed too.
    pub wildcard: bool,
    /// By whom.
    pub by: String,
    /// Which applications a refusal may name; `None` for none.
    pub names: Option<ApplicationScope>,
}

/// A host and the application after a claim or a release.
#[derive(Debug, Clone)]
pub struct Domain {
    /// The application as it stands.
    pub application: ApplicationRecord,
    /// The host.
    pub host: Host,
    /// Where the application answers under the platform domains, sorted.
    pub platform_hosts: Vec<String>,
}

impl Registry {
    /// Claims a host, or its subdomains too. What the application holds already stays, and is never narrowed. `own`: this
    /// node's platform domains, which its record may not show yet.
    ///
    /// # Errors
    /// `invalid-input` for a host of a platform domain and beyond [`claims::DOMAINS_MAX`] hosts; `not-found`;
    /// `application-blocked`; `reference-held` if the host, its covering base or a host below a base to cover is somebody
    /// else's, or the application is being deleted; `cas-conflict` if it was released meanwhile; `store-nonconforming` if a
    /// node's record or a claim that may stand in the way cannot be read; store errors, after which it is safe to run again.
    pub async fn claim_domain(&self, claim: &NewClaim, own: &[Host]) -> Result<Domain, Problem> {
        let platform = self.every_platform_domain(own).await?;
        let off_platform = claims::off_platform(&claim.host, &platform);
        let application = match self.present(&claim.application).await {
            Ok(application) => application,
            Err(problem) => return Err(off_platform.err().unwrap_or(problem)),
        };
        if let Err(refused) = off_platform.and_then(|()| claims::may_list(&application, &claim.host)) {
            self.withdraw_left_over(claim, &application).await?;
            return Err(refused);
        }
        if claims::lists(&application, &claim.host, claim.wildcard) && self.stands(claim).await? {
            // Whoever listed it may have died before the hint.
            self.mint_hint();
            return Ok(domain(application, &claim.host, &platform));
        }
        if let Err(refused) = self.clear(claim, claim.wildcard).await {
            if refused.code == ProblemCode::ReferenceHeld {
                self.withdraw_left_over(claim, &application).await?;
            }
            return Err(refused);
        }
        let held = self.take(claim).await?;
        let wildcard = held.record.wildcard;
        let again = self.clear(claim, wildcard).await;
        #[cfg(test)]
        let again = if is_broken(Rule::ClaimantsLookAgain) { Ok(()) } else { again };
        if let Err(refused) = again {
            let conflict = refused.code == ProblemCode::ReferenceHeld;
            if !conflict || self.withdraw(claim, &held).await? == Withdrawal::Done {
                return Err(refused);
            }
        }
        let list = |record: &mut ApplicationRecord| claims::list(record, &claim.host, wildcard);
        let application = match self.update_application(&Intent::new(), &claim.application, list).await {
            Ok(changed) => changed.stored.record,
            Err(refused) => {
                if is_refusal(&refused) {
                    self.withdraw(claim, &held).await?;
                }
                return Err(refused);
            }
        };
        self.confirm(claim, &held).await?;
        Ok(domain(application, &claim.host, &platform))
    }

    /// Releases a host: the application drops it first, then the claim goes.
    ///
    /// # Errors
    /// `not-found` in the same words whether somebody else holds the host or nobody does; `reference-held` while the
    /// application is being deleted; store errors, after which it is safe to run again.
    pub async fn release_domain(&self, name: &ApplicationName, host: &Host, own: &[Host]) -> Result<Domain, Problem> {
        let application = self.present(name).await?;
        let ours = |claim: &DomainClaim| claim.application == *name;
        // A claim that is not listed is left over from a call that died half way; this one ends what that began.
        let there = self.claim(host).await?;
        if !application.domains.contains(host) && !there.is_some_and(|stored| ours(&stored.record)) {
            let detail = format!("`{host}` is not a domain of application `{name}`");
            return Err(Problem::new(ProblemCode::NotFound, detail));
        }
        // Before anything is released: a call that fails here comes again and finds what it released.
        let platform = self.known_platform_domains(own).await?;
        self.unlist(name, host).await?;
        self.give_up(&Intent::new(), host, |stored| ours(&stored.record)).await?;
        // A claim of the same host may have listed it in between.
        let application = self.unlist(name, host).await?;
        Ok(domain(application, host, &platform))
    }

    /// Since when a release would find something of this application to release, in words that stay while it goes on; `None` when
    /// there is nothing.
    ///
    /// # Errors
    /// Store errors.
    pub async fn held_since(&self, name: &ApplicationName, host: &Host) -> Result<Option<String>, Problem> {
        let claim = self.claim(host).await?.filter(|stored| stored.record.application == *name);
        if let Some(claim) = claim {
            return Ok(Some(claim.record.claimed_at.to_string()));
        }
        let application = self.application(name).await?;
        let lists = application.is_some_and(|stored| stored.record.domains.contains(host));
        Ok(lists.then(|| "listed".to_owned()))
    }

    /// A host and an application as they stand now.
    ///
    /// # Errors
    /// `not-found`; `reference-held` while the application is being deleted; store errors.
    pub async fn domain(&self, name: &ApplicationName, host: &Host, own: &[Host]) -> Result<Domain, Problem> {
        let application = self.present(name).await?;
        Ok(domain(application, host, &self.known_platform_domains(own).await?))
    }

    /// Removes the claim of a host that an application lists which is being deleted, and which therefore lists no more of them.
    /// Answers whether it was there. A claim that a dead call left unlisted goes with the coordinator's sweep: looking for it here
    /// would take a look at every claim of the fleet.
    ///
    /// # Errors
    /// Store errors; a claim that cannot be read stays, for a person to look at.
    pub(super) async fn remove_claim(
        &self,
        intent: &Intent,
        application: &ApplicationName,
        host: &Host,
    ) -> Result<bool, Problem> {
        let ours = |stored: &Stored<DomainClaim>| stored.record.application == *application;
        match self.give_up(intent, host, ours).await {
            Err(problem) if problem.code == ProblemCode::StoreNonconforming => {
                tracing::warn!(%host, ?problem, "the claim of a deleted application cannot be read and stays");
                Ok(false)
            }
            gone => gone,
        }
    }

    /// Every platform domain of the installation, to decide by: those in all node records and `own`.
    ///
    /// # Errors
    /// `store-nonconforming` where a node's record cannot be read: a host under its domains must not become somebody's; store
    /// errors.
    async fn every_platform_domain(&self, own: &[Host]) -> Result<BTreeSet<Host>, Problem> {
        let nodes = self.every_node("which platform domains that node has is not known").await?;
        let all = nodes.iter().flat_map(|node| node.platform_domains.iter());
        Ok(all.chain(own).cloned().collect())
    }

    /// The platform domains to show where an application answers: what cannot be read, or gives no answer, is nowhere to be found
    /// either.
    ///
    /// # Errors
    /// Store errors.
    async fn known_platform_domains(&self, own: &[Host]) -> Result<BTreeSet<Host>, Problem> {
        let mut nodes: Cache<NodeRecord> = Cache::default();
        nodes.refresh_to_show(self.engine()).await?;
        let all = nodes.iter().flat_map(|stored| stored.record.platform_domains.iter());
        Ok(all.chain(own).cloned().collect())
    }

    async fn stands(&self, claim: &NewClaim) -> Result<bool, Problem> {
        let there = self.claim(&claim.host).await?;
        Ok(there.is_some_and(|Stored { record, .. }| {
            record.application == claim.application && (record.wildcard || !claim.wildcard)
        }))
    }

    /// Refuses if a claim one label apart stands in the way.
    async fn clear(&self, claim: &NewClaim, wildcard: bool) -> Result<(), Problem> {
        let neighbours = self.neighbours(&claim.host, wildcard).await?;
        match claims::conflict(&claim.application, &claim.host, wildcard, &neighbours) {
            None => Ok(()),
            Some(other) => Err(claims::held(&claim.host, &other.application, claim.names.as_ref())),
        }
    }

    /// The claim one label above, and those one label below if the host is to be covered.
    async fn neighbours(&self, host: &Host, wildcard: bool) -> Result<Vec<DomainClaim>, Problem> {
        let mut hosts: Vec<Host> = host.parent().into_iter().collect();
        if wildcard {
            let mut walk = Walk::default();
            loop {
                let page = self.engine().page(&mut walk, prefix::DOMAINS).await?;
                let all = page.entries.iter().filter_map(|listed| key::name_of(&listed.key, prefix::DOMAINS));
                let all = all.filter_map(|name| name.parse::<Host>().ok());
                hosts.extend(all.filter(|other| other.parent().as_ref() == Some(host)));
                if page.next.is_none() {
                    break;
                }
            }
        }
        let claims = stream::iter(hosts).map(|host| async move { self.claim(&host).await });
        let claims: Vec<Option<Stored<DomainClaim>>> = claims.buffer_unordered(READS_AT_ONCE).try_collect().await?;
        Ok(claims.into_iter().flatten().map(|stored| stored.record).collect())
    }

    /// Writes the claim: creates it, widens ours, or makes ours this call's own.
    async fn take(&self, claim: &NewClaim) -> Result<Stored<DomainClaim>, Problem> {
        let mut over: Option<ETag> = None;
        let fresh = DomainClaim {
            v: V1,
            host: claim.host.clone(),
            application: claim.application.clone(),
            wildcard: claim.wildcard,
            claimed_at: self.clock().wall(),
            by: claim.by.clone(),
            nonce: Some(nonce()),
            released: false,
            rest: Rest::new(),
        };
        loop {
            let mut marked = false;
            let decide = |there: Option<&Stored<DomainClaim>>| match there {
                None => Ok(Step::Write(fresh.clone())),
                Some(stored) if stored.record.released && Some(&stored.etag) == over.as_ref() => {
                    Ok(Step::Write(fresh.clone()))
                }
                Some(stored) if stored.record.released => {
                    marked = true;
                    Err(being_released(&claim.host))
                }
                Some(stored) if stored.record.application != claim.application => {
                    Err(claims::held(&claim.host, &stored.record.application, claim.names.as_ref()))
                }
                Some(Stored { record, .. }) => Ok(Step::Write(DomainClaim {
                    wildcard: record.wildcard || claim.wildcard,
                    nonce: fresh.nonce.clone(),
                    ..record.clone()
                })),
            };
            let taken = self.engine().change(&Intent::new(), &key::domain(&claim.host), None, decide).await;
            if !marked {
                return taken.map(|changed| changed.stored);
            }
            over = self.outlast(&claim.host).await?;
        }
    }

    /// Waits until a mark is gone, or answers its tag once it may be written over.
    async fn outlast(&self, host: &Host) -> Result<Option<ETag>, Problem> {
        let until = self.clock().mono().after(PATIENCE);
        loop {
            let Some(object) = self.engine().try_get(&key::domain(host), RECORD_BYTES_MAX).await? else {
                return Ok(None);
            };
            let marked = serde_json::from_slice::<DomainClaim>(&object.body).is_ok_and(|claim| claim.released);
            if !marked {
                return Ok(None);
            }
            // A store that gives no dates leaves nothing to judge by; holding the host for ever would be worse.
            let age = object.head.date.zip(object.head.last_modified).map(|(date, written)| date.since(written));
            if age.is_none_or(|age| age > QUARANTINE) {
                return Ok(Some(object.head.etag));
            }
            if self.clock().mono() >= until {
                return Err(being_released(host));
            }
            self.clock().sleep(LOOK).await;
        }
    }

    /// Marks a claim released, if it is `ours`, and removes it. Answers whether it was.
    pub(super) async fn give_up(
        &self,
        intent: &Intent,
        host: &Host,
        ours: impl Fn(&Stored<DomainClaim>) -> bool + Send + Sync,
    ) -> Result<bool, Problem> {
        let key = key::domain(host);
        let nonce = nonce();
        let decide = |there: Option<&Stored<DomainClaim>>| match there {
            Some(stored) if !stored.record.released && ours(stored) => {
                Ok(Step::Write(DomainClaim { released: true, nonce: Some(nonce.clone()), ..stored.record.clone() }))
            }
            Some(_) | None => Ok(Step::Keep),
        };
        let marked = absent_is_done(self.engine().change(intent, &key, None, decide).await)?;
        let ours = marked.is_some_and(|changed| changed.written);
        if ours {
            self.delete_marked(&key).await;
        }
        Ok(ours)
    }

    /// One delete, which must not be sent a second time: the first may still be on its way. What stays is a mark, which counts
    /// as nothing.
    async fn delete_marked(&self, key: &str) {
        let mut backoff = Backoff::default();
        for _ in 0..DELETE_TRIES {
            match self.bucket().delete(key).await {
                Ok(()) => return,
                // Certainly not carried out.
                Err(Error::Busy { .. }) => self.clock().sleep(backoff.next(self.clock().random())).await,
                Err(error) => {
                    tracing::info!(key, %error, "a released claim stays as a mark until somebody claims the host");
                    return;
                }
            }
        }
    }

    /// Makes sure, after listing, that the claim still stands and is this call's.
    async fn confirm(&self, claim: &NewClaim, held: &Stored<DomainClaim>) -> Result<(), Problem> {
        let mut lost = None;
        let touch = nonce();
        let decide = |there: Option<&Stored<DomainClaim>>| match there {
            Some(stored) if stored.etag == held.etag => Ok(Step::Keep),
            Some(Stored { record, .. }) if !record.released && record.application == claim.application => {
                if held.record.wildcard && !record.wildcard {
                    lost = Some(false);
                    return Err(released_meanwhile(&claim.host));
                }
                Ok(Step::Write(DomainClaim { nonce: Some(touch.clone()), ..record.clone() }))
            }
            Some(_) | None => {
                lost = Some(true);
                Err(released_meanwhile(&claim.host))
            }
        };
        let confirmed = self.engine().change(&Intent::new(), &key::domain(&claim.host), None, decide).await;
        match lost {
            Some(true) => self.unlist(&claim.application, &claim.host).await.map(drop)?,
            Some(false) => {
                let exact = |record: &mut ApplicationRecord| {
                    record.wildcard_domains.retain(|listed| *listed != claim.host);
                    Ok(())
                };
                self.update_application(&Intent::new(), &claim.application, exact).await?;
            }
            None => {}
        }
        confirmed.map(drop)
    }

    async fn unlist(&self, name: &ApplicationName, host: &Host) -> Result<ApplicationRecord, Problem> {
        let unlist = |record: &mut ApplicationRecord| {
            claims::unlist(record, host);
            Ok(())
        };
        Ok(self.update_application(&Intent::new(), name, unlist).await?.stored.record)
    }
}

fn domain(application: ApplicationRecord, host: &Host, platform: &BTreeSet<Host>) -> Domain {
    let platform_hosts = claims::platform_hosts(&application.name, platform);
    Domain { application, host: host.clone(), platform_hosts }
}

fn nonce() -> String {
    format!("{:016x}", rand::random::<u64>())
}

/// Whether an update was certainly refused for what the record says, so that nothing is listed.
const fn is_refusal(problem: &Problem) -> bool {
    use ProblemCode::{ApplicationBlocked, InvalidInput, NotFound, ReferenceHeld};
    matches!(problem.code, ApplicationBlocked | InvalidInput | NotFound | ReferenceHeld)
}

/// A change that keeps what is there finds nothing: somebody else removed it.
fn absent_is_done<T>(changed: Result<T, Problem>) -> Result<Option<T>, Problem> {
    match changed {
        Ok(changed) => Ok(Some(changed)),
        Err(problem) if problem.code == ProblemCode::NotFound => Ok(None),
        Err(problem) => Err(problem),
    }
}

fn being_released(host: &Host) -> Problem {
    let detail = format!("`{host}` is just being released: claim it again in two minutes");
    Problem::new(ProblemCode::CasConflict, detail)
}

fn released_meanwhile(host: &Host) -> Problem {
    let detail = format!("`{host}` was released while it was being claimed: look, then decide");
    Problem::new(ProblemCode::CasConflict, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::testing::World;

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_nobody_lists_goes_whatever_the_repeated_call_is_refused_for() {
        type Change = fn(&mut ApplicationRecord);
        let platform: Host = "apps.example".parse().unwrap();
        let full = |record: &mut ApplicationRecord| {
            record.domains = (0..claims::DOMAINS_MAX).map(|at| format!("h{at}.example").parse().unwrap()).collect();
        };
        let cases: [(&str, Change, &[Host], ProblemCode); 3] = [
            ("shop.example", |record| record.blocked = true, &[], ProblemCode::ApplicationBlocked),
            ("shop.example", full, &[], ProblemCode::InvalidInput),
            ("shop.apps.example", |_| {}, std::slice::from_ref(&platform), ProblemCode::InvalidInput),
        ];
        for (host, change, own, code) in cases {
            let world = World::new();
            let registry = &world.registry;
            let (name, other): (ApplicationName, ApplicationName) = ("shop".parse().unwrap(), "other".parse().unwrap());
            for application in [&name, &other] {
                registry.create_application(application).await.unwrap();
            }
            let (host, by) = (host.parse().unwrap(), "op".to_owned());
            let claim = NewClaim { application: name.clone(), host, wildcard: false, by, names: None };
            // The call dies here.
            registry.take(&claim).await.unwrap();
            let mutate = |record: &mut ApplicationRecord| {
                change(record);
                Ok(())
            };
            registry.update_application(&Intent::new(), &name, mutate).await.unwrap();
            assert_eq!(registry.claim_domain(&claim, own).await.unwrap_err().code, code);
            let theirs = NewClaim { application: other.clone(), ..claim.clone() };
            let made = registry.claim_domain(&theirs, &[]).await.unwrap();
            assert_eq!(made.application.domains, [claim.host]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_is_listed_stays_when_its_claim_is_repeated_and_refused() {
        let world = World::new();
        let registry = &world.registry;
        let name: ApplicationName = "shop".parse().unwrap();
        registry.create_application(&name).await.unwrap();
        let (host, by): (Host, _) = ("shop.example".parse().unwrap(), "op".to_owned());
        let claim = NewClaim { application: name.clone(), host: host.clone(), wildcard: false, by, names: None };
        registry.claim_domain(&claim, &[]).await.unwrap();
        let block = |record: &mut ApplicationRecord| {
            record.blocked = true;
            Ok(())
        };
        registry.update_application(&Intent::new(), &name, block).await.unwrap();
        let before = registry.claim(&host).await.unwrap().unwrap().record;
        for wildcard in [false, true] {
            let again = NewClaim { wildcard, ..claim.clone() };
            let refused = registry.claim_domain(&again, &[]).await.unwrap_err();
            assert_eq!(refused.code, ProblemCode::ApplicationBlocked);
        }
        assert_eq!(registry.claim(&host).await.unwrap().unwrap().record, before);
        assert_eq!(registry.application(&name).await.unwrap().unwrap().record.domains, [host]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_withdrawal_takes_nothing_that_another_call_relies_on() {
        let world = World::new();
        let registry = &world.registry;
        let name: ApplicationName = "shop".parse().unwrap();
        registry.create_application(&name).await.unwrap();
        let host: Host = "shop.example".parse().unwrap();
        let (application, by) = (name.clone(), "op".to_owned());
        let claim = NewClaim { application, host: host.clone(), wildcard: true, by, names: None };
        // Two calls of one application; the first sees a stranger's claim and, not listed yet, is about to withdraw.
        let first = registry.take(&claim).await.unwrap();
        let second = registry.take(&claim).await.unwrap();
        let list = |record: &mut ApplicationRecord| claims::list(record, &host, true);
        registry.update_application(&Intent::new(), &name, list).await.unwrap();
        registry.confirm(&claim, &second).await.unwrap();
        registry.give_up(&Intent::new(), &host, |stored| stored.etag == first.etag).await.unwrap();
        registry.narrow(&host, |stored| stored.etag == first.etag).await.unwrap();
        let stands = registry.claim(&host).await.unwrap().unwrap();
        assert!(stands.record.wildcard);
        // And by the time it looks, a listed claim never yields.
        assert_eq!(registry.withdraw(&claim, &stands).await.unwrap(), Withdrawal::Listed);
        // The other way round: what was withdrawn is not confirmed, and the application does not keep it.
        registry.give_up(&Intent::new(), &host, |stored| stored.etag == second.etag).await.unwrap();
        let refused = registry.confirm(&claim, &second).await.unwrap_err();
        assert_eq!(refused.code, ProblemCode::CasConflict);
        assert!(registry.application(&name).await.unwrap().unwrap().record.domains.is_empty());
    }
}

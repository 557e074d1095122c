//! What must be true at every moment of a history, and at its end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use scafo_core::domain::Host;
use scafo_core::key::{self, prefix};
use scafo_core::record::{
    Adoption, ApplicationRecord, CoordinatorLease, DomainClaim, Fence, IdentityReservation, NodeRecord,
    PlacementRecord, ProcessState,
};
use scafo_core::{ApplicationName, NodeId};
use scafo_store::Bucket as _;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::sim::{Sim, running};
use crate::coordinator::placement::{Candidate, Serves, Wish, ideal};
use crate::daemon::Core;

/// What a history came to: that it went well and broke no rule on its way, or everything that is known of what went wrong.
pub(super) fn judged(sim: &Sim, outcome: Result<(), String>) -> Result<(), String> {
    let violations = std::mem::take(&mut sim.ledger().violations);
    match (outcome, violations.is_empty()) {
        (Ok(()), true) => Ok(()),
        (outcome, _) => Err(format!("{outcome:?}\n{}", violations.join("\n"))),
    }
}

/// Which run of which machine.
type Run = (usize, u64);

/// What was seen so far.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) violations: Vec<String>,
    /// Who had the record of the lease under each fence. Nobody twice, until the record is lost.
    fences: BTreeMap<Fence, Run>,
    /// Who coordinated or placed under each fence. Nobody twice, ever.
    acted: BTreeMap<Fence, Run>,
    /// Every body of the lease that has landed: what an old copy of it can be.
    pub(super) leases: Vec<Bytes>,
    /// When the record of the lease was last lost or replaced by a copy.
    tampered: Option<Instant>,
    identities: BTreeMap<String, IdentityReservation>,
    /// As they landed last. None is ever deleted here.
    applications: BTreeMap<ApplicationName, ApplicationRecord>,
    stale: Vec<Stale>,
    /// Each node's record without its heartbeat, and when it was written.
    nodes: BTreeMap<String, (NodeRecord, Instant)>,
    /// Writes of a node's record that said nothing new and were no heartbeat either.
    pub(super) repeated: u64,
    /// The highest number that each writer was told was written, by application.
    pub(super) acknowledged: BTreeMap<(ApplicationName, usize), u64>,
    /// Hosts that were claimed or tried to be.
    pub(super) claimed: BTreeSet<(ApplicationName, String)>,
    /// How much happened, so that a history in which nothing does is found out.
    pub(super) placements: u64,
    pub(super) stale_landings: u64,
    pub(super) terms: u64,
}

/// A placement that landed under a fence below one that a machine had seen already.
#[derive(Debug)]
struct Stale {
    machine: usize,
    record: PlacementRecord,
    until: Instant,
}

/// The highest fence that each machine had seen when a placement was about to land.
pub(super) struct Before(Vec<Fence>);

impl Ledger {
    pub(super) fn violated(&mut self, what: String) {
        if self.violations.len() < 20 {
            self.violations.push(what);
        }
    }

    pub(super) fn before(sim: &Sim, key: &str) -> Option<Before> {
        key.starts_with(prefix::PLACEMENT).then(|| {
            let fence = |disk: &std::sync::Mutex<Option<crate::node::in_force::Kept>>| {
                disk.lock().unwrap().as_ref().map_or(Fence(0), |kept| kept.fence)
            };
            Before(sim.machines.iter().map(|machine| fence(&machine.disk)).collect())
        })
    }

    /// A write took place.
    pub(super) fn landed(sim: &Sim, run: Run, key: &str, body: &Bytes, before: Option<Before>) {
        if key == key::LEASE {
            let lease: CoordinatorLease = serde_json::from_slice(body).unwrap();
            sim.ledger().leases.push(body.clone());
            sim.ledger().lease(sim, run, &lease);
        } else if let Some(before) = before {
            let placement: PlacementRecord = serde_json::from_slice(body).unwrap();
            sim.ledger().placement(sim, &placement, &before);
        } else if key.starts_with(prefix::IDENTITIES) {
            let identity: IdentityReservation = serde_json::from_slice(body).unwrap();
            sim.ledger().identity(key, identity);
        } else if key.starts_with(prefix::NODES) {
            sim.ledger().node(key, serde_json::from_slice(body).unwrap());
        } else if key.starts_with(prefix::APPLICATIONS) {
            let application: ApplicationRecord = serde_json::from_slice(body).unwrap();
            if let Some(published) = application.deployment.clone() {
                sim.published.lock().unwrap().insert(application.name.clone(), published);
            }
            sim.ledger().application(sim, application);
        }
        moment(sim);
    }

    fn lease(&mut self, sim: &Sim, run: Run, lease: &CoordinatorLease) {
        if self.tampered.is_some() {
            return;
        }
        let highest = self.fences.keys().next_back().copied().unwrap_or_default();
        match self.fences.get(&lease.fence) {
            Some(owner) if *owner == run => {}
            Some(owner) => {
                self.violated(format!("{:?}: fence {} of {owner:?} is {run:?}'s too", sim.elapsed(), lease.fence.0));
            }
            None if lease.fence <= highest => {
                self.violated(format!("{:?}: fence {} comes after {}", sim.elapsed(), lease.fence.0, highest.0));
            }
            None => drop(self.fences.insert(lease.fence, run)),
        }
    }

    /// This run coordinates under this fence, or sends a write under it.
    pub(super) fn acts(&mut self, sim: &Sim, run: Run, fence: Fence) {
        let first = *self.acted.entry(fence).or_insert_with(|| {
            self.terms += 1;
            run
        });
        if first != run {
            self.violated(format!("{:?}: {run:?} acts under fence {}, which is {first:?}'s", sim.elapsed(), fence.0));
        }
        let owner = self.fences.get(&fence);
        if self.tampered.is_none() && owner != Some(&run) {
            self.violated(format!("{:?}: {run:?} acts under fence {} and {owner:?} has it", sim.elapsed(), fence.0));
        }
    }

    /// A placement leaves.
    pub(super) fn sends(&mut self, sim: &Sim, run: Run, fence: Fence) {
        self.acts(sim, run, fence);
        let holds = sim.machines[run.0].holds(sim.elapsed());
        if !holds.is_some_and(|hold| hold.run == run.1 && hold.fence == fence) {
            self.violated(format!("{:?}: {run:?} places under fence {} and does not hold it", sim.elapsed(), fence.0));
        }
    }

    /// The record of the lease is gone, or an old copy stands in its place.
    pub(super) fn tampered(&mut self) {
        self.tampered = Some(Instant::now());
    }

    fn placement(&mut self, sim: &Sim, record: &PlacementRecord, before: &Before) {
        self.placements += 1;
        for (machine, seen) in before.0.iter().enumerate() {
            if *seen > record.fence {
                self.stale_landings += 1;
                let until = Instant::now() + sim.ttl * 2;
                self.stale.push(Stale { machine, record: record.clone(), until });
            }
        }
    }

    /// A host is one application's, and what is covered by one is nobody else's.
    fn application(&mut self, sim: &Sim, application: ApplicationRecord) {
        self.applications.insert(application.name.clone(), application);
        let mut holders: BTreeMap<&Host, &ApplicationName> = BTreeMap::new();
        let mut wrong = Vec::new();
        for application in self.applications.values() {
            for host in &application.domains {
                if let Some(other) = holders.insert(host, &application.name) {
                    wrong.push(format!("{host} is {other}'s and {}'s", application.name));
                }
            }
        }
        for application in self.applications.values() {
            for (host, holder) in &holders {
                let covered = host.parent().is_some_and(|base| application.wildcard_domains.contains(&base));
                // No name here begins with another's.
                if covered && **holder != application.name {
                    wrong.push(format!("{host} of {holder} is covered by {}", application.name));
                }
            }
        }
        wrong.into_iter().for_each(|wrong| self.violated(format!("{:?}: {wrong}", sim.elapsed())));
    }

    fn node(&mut self, key: &str, mut record: NodeRecord) {
        record.heartbeat_at = record.started_at;
        let now = Instant::now();
        let before = self.nodes.insert(key.to_owned(), (record.clone(), now));
        // Half a heartbeat, at the default interval.
        let soon = |at: Instant| now < at + Duration::from_secs(15);
        self.repeated += u64::from(before.is_some_and(|(before, at)| before == record && soon(at)));
    }

    fn identity(&mut self, key: &str, identity: IdentityReservation) {
        match self.identities.get(key) {
            Some(first) if first.public_key == identity.public_key => {}
            Some(_) => self.violated(format!("{key} changed hands")),
            None => drop(self.identities.insert(key.to_owned(), identity)),
        }
    }
}

/// What holds at every moment.
pub(super) fn moment(sim: &Sim) {
    let now = Instant::now();
    let mut ledger = sim.ledger();
    let mut holders = Vec::new();
    for (index, machine) in sim.machines.iter().enumerate() {
        let Some(hold) = machine.holds(sim.elapsed()) else { continue };
        ledger.acts(sim, (index, hold.run), hold.fence);
        holders.push(index);
    }
    // Who holds the lease when its record is lost may not know for what is left of its life.
    let blinded = ledger.tampered.is_some_and(|at| now < at + sim.ttl);
    if holders.len() > 1 && !blinded {
        ledger.violated(format!("{:?}: {holders:?} coordinate at once", sim.elapsed()));
    }
    ledger.stale.retain(|stale| now < stale.until);
    let in_force = |stale: &&Stale| {
        let disk = sim.machines[stale.machine].disk.lock().unwrap();
        disk.as_ref().and_then(|kept| kept.placements.get(&stale.record.application)) == Some(&stale.record)
    };
    let taken: Vec<String> = ledger.stale.iter().filter(in_force).map(|stale| format!("{stale:?}")).collect();
    for stale in taken {
        ledger.violated(format!("{:?}: a late write took effect: {stale}", sim.elapsed()));
    }
}

fn leads(core: &Core) -> bool {
    core.lease.borrow().lead.as_ref().is_some_and(|lead| core.mono() < lead.lapses)
}

fn id(core: &Core) -> &str {
    core.settings.node.id.as_str()
}

/// Every record under a prefix, as it is in the store.
pub(super) async fn all<T: DeserializeOwned>(sim: &Sim, prefix: &str) -> Vec<T> {
    let mut records = Vec::new();
    for key in sim.memory.keys(prefix) {
        if let Some(object) = sim.memory.get(&key).await.unwrap() {
            records.push(serde_json::from_slice(&object.body).unwrap());
        }
    }
    records
}

/// Where each application is placed.
pub(super) async fn placements(sim: &Sim) -> BTreeMap<ApplicationName, Vec<NodeId>> {
    let records = all::<PlacementRecord>(sim, prefix::PLACEMENT).await;
    records.into_iter().map(|record| (record.application, record.nodes)).collect()
}

/// Whether the fleet of these machines has come to rest where it should.
///
/// # Errors
/// What is not as it should be yet.
pub(super) async fn at_rest(sim: &Sim, nodes: &[usize]) -> Result<(), String> {
    let cores: Vec<_> = nodes.iter().map(|node| sim.machines[*node].core()).collect();
    let cores: Vec<_> = cores.into_iter().collect::<Option<_>>().ok_or("a node is down")?;
    let leaders = cores.iter().filter(|core| leads(core)).count();
    if leaders != 1 {
        return Err(format!("{leaders} nodes coordinate"));
    }
    let records: Vec<NodeRecord> = all(sim, prefix::NODES).await;
    let candidate = |core: &std::sync::Arc<Core>| Candidate {
        id: core.settings.node.id.clone(),
        labels: core.settings.node.labels.clone(),
        live: true,
        leaving: records.iter().any(|record| record.id == core.settings.node.id && record.leaving),
        out: false,
        serves: Serves::Nothing,
    };
    let candidates: Vec<Candidate> = cores.iter().map(candidate).collect();
    let placements = placements(sim).await;
    let mut expected: BTreeMap<&str, BTreeSet<ApplicationName>> = BTreeMap::new();
    let applications: Vec<ApplicationRecord> = all(sim, prefix::APPLICATIONS).await;
    for application in applications.iter().filter(|application| application.may_serve()) {
        let wish = Wish {
            application: &application.name,
            replicas: application.replicas.unwrap_or_default(),
            selector: application.node_selector.as_ref(),
            published: application.deployment.is_some(),
        };
        let mut wanted = ideal(&wish, &candidates).nodes;
        wanted.sort();
        let there = placements.get(&application.name);
        if there != Some(&wanted) {
            return Err(format!("{} is placed on {there:?}, not {wanted:?}", application.name));
        }
        for core in cores.iter().filter(|core| wanted.contains(&core.settings.node.id)) {
            expected.entry(id(core)).or_default().insert(application.name.clone());
        }
    }
    for (core, node) in cores.iter().zip(nodes) {
        let wanted = expected.remove(id(core)).unwrap_or_default();
        let runs = running(&sim.machines[*node]);
        if runs != wanted {
            return Err(format!("{} runs {runs:?}, not {wanted:?}", id(core)));
        }
        let world = core.worlds.borrow().clone();
        if !world.held_back.is_empty() {
            return Err(format!("{} holds back {:?}", id(core), world.held_back));
        }
        serves(&applications, records.iter().find(|record| record.id == core.settings.node.id))?;
    }
    Ok(())
}

fn serves(applications: &[ApplicationRecord], record: Option<&NodeRecord>) -> Result<(), String> {
    let record = record.ok_or("a node has no record")?;
    for serving in &record.serving {
        let application = applications.iter().find(|application| application.name == serving.application);
        let published = application.and_then(|application| application.deployment.as_ref());
        let Some(published) = published else { continue };
        let adopted = serving.state == ProcessState::Ready
            && serving.adoption == Some(Adoption::Adopted)
            && serving.deploy.as_ref() == Some(&published.deploy);
        if !adopted {
            return Err(format!(
                "{} on {} is {:?}/{:?}",
                serving.application, record.id, serving.state, serving.adoption
            ));
        }
    }
    Ok(())
}

/// Claims and lists agree, both ways.
pub(super) async fn claims_are_mirrored(sim: &Sim) -> Result<(), String> {
    let applications: Vec<ApplicationRecord> = all(sim, prefix::APPLICATIONS).await;
    let claims: Vec<DomainClaim> = all(sim, prefix::DOMAINS).await;
    let listed: BTreeSet<(String, String)> = applications
        .iter()
        .flat_map(|application| application.domains.iter().map(|host| (host.to_string(), application.name.to_string())))
        .collect();
    let held: BTreeSet<(String, String)> = claims
        .iter()
        .filter(|claim| !claim.released)
        .map(|claim| (claim.host.to_string(), claim.application.to_string()))
        .collect();
    if listed == held { Ok(()) } else { Err(format!("listed {listed:?}, claimed {held:?}")) }
}

/// Everything that somebody was told is written.
pub(super) async fn nothing_acknowledged_is_lost(sim: &Sim) -> Result<(), String> {
    let applications: Vec<ApplicationRecord> = all(sim, prefix::APPLICATIONS).await;
    let acknowledged = sim.ledger().acknowledged.clone();
    for ((name, writer), number) in acknowledged {
        let record = applications.iter().find(|application| application.name == name);
        let label = record.and_then(|record| record.labels.as_ref()?.get(&format!("w{writer}"))?.parse::<u64>().ok());
        if label.is_none_or(|label| label < number) {
            return Err(format!("{name}: writer {writer} was told {number} is written, and {label:?} is there"));
        }
    }
    Ok(())
}

/// How long the slowest way back to rest takes: a silent node is noticed, its lease lapses, what was held back counts, and
/// what is surplus leaves one by one with a hold each.
pub(super) const REST: Duration = Duration::from_secs(600);

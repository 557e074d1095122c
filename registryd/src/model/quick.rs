//! Histories of the registry, the lease and the placements alone, without the daemons around them: short, and thousands.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use scafo_core::key::{self, prefix};
use scafo_core::record::{ApplicationRecord, Fence, NodeRecord, PlacementRecord, to_bytes};
use scafo_core::{ApplicationName, NodeId};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::checks::{Ledger, all, claims_are_mirrored, judged, moment, nothing_acknowledged_is_lost, placements};
use super::keeper::{candidate, keep, wish};
use super::people;
use super::seeds::{Rule, breaking, first_failure, for_each_seed, run};
use super::sim::Sim;
use super::{TTL, make_trouble};
use crate::coordinator::placement::ideal;
use scafo_store::{Bucket as _, PutOptions};

/// Histories in one run of the tests.
const SEEDS: u64 = 2_000;
const NODES: usize = 2;
const PEOPLE: usize = 2;
/// How long a history is bad.
const CHAOS: Duration = Duration::from_secs(50);
/// The longest way back: whatever is on its way lands, a lease is lost and found, what was held back counts.
const REST: Duration = Duration::from_secs(300);

async fn history(sim: &Arc<Sim>) -> Result<(), String> {
    let mut nodes = JoinSet::new();
    for machine in 0..NODES {
        nodes.spawn(keep(Arc::clone(sim), machine));
    }
    let until = Instant::now() + CHAOS;
    let mut people = JoinSet::new();
    for person in NODES..NODES + PEOPLE {
        people.spawn(people::live(Arc::clone(sim), person, NODES, until));
    }
    make_trouble(Arc::clone(sim), NODES + PEOPLE, until).await;
    sim.heal();
    while let Some(ended) = people.join_next().await {
        ended.map_err(|error| error.to_string())?;
    }
    people::settle(sim, NODES, NODES).await?;
    come_to_rest(sim).await?;
    nothing_acknowledged_is_lost(sim).await?;
    claims_are_mirrored(sim).await?;
    a_late_letter(sim).await;
    come_to_rest(sim).await
}

/// A write of a coordinator that is long dead arrives and meets its condition. Who coordinates now overwrites it.
async fn a_late_letter(sim: &Sim) {
    let mut records: Vec<PlacementRecord> = all(sim, prefix::PLACEMENT).await;
    let newest = records.iter().map(|record| record.fence).max().unwrap_or_default();
    let Some(mut letter) = records.pop() else { return };
    // With a single term there is nobody who could have sent it.
    letter.fence = Fence(newest.0.saturating_sub(1));
    letter.nodes = if letter.nodes.is_empty() { vec!["n0".parse().unwrap()] } else { Vec::new() };
    let (key, body) = (key::placement(&letter.application), Bytes::from(to_bytes(&letter)));
    if letter.fence == Fence(0) {
        return;
    }
    let before = Ledger::before(sim, &key);
    sim.memory.put(&key, body.clone(), PutOptions::default()).await.unwrap();
    Ledger::landed(sim, (0, 0), &key, &body, before);
}

async fn come_to_rest(sim: &Sim) -> Result<(), String> {
    let limit = Instant::now() + REST;
    while let Err(why) = placed(sim).await {
        moment(sim);
        if Instant::now() >= limit {
            return Err(format!("{:?}: no rest: {why}", sim.elapsed()));
        }
        sleep(Duration::from_secs(3)).await;
    }
    Ok(())
}

/// Everything is placed where it would be if nothing had ever happened, and that is in force on every node.
async fn placed(sim: &Sim) -> Result<(), String> {
    let nodes: Vec<NodeRecord> = all(sim, prefix::NODES).await;
    let candidates: Vec<_> = nodes.iter().map(candidate).collect();
    let mut wanted: BTreeMap<_, Vec<NodeId>> = BTreeMap::new();
    for application in all::<ApplicationRecord>(sim, prefix::APPLICATIONS).await {
        if application.may_serve() {
            let mut nodes = ideal(&wish(&application), &candidates).nodes;
            nodes.sort();
            wanted.insert(application.name, nodes);
        }
    }
    let there = placements(sim).await;
    if wanted.iter().any(|(name, nodes)| there.get(name) != Some(nodes)) {
        return Err(format!("{there:?} is placed, not {wanted:?}; {}", who_leads(sim, &nodes).await));
    }
    for machine in &sim.machines[..NODES] {
        let disk = machine.disk.lock().unwrap();
        let in_force = disk.as_ref().map(|kept| &kept.placements);
        let says = |name: &ApplicationName| Some(&in_force?.get(name)?.nodes);
        if let Some((name, nodes)) = wanted.iter().find(|(name, nodes)| says(name) != Some(*nodes)) {
            return Err(format!("on {} {:?} is in force for {name}, not {nodes:?}", machine.id, says(name)));
        }
    }
    Ok(())
}

/// What a reader of a failure wants to know of the lease.
async fn who_leads(sim: &Sim, nodes: &[NodeRecord]) -> String {
    let lease = sim.memory.get(key::LEASE).await;
    let lease = lease.ok().flatten().map(|object| String::from_utf8_lossy(&object.body).into_owned());
    let held: Vec<_> = sim.machines[..NODES].iter().map(|machine| *machine.hold.lock().unwrap()).collect();
    let fences: Vec<_> = nodes.iter().map(|node| (&node.id, node.fence)).collect();
    format!("lease {lease:?}, held {held:?}, fences {fences:?}")
}

fn short(seed: u64) -> Result<(), String> {
    run(async move {
        let sim = Sim::new(seed, NODES + PEOPLE, TTL);
        judged(&sim, history(&sim).await)
    })
}

#[test]
fn no_short_history_breaks_a_rule() {
    for_each_seed(SEEDS, short);
}

/// Whether the checks are worth something: without the rule they find a history that shows it. One that goes wrong in another way
/// first, as a lost rule may do in many, says nothing of that.
fn is_missed(rule: Rule, told: &str) {
    let shows = |seed| breaking(rule, || short(seed)).or_else(|why| if why.contains(told) { Err(why) } else { Ok(()) });
    let caught = first_failure(0..SEEDS, shows);
    assert!(caught.is_some_and(|(_, why)| why.contains(told)), "without {rule:?}");
}

#[test]
fn a_claim_that_is_not_proven_is_found_out() {
    is_missed(Rule::FenceIsProven, "acts under fence");
}

#[test]
fn a_holder_that_does_not_look_at_its_clock_is_found_out() {
    is_missed(Rule::GuardIsAsked, "does not hold");
}

#[test]
fn a_holder_that_does_not_look_at_its_clock_again_is_found_out() {
    is_missed(Rule::GuardIsAskedAgain, "does not hold");
}

#[test]
fn a_node_that_follows_late_writes_is_found_out() {
    is_missed(Rule::LateWritesAreHeldBack, "a late write took effect");
}

#[test]
fn a_store_that_does_not_compare_tags_is_found_out() {
    is_missed(Rule::UpdatesAreConditional, "was told");
}

#[test]
fn a_store_that_creates_over_what_is_there_is_found_out() {
    is_missed(Rule::CreatesAreConditional, "changed hands");
}

#[test]
fn a_claimant_that_does_not_look_again_is_found_out() {
    is_missed(Rule::ClaimantsLookAgain, "is covered");
}

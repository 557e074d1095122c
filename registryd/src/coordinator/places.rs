//! Writes placements while this node coordinates: at once when the fleet differs from before, and when a hold has passed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use scafo_core::record::{ApplicationRecord, Fence, PlacementRecord, Rest, V1};
use scafo_core::view::Unplaced;
use scafo_core::{ApplicationName, NodeId, Timestamp};
use tokio::time::timeout;

use super::candidates::Candidates;
use super::ideals::Ideals;
use super::placement::{Outlook, Wish, dispensable, next};
use super::{Holder, Lead};
use crate::daemon::{Core, Fatal};
use crate::node::wake::{Look, seen};
use crate::node::world::World;
use crate::registry::{Intent, Mono};

/// Placements written at once, so that one slow key holds up seven others at most for its time.
const WRITES_AT_ONCE: usize = 8;
/// How long one placement is tried in a round; what failed is decided anew in the next one.
const WRITE: Duration = Duration::from_secs(10);
/// When a round is repeated of which a write failed.
const AGAIN: Duration = Duration::from_secs(1);

/// What one pass of a coordinator leaves to the next.
#[derive(Debug, Default)]
pub(crate) struct Past {
    /// Since when each application could do without one of its nodes.
    shrinking: BTreeMap<ApplicationName, Mono>,
    ideals: Ideals,
}

/// One placement to write.
pub(crate) struct Planned {
    pub(crate) record: PlacementRecord,
    /// Written even if it says what is there already: the nodes hold that body back.
    restamp: bool,
}

/// Places until the daemon ends.
pub(crate) async fn place(core: Arc<Core>) -> Fatal {
    let mut worlds = core.worlds.subscribe();
    let mut leases = core.lease.subscribe();
    let mut past = Past::default();
    let mut done = None;
    let mut again: Option<Mono> = None;
    loop {
        let world = worlds.borrow_and_update().clone();
        let lead = leases.borrow_and_update().lead.clone();
        let now = core.mono();
        match lead.filter(|lead| now < lead.lapses && world.is_seen()) {
            None => {
                past = Past::default();
                done = None;
                // Whatever was to be repeated is the next coordinator's; waiting for a moment that has passed would spin.
                again = None;
                core.unplaced.send_if_modified(|unplaced| unplaced.take().is_some());
            }
            Some(lead) if done != Some((world.content, lead.fence)) || again.is_some_and(|again| again <= now) => {
                done = Some((world.content, lead.fence));
                again = round(&core, &world, &lead, &mut past).await;
                continue;
            }
            Some(_) => {}
        }
        let wait = again.unwrap_or_else(|| now.after(core.settings.lease_ttl.get()));
        tokio::select! {
            biased;
            changed = leases.changed() => if changed.is_err() { return Fatal::ended("the election") },
            changed = worlds.changed() => if changed.is_err() { return Fatal::ended("the reconcile loop") },
            () = core.registry.clock().sleep_until(wait) => {}
        }
    }
}

/// Decides on every application and writes what differs. Answers when to decide again although nothing moved.
async fn round(core: &Core, world: &World, lead: &Lead, past: &mut Past) -> Option<Mono> {
    let clock = core.registry.clock();
    let hold = core.settings.ingress_hold.get();
    let terms = Terms { now: clock.mono(), wall: clock.wall(), hold, fence: lead.fence };
    let (planned, unplaced, hold_ends) = plan(world, &terms, past);
    core.unplaced.send_if_modified(|before| {
        let moved = before.as_ref() != Some(&unplaced);
        *before = Some(unplaced.clone());
        moved
    });
    if planned.is_empty() {
        return hold_ends;
    }
    let results: Vec<_> = stream::iter(planned)
        .map(|planned| write(core, lead, planned))
        .buffer_unordered(WRITES_AT_ONCE)
        .collect()
        .await;
    let ticket = core.wake.look(Look::Placements);
    // Deciding on what was there before these writes would only write the same again.
    let looked = timeout(WRITE, seen(&mut core.worlds.subscribe(), ticket)).await;
    let failed = results.contains(&Outcome::Failed) || !matches!(looked, Ok(Ok(_)));
    let retry = failed.then(|| core.mono().after(AGAIN));
    retry.into_iter().chain(hold_ends).min()
}

/// What a plan depends on beside the world.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) now: Mono,
    pub(crate) wall: Timestamp,
    /// How long a process lives on after it left the documents.
    pub(crate) hold: Duration,
    pub(crate) fence: Fence,
}

/// Every placement that is to differ, what cannot be placed, and when a hold ends. Pure: the past decides nothing but the
/// holds.
pub(crate) fn plan(world: &World, terms: &Terms, past: &mut Past) -> (Vec<Planned>, Vec<Unplaced>, Option<Mono>) {
    let Terms { now, wall, hold, fence } = *terms;
    let mut nodes = Candidates::new(world);
    past.ideals.begin(nodes.all());
    let mut planned = Vec::new();
    let mut unplaced = Vec::new();
    let mut kept = BTreeMap::new();
    for (name, application) in world.shown.applications.iter() {
        if !application.may_serve() || world.shown.unreadable.contains(name) {
            continue;
        }
        let there = world.shown.placements.get(name);
        let current: &[NodeId] = there.map_or(&[], |placement| &placement.nodes);
        let since = past.shrinking.get(name).copied();
        let held = since.is_some_and(|since| now.since(since) >= hold);
        let (wish, nodes) = (wish(name, application), nodes.of(application));
        let outlook = next(&wish, past.ideals.of(&wish, nodes), current, nodes, held);
        if outlook.may_shrink {
            kept.insert(name.clone(), since.unwrap_or(now));
        }
        if let Some(reason) = outlook.reason {
            let placed = u32::try_from(outlook.nodes.len()).unwrap_or(u32::MAX);
            unplaced.push(Unplaced { application: name.clone(), wanted: outlook.wanted, placed, reason });
        }
        let restamp = world.held_back.contains(name);
        if restamp || !there.is_some_and(|there| says(there, &outlook)) {
            let record = PlacementRecord {
                v: V1,
                application: name.clone(),
                nodes: outlook.nodes,
                wanted: outlook.wanted,
                reason: outlook.reason,
                fence,
                updated_at: wall,
                rest: Rest::new(),
            };
            planned.push(Planned { record, restamp });
        }
    }
    let hold_ends = kept.values().map(|since| since.after(hold)).filter(|ends| *ends > now).min();
    past.shrinking = kept;
    past.ideals.end();
    (planned, unplaced, hold_ends)
}

fn says(there: &PlacementRecord, outlook: &Outlook) -> bool {
    there.nodes == outlook.nodes && there.wanted == outlook.wanted && there.reason == outlook.reason
}

fn wish<'a>(name: &'a ApplicationName, application: &'a ApplicationRecord) -> Wish<'a> {
    Wish {
        application: name,
        replicas: application.replicas.unwrap_or_default(),
        selector: application.node_selector.as_ref(),
        published: application.deployment.is_some(),
    }
}

/// Applications that run on `me` and that would be served by fewer others than there could be, if it ended now. A record that
/// cannot be read leaves open what is needed, so its application counts.
pub(crate) fn held_up_by(world: &World, me: &NodeId) -> Vec<ApplicationName> {
    let Some(mine) = world.nodes.get(me) else { return Vec::new() };
    let mut nodes = Candidates::new(world);
    let needed = |name: &&ApplicationName| {
        if world.shown.unreadable.contains(*name) {
            return true;
        }
        let Some(application) = world.shown.applications.get(*name).filter(|application| application.may_serve())
        else {
            return false;
        };
        let placement = world.shown.placements.get(*name);
        let current = placement.map_or(&[][..], |placement| &placement.nodes);
        current.contains(me) && !dispensable(&wish(name, application), current, nodes.of(application), me)
    };
    let running: BTreeSet<&ApplicationName> = mine.record.serving.iter().map(|serving| &serving.application).collect();
    running.into_iter().filter(needed).cloned().collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    Failed,
}

async fn write(core: &Core, lead: &Lead, planned: Planned) -> Outcome {
    let Planned { record, restamp } = planned;
    let holder = Holder::new(core, lead.fence);
    let intent = Intent::new().under(lead.authority.clone()).within(WRITE);
    let outcome = if restamp {
        core.registry.restamp_placement(&intent, &record, &holder).await.map(drop)
    } else {
        core.registry.put_placement(&intent, &record, &holder).await.map(drop)
    };
    match outcome {
        Ok(()) => {
            let nodes: Vec<&str> = record.nodes.iter().map(NodeId::as_str).collect();
            tracing::info!(application = %record.application, nodes = nodes.join(","), fence = record.fence.0, "placed");
            Outcome::Done
        }
        Err(problem) => {
            tracing::warn!(application = %record.application, ?problem, "not placed, trying again");
            Outcome::Failed
        }
    }
}

#[cfg(test)]
mod tests {
    use scafo_store::MemoryBucket;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::daemon::testing::{core, show};

    fn lead(core: &Core, fence: u64, lapses_in: Duration) -> Lead {
        let lapses = core.mono().after(lapses_in);
        let lead = Lead { fence: Fence(fence), lapses, authority: CancellationToken::new() };
        core.lease.send_modify(|view| view.lead = Some(lead.clone()));
        lead
    }

    async fn application(core: &Core, name: &str) -> ApplicationRecord {
        core.registry.create_application(&name.parse().unwrap()).await.unwrap().stored.record
    }

    async fn placed(core: &Core, name: &str) -> Option<PlacementRecord> {
        core.registry.placement(&name.parse().unwrap()).await.unwrap().map(|stored| stored.record)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_new_is_placed_and_what_cannot_be_is_named() {
        let core = core("a", MemoryBucket::new());
        let shop = application(&core, "shop").await;
        let mut picky = application(&core, "picky").await;
        picky.node_selector = Some([("region".to_owned(), "mars".to_owned())].into());
        show(&core, &[shop, picky], &[], &[("a", true), ("b", false)]);
        let lead = lead(&core, 3, Duration::from_secs(15));
        let world = core.worlds.borrow().clone();
        round(&core, &world, &lead, &mut Past::default()).await;
        let shop = placed(&core, "shop").await.unwrap();
        assert_eq!((shop.nodes, shop.fence), (vec!["a".parse().unwrap()], Fence(3)));
        assert!(placed(&core, "picky").await.unwrap().nodes.is_empty());
        let unplaced = core.unplaced.borrow().clone().unwrap();
        assert_eq!(unplaced.len(), 1);
        assert_eq!(unplaced[0].application.as_str(), "picky");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_written_once_the_lease_has_lapsed() {
        let core = core("a", MemoryBucket::new());
        let shop = application(&core, "shop").await;
        show(&core, &[shop], &[], &[("a", true)]);
        let lead = lead(&core, 3, Duration::from_secs(15));
        tokio::time::advance(Duration::from_secs(15)).await;
        let world = core.worlds.borrow().clone();
        let again = round(&core, &world, &lead, &mut Past::default()).await;
        assert!(placed(&core, "shop").await.is_none() && again.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_nodes_hold_back_is_written_anew_under_this_fence() {
        let core = core("a", MemoryBucket::new());
        let shop = application(&core, "shop").await;
        show(&core, std::slice::from_ref(&shop), &[], &[("a", true)]);
        let world = core.worlds.borrow().clone();
        round(&core, &world, &lead(&core, 3, Duration::from_secs(15)), &mut Past::default()).await;
        let late = placed(&core, "shop").await.unwrap();
        show(&core, &[shop], std::slice::from_ref(&late), &[("a", true)]);
        let lead = lead(&core, 7, Duration::from_secs(15));
        let mut world = (**core.worlds.borrow()).clone();
        // An unchanged body stays as it is, whoever wrote it.
        round(&core, &world, &lead, &mut Past::default()).await;
        assert_eq!(placed(&core, "shop").await.unwrap().fence, Fence(3));
        world.held_back = Arc::new([late.application.clone()].into());
        round(&core, &world, &lead, &mut Past::default()).await;
        assert_eq!(placed(&core, "shop").await.unwrap().fence, Fence(7));
    }
}

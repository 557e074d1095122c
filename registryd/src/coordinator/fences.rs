//! Looking for the fences that stand in the fleet: the highest one before a claim, and after it whether the new one is this
//! run's alone. The order is the whole point and is argued for in `lease`.

use std::sync::Arc;
use std::time::Duration;

use scafo_core::record::Fence;
use scafo_core::{Problem, ProblemCode};
use tokio::time::timeout;

use super::lease::Event;
use crate::daemon::Core;
use crate::node::wake::{Look, seen};
use crate::node::world::World;

/// How long a look, or a write of this node's record, may take. Half a minute is what one logical write may; a lease that
/// lapses meanwhile ends the proof earlier.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause before the next try of a proof: a bucket that refuses connections answers at once.
const AGAIN: Duration = Duration::from_millis(500);

/// The highest fence anywhere, as of a look that begins now.
pub(super) async fn survey(core: &Core) -> Event {
    match look(core).await {
        Ok(world) => Event::Surveyed(world.floor.max(core.lease.borrow().seen.fence)),
        Err(problem) => {
            tracing::debug!(?problem, "the fences that stand cannot be looked up");
            Event::SurveyFailed
        }
    }
}

/// Has this node's disk and record carry `fence`, then looks whether anybody else's carries it or a higher one; again until
/// that comes out. May be dropped at any time.
pub(super) async fn prove(core: &Core, fence: Fence) -> Event {
    loop {
        match is_alone(core, fence).await {
            Ok(true) => return Event::Proven(fence),
            Ok(false) => return Event::Overtaken(fence),
            Err(problem) => {
                tracing::debug!(?problem, fence = fence.0, "whether this fence is in use cannot be looked up yet");
                core.registry.clock().sleep(AGAIN).await;
            }
        }
    }
}

async fn is_alone(core: &Core, fence: Fence) -> Result<bool, Problem> {
    let me = &core.settings.node.id;
    core.claim.send_replace(fence);
    let (mut worlds, mut unkept) = (core.worlds.subscribe(), core.unkept.subscribe());
    let stands = worlds.wait_for(|world| world.nodes.get(me).is_some_and(|node| node.record.fence >= fence));
    let told = async {
        tokio::select! {
            biased;
            stands = stands => stands.map(|_| true),
            unkept = unkept.wait_for(|unkept| *unkept == Some(fence)) => unkept.map(|_| false),
        }
    };
    match timeout(PATIENCE, told).await {
        Ok(Ok(true)) => {}
        // Nothing may be done under a fence that a crash would have this node forget.
        Ok(Ok(false)) => return Ok(false),
        Ok(Err(_)) => return Err(stopping()),
        Err(_) => return Err(late("this node's record is not written")),
    }
    let world = look(core).await?;
    let others = world.nodes.iter().filter(|(id, _)| *id != me).map(|(_, node)| node.record.fence);
    let placed = world.shown.placements.values().map(|placement| placement.fence);
    if let Some(rival) = others.chain(placed).find(|rival| *rival >= fence) {
        tracing::warn!(
            fence = fence.0,
            rival = rival.0,
            "another run has had this fence or a higher one; claiming above it"
        );
        return Ok(false);
    }
    let lease = core.registry.lease().await?;
    Ok(lease.is_some_and(|lease| lease.record.node == *me && lease.record.fence == fence))
}

/// The world as of a look at nodes and placements that begins after this was called, with every record that moved, except for those
/// that are waited for no longer. A fence that stands in the new body of such a record only is not seen, as if the record had been
/// removed: it was in the lease before it was anywhere else, and whoever claims goes above the lease too.
async fn look(core: &Core) -> Result<Arc<World>, Problem> {
    core.wake.look(Look::Nodes);
    let ticket = core.wake.look(Look::Placements);
    let looked = timeout(PATIENCE, seen(&mut core.worlds.subscribe(), ticket)).await;
    let world = looked.map_err(|_| late("the bucket was not looked at"))??;
    if world.shown.incomplete {
        // What gave no answer may be the record that matters.
        return Err(late("a record that moved gave no answer"));
    }
    Ok(world)
}

fn late(what: &str) -> Problem {
    Problem::new(ProblemCode::StoreUnavailable, format!("{what} in time"))
}

fn stopping() -> Problem {
    Problem::new(ProblemCode::Draining, "this node is stopping")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use scafo_core::NodeId;
    use scafo_store::{Bucket as _, Fault, MemoryBucket, Operation, PutOptions};

    use super::*;
    use crate::node::testing::{Node, node, place, until_leads};
    use crate::registry::Arrival;
    use crate::registry::testing::node as record;

    const MINUTE: Duration = Duration::from_secs(60);

    /// What a node's view of the bucket does not give, and how much it was asked for.
    #[derive(Default)]
    struct Withheld {
        now: AtomicBool,
        requests: AtomicU32,
    }

    fn view(memory: &MemoryBucket, silent: &str) -> (MemoryBucket, Arc<Withheld>) {
        let (view, withheld, silent) = (memory.sibling(), Arc::<Withheld>::default(), silent.to_owned());
        let asked = Arc::clone(&withheld);
        view.plan(move |operation| {
            asked.requests.fetch_add(1, Ordering::Relaxed);
            let is_it = operation == Operation::Get(&silent) && asked.now.load(Ordering::Relaxed);
            is_it.then_some(Fault::LoseRequest)
        });
        (view, withheld)
    }

    async fn until(node: &Node, is: impl FnMut(&Arc<World>) -> bool) {
        let mut worlds = node.core.worlds.subscribe();
        timeout(3 * MINUTE, worlds.wait_for(is)).await.unwrap().unwrap();
    }

    /// Writes a record anew: it says the same under another tag.
    async fn rewrite(memory: &MemoryBucket, key: &str) {
        let mut body = memory.get(key).await.unwrap().unwrap().body.to_vec();
        body.push(b'\n');
        memory.put(key, body.into(), PutOptions::default()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn one_object_that_is_listed_and_not_given_keeps_nobody_from_the_lease() {
        // A node's record, as any, moves with each heartbeat.
        for silent in ["_scafo/placement/shop.json", "_scafo/nodes/c.json"] {
            let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
            let (memory, c) = (MemoryBucket::new(), "c".parse::<NodeId>().unwrap());
            place(&memory, 1).await;
            let (view_a, from_a) = view(&memory, silent);
            let a = node("a", view_a, dirs[0].path()).await;
            let fence = until_leads(&a).await;
            a.core.registry.register_node(&record("c", 3), Arrival::Joining).await.unwrap();
            let (view_b, from_b) = view(&memory, silent);
            let b = node("b", view_b, dirs[1].path()).await;
            let knows = |world: &Arc<World>| world.nodes.contains_key(&c) && !world.shown.placements.is_empty();
            until(&a, knows).await;
            until(&b, knows).await;

            for view in [&from_a, &from_b] {
                view.now.store(true, Ordering::Relaxed);
            }
            rewrite(&memory, silent).await;
            b.core.registry.mint_hint();
            b.core.registry.flush_hints(MINUTE).await.unwrap();
            let names = |world: &Arc<World>| world.shown.faults.iter().any(|fault| fault.key == silent);
            until(&b, names).await;
            assert!(knows(&b.core.worlds.borrow()), "what it said before stands");
            drop(a);
            rewrite(&memory, silent).await;
            assert!(timeout(MINUTE, until_leads(&b)).await.unwrap() > fence);

            let before = from_b.requests.load(Ordering::Relaxed);
            for _ in 0..2 {
                tokio::time::sleep(MINUTE / 2).await;
                rewrite(&memory, silent).await;
            }
            let asked = from_b.requests.load(Ordering::Relaxed) - before;
            assert!(asked < 60, "{silent}: {asked} requests in a minute");
            from_b.now.store(false, Ordering::Relaxed);
            until(&b, |world| !names(world)).await;
        }
    }
}

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

/// The world as of a look at nodes and placements that begins after this was called, with every record that moved.
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

//! Asking for a pass, and for a fresh look at a kind of record, without a queue: requests are counted, so that none is lost
//! and any number of them is one.

use scafo_core::Problem;
use scafo_core::problem::ProblemCode;
use tokio::sync::watch;

/// What to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    Applications,
    Placements,
    Nodes,
}

/// How often each look was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) all: u64,
    pub(crate) applications: u64,
    pub(crate) placements: u64,
    pub(crate) nodes: u64,
}

/// The handle to ask with.
#[derive(Debug, Clone)]
pub(crate) struct Wake(watch::Sender<Asked>);

impl Wake {
    pub(crate) fn new() -> (Self, watch::Receiver<Asked>) {
        let (sender, receiver) = watch::channel(Asked::default());
        (Self(sender), receiver)
    }

    /// Asks for a look. The answer is a number: a world whose `answered` has reached it has seen everything that was in the
    /// bucket when this was called.
    pub(crate) fn look(&self, what: Look) -> u64 {
        let mut ticket = 0;
        self.0.send_modify(|asked| {
            asked.all += 1;
            match what {
                Look::Applications => asked.applications += 1,
                Look::Placements => asked.placements += 1,
                Look::Nodes => asked.nodes += 1,
            }
            ticket = asked.all;
        });
        ticket
    }
}

/// The world once it has seen what was there at `ticket`.
///
/// # Errors
/// `store-unavailable` when the look failed; `draining` when the loop has ended.
pub(crate) async fn seen(
    worlds: &mut watch::Receiver<std::sync::Arc<super::world::World>>,
    ticket: u64,
) -> Result<std::sync::Arc<super::world::World>, Problem> {
    let world = worlds.wait_for(|world| world.attempted >= ticket).await;
    let world = world.map_err(|_| Problem::new(ProblemCode::Draining, "this node is stopping"))?.clone();
    if world.answered >= ticket {
        return Ok(world);
    }
    Err(Problem::new(ProblemCode::StoreUnavailable, "the bucket did not answer; try again in a moment"))
}

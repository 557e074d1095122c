//! Nodes on their way out: asking one to leave, asking it to stay, and forgetting one that is gone.
//!
//! The request is all that is written here. The node itself decides when it may go, because only it knows that nothing runs
//! there any more.

use std::time::Duration;

use scafo_core::{
    NodeId, Problem, ProblemCode, key,
    record::{Drain, DrainState, NodeRecord, Rest},
};

use super::{Intent, Registry, Stored};

/// How a node is asked to leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainRequest {
    /// Who asks.
    pub by: String,
    /// How long the node waits until others serve what it serves.
    pub timeout: Duration,
    /// Whether it goes after that time even if nobody does.
    pub force: bool,
}

/// What is known of the life of a node that is to be forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It shows signs of life.
    Live,
    /// It has been silent for longer than a node may be.
    Silent,
}

impl Registry {
    /// Asks a node to leave. While it is on its way, asking again for the same changes nothing; after a failure, or for
    /// something else, it begins anew. Mints a change hint.
    ///
    /// # Errors
    /// `not-found`; store errors.
    pub async fn drain_node(&self, id: &NodeId, request: &DrainRequest) -> Result<NodeRecord, Problem> {
        let fresh = Drain {
            id: format!("{:016x}", rand::random::<u64>()),
            by: request.by.clone(),
            asked_at: self.clock().wall(),
            timeout_ms: u64::try_from(request.timeout.as_millis()).unwrap_or(u64::MAX),
            force: request.force,
            state: DrainState::Waiting,
            waits_for: Vec::new(),
            rest: Rest::new(),
        };
        let ask = |node: &mut NodeRecord| {
            let stands = node.leaving && node.drain.as_ref().is_some_and(|there| stands(there, &fresh));
            if !stands {
                node.leaving = true;
                node.drain = Some(fresh.clone());
            }
            Ok(())
        };
        self.update_node(&Intent::new(), id, ask).await.map(|changed| changed.stored.record)
    }

    /// Takes a request to leave back, however far the node is. Mints a change hint.
    ///
    /// # Errors
    /// `not-found`; store errors.
    pub async fn undrain_node(&self, id: &NodeId) -> Result<NodeRecord, Problem> {
        let stay = |node: &mut NodeRecord| {
            node.leaving = false;
            node.draining = false;
            node.drain = None;
            Ok(())
        };
        self.update_node(&Intent::new(), id, stay).await.map(|changed| changed.stored.record)
    }

    /// Forgets a node: its record goes, its id stays reserved. If it lives after all, it notices, stops, and stays away until
    /// it is told to join again. Mints a change hint. `force` skips the look at what it still serves.
    ///
    /// # Errors
    /// `not-found`; `reference-held` for a live node that is not drained; store errors.
    pub async fn remove_node(&self, id: &NodeId, life: Life, force: bool) -> Result<(), Problem> {
        let key = key::node(id.as_str());
        match self.node(id).await {
            Ok(None) => return Err(Problem::new(ProblemCode::NotFound, format!("there is no node `{id}`"))),
            Ok(Some(stored)) if life == Life::Live && !force && !is_drained(&stored.record) => {
                let detail = format!("node `{id}` lives: drain it first (`scafo node drain {id}`), or use `--force`");
                return Err(Problem::new(ProblemCode::ReferenceHeld, detail));
            }
            // Its heartbeats go on until it notices.
            Ok(Some(stored)) => {
                let is_it = |stands: &Stored<NodeRecord>| stands.continues(&stored);
                self.engine().delete_record(&Intent::new(), &key, is_it).await?;
            }
            // One that cannot be read cannot be asked either; removing it is how it is repaired.
            Err(problem) if problem.code == ProblemCode::StoreNonconforming && force => {
                self.engine().delete_unreadable::<NodeRecord>(&Intent::new(), &key).await?;
            }
            Err(problem) => return Err(problem),
        }
        self.mint_hint();
        Ok(())
    }
}

/// Whether what was asked before is what is asked now, and not over.
fn stands(there: &Drain, asked: &Drain) -> bool {
    match there.state {
        DrainState::Waiting => there.force == asked.force && there.timeout_ms == asked.timeout_ms,
        DrainState::Draining | DrainState::Drained => true,
        DrainState::Failed => false,
    }
}

fn is_drained(node: &NodeRecord) -> bool {
    node.leaving && node.draining && node.serving.is_empty()
}

#[cfg(test)]
mod tests {
    use scafo_store::{Fault, Operation};

    use super::*;
    use crate::registry::Arrival;
    use crate::registry::testing::{World, node, put_raw};

    const ASK: Duration = Duration::from_secs(60);

    fn request(force: bool) -> DrainRequest {
        DrainRequest { by: "op".to_owned(), timeout: ASK, force }
    }

    async fn world() -> (World, NodeId) {
        let world = World::new();
        world.registry.register_node(&node("a", 1), Arrival::Joining).await.unwrap();
        (world, "a".parse().unwrap())
    }

    async fn reaches(world: &World, id: &NodeId, state: DrainState) {
        let reach = |node: &mut NodeRecord| {
            node.draining = matches!(state, DrainState::Draining | DrainState::Drained);
            if let Some(drain) = &mut node.drain {
                drain.state = state;
            }
            Ok(())
        };
        world.registry.update_node(&Intent::new(), id, reach).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn asking_twice_is_one_drain_and_asking_after_a_failure_is_another() {
        let (world, id) = world().await;
        let drain = async |force| world.registry.drain_node(&id, &request(force)).await.unwrap().drain.unwrap();
        let first = drain(false).await;
        assert_eq!(drain(false).await, first);
        let forced = drain(true).await;
        assert!(forced.force && forced.id != first.id);
        reaches(&world, &id, DrainState::Failed).await;
        let anew = drain(true).await;
        assert!(anew.id != forced.id && anew.state == DrainState::Waiting);
        reaches(&world, &id, DrainState::Draining).await;
        assert_eq!(drain(false).await.id, anew.id, "it is on its way");
        let back = world.registry.undrain_node(&id).await.unwrap();
        assert!(!back.leaving && !back.draining && back.drain.is_none());
        assert_ne!(drain(false).await.id, anew.id);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_node_that_is_drained_or_silent_is_forgotten() {
        let (world, id) = world().await;
        let remove = async |life, force| world.registry.remove_node(&id, life, force).await.map_err(|it| it.code);
        assert_eq!(remove(Life::Live, false).await, Err(ProblemCode::ReferenceHeld));
        world.registry.drain_node(&id, &request(false)).await.unwrap();
        assert_eq!(remove(Life::Live, false).await, Err(ProblemCode::ReferenceHeld));
        reaches(&world, &id, DrainState::Drained).await;
        assert_eq!(remove(Life::Live, false).await, Ok(()));
        assert_eq!(remove(Life::Live, false).await, Err(ProblemCode::NotFound));
        for (life, force) in [(Life::Silent, false), (Life::Live, true)] {
            world.registry.register_node(&node("a", 1), Arrival::Joining).await.unwrap();
            assert_eq!(remove(life, force).await, Ok(()));
        }
        put_raw(&world.memory, "_scafo/nodes/a.json", "unreadable").await;
        assert_eq!(remove(Life::Silent, false).await, Err(ProblemCode::StoreNonconforming));
        assert_eq!(remove(Life::Silent, true).await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_joins_again_while_it_is_removed_stays_and_a_heartbeat_saves_none() {
        for (fault, stays) in [(Fault::LoseAnswer, true), (Fault::LoseRequest, false)] {
            let (world, id) = world().await;
            let (other, mut lost) = (world.sibling(), false);
            world.memory.plan(move |operation| {
                let first =
                    operation == Operation::Delete("_scafo/nodes/a.json") && !std::mem::replace(&mut lost, true);
                first.then_some(fault)
            });
            let beat = |node: &mut NodeRecord| {
                node.heartbeat_at = node.heartbeat_at.after(ASK);
                Ok(())
            };
            let lives = async {
                if !stays {
                    other.registry.update_node(&Intent::new(), &id, beat).await.unwrap();
                    return;
                }
                while other.registry.node(&id).await.unwrap().is_some() {
                    other.registry.clock().sleep(Duration::from_millis(1)).await;
                }
                other.registry.register_node(&node("a", 1), Arrival::Joining).await.unwrap();
            };
            let (removed, ()) = tokio::join!(world.registry.remove_node(&id, Life::Live, true), lives);
            removed.unwrap();
            assert_eq!(other.registry.node(&id).await.unwrap().is_some(), stays, "{fault:?}");
        }
    }
}

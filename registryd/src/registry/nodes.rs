//! Node records and the guards of registration.

use scafo_core::{
    NodeId, Problem, ProblemCode,
    key::{self, prefix},
    record::{IdentityKind, NodeRecord},
};

use super::{Changed, Intent, Kind, Registry, Step, Stored};

/// Whether a node that registers may be new to the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// It may: it has never registered here, or was told to join again.
    Joining,
    /// It has registered here before. If its record is gone, it was removed and must not come back by itself.
    Returning,
}

impl Registry {
    /// Registers a node or brings its record up to date at its start. `leaving` stays as it is in the bucket, `draining` is
    /// cleared, and members that this build does not know stay. Mints a change hint.
    ///
    /// # Errors
    /// `reference-held` if the id is an operator's or another key's; `not-found` for [`Arrival::Returning`] without a record;
    /// store errors.
    pub async fn register_node(&self, node: &NodeRecord, arrival: Arrival) -> Result<NodeRecord, Problem> {
        self.reserve(node.id.as_str(), IdentityKind::Node, &node.public_key).await?;
        let changed = self
            .engine()
            .change(&Intent::new(), &key::node(node.id.as_str()), None, |there: Option<&Stored<NodeRecord>>| {
                register(there.map(|stored| &stored.record), node, arrival).map(Step::Write)
            })
            .await?;
        self.mint_hint();
        Ok(changed.stored.record)
    }

    /// Changes a node's record on somebody's word. Mints a change hint if the fleet's routing may differ, now or since a call
    /// before this one of which nobody knows how it ended.
    ///
    /// # Errors
    /// `not-found` if the node was removed; `immutable` if `mutate` changes its id or key; store errors.
    pub async fn update_node(
        &self,
        intent: &Intent,
        id: &NodeId,
        mutate: impl FnMut(&mut NodeRecord) -> Result<(), Problem> + Send,
    ) -> Result<Changed<NodeRecord>, Problem> {
        self.change_node(intent, id, None, mutate).await
    }

    /// Changes a node's record as that node does itself, which knows what the others were told last (`told`). Mints a change hint
    /// only if the fleet's routing may differ: a heartbeat alone would cost every node a listing several times a minute.
    ///
    /// # Errors
    /// As [`Registry::update_node`].
    pub(crate) async fn change_node(
        &self,
        intent: &Intent,
        id: &NodeId,
        told: Option<&NodeRecord>,
        mut mutate: impl FnMut(&mut NodeRecord) -> Result<(), Problem> + Send,
    ) -> Result<Changed<NodeRecord>, Problem> {
        // However this ends, what it wanted to write may have landed or may land still.
        let mut hint = HintAtLast { registry: self, due: false };
        let due = &mut hint.due;
        let changed = self
            .engine()
            .update(intent, &key::node(id.as_str()), |node: &mut NodeRecord| {
                let before = node.clone();
                mutate(node)?;
                if node.public_key != before.public_key {
                    return Err(Problem::new(ProblemCode::Immutable, format!("the key of node `{id}` never changes")));
                }
                // An earlier write whose answer was lost may have put it there, and nobody was told.
                *due |= routes_differently(&before, node) || told.is_some_and(|told| routes_differently(told, node));
                Ok(())
            })
            .await?;
        hint.due |= !changed.written && told.is_none();
        Ok(changed)
    }

    /// The node's record, if it has one.
    ///
    /// # Errors
    /// Store errors.
    pub async fn node(&self, id: &NodeId) -> Result<Option<Stored<NodeRecord>>, Problem> {
        self.engine().try_load(&key::node(id.as_str())).await
    }

    /// Ids of all nodes that have a record, readable or not.
    ///
    /// # Errors
    /// Store errors.
    pub async fn node_ids(&self) -> Result<Vec<NodeId>, Problem> {
        let listing = self.engine().list(prefix::NODES).await?;
        let keys = listing.entries.iter().filter(|listed| NodeRecord::is_key(&listed.key));
        Ok(keys.filter_map(|listed| key::name_of(&listed.key, prefix::NODES)?.parse().ok()).collect())
    }
}

/// Mints a change hint when it is dropped, also with the future that holds it.
struct HintAtLast<'a> {
    registry: &'a Registry,
    due: bool,
}

impl Drop for HintAtLast<'_> {
    fn drop(&mut self) {
        if self.due {
            self.registry.mint_hint();
        }
    }
}

/// Whether the fleet's routing, or who takes over from whom, may follow from the difference.
fn routes_differently(before: &NodeRecord, after: &NodeRecord) -> bool {
    after.leaving != before.leaving
        || after.draining != before.draining
        || after.drain != before.drain
        || after.serving != before.serving
        || after.address != before.address
        || after.api != before.api
}

/// The record to write for a node that starts.
fn register(there: Option<&NodeRecord>, node: &NodeRecord, arrival: Arrival) -> Result<NodeRecord, Problem> {
    let id = &node.id;
    match (there, arrival) {
        (None, Arrival::Joining) => Ok(NodeRecord { draining: false, ..node.clone() }),
        (None, Arrival::Returning) => {
            let detail = format!("node `{id}` was removed from the fleet: `scafo sail --rejoin` brings it back");
            Err(Problem::new(ProblemCode::NotFound, detail))
        }
        (Some(there), Arrival::Joining | Arrival::Returning) if there.public_key != node.public_key => {
            let detail = format!("node `{id}` has another key: give this machine another `node.id`");
            Err(Problem::new(ProblemCode::ReferenceHeld, detail))
        }
        (Some(there), Arrival::Joining | Arrival::Returning) => Ok(NodeRecord {
            leaving: there.leaving,
            draining: false,
            drain: there.drain.clone(),
            fence: there.fence.max(node.fence),
            rest: there.rest.clone(),
            ..node.clone()
        }),
    }
}

#[cfg(test)]
mod tests {
    use scafo_store::{Fault, Operation};

    use super::*;
    use crate::registry::testing::{World, key_of, node};

    #[tokio::test(start_paused = true)]
    async fn an_id_is_one_key_for_ever() {
        let world = World::new();
        let registry = &world.registry;
        registry.register_node(&node("a", 1), Arrival::Joining).await.unwrap();
        registry.register_node(&node("a", 1), Arrival::Returning).await.unwrap();
        let refused = registry.register_node(&node("a", 2), Arrival::Joining).await.unwrap_err();
        assert_eq!(refused.code, ProblemCode::ReferenceHeld);
        // Removing the node leaves the reservation behind.
        registry.engine().delete(&Intent::new(), "_scafo/nodes/a.json").await.unwrap();
        let refused = registry.register_node(&node("a", 2), Arrival::Joining).await.unwrap_err();
        assert_eq!(refused.code, ProblemCode::ReferenceHeld);
        registry.register_node(&node("a", 1), Arrival::Joining).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_cannot_take_the_id_of_an_operator() {
        let world = World::new();
        world.registry.init_operator(&"op".parse().unwrap(), &key_of(9), false).await.unwrap();
        for key in [9, 1] {
            let refused = world.registry.register_node(&node("op", key), Arrival::Joining).await.unwrap_err();
            assert_eq!(refused.code, ProblemCode::ReferenceHeld);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_removed_node_does_not_come_back_by_itself() {
        let world = World::new();
        let refused = world.registry.register_node(&node("a", 1), Arrival::Returning).await.unwrap_err();
        assert_eq!(refused.code, ProblemCode::NotFound);
        assert!(refused.detail.contains("--rejoin"), "{refused}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_clears_draining_and_keeps_leaving_and_the_unknown() {
        let world = World::new();
        let registry = &world.registry;
        registry.register_node(&node("a", 1), Arrival::Joining).await.unwrap();
        let id = "a".parse().unwrap();
        registry
            .update_node(&Intent::new(), &id, |node| {
                node.leaving = true;
                node.draining = true;
                node.rest.insert("later".to_owned(), 7.into());
                Ok(())
            })
            .await
            .unwrap();
        let again = registry.register_node(&node("a", 1), Arrival::Returning).await.unwrap();
        assert!(again.leaving && !again.draining);
        assert_eq!(again.rest["later"], 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_heartbeat_is_not_hinted_and_a_drain_is() {
        let world = World::new();
        let registry = &world.registry;
        registry.register_node(&node("a", 1), Arrival::Joining).await.unwrap();
        let id = "a".parse().unwrap();
        registry.flush_hints(std::time::Duration::from_secs(60)).await.unwrap();
        let arrived = registry.hint().await.unwrap();
        assert!(arrived.is_some(), "an arrival is hinted");
        let later = registry.clock().wall().after(std::time::Duration::from_secs(30));
        registry
            .update_node(&Intent::new(), &id, |node| {
                node.heartbeat_at = later;
                Ok(())
            })
            .await
            .unwrap();
        registry.flush_hints(std::time::Duration::from_secs(60)).await.unwrap();
        assert_eq!(registry.hint().await.unwrap(), arrived);
        registry
            .update_node(&Intent::new(), &id, |node| {
                node.draining = true;
                Ok(())
            })
            .await
            .unwrap();
        registry.flush_hints(std::time::Duration::from_secs(60)).await.unwrap();
        assert_ne!(registry.hint().await.unwrap(), arrived);
    }

    /// Loses the answers of `a`'s writes, and then whatever else is asked of its record, until it is told to stop.
    fn lose_answers(world: &World) {
        let mut sent = false;
        world.memory.plan(move |operation| match operation {
            Operation::Put("_scafo/nodes/a.json", _) => {
                sent = true;
                Some(Fault::LoseAnswer)
            }
            Operation::Get("_scafo/nodes/a.json") if sent => Some(Fault::LoseRequest),
            _ => None,
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_whose_answer_was_lost_is_hinted_by_it_and_by_the_call_that_finds_it_done() {
        let world = World::new();
        let registry = &world.registry;
        let told = registry.register_node(&node("a", 1), Arrival::Joining).await.unwrap();
        let id: NodeId = "a".parse().unwrap();
        let hint = async || {
            registry.flush_hints(std::time::Duration::from_secs(60)).await.unwrap();
            registry.hint().await.unwrap()
        };
        let leave = |node: &mut NodeRecord| {
            node.draining = true;
            Ok(())
        };
        let mut last = hint().await;
        let mut moves = async |why: &str| {
            let now = hint().await;
            assert_ne!(std::mem::replace(&mut last, now.clone()), now, "{why}");
        };
        lose_answers(&world);
        let lost = registry.change_node(&Intent::new(), &id, Some(&told), leave).await.unwrap_err();
        assert_eq!(lost.code, ProblemCode::StoreUnavailable);
        moves("it may have landed").await;
        world.memory.plan(|_| None);
        registry.change_node(&Intent::new(), &id, Some(&told), leave).await.unwrap();
        moves("the first hint may have been read before it landed").await;
        registry.update_node(&Intent::new(), &id, leave).await.unwrap();
        moves("who does not know what was told says it again").await;
        let own = registry.node(&id).await.unwrap().unwrap().record;
        registry.change_node(&Intent::new(), &id, Some(&own), leave).await.unwrap();
        assert_eq!(hint().await, last, "everybody knows");
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_whose_caller_went_away_is_hinted() {
        let world = World::new();
        let registry = &world.registry;
        registry.register_node(&node("a", 1), Arrival::Joining).await.unwrap();
        registry.flush_hints(std::time::Duration::from_secs(60)).await.unwrap();
        let before = registry.hint().await.unwrap();
        lose_answers(&world);
        let (id, intent) = ("a".parse().unwrap(), Intent::new());
        let leave = registry.update_node(&intent, &id, |node| {
            node.leaving = true;
            Ok(())
        });
        assert!(tokio::time::timeout(std::time::Duration::from_secs(1), leave).await.is_err());
        registry.flush_hints(std::time::Duration::from_secs(60)).await.unwrap();
        assert_ne!(registry.hint().await.unwrap(), before);
    }

    #[tokio::test(start_paused = true)]
    async fn an_id_and_a_key_never_change() {
        let world = World::new();
        world.registry.register_node(&node("a", 1), Arrival::Joining).await.unwrap();
        let id: NodeId = "a".parse().unwrap();
        let update = world
            .registry
            .update_node(&Intent::new(), &id, |node| {
                node.id = "b".parse()?;
                Ok(())
            })
            .await;
        assert_eq!(update.unwrap_err().code, ProblemCode::Immutable);
        let update = world
            .registry
            .update_node(&Intent::new(), &id, |node| {
                node.public_key = key_of(3);
                Ok(())
            })
            .await;
        assert_eq!(update.unwrap_err().code, ProblemCode::Immutable);
    }
}

//! What a node keeps for its next run.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::in_force::Kept;
use crate::files;

/// The file system does not take it. The last one stays.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot keep state in {}: {cause}; free space there or set it right: until then placements count on this node as they did \
     before, and it takes over no lease", path.display()
)]
pub(crate) struct NotKept {
    path: PathBuf,
    cause: io::Error,
}

/// Where that is.
#[derive(Debug)]
pub(crate) enum Disk {
    /// In this file.
    File(PathBuf),
    /// With a simulation, which outlives the node.
    Memory(Arc<Mutex<Option<Kept>>>),
}

impl Disk {
    /// Returns once it would survive a crash.
    ///
    /// # Errors
    /// [`NotKept`].
    pub(crate) async fn keep(&self, kept: &Kept) -> Result<(), NotKept> {
        match self {
            Self::File(path) => files::write(path, kept).await.map_err(|cause| NotKept { path: path.clone(), cause }),
            Self::Memory(memory) => {
                *memory.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept.clone());
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use scafo_core::record::Fence;
    use scafo_store::MemoryBucket;

    use crate::node::testing::{Node, node, place, until_leads};

    async fn until_reconciled(node: &Node, ok: bool) -> Option<String> {
        let mut worlds = node.core.worlds.subscribe();
        let is = |reconcile: &scafo_core::view::ReconcileStatus| reconcile.ok == ok;
        let world = worlds.wait_for(|world| world.reconcile.as_ref().is_some_and(is)).await.unwrap();
        world.reconcile.as_ref().unwrap().error.clone()
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_takes_nothing_leaves_what_was_in_force_and_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let full = dir.path().join("full");
        let memory = MemoryBucket::new();
        let shop = place(&memory, 1).await;
        let mut node = node("a", memory.sibling(), &full).await;
        let said = until_reconciled(&node, false).await.unwrap();
        assert!(said.contains("state.json") && said.contains("free space"), "{said}");
        assert!(node.core.worlds.borrow().shown.placements.contains_key(&shop), "the bucket is seen all the same");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(node.desired.borrow().as_ref().map(|desired| desired.len()), Some(0));
        std::fs::create_dir(&full).unwrap();
        node.desired
            .wait_for(|desired| desired.as_ref().is_some_and(|desired| desired.contains_key(&shop)))
            .await
            .unwrap();
        assert_eq!(until_reconciled(&node, true).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_whose_disk_takes_no_claim_leaves_the_lease_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let full = dir.path().join("full");
        let memory = MemoryBucket::new();
        let alone = node("a", memory.sibling(), &full).await;
        let mut unkept = alone.core.unkept.subscribe();
        let refused = unkept.wait_for(Option::is_some).await.unwrap().unwrap();
        let other = node("b", memory.sibling(), dir.path()).await;
        assert!(until_leads(&other).await > refused);
        assert!(alone.core.lease.borrow().lead.is_none());
        let own = alone.core.registry.node(&"a".parse().unwrap()).await.unwrap().unwrap().record;
        assert_eq!(own.fence, Fence::default(), "a fence that would be forgotten is not told");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lone_node_leads_once_its_disk_takes_its_claim() {
        let dir = tempfile::tempdir().unwrap();
        let full = dir.path().join("full");
        let alone = node("a", MemoryBucket::new(), &full).await;
        let refused = alone.core.unkept.subscribe().wait_for(Option::is_some).await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(alone.core.lease.borrow().lead.is_none());
        std::fs::create_dir(&full).unwrap();
        assert!(until_leads(&alone).await > refused);
    }
}

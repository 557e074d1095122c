//! How much the intake has room for: deploys, and bytes of artifacts and unpacked trees.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The room of one node.
pub(super) struct Capacity {
    deploys: u32,
    bytes: u64,
    used: Mutex<Used>,
    freed: Notify,
}

#[derive(Debug, Default, Clone, Copy)]
struct Used {
    deploys: u32,
    bytes: u64,
    /// Deploys that hold an unpacked tree.
    trees: u32,
}

/// One deploy's place. Dropping it gives everything back.
pub(super) struct Slot {
    capacity: Arc<Capacity>,
    bytes: u64,
    tree: bool,
}

impl Capacity {
    pub(super) fn new(deploys: u32, bytes: u64) -> Arc<Self> {
        Arc::new(Self { deploys, bytes, used: Mutex::default(), freed: Notify::new() })
    }

    /// A place with `bytes` reserved; `None` when there is no room.
    pub(super) fn take(self: &Arc<Self>, bytes: u64) -> Option<Slot> {
        let mut used = self.used();
        let room = used.deploys < self.deploys && used.bytes.saturating_add(bytes) <= self.bytes;
        room.then(|| self.slot(&mut used, bytes))
    }

    /// A place for a deploy that was acknowledged before, room or not.
    pub(super) fn keep(self: &Arc<Self>, bytes: u64) -> Slot {
        self.slot(&mut self.used(), bytes)
    }

    /// Deploys that have a place, and places.
    pub(super) fn deploys(&self) -> (u32, u32) {
        (self.used().deploys, self.deploys)
    }

    /// Bytes that are reserved, and bytes that may be.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.used().bytes, self.bytes)
    }

    fn slot(self: &Arc<Self>, used: &mut Used, bytes: u64) -> Slot {
        used.deploys += 1;
        used.bytes += bytes;
        Slot { capacity: self.clone(), bytes, tree: false }
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Reserves up to `total` bytes in all; `false` when there is no room, and then nothing changes.
    pub(super) fn grow_to(&mut self, total: u64) -> bool {
        let more = total.saturating_sub(self.bytes);
        let mut used = self.capacity.used();
        if used.bytes.saturating_add(more) > self.capacity.bytes {
            return false;
        }
        used.bytes += more;
        self.bytes += more;
        true
    }

    /// Waits until a tree of up to `bytes` fits beside what is staged. The only tree is always let in, so that deploys that
    /// wait for each other's room cannot come about: the stage holds at most its bound and one tree.
    pub(super) async fn room_for_tree(&mut self, bytes: u64) {
        loop {
            let capacity = self.capacity.clone();
            let freed = capacity.freed.notified();
            {
                let mut used = capacity.used();
                if used.trees == 0 || used.bytes.saturating_add(bytes) <= capacity.bytes {
                    used.trees += 1;
                    used.bytes += bytes;
                    self.bytes += bytes;
                    self.tree = true;
                    return;
                }
            }
            freed.await;
        }
    }

    /// Reserves the bytes of a tree that is there already, room or not.
    pub(super) fn keep_tree(&mut self, bytes: u64) {
        let mut used = self.capacity.used();
        used.trees += 1;
        used.bytes += bytes;
        self.bytes += bytes;
        self.tree = true;
    }

    /// Gives back what the tree did not need.
    pub(super) fn shrink_by(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.capacity.used().bytes -= bytes;
        self.bytes -= bytes;
        self.capacity.freed.notify_waiters();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        {
            let mut used = self.capacity.used();
            used.deploys -= 1;
            used.bytes -= self.bytes;
            used.trees -= u32::from(self.tree);
        }
        self.capacity.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn what_is_full_takes_nothing_and_what_is_dropped_makes_room() {
        let capacity = Capacity::new(2, 100);
        let first = capacity.take(60).unwrap();
        assert!(capacity.take(60).is_none(), "too many bytes");
        let mut second = capacity.take(10).unwrap();
        assert!(capacity.take(0).is_none(), "too many deploys");
        assert!(second.grow_to(40) && !second.grow_to(41));
        drop(first);
        assert!(capacity.take(60).is_some());
    }

    #[test]
    fn the_only_tree_is_let_in_and_the_next_one_waits_for_room() {
        let capacity = Capacity::new(9, 100);
        let (mut first, mut second) = (capacity.take(50).unwrap(), capacity.take(50).unwrap());
        assert!(first.room_for_tree(500).now_or_never().is_some());
        assert!(second.room_for_tree(10).now_or_never().is_none());
        first.shrink_by(490);
        assert!(second.room_for_tree(10).now_or_never().is_none());
        drop(first);
        assert!(second.room_for_tree(10).now_or_never().is_some());
    }
}

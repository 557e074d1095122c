//! The first look at a bucket: whose it is, and whether it can be trusted with records.
//!
//! Order: the meta record is read first, so that nothing at all is written into a bucket of another version; then the store
//! is probed, so that nothing is created in a store that would lose it; then the meta record is created where there is none.

use std::sync::atomic::Ordering;

use scafo_core::{
    NodeId, Problem,
    key::META,
    record::{RegistryMeta, Rest, V1},
};
use scafo_store::probe;

use super::{Intent, Registry, Stored};

impl Registry {
    /// Makes sure of the bucket and answers whose it is. Safe to repeat. Every process probes, because that also finds out how the
    /// store wants its tags spelled, and none again once the store has passed.
    ///
    /// # Errors
    /// `store-nonconforming` for a store that fails the probe or a meta record of another version; `store-unavailable`.
    pub async fn bootstrap(&self, node: &NodeId) -> Result<RegistryMeta, Problem> {
        let there: Option<Stored<RegistryMeta>> = self.engine().try_load(META).await?;
        if !self.sound.load(Ordering::Relaxed) {
            probe(&**self.bucket()).await?;
            self.sound.store(true, Ordering::Relaxed);
        }
        if let Some(stored) = there {
            return Ok(stored.record);
        }
        let meta = RegistryMeta {
            v: V1,
            created_at: self.clock().wall(),
            created_by: node.clone(),
            installation: format!("{:032x}", rand::random::<u128>()),
            rest: Rest::new(),
        };
        // Two first nodes: the one whose create succeeded names the installation, the other finds it.
        Ok(self.engine().create(&Intent::new(), &meta).await?.stored.record)
    }

    /// Whose bucket this is, if it is anybody's yet.
    ///
    /// # Errors
    /// As [`Registry::bootstrap`].
    pub async fn meta(&self) -> Result<Option<RegistryMeta>, Problem> {
        Ok(self.engine().try_load(META).await?.map(|stored: Stored<RegistryMeta>| stored.record))
    }
}

#[cfg(test)]
mod tests {
    use scafo_core::ProblemCode;
    use scafo_store::{Bucket, Lie, MemoryBucket};

    use super::*;
    use crate::registry::testing::{World, put_raw};

    #[tokio::test(start_paused = true)]
    async fn two_first_nodes_agree_on_one_installation() {
        let world = World::new();
        let other = world.sibling();
        let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
        let (a, b) = tokio::join!(world.registry.bootstrap(&a), other.registry.bootstrap(&b));
        assert_eq!(a.unwrap(), b.unwrap());
        assert_eq!(world.memory.keys(""), [META]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_of_another_version_is_left_untouched() {
        let world = World::new();
        put_raw(&world.memory, META, r#"{"v": 2, "createdAt": "x"}"#).await;
        let before = world.memory.requests();
        let problem = world.registry.bootstrap(&"a".parse().unwrap()).await.unwrap_err();
        assert_eq!(problem.code, ProblemCode::StoreNonconforming);
        assert!(problem.detail.contains("record version 2"), "{problem:?}");
        assert_eq!(world.memory.requests() - before, 1, "one read and nothing else");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_lies_gets_no_record() {
        for lie in
            [Lie::IgnoresIfNoneMatch, Lie::IgnoresIfMatch, Lie::IgnoresRange, Lie::CutsListings, Lie::LosesMetadata]
        {
            let world = World::on(MemoryBucket::lying(lie));
            let problem = world.registry.bootstrap(&"a".parse().unwrap()).await.unwrap_err();
            assert_eq!(problem.code, ProblemCode::StoreNonconforming, "{lie:?}");
            assert_eq!(world.memory.keys(""), Vec::<String>::new(), "{lie:?}");
        }
    }
}

//! Placement records: written by the coordinator alone, under its fence.

use scafo_core::{
    ApplicationName, Problem, ProblemCode, key,
    record::{CoordinatorLease, PlacementRecord},
};
use scafo_store::{Condition, Put, PutOptions};

use super::{Changed, Guard, Intent, Record, Registry, Step, Stored, engine::WRITE_ID};

impl Registry {
    /// Writes where an application runs. `holder` is asked right before each conditional write whether the lease still stands.
    /// A record that already says the same is left alone, whatever its fence.
    ///
    /// # Errors
    /// `lease-lost` if a newer coordinator has written, `holder` refuses or the intent's authority ended; `cas-conflict` if
    /// the bucket does not tell whether the write took place and somebody else wrote since: decide anew; store errors.
    pub async fn put_placement(
        &self,
        intent: &Intent,
        placement: &PlacementRecord,
        holder: &dyn Guard,
    ) -> Result<Changed<PlacementRecord>, Problem> {
        let intent = intent.clone().once();
        let key = placement.key();
        let decide = |there: Option<&Stored<PlacementRecord>>| place(there.map(|stored| &stored.record), placement);
        self.engine().change(&intent, &key, Some(holder), decide).await
    }

    /// As [`Registry::put_placement`], also over a record that says the same already: nodes hold that body back.
    ///
    /// # Errors
    /// As [`Registry::put_placement`].
    pub async fn restamp_placement(
        &self,
        intent: &Intent,
        placement: &PlacementRecord,
        holder: &dyn Guard,
    ) -> Result<Changed<PlacementRecord>, Problem> {
        let intent = intent.clone().once();
        let key = placement.key();
        let decide = |there: Option<&Stored<PlacementRecord>>| {
            over(there.map(|stored| &stored.record), placement).map(Step::Write)
        };
        self.engine().change(&intent, &key, Some(holder), decide).await
    }

    /// The placement of the application, if there is one.
    ///
    /// # Errors
    /// Store errors.
    pub async fn placement(&self, name: &ApplicationName) -> Result<Option<Stored<PlacementRecord>>, Problem> {
        self.engine().try_load(&key::placement(name)).await
    }

    /// One try to write the lease, and its bare outcome: what unknown means depends on how long the holder still has.
    ///
    /// # Errors
    /// Only if this try certainly wrote nothing.
    pub async fn put_lease(&self, lease: &CoordinatorLease, condition: Condition) -> Result<Put, Problem> {
        let options = PutOptions {
            condition,
            // The nonce is new with each write, so it can be the write id too.
            metadata: [(WRITE_ID.to_owned(), lease.nonce.clone())].into(),
            content_type: Some("application/json".to_owned()),
        };
        let body = scafo_core::record::to_bytes(lease).into();
        Ok(self.bucket().put(key::LEASE, body, options).await?)
    }

    /// The lease as it stands; one try.
    ///
    /// # Errors
    /// Store errors.
    pub async fn lease(&self) -> Result<Option<Stored<CoordinatorLease>>, Problem> {
        self.engine().load_once(key::LEASE).await
    }
}

fn place(there: Option<&PlacementRecord>, placement: &PlacementRecord) -> Result<Step<PlacementRecord>, Problem> {
    let next = over(there, placement)?;
    let same = |there: &PlacementRecord| {
        there.nodes == next.nodes && there.wanted == next.wanted && there.reason == next.reason
    };
    Ok(if there.is_some_and(same) { Step::Keep } else { Step::Write(next) })
}

/// What to write over `there`.
fn over(there: Option<&PlacementRecord>, placement: &PlacementRecord) -> Result<PlacementRecord, Problem> {
    let Some(there) = there else { return Ok(placement.clone()) };
    if there.fence > placement.fence {
        let detail = format!("a newer coordinator (fence {}) has placed `{}`", there.fence.0, placement.application);
        return Err(Problem::new(ProblemCode::LeaseLost, detail));
    }
    Ok(PlacementRecord { rest: there.rest.clone(), ..placement.clone() })
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use scafo_core::record::{Fence, Rest, V1};
    use scafo_store::Fault;

    use super::*;
    use crate::registry::testing::World;

    struct Holding(bool);

    #[async_trait]
    impl Guard for Holding {
        async fn check(&self) -> Result<(), Problem> {
            if self.0 { Ok(()) } else { Err(Problem::new(ProblemCode::LeaseLost, "it ran out")) }
        }
    }

    fn placement(world: &World, fence: u64, nodes: &[&str]) -> PlacementRecord {
        PlacementRecord {
            v: V1,
            application: "shop".parse().unwrap(),
            nodes: nodes.iter().map(|node| node.parse().unwrap()).collect(),
            wanted: 1,
            reason: None,
            fence: Fence(fence),
            updated_at: world.registry.clock().wall(),
            rest: Rest::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_under_a_stale_fence_is_lease_lost() {
        let world = World::new();
        let put = async |fence, nodes: &[&str], holding| {
            world.registry.put_placement(&Intent::new(), &placement(&world, fence, nodes), &Holding(holding)).await
        };
        assert!(put(5, &["a"], true).await.unwrap().written);
        assert_eq!(put(4, &["b"], true).await.unwrap_err().code, ProblemCode::LeaseLost);
        assert!(!put(6, &["a"], true).await.unwrap().written, "the same placement is left alone");
        assert_eq!(put(6, &["b"], false).await.unwrap_err().code, ProblemCode::LeaseLost);
        assert!(put(6, &["b"], true).await.unwrap().written);
    }

    /// Holds for the first look only.
    struct HoldsOnce(std::sync::atomic::AtomicBool);

    #[async_trait]
    impl Guard for HoldsOnce {
        async fn check(&self) -> Result<(), Problem> {
            Holding(!self.0.swap(true, std::sync::atomic::Ordering::Relaxed)).check().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_is_asked_again_before_each_try_of_a_write() {
        for fault in [Fault::LoseRequest, Fault::LoseAnswer, Fault::Busy, Fault::Conflict] {
            let world = World::new();
            world.memory.fail_next_puts("_scafo/placement/shop.json", [fault]);
            let holder = HoldsOnce(std::sync::atomic::AtomicBool::new(false));
            let put = world.registry.put_placement(&Intent::new(), &placement(&world, 5, &["a"]), &holder).await;
            assert_eq!(put.unwrap_err().code, ProblemCode::LeaseLost, "{fault:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_fenced_write_in_doubt_does_not_run_again_over_a_newer_body() {
        let world = World::new();
        let other = world.sibling();
        world.memory.fail_next_puts("_scafo/placement/shop.json", [Fault::HoldBack]);
        let memory = world.memory.sibling();
        // While the first try hangs, somebody else writes; then the first one's retry is refused.
        let theirs = placement(&other, 5, &["b"]);
        let race = async {
            other.registry.put_placement(&Intent::new(), &theirs, &Holding(true)).await.unwrap();
        };
        let ours = placement(&world, 5, &["a"]);
        let (intent, holder) = (Intent::new(), Holding(true));
        let (ours, ()) = tokio::join!(world.registry.put_placement(&intent, &ours, &holder), race);
        assert_eq!(ours.unwrap_err().code, ProblemCode::CasConflict);
        memory.release_held();
        let stands = world.registry.placement(&"shop".parse().unwrap()).await.unwrap().unwrap().record;
        assert_eq!(stands.nodes, theirs.nodes);
    }
}

//! Changes that landed without an answer and were written over before anybody could tell; and bodies that never come back.

use std::collections::BTreeSet;
use std::time::Duration;

use scafo_core::record::{ApplicationRecord, Replicas};
use scafo_core::{ApplicationName, key};
use scafo_store::Fault;

use super::super::Intent;
use crate::registry::testing::World;

fn shop() -> ApplicationName {
    "shop".parse().unwrap()
}

fn count(count: u32) -> Replicas {
    Replicas::Count(count.try_into().unwrap())
}

async fn replicas(world: &World) -> Option<Replicas> {
    world.registry.application(&shop()).await.unwrap().unwrap().record.replicas
}

/// Sets two, of which the first try lands without an answer and the next ones do not arrive, while somebody else, who sees that
/// it landed, sets three.
async fn overtaken(ours: &World, theirs: &World, times: u32) {
    let key = key::application(&shop());
    ours.memory.fail_next_puts(&key, [Fault::LoseAnswer, Fault::LoseRequest, Fault::LoseRequest, Fault::LoseRequest]);
    let theirs = async {
        while replicas(theirs).await != Some(count(2)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for time in 0..times {
            theirs.registry.set_replicas(&shop(), count(3 + time)).await.unwrap();
        }
    };
    let name = shop();
    let (ours, ()) = tokio::join!(ours.registry.set_replicas(&name, count(2)), theirs);
    ours.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_setter_that_landed_and_was_overtaken_is_not_made_again() {
    let world = World::new();
    world.registry.create_application(&shop()).await.unwrap();
    let other = world.sibling();
    for times in [1, 2, 20] {
        overtaken(&world, &other, times).await;
        assert_eq!(replicas(&world).await, Some(count(2 + times)), "what was decided last stands");
    }
}

#[tokio::test(start_paused = true)]
async fn a_setter_under_an_operation_is_recognised_by_another_process_also_when_it_was_overtaken() {
    let world = World::new();
    world.registry.create_application(&shop()).await.unwrap();
    let operation = "00000000000000000000000000000001";
    world.registry.under(operation).set_replicas(&shop(), count(2)).await.unwrap();
    let next = world.sibling();
    next.registry.set_replicas(&shop(), count(3)).await.unwrap();
    let again = next.registry.under(operation).set_replicas(&shop(), count(2)).await.unwrap();
    assert_eq!(again.replicas, Some(count(3)), "the answer is what stands");
    assert_eq!(replicas(&world).await, Some(count(3)));
    next.registry.set_replicas(&shop(), count(2)).await.unwrap();
    assert_eq!(replicas(&world).await, Some(count(2)), "another call is another operation");
}

/// Otherwise a write that comes late finds, behind two changes that undo each other, the tag that it was to replace.
#[tokio::test(start_paused = true)]
async fn no_body_of_an_application_comes_back() {
    let world = World::new();
    world.registry.create_application(&shop()).await.unwrap();
    let mut tags = BTreeSet::new();
    for turn in 0..6 {
        world.registry.set_blocked(&shop(), turn % 2 == 0).await.unwrap();
        let stored = world.registry.application(&shop()).await.unwrap().unwrap();
        assert!(tags.insert(stored.etag.to_string()), "turn {turn}");
    }
    world.memory.fail_next_puts(&key::application(&shop()), [Fault::HoldBack]);
    world.registry.set_blocked(&shop(), true).await.unwrap();
    world.registry.set_blocked(&shop(), false).await.unwrap();
    assert_eq!(world.memory.release_held(), 1, "the first try arrives");
    assert!(!world.registry.application(&shop()).await.unwrap().unwrap().record.blocked);
    // What changes nothing writes nothing.
    let keep = |_: &mut ApplicationRecord| Ok(());
    assert!(!world.registry.update_application(&Intent::new(), &shop(), keep).await.unwrap().written);
}

//! Random histories of several writers on one bucket that loses, delays and refuses.

use std::sync::Mutex;

use proptest::prelude::*;
use scafo_core::ProblemCode;
use scafo_store::{Fault, MemoryBucket, Operation};

use super::{SHOP, label, labels, shop};
use crate::registry::{Intent, testing::World};

/// A small generator, so that a failing case replays from its seed alone.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        // xorshift64*, which never leaves zero: hence the odd start.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % sides
    }
}

/// Faults for three requests in ten; a held-back write arrives at some later request.
fn misbehave(memory: &MemoryBucket, seed: u64) {
    let dice = Mutex::new(Dice(seed | 1));
    let late = memory.sibling();
    memory.plan(move |operation| {
        let mut dice = dice.lock().unwrap();
        if dice.roll(4) == 0 {
            late.release_held();
        }
        if !operation_is_ours(operation) || dice.roll(10) >= 3 {
            return None;
        }
        Some(match dice.roll(5) {
            0 => Fault::LoseRequest,
            1 => Fault::LoseAnswer,
            2 => Fault::HoldBack,
            3 => Fault::Busy,
            _ => Fault::Conflict,
        })
    });
}

fn operation_is_ours(operation: Operation<'_>) -> bool {
    match operation {
        Operation::Get(key) | Operation::Put(key, _) | Operation::Delete(key) => key == SHOP,
        Operation::List(_) => false,
    }
}

/// What one writer was told about its writes.
#[derive(Default)]
struct Told {
    done: Vec<String>,
    unclear: usize,
}

async fn write_labels(world: &World, writer: usize, once: bool) -> Told {
    let mut told = Told::default();
    for number in 0..6 {
        let name = format!("w{writer}-{number}");
        let intent = if once { Intent::new().once() } else { Intent::new() };
        match label(world, &intent, &name).await {
            Ok(_) => told.done.push(name),
            Err(problem) => {
                assert!(
                    matches!(problem.code, ProblemCode::CasConflict | ProblemCode::StoreUnavailable),
                    "{problem:?}"
                );
                told.unclear += 1;
            }
        }
    }
    told
}

fn nothing_acknowledged_is_lost(seed: u64, once: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let calm = World::new();
        calm.registry.create_application(&shop()).await.unwrap();
        let worlds: Vec<World> = (0..4).map(|_| calm.sibling()).collect();
        for (number, world) in worlds.iter().enumerate() {
            misbehave(&world.memory, seed.wrapping_add(number as u64 * 0x9E37_79B9));
        }
        let writers = worlds.iter().enumerate().map(|(writer, world)| write_labels(world, writer, once));
        let told = futures_util::future::join_all(writers).await;
        calm.memory.release_held();
        let stands = labels(&calm).await;
        for told in told {
            for name in &told.done {
                assert!(stands.contains_key(name), "seed {seed}: {name} was acknowledged and is lost");
            }
            assert_eq!(told.done.len() + told.unclear, 6);
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_acknowledged_update_is_lost(seed in any::<u64>()) {
        nothing_acknowledged_is_lost(seed, false);
    }

    #[test]
    fn no_acknowledged_single_update_is_lost(seed in any::<u64>()) {
        nothing_acknowledged_is_lost(seed, true);
    }

    /// Of creates at once through a misbehaving bucket at most one is told that it did it; if all were answered, exactly one.
    #[test]
    fn at_most_one_create_is_told_that_it_was_the_one(seed in any::<u64>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let calm = World::new();
            let worlds: Vec<World> = (0..4).map(|_| calm.sibling()).collect();
            for (number, world) in worlds.iter().enumerate() {
                misbehave(&world.memory, seed.wrapping_add(number as u64 * 0x9E37_79B9));
            }
            let name = shop();
            let results = futures_util::future::join_all(
                worlds.iter().map(|world| world.registry.create_application(&name)),
            ).await;
            calm.memory.release_held();
            let created = results.iter().filter(|result| result.as_ref().is_ok_and(|changed| changed.written)).count();
            let answered = results.iter().filter(|result| result.is_ok()).count();
            assert!(created <= 1, "seed {seed}: {created} creates");
            if answered == results.len() {
                assert_eq!(created, 1, "seed {seed}");
            }
        });
    }
}

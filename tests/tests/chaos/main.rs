//! Chaos: for a while, processes of a node are killed, stopped and told to end at random, its disk fills up and its supervisor dies,
//! while twenty applications are under a constant load whose every answer is checked, and deploys go on.
//!
//! A request may fail only where one of the reasons in [`allowed`] explains it. Nothing may be left at the end. How much was sent,
//! what failed and why, and how long each recovery took is printed.
//!
//! `SCAFO_CHAOS_SECONDS` sets how long it goes on, `SCAFO_TEST_SEED` what happens in which order.

// Helpers of tests, outside of the functions that are marked as such.
#![allow(clippy::panic, clippy::unwrap_used)]

mod allowed;
mod disk;
mod events;
mod fleet;
mod leases;
mod load;
mod report;
mod starts;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use scafo_core::Timestamp;

use crate::disk::Disk;
use crate::events::Chaos;
use crate::fleet::Subject;
use crate::load::Loads;

fn seconds() -> u64 {
    let set = std::env::var("SCAFO_CHAOS_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    set.unwrap_or(if std::env::var_os("SCAFO_TEST_LONG").is_some() { 600 } else { 50 })
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_dies_only_what_it_held_is_lost_and_nothing_is_left() {
    let seed = std::env::var("SCAFO_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    eprintln!("SCAFO_TEST_SEED={seed}");
    eprintln!(
        "no steps of the clock, which everybody on this machine reads: the tests of confinement have them, on a machine of their own"
    );
    let disk = Arc::new(Disk::new());
    let subject = Subject::start(&disk).await;
    let before = subject.descriptors();
    let begun = Timestamp::from_system(std::time::SystemTime::now()).to_string();
    let loads = Loads::start(&subject);
    let mut chaos = Chaos::new(&subject, &disk, StdRng::seed_from_u64(seed));
    let until = Instant::now() + Duration::from_secs(seconds());
    while Instant::now() < until {
        chaos.strike().await;
    }
    let mut log = chaos.settle().await;
    log.begun = begun;
    let answers = loads.stop().await;
    let after = subject.descriptors();
    log.leaks.extend(report::grown(&before, &after));
    log.leaks.extend(subject.stop().await);
    let verdict = report::print(seed, &answers, &log);
    assert!(verdict.is_empty(), "SCAFO_TEST_SEED={seed}: {verdict:#?}");
}

use super::tests::Test;
use super::*;

/// Long random lives, against what must hold whatever happens.
#[test]
fn no_life_breaks_a_rule() {
    use rand::{RngExt as _, SeedableRng as _};
    let seed = std::env::var("SCAFO_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("SCAFO_TEST_SEED={seed}");
    let mut dice = rand::rngs::StdRng::seed_from_u64(seed);
    for _ in 0..2000 {
        let mut test = Test::new();
        let (mut runs, mut wanted, mut asked) = (false, false, false);
        let mut floor = 0;
        let mut second = 0;
        for _ in 0..60 {
            second += dice.random_range(0..40);
            let event = match dice.random_range(0..9) {
                0..2 => Event::Wanted,
                2 => Event::Renewed,
                3 => Event::Unwanted,
                4 if dice.random_bool(0.2) => Event::Hurried,
                5 if runs => {
                    Event::Ended([Exit::Code(0), Exit::Code(3), Exit::Code(1), Exit::Signal(9)][second as usize % 4])
                }
                6 if runs => Event::Probed(Found::Ready),
                7 if runs => Event::Probed(Found::Silent),
                _ => Event::Time,
            };
            match event {
                Event::Wanted | Event::Renewed => wanted = true,
                Event::Unwanted | Event::Hurried => wanted = false,
                _ => {}
            }
            if let Event::Ended(exit) = event {
                runs = false;
                floor = if asked && exit == Exit::Code(0) { 0 } else { second + 10 };
                // A SIGKILL of ours and an exit 0 that it overtook still waits: sooner is what must not be.
                asked = false;
            }
            match test.step(second, event) {
                Some(Effect::Spawn) => {
                    assert!(wanted, "what is not wanted was started");
                    assert!(!runs, "a second process");
                    assert!(second >= floor, "started at {second}, not before {floor}");
                    runs = true;
                    assert_eq!(test.step(second, Event::Spawned), None);
                }
                Some(Effect::Terminate) => {
                    assert!(runs && !wanted, "what is wanted was asked to end");
                    asked = true;
                }
                Some(Effect::Kill) => assert!(runs, "nothing to kill"),
                None => {}
            }
            if wanted && !runs && !matches!(test.machine.phase, Phase::Stopping { .. }) {
                let wake = test.machine.wake().expect("what is wanted and waits is woken");
                assert!(wake <= test.at(second + 61), "no pause is longer than a minute");
            }
        }
    }
}

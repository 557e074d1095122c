//! Properties over generated input, for as long as the environment says.
//!
//! Every run of the tests looks at some thousand inputs. With `SCAFO_FUZZ_SECONDS=60` each property goes on with new ones for a
//! minute, which is what the continuous integration asks for.

use std::time::{Duration, Instant};

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

/// Checks a property with rounds of so many inputs, and panics with the smallest input that was found to break it.
pub(crate) fn holds<S: Strategy>(cases: u32, input: &S, property: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let seconds = std::env::var("SCAFO_FUZZ_SECONDS").map_or(0, |text| text.parse().expect("a number of seconds"));
    let until = Instant::now() + Duration::from_secs(seconds);
    loop {
        // Each runner begins with a seed of its own.
        let config = Config { cases, failure_persistence: None, ..Config::default() };
        if let Err(broken) = TestRunner::new(config).run(input, &property) {
            panic!("{broken}");
        }
        if Instant::now() >= until {
            return;
        }
    }
}

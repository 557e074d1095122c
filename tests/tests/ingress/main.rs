//! Real ingresses in front of real nodes. `make test-tools` installs what is not scafo's own.

// Code of tests: a panic is how it says what is wrong.
#![allow(clippy::panic, clippy::unwrap_used, missing_docs)]

mod certificates;
mod consumers;
mod lookup;
mod nodes;
mod polls;
mod stable;
mod storage;
mod uninterrupted;

/// Whether to run longer than CI has time for.
pub(crate) fn long() -> bool {
    std::env::var_os("SCAFO_TEST_LONG").is_some_and(|value| value == "1")
}

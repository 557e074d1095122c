//! The API of whole nodes: its description, its rules, and what becomes of a request when a part of the node dies.

// Helpers of tests, outside of the functions that are marked as such.
#![allow(clippy::panic, clippy::unwrap_used)]

mod commands;
mod fuzz;
mod kills;
mod specification;
mod surface;

/// Whether this run may take long.
fn long() -> bool {
    std::env::var_os("SCAFO_TEST_LONG").is_some_and(|value| value == "1")
}

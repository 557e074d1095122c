//! Whole nodes, from the command line to the answer of a Worker.

// Helpers of tests, outside of the functions that are marked as such.
#![allow(clippy::panic, clippy::unwrap_used)]

mod adoption;
mod bad_input;
mod deletion;
mod deploy;
mod examples;
mod foreground;
mod kills;
mod leaving;
mod queued;
mod restart;
mod workloads;

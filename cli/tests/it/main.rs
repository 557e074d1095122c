//! The real command against a node that this test plays: what goes over the wire, what is printed where, and how it exits.

// Helpers of tests are tests: what goes wrong in them fails the test.
#![allow(clippy::unwrap_used, clippy::panic)]

mod administration;
mod commands;
mod deploy;
mod local;
mod node;
mod nodes;
mod rotation;
mod run;
mod surface;

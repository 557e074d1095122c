//! The supervisor as a process, over daemons and a celld that are not the real ones.
//!
//! What stands in for them is an executable of its own, `tests/fake`. So the sockets, the settings, the signals and what a daemon
//! may do are the real ones.

// clippy.toml allows these in test functions; here everything is a test.
#![allow(clippy::unwrap_used, clippy::panic)]

mod applications;
mod daemons;
mod fakes;
mod manager;
mod node;

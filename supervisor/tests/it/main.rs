//! The supervisor as a process, over daemons and a celld that are not the real ones.
//!
//! What stands in for them is this very executable: scripts with the daemons' names start it again with `FAKE` set, and the "test"
//! [`fakes::stand_in`] then behaves as that daemon. So the sockets, the settings and the signals are the real ones.

// clippy.toml allows these in test functions; here everything is a test.
#![allow(clippy::unwrap_used, clippy::panic)]

mod applications;
mod daemons;
mod fakes;
mod manager;
mod node;

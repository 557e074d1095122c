//! Several whole nodes on one bucket, and what happens to them when it, the network or one of them does not do what it should.

// Code of tests: a panic is how it says what is wrong.
#![allow(clippy::panic, clippy::unwrap_used)]

mod bad_records;
mod faults;
mod operations;
mod partition;
mod support;

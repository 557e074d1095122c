//! The bucket against true stores, and against stores that fail or lie: the fault proxy in front of `scafo-bucketd`.

// Code of tests: a panic is how it says what is wrong.
#![allow(clippy::panic, clippy::unwrap_used)]

mod conformance;
mod faults;
mod history;
mod lies;
mod registers;
mod registry;
mod support;

//! The API over loopback, between a registry and a router that are the test's.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends where something is not as it must be")]

mod administration;
mod authentication;
mod confined;
mod deploys;
mod domains;
mod fake_administration;
mod fake_storage;
mod fakes;
mod harness;
mod http;
#[allow(dead_code, reason = "the unit tests of the verifier use the rest of it")]
mod issuer;
mod matrix;
mod mutations;
mod observed;
mod oracle;
mod pressure;
mod reads;
mod routing;
mod storage;
mod workloads;
mod worlds;

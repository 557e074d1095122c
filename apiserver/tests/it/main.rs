//! The API over loopback, between a registry and a router that are the test's.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends where something is not as it must be")]

mod authentication;
mod deploys;
mod fakes;
mod harness;
mod http;
mod reads;
mod routing;

//! The daemon as a whole, beside a supervisor that only pretends.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod administration;
mod deploys;
mod fleet;
mod node;
mod observations;
mod starts;
mod storage;
mod supervisor;

//! Real nodes for tests and benchmarks: every process is the one that ships, started by `scafo dev` on ports of its own.

// Code of tests: a panic is how it says what is wrong.
#![allow(clippy::panic)]

pub mod api;
pub mod fault_proxy;
pub mod fleet;
pub mod ingresses;
pub mod linear;
pub mod load;
pub mod node;
pub mod process;
pub mod project;
pub mod stores;
pub mod uml;
pub mod wait;

pub use api::Api;
pub use node::{Dev, Node};
pub use project::Project;

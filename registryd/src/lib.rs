//! `scafo-registryd`: owns the bucket. Every registry record is written here, under the rules of the registry; the lease of
//! the coordinator is held here; and here it is decided what this node runs.
//!
//! Decisions are functions and small state machines without I/O, which take the time as an argument: `coordinator::lease`,
//! `coordinator::placement`, `node::desired`, `node::adoption`, `node::in_force`, `node::liveness`, `deploy::verdict`,
//! `deploy::judge`. Drivers beside them carry them out. [`daemon`] puts the parts together.

mod bootstrap;
mod coordinator;
pub mod daemon;
mod deploy;
mod figures;
mod files;
#[doc(hidden)]
pub mod measure;
#[cfg(test)]
mod model;
mod node;
pub mod observe;
mod parts;
pub mod registry;
mod service;
mod supervisor;
pub mod tls;

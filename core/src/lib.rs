//! The vocabulary of scafo, shared by every process and by the command line.
//!
//! Everything here is pure: no runtime, no network, no clock of its own, no files. A value of a type from this crate has
//! been checked already, because its constructors are the only way to one.

pub mod address;
pub mod config;
pub mod deploy;
pub mod domain;
#[cfg(test)]
mod fuzz;
pub mod hex;
pub mod id;
pub mod key;
pub mod observation;
pub mod problem;
pub mod record;
pub mod routing;
pub mod scope;
pub mod settings;
pub mod snapshot;
pub mod text;
pub mod time;
pub mod token;
pub mod trust;
pub mod view;

pub use id::{ApplicationName, DeployId, DeploymentVersion, NodeId, OperatorId};
pub use observation::ObservationKey;
pub use problem::{Problem, ProblemCode};
pub use time::Timestamp;

//! The supervisor: starts, watches, restarts and stops every process of a node.
//!
//! It owns every listening socket, the state directory, the node's key and the celld processes. It never talks to the bucket,
//! holds no business rule, and reads nothing from the network but bounded answers of processes that it started. `scafo sail` and
//! `scafo dev` call [`run`] and thereby become the supervisor.

mod api;
mod celld;
mod confine;
mod daemon;
mod deploy;
mod ending;
mod figures;
mod http;
mod job;
mod leave;
mod manager;
mod node;
mod reload;
mod run;
mod service;
mod signals;
mod sockets;
mod spawn;
mod state;

pub use api::{DevOptions, EXIT_REFUSED, Ended, Error, NODE_FILE, OnReady, Options, Pids, Ready, Reload, holder};
pub use run::run;

//! The public HTTP API of a node.
//!
//! HTTP, authentication, bounds, problem documents, and the intake of deploys: staging, unpacking, handing over. What is true
//! about the fleet is the registry daemon's to say, and what is routed is the router daemon's; this process holds no bucket
//! credentials, starts no process and keeps nothing that it could not lose, but for two things in its directory: artifacts
//! that were accepted and are not published yet, and the ids of the tokens that were used in the last minutes.

mod administration;
mod answer;
pub mod app;
mod auth;
mod body;
pub mod clock;
mod deploy;
mod documents;
mod encoding;
mod figures;
#[cfg(test)]
#[path = "../../core/src/fuzz.rs"]
mod fuzz;
pub mod guard;
pub mod metrics;
mod openapi;
mod registry;
mod routes;
pub mod server;
mod storage;
pub mod surface;

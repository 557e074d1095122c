//! `celld-workerd`: a development stand-in for celld.
//!
//! It takes celld's place under the supervisor: same command line, same environment, same ports, same bucket objects, same
//! health route, same signals, same exit codes. Underneath it runs the application in the open-source `workerd` and bundles
//! with `esbuild`.
//!
//! What it refuses to do: call itself celld, share a fleet with one, run on a bucket that nobody set aside for it, accept a
//! project that needs what it cannot run, or fetch a tool by itself. What it cannot do: replicate. The data of Durable
//! Objects lives in one directory on one disk.
#![forbid(unsafe_code)]

mod failure;

pub mod args;
pub mod environment;
pub mod settings;

mod bucket;
mod cron;
mod hooks;
mod names;
mod shapes;
mod tools;
mod version;

mod deploy;
mod diagnose;
mod lease;
mod node;
mod output;
mod probe;
mod run;
mod workerd;

pub use failure::{Exit, Failure};
pub use run::run;

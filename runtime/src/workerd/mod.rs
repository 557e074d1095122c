//! Driving workerd: what it is told, how it is started, and that it never outlives this process.

mod cache;
mod config;
mod launcher;
mod load;
mod process;
mod shim;
mod stage;

pub(crate) use cache::AssetCache;
pub(crate) use config::{HTTP_SOCKET, PROTO_HEADER, SIDE_SOCKET};
pub(crate) use launcher::Launcher;
pub(crate) use load::{Deployment, load, read_pointer};
pub(crate) use process::Workerd;
pub(crate) use shim::exec;
pub(crate) use stage::{Stage, Storage};

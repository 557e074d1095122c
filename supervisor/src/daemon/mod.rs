//! Our own daemons: started in order, asked whether they are ready, restarted when they end, ended when they hang.

mod group;
mod keeper;
mod life;
mod plan;
mod probe;

pub(crate) use group::{Group, Handles};
pub(crate) use keeper::Order;
pub(crate) use plan::{Daemon, Name, Plan, reachable};
pub(crate) use probe::Probe;

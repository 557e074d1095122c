//! This node: what it runs, what it says, and what it knows of the others.

pub(crate) mod adoption;
pub(crate) mod apply;
pub(crate) mod desired;
pub(crate) mod disk;
pub(crate) mod drain;
pub(crate) mod in_force;
pub(crate) mod liveness;
mod notes;
pub(crate) mod own;
pub(crate) mod parting;
pub(crate) mod pass;
pub(crate) mod publish;
pub(crate) mod records;
mod retry;
pub(crate) mod serving;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod wake;
pub(crate) mod world;

//! Deploys, from the checks before an upload to the moment every placed node serves it.
//!
//! Decisions are in [`output`], [`versions`], [`turns`], [`verdict`] and [`judge`]; [`intake`], [`admission`] and [`driver`]
//! carry them out.

mod admission;
pub(crate) mod driver;
pub(crate) mod intake;
pub(crate) mod judge;
pub(crate) mod open;
pub(crate) mod output;
pub(crate) mod publication;
pub(crate) mod turns;
pub(crate) mod verdict;
pub(crate) mod versions;

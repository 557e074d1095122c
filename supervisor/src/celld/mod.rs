//! The celld processes: one for each application that is wanted here.
//!
//! What must hold: never two processes of one application at once, never a start sooner than one celld lease lifetime after a
//! crash, output that outlives the supervisor, and ports that stay. [`life`] decides, [`driver`] acts, [`fleet`] holds them all.

mod belongings;
mod command;
mod driver;
mod environment;
mod fleet;
mod left;
mod life;
mod log;
mod memory;
mod past;
mod probe;
mod record;
mod reload;
mod runtime;
mod strays;
mod version;

pub(crate) use belongings::Owner;
pub(crate) use command::Launch;
pub(crate) use fleet::{Asked, Fleet, Order, Stop};
pub(crate) use left::{is_anything_left, kill_what_is_left};
pub(crate) use reload::Reload;
pub(crate) use runtime::Runtime;
pub(crate) use strays::Strays;
pub(crate) use version::Version;

//! The service manager, where one started us: what it is told, what it keeps for us, and what it wants when it asks us to end.
//! Without one all of this does nothing.

mod cgroup;
mod enclosure;
mod fence;
mod job;
mod kept;

use sd_notify::NotifyState;

pub(crate) use enclosure::{Bounds, Enclosure};
pub(crate) use fence::Fence;
pub(crate) use job::asked_to_end;
pub(crate) use kept::{Kept, keep};

/// What the end of a supervisor means for the applications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parting {
    /// They end too.
    Stop,
    /// They serve on, and the next supervisor takes them over.
    Leave,
}

/// Whether a service manager waits for our messages (`sd_notify(3)`).
pub(crate) fn is_there() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Tells the service manager, when there is one.
pub(crate) fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "cannot tell the service manager");
    }
}

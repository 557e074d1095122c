//! What an earlier supervisor left running, before there is a fleet that takes it over.

use super::record::{Record, WATCH};
use crate::spawn::proc;
use crate::state::Dirs;

/// Whether an application's process runs that was started for these directories. Whoever pretends to be one has a starting node
/// wait for nothing, no more.
pub(crate) fn is_anything_left(dirs: &Dirs) -> bool {
    let recorded = records(dirs).iter().any(|record| record.process().is_some());
    // One that was not written down yet.
    recorded || proc::is_a_session_leader_given(WATCH, |watch| dirs.application_of(watch).is_some())
}

/// Kills what was written down, and waits for its end. To be called by whoever holds the lock of these directories, while there is no
/// fleet.
pub(crate) async fn kill_what_is_left(dirs: &Dirs) {
    let records = records(dirs);
    let mut processes: Vec<_> =
        records.iter().filter_map(|record| Some((&record.application, record.process()?))).collect();
    for (application, process) in &processes {
        tracing::warn!(%application, "killing its process");
        process.kill_group();
    }
    for (application, process) in &mut processes {
        process.ended().await;
        Record::forget(&dirs.processes(), application);
    }
}

/// None when there is no directory yet.
fn records(dirs: &Dirs) -> Vec<Record> {
    Record::all(&dirs.processes()).unwrap_or_default()
}

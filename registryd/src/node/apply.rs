//! From the reconcile loop to the supervisor: the whole set of processes, with a number that only grows; and which of the
//! applications that the supervisor keeps something of do not exist any more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use scafo_core::{ApplicationName, DeployId, Timestamp};
use scafo_proto::transport::QUICK;
use tokio::sync::watch;

use crate::daemon::{Core, Fatal};

/// After a call that failed: the supervisor is on this machine, and a start of it takes about as long.
const RETRY: Duration = Duration::from_secs(1);
/// Records that are looked for in one round. Each is one request, made only for what the last look at the fleet did not show.
const LOOKS: usize = 16;

/// What the supervisor has to know of a process that shall run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Process {
    /// The deploy that was published last.
    pub(crate) deploy: Option<DeployId>,
    /// When the application was created: tells it from an earlier one of its name. Absent while its record cannot be read.
    pub(crate) created_at: Option<Timestamp>,
}

/// The applications that shall run here; nothing before the first look.
pub(crate) type Desired = Option<Arc<BTreeMap<ApplicationName, Process>>>;

/// One order to the supervisor.
#[derive(Debug)]
pub(crate) struct Order<'a> {
    pub(crate) run: &'a str,
    pub(crate) pass: u64,
    pub(crate) installation: &'a str,
    pub(crate) processes: &'a BTreeMap<ApplicationName, Process>,
    /// Applications that do not exist any more.
    pub(crate) gone: Vec<ApplicationName>,
}

/// Tells the supervisor what shall run: on each change, and again every `interval`, because a supervisor that started anew
/// knows nothing.
pub(crate) async fn apply(core: Arc<Core>, installation: String, mut desired: watch::Receiver<Desired>) -> Fatal {
    let interval = core.settings.reconcile_interval.get();
    let mut pass = 0;
    let mut failing = false;
    let mut gone = Vec::new();
    loop {
        let set = desired.borrow_and_update().clone();
        let mut wait = interval;
        let mut kept = Vec::new();
        if let Some(processes) = &set {
            pass += 1;
            let gone = std::mem::take(&mut gone);
            let order = Order { run: &core.run, pass, installation: &installation, processes, gone };
            match core.supervisor.apply(&order).await {
                Ok(there) => {
                    failing = false;
                    kept = there;
                }
                Err(problem) => {
                    wait = RETRY.min(interval);
                    if !failing {
                        tracing::warn!(?problem, "the supervisor does not take the processes to run, trying again");
                    }
                    failing = true;
                }
            }
        }
        let round = async {
            core.registry.clock().sleep(wait).await;
            // Nothing depends on it: a bucket that is away leaves it to the next round.
            tokio::time::timeout(QUICK, gone_of(&core, &kept)).await.unwrap_or_default()
        };
        tokio::select! {
            biased;
            changed = desired.changed() => {
                if changed.is_err() {
                    return Fatal::ended("the reconcile loop");
                }
            }
            found = round => gone = found,
        }
    }
}

/// Those of which there is no record. What the last look showed exists; for all others the record itself is asked for, since a
/// look may be old or incomplete, and what is removed for it does not come back.
async fn gone_of(core: &Core, kept: &[ApplicationName]) -> Vec<ApplicationName> {
    let shown = core.worlds.borrow().shown.clone();
    let exists = |name: &&ApplicationName| shown.applications.contains_key(*name) || shown.unreadable.contains(*name);
    let mut gone = Vec::new();
    for name in kept.iter().filter(|name| !exists(name)).take(LOOKS) {
        match core.registry.application(name).await {
            Ok(None) => gone.push(name.clone()),
            Ok(Some(_)) => {}
            Err(problem) => tracing::debug!(application = %name, ?problem, "whether it still exists is not known"),
        }
    }
    gone
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use scafo_store::{Bucket as _, Fault, MemoryBucket, PutOptions};

    use super::*;
    use crate::daemon::testing::core;

    #[tokio::test(start_paused = true)]
    async fn only_an_application_without_a_record_is_gone() {
        let memory = MemoryBucket::new();
        let (own, down) = (memory.sibling(), Arc::new(AtomicBool::new(false)));
        let is_down = Arc::clone(&down);
        own.plan(move |_| is_down.load(Ordering::Relaxed).then_some(Fault::LoseRequest));
        let core = core("a", own);
        let names: [ApplicationName; 3] = ["deleted", "unseen", "broken"].map(|name| name.parse().unwrap());
        core.registry.create_application(&names[1]).await.unwrap();
        let broken = scafo_core::key::application(&names[2]);
        memory.put(&broken, "{".into(), PutOptions::default()).await.unwrap();
        assert_eq!(gone_of(&core, &names).await, names[..1], "the last look showed none of them");
        down.store(true, Ordering::Relaxed);
        assert!(gone_of(&core, &names).await.is_empty(), "a bucket that is away shows nothing");
    }
}

//! From the reconcile loop to the supervisor: the whole set of processes, with a number that only grows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use scafo_core::{ApplicationName, DeployId};
use tokio::sync::watch;

use crate::daemon::{Core, Fatal};

/// After a call that failed: the supervisor is on this machine, and a start of it takes about as long.
const RETRY: Duration = Duration::from_secs(1);

/// The applications that shall run here, each with the deploy that was published last; nothing before the first look.
pub(crate) type Desired = Option<Arc<BTreeMap<ApplicationName, Option<DeployId>>>>;

/// Tells the supervisor what shall run: on each change, and again every `interval`, because a supervisor that started anew
/// knows nothing.
pub(crate) async fn apply(core: Arc<Core>, mut desired: watch::Receiver<Desired>) -> Fatal {
    let interval = core.settings.reconcile_interval.get();
    let mut pass = 0;
    let mut failing = false;
    loop {
        let set = desired.borrow_and_update().clone();
        let mut wait = interval;
        if let Some(set) = set {
            pass += 1;
            let outcome = core.supervisor.apply(&core.run, pass, set.iter()).await;
            if let Err(problem) = &outcome {
                wait = RETRY.min(interval);
                if !failing {
                    tracing::warn!(?problem, "the supervisor does not take the processes to run, trying again");
                }
            }
            failing = outcome.is_err();
        }
        tokio::select! {
            biased;
            changed = desired.changed() => {
                if changed.is_err() {
                    return Fatal::ended("the reconcile loop");
                }
            }
            () = core.registry.clock().sleep(wait) => {}
        }
    }
}

//! Sweeps up after deploys while this node coordinates: stores the judgement on those that nobody carries out any more, and
//! removes the records of those that finished a week ago.

use std::sync::Arc;
use std::time::Duration;

use scafo_core::record::{DeployRecord, DeployState};
use scafo_core::{Problem, key};

use super::Lead;
use crate::daemon::{Core, Fatal};
use crate::deploy::judge::{abandoned, expired};
use crate::registry::{Cache, Intent, Read};

/// Time between two sweeps: one listing a minute.
const SWEEP: Duration = Duration::from_mins(1);

/// Sweeps until the daemon ends.
pub(crate) async fn reap(core: Arc<Core>) -> Fatal {
    let mut deploys: Cache<DeployRecord> = Cache::default();
    loop {
        core.registry.clock().sleep(SWEEP).await;
        let lead = core.lease.borrow().lead.clone();
        let Some(lead) = lead.filter(|lead| core.mono() < lead.lapses) else { continue };
        if let Err(problem) = sweep(&core, &lead, &mut deploys).await {
            tracing::warn!(?problem, "a sweep did not go through; the next one goes on");
        }
    }
}

async fn sweep(core: &Core, lead: &Lead, deploys: &mut Cache<DeployRecord>) -> Result<(), Problem> {
    deploys.refresh(core.registry.engine(), Read::Moved).await?;
    let now = core.registry.clock().wall();
    let window = core.settings.liveness.get();
    let world = core.worlds.borrow().clone();
    for stored in deploys.iter() {
        let record = &stored.record;
        let intent = Intent::new().under(lead.authority.clone());
        if expired(record, now) {
            core.registry.engine().delete(&intent, &key::deploy(&record.id)).await?;
        } else if let Some(problem) = abandoned(record, world.lives(&record.node), now, window) {
            tracing::info!(deploy = %record.id, node = %record.node, "a deploy was abandoned");
            let store = |deploy: &mut DeployRecord| {
                // It may have moved since it was listed.
                let still = abandoned(deploy, false, now, window).is_some();
                if still {
                    deploy.state = DeployState::Failed;
                    deploy.code = Some(problem.code);
                    deploy.detail = Some(problem.detail.clone());
                    deploy.moved_at = now;
                    deploy.finished_at = Some(now);
                }
                Ok(())
            };
            // Finished in the meantime is as good.
            if let Err(problem) = core.registry.update_deploy(&intent, &record.id, store).await {
                tracing::debug!(deploy = %record.id, ?problem, "the judgement was not stored");
            }
        }
    }
    Ok(())
}

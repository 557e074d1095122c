//! Carrying a deploy from its staged artifact to its end.
//!
//! The registry daemon owns the deploy; this only hands over what it needs, again and again, until that says the deploy has
//! ended. An offer is idempotent, and is repeated often enough that a registry daemon that was started again learns of the
//! deploy before it gives it up.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use scafo_core::problem::{Problem, ProblemCode};
use scafo_core::record::DeployState;
use scafo_core::view::DeployStatus;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::capacity::Slot;
use super::stage::{Meta, Staged};
use super::unpack::{self, Limits, Stop};
use super::{Intake, unstaged};
use crate::figures::Outcome;
use crate::registry::Failure;

/// The registry daemon gives a deploy up that it has not heard of for 60 s: told of it six times as often.
const OFFER_AGAIN: Duration = Duration::from_secs(10);
/// First pause between two looks at a deploy; a small one is through in about a second.
const FIRST_LOOK: Duration = Duration::from_millis(250);
/// The pause doubles up to this. Nobody waits for it: it only decides when the stage is cleared.
const LAST_LOOK: Duration = Duration::from_secs(5);
/// How long the end of a deploy that may not have been accepted is tried to be written down.
const DISOWN: Duration = Duration::from_secs(300);

type Answer = oneshot::Sender<Result<DeployStatus, Problem>>;

impl Intake {
    /// Acknowledges a deploy whose artifact is whole, and carries it. Runs to its end even when the caller is gone.
    pub(super) async fn accept(self: Arc<Self>, mut staged: Staged, meta: Meta, slot: Slot, answer: Answer) {
        let completed = {
            let meta = meta.clone();
            tokio::task::spawn_blocking(move || {
                let completed = staged.complete(&meta);
                (staged, completed)
            })
            .await
        };
        let staged = match completed {
            Ok((staged, Ok(()))) => staged,
            Ok((staged, Err(error))) => {
                staged.remove();
                let _ = answer.send(Err(unstaged(error)));
                return;
            }
            Err(error) => {
                let _ = answer.send(Err(unstaged(std::io::Error::other(error))));
                return;
            }
        };
        match self.registry.accept(&meta).await {
            Ok(deploy) => {
                tracing::info!(deploy = %meta.id, bytes = meta.artifact.bytes, by = meta.by, "deploy accepted");
                let _ = answer.send(Ok(deploy));
                self.carry(staged, meta, slot).await;
            }
            Err(Failure::Refused(problem)) => {
                staged.remove();
                let _ = answer.send(Err(problem));
            }
            // The record may be there. The caller reads a failure, so the record has to end as one. The stage goes before the
            // caller reads it: no next process carries the deploy, and one that nobody offers ends by itself.
            Err(Failure::Unknown(problem)) => {
                staged.remove();
                let ended = Problem::new(problem.code, "accepting this deploy was cut off, deploy again");
                let _ = answer.send(Err(problem));
                let disowned = self.until_known(|| self.registry.fail(&meta.id, &ended));
                let _ = tokio::time::timeout(DISOWN, disowned).await;
            }
        }
    }

    /// Goes on with a deploy that an earlier process staged.
    pub(super) async fn take_up(self: Arc<Self>, staged: Staged, meta: Meta, slot: Slot) {
        let Some(known) = self.until_known(|| self.registry.deploy(&meta.id)).await else { return staged.stay() };
        match known {
            Ok(deploy) if !deploy.state.is_terminal() => {
                tracing::info!(deploy = %meta.id, "a deploy of the last process is taken up again");
                self.carry(staged, meta, slot).await;
            }
            Ok(_) => staged.remove(),
            Err(problem) if problem.code == ProblemCode::NotFound => staged.remove(),
            Err(problem) => {
                tracing::error!(deploy = %meta.id, ?problem, "a staged deploy is left for the next start");
                staged.stay();
            }
        }
    }

    /// From the staged artifact to the end. Leaves the stage in place only when this process stops.
    async fn carry(&self, staged: Staged, meta: Meta, mut slot: Slot) {
        let unpacked = tokio::select! {
            biased;
            () = self.stopping.cancelled() => None,
            unpacked = self.unpack(&staged, &mut slot) => Some(unpacked),
            never = self.hold(&meta) => match never {},
        };
        let ended = match unpacked {
            None => None,
            Some(Ok(config)) => self.hand_over(&meta, config).await,
            Some(Err(problem)) => {
                tracing::info!(deploy = %meta.id, ?problem, "the artifact cannot be deployed");
                self.until_known(|| self.registry.fail(&meta.id, &problem)).await
            }
        };
        match ended {
            None => staged.stay(),
            Some(outcome) => {
                let ended = match &outcome {
                    Ok(deploy) if deploy.state == DeployState::Deployed => Outcome::new("deployed"),
                    Ok(deploy) => Outcome::new(deploy.code.unwrap_or(ProblemCode::Internal).as_str()),
                    Err(problem) => Outcome::new(problem.code.as_str()),
                };
                self.figures.deploys.get_or_create(&ended).inc();
                match outcome {
                    Ok(deploy) => tracing::info!(deploy = %meta.id, state = ?deploy.state, "deploy ended"),
                    Err(problem) => tracing::warn!(deploy = %meta.id, ?problem, "deploy given up"),
                }
                // A tree of many files takes a moment to remove.
                let _ = tokio::task::spawn_blocking(move || staged.remove()).await;
            }
        }
    }

    /// Lets the registry daemon know again and again that the artifact is here while it waits to be unpacked: accepting is
    /// idempotent. One that has ended or is gone is not accepted anew.
    async fn hold(&self, meta: &Meta) -> Infallible {
        loop {
            tokio::time::sleep(OFFER_AGAIN).await;
            match self.registry.deploy(&meta.id).await {
                Ok(deploy) if !deploy.state.is_terminal() => {
                    if let Err(failure) = self.registry.accept(meta).await {
                        tracing::debug!(deploy = %meta.id, ?failure, "the registry daemon was not told of a waiting deploy");
                    }
                }
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Unpacks the artifact when it is its turn, unless an earlier process did. Gives the path of the configuration.
    async fn unpack(&self, staged: &Staged, slot: &mut Slot) -> Result<PathBuf, Problem> {
        let (artifact, project) = (staged.artifact(), staged.project());
        if let Some(bytes) = project.whole() {
            slot.keep_tree(bytes);
            return unpack::configuration(&project.tree());
        }
        let reserved = self.settings.artifact_bytes;
        let waiting = async {
            let turn = self.turn.acquire().await;
            slot.room_for_tree(reserved).await;
            turn
        };
        let _turn = tokio::time::timeout(self.settings.queue_timeout.get(), waiting).await.map_err(|_| {
            let detail = "this node was too busy to unpack the artifact (`deploy.queueTimeout`); deploy again";
            Problem::new(ProblemCode::DeployTimeout, detail)
        })?;
        let limits = Limits { bytes: self.settings.artifact_bytes, entries: self.settings.archive_entries };
        // Dropping this future stops the thread at its next piece.
        let stop = Stop::after(self.settings.task_timeout.get());
        let _stop_on_drop = stop.clone().on_drop();
        let unpacking = tokio::task::spawn_blocking(move || {
            let bytes = unpack::unpack(&artifact, &project.tree(), limits, &stop)?;
            project.complete(bytes).map_err(unpack::disk)?;
            Ok((bytes, unpack::configuration(&project.tree())?))
        });
        let unpacked = unpacking.await.unwrap_or_else(|error| {
            Err(Problem::new(ProblemCode::Internal, "unpacking the artifact failed in this node").because(error))
        });
        let (bytes, config) = unpacked?;
        slot.shrink_by(reserved.saturating_sub(bytes));
        Ok(config)
    }

    /// Offers the project until its deploy has ended. `None` when this process stops before.
    async fn hand_over(&self, meta: &Meta, config: PathBuf) -> Option<Result<DeployStatus, Problem>> {
        let mut pause = FIRST_LOOK;
        loop {
            let offered = Instant::now();
            match self.until_known(|| self.registry.publish(meta, &config)).await? {
                Ok(deploy) if !deploy.state.is_terminal() => {}
                Ok(deploy) => return Some(Ok(deploy)),
                // Nothing else ends such a deploy: it would wait for its deadline.
                Err(problem) => {
                    let failed = self.until_known(|| self.registry.fail(&meta.id, &problem)).await?;
                    return Some(failed.and(Err(problem)));
                }
            }
            while offered.elapsed() < OFFER_AGAIN {
                tokio::select! {
                    biased;
                    () = self.stopping.cancelled() => return None,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(LAST_LOOK);
                match self.registry.deploy(&meta.id).await {
                    Ok(deploy) if deploy.state.is_terminal() => return Some(Ok(deploy)),
                    Ok(_) => {}
                    Err(Failure::Refused(problem)) if problem.code == ProblemCode::NotFound => {
                        return Some(Err(problem));
                    }
                    // The next offer tells.
                    Err(_) => break,
                }
            }
        }
    }

    /// Makes a call until its outcome is known. `None` when this process stops before.
    async fn until_known<F>(&self, mut call: impl FnMut() -> F) -> Option<Result<DeployStatus, Problem>>
    where
        F: Future<Output = Result<DeployStatus, Failure>>,
    {
        let mut pause = FIRST_LOOK;
        loop {
            let outcome = tokio::select! {
                biased;
                () = self.stopping.cancelled() => return None,
                outcome = call() => outcome,
            };
            match outcome {
                Ok(deploy) => return Some(Ok(deploy)),
                Err(Failure::Refused(problem)) => return Some(Err(problem)),
                Err(Failure::Unknown(problem)) => tracing::debug!(?problem, "a deploy waits for the registry"),
            }
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return None,
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(LAST_LOOK);
        }
    }
}

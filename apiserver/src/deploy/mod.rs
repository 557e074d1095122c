//! The intake of deploys, from the first byte of an artifact to the end of the deploy.
//!
//! What is kept true: a deploy is acknowledged only when its artifact is whole on the disk and its record written; an
//! acknowledged deploy is offered to the registry daemon until that says how it ended, across restarts of either; nothing
//! that was not acknowledged stays on the disk; and slots and staged bytes are given back however it ends.

mod capacity;
mod carry;
mod receive;
mod stage;
mod unpack;

use std::io;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures_util::FutureExt as _;
use http::HeaderMap;
use scafo_core::deploy::Metadata;
use scafo_core::id::{ApplicationName, DeployId};
use scafo_core::problem::{Problem, ProblemCode};
use scafo_core::settings::DeployIntakeSettings;
use scafo_core::view::DeployStatus;
use scafo_telemetry::trace::{SPANS, Thread};
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use self::capacity::Capacity;
pub(crate) use self::stage::Meta;
use self::stage::Stage;
use crate::auth::Caller;
use crate::body::announced;
use crate::figures::Figures;
use crate::registry::Registry;

/// How long laying the deploys down may take. What takes longer (a record that is being written) is taken up by the next
/// process, as after a crash.
const LAY_DOWN: Duration = Duration::from_secs(5);
/// Archives unpacked at once. Unpacking is one thread's full work, and a node has to serve beside it.
const UNPACKING: usize = 1;

/// The intake of one node.
pub(crate) struct Intake {
    settings: DeployIntakeSettings,
    /// Whether there is a runtime to deploy with.
    runner: bool,
    registry: Registry,
    stage: Stage,
    capacity: Arc<Capacity>,
    turn: Semaphore,
    /// Deploys that are being carried. They outlive the request that brought them.
    carried: TaskTracker,
    stopping: CancellationToken,
    figures: Figures,
}

impl Intake {
    /// Opens the stage, drops what was never acknowledged, and goes on with the rest.
    pub(crate) fn open(
        dir: &Path,
        settings: DeployIntakeSettings,
        runner: bool,
        registry: Registry,
        figures: Figures,
    ) -> io::Result<Arc<Self>> {
        let (stage, left) = Stage::open(dir)?;
        let intake = Arc::new(Self {
            capacity: Capacity::new(settings.queue, settings.staged_bytes),
            settings,
            runner,
            registry,
            stage,
            turn: Semaphore::new(UNPACKING),
            carried: TaskTracker::new(),
            stopping: CancellationToken::new(),
            figures,
        });
        for (staged, meta) in left {
            let slot = intake.capacity.keep(meta.artifact.bytes);
            intake.own(intake.clone().take_up(staged, meta, slot));
        }
        Ok(intake)
    }

    /// Takes a deploy whose caller, name and metadata were checked. The checks here come in the order of the API: what the
    /// registry says, whether this node can deploy, whether it has room, and then the body.
    ///
    /// Once the artifact is whole, dropping this future no longer stops the deploy.
    pub(crate) async fn take(
        self: &Arc<Self>,
        application: &ApplicationName,
        by: &Caller,
        metadata: Metadata,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<DeployStatus, Problem> {
        let taken = self.try_take(application, by, metadata, headers, body).await;
        self.figures.taken(&taken);
        taken
    }

    async fn try_take(
        self: &Arc<Self>,
        application: &ApplicationName,
        by: &Caller,
        metadata: Metadata,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<DeployStatus, Problem> {
        let application_since = self.registry.prepare(application, &metadata).await?;
        if !self.runner {
            return Err(Problem::new(
                ProblemCode::CapabilityMissing,
                "this node has no runtime to deploy with: install celld on it or set `celld.path` and restart it, or deploy to another node",
            ));
        }
        let announced = announced(headers);
        let mut slot =
            self.capacity.take(announced.unwrap_or(0).min(self.settings.artifact_bytes)).ok_or_else(overloaded)?;
        let id = DeployId::new(application, rand::random());
        let staged = self.stage.create(&id).map_err(unstaged)?;
        let limits =
            receive::Limits { bytes: self.settings.artifact_bytes, within: self.settings.receive_timeout.get() };
        let artifact = receive::receive(body, announced, &staged.artifact(), limits, &mut slot).await?;
        let (by, oidc) = (by.id().to_owned(), by.provenance().cloned());
        let meta = Meta { id, by, source: metadata.source, oidc, artifact, application_since };
        let (answer, answered) = oneshot::channel();
        self.own(self.clone().accept(staged, meta, slot, answer));
        answered.await.map_err(|_| {
            Problem::new(
                ProblemCode::Draining,
                "this node is stopping; look whether the deploy is there and deploy again",
            )
        })?
    }

    /// Deploys under way, and how many may be.
    pub(crate) fn deploys(&self) -> (f64, f64) {
        let (used, limit) = self.capacity.deploys();
        (used.into(), limit.into())
    }

    /// Bytes staged, and how many may be.
    pub(crate) fn bytes(&self) -> (f64, f64) {
        let (used, limit) = self.capacity.bytes();
        (used as f64, limit as f64)
    }

    /// Lays every carried deploy down. What was acknowledged stays on the disk for the next process.
    pub(crate) async fn stop(&self) {
        self.stopping.cancel();
        self.carried.close();
        if tokio::time::timeout(LAY_DOWN, self.carried.wait()).await.is_err() {
            tracing::warn!(deploys = self.carried.len(), "deploys are left in the middle for the next start");
        }
    }

    /// Runs a task that outlives the request that brought it.
    fn own(&self, task: impl Future<Output = ()> + Send + 'static) {
        // The request is answered long before, and the trace goes on.
        let span = tracing::info_span!(target: SPANS, parent: None, "deploy");
        Thread::current().join(&span);
        let task = async move {
            if AssertUnwindSafe(task).catch_unwind().await.is_err() {
                tracing::error!("the task of a deploy panicked; the deploy is taken up again at the next start");
            }
        };
        self.carried.spawn(task.instrument(span));
    }
}

fn overloaded() -> Problem {
    Problem::new(
        ProblemCode::DeployOverloaded,
        "this node has as many deploys under way as it takes; try again in a second",
    )
}

/// A failure of the disk while an artifact is staged.
fn unstaged(error: io::Error) -> Problem {
    if is_full(&error) {
        let detail = "the disk of this node is full, nothing was deployed: free some space under its state directory";
        return full(detail).because(error);
    }
    Problem::new(ProblemCode::Internal, "the artifact could not be staged").because(error)
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The disk is full. It does not pass by itself: not one of the codes that are waited for.
fn full(detail: &str) -> Problem {
    Problem::new(ProblemCode::ResourceLimit, detail).titled("The disk of this node is full")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_said_with_what_to_do_and_is_nothing_to_wait_for() {
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
            for (problem, part) in
                [(unstaged(kind.into()), "nothing was deployed"), (unpack::disk(kind.into()), "deploy again")]
            {
                let Problem { code, title, detail, .. } = &problem;
                let expected = (ProblemCode::ResourceLimit, Some("The disk of this node is full"));
                assert_eq!((*code, title.as_deref()), expected);
                assert!(detail.contains("free some space") && detail.contains(part), "{detail}");
            }
        }
        for another in [unstaged, unpack::disk] {
            assert_eq!(another(io::ErrorKind::PermissionDenied.into()).code, ProblemCode::Internal);
        }
    }
}

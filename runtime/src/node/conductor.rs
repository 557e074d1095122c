//! The conductor: one task that alone starts, swaps and stops workerd, so that no two things happen to it at once.
//!
//! Projects without state overlap: the new one serves while the old one finishes. Projects with Durable Objects cannot, since
//! two workerd on one directory would corrupt it: the old one is stopped first while the gate holds requests. Whether the
//! new one starts at all is found out before, on scratch storage.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use scafo_store::Bucket;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval_at, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{gate::Gate, generation::Generation};
use crate::{
    Failure,
    environment::Surface,
    failure::{Context, Outcome},
    settings::NodeSettings,
    shapes::Pointer,
    workerd::{Deployment, Launcher, Stage, Storage, Workerd, load, read_pointer},
};

/// How long requests of a stateful generation may finish before it is stopped: requests are being held meanwhile.
const STATEFUL_GRACE: Duration = Duration::from_secs(2);

/// The waits between two starts of a workerd that ended by itself: the first, and the longest.
const RESTART_FIRST: Duration = Duration::from_millis(100);
const RESTART_LONGEST: Duration = Duration::from_secs(5);

/// A workerd that cannot be started again for this long is given up, and the node with it.
const RESTART_LIMIT: Duration = Duration::from_secs(60);

/// Calls of `/reload` that wait; each is answered by an adoption of its own.
const ORDERS_MAX: usize = 16;

/// What `/reload` came to.
pub(super) enum Adoption {
    Adopted {
        generation: u64,
        pointer: Pointer,
    },
    Unchanged {
        generation: u64,
        pointer: Pointer,
    },
    Failed {
        pointer: Option<Pointer>,
        error: String,
    },
    /// The bucket gave no answer, or this machine lacked something: what the pointer names may be as good as it gets, and another try
    /// finds out.
    Unavailable {
        error: String,
    },
}

/// A handle on the conductor.
#[derive(Clone)]
pub(super) struct Orders {
    orders: mpsc::Sender<oneshot::Sender<Adoption>>,
}

impl Orders {
    /// Takes what the pointer names now. `None`: the node is leaving, or too many wait.
    pub(super) async fn reload(&self) -> Option<Adoption> {
        let (answer, adoption) = oneshot::channel();
        self.orders.try_send(answer).ok()?;
        adoption.await.ok()
    }
}

/// What everybody may see of it.
#[derive(Default)]
pub(super) struct View {
    swapping: std::sync::atomic::AtomicBool,
    /// Generations that finish what they have begun: number and version.
    draining: Mutex<Vec<(u64, String)>>,
}

impl View {
    pub(super) fn swapping(&self) -> bool {
        self.swapping.load(Ordering::Acquire)
    }

    pub(super) fn draining(&self) -> Vec<(u64, String)> {
        self.draining.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// See the module.
pub(super) struct Conductor {
    pub settings: Arc<NodeSettings>,
    pub bucket: Arc<dyn Bucket>,
    pub program: std::path::PathBuf,
    pub launcher: Launcher,
    pub stage: Stage,
    pub gate: Arc<Gate>,
    pub view: Arc<View>,
    incarnations: AtomicU64,
    /// The pointer that the last adoption was about, whatever came of it.
    seen: Option<Pointer>,
    fail_next: Option<String>,
    /// Old generations that finish.
    retiring: JoinSet<()>,
}

impl Conductor {
    pub(super) fn new(
        settings: Arc<NodeSettings>,
        bucket: Arc<dyn Bucket>,
        program: std::path::PathBuf,
        launcher: Launcher,
        stage: Stage,
        gate: Arc<Gate>,
    ) -> Self {
        let fail_next = settings.hooks.fail_adoption.clone();
        Self {
            settings,
            bucket,
            program,
            launcher,
            stage,
            gate,
            view: Arc::default(),
            incarnations: AtomicU64::new(0),
            seen: None,
            fail_next,
            retiring: JoinSet::new(),
        }
    }

    /// A way to give it orders, and where they arrive.
    pub(super) fn orders() -> (Orders, mpsc::Receiver<oneshot::Sender<Adoption>>) {
        let (orders, waiting) = mpsc::channel(ORDERS_MAX);
        (Orders { orders }, waiting)
    }

    /// Starts the first deployment.
    pub(super) async fn begin(&mut self, deployment: Deployment) -> Outcome<()> {
        self.seen = Some(deployment.pointer.clone());
        let generation = self.start(1, Arc::new(deployment), Storage::Real).await?;
        self.gate.open(Arc::new(generation));
        Ok(())
    }

    /// Serves orders, polls, and keeps workerd up, until `stop`; then ends every process.
    ///
    /// # Errors
    /// workerd cannot be kept up.
    pub(super) async fn conduct(
        mut self,
        mut orders: mpsc::Receiver<oneshot::Sender<Adoption>>,
        stop: CancellationToken,
    ) -> Outcome<()> {
        let period = self.settings.deploy_poll;
        let mut poll = interval_at(Instant::now() + period, period);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watch = Watch::default();
        let outcome = loop {
            watch.follow(self.gate.current(), self.settings.handler_budget);
            tokio::select! {
                biased;
                () = stop.cancelled() => break Ok(()),
                () = watch.ended() => {
                    if let Err(failure) = self.restart(&stop).await {
                        break Err(failure);
                    }
                }
                Some(answer) = orders.recv() => {
                    let adoption = tokio::select! {
                        biased;
                        () = stop.cancelled() => break Ok(()),
                        adoption = self.adopt(true) => adoption,
                    };
                    // Whoever asked may have stopped waiting.
                    let _gone = answer.send(adoption.unwrap_or_else(|| self.unchanged()));
                }
                _ = poll.tick(), if self.settings.surface == Surface::V0_6 => {
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => break Ok(()),
                        _ = self.adopt(false) => {}
                    }
                }
                Some(_) = self.retiring.join_next() => {}
            }
            if self.gate.current().is_none() && !stop.is_cancelled() {
                break Err(Failure::new(
                    "workerd cannot be started any more: neither the new deployment nor the old one",
                ));
            }
        };
        if let Some(generation) = self.gate.hold() {
            generation.stop().await;
        }
        self.retiring.shutdown().await;
        outcome
    }

    fn unchanged(&self) -> Adoption {
        match self.gate.current() {
            Some(current) => {
                Adoption::Unchanged { generation: current.number, pointer: current.deployment.pointer.clone() }
            }
            None => Adoption::Failed { pointer: None, error: "nothing is running".into() },
        }
    }

    /// Looks at the pointer and takes what it names. Not asked for (`asked`), it tries each pointer once.
    async fn adopt(&mut self, asked: bool) -> Option<Adoption> {
        let pointer = match read_pointer(&*self.bucket).await {
            Ok(Some(pointer)) => pointer,
            Ok(None) => {
                return unreadable(asked, &Failure::new("the deployment pointer is gone from the bucket"));
            }
            Err(failure) => return unreadable(asked, &failure),
        };
        if !asked && self.seen.as_ref() == Some(&pointer) {
            return None;
        }
        self.seen = Some(pointer.clone());
        self.view.swapping.store(true, Ordering::Release);
        let taken = self.take(pointer.clone()).await;
        self.view.swapping.store(false, Ordering::Release);
        Some(match taken {
            Ok(Some(generation)) => {
                tracing::info!(event = "deployment_adopted", generation, version = pointer.version, "adopted");
                Adoption::Adopted { generation, pointer }
            }
            Ok(None) => self.unchanged(),
            Err(failure) if failure.may_pass() => {
                // The next poll tries it again, too.
                self.seen = None;
                let error = failure.chain();
                tracing::warn!(event = "deployment_unavailable", version = pointer.version, error, "not adopted yet");
                Adoption::Unavailable { error }
            }
            Err(failure) => {
                let error = failure.chain();
                tracing::error!(event = "deployment_adoption_failed", version = pointer.version, error, "not adopted");
                Adoption::Failed { pointer: Some(pointer), error }
            }
        })
    }

    /// The number of the new generation, or `None` if what is served is the same already.
    async fn take(&mut self, pointer: Pointer) -> Outcome<Option<u64>> {
        if let Some(text) = self.fail_next.take() {
            return Err(Failure::new(text));
        }
        let deployment = load(&*self.bucket, pointer).await?;
        let Some(old) = self.gate.current() else {
            return Err(Failure::new("workerd is being started again"));
        };
        if old.deployment.pointer.prefix == deployment.pointer.prefix
            && old.deployment.identity() == deployment.identity()
        {
            return Ok(None);
        }
        let number = old.number + 1;
        let deployment = Arc::new(deployment);
        if old.deployment.has_durable_objects() || deployment.has_durable_objects() {
            self.exchange(&old, number, deployment).await?;
        } else {
            let generation = self.start(number, deployment, Storage::Real).await?;
            self.gate.open(Arc::new(generation));
            self.retire(old);
        }
        Ok(Some(number))
    }

    /// Lets an old generation finish beside the new one.
    fn retire(&mut self, old: Arc<Generation>) {
        let (view, grace) = (Arc::clone(&self.view), self.settings.deploy_max_age);
        view.draining.lock().unwrap_or_else(PoisonError::into_inner).push((old.number, old.version().to_owned()));
        self.retiring.spawn(async move {
            old.finish(grace, grace).await;
            old.stop().await;
            let mut draining = view.draining.lock().unwrap_or_else(PoisonError::into_inner);
            draining.retain(|(number, _)| *number != old.number);
        });
    }

    /// Stops the old generation, then starts the new one, or the old one again.
    async fn exchange(&self, old: &Arc<Generation>, number: u64, deployment: Arc<Deployment>) -> Outcome<()> {
        // What cannot start must not cost the running one its life.
        let rehearsal = self.start(number, Arc::clone(&deployment), Storage::Scratch).await?;
        rehearsal.workerd.stop(Duration::ZERO).await;
        drop(rehearsal);
        self.gate.hold();
        // A WebSocket does not end by itself, and its Durable Object must go: its client comes back.
        old.finish(STATEFUL_GRACE, Duration::ZERO).await;
        old.stop().await;
        match self.start(number, deployment, Storage::Real).await {
            Ok(generation) => {
                self.gate.open(Arc::new(generation));
                Ok(())
            }
            Err(failure) => {
                let again = self.start(old.number, Arc::clone(&old.deployment), Storage::Real).await;
                let again = again.context(|| "the old deployment does not start any more either".into())?;
                self.gate.open(Arc::new(again));
                Err(failure)
            }
        }
    }

    async fn start(&self, number: u64, deployment: Arc<Deployment>, storage: Storage) -> Outcome<Generation> {
        let staged = self.stage.set(&*self.bucket, &deployment, storage).await?;
        let workerd = Workerd::start(&self.launcher, &self.program, staged).await?;
        let incarnation = self.incarnations.fetch_add(1, Ordering::Relaxed);
        Ok(Generation::new(number, incarnation, deployment, workerd))
    }

    /// Starts what was running again, for as long as it takes but not for ever.
    async fn restart(&mut self, stop: &CancellationToken) -> Outcome<()> {
        let Some(old) = self.gate.hold() else { return Ok(()) };
        let give_up = Instant::now() + RESTART_LIMIT;
        let mut wait = RESTART_FIRST;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                () = sleep(wait) => {}
            }
            match self.start(old.number, Arc::clone(&old.deployment), Storage::Real).await {
                Ok(generation) => {
                    self.gate.open(Arc::new(generation));
                    return Ok(());
                }
                Err(failure) if Instant::now() < give_up => {
                    tracing::error!(error = failure.chain(), "workerd does not start again");
                    wait = (wait * 2).min(RESTART_LONGEST);
                }
                Err(failure) => return Err(failure),
            }
        }
    }
}

fn unreadable(asked: bool, failure: &Failure) -> Option<Adoption> {
    let error = failure.chain();
    tracing::warn!(event = "deployment_pointer_unreadable", error, "the deployment pointer cannot be read");
    let adoption =
        if failure.may_pass() { Adoption::Unavailable { error } } else { Adoption::Failed { pointer: None, error } };
    asked.then_some(adoption)
}

/// Looks after the workerd that serves, from its start to its end. It lasts over the turns of the conductor's loop: begun anew with
/// each, it would never see a silence that is longer than the pause between two polls.
#[derive(Default)]
struct Watch {
    /// The incarnation that is looked after, and its end.
    of: Option<(u64, BoxFuture<'static, ()>)>,
}

impl Watch {
    /// Goes over to what serves now, if that is another process.
    fn follow(&mut self, current: Option<Arc<Generation>>, limit: Duration) {
        let known = self.of.as_ref().map(|(incarnation, _)| *incarnation);
        if known == current.as_ref().map(|generation| generation.incarnation) {
            return;
        }
        self.of = current.map(|generation| {
            let incarnation = generation.incarnation;
            let ended: BoxFuture<'static, ()> = Box::pin(async move { ended_or_hung(&generation, limit).await });
            (incarnation, ended)
        });
    }

    /// Waits for its end. May be dropped and called again.
    async fn ended(&mut self) {
        match &mut self.of {
            Some((_, ended)) => ended.await,
            None => std::future::pending().await,
        }
        self.of = None;
    }
}

/// Waits until a workerd is gone that nobody stopped. One that answers nothing any more is killed: a Worker in an endless
/// loop would keep all others from running for ever.
async fn ended_or_hung(generation: &Generation, limit: Duration) {
    tokio::select! {
        biased;
        ended = generation.workerd.ended() => {
            tracing::error!(status = ?ended.status, last_words = ended.last_words, "workerd ended by itself");
        }
        () = generation.hung(limit) => {
            tracing::error!(limit_s = limit.as_secs(), "workerd does not answer: it is killed and started again");
            generation.workerd.stop(Duration::ZERO).await;
        }
    }
}

//! The registry: every record of the bucket, and the only way to write one.
//!
//! Layers, each knowing only those above it in this list: time ([`clock`]), what the answers to a write add up to
//! (`settle`), conditional writes ([`engine`]), the change hint around the bucket (`hint`), records in memory ([`cache`]), and
//! one module for the rules of each kind of record.

mod applications;
mod backoff;
mod bootstrap;
pub mod cache;
mod claims;
pub mod clock;
#[cfg(test)]
mod crashes;
mod deletion;
mod deploys;
mod domains;
mod drain;
pub mod engine;
mod fleet;
mod grants;
mod hint;
mod identities;
mod intents;
mod kind;
mod lease_drop;
mod nodes;
mod objects;
mod operators;
mod paged;
mod placements;
mod prune;
mod revocation;
mod settle;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod trust;

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

pub use applications::Pointer;
pub use cache::{Cache, Read, Refreshed};
pub use claims::DOMAINS_MAX;
pub use clock::{Clock, Mono, SystemClock, TokioClock};
pub use deletion::{Deletion, GRACE, Surroundings, TOLD_BYTES_MAX};
pub use domains::{Domain, NewClaim};
pub use drain::{DrainRequest, Life};
pub use engine::{Changed, Engine, Guard, Intent, Step, Stored};
pub use fleet::{Frozen, Reason};
pub use grants::{Granter, Registration};
pub use kind::{Kind, Record};
pub use nodes::Arrival;
pub use operators::NewOperator;
pub(crate) use paged::Paged;
pub use prune::{Prune, Pruned};
use scafo_core::{Problem, key};
use scafo_store::{Bucket, ETag};

use self::hint::{Hinter, Hinting};

/// A registry context: what a daemon or a command works on the records with. Cheap to share behind an [`Arc`].
pub struct Registry {
    engine: Engine,
    hinter: Arc<Hinter>,
    /// The operation that its changes belong to.
    operation: Option<String>,
    /// Whether the store has passed the probe.
    sound: Arc<AtomicBool>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("engine", &self.engine).finish_non_exhaustive()
    }
}

impl Registry {
    /// A context that signs its change hints with `by`. Must be called inside a tokio runtime, which carries the task that
    /// writes them.
    #[must_use]
    pub fn new(bucket: Arc<dyn Bucket>, clock: Arc<dyn Clock>, by: impl Into<String>) -> Self {
        let hinter = Arc::new(Hinter::start(Arc::clone(&bucket), Arc::clone(&clock), by.into()));
        let hinting = Arc::new(Hinting::new(bucket, Arc::clone(&hinter)));
        Self { engine: Engine::new(hinting, clock), hinter, operation: None, sound: Arc::default() }
    }

    /// The same context for one operation: what it changes carries `operation` as its write id, so that the same call made
    /// again, by another process too, finds what it has done. One operation is one call of one method; `operation` is printable
    /// ASCII, at most 64 characters.
    #[must_use]
    pub fn under(&self, operation: impl Into<String>) -> Self {
        Self {
            engine: self.engine.clone(),
            hinter: Arc::clone(&self.hinter),
            operation: Some(operation.into()),
            sound: Arc::clone(&self.sound),
        }
    }

    /// What the one change of a call is made with.
    fn intent(&self) -> Intent {
        let intent = Intent::new().or_overtaken();
        match &self.operation {
            Some(operation) => intent.operation(operation.clone()),
            None => intent,
        }
    }

    /// Conditional writes of any record. The rules of a kind are in the methods of this type: prefer those.
    #[must_use]
    pub const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The bucket, with the change hint around it.
    #[must_use]
    pub fn bucket(&self) -> &Arc<dyn Bucket> {
        self.engine.bucket()
    }

    /// The clock.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        self.engine.clock()
    }

    /// Requests sent to the bucket so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.bucket().requests()
    }

    /// What identifies the last change hint; `None` before the first. One GET, one try: the next pass comes anyway.
    ///
    /// # Errors
    /// `store-unavailable`.
    pub async fn hint(&self) -> Result<Option<ETag>, Problem> {
        // Its token is random, so its tag moves with it. What it says is nobody's business.
        let object = self.bucket().get_bounded(key::CHANGES, engine::RECORD_BYTES_MAX).await?;
        Ok(object.map(|object| object.head.etag))
    }

    /// Moves the change hint without a write under a hinted key: a node that arrives, leaves, drains, or serves something
    /// else.
    pub fn mint_hint(&self) {
        self.hinter.moved();
    }

    /// Waits until every change of this context is hinted. A command calls it before it exits.
    ///
    /// # Errors
    /// `store-unavailable` after `limit`. The changes themselves are safe.
    pub async fn flush_hints(&self, limit: Duration) -> Result<(), Problem> {
        self.hinter.flush(limit).await
    }
}

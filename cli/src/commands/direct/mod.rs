//! Working on the records in the bucket itself, where no node is asked: by the same rules as a node, and with the same change
//! hint, which is written before a command ends.

mod routes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use scafo_core::config::{Config, Layers};
use scafo_core::record::{CoordinatorLease, NodeRecord};
use scafo_core::settings::BucketAccess;
use scafo_core::view::NodeStatus;
use scafo_core::{Problem, key};
use scafo_registryd::registry::{Cache, Granter, Read, Registry, SystemClock};
use scafo_store::{Bucket, S3Bucket};

use crate::args::BucketArgs;
use crate::env;
use crate::error::{Failure, Outcome};
use crate::output::Output;

/// How records name whoever has the bucket's credentials.
pub(super) const BY: &str = "bucket";
/// How long the change hint may take. A node that does not hear of a change finds it at its next full pass.
const HINT: Duration = Duration::from_secs(15);
/// How long a node counts as live after its last heartbeat, unless its fleet was told otherwise.
const LIVENESS: Duration = Duration::from_secs(90);
/// Largest lease of the coordinator.
const LEASE_BYTES_MAX: u64 = 64 * 1024;

/// The records of an installation.
pub(super) struct Direct {
    registry: Registry,
    output: Output,
}

impl Direct {
    /// The installation in the bucket that is named; `None` where none is.
    ///
    /// # Errors
    /// When the bucket cannot be used or holds no installation.
    pub(super) async fn find(args: &BucketArgs, output: Output) -> Outcome<Option<Self>> {
        let Some(name) = &args.bucket else { return Ok(None) };
        Self::open(Arc::new(S3Bucket::new(&access(name, args)?)), name, output).await.map(Some)
    }

    /// The installation in a bucket. It is asked whose it is first: nothing is written into one that is somebody else's.
    async fn open(bucket: Arc<dyn Bucket>, name: &str, output: Output) -> Outcome<Self> {
        let unusable = |problem: Problem| Failure::refused(format!("the bucket {name} cannot be used"), &problem);
        let registry = Registry::new(Arc::clone(&bucket), Arc::new(SystemClock), BY);
        if registry.meta().await.map_err(unusable)?.is_none() {
            return Err(Failure::new(format!("there is no installation in the bucket {name}"))
                .hint("see --bucket-prefix and --bucket-endpoint; an installation is made by its first node"));
        }
        // Finds out as well in which form the store takes its tags, which only writes need.
        scafo_store::probe(&*bucket).await.map_err(|error| unusable(error.into()))?;
        Ok(Self { registry, output })
    }

    /// The records.
    pub(super) const fn registry(&self) -> &Registry {
        &self.registry
    }

    /// On whose behalf operator keys are given and taken.
    pub(super) fn granter() -> Granter {
        Granter::Local(BY.to_owned())
    }

    /// The outcome of a change, once every node can hear of it. Even one that failed may have changed something.
    pub(super) async fn hinted<T>(&self, outcome: Result<T, Problem>) -> Result<T, Problem> {
        if let Err(problem) = self.registry.flush_hints(HINT).await {
            self.output.warn(&problem.detail);
        }
        outcome
    }

    /// Every node, by id, with whether it has been heard of lately by the store's clock.
    ///
    /// # Errors
    /// Store errors.
    pub(super) async fn nodes(&self) -> Result<Vec<NodeStatus>, Problem> {
        let mut cache: Cache<NodeRecord> = Cache::default();
        cache.refresh(self.registry.engine(), Read::Moved).await?;
        let ages: BTreeMap<&str, Duration> = cache
            .listed()
            .filter_map(|listed| Some((listed.key.as_str(), listed.date?.since(listed.last_modified?))))
            .collect();
        let status = |node: &NodeRecord| {
            let age = ages.get(key::node(node.id.as_str()).as_str());
            NodeStatus { node: node.clone(), live: age.is_some_and(|age| *age <= LIVENESS) }
        };
        let mut nodes: Vec<NodeStatus> = cache.iter().map(|stored| status(&stored.record)).collect();
        nodes.sort_by(|a, b| a.node.id.cmp(&b.node.id));
        Ok(nodes)
    }

    /// The coordinator's lease, and whether it was renewed within its life by the store's clock.
    ///
    /// # Errors
    /// Store errors.
    pub(super) async fn lease(&self) -> Result<Option<(CoordinatorLease, bool)>, Problem> {
        let Some(object) = self.registry.engine().try_get(key::LEASE, LEASE_BYTES_MAX).await? else { return Ok(None) };
        let Some(lease) = self.registry.lease().await? else { return Ok(None) };
        let age = object.head.date.zip(object.head.last_modified).map(|(date, written)| date.since(written));
        let stands = age.is_some_and(|age| age <= Duration::from_millis(lease.record.ttl_ms));
        Ok(Some((lease.record, stands)))
    }
}

/// Flags over the environment, as for a node's own bucket.
fn access(name: &str, args: &BucketArgs) -> Outcome<BucketAccess> {
    let given = [
        ("bucket.name", Some(name)),
        ("bucket.prefix", args.bucket_prefix.as_deref()),
        ("bucket.endpoint", args.bucket_endpoint.as_deref()),
        ("bucket.region", args.bucket_region.as_deref()),
    ];
    let flags = given.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned()))).collect();
    // Nothing else of a node's settings is meant here, and what is wrong with it does not matter.
    let bucket_or_aws = |name: &str| name.starts_with("SCAFO_BUCKET_") || name.starts_with("AWS_");
    let environment = env::all().into_iter().filter(|(name, _)| bucket_or_aws(name)).collect();
    let layers = Layers { flags: &flags, environment: &environment, file: None, defaults: &BTreeMap::new() };
    let config = Config::resolve(&layers).map_err(|error| Failure::usage(error.to_string()))?;
    config.bucket.ok_or_else(|| Failure::usage("--bucket names no bucket"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use scafo_store::{MemoryBucket, Operation, PutOptions};

    use super::*;

    /// Opens the bucket as a command does. Answers what was said if it was refused, and how many writes and deletes were sent.
    async fn opened(memory: &MemoryBucket) -> (Option<String>, usize) {
        let (handle, writes) = (memory.sibling(), Arc::new(AtomicUsize::new(0)));
        let seen = Arc::clone(&writes);
        handle.plan(move |operation| {
            let changes = matches!(operation, Operation::Put(..) | Operation::Delete(_));
            seen.fetch_add(usize::from(changes), Ordering::Relaxed);
            None
        });
        let opened = Direct::open(Arc::new(handle), "typo", Output::plain()).await;
        let said =
            opened.err().map(|failure| failure.report().map(|report| report.message().to_owned()).unwrap_or_default());
        (said, writes.load(Ordering::Relaxed))
    }

    async fn holding(meta: &str) -> MemoryBucket {
        let memory = MemoryBucket::new();
        memory.put(key::META, meta.to_owned().into(), PutOptions::default()).await.unwrap();
        memory
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_without_an_installation_of_this_version_is_left_untouched() {
        for (memory, said) in [
            (MemoryBucket::new(), "no installation in the bucket typo"),
            (holding(r#"{ "v": 2, "createdAt": "x" }"#).await, "record version 2"),
            (holding("<html>").await, "cannot be read"),
        ] {
            let before = memory.keys("");
            let (refused, writes) = opened(&memory).await;
            assert!(refused.as_ref().is_some_and(|refused| refused.contains(said)), "{refused:?}");
            assert_eq!((writes, memory.keys("")), (0, before), "{said}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_store_of_an_installation_is_probed_before_anything_is_done_in_it() {
        let memory = MemoryBucket::new();
        let registry = Registry::new(Arc::new(memory.sibling()), Arc::new(SystemClock), "a");
        registry.bootstrap(&"a".parse().unwrap()).await.unwrap();
        let (refused, writes) = opened(&memory).await;
        assert!(refused.is_none() && writes > 0, "{refused:?} after {writes} writes");
        assert_eq!(memory.keys(""), [key::META], "what the probe wrote is gone");
    }
}

//! Whether a lease that an application lost was lost for want of the node's own store, which is the one reason that there is.
//!
//! The store is asked to write all the time, as those who renew a lease ask it. A lease is lost when two renewals fail one after the
//! other, so what explains it are two such requests that failed as far apart as two renewals are, within the lease's life. How long
//! anything of the node took, and how busy the machine was, explains nothing.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use scafo_core::settings::{BucketAccess, Secret};
use scafo_store::{Bucket as _, Put, PutOptions, S3Bucket};
use tokio::task::JoinSet;

/// How long the lease of an application lives that is not renewed.
const LEASE: Duration = Duration::from_secs(10);
/// The time between two renewals, and how long one may take.
const RENEWAL: Duration = Duration::from_millis(3333);
/// How often the store is asked, which is how exactly its absence is known.
const PACE: Duration = Duration::from_millis(200);
/// What moments seen from here may differ by from those that a process saw, above that.
const BLUR: Duration = Duration::from_millis(300);

/// When the store was asked to write and did not.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<Vec<Instant>>);

impl Refusals {
    /// Asks the store of the node in `state` until it is over.
    pub(crate) async fn watch(self: Arc<Self>, state: PathBuf, over: Arc<AtomicBool>) {
        let (mut store, mut asked) = (None, JoinSet::new());
        let mut pace = tokio::time::interval(PACE);
        while !over.load(Ordering::Relaxed) {
            pace.tick().await;
            // Whoever is away for long finds the store where it is then.
            store = Store::of(&state, store);
            let (refusals, bucket) = (Arc::clone(&self), store.as_ref().map(|store| Arc::clone(&store.bucket)));
            asked.spawn(async move {
                let sent = Instant::now();
                if !writes(bucket).await {
                    refusals.0.lock().unwrap().push(sent);
                }
            });
            while asked.try_join_next().is_some() {}
        }
        while asked.join_next().await.is_some() {}
    }

    /// Whether a lease could not be renewed that was lost at some time from `earliest` to `latest`.
    pub(crate) fn explain_loss(&self, earliest: Instant, latest: Instant) -> bool {
        let alive = |sent: &&Instant| **sent + LEASE + BLUR >= earliest && **sent <= latest;
        let refusals = self.0.lock().unwrap();
        let (first, last) = (refusals.iter().filter(alive).min(), refusals.iter().filter(alive).max());
        first.zip(last).is_some_and(|(first, last)| last.duration_since(*first) + PACE + BLUR >= RENEWAL)
    }

    /// Whether it was asked in vain at some time from `begin` to `end`.
    pub(crate) fn within(&self, begin: Instant, end: Instant) -> bool {
        self.0.lock().unwrap().iter().any(|sent| *sent + RENEWAL + BLUR >= begin && *sent <= end + BLUR)
    }
}

/// A client of the node's own store.
struct Store {
    port: u64,
    bucket: Arc<S3Bucket>,
}

impl Store {
    /// The one that the node in `state` has now; the last one where nothing is known.
    fn of(state: &Path, last: Option<Self>) -> Option<Self> {
        let kept = std::fs::read(state.join("bucket.json")).ok().and_then(|kept| serde_json::from_slice(&kept).ok());
        let Some(kept): Option<serde_json::Value> = kept else { return last };
        let Some(port) = kept["port"].as_u64() else { return last };
        if last.as_ref().is_some_and(|last| last.port == port) {
            return last;
        }
        let access = BucketAccess {
            name: "scafo".to_owned(),
            prefix: String::new(),
            endpoint: Some(format!("http://127.0.0.1:{port}")),
            region: "us-east-1".to_owned(),
            path_style: true,
            access_key_id: kept["accessKeyId"].as_str()?.to_owned(),
            secret_access_key: Secret::new(kept["secretAccessKey"].as_str()?),
            session_token: None,
        };
        Some(Self { port, bucket: Arc::new(S3Bucket::new(&access)) })
    }
}

/// One write, under the limit that a renewal has.
async fn writes(bucket: Option<Arc<S3Bucket>>) -> bool {
    let Some(bucket) = bucket else { return false };
    let put = bucket.put("chaos/asked", Bytes::from_static(b"?"), PutOptions::default());
    matches!(tokio::time::timeout(RENEWAL, put).await, Ok(Ok(Put::Written(_))))
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::Signal;
    use scafo_tests::{Node, Project, process, wait};

    use super::*;
    use crate::fleet::{lost_leases, name};

    const LIMIT: Duration = Duration::from_secs(240);

    #[tokio::test(flavor = "multi_thread")]
    async fn a_lease_that_is_lost_for_want_of_the_store_is_seen_and_explained() {
        let node = Node::start().await;
        node.deploy(Project::answering(&name(0), "here").path()).await;
        let (refusals, over) = (Arc::<Refusals>::default(), Arc::new(AtomicBool::new(false)));
        let mut watching = JoinSet::new();
        watching.spawn(Arc::clone(&refusals).watch(node.state().to_owned(), Arc::clone(&over)));
        let begun = Instant::now();
        let lost = || lost_leases(node.state(), 0) > 0;
        let (from, to) = loop {
            // A busy machine may have the process killed for its silence before, and the next one has no lease without the store.
            wait::until("the application to serve", LIMIT, || async {
                node.get(&name(0), "/").await.ok().filter(|(status, _)| *status == 200)
            })
            .await;
            let from = Instant::now();
            while !lost() && from.elapsed() < 4 * LEASE {
                // One that does not answer for long is started again.
                node.daemon("scafo-bucketd").inspect(|store| process::signal(store.pid, Signal::SIGSTOP));
                wait::moment().await;
            }
            let to = Instant::now();
            node.daemon("scafo-bucketd").inspect(|store| process::signal(store.pid, Signal::SIGCONT));
            if lost() {
                break (from, to);
            }
            assert!(begun.elapsed() < LIMIT, "no lease is lost without the store\n{}", node.log());
        };
        over.store(true, Ordering::Relaxed);
        watching.join_next().await.unwrap().unwrap();
        assert!(refusals.explain_loss(from, to) && refusals.within(from, to));
        assert!(!refusals.explain_loss(to + 2 * LEASE, to + 2 * LEASE), "a loss of later");
        node.stop().await;
    }

    #[test]
    fn a_lease_is_lost_for_want_of_the_store_when_two_renewals_could_fail_in_its_life_and_not_otherwise() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let explained = |sent: &[u64], lost: u64| {
            let refusals = Refusals(Mutex::new(sent.iter().copied().map(at).collect()));
            refusals.explain_loss(at(lost), at(lost + 500))
        };
        let span = |from: u64, to: u64| (from..=to).step_by(200).collect::<Vec<_>>();
        assert!(explained(&span(3_000, 7_000), 10_000), "one absence");
        assert!(explained(&[3_200, 6_800], 10_000), "two short ones");
        assert!(!explained(&span(3_000, 5_600), 10_000), "too short for two renewals");
        assert!(!explained(&[], 10_000), "it was there all the time");
        assert!(!explained(&span(1_000, 9_000), 20_000), "before this life of the lease");
        assert!(!explained(&span(21_000, 29_000), 20_000), "afterwards");
    }
}

//! A store, a proxy before it, and what tests ask of both.

use std::sync::Arc;

use bytes::Bytes;
use scafo_registryd::registry::{Registry, SystemClock};
use scafo_store::{Bucket, Condition, Put, PutOptions, S3Bucket};
use scafo_tests::fault_proxy::FaultProxy;
use scafo_tests::stores::Store;

/// Whether to run longer than CI has time for.
pub(crate) fn long() -> bool {
    std::env::var_os("SCAFO_TEST_LONG").is_some_and(|value| value == "1")
}

/// The seed of this run: `SCAFO_TEST_SEED` replays one, and every test that uses it prints it when it fails.
pub(crate) fn seed() -> u64 {
    std::env::var("SCAFO_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random)
}

/// A store, `scafo-bucketd` mostly, and one proxy.
pub(crate) struct Bench {
    pub(crate) store: Store,
    pub(crate) proxy: FaultProxy,
    /// A client that goes through the proxy.
    pub(crate) bucket: S3Bucket,
}

impl Bench {
    pub(crate) async fn start() -> Self {
        Self::on(Store::bucketd().await).await
    }

    /// The same before another store.
    pub(crate) async fn on(store: Store) -> Self {
        let proxy = proxy(&store, 1).await;
        let bucket = S3Bucket::new(proxy.access());
        Self { store, proxy, bucket }
    }

    /// A registry that goes through the proxy.
    pub(crate) fn registry(&self) -> Registry {
        registry(&self.proxy, "a")
    }
}

pub(crate) async fn proxy(store: &Store, seed: u64) -> FaultProxy {
    FaultProxy::start(store.access(), seed).await.expect("a proxy")
}

pub(crate) fn registry(proxy: &FaultProxy, by: &str) -> Registry {
    Registry::new(Arc::new(S3Bucket::new(proxy.access())), Arc::new(SystemClock), by)
}

/// One PUT without metadata.
pub(crate) async fn put(bucket: &dyn Bucket, key: &str, body: &str, condition: Condition) -> Put {
    let options = PutOptions { condition, ..PutOptions::default() };
    bucket.put(key, Bytes::from(body.to_owned()), options).await.expect("an outcome")
}

/// The body that stands, seen past the proxy.
pub(crate) async fn stands(store: &Store, key: &str) -> Option<String> {
    let object = store.bucket().get(key).await.expect("the true store answers");
    object.map(|object| String::from_utf8(object.body.to_vec()).expect("text"))
}

/// All keys of the true store.
pub(crate) async fn keys(store: &Store) -> Vec<String> {
    let listing = store.bucket().list("").await.expect("the true store answers");
    listing.entries.into_iter().map(|listed| listed.key).collect()
}

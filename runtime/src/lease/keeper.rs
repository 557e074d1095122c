//! Takes and renews the lease: reads, writes, and hands every answer to [`Tenure::step`].

use std::{sync::Arc, time::Duration};

use scafo_store::{Bucket, Condition, ETag, Put, PutOptions};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use super::{Answer, Fence, Load, Next, PEER_PROTOCOL, Peer, Record, Tenure};
use crate::{Failure, failure::Outcome, names::NodeId, version::pretty_json};

/// How long a start tries to become authoritative.
const TAKE_LIMIT: Duration = Duration::from_secs(10);

/// Reads and writes one node's lease.
pub(crate) struct Keeper {
    bucket: Arc<dyn Bucket>,
    node: NodeId,
    addr: String,
    ttl: Duration,
    probe_public_key: String,
    generation: String,
    sample: Box<dyn Fn() -> Load + Send + Sync>,
}

/// A lease that was taken.
pub(crate) struct Held {
    keeper: Keeper,
    etag: ETag,
    sent: Instant,
    lapses: watch::Sender<Instant>,
}

impl Keeper {
    /// A keeper for `node`, which others reach at `addr`. `sample` tells the load at each renewal.
    pub(crate) fn new(
        bucket: Arc<dyn Bucket>,
        node: NodeId,
        addr: String,
        ttl: Duration,
        sample: impl Fn() -> Load + Send + Sync + 'static,
    ) -> Self {
        let key = ed25519_dalek::SigningKey::from_bytes(&rand::random());
        Self {
            bucket,
            node,
            addr,
            ttl,
            probe_public_key: hex::encode(key.verifying_key().as_bytes()),
            generation: hex::encode(rand::random::<[u8; 32]>()),
            sample: Box::new(sample),
        }
    }

    /// Takes the lease, whoever had it: a node id belongs to one process, and the newest one is it.
    ///
    /// # Errors
    /// Not authoritative within 10 s.
    pub(crate) async fn take(self) -> Outcome<Held> {
        let give_up = Instant::now() + TAKE_LIMIT;
        loop {
            let sent = Instant::now();
            let why = match timeout(TAKE_LIMIT, self.try_take()).await {
                Ok(Ok(Put::Written(etag))) => {
                    let lapses = watch::Sender::new(sent + self.ttl);
                    return Ok(Held { keeper: self, etag, sent, lapses });
                }
                Ok(Ok(other)) => format!("{other:?}"),
                Ok(Err(error)) => Failure::from(error).chain(),
                Err(_) => "no answer in time".to_owned(),
            };
            let next = Tenure::renewal(sent, self.ttl);
            if next >= give_up {
                return Err(Failure::new(format!("the lease of {} could not be taken: {why}", self.node)));
            }
            tracing::warn!(why, "the lease could not be taken; trying again");
            sleep_until(next).await;
        }
    }

    async fn try_take(&self) -> Result<Put, scafo_store::Error> {
        let found = self.bucket.head(&self.node.lease_key()).await?;
        self.write(found.map_or(Condition::Absent, |head| Condition::Matches(head.etag))).await
    }

    async fn write(&self, condition: Condition) -> Result<Put, scafo_store::Error> {
        let options = PutOptions { condition, ..PutOptions::default() };
        self.bucket.put(&self.node.lease_key(), pretty_json(&self.record()).into(), options).await
    }

    fn record(&self) -> Record {
        let ttl_ms = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX);
        Record {
            node: self.node.to_string(),
            expires_ms: now_ms().saturating_add(ttl_ms),
            addr: self.addr.clone(),
            probe_public_key: self.probe_public_key.clone(),
            peer_protocol: PEER_PROTOCOL,
            ownership_index_generation: self.generation.clone(),
            load: (self.sample)(),
        }
    }
}

impl Held {
    /// When authority ends, as of the newest renewal.
    pub(crate) fn lapses(&self) -> watch::Receiver<Instant> {
        self.lapses.subscribe()
    }

    /// Renews for as long as it may.
    pub(crate) async fn keep(mut self) -> Fence {
        let ttl = self.keeper.ttl;
        let mut tenure = Tenure::new(self.sent, ttl);
        let mut renew_at = Tenure::renewal(self.sent, ttl);
        loop {
            sleep_until(renew_at.min(tenure.lapses)).await;
            if Instant::now() >= tenure.lapses {
                return Fence::Expired;
            }
            let sent = Instant::now();
            let answer = self.renew(tenure.lapses).await;
            let mut step = tenure.step(answer, sent, Instant::now(), ttl);
            if step.1 == Next::ReadBack {
                let answer = self.read_back(step.0.lapses).await;
                step = step.0.step(answer, sent, Instant::now(), ttl);
            }
            tenure = step.0;
            self.lapses.send_replace(tenure.lapses);
            match step.1 {
                Next::Renew(at) => renew_at = at,
                // A read that gave nothing: the next renewal asks again.
                Next::ReadBack => renew_at = Tenure::renewal(sent, ttl),
                Next::Fence(fence) => return fence,
            }
        }
    }

    /// One try, which ends before the next one is due and before authority does.
    async fn renew(&mut self, lapses: Instant) -> Answer {
        let limit = (Instant::now() + self.keeper.ttl / 3).min(lapses);
        let write = self.keeper.write(Condition::Matches(self.etag.clone()));
        match tokio::time::timeout_at(limit, write).await {
            Ok(Ok(Put::Written(etag))) => {
                self.etag = etag;
                Answer::Written
            }
            Ok(Ok(Put::Refused | Put::Conflict)) => Answer::Refused,
            Ok(Ok(Put::Gone)) => Answer::Gone,
            Ok(Ok(Put::Busy)) => Answer::NotWritten,
            Ok(Ok(Put::Unknown(cause))) => {
                tracing::warn!(%cause, "nobody knows whether the lease is renewed");
                Answer::Unknown
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "the lease is not renewed");
                Answer::NotWritten
            }
            Err(_) => {
                tracing::warn!("no answer to the renewal of the lease in time");
                Answer::Unknown
            }
        }
    }

    async fn read_back(&mut self, lapses: Instant) -> Answer {
        let key = self.keeper.node.lease_key();
        let limit = (Instant::now() + self.keeper.ttl / 3).min(lapses);
        match tokio::time::timeout_at(limit, self.keeper.bucket.get(&key)).await {
            Ok(Ok(Some(object))) => match serde_json::from_slice::<Peer>(&object.body) {
                Ok(peer) if peer.ownership_index_generation == self.keeper.generation => {
                    self.etag = object.head.etag;
                    Answer::Ours
                }
                Ok(_) | Err(_) => Answer::NotOurs,
            },
            Ok(Ok(None)) => Answer::Gone,
            Ok(Err(_)) | Err(_) => Answer::NotWritten,
        }
    }
}

impl From<scafo_store::Error> for Failure {
    fn from(error: scafo_store::Error) -> Self {
        match error.cause().cloned() {
            Some(cause) => Self::because(error.to_string(), cause.to_string()),
            None => Self::new(error.to_string()),
        }
    }
}

/// Milliseconds since 1970 by the wall clock.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use scafo_store::MemoryBucket;

    use super::*;

    const TTL: Duration = Duration::from_secs(9);

    fn keeper(bucket: &Arc<dyn Bucket>) -> Keeper {
        let node = "node-a".parse().unwrap();
        Keeper::new(Arc::clone(bucket), node, "127.0.0.1:1".into(), TTL, Load::default)
    }

    fn store() -> Arc<dyn Bucket> {
        Arc::new(MemoryBucket::default())
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_process_takes_over_at_once_and_the_first_fences_itself() {
        let bucket = store();
        let first = keeper(&bucket).take().await.unwrap();
        let second = keeper(&bucket).take().await.unwrap();
        assert_eq!(first.keep().await, Fence::Replaced);
        assert!(timeout(TTL * 5, second.keep()).await.is_err(), "the newest process keeps the lease");
    }

    #[tokio::test(start_paused = true)]
    async fn a_removed_record_fences() {
        let bucket = store();
        let held = keeper(&bucket).take().await.unwrap();
        bucket.delete("nodes/node-a.json").await.unwrap();
        assert!(matches!(held.keep().await, Fence::Replaced | Fence::Missing));
    }

    #[tokio::test(start_paused = true)]
    async fn the_record_has_the_fields_that_peers_read() {
        let bucket = store();
        let _held = keeper(&bucket).take().await.unwrap();
        let object = bucket.get("nodes/node-a.json").await.unwrap().unwrap();
        let record: serde_json::Value = serde_json::from_slice(&object.body).unwrap();
        assert_eq!(record["node"], "node-a");
        assert_eq!(record["peer_protocol"], 0);
        assert!(record["expires_ms"].as_u64().unwrap() > now_ms());
        for (field, length) in [("probe_public_key", 64), ("ownership_index_generation", 64)] {
            assert_eq!(record[field].as_str().unwrap().len(), length, "{field}");
        }
        assert!(record["load"]["restoring"].is_u64());
    }
}

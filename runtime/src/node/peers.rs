//! The rest of the fleet, and the secret that it shares.

use scafo_store::{Bucket, Condition, Put, PutOptions};
use serde_json::json;

use crate::{
    Failure,
    failure::{Context, Outcome},
    lease::{PEER_PROTOCOL, Peer, now_ms},
    names::NodeId,
    version::pretty_json,
};

/// A lease is below 4 KiB.
const LEASE_BYTES_MAX: u64 = 64 << 10;

/// Leases that are read: a development fleet has a few.
const LEASES_MAX: usize = 1000;

/// Where the fleet's secret is.
const PEER_AUTH: &str = "fleet/peer-auth.json";

/// Every lease that can be read, expired ones included.
pub(crate) async fn leases(bucket: &dyn Bucket) -> Outcome<Vec<Peer>> {
    let listing = bucket.list("nodes/").await.context(|| "list the node leases".into())?;
    let mut peers = Vec::new();
    for entry in listing.entries.iter().take(LEASES_MAX) {
        let object = bucket.get_bounded(&entry.key, LEASE_BYTES_MAX).await;
        // A lease may be collected between the listing and the read.
        let Some(object) = object.context(|| format!("read {}", entry.key))? else { continue };
        match serde_json::from_slice(&object.body) {
            Ok(peer) => peers.push(peer),
            Err(error) => tracing::warn!(key = entry.key, %error, "a lease that cannot be read is passed over"),
        }
    }
    Ok(peers)
}

/// Refuses to run beside others: data of Durable Objects is on one disk, and celld speaks another protocol.
///
/// # Errors
/// A live lease of a celld, or, unless `multi`, of another stand-in.
pub(super) async fn check(bucket: &dyn Bucket, node: &NodeId, multi: bool) -> Outcome<()> {
    let now = now_ms();
    let others = leases(bucket).await?;
    let mut live = others.iter().filter(|peer| peer.node != node.as_str() && peer.is_live(now));
    live.try_for_each(|peer| {
        if peer.peer_protocol != Some(PEER_PROTOCOL) {
            return Err(Failure::new(format!(
                "node {:?} of this fleet is a real celld: a stand-in must never join it; use another bucket or prefix",
                peer.node
            )));
        }
        if !multi {
            return Err(Failure::new(format!(
                "node {:?} of this fleet is alive: stand-ins do not share data, so there may be one; stop it and wait for \
                 its lease to expire (10 s), or set CELLD_STANDIN_MULTI=1 and have data per node",
                peer.node
            )));
        }
        Ok(())
    })
}

/// Makes the fleet's secret if there is none. It is never read here: a stand-in has nobody to talk to.
pub(super) async fn ensure_peer_auth(bucket: &dyn Bucket) -> Outcome<()> {
    if bucket.head(PEER_AUTH).await.context(|| format!("read {PEER_AUTH}"))?.is_some() {
        return Ok(());
    }
    let secret = json!({ "version": 1, "key": hex::encode(rand::random::<[u8; 32]>()) });
    let options = PutOptions { condition: Condition::Absent, ..PutOptions::default() };
    match bucket.put(PEER_AUTH, pretty_json(&secret).into(), options).await.context(|| format!("write {PEER_AUTH}"))? {
        // Somebody else was faster, or may have been: there is one then.
        Put::Written(_) | Put::Refused | Put::Conflict | Put::Unknown(_) => Ok(()),
        other @ (Put::Gone | Put::Busy) => Err(Failure::new(format!("write {PEER_AUTH}: {other:?}"))),
    }
}

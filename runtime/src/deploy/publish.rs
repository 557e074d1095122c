//! The order of writes, and why: bodies before the documents that name them, documents before the pointers, the script's
//! pointer before the fleet's. A node that follows a pointer therefore finds everything behind it, and a deploy that ends
//! anywhere before the last write has changed nothing that a node sees.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use scafo_store::{Bucket, Condition, Put, PutOptions};

use super::build::Built;
use crate::{
    Failure,
    bucket::Location,
    failure::{Context, Outcome},
    hooks::DeployHook,
    shapes::{FLEET_POINTER, Pointer, Rollout, asset_blob, script_pointer},
    version::{pretty_json, sha256_hex},
};

/// Bodies that are uploaded at once: as many as celld uploads.
const UPLOADS_AT_ONCE: usize = 16;

/// Tries of a write that may be repeated without harm.
const TRIES: u32 = 4;

/// The first wait between two tries; it doubles.
const BACK_OFF: Duration = Duration::from_millis(200);

/// Writes `built` into the fleet's bucket and moves both pointers to it.
pub(super) async fn publish(
    bucket: &dyn Bucket,
    name: &Location,
    built: &Built,
    hook: Option<DeployHook>,
) -> Outcome<()> {
    if hook == Some(DeployHook::Hang) {
        std::future::pending::<()>().await;
    }
    if let Some(assets) = &built.assets {
        let uploads = assets.bodies.iter().map(|(sha256, path)| async move {
            let key = asset_blob(sha256);
            let size = path.metadata().context(|| format!("read {}", path.display()))?.len();
            if is_there(bucket, &key, sha256, size).await {
                return Ok(());
            }
            let body = tokio::fs::read(path).await.context(|| format!("read {}", path.display()))?;
            if sha256_hex(&body) != *sha256 {
                return Err(Failure::new(format!("{} changed while it was published: deploy again", path.display())));
            }
            put(bucket, &key, body.into(), Some(sha256)).await
        });
        stream::iter(uploads).buffer_unordered(UPLOADS_AT_ONCE).try_collect::<()>().await?;
    }
    for (module, body) in &built.modules {
        put(bucket, &format!("{}/{module}", built.prefix), Bytes::copy_from_slice(body), None).await?;
    }
    if let Some(assets) = &built.assets {
        put(bucket, &format!("{}/assets.json", built.prefix), Bytes::copy_from_slice(&assets.index), None).await?;
    }
    put(bucket, &format!("{}/manifest.json", built.prefix), pretty_json(&built.manifest).into(), None).await?;

    let script = &built.manifest.script_name;
    if hook == Some(DeployHook::LostRace) {
        return Err(lost_race(name, FLEET_POINTER));
    }
    let pointer = Pointer {
        script_name: Some(script.clone()),
        version: built.manifest.version.clone(),
        prefix: built.prefix.clone(),
        rollout: Rollout::default(),
    };
    let body = Bytes::from(pretty_json(&pointer));
    move_pointer(bucket, name, &script_pointer(script), body.clone()).await?;
    move_pointer(bucket, name, FLEET_POINTER, body).await?;
    if hook == Some(DeployHook::Ambiguous) {
        return Err(ambiguous(name, FLEET_POINTER, "the answer was dropped by a test hook"));
    }
    Ok(())
}

/// Whether the body is there already. Doubt costs an upload, no more.
async fn is_there(bucket: &dyn Bucket, key: &str, sha256: &str, size: u64) -> bool {
    match bucket.head(key).await {
        Ok(Some(head)) => head.size == size && head.metadata.get("sha256").is_some_and(|found| found == sha256),
        Ok(None) | Err(_) => false,
    }
}

/// Writes an object whose key is made from its content, so that a second write changes nothing.
async fn put(bucket: &dyn Bucket, key: &str, body: Bytes, sha256: Option<&str>) -> Outcome<()> {
    let metadata = sha256.map(|sha256| ("sha256".to_owned(), sha256.to_owned())).into_iter().collect();
    let options = PutOptions { metadata, ..PutOptions::default() };
    let mut wait = BACK_OFF;
    for attempt in 1..=TRIES {
        let written = bucket.put(key, body.clone(), options.clone()).await;
        match written.context(|| format!("write {key}"))? {
            Put::Written(_) => return Ok(()),
            // Without a condition these only mean that the store has too much to do, or lost its answer.
            Put::Busy | Put::Conflict | Put::Unknown(_) | Put::Refused | Put::Gone if attempt < TRIES => {
                tokio::time::sleep(wait).await;
                wait *= 2;
            }
            Put::Unknown(cause) => return Err(Failure::because(format!("write {key}"), cause.to_string())),
            Put::Busy | Put::Conflict | Put::Refused | Put::Gone => break,
        }
    }
    Err(Failure::new(format!("write {key}: the bucket is busy; deploy again")))
}

/// Moves a pointer from exactly what it was when we looked.
async fn move_pointer(bucket: &dyn Bucket, name: &Location, key: &str, body: Bytes) -> Outcome<()> {
    let mut wait = BACK_OFF;
    for attempt in 1..=TRIES {
        let head = match bucket.head(key).await {
            // As good as a write that the store was too busy for.
            Err(error) if error.is_transient() && attempt < TRIES => {
                tokio::time::sleep(wait).await;
                wait *= 2;
                continue;
            }
            head => head.context(|| format!("read {key}"))?,
        };
        let condition = head.map_or(Condition::Absent, |head| Condition::Matches(head.etag));
        let options = PutOptions { condition, ..PutOptions::default() };
        match bucket.put(key, body.clone(), options).await.context(|| format!("write {key}"))? {
            Put::Written(_) => return Ok(()),
            Put::Refused | Put::Gone | Put::Conflict => return Err(lost_race(name, key)),
            Put::Unknown(cause) => return Err(ambiguous(name, key, cause.to_string())),
            Put::Busy => {}
        }
        tokio::time::sleep(wait).await;
        wait *= 2;
    }
    Err(Failure::new(format!("write {name}/{key}: the bucket is busy; deploy again")))
}

fn lost_race(name: &Location, key: &str) -> Failure {
    Failure::new(format!("the write of {name}/{key} lost a race: another deploy moved it; run this deploy again"))
}

fn ambiguous(name: &Location, key: &str, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Failure {
    Failure::because(
        format!("nobody knows whether the write of {name}/{key} is done; read it, or run this deploy again"),
        why,
    )
}

#[cfg(test)]
mod tests;

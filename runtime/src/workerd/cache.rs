//! Bodies of assets by digest, kept on disk over starts and shared by processes.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use scafo_store::Bucket;

use super::stage::{make_directory, write};
use crate::{
    Failure,
    failure::{Context, Outcome},
    shapes::asset_blob,
    version::sha256_hex,
};

/// Largest asset, as for a deploy.
const ASSET_BYTES_MAX: u64 = 25 << 20;

/// The modification time of every body, 2000-01-01: workerd makes entity tags from it, and a body that is fetched again is
/// the same body.
const MODIFIED: Duration = Duration::from_secs(946_684_800);

/// See the module.
#[derive(Debug)]
pub(crate) struct AssetCache {
    root: PathBuf,
    max_bytes: u64,
    /// As far as this process knows.
    bytes: AtomicU64,
    /// Makes names of unfinished files unique.
    fetched: AtomicU64,
}

impl AssetCache {
    /// The cache in `root`, made if it is not there.
    pub(crate) fn open(root: &Path, max_bytes: u64) -> Outcome<Self> {
        make_directory(root)?;
        let bytes = size(root).context(|| format!("measure {}", root.display()))?;
        Ok(Self { root: root.to_owned(), max_bytes, bytes: bytes.into(), fetched: AtomicU64::new(0) })
    }

    /// Empties a cache that has grown too large. What runs has links of its own to the bodies that it serves.
    pub(super) fn keep_within_bounds(&self) {
        if self.bytes.load(Ordering::Relaxed) <= self.max_bytes {
            return;
        }
        for directory in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            // Only directories of bodies, named by the first two digits.
            if directory.file_name().len() == 2 {
                // Another process may empty it at the same time.
                let _going_anyway = fs::remove_dir_all(directory.path());
            }
        }
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// Puts the body with this digest at `file`, from the cache or from the bucket.
    pub(super) async fn place(&self, bucket: &dyn Bucket, sha256: &str, file: PathBuf) -> Outcome<()> {
        let cached = self.root.join(sha256.get(..2).unwrap_or_default()).join(sha256);
        if !cached.is_file() {
            self.fetch(bucket, sha256, &cached).await?;
        }
        if let Some(parent) = file.parent() {
            make_directory(parent)?;
        }
        // A link costs nothing; across file systems it must be a copy.
        if fs::hard_link(&cached, &file).is_err() {
            fs::copy(&cached, &file).context(|| format!("place asset {}", file.display()))?;
        }
        Ok(())
    }

    async fn fetch(&self, bucket: &dyn Bucket, sha256: &str, cached: &Path) -> Outcome<()> {
        let key = asset_blob(sha256);
        let object = bucket.get_bounded(&key, ASSET_BYTES_MAX).await.context(|| format!("read {key}"))?;
        let object = object.context(|| format!("{key} is missing from the bucket: deploy again"))?;
        if sha256_hex(&object.body) != sha256 {
            return Err(Failure::new(format!("{key} is damaged in the bucket: deploy again")));
        }
        // A body appears whole or not at all, whoever else fetches it.
        let unique = format!("{sha256}.{}.{}", std::process::id(), self.fetched.fetch_add(1, Ordering::Relaxed));
        let partial = cached.with_file_name(unique);
        write(&partial, &object.body)?;
        let file = fs::File::open(&partial).context(|| format!("open {}", partial.display()))?;
        let _cosmetic = file.set_modified(SystemTime::UNIX_EPOCH + MODIFIED);
        fs::rename(&partial, cached).context(|| format!("cache {key}"))?;
        self.bytes.fetch_add(object.body.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// Bytes of all bodies.
fn size(root: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for directory in fs::read_dir(root)? {
        let directory = directory?;
        if directory.file_type()?.is_dir() {
            for body in fs::read_dir(directory.path())? {
                bytes += body?.metadata().map_or(0, |metadata| metadata.len());
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use scafo_store::{MemoryBucket, PutOptions};

    use super::*;

    async fn bucket(bodies: &[&'static str]) -> MemoryBucket {
        let bucket = MemoryBucket::new();
        for body in bodies {
            let key = asset_blob(&sha256_hex(body.as_bytes()));
            bucket.put(&key, (*body).into(), PutOptions::default()).await.unwrap();
        }
        bucket
    }

    #[tokio::test]
    async fn a_body_is_fetched_once() {
        let directory = tempfile::tempdir().unwrap();
        let cache = AssetCache::open(&directory.path().join("cache"), 100).unwrap();
        let bucket = bucket(&["body"]).await;
        let sha256 = sha256_hex(b"body");
        for name in ["a", "b/c"] {
            let file = directory.path().join("files").join(name);
            cache.place(&bucket, &sha256, file.clone()).await.unwrap();
            assert_eq!(fs::read(file).unwrap(), b"body");
            bucket.delete(&asset_blob(&sha256)).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_damaged_or_missing_body_is_refused_and_not_kept() {
        let directory = tempfile::tempdir().unwrap();
        let cache = AssetCache::open(&directory.path().join("cache"), 100).unwrap();
        let bucket = MemoryBucket::new();
        let sha256 = sha256_hex(b"body");
        let file = directory.path().join("file");
        assert!(cache.place(&bucket, &sha256, file.clone()).await.unwrap_err().chain().contains("missing"));
        bucket.put(&asset_blob(&sha256), "other".into(), PutOptions::default()).await.unwrap();
        assert!(cache.place(&bucket, &sha256, file.clone()).await.unwrap_err().chain().contains("damaged"));
        assert!(!file.exists());
    }

    #[tokio::test]
    async fn a_cache_beyond_its_bound_is_emptied_and_what_was_placed_stays() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("cache");
        let bucket = bucket(&["one", "two"]).await;
        let cache = AssetCache::open(&root, 4).unwrap();
        let file = directory.path().join("file");
        cache.place(&bucket, &sha256_hex(b"one"), file.clone()).await.unwrap();
        cache.keep_within_bounds();
        assert_eq!(size(&root).unwrap(), 3, "within its bound");
        cache.place(&bucket, &sha256_hex(b"two"), directory.path().join("other")).await.unwrap();
        assert_eq!(AssetCache::open(&root, 4).unwrap().bytes.into_inner(), 6, "a new process knows too");
        cache.keep_within_bounds();
        assert_eq!(size(&root).unwrap(), 0);
        assert_eq!(fs::read(file).unwrap(), b"one");
    }
}
